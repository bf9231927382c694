"""Our recurrent layers inside a live MXNet 1.9.1: in symbols, gluon blocks, and called directly.

MXNet is imported inside: this package must import without it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from onernn.adapters.mxnet.live.custom import (
    OPERATOR,
    custom_attributes,
    live_mxnet,
    original_attributes,
    register,
    view,
)
from onernn.adapters.mxnet.live.execution import LiveRnn, Options
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.plugins import DISABLED, plugins_enabled

RNN = ("RNN", "_npx_rnn")
_log = logging.getLogger("onernn")
_WITHOUT = "unrolled cells stay as they are, onernn.load and onernn.Session fuse them"


def optimize(target: Any, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """MXNet runs everything but the recurrent layers, which run here.

    ``target``: a Symbol, of which a copy is returned in which every RNN operator is ours (for
    Module, SymbolBlock or bind; ``params`` by name, checked where given); or a gluon block, whose
    recurrent layers and SymbolBlocks, of any depth, become ours in place and keep their parameters;
    it is returned, too. ``options``: semantics, dtype, backend, threads, as of `onernn.load` and
    `onernn.Session`; semantics="documented" makes sequence lengths and clips work, which MXNet
    ignores on CPU.

    Gradients go through our backward, but where the backend has none: asking for them is an error
    then. Raises `UnsupportedError`, and replaces nothing, where there is no RNN operator, or one
    that cannot run or be trained as documented (dropout between layers), and
    `MissingDependencyError` without MXNet. Errors at run time are logged (logger "onernn") with
    the node's name: MXNet itself only tells that an operator failed.
    """
    mx = live_mxnet()
    chosen = Options(**options)
    if not plugins_enabled() and isinstance(target, mx.sym.Symbol | mx.gluon.Block):
        _log.info("%s", DISABLED)
        return target
    if isinstance(target, mx.sym.Symbol):
        symbol, found = _optimized_symbol(target, params or {}, chosen)
        if not found:
            raise UnsupportedError(f"the symbol holds no operator RNN: {_WITHOUT}")
        return symbol
    if isinstance(target, mx.gluon.Block):
        return _optimized_block(target, chosen)
    raise TypeError(f"expected an MXNet Symbol or gluon Block, got {type(target).__qualname__}")


def rnn(
    data: Any,
    parameters: Any,
    state: Any,
    state_cell: Any = None,
    sequence_length: Any = None,
    *,
    state_size: int,
    num_layers: int,
    mode: str,
    bidirectional: bool = False,
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: int | None = None,
    lstm_state_clip_min: float | None = None,
    lstm_state_clip_max: float | None = None,
    lstm_state_clip_nan: bool = False,
    use_sequence_length: bool = False,
    **options: Any,
) -> Any:
    """mx.nd.RNN, run here: NDArrays in and out, without a copy of the inputs.

    Arguments are those of mx.nd.RNN: data (T, N, I), parameters a vector, states (L*D, N, R).
    Output (T, N, D*R), or with ``state_outputs`` a list of it and the final states. Where autograd
    records, gradients go through it. ``options`` as of `optimize`. The switches
    MXNET_CUDA_ALLOW_TENSOR_CORE and MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION of MXNet's
    documentation are without effect: they choose a precision on GPUs.

    Raises `UnsupportedError` for attributes or arrays that cannot run, `ShapeError` for shapes
    that do not belong together.
    """
    mx = live_mxnet()
    attributes = {
        "state_size": state_size,
        "num_layers": num_layers,
        "mode": mode,
        "bidirectional": bidirectional,
        "p": p,
        "state_outputs": state_outputs,
        "projection_size": projection_size,
        "lstm_state_clip_min": lstm_state_clip_min,
        "lstm_state_clip_max": lstm_state_clip_max,
        "lstm_state_clip_nan": lstm_state_clip_nan,
        "use_sequence_length": use_sequence_length,
    }
    chosen = Options(**options)
    live = _live(tuple((name, str(value)) for name, value in attributes.items()), chosen)
    named = {
        "data": data,
        "parameters": parameters,
        "state": state,
        "state_cell": state_cell,
        "sequence_length": sequence_length,
    }
    if not plugins_enabled():
        theirs = mx.npx.rnn if isinstance(data, mx.np.ndarray) else mx.nd.RNN
        told = {**named, **attributes}
        return theirs(**{name: value for name, value in told.items() if value is not None})
    missing = [name for name in live.arguments if named[name] is None]
    if missing:
        raise ShapeError(f"missing: {', '.join(missing)}; mode={mode!r} takes {live.arguments}")
    if mx.autograd.is_recording():
        register()
        custom = mx.nd.np._internal.Custom if isinstance(data, mx.np.ndarray) else mx.nd.Custom
        return custom(
            *map(named.get, live.arguments), **custom_attributes(attributes, "rnn", chosen)
        )
    views = [view(named[name], name) for name in live.arguments]
    results = live.run(live.bound(views))
    kind = mx.np.array if isinstance(data, mx.np.ndarray) else mx.nd.array
    made = [kind(result, dtype=result.dtype) for result in results]
    return made if state_outputs else made[0]


@lru_cache(maxsize=32)
def _live(attributes: tuple[tuple[str, str], ...], options: Options) -> LiveRnn:
    """Packed weights live here between calls of `rnn`, for the operators called last."""
    return LiveRnn(dict(attributes), options)


def _optimized_symbol(symbol: Any, params: Mapping[str, Any], options: Options) -> tuple[Any, int]:
    """The symbol with our operators, and how many there are."""
    mx = live_mxnet()
    register()
    graph = json.loads(symbol.tojson())
    found = 0
    for node in graph["nodes"]:
        given = node.get("attrs", {})
        if node["op"] not in RNN and given.get("op_type") != OPERATOR:
            continue
        found += 1
        _, _, attributes = original_attributes(given)
        live = _checked(node["name"], attributes, options)
        vector = params.get(graph["nodes"][node["inputs"][1][0]]["name"])
        if vector is not None:
            live.layer(view(vector, "parameters"))  # says now what it would say at the first run
        node["op"] = "Custom"
        node["attrs"] = custom_attributes(attributes, node["name"], options)
    graph.pop("node_row_ptr", None)  # a Custom operator shows all of its outputs
    made = mx.sym.load_json(json.dumps(graph))
    return made.as_np_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else made, found


def _optimized_block(block: Any, options: Options) -> Any:
    mx = live_mxnet()
    register()
    blocks: list[Any] = []
    block.apply(blocks.append)
    layers = [each for each in blocks if isinstance(each, mx.gluon.rnn.rnn_layer._RNNLayer)]
    imported = [each for each in blocks if isinstance(each, mx.gluon.SymbolBlock)]
    for each in layers:
        sizes = {"state_size": each._hidden_size, "num_layers": each._num_layers}
        _checked(each.name, {"mode": each._mode, "p": each._dropout, **sizes}, options)
    symbols = [_optimized_symbol(each._cached_graph[1], {}, options) for each in imported]
    if not layers and not any(count for _, count in symbols):
        raise UnsupportedError(f"{type(block).__name__} holds no recurrent layer: {_WITHOUT}")
    for each in layers:
        each.__class__ = _ours(_theirs(type(each)), options)
    for each, (symbol, _) in zip(imported, symbols, strict=True):
        each._cached_graph = each._cached_graph[0], symbol
    for each in blocks:
        if hasattr(each, "_clear_cached_op"):
            each._clear_cached_op()  # what was traced before holds MXNet's operators
    return block


def _checked(name: str, attributes: Mapping[str, Any], options: Options) -> LiveRnn:
    """Raises `UnsupportedError`, with the layer's name, for attributes that cannot run."""
    try:
        return LiveRnn({key: str(value) for key, value in attributes.items()}, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name} (RNN): {error}") from None


