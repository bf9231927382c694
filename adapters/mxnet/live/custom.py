"""Our operator in a live MXNet 1.9.1, and the arrays that it reads in place.

MXNet is imported inside: this package must import without it.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import numpy as np

# It registers with Python's exit, which is too late where the first layer is trained in the exit.
import onernn.backend.worker_threads  # noqa: F401
from onernn.adapters.mxnet.live.cells import LiveCells
from onernn.adapters.mxnet.live.execution import LiveRnn, Options
from onernn.core.arrays import Array
from onernn.core.errors import MissingDependencyError, UnsupportedError

OPERATOR, CELLS = "onernn_rnn", "onernn_cells"
"""The op_types of our Custom operators: the RNN operator, and cells written out."""

Live = LiveRnn | LiveCells
_OURS = "onernn_"
_log = logging.getLogger("onernn")


def live_mxnet() -> Any:
    try:
        import mxnet
    except (ImportError, AttributeError, OSError) as error:
        # With a NumPy that is too new, its import fails on names that are gone.
        raise MissingDependencyError(
            f"onernn.adapters.mxnet needs a working 'mxnet' ({error}); run: pip install"
            " 'onernn[mxnet]' (mxnet 1.9.1 and numpy 1.23.5)"
        ) from error
    return mxnet


def view(array: Any, name: str) -> Array:
    """The memory of an NDArray as a NumPy array, without a copy; valid while the NDArray lives.

    Raises `UnsupportedError` for arrays that are on a GPU or sparse.
    """
    mx = live_mxnet()
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"{name}: expected an NDArray, got {type(array).__qualname__}")
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


def custom_attributes(
    attributes: Mapping[str, Any], name: str, options: Options, operator: str = OPERATOR
) -> dict[str, str]:
    """The attributes of our operator: those of RNN, the node's name, our options."""
    own = {**vars(options), "name": name}
    ours = {f"{_OURS}{key}": str(value) for key, value in own.items()}
    return {**{k: str(v) for k, v in attributes.items()}, **ours, "op_type": operator}


def new_seed(functions: Any, numpy: bool) -> Any:
    """Two numbers of MXNet's generator, in order with all others that it gives.

    ``functions``: mx.nd or mx.sym. Where nothing is trained nobody reads them: none are drawn then,
    but a symbol cannot know that.
    """
    mx = live_mxnet()
    own = functions.np if numpy else functions
    if functions is mx.nd and not mx.autograd.is_training():
        return own.zeros((2,))
    return own.random.uniform(0, 1, **{"size" if numpy else "shape": (2,)})


@cache
def register() -> None:
    """Registers our operators with MXNet, once."""
    mx = live_mxnet()
    alive: WeakSet[Any] = WeakSet()

    def settle() -> None:
        """MXNet's threads delete operators behind a call, for which they want Python's lock.

        A fork and the exit hold that lock, and MXNet joins its threads there: they would wait for
        each other for good. So both wait until operators have stopped to vanish.
        """
        count = -1
        try:
            mx.nd.waitall()
        finally:  # it raises what went wrong in calls that nobody waited for
            while count != len(alive):
                count = len(alive)
                time.sleep(0.01)  # without the lock

    atexit.register(settle)
    os.register_at_fork(before=settle)

    class RnnOperator(mx.operator.CustomOp):  # type: ignore[misc, name-defined]
        def __init__(self, live: Any, name: str) -> None:
            super().__init__()
            self._live, self._name = live, name
            alive.add(self)
            self._recorded: Any = "nothing ran forward in training mode"

        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            with _logged_errors(self._name):
                given = self._live.bound(_views(self._live.arguments, in_data))
                if is_train:
                    results, self._recorded = self._live.run_training(given)
                else:
                    results = self._live.run(given)
                _put(results[: len(out_data)], out_data, req)

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            with _logged_errors(self._name):
                given = self._live.bound(_views(self._live.arguments, in_data))
                dy, *dstates = _views(["output gradient"] * len(out_grad), out_grad)
                grads = self._live.backward(given, self._recorded, dy, dstates)
                _put(grads, in_grad, req)

    class RnnProperty(mx.operator.CustomOpProp):  # type: ignore[misc, name-defined]
        kind: type[Live]

        def __init__(self, **attributes: str) -> None:
            super().__init__(need_top_grad=True)
            options, self._name, plain = original_attributes(attributes)
            with _logged_errors(self._name):
                self._live = self.kind(plain, options)

        def list_arguments(self) -> list[str]:
            return self._live.arguments

        def list_outputs(self) -> list[str]:
            return self._live.outputs

        def infer_shape(self, in_shape: list[list[int]]) -> tuple[Any, Any, Any]:
            return *self._live.shapes(in_shape), []

        def infer_type(self, in_type: list[Any]) -> tuple[Any, Any, Any]:
            return *self._live.types(in_type), []

        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            return RnnOperator(self._live, self._name)

    kinds: dict[str, type[Live]] = {OPERATOR: LiveRnn, CELLS: LiveCells}
    for name, kind in kinds.items():
        mx.operator.register(name)(type(f"Property of {name}", (RnnProperty,), {"kind": kind}))


def original_attributes(attributes: Mapping[str, str]) -> tuple[Options, str, dict[str, str]]:
    """(options, the node's name, the attributes of RNN) of what `custom_attributes` made."""
    ours = {k.removeprefix(_OURS): v for k, v in attributes.items() if k.startswith(_OURS)}
    plain = {k: v for k, v in attributes.items() if not k.startswith((_OURS, "__"))}
    name = ours.pop("name", "rnn")
    threads = ours.pop("threads", "None")
    plain.pop("op_type", None)
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


@contextmanager
def _logged_errors(name: str) -> Iterator[None]:
    """Logs what is raised, with the node's name: MXNet loses both."""
    try:
        yield
    except BaseException as error:
        _log.error("node %r (RNN): %s: %s", name, type(error).__name__, error)
        raise
