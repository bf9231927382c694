"""The custom operator through which MXNet calls onernn, and the cases in which MXNet is faster."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # for worker threads; fails during Python's exit
import ctypes
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any
from weakref import WeakSet

import numpy as np

from onernn.adapters.common import gain
from onernn.adapters.common.live import array_at
from onernn.adapters.mxnet.live_layer import LiveCells, LiveOperator, LiveRnn, Options
from onernn.adapters.mxnet.originals import restore_graph
from onernn.ir.arrays import Array
from onernn.ir.errors import MissingDependencyError, UnsupportedError
from onernn.ir.spec import Cell

# onernn's operator in a live MXNet 1.9.1, and the arrays that it reads in place.
#
# Functions import MXNet, because this package must import without MXNet.

HOST = "MXNet"
RNN = ("RNN", "_npx_rnn")
"""The names of MXNet's recurrent operator."""

OPERATOR, CELLS = "onernn_rnn", "onernn_cells"
"""The op_types of onernn's Custom operators: the first replaces MXNet's RNN operator, the second
replaces cells that a symbol builds from simple operators.
"""

INPUTS = "inputs"
"""The attribute that lists an operator's inputs in the symbol's order. Inputs that it does not list
come last, in the order of `LiveRnn.arguments`.
"""

_OURS = "onernn_"
_NAME, _OPTIONS = f"{_OURS}name", f"{_OURS}options"
_log = logging.getLogger("onernn")


def live_mxnet() -> Any:
    try:
        import mxnet
    except (ImportError, AttributeError, OSError) as error:
        # If NumPy is too new, the import of MXNet fails on names that NumPy has removed.
        raise MissingDependencyError(
            f"onernn.adapters.mxnet needs a working 'mxnet' ({error}); run: pip install"
            " 'onernn[mxnet]' (mxnet 1.9.1 and numpy 1.23.5)"
        ) from error
    return mxnet


def view(array: Any, name: str) -> Array:
    """Returns the memory of an NDArray as a NumPy array, without a copy. The array is valid only
    while the NDArray exists.
    """
    mx = live_mxnet()
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"{name}: expected an NDArray, got {type(array).__qualname__}")
    if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise UnsupportedError(
            f"{name}: expected CPU memory, got {array.context}; use as_in_context(mx.cpu())"
        )
    if getattr(array, "stype", "default") != "default":
        raise UnsupportedError(
            f"{name}: expected a dense array, got {array.stype}; use tostype('default')"
        )
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return array_at(pointer.value or 0, array.shape, array.dtype, None)


def custom_attributes(
    attributes: Mapping[str, Any], name: str, options: Options, operator: str = OPERATOR
) -> dict[str, str]:
    """Returns the attributes of onernn's operator: RNN's attributes, the node's name, onernn's
    options.
    """
    ours = {_NAME: name, _OPTIONS: json.dumps(vars(options)), "op_type": operator}
    return {**{k: str(v) for k, v in attributes.items()}, **ours}


def load_symbol(graph: Any, like: Any) -> Any:
    """Returns the symbol of a graph in JSON, with the class of the symbol ``like``."""
    mx = live_mxnet()
    made = mx.sym.load_json(json.dumps(graph))
    return made.as_np_ndarray() if isinstance(like, mx.sym.np._Symbol) else made


def restore_symbol(symbol: Any) -> Any:
    """Replaces onernn's operators in a symbol by MXNet's. Returns the symbol itself if it has
    none.
    """
    graph = restore_graph(symbol.tojson(remove_amp_cast=False))
    return load_symbol(graph, symbol) if graph else symbol


