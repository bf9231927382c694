"""Our recurrent layers inside a live MXNet 1.9.1: in symbols, gluon blocks, and called directly.

MXNet is imported inside: this package must import without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

from onernn.adapters.common.live import (
    NOT_CALLED,
    NOT_SEEN,
    Explained,
    Slower,
    derived,
    leave,
    original,
    warn_of_left,
)
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.mxnet.custom_operator import (
    HOST,
    custom_attributes,
    live_mxnet,
    new_seed,
    register,
    restored_symbol,
    slower_operator,
    view,
)
from onernn.adapters.mxnet.live_layer import LiveRnn, Options
from onernn.adapters.mxnet.originals import ORIGINAL, original_rnn
from onernn.adapters.mxnet.partition import (
    RNN,
    checked,
    optimized_symbol,
)
from onernn.adapters.mxnet.partition import explain as explain_symbol
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError

_log = logging.getLogger("onernn")


def optimize(target: Any, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """MXNet runs everything but the recurrent layers, which run here.

    ``target``: a Symbol, of which a copy is returned with every RNN operator replaced, and every
    cell that is unrolled or the body of a `_foreach` (for Module, BucketingModule, SymbolBlock or
    bind; ``params`` by name, checked where given); or a gluon block, whose recurrent layers and
    SymbolBlocks, of any depth, are replaced in place and keep their parameters, as do cells that
    are unrolled where it is hybridized; it is returned, too. Weights stay MXNet's variables. Cells
    that stay MXNet's are listed with the reason by `explain`, and at INFO (logger "onernn"), as are
    layers that MXNet was measured to be faster at: they stay, unless ``backend`` names one.

    ``options``: semantics, dtype, backend, threads, as of `onernn.load` and `onernn.Session`;
    semantics="documented" makes sequence lengths and clips work, which MXNet ignores on CPU.
    float16 is computed in float32. Dropout p between layers is inverted dropout, in training only;
    mx.random.seed makes it repeatable. semantics="mxnet-cpu" leaves it out, as MXNet's CPU does.

    Gradients go through our backward, but where the backend has none: asking for them is an error
    then. Raises `UnsupportedError`, and replaces nothing, where there is nothing to replace, or an
    RNN operator that cannot run, and `MissingDependencyError` without MXNet. Errors at run time are
    logged with the node's name: MXNet itself only says that an operator failed.
    """
    mx = live_mxnet()
    chosen = Options(**options)
    if not plugins_enabled() and isinstance(target, mx.sym.Symbol | mx.gluon.Block):
        _log.info("%s", DISABLED)
        return target
    if isinstance(target, mx.sym.Symbol):
        symbol = optimized_symbol(target, params or {}, chosen)
        if symbol is target:
            _check(explain_symbol(target, **options), "the symbol")
        return symbol
    if isinstance(target, mx.gluon.Block):
        return _optimized_block(target, chosen)
    raise TypeError(f"expected an MXNet Symbol or gluon Block, got {type(target).__qualname__}")


def explain(target: Any, **options: Any) -> Explained:
    """What of a Symbol or gluon block runs here, by name, and which layers stay MXNet's, and why.

    A block shows what was traced of it, and how each layer ran last, in training and elsewhere.
    ``options`` as of `optimize`.
    Printed it is a line for each layer.
    """
    mx = live_mxnet()
    if not isinstance(target, mx.gluon.Block):
        return _Explained(*explain_symbol(target, **options))
    replaced, refusals, blocks = list[str](), list[Refusal](), _blocks(target)
    runs = [each for each in blocks if getattr(each, "_cached_graph", ()) and _is_compiled(each)]
    traced = {id(held) for each in runs for held in _blocks(each)}
    for each in blocks:
        is_layer = isinstance(each, mx.gluon.rnn.rnn_layer._RNNLayer)
        if hasattr(each, "onernn_left"):  # a layer that ran
            for why in each.onernn_left.values():
                if why:
                    refusals.append(Slower(why, each.name))
                else:
                    replaced.append(each.name)
        elif not hasattr(each, "onernn_options"):
            if is_layer:
                refusals.append(Refusal(NOT_SEEN, each.name))
        elif each in runs:
            result = explain_symbol(each._cached_graph[1], **options)
            replaced += result.replaced
            refusals += result.refusals
        elif is_layer and id(each) not in traced:
            refusals.append(Refusal(NOT_CALLED, each.name))
    refusals += [Refusal(STEPWISE, name) for name in _stepwise(blocks)]
    return _Explained(tuple(dict.fromkeys(replaced)), tuple(dict.fromkeys(refusals)))


class _Explained(Explained):
    def __str__(self) -> str:
        lines = tuple(f"{name}: onernn" for name in self.replaced)
        return Explained(lines, self.refusals).text(HOST)


STEPWISE = "a cell runs step by step until hybridize() is called on the block that unrolls it"


def _stepwise(blocks: Iterable[Any]) -> list[str]:
    """The cells that are called step by step, by name."""
    cells = [each for each in blocks if isinstance(each, live_mxnet().gluon.rnn.RecurrentCell)]
    held = {id(child) for each in cells for child in each._children.values()}
    return [each.name for each in cells if id(each) not in held and not each._active]


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
    **options: Any,
) -> Any:
    """mx.nd.RNN, run here: NDArrays in and out, without a copy of the inputs; or mx.sym.RNN.

    Arguments are those of mx.nd.RNN: data (T, N, I), parameters a vector, states (L*D, N, R).
    Output (T, N, D*R), or with ``state_outputs`` a list of it and the final states. Where autograd
    records, gradients go through it. Of Symbols it is a Symbol, called ``name``, with variables in
    the place of inputs that are missing. ``options`` as of `optimize`. The switches
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
    symbolic = isinstance(data, mx.sym.Symbol)
    numpy = isinstance(data, mx.np.ndarray | mx.sym.np._Symbol)
    if not plugins_enabled():
        legacy, new = (mx.sym.RNN, mx.sym.npx.rnn) if symbolic else (mx.nd.RNN, mx.npx.rnn)
        given = {**named, **attributes, "name": name}
        return (new if numpy else legacy)(**{k: v for k, v in given.items() if v is not None})
    if live.dropout:
        named["seed"] = new_seed(mx.sym if symbolic else mx.nd, numpy)
    if symbolic:
        register()
        custom = mx.sym.np._internal.Custom if numpy else mx.sym.Custom
        called = custom_attributes(attributes, name or "rnn", chosen)
        count = len([slot for slot in live.arguments if slot != "seed"])
        called[ORIGINAL] = original_rnn(RNN[numpy], attributes, count, len(live.outputs))
        inputs = {slot: named[slot] for slot in live.arguments if named[slot] is not None}
        return custom(**inputs, **called, name=name)
    missing = [slot for slot in live.arguments if named[slot] is None]
    if missing:
        raise ShapeError(f"missing: {', '.join(missing)}; mode={mode!r} takes {live.arguments}")
    drops = live.dropout and mx.autograd.is_training()
    if mx.autograd.is_recording() or drops:
        register()
        custom = mx.nd.np._internal.Custom if numpy else mx.nd.Custom
        return custom(
            *map(named.get, live.arguments), **custom_attributes(attributes, "rnn", chosen)
        )
    results = live.run({slot: view(named[slot], slot) for slot in live.arguments})
    kind = mx.np.array if numpy else mx.nd.array
    made = [kind(result, dtype=result.dtype) for result in results]
    return made if state_outputs else made[0]


