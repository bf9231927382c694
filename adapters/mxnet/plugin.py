"""onernn's recurrent layers inside a live MXNet 1.9.1: in symbols, gluon blocks, and direct calls.

Functions import MXNet, because this package must import without MXNet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import Any, Unpack

from onernn.adapters.common.live import (
    NOT_CALLED,
    NOT_SEEN,
    Explained,
    SessionOptions,
    Slower,
    derive,
    leave,
    original,
    warn_of_left,
)
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.mxnet.custom_operator import (
    HOST,
    RNN,
    custom_attributes,
    live_mxnet,
    register,
    restore_symbol,
    slower_operator,
    view,
)
from onernn.adapters.mxnet.live_layer import LiveRnn, Options, check_rnn
from onernn.adapters.mxnet.originals import ORIGINAL, keep_rnn
from onernn.adapters.mxnet.partition import explain as explain_symbol
from onernn.adapters.mxnet.partition import optimize_symbol
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError

_log = logging.getLogger("onernn")


class MxnetOptions(SessionOptions, total=False):
    """The options of `optimize`."""

    semantics: str
    frozen: bool


def optimize(
    target: Any, params: Mapping[str, Any] | None = None, **options: Unpack[MxnetOptions]
) -> Any:
    """Lets onernn run the recurrent layers of a model that MXNet runs.

    ``target``: a Symbol or a gluon block. For a Symbol, returns a changed copy, which Module,
    BucketingModule, SymbolBlock and bind accept. In the copy, onernn replaces every RNN operator,
    and every cell that is unrolled or is the body of a `_foreach`. ``params``: arrays of a Symbol
    by name, which are then checked. A block is changed in place and returned. onernn replaces its
    recurrent layers and SymbolBlocks at any depth, and cells that are unrolled in hybridized
    blocks. Weights stay MXNet's variables. `explain` and the logger "onernn" name the layers that
    stay in MXNet, with the reason. Layers that were measured to be faster in MXNet stay there,
    unless ``backend`` names a backend.

    ``options``: semantics (see `onernn.load`); dtype, backend and threads (see `onernn.Session`);
    and frozen. Each call reads the parameters, so they may change at any time. With ``frozen=True``
    the first call packs the parameters, and later changes have no effect. With
    semantics="documented", sequence lengths and clips have an effect, although MXNet ignores them
    on CPU. float16 is computed in float32. Neither MXNet on the CPU nor onernn applies dropout p
    between layers. So MXNet trains the layers of a block that would need dropout, and a warning
    names such layers of a symbol.

    onernn computes gradients. It is an error to ask for a backend that has no gradients. Raises
    `UnsupportedError`, and replaces nothing, if there is nothing to replace or if onernn cannot run
    an RNN operator, and `MissingDependencyError` without MXNet. Errors at run time are logged with
    the node's name, because MXNet only says that an operator failed.

    >>> import mxnet as mx
    >>> from onernn.adapters.mxnet import optimize
    >>> layer = mx.gluon.rnn.GRU(3, input_size=2)
    >>> layer.initialize()
    >>> optimize(layer, backend="reference")(mx.nd.ones((4, 1, 2))).shape
    (4, 1, 3)
    """
    mx = live_mxnet()
    chosen = Options(**options)
    if not plugins_enabled() and isinstance(target, mx.sym.Symbol | mx.gluon.Block):
        _log.info("%s", DISABLED)
        return target
    if isinstance(target, mx.sym.Symbol):
        symbol = optimize_symbol(target, params or {}, chosen)
        if symbol is target:
            _check([explain_symbol(target, **options)], "the symbol")
        return symbol
    if isinstance(target, mx.gluon.Block):
        return _optimize_block(target, chosen)
    raise TypeError(f"expected an MXNet Symbol or gluon Block, got {type(target).__qualname__}")


def explain(target: Any, **options: Unpack[MxnetOptions]) -> Explained:
    """Returns the layers of a Symbol or gluon block that onernn runs, and why others stay in MXNet.

    For a block, the result contains the layers in the graphs that MXNet has traced, and what ran
    each layer last, in training and in prediction. ``options``: the same as for `optimize`. The
    text of the result has one line for each layer.

    >>> import mxnet as mx
    >>> from onernn.adapters.mxnet import explain, optimize
    >>> layer = mx.gluon.rnn.GRU(3, input_size=2)
    >>> layer.initialize()
    >>> y = optimize(layer, backend="reference")(mx.nd.ones((4, 1, 2)))
    >>> len(explain(layer).replaced)
    1
    """
    mx = live_mxnet()
    if not isinstance(target, mx.gluon.Block):
        return _Explained(*explain_symbol(target, **options))
    replaced, refusals, blocks = list[str](), list[Refusal](), _blocks(target)
    runs = [
        child for child in blocks if getattr(child, "_cached_graph", ()) and _is_compiled(child)
    ]
    traced = {id(inner) for child in runs for inner in _blocks(child)}
    for child in blocks:
        if hasattr(child, "onernn_left"):  # the layer has run
            reasons = child.onernn_left.values()
            refusals += [Slower(why, child.name) for why in reasons if why]
            replaced += [child.name] * ("" in reasons)
        elif not hasattr(child, "onernn_options"):
            refusals += [Refusal(NOT_SEEN, child.name)] * _is_layer(child)
        elif child in runs:
            result = explain_symbol(child._cached_graph[1], _cells(child), **options)
            replaced += result.replaced
            refusals += result.refusals
        elif _is_layer(child) and id(child) not in traced:
            refusals.append(Refusal(NOT_CALLED, child.name))
    refusals += _stepwise(blocks)
    return _Explained(tuple(dict.fromkeys(replaced)), tuple(dict.fromkeys(refusals)))


class _Explained(Explained):
    def __str__(self) -> str:
        lines = tuple(f"{name}: onernn" for name in self.replaced)
        return Explained(lines, self.refusals).text(HOST)


STEPWISE = "a cell runs step by step until hybridize() is called on the block that unrolls it"


def _stepwise(blocks: Iterable[Any]) -> list[Refusal]:
    cells = [child for child in blocks if _is_cell(child)]
    inner = {id(child) for cell in cells for child in cell._children.values()}
    # A SequentialRNNCell is not a HybridBlock, so it lacks ``_active``, the flag of hybridized
    # blocks.
    active = {id(cell) for cell in cells if getattr(cell, "_active", False)}
    return [Refusal(STEPWISE, cell.name) for cell in cells if id(cell) not in inner | active]


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
    name: str | None = None,
    **options: Unpack[MxnetOptions],
) -> Any:
    """Computes mx.nd.RNN on NDArrays, whose memory is read in place, or adds mx.sym.RNN to a
    Symbol.

    Arguments are the same as for mx.nd.RNN: data (T, N, I), parameters (P,), states (L*D, N, R).
    Returns the output (T, N, D*R), or with ``state_outputs`` a list of the output and the final
    states. The results have gradients if autograd records. For Symbols the result is a Symbol with
    the name ``name``, in which variables replace missing inputs. For ``options`` see `optimize`.
    The switches MXNET_CUDA_ALLOW_TENSOR_CORE and MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION of
    MXNet's documentation have no effect, because they choose a precision on GPUs.

    Raises `UnsupportedError` for attributes or arrays that are not supported, `ShapeError` for
    shapes that do not belong together.

    >>> import mxnet as mx
    >>> from onernn.adapters.mxnet import rnn, rnn_param_size
    >>> data, state = mx.nd.ones((4, 1, 2)), mx.nd.zeros((1, 1, 3))
    >>> parameters = mx.nd.ones((rnn_param_size("gru", input_size=2, state_size=3),))
    >>> rnn(data, parameters, state, state_size=3, num_layers=1, mode="gru").shape
    (4, 1, 3)
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
    arrays = {
        "data": data,
        "parameters": parameters,
        "state": state,
        "state_cell": state_cell,
        "sequence_length": sequence_length,
    }
    arrays = {slot: array for slot, array in arrays.items() if array is not None}
    symbolic = isinstance(data, mx.sym.Symbol)
    numpy = isinstance(data, mx.np.ndarray | mx.sym.np._Symbol)
    native, custom = _operators(mx.sym if symbolic else mx.nd, numpy)
    drops = live.drops and not symbolic and mx.autograd.is_training() and not live.only_ours
    if drops or not plugins_enabled():
        named = {k: v for k, v in {**attributes, "name": name}.items() if v is not None}
        return native(**arrays, **named)
    attrs = custom_attributes(attributes, name or "rnn", chosen)
    if symbolic:
        register()
        attrs[ORIGINAL] = keep_rnn(RNN[numpy], attributes, len(live.arguments), len(live.outputs))
        inputs = {slot: arrays[slot] for slot in live.arguments if slot in arrays}
        return custom(**inputs, **attrs, name=name)
    if missing := [slot for slot in live.arguments if slot not in arrays]:
        raise ShapeError(
            f"missing: {', '.join(missing)}; expected {', '.join(live.arguments)} for mode={mode!r}"
        )
    if mx.autograd.is_recording():
        register()
        return custom(*map(arrays.get, live.arguments), **attrs)
    results = live.run({slot: view(arrays[slot], slot) for slot in live.arguments})
    arrays_of = mx.np if numpy else mx.nd
    outputs = [arrays_of.array(result, dtype=result.dtype) for result in results]
    return outputs if state_outputs else outputs[0]


