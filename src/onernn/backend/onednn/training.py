"""Training on oneDNN's primitives: forward into workspaces, backward out of them.

The pieces of a packed batch (design/0026) run as in inference, each with a workspace of its own
and from states that are kept; backward takes them in reverse, hands the states' gradients on, and
adds up those of the weights, as the primitives do by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.layer_walk import LayerWalk, PackedBatch, PackedGradient, Segment, segments
from onernn.backend.onednn.kernels import (
    WEIGHTS,
    Bound,
    ExecutionBuffers,
    OneDnnKernel,
    PackedWeights,
    Shape,
    descriptors,
    plain_weights,
)
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    Descriptor,
    Memory,
    Primitive,
    create,
    narrowed,
    new_attributes,
    widened,
)
from onernn.backend.onednn.precision import GRADIENTS, GUIDE, OURS, PRECISIONS, reason
from onernn.backend.process import ALIGNMENT, aligned, borrowed
from onernn.backend.reference import reference_trainer
from onernn.backend.stack import Trainer
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders.lod import Packing

CAPACITY = 512
"""Most pairs of primitives, forward and backward, that a process keeps; about 0.3 MB each."""

TRAINED = tuple(
    dtype for dtype in PRECISIONS if GUIDE[OURS[dtype].row].propagation == "forward and backward"
)
"""What oneDNN computes in when it trains: f32 and bf16; gradients are float32 in both."""

_TAGS = {3: "tnc", 4: "ldnc", 5: "ldigo"}  # by number of axes: all of them row-major
_FIELDS = dict(zip(WEIGHTS, ("layer", "iter", "bias", "peephole", "projection"), strict=True))


def refusal(spec: RnnSpec, dtype: str) -> str:
    """Why oneDNN does not train this, "" where it does."""
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
    """What trains a layer: oneDNN, or where it cannot the NumPy reference, in float32.

    Raises `UnsupportedError` for u8 and f16, and instead of the reference where ``strict``.
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


class _Kernel:
    """A training primitive and its arguments, all of which move; for any number of threads."""

    def __init__(self, library: Library, primitive: Primitive) -> None:
        self._library, self._primitive = library, primitive
        self.layouts, self.name = primitive.layouts, primitive.kernel
        self._moving = list(self.layouts)
        self._idle: deque[Bound] = deque()

    def execute(self, addresses: Mapping[str, int]) -> None:
        with (
            borrowed(_IDLE, lambda: ExecutionBuffers(self._library)) as workspace,
            borrowed(
                self._idle, lambda: workspace.bind(self._primitive, {}, self._moving)
            ) as bound,
        ):
            workspace.reserve(self._primitive)
            moved = {**addresses, "scratchpad": workspace.scratchpad.ctypes.data}
            workspace.execute(bound, [moved[name] for name in self._moving])


_IDLE: deque[ExecutionBuffers] = deque(maxlen=8)
"""Streams and scratchpads; they outlive layers, which change with every step of training."""


class _Pair(NamedTuple):
    """The primitives of one shape; they know no weights."""

    forward: _Kernel
    backward: _Kernel


@lru_cache(maxsize=CAPACITY)
def _pair(
    library: Library, spec: RnnSpec, dtype: str, threads: int, time: int, batch: int
) -> _Pair:
    """For T steps of N packed sentences; made, and to be run, under ``threads``."""
    units, width, gates = spec.hidden_size, spec.recurrent_size, spec.gates
    dims = {
        "weights_layer": (1, 1, spec.input_size, gates, units),
        "weights_iter": (1, 1, width, gates, units),
        "bias": (1, 1, spec.cell.bias_rows, units),
        **({"weights_peephole": (1, 1, 3, units)} if spec.peephole else {}),
        **({"weights_projection": (1, 1, units, width)} if spec.projection_size else {}),
    }

    def plain(dims: Sequence[int]) -> Descriptor:
        return Descriptor.tagged(library, dims, "f32", _TAGS[len(dims)])

    weights = {name: Memory(plain(sizes)) for name, sizes in dims.items()}
    shape = Shape.packed(time, batch, spec.input_size, width)
    wanted = descriptors(library, spec, weights, PRECISIONS[dtype], shape)
    diffs = {f"diff_{name}": plain(descriptor.dims) for name, descriptor in wanted.items()}
    attributes = new_attributes(library, own_scratchpad=True)
    forward = create(library, spec, "forward_training", wanted, attributes)
    backward = create(library, spec, "backward", wanted | diffs, attributes, forward)
    return _Pair(_Kernel(library, forward), _Kernel(library, backward))


class _Kept(NamedTuple):
    """What backward reads again: a pair of primitives and the addresses of its data a piece."""

    pairs: Sequence[_Pair]
    places: Sequence[dict[str, int]]
    owners: Sequence[Array]  # of the data at those addresses


