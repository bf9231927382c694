"""Our recurrent layers inside a live MXNet 1.9.1: in symbols, gluon blocks, and called directly.

MXNet is imported inside: this package must import without it.
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from onernn.adapters.mxnet.live import LiveRnn, Options, Recorded
from onernn.core.arrays import Array
from onernn.core.errors import MissingDependencyError, ShapeError, UnsupportedError

OPERATOR = "onernn_rnn"
"""The op_type of our Custom operator."""

RNN = ("RNN", "_npx_rnn")
_OURS = "onernn_"
_log = logging.getLogger("onernn")


def optimize(target: Any, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """MXNet runs everything but the recurrent layers, which run here.

    ``target``: a Symbol, of which a copy is returned in which every RNN operator is ours (for
    Module, SymbolBlock or bind; ``params`` by name, checked where given); or a gluon block, whose
    recurrent layers, of any depth, become ours in place and keep their parameters; it is returned,
    too. ``options``: semantics, dtype, backend, threads, as of `onernn.load` and `onernn.Session`;
    semantics="documented" makes sequence lengths and clips work, which MXNet ignores on CPU.

    Gradients go through our backward, but where the backend has none: asking for them is an error
    then. Raises `UnsupportedError` for an RNN operator that cannot run, `MissingDependencyError`
    without MXNet. Errors at run time are logged (logger "onernn") with the node's name: MXNet
    itself only tells that an operator failed.
    """
    mx = _mxnet()
    chosen = Options(**options)
    if isinstance(target, mx.sym.Symbol):
        return _optimized_symbol(target, params or {}, chosen)
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
    """mx.nd.RNN, run here: NDArrays in and out, without a copy of the inputs; inference only.

    Arguments are those of mx.nd.RNN: data (T, N, I), parameters a vector, states (L*D, N, R).
    Output (T, N, D*R), or with ``state_outputs`` a list of it and the final states. ``options``
    as of `optimize`. The switches MXNET_CUDA_ALLOW_TENSOR_CORE and
    MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION of MXNet's documentation are without effect: they
    choose a precision on GPUs.

    Raises `UnsupportedError` for attributes or arrays that cannot run, `ShapeError` for shapes
    that do not belong together.
    """
    mx = _mxnet()
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
    texts = tuple((name, str(value)) for name, value in attributes.items())
    live = _live(texts, Options(**options))
    named = {
        "data": data,
        "parameters": parameters,
        "state": state,
        "state_cell": state_cell,
        "sequence_length": sequence_length,
    }
    missing = [name for name in live.arguments if named[name] is None]
    if missing:
        raise ShapeError(f"missing: {', '.join(missing)}; mode={mode!r} takes {live.arguments}")
    views = [view(named[name], name) for name in live.arguments]
    results = live.run(live.bound(views))
    kind = mx.np.array if isinstance(data, mx.np.ndarray) else mx.nd.array
    made = [kind(result, dtype=result.dtype) for result in results]
    return made if state_outputs else made[0]


@lru_cache(maxsize=32)
def _live(attributes: tuple[tuple[str, str], ...], options: Options) -> LiveRnn:
    """Packed weights live here between calls of `rnn`, for the operators called last."""
    return LiveRnn(dict(attributes), options)


def view(array: Any, name: str) -> Array:
    """The memory of an NDArray as a NumPy array, without a copy; valid while the NDArray lives.

    Raises `UnsupportedError` for arrays that are on a GPU, sparse, or not of float32 or float64.
    """
    mx = _mxnet()
    if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise UnsupportedError(f"{name}: it is on {array.context}, only CPU memory is read")
    if getattr(array, "stype", "default") != "default":
        raise UnsupportedError(f"{name}: storage type {array.stype}, only dense arrays are read")
    dtype = np.dtype(array.dtype)
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    count = int(np.prod(array.shape, dtype=int))
    if not count:
        return np.empty(array.shape, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer.value or 0)
    return np.frombuffer(memory, dtype).reshape(array.shape)


def _mxnet() -> Any:
    try:
        import mxnet
    except (ImportError, AttributeError, OSError) as error:
        # With a NumPy that is too new, its import fails on names that are gone.
        raise MissingDependencyError(
            f"onernn.adapters.mxnet needs a working 'mxnet' ({error}); run: pip install"
            " 'onernn[mxnet]' (mxnet 1.9.1 and numpy 1.23.5)"
        ) from error
    return mxnet


def _optimized_symbol(symbol: Any, params: Mapping[str, Any], options: Options) -> Any:
    mx = _mxnet()
    _register()
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        if node["op"] not in RNN:
            continue
        attributes = {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")}
        live = LiveRnn(attributes, options)
        vector = params.get(graph["nodes"][node["inputs"][1][0]]["name"])
        if vector is not None:
            live.layer(view(vector, "parameters"))  # says now what it would say at the first run
        node["op"] = "Custom"
        node["attrs"] = _texts(attributes, node["name"], options)
    graph.pop("node_row_ptr", None)  # a Custom operator shows all of its outputs
    return mx.sym.load_json(json.dumps(graph))


def _texts(attributes: Mapping[str, Any], name: str, options: Options) -> dict[str, str]:
    """The attributes of our operator: those of RNN, the node's name, our options."""
    own = {**vars(options), "name": name}
    ours = {f"{_OURS}{key}": str(value) for key, value in own.items()}
    return {**{k: str(v) for k, v in attributes.items()}, **ours, "op_type": OPERATOR}