@lru_cache(maxsize=32)
def _live(attributes: tuple[tuple[str, str], ...], options: Options) -> LiveRnn:
    """Returns the operator for a call of `rnn`. The cache keeps the most recently used operators,
    and thus their memory.
    """
    return LiveRnn(dict(attributes), options)


def _check(results: Iterable[Explained], where: str) -> None:
    """Raises `UnsupportedError` unless a layer was replaced, or stays only because MXNet is
    faster.
    """
    if not any(result.is_possible for result in results):
        refusals = tuple(refusal for result in results for refusal in result.refusals)
        raise UnsupportedError(
            f"{where} holds no recurrent layer that can be replaced: expected an RNN operator, an"
            " unrolled cell or a loop over a cell",
            refusals,
        )


def _optimize_block(block: Any, options: Options) -> Any:
    mx = live_mxnet()
    register()
    blocks = _blocks(block)
    layers = [*filter(_is_layer, blocks)]
    imported = [child for child in blocks if isinstance(child, mx.gluon.SymbolBlock)]
    traced = [child for child in blocks if _is_traced(child) and child not in layers + imported]
    for layer in layers:
        sizes = {"state_size": layer._hidden_size, "num_layers": layer._num_layers}
        check_rnn(layer.name, {"mode": layer._mode, "p": layer._dropout, **sizes}, options)
    symbols = [optimize_symbol(child._cached_graph[1], {}, options) for child in imported]
    if not layers and not any(_is_cell(inner) for child in traced for inner in _blocks(child)):
        results = [explain_symbol(symbol, **vars(options)) for symbol in symbols]
        _check(results, type(block).__name__)
    for layer in layers:
        layer.__class__ = _derive_layer(original(type(layer)), options)
    for child in traced:
        child.__class__ = _derive_traced(original(type(child)), options)
    warn_of_left(HOST, _stepwise(blocks))
    for child, symbol in zip(imported, symbols, strict=True):
        child.__class__ = _derive_switching(original(type(child)), options)
        child._cached_graph = child._cached_graph[0], symbol
    for child in blocks:
        if hasattr(child, "_clear_cached_op"):
            child._clear_cached_op()  # earlier traces hold MXNet's operators
    return block