@lru_cache(maxsize=32)
def _live(attributes: tuple[tuple[str, str], ...], options: Options) -> LiveRnn:
    """Packed weights live here between calls of `rnn`, for the operators called last."""
    return LiveRnn(dict(attributes), options)


def _check(done: Explained, where: str) -> None:
    """Raises `UnsupportedError` unless some layer could be replaced, but is faster in MXNet."""
    if not done.is_possible:
        raise UnsupportedError(
            f"{where} holds no recurrent layer that can be replaced", done.refusals
        )


def _optimized_block(block: Any, options: Options) -> Any:
    mx = live_mxnet()
    register()
    blocks = _blocks(block)
    layers = [each for each in blocks if isinstance(each, mx.gluon.rnn.rnn_layer._RNNLayer)]
    imported = [each for each in blocks if isinstance(each, mx.gluon.SymbolBlock)]
    traced = [each for each in blocks if _is_traced(each) and each not in layers + imported]
    for each in layers:
        sizes = {"state_size": each._hidden_size, "num_layers": each._num_layers}
        checked(each.name, {"mode": each._mode, "p": each._dropout, **sizes}, options)
    symbols = [optimized_symbol(each._cached_graph[1], {}, options) for each in imported]
    changed = [
        each._cached_graph[1] is not made for each, made in zip(imported, symbols, strict=True)
    ]
    cells = [each for each in traced if _holds_cells(each)]
    if not layers and not cells and not any(changed):
        graphs = [each._cached_graph[1] for each in imported]
        left = [r for each in graphs for r in explain_symbol(each, **vars(options)).refusals]
        _check(Explained((), tuple(left)), type(block).__name__)
    for each in layers:
        each.__class__ = _ours(original(type(each)), options)
    for each in traced:
        each.__class__ = _traced(original(type(each)), options)
    warn_of_left(HOST, (Refusal(STEPWISE, name) for name in _stepwise(blocks)))
    for each, symbol in zip(imported, symbols, strict=True):
        each.__class__ = _imported(original(type(each)), options)
        each._cached_graph = each._cached_graph[0], symbol
    for each in blocks:
        if hasattr(each, "_clear_cached_op"):
            each._clear_cached_op()  # what was traced before holds MXNet's operators
    return block