def _optimized_block(block: Any, options: Options) -> Any:
    mx = _mxnet()
    _register()
    layers: list[Any] = []
    block.apply(
        lambda each: (
            layers.append(each) if isinstance(each, mx.gluon.rnn.rnn_layer._RNNLayer) else None
        )
    )
    if not layers:
        raise UnsupportedError(f"{type(block).__name__} holds no recurrent layer of gluon")
    for layer in layers:
        layer.__class__ = _ours(_theirs(type(layer)), options)
    # What was traced before holds MXNet's operators.
    block.apply(lambda each: each._clear_cached_op() if hasattr(each, "_clear_cached_op") else None)
    return block


def _theirs(kind: type) -> type:
    """The class that a layer had before it became ours."""
    return kind.__mro__[1] if getattr(kind, "onernn_options", None) else kind


@cache
def _ours(kind: Any, options: Options) -> type:
    """A recurrent layer of gluon whose operator is ours; parameters, states and layouts stay."""

    def forward_kernel(self: Any, F: Any, *arguments: Any, **parameters: Any) -> Any:  # noqa: N803
        return kind._forward_kernel(
            self, _Replaced(F, self.name, options), *arguments, **parameters
        )

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
        return custom(*arguments, **_texts(attributes, self._name, self._options))


@cache
def _register() -> None:
    """Registers our operator with MXNet, once."""
    mx = _mxnet()

    class RnnOperator(mx.operator.CustomOp):  # type: ignore[misc, name-defined]
        def __init__(self, live: LiveRnn, name: str) -> None:
            super().__init__()
            self._live, self._name = live, name
            self._recorded: Recorded | str = "nothing ran forward in training mode"

        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            with _telling(self._name):
                given = self._live.bound(_views(self._live.arguments, in_data))
                if is_train:
                    results, self._recorded = self._live.run_training(given)
                else:
                    results = self._live.run(given)
                _put(results[: len(out_data)], out_data, req)

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            with _telling(self._name):
                given = self._live.bound(_views(self._live.arguments, in_data))
                dy, *dstates = _views(["output gradient"] * len(out_grad), out_grad)
                grads = self._live.backward(given, self._recorded, dy, dstates)
                _put(grads, in_grad, req)

    @mx.operator.register(OPERATOR)
    class RnnProperty(mx.operator.CustomOpProp):  # type: ignore[misc, name-defined]
        def __init__(self, **attributes: str) -> None:
            super().__init__(need_top_grad=True)
            options, self._name, plain = _parsed(attributes)
            with _telling(self._name):
                self._live = LiveRnn(plain, options)

        def list_arguments(self) -> list[str]:
            return self._live.arguments

        def list_outputs(self) -> list[str]:
            names = ["output", "state_output", "statecell_output"]
            return (
                names[: 1 + len(self._live.state_names)] if self._live.gives_states else names[:1]
            )

        def infer_shape(self, in_shape: list[list[int]]) -> tuple[Any, Any, Any]:
            shapes, outputs = self._live.shapes(in_shape)
            return shapes, outputs[: len(self.list_outputs())], []

        def infer_type(self, in_type: list[Any]) -> tuple[Any, Any, Any]:
            known = next((each for each in in_type if each is not None), np.float32)
            lengths = in_type[-1] if self._live.takes_lengths and in_type[-1] is not None else known
            types = [known] * len(in_type)
            if self._live.takes_lengths:
                types[-1] = lengths
            return types, [known] * len(self.list_outputs()), []

        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            return RnnOperator(self._live, self._name)


def _parsed(attributes: Mapping[str, str]) -> tuple[Options, str, dict[str, str]]:
    """(options, the node's name, the attributes of RNN) of what `_texts` made."""
    ours = {k.removeprefix(_OURS): v for k, v in attributes.items() if k.startswith(_OURS)}
    plain = {k: v for k, v in attributes.items() if not k.startswith((_OURS, "__"))}
    name = ours.pop("name", "rnn")
    threads = ours.pop("threads", "None")
    return Options(**ours, threads=None if threads == "None" else int(threads)), name, plain


def _views(names: Sequence[str], arrays: Sequence[Any]) -> list[Array]:
    return [view(array, name) for name, array in zip(names, arrays, strict=True)]


def _put(results: Sequence[Array], targets: Sequence[Any], req: Sequence[str]) -> None:
    """Writes results into NDArrays as MXNet asks for them."""
    for result, target, how in zip(results, targets, req, strict=True):
        if how == "null":
            continue
        memory = view(target, "output")
        if how == "add":
            memory += result
        else:
            memory[...] = result


class _telling:
    """Logs what is raised, with the node's name: MXNet loses both."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None:
            _log.error("node %r (RNN): %s: %s", self._name, type(error).__name__, error)