def restore(target: Any) -> Any:
    """Returns the Symbol in which MXNet's own operators replace onernn's, or the gluon block, which
    is restored in place.

    Raises `MissingDependencyError` without MXNet.

    >>> import mxnet as mx
    >>> from onernn.adapters.mxnet import optimize, restore
    >>> layer = mx.gluon.rnn.GRU(3, input_size=2)
    >>> layer.initialize()
    >>> type(restore(optimize(layer))) is mx.gluon.rnn.GRU
    True
    """
    mx = live_mxnet()
    if isinstance(target, mx.sym.Symbol):
        return restore_symbol(target)
    for child in _blocks(target):
        kind = original(type(child))
        if kind is type(child):
            continue
        child._clear_cached_op()
        child.__class__ = kind
        vars(child).pop("onernn_left", None)
        if isinstance(child, mx.gluon.SymbolBlock):
            child._cached_graph = child._cached_graph[0], restore_symbol(child._cached_graph[1])
    return target


def _blocks(block: Any) -> list[Any]:
    blocks: list[Any] = []
    block.apply(blocks.append)
    return blocks


def _is_traced(block: Any) -> bool:
    """Returns whether the graph that MXNet traces from a block may contain recurrent layers."""
    gluon = live_mxnet().gluon
    return isinstance(block, gluon.HybridBlock) and any(
        _is_cell(child) or _is_layer(child) or isinstance(child, gluon.SymbolBlock)
        for child in _blocks(block)
    )