def restore(target: Any) -> Any:
    """The Symbol with MXNet's own operators again; or the gluon block, restored in place."""
    mx = live_mxnet()
    if isinstance(target, mx.sym.Symbol):
        return restored_symbol(target)
    for each in _blocks(target):
        kind = original(type(each))
        if kind is type(each):
            continue
        each.__class__ = kind
        for name in ("onernn_left", "onernn_traced"):
            vars(each).pop(name, None)
        if isinstance(each, mx.gluon.SymbolBlock):
            each._cached_graph = each._cached_graph[0], restored_symbol(each._cached_graph[1])
        each._clear_cached_op()
    return target


def _blocks(block: Any) -> list[Any]:
    blocks: list[Any] = []
    block.apply(blocks.append)
    return blocks


def _is_traced(block: Any) -> bool:
    """Whether what MXNet traces of a block may hold recurrent layers."""
    gluon = live_mxnet().gluon
    kinds = gluon.rnn.RecurrentCell, gluon.rnn.rnn_layer._RNNLayer, gluon.SymbolBlock
    return isinstance(block, gluon.HybridBlock) and any(
        isinstance(each, kinds) for each in _blocks(block)
    )


def _is_compiled(block: Any) -> bool:
    """Whether calls run what was traced of a block; others trace it for its shapes alone."""
    return block._active or isinstance(block, live_mxnet().gluon.SymbolBlock)


def _holds_cells(block: Any) -> bool:
    cell = live_mxnet().gluon.rnn.RecurrentCell
    return any(isinstance(each, cell) for each in _blocks(block))


@cache
def _ours(kind: Any, options: Options) -> type:
    """A recurrent layer of gluon on our operator; parameters, states and layouts stay."""

    def forward_kernel(self: Any, F: Any, *arguments: Any, **parameters: Any) -> Any:  # noqa: N803
        functions = _Replaced(F, self, options) if plugins_enabled() else F
        return kind._forward_kernel(self, functions, *arguments, **parameters)

    return _switched(kind, options, _forward_kernel=forward_kernel)


