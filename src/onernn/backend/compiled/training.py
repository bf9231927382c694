"""Training on the kernels: one C call forward and one backward for each layer and direction."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.compiled.backend import check, describe
from onernn.backend.compiled.library import Kernels
from onernn.backend.layer_walk import DirectionKernel, LayerWalk, PackedBatch, PackedGradient
from onernn.backend.process import Buffers
from onernn.backend.reference import TRAINED
from onernn.backend.stack import Trainer
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.rnn import why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders.lod import Packing

TRAINED_IN = ("f32", "bf16")
"""What matrices are rounded to before they are multiplied; all else is float32."""

_WEIGHTS = ("layer", "iter", "bias", "peephole", "projection")
_F32 = np.dtype(np.float32)


def kernels_trainer(
    kernels: Kernels, spec: RnnSpec, layers: Sequence[RnnWeights], dtype: str, threads: int
) -> Trainer:
    """What trains a layer on kernels. Raises `UnsupportedError` for what they do not train."""
    if dtype not in TRAINED_IN:
        raise UnsupportedError(
            f"kernels train in {' and '.join(TRAINED_IN)}, not in {dtype};"
            " prepare the layer in f32 or bf16 to train it"
        )
    if beyond := why_not(spec, layers, TRAINED):
        raise UnsupportedError(beyond)
    prepare = partial(TrainingDirection, kernels, dtype)
    walk = LayerWalk(spec, layers, prepare, threads=threads, whole=False)
    return Trainer(walk, walk.name, "")


_TAPES: deque[Buffers] = deque(maxlen=8)
"""Memory of tapes that were used, for any layer; layers change with every step of training."""


class _Kept(NamedTuple):
    """What backward reads again: the arrays of `onernn_tape`, and the memory that they are in."""

    tape: dict[str, Array | None]
    memory: Buffers


class TrainingDirection(DirectionKernel):
    """One layer in one direction."""

    dtype = _F32

    def __init__(self, kernels: Kernels, dtype: str, spec: RnnSpec, weights: RnnWeights) -> None:
        self._ffi, self._lib, self._spec = kernels.ffi, kernels.lib, spec
        self.name = f"kernels {kernels.isa}"
        arrays = [getattr(weights, name) for name in _WEIGHTS]
        given = [None if a is None else np.ascontiguousarray(a, np.float32) for a in arrays]
        made = self._ffi.new("onernn_training **")
        c_spec = describe(kernels, spec, dtype)
        status = self._lib.onernn_training_new(c_spec, self._struct(given), made)
        check(self._lib, status, "a layer")
        self._training = self._ffi.gc(made[0], self._lib.onernn_training_free)

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], _Kept]:
        """See `DirectionKernel.run`."""
        x, y, packing, begin, attention = batch
        spec, count = self._spec, len(batch.words)
        sizes = {"gates": spec.gates * spec.hidden_size, "h": spec.recurrent_size}
        more = ("one", "two", "three") if spec.cell is Cell.LSTM else ("one",)
        sizes |= dict.fromkeys(more, spec.hidden_size)
        try:
            memory = _TAPES.pop()
        except IndexError:
            memory = Buffers()
        made = {name: memory.array(name, (count, size), _F32) for name, size in sizes.items()}
        kept = _Kept({"x": x, "attention": attention, **made}, memory)
        states = [np.array(s, np.float32, order="C") for s in begin]
        status = self._lib.onernn_training_forward(
            self._training,
            *self._steps(packing),
            self._addresses(kept.tape),
            self._at(y),
            y.strides[0] // y.itemsize,
            *map(self._at, (*states, None)[:2]),
        )
        check(self._lib, status, f"a batch of {count} words")
        return states, kept

    def backward(self, batch: PackedGradient) -> tuple[Array, Sequence[Array], Array | None]:
        """See `DirectionKernel.backward`."""
        kept, packing, dy, dend, into = batch
        states = [np.array(s, np.float32, order="C") for s in dend]
        dx = np.empty((len(dy), self._spec.input_size), np.float32)
        da = None if kept.tape["attention"] is None else np.empty((len(dy), 1), np.float32)
        status = self._lib.onernn_training_backward(
            self._training,
            *self._steps(packing),
            self._addresses(kept.tape),
            self._at(dy),
            *map(self._at, (*states, None)[:2]),
            self._at(dx),
            self._at(da),
            self._struct([into.get(name) for name in _WEIGHTS]),
        )
        check(self._lib, status, f"a batch of {len(dy)} words")
        _TAPES.append(kept.memory)
        return dx, states, da

    def _steps(self, packing: Packing) -> tuple[Any, int]:
        begin = packing.step_offsets
        return self._ffi.cast("int64_t *", begin.ctypes.data), len(begin) - 1

    def _addresses(self, tape: dict[str, Array | None]) -> Any:
        return self._ffi.new(
            "onernn_tape *", {name: self._at(array) for name, array in tape.items()}
        )

    def _struct(self, weights: Sequence[Array | None]) -> Any:
        return self._ffi.new("onernn_weights *", [self._at(array) for array in weights])

    def _at(self, array: Array | None) -> Any:
        """The address of float32 numbers in row-major order."""
        return self._ffi.cast("float *", 0 if array is None else array.ctypes.data)