class TrainingKernel(OneDnnKernel):
    """Forward into workspaces, backward out of them."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        super().__init__(library, spec, PRECISIONS[dtype])
        self._backwards = spec.direction == "right2left"
        self._weights = plain_weights(library, spec, weights, self.precision)
        self._packed = PackedWeights(self._weights)
        self._suffixes = ["" if state == "h" else "_c" for state in spec.cell.states]
        self._kind = dtype
        probe = self._pair(1, 1)
        self.name = f"{probe.forward.name}, backward {probe.backward.name}"

    def _pair(self, time: int, batch: int) -> _Pair:
        threads = self._library.current_threads
        return _pair(self._library, self.spec, self._kind, threads, time, batch)

    def _order(self, packing: Packing) -> tuple[Segment, ...]:
        return segments(packing)[:: -1 if self._backwards else 1]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """See `DirectionKernel.run`."""
        words, y, packing, begin, _ = batch
        library, precision = self._library, self.precision
        kinds = (precision.data, precision.cell)
        order = self._order(packing)
        pairs = [self._pair(time, batch) for _, time, batch in order]
        x = self.converted(words)
        whole = y if y.flags.c_contiguous else np.empty(y.shape, y.dtype)
        first = [narrowed(library, s, k) for s, k in zip(begin, kinds, strict=False)]
        states = [np.empty((len(order) + 1, *s.shape), s.dtype) for s in first]
        sizes = [p.forward.layouts["workspace"].nbytes for p in pairs]
        starts = np.cumsum([0] + [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes])
        workspaces = aligned(int(starts[-1]))
        rows = [piece.row for piece in order]
        table = {
            "src_layer": _addresses(x, rows),
            "dst_layer": _addresses(whole, rows),
            "workspace": _addresses(workspaces, starts[:-1].tolist()),
        }
        for suffix, state in zip(self._suffixes, states, strict=True):
            at = _addresses(state, range(len(order) + 1))
            table |= {f"src_iter{suffix}": at[:-1], f"dst_iter{suffix}": at[1:]}
        kept = _Kept(pairs, _by_piece(table), (x, whole, workspaces, *states))

        def execute(k: int) -> None:
            forward = pairs[k].forward
            forward.execute(kept.places[k] | self._weights_for(forward))

        ends = _carried(order, first, states, execute)
        if whole is not y:
            y[...] = whole
        return [widened(library, e, k) for e, k in zip(ends, kinds, strict=False)], kept

    def backward(self, batch: PackedGradient) -> tuple[Array, Sequence[Array], Array | None]:
        """See `DirectionKernel.backward`."""
        kept, packing, dy, dend, into = batch
        order = self._order(packing)
        rows = [piece.row for piece in order]
        dx = np.empty((len(dy), self.spec.input_size), np.float32)
        table = {"diff_src_layer": _addresses(dx, rows), "diff_dst_layer": _addresses(dy, rows)}
        # Two buffers in turn, from the last piece to the first.
        dstates = [np.empty((2, *s.shape), np.float32) for s in dend]
        turns = [step % 2 for step in range(len(order) + 1)][::-1]
        for suffix, state in zip(self._suffixes, dstates, strict=True):
            at = _addresses(state, turns)
            table |= {f"diff_src_iter{suffix}": at[:-1], f"diff_dst_iter{suffix}": at[1:]}
        # oneDNN sums up gradients of weights that nobody has, too, such as a missing bias.
        sums = {
            name: into.get(_FIELDS[name], np.zeros(memory.descriptor.dims, np.float32))
            for name, memory in self._weights.items()
        }
        fixed = {f"diff_{name}": _addresses(array, [0])[0] for name, array in sums.items()}
        places = _by_piece(table)

        def execute(step: int) -> None:
            k = len(order) - 1 - step
            backward = kept.pairs[k].backward
            backward.execute(kept.places[k] | places[k] | fixed | self._weights_for(backward))

        return dx, _carried(order[::-1], dend, dstates, execute), None

    def _weights_for(self, kernel: _Kernel) -> dict[str, int]:
        """The addresses of the weights in a kernel's layouts."""
        layouts = kernel.layouts
        return {name: self._packed.get(name, layouts[name]).address for name in self._weights}


def _addresses(array: Array, rows: Iterable[int]) -> list[int]:
    start, step = int(array.ctypes.data), array.strides[0]
    return [start + row * step for row in rows]


def _by_piece(table: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    return [dict(zip(table, column, strict=True)) for column in zip(*table.values(), strict=True)]


def _carried(
    order: Sequence[Segment],
    begin: Sequence[Array],
    states: Sequence[Array],
    execute: Callable[[int], None],
) -> list[Array]:
    """Runs pieces one after the other; the state that each sentence has after its last one.

    ``states``: buffers (K, N, O) in a ring; piece k reads k and writes k+1.
    """
    ends = [s.copy() for s in begin]
    for ring, first in zip(states, begin, strict=True):
        ring[0] = first
    for k, piece in enumerate(order):
        execute(k)
        batch, left = piece.batch, order[k + 1].batch if k + 1 < len(order) else 0
        for ring, end, first in zip(states, ends, begin, strict=True):
            after = ring[(k + 1) % len(ring)]
            # Sentences that are done leave their state behind, others join with their first.
            if left < batch:
                end[left:batch] = after[left:batch]
            elif left > batch:
                after[batch:left] = first[batch:left]
    return ends