@cache
def _traced(kind: Any, options: Options) -> type:
    """A block that may be hybridized: in what is traced of it, cells become our operators."""

    def get_graph(self: Any, *arguments: Any) -> Any:
        fresh = not self._cached_graph
        inputs, symbol = kind._get_graph(self, *arguments)
        if fresh and not plugins_enabled():
            self._cached_graph = inputs, restored_symbol(symbol)
        elif fresh and _is_compiled(self) and _holds_cells(self):
            arrays, _ = live_mxnet().gluon.block._flatten(arguments, "input")
            known = {each.name: a for each, a in zip(inputs, arrays, strict=False) if a is not None}
            self._cached_graph = inputs, optimized_symbol(symbol, known, options)
        return self._cached_graph

    return _switched(kind, options, _get_graph=get_graph)


@cache
def _imported(kind: Any, options: Options) -> type:
    """A SymbolBlock."""
    return _switched(kind, options)


_TRAINS: ContextVar[bool | None] = ContextVar("_TRAINS", default=None)
"""Whether what is traced now is for training alone, or for all else; None: for both."""

_TRACED = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
"""What MXNet keeps of a block that it has traced."""


def _switched(kind: Any, options: Options, **members: Any) -> type:
    """A block whose hybridized calls follow `plugins_disabled`.

    It is traced for training apart: our operator draws dropout there, elsewhere MXNet's may be
    faster.
    """
    autograd, is_imported = live_mxnet().autograd, issubclass(kind, live_mxnet().gluon.SymbolBlock)

    def call_cached_op(self: Any, *arguments: Any) -> Any:
        trains = None if is_imported else autograd.is_recording() or autograd.is_training()
        own, now = vars(self), (plugins_enabled(), trains)
        before, kept = own.setdefault("onernn_traced", (now, {}))
        if before != now and is_imported:
            inputs, symbol = self._cached_graph
            symbol = restored_symbol(symbol)
            self._clear_cached_op()
            self._cached_graph = inputs, optimized_symbol(symbol, {}, options) if now[0] else symbol
        elif before != now:
            kept[before] = {name: own[name] for name in _TRACED if name in own}
            self._clear_cached_op()
            own.update(kept.pop(now, {}))
        own["onernn_traced"] = now, kept
        token = _TRAINS.set(trains)
        try:
            return kind._call_cached_op(self, *arguments)
        finally:
            _TRAINS.reset(token)

    def clear_cached_op(self: Any) -> None:
        vars(self).pop("onernn_traced", None)
        kind._clear_cached_op(self)

    members |= {"_call_cached_op": call_cached_op, "_clear_cached_op": clear_cached_op}
    return derived(kind, options, **members)


class _Replaced:
    """``F`` of a hybrid_forward, in which RNN is our operator."""

    def __init__(self, functions: Any, layer: Any, options: Options, outer: Any = None) -> None:
        self._functions, self._layer, self._options = functions, layer, options
        self._outer = outer  # of NumPy mode's functions

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._functions, name)
        if name == "npx":  # NumPy mode has its own
            return _Replaced(result, self._layer, self._options, self._functions)
        return self._rnn if name in ("RNN", "rnn") else result

    def _rnn(self, *arguments: Any, **attributes: Any) -> Any:
        ours = custom_attributes(attributes, self._layer.name, self._options)
        functions, numpy = self._outer or self._functions, self._outer is not None
        live = _live(tuple((k, str(v)) for k, v in attributes.items()), self._options)
        shape = getattr(arguments[0], "shape", None)  # a symbol has none
        autograd = live_mxnet().autograd
        trains = autograd.is_recording() or autograd.is_training()
        trains = _TRAINS.get() if shape is None else trains
        why = slower_operator(self._options, live, shape, self._layer._dtype, trains=trains)
        left = vars(self._layer).setdefault("onernn_left", {})
        left.pop(None, None)  # of a trace for shapes
        left[trains] = why or ""
        if why:
            leave(self._layer, HOST, why, lambda: str(self._layer.name))
            theirs = functions.npx.rnn if numpy else functions.RNN
            return theirs(*arguments, **attributes)
        if shape is None:
            ours[ORIGINAL] = original_rnn(RNN[numpy], attributes, len(arguments), len(live.outputs))
        if live.dropout:
            arguments = *arguments, new_seed(functions, numpy)
        custom = functions.np._internal.Custom if numpy else functions.Custom
        return custom(*arguments, **ours)
