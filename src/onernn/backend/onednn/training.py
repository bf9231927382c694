"""Training on oneDNN's primitives: forward writes a workspace, backward reads it.

The segments of a packed batch (design/0026) run in the same order as in inference. Each segment
keeps its workspace and its initial states for the backward pass. The backward pass runs them in
reverse, and passes the gradients of the states from segment to segment. The primitives add up the
gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.layer_walk import (
    DirectionGradients,
    LayerWalk,
    PackedBatch,
    PackedGradient,
    Segment,
    segments,
)
from onernn.backend.onednn.kernels import (
    WEIGHTS,
    Executable,
    OneDnnKernel,
    PackedWeights,
    Shape,
    addresses,
    by_piece,
    carry,
    descriptors,
    plain_weights,
    state_addresses,
)
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    create,
    new_attributes,
)
from onernn.backend.onednn.precision import GRADIENTS, GUIDE, OURS, PRECISIONS, reason
from onernn.backend.process import ALIGNMENT, allocate_aligned
from onernn.backend.reference import reference_trainer
from onernn.backend.stack import Trainer
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights, shapes_of
from onernn.reorders.lod import Packing

CAPACITY = 512
"""The maximum number of pairs of primitives, forward and backward, that a process keeps.

A pair takes about 0.3 MB.
"""

TRAINED = tuple(
    dtype for dtype in PRECISIONS if GUIDE[OURS[dtype].row].propagation == "forward and backward"
)
"""The dtypes in which oneDNN trains: f32 and bf16. Gradients are float32 in both."""

_TAGS = {3: "tnc", 4: "ldnc", 5: "ldigo"}  # row-major layouts by the number of axes
_FIELDS = dict(zip(WEIGHTS, ("layer", "iter", "bias", "peephole", "projection"), strict=True))


def refusal(spec: RnnSpec, dtype: str) -> str:
    """Returns why oneDNN cannot train this layer, or "" if it can."""
    if dtype not in TRAINED:
        return f"oneDNN trains in {' and '.join(TRAINED)}, not in {dtype}"
    if wrong := reason(GRADIENTS, spec, dtype):
        return f"oneDNN's {spec.cell.name} {wrong}"
    if spec.projection_size and not GUIDE[OURS[dtype].row].projection:
        return f"oneDNN has no {dtype} backward of an LSTM with projection"
    return ""


def onednn_trainer(
    library: Library,
    spec: RnnSpec,
    layers: Sequence[RnnWeights],
    dtype: str,
    threads: int,
    strict: bool,
) -> Trainer:
    """Returns oneDNN's trainer of a layer, or the NumPy reference's in float32 if oneDNN cannot
    train it.

    Raises `UnsupportedError` for u8 and f16. With ``strict``, also raises it instead of using the
    reference.
    """
    why = refusal(spec, dtype)
    try:
        if not why:
            walk = LayerWalk(
                spec,
                layers,
                lambda one, weights: TrainingKernel(library, one, weights, dtype),
                threads=threads,
                whole=False,
                within=library.threads,
            )
            return Trainer(walk, f"oneDNN {library.version} {walk.name}", "")
    except UnsupportedError as error:
        why = str(error)
    if dtype not in TRAINED:
        raise UnsupportedError(f"{why}; prepare the layer in f32 or bf16 to train it")
    if strict:
        raise UnsupportedError(f"{why}; drop strict=True to train it on the reference")
    return reference_trainer(spec, layers, np.dtype(np.float32), why)


class _Pair(NamedTuple):
    """The forward and backward primitives of one shape, which layers with different weights
    share.
    """

    forward: Executable
    backward: Executable


@lru_cache(maxsize=CAPACITY)
def _pair(
    library: Library, spec: RnnSpec, dtype: str, threads: int, time: int, batch: int
) -> _Pair:
    shapes = shapes_of(spec)

    def plain(dims: Sequence[int]) -> Descriptor:
        return Descriptor.from_tag(library, dims, "f32", _TAGS[len(dims)])

    weights = {n: Memory(plain(sizes)) for n, f in _FIELDS.items() if (sizes := shapes[f])}
    shape = Shape(time, batch, spec.input_size, spec.recurrent_size)
    wanted = descriptors(library, spec, weights, PRECISIONS[dtype], shape)
    diffs = {f"diff_{name}": plain(descriptor.dims) for name, descriptor in wanted.items()}
    attributes = new_attributes(library, own_scratchpad=True)
    forward = create(library, spec, "forward_training", wanted, attributes)
    backward = create(library, spec, "backward", wanted | diffs, attributes, forward)
    return _Pair(Executable(library, forward), Executable(library, backward))


class _Kept(NamedTuple):
    """The data that the backward pass reads: a pair of primitives and the addresses for each
    segment.
    """

    pairs: Sequence[_Pair]
    places: Sequence[dict[str, int]]
    owners: Sequence[Array]  # the arrays that contain these addresses


class TrainingKernel(OneDnnKernel):
    """A kernel that runs forward and keeps workspaces, from which it runs backward."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        super().__init__(library, spec, PRECISIONS[dtype])
        self._backwards = spec.direction == "right2left"
        self._weights = plain_weights(library, spec, weights, self.precision)
        self._packed = PackedWeights(self._weights)
        self._kind = dtype
        probe = self._pair(1, 1)
        self.name = f"{probe.forward.name}, backward {probe.backward.name}"

    def _pair(self, time: int, batch: int) -> _Pair:
        threads = self._library.current_threads
        return _pair(self._library, self.spec, self._kind, threads, time, batch)

    def _order(self, packing: Packing) -> tuple[Segment, ...]:
        return segments(packing)[:: -1 if self._backwards else 1]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """Implements `DirectionKernel.run`."""
        words, y, packing, begin, _ = batch
        order = self._order(packing)
        pairs = [self._pair(time, batch) for _, time, batch in order]
        x = self.read(words)
        whole = y if y.flags.c_contiguous else np.empty(y.shape, y.dtype)
        first = self.narrow_states(begin)
        states = [np.empty((len(order) + 1, *s.shape), s.dtype) for s in first]
        sizes = [p.forward.layouts["workspace"].nbytes for p in pairs]
        starts = np.cumsum([0] + [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes])
        workspaces = allocate_aligned(int(starts[-1]))
        rows = [piece.row for piece in order]
        table = {
            "src_layer": addresses(x, rows),
            "dst_layer": addresses(whole, rows),
            "workspace": addresses(workspaces, starts[:-1].tolist()),
            **state_addresses(self.spec, states, range(len(order) + 1)),
        }
        kept = _Kept(pairs, by_piece(table), (x, whole, workspaces, *states))

        def execute(k: int) -> None:
            forward = pairs[k].forward
            forward.execute(kept.places[k] | self._weights_for(forward))

        ends = carry(order, first, states, execute)
        if whole is not y:
            y[...] = whole
        return self.widen_states([end[: len(packing.last)] for end in ends]), kept

    def backward(self, batch: PackedGradient) -> DirectionGradients:
        """Implements `DirectionKernel.backward`."""
        kept, packing, dy, dend, into = batch
        order = self._order(packing)
        rows = [piece.row for piece in order]
        dx = np.empty((len(dy), self.spec.input_size), np.float32)
        table = {"diff_src_layer": addresses(dx, rows), "diff_dst_layer": addresses(dy, rows)}
        # The gradients of the states alternate between two buffers.
        dstates = [np.empty((2, *s.shape), np.float32) for s in dend]
        turns = [step % 2 for step in range(len(order) + 1)][::-1]
        table |= state_addresses(self.spec, dstates, turns, of="diff_")
        # oneDNN also writes gradients of weights that the layer lacks, such as a missing bias.
        sums = {
            name: into.get(_FIELDS[name], np.zeros(memory.descriptor.dims, np.float32))
            for name, memory in self._weights.items()
        }
        fixed = {f"diff_{name}": addresses(array, [0])[0] for name, array in sums.items()}
        places = by_piece(table)

        def execute(step: int) -> None:
            k = len(order) - 1 - step
            backward = kept.pairs[k].backward
            backward.execute(kept.places[k] | places[k] | fixed | self._weights_for(backward))

        return dx, carry(order[::-1], dend, dstates, execute), None

    def _weights_for(self, kernel: Executable) -> dict[str, int]:
        layouts = kernel.layouts
        return {name: self._packed.get(name, layouts[name]).address for name in self._weights}