def _is_compiled(block: Any) -> bool:
    """Returns whether calls of a block run its traced graph. Other blocks are traced only to infer
    shapes.
    """
    return block._active or isinstance(block, live_mxnet().gluon.SymbolBlock)


def _is_cell(block: Any) -> bool:
    return isinstance(block, live_mxnet().gluon.rnn.RecurrentCell)


def _is_layer(block: Any) -> bool:
    return isinstance(block, live_mxnet().gluon.rnn.rnn_layer._RNNLayer)


def _cells(block: Any) -> dict[str, list[str]]:
    """Returns the names of the cells' weights by cell. Layers of the block have empty entries."""
    return {
        child.name: [each.name for each in child._reg_params.values() if _is_cell(child)]
        for child in _blocks(block)
        if _is_cell(child) or _is_layer(child)
    }


@cache
def _derive_layer(kind: Any, options: Options) -> type:
    """Returns a class for a gluon layer that runs onernn's operator. The layer's parameters, states
    and layouts stay the same.
    """

    def forward_kernel(self: Any, F: Any, *arguments: Any, **parameters: Any) -> Any:  # noqa: N803
        functions = _Replaced(F, partial(_run_layer, F, self, options)) if plugins_enabled() else F
        return kind._forward_kernel(self, functions, *arguments, **parameters)

    return _derive_switching(kind, options, _forward_kernel=forward_kernel)


@cache
def _derive_traced(kind: Any, options: Options) -> type:
    """Returns a class of blocks whose traced graphs have onernn's operators in place of cells."""

    def get_graph(self: Any, *arguments: Any) -> Any:
        fresh = not self._cached_graph
        inputs, symbol = kind._get_graph(self, *arguments)
        if fresh and not plugins_enabled():
            self._cached_graph = inputs, restore_symbol(symbol)
        elif fresh and _is_compiled(self) and any(map(_is_cell, _blocks(self))):
            arrays, _ = live_mxnet().gluon.block._flatten(arguments, "input")
            params = {v.name: a for v, a in zip(inputs, arrays, strict=False) if a is not None}
            self.onernn_exported = self._cached_graph
            predicts = _TRAINS.get() is False
            symbol = optimize_symbol(symbol, params, options, _cells(self), predicts=predicts)
            self._cached_graph = inputs, symbol
        return self._cached_graph

    def export(self: Any, *arguments: Any, **named: Any) -> Any:
        graph = self._cached_graph
        self._cached_graph = graph and vars(self).get("onernn_exported", graph)
        try:
            return kind.export(self, *arguments, **named)
        finally:
            self._cached_graph = graph

    return _derive_switching(kind, options, _get_graph=get_graph, export=export)