def _theirs(kind: type) -> type:
    """The class that a layer had before it became ours."""
    return kind.__mro__[1] if getattr(kind, "onernn_options", None) else kind


@cache
def _ours(kind: Any, options: Options) -> type:
    """A recurrent layer of gluon whose operator is ours; parameters, states and layouts stay."""

    def forward_kernel(self: Any, F: Any, *arguments: Any, **parameters: Any) -> Any:  # noqa: N803
        functions = _Replaced(F, self.name, options) if plugins_enabled() else F
        return kind._forward_kernel(self, functions, *arguments, **parameters)

    return type(
        kind.__name__, (kind,), {"_forward_kernel": forward_kernel, "onernn_options": options}
    )


class _Replaced:
    """``F`` of a hybrid_forward, in which RNN is our operator."""

    def __init__(self, functions: Any, name: str, options: Options, custom: Any = None) -> None:
        self._functions, self._name, self._options = functions, name, options
        self._custom = custom

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._functions, name)
        if name == "npx":  # NumPy mode has its own
            custom = self._functions.np._internal.Custom
            return _Replaced(found, self._name, self._options, custom)
        return self._rnn if name in ("RNN", "rnn") else found

    def _rnn(self, *arguments: Any, **attributes: Any) -> Any:
        custom = self._custom or self._functions.Custom
        return custom(*arguments, **custom_attributes(attributes, self._name, self._options))