@cache
def register() -> None:
    """Registers onernn's operators with MXNet. Symbol.save then saves MXNet's operators in their
    place.
    """
    mx = live_mxnet()
    save = mx.sym.Symbol.save

    @wraps(save)
    def save_restored(self: Any, *arguments: Any, **named: Any) -> None:
        save(restore_symbol(self), *arguments, **named)

    mx.sym.Symbol.save = save_restored
    alive: WeakSet[Any] = WeakSet()

    def settle() -> None:
        """Waits until MXNet has deleted no operator for a tenth of a second. MXNet's threads delete
        operators after a call, and need Python's lock to do so. A fork and the exit hold that lock
        while MXNet joins its threads: without this wait, Python and MXNet would wait for each other
        forever.
        """
        try:
            mx.nd.waitall()
        finally:  # waitall raises the errors of earlier calls
            count = unchanged = 0
            while unchanged < 10:
                unchanged = unchanged + 1 if count == len(alive) else 0
                count = len(alive)
                time.sleep(0.01)  # releases Python's lock

    atexit.register(settle)
    os.register_at_fork(before=settle)

    class RnnOperator(mx.operator.CustomOp):  # type: ignore[misc, name-defined]
        def __init__(self, live: LiveOperator, name: str, order: list[str]) -> None:
            super().__init__()
            self._live, self._name, self._order = live, name, order
            alive.add(self)
            self._recorded: Any = None

        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            with _log_errors(self._name):
                arrays, self._recorded = self._views(in_data), None
                if is_train:
                    if self._live.drops:
                        _warn_of_dropout(self._name)
                    results, self._recorded = self._live.run_training(arrays)
                else:
                    results = self._live.run(arrays)
                _write_results(results, out_data, req)

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            with _log_errors(self._name):
                heads = [view(grad, "output gradient") for grad in out_grad]
                arrays, recorded, self._recorded = self._views(in_data), self._recorded, None
                # The record of the forward pass is missing in a second backward pass. It is also
                # missing if a later call, such as a prediction, changed ``is_train`` before MXNet's
                # executor ran the forward pass.
                if recorded is None:
                    _, recorded = self._live.run_training(arrays)
                grads = self._live.backward(arrays, recorded, heads)
                _write_results([grads[name] for name in self._order], in_grad, req)

        def _views(self, arrays: Sequence[Any]) -> dict[str, Array]:
            return {name: view(a, name) for name, a in zip(self._order, arrays, strict=True)}

    class RnnProperty(mx.operator.CustomOpProp):  # type: ignore[misc, name-defined]
        kind: type[LiveRnn | LiveCells]

        def __init__(self, **attributes: str) -> None:
            super().__init__(need_top_grad=True)
            options, self._name, plain = original_attributes(attributes)
            first = plain.pop(INPUTS, "").split()
            with _log_errors(self._name):
                self._live = self.kind(plain, options)
            self._order = [*first, *(n for n in self._live.arguments if n not in first)]

        def list_arguments(self) -> list[str]:
            return self._order

        def list_outputs(self) -> list[str]:
            return [*self._live.outputs]

        def infer_shape(self, in_shape: list[list[int]]) -> tuple[Any, Any, Any]:
            return self._infer(self._live.shapes, in_shape)

        def infer_type(self, in_type: list[Any]) -> tuple[Any, Any, Any]:
            return self._infer(self._live.types, in_type)

        def _infer(self, rule: Any, known: list[Any]) -> tuple[Any, Any, Any]:
            inputs, outputs = rule(dict(zip(self._order, known, strict=True)))
            return [inputs[name] for name in self._order], outputs, []

        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            return RnnOperator(self._live, self._name, self._order)

    for name, kind in {OPERATOR: LiveRnn, CELLS: LiveCells}.items():
        mx.operator.register(name)(type(f"Property of {name}", (RnnProperty,), {"kind": kind}))


def original_attributes(attributes: Mapping[str, str]) -> tuple[Options, str, dict[str, str]]:
    """Returns onernn's options, the node's name and RNN's attributes from the result of
    `custom_attributes`.
    """
    told = Options(**json.loads(attributes.get(_OPTIONS, "{}")))
    plain = {k: v for k, v in attributes.items() if not k.startswith((_OURS, "__", "op_type"))}
    return told, attributes.get(_NAME, "rnn"), plain


