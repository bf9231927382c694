"""Training on the kernels: for each layer, one C call forward and one C call backward."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.compiled.backend import check, describe
from onernn.backend.compiled.library import Kernels
from onernn.backend.layer_walk import (
    DirectionGradients,
    DirectionKernel,
    LayerWalk,
    PackedBatch,
    PackedGradient,
)
from onernn.backend.process import Buffers, take_idle, team_of
from onernn.backend.reference import TRAINED
from onernn.backend.stack import Trainer
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.rnn import why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders.lod import Packing

TRAINED_IN = ("f32", "bf16")
"""The dtypes in which the kernels train: matrices are rounded to this dtype before multiplications,
all other arrays are float32.
"""

_WEIGHTS = ("layer", "iter", "bias", "peephole", "projection")
_F32 = np.dtype(np.float32)


def kernels_trainer(
    kernels: Kernels, spec: RnnSpec, layers: Sequence[RnnWeights], dtype: str, threads: int
) -> Trainer:
    """Returns the kernels' trainer of a layer. Raises `UnsupportedError` if they cannot train
    it.
    """
    if dtype not in TRAINED_IN:
        raise UnsupportedError(
            f"dtype {dtype}: expected {' or '.join(TRAINED_IN)} to train on the kernels;"
            " prepare the layer in f32 or bf16"
        )
    if beyond := why_not(spec, layers, TRAINED):
        raise UnsupportedError(beyond)
    prepare = partial(TrainingDirection, kernels, dtype, team_of(threads))
    walk = TrainingWalk(spec, layers, prepare)
    return Trainer(walk, walk.name, "")


_TAPES: deque[Buffers] = deque(maxlen=8)
"""Memory of tapes that were used. Any layer can reuse it, because training makes new layers in
every step.
"""


class _Kept(NamedTuple):
    """The data that the backward pass reads: the arrays of `onernn_tape`, and their memory."""

    tape: dict[str, Array | None]
    memory: Buffers


class TrainingWalk(LayerWalk):
    """Runs each batch undivided, and all directions of a layer in one C call, which divides the
    work.
    """

    def _run_row(self, way: str, row: Any, batches: Sequence[Any], inside: int) -> list[Any]:
        pairs = [kernel.prepare(way, batch) for kernel, batch in zip(row, batches, strict=True)]
        row[0].call(way, batches[0].packing, [fields for fields, _ in pairs])
        if way == "backward":
            _TAPES.extend(batch.kept.memory for batch in batches)
        return [result for _, result in pairs]


class TrainingDirection(DirectionKernel):
    """A kernel that trains one layer in one direction."""

    dtype = _F32

    def __init__(
        self, kernels: Kernels, dtype: str, team: int, spec: RnnSpec, weights: RnnWeights
    ) -> None:
        self._ffi, self._lib, self._spec = kernels.ffi, kernels.lib, spec
        self.name = f"kernels {kernels.isa}"
        arrays = [getattr(weights, name) for name in _WEIGHTS]
        given = [None if a is None else np.ascontiguousarray(a, np.float32) for a in arrays]
        made = self._ffi.new("onernn_training **")
        c_spec, c_weights = describe(kernels, spec, dtype), self._ffi.new("onernn_weights *")
        c_weights[0] = [*map(self._at, given)]
        status = self._lib.onernn_training_new(c_spec, c_weights, team, made)
        check(self._lib, status, "a layer")
        self._training = self._ffi.gc(made[0], self._lib.onernn_training_free)

    def call(self, way: str, packing: Packing, directions: Sequence[dict[str, Any]]) -> None:
        """Calls the C function for "run" or "backward", with one `onernn_trained` for each
        direction.
        """
        begin, name = packing.step_offsets, "forward" if way == "run" else way
        function = getattr(self._lib, f"onernn_training_{name}")
        described = self._ffi.new("onernn_trained[]", directions)
        steps = self._ffi.cast("int64_t *", begin.ctypes.data)
        status = function(described, len(directions), steps, len(begin) - 1)
        check(self._lib, status, f"a batch of {begin[-1]} words")

    def prepare(self, way: str, batch: Any) -> tuple[dict[str, Any], Any]:
        """Returns the fields of an `onernn_trained`, and the results that `call` fills."""
        return self._run(batch) if way == "run" else self._backward(batch)

    def _run(self, batch: PackedBatch) -> tuple[dict[str, Any], tuple[Sequence[Array], _Kept]]:
        x, y, _, begin, attention = batch
        spec, count = self._spec, len(batch.words)
        sizes = {"gates": spec.gates * spec.hidden_size, "h": spec.recurrent_size}
        more = ("one", "two", "three") if spec.cell is Cell.LSTM else ("one",)
        sizes |= dict.fromkeys(more, spec.hidden_size)
        memory = take_idle(_TAPES, Buffers)
        made = {name: memory.array(name, (count, size), _F32) for name, size in sizes.items()}
        kept = _Kept({"x": x, "attention": attention, **made}, memory)
        states = [np.array(s, np.float32, order="C") for s in begin]
        return self._fields(kept, y, states), (states, kept)

    def _backward(self, batch: PackedGradient) -> tuple[dict[str, Any], DirectionGradients]:
        kept, _, dy, dend, into = batch
        states = [np.array(s, np.float32, order="C") for s in dend]
        dx = np.empty((len(dy), self._spec.input_size), np.float32)
        da = None if kept.tape["attention"] is None else np.empty((len(dy), 1), np.float32)
        fields = self._fields(kept, dy, states) | {
            "dx": self._at(dx),
            "dattention": self._at(da),
            "gradients": [self._at(into.get(name)) for name in _WEIGHTS],
        }
        return fields, (dx, states, da)

    def _fields(self, kept: _Kept, y: Array, states: Sequence[Array]) -> dict[str, Any]:
        return {
            "training": self._training,
            "tape": {name: self._at(array) for name, array in kept.tape.items()},
            "y": self._at(y),
            "y_row": y.strides[0] // y.itemsize,
            **{name: self._at(state) for name, state in zip("hc", states, strict=False)},
        }

    def _at(self, array: Array | None) -> Any:
        return self._ffi.cast("float *", 0 if array is None else array.ctypes.data)