_TRAINS: ContextVar[bool | None] = ContextVar("_TRAINS", default=None)
"""True if the current trace is only for training, False if it is never for training, None for
both.
"""

_TRACED = "_cached_graph _cached_op _cached_op_args _in_format _out_format onernn_exported".split()
"""Attributes in which MXNet keeps a block's traced graph. The last one is the unchanged graph,
which export writes to files.
"""


@cache
def _derive_switching(kind: Any, options: Options, **members: Any) -> type:
    """Returns a class of blocks whose hybridized calls obey `plugins_disabled`.

    Training and prediction have separate traced graphs, because MXNet may be faster in only one of
    them.
    """
    is_imported = issubclass(kind, live_mxnet().gluon.SymbolBlock)

    def call_cached_op(self: Any, *arguments: Any) -> Any:
        trains = None if is_imported else _is_training()
        own, now = vars(self), (plugins_enabled(), trains)
        before, graphs = own.setdefault("onernn_traced", (now, {}))
        if before != now and is_imported:
            inputs, symbol = self._cached_graph
            self._clear_cached_op()
            symbol = optimize_symbol(symbol, {}, options) if now[0] else restore_symbol(symbol)
            self._cached_graph = inputs, symbol
        elif before != now:
            graphs[before] = {name: own[name] for name in _TRACED if name in own}
            self._clear_cached_op()
            own.update(graphs.pop(now, {}))
        own["onernn_traced"] = now, graphs
        token = _TRAINS.set(trains)
        try:
            return kind._call_cached_op(self, *arguments)
        finally:
            _TRAINS.reset(token)

    def clear_cached_op(self: Any) -> None:
        for name in ("onernn_traced", "onernn_exported"):
            vars(self).pop(name, None)
        for cell in filter(_is_cell, _blocks(self)):
            cell.reset()  # a zoneout keeps a symbol of the previous trace
        kind._clear_cached_op(self)

    members |= {"_call_cached_op": call_cached_op, "_clear_cached_op": clear_cached_op}
    return derive(kind, options, **members)


class _Replaced:
    """The argument ``F`` of a hybrid_forward, or ``F.npx``, with the function ``rnn`` in place of
    the RNN operator.
    """

    def __init__(self, functions: Any, rnn: Callable[..., Any]) -> None:
        self._functions, self._rnn = functions, rnn

    def __getattr__(self, name: str) -> Any:
        if name in ("RNN", "rnn"):
            return partial(self._rnn, name == "rnn")
        result = getattr(self._functions, name)
        return _Replaced(result, self._rnn) if name == "npx" else result


def _run_layer(
    functions: Any, layer: Any, options: Options, numpy: bool, *arguments: Any, **attributes: Any
) -> Any:
    native, custom = _operators(functions, numpy)
    live = _live(tuple((k, str(v)) for k, v in attributes.items()), options)
    shape = getattr(arguments[0], "shape", None)  # a symbol has no shape
    trains = _TRAINS.get() if shape is None else _is_training()
    why = slower_operator(options, live, shape, layer._dtype, trains=trains)
    left = vars(layer).setdefault("onernn_left", {})
    left.pop(None, None)  # left by a trace that only infers shapes
    left[trains] = why or ""
    if why:
        leave(layer, HOST, why, lambda: str(layer.name))
        return native(*arguments, **attributes)
    attrs = custom_attributes(attributes, layer.name, options)
    if shape is None:
        attrs[ORIGINAL] = keep_rnn(RNN[numpy], attributes, len(live.arguments), len(live.outputs))
    return custom(*arguments, **attrs)


def _operators(functions: Any, numpy: bool) -> tuple[Any, Any]:
    if numpy:
        return functions.npx.rnn, functions.np._internal.Custom
    return functions.RNN, functions.Custom


def _is_training() -> bool:
    autograd = live_mxnet().autograd
    return bool(autograd.is_recording() or autograd.is_training())