def _write_results(results: Sequence[Array], targets: Sequence[Any], req: Sequence[str]) -> None:
    for result, target, how in zip(results, targets, req, strict=True):
        if how != "null":
            memory = view(target, "output")
            memory[...] = memory + result if how == "add" else result


@contextmanager
def _log_errors(name: str) -> Iterator[None]:
    """Logs exceptions with the node's name, because MXNet loses both."""
    try:
        yield
    except BaseException as error:
        _log.error("node %r (RNN): %s: %s", name, type(error).__name__, error)
        raise


DROPS = "neither MXNet on the CPU nor onernn applies dropout between its layers in training"
"""The reason why MXNet runs a layer in training."""


@cache
def _warn_of_dropout(name: str) -> None:
    _log.warning("node %r (RNN): %s; semantics='mxnet-cpu' accepts this", name, DROPS)


UNFOUND = "onernn found no two steps of it that follow each other"
"""The reason why MXNet runs a cell, if onernn finds no two consecutive steps of the cell."""

# The cases in which MXNet's own operators are faster.

_LARGE = 256
"""The number of units from which a cell counts as large. With large cells, onernn is faster from
fewer steps on.
"""
_UNKNOWN = 64, 16
"""The numbers of steps and sequences that are assumed if a symbol does not state them."""
_INSTEAD = "backend='kernels' replaces it anyway"


def slower_cells(options: Options, cell: Cell, hidden: int, steps: int) -> str | None:
    """Returns the reason why MXNet runs unrolled cells, None if onernn is faster."""
    plain = "RNN " * (cell in (Cell.RNN_TANH, Cell.RNN_RELU))
    case = f"mxnet {plain}{'large ' * (hidden >= _LARGE)}cells"
    least = gain.ANYWHERE[case].steps
    if not options.may_leave or steps >= least:
        return None
    few = f"fewer than {least} steps of {cell.value} cells of {hidden} units"
    return f"MXNet runs {few} faster; {_INSTEAD}"


def slower_operator(
    options: Options,
    live: LiveRnn,
    data: Sequence[int] | None,
    dtype: Any = None,
    *,
    folds: bool = False,
    trains: bool | None = None,
) -> str | None:
    """Returns the reason why MXNet should run an RNN operator, None if onernn should run it.

    onernn runs an operator if MXNet ignores one of its features or cannot run it, or if onernn is
    faster. The kernels of both have the same speed. But MXNet packs the weights in each call, so
    onernn is faster with large layers. ``folds``: whether onernn merges a FullyConnected into the
    operator, which saves a matrix product. ``data``: the shape (T, N, I) of its input; unknown
    sizes are 0 or -1. ``dtype``: the input's dtype, None if unknown. MXNet has no float16, and
    computes float64 without oneDNN. ``trains``: None if it is unknown whether the operator trains
    (in a symbol, for example). onernn must then be faster both in training and in prediction.
    """
    if live.only_ours:
        return None
    if live.drops and trains:
        return DROPS
    if not options.may_leave or dtype is not None and np.dtype(dtype) != np.float32:
        return None
    steps, sequences, _ = data if data and len(data) == 3 else (0, 0, 0)
    stack, is_known = live.stack, min(steps, sequences) > 0
    sizes = *((steps, sequences) if is_known else _UNKNOWN), stack.hidden
    kind = "RNN" if stack.mode.startswith("rnn") else stack.mode.upper()
    if folds:
        cases = ["mxnet RNN folded" if kind == "RNN" else "mxnet folded"]
    else:
        cases = [f"mxnet {kind}{' trained' * t}" for t in (False, True) if trains in (t, None)]
    if all(gain.is_faster(case, *sizes) for case in cases):
        return None
    batch = f"{steps} steps of {sequences} sequences" if is_known else "batches"
    return (
        f"MXNet runs {batch} of its {stack.mode} operator of {stack.hidden} units at least as"
        f" fast; {_INSTEAD}"
    )
