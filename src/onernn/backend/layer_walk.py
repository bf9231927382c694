"""Runs a stack with one kernel for each layer and direction: inference, training and backward.

Ragged batches run in the sorted packed layout from the first layer to the last, without padding
(design/0026). The outputs of directions are joined after each layer. A large batch is divided into
shares for threads, whose outputs are joined after the last layer. One thread for each direction or
share is faster than OpenMP, which has a barrier in every step (design/0013).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onernn.backend.arguments import State
from onernn.backend.process import BUFFERS, CREATION, Buffers, borrow, run_all
from onernn.ir.arrays import Array, seal
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.rnn import parts
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders.lod import Packing

LONGEST = 8
"""The maximum number of steps in a segment of a ragged batch.

Lengths are powers of two, which limits the number of shapes.
"""


LARGE = 512
"""The smallest hidden size for which a kernel runs several OpenMP threads. Each core then keeps a
part of the weights in its cache.
"""

LEAST_SHARE = 8
"""The minimum number of sequences in a share: a product over 4 sequences takes as long as a product
over 8.
"""


class Share(NamedTuple):
    """The sequences of a batch that one thread runs.

    ``rows``: the indices of their steps. ``sentences``: their indices.
    """

    rows: Array | slice
    sentences: Array | slice
    packing: Packing


def shares(x: Batch, count: int) -> list[Share]:
    """Returns the shares of a batch for ``count`` threads; a small batch is one share.

    The rows of a dense batch (T, N, I) are numbered in the order of memory.
    """
    if isinstance(x, Ragged):
        packing = Packing.of(x.offsets)
        few = len(packing.last) < LEAST_SHARE * count
        parts = (packing,) if few or count == 1 else packing.parts(count)
        return [Share(part.rows, part.order, part) for part in parts]
    time, batch = x.shape[:2]
    if count == 1 or batch < LEAST_SHARE * count:
        return [Share(slice(None), slice(None), Packing.rectangle(time, batch))]
    steps = np.arange(time)[:, None] * batch
    dealt = [np.arange(first, batch, count) for first in range(count)]
    return [
        Share((steps + some).reshape(-1), some, Packing.rectangle(time, len(some)))
        for some in dealt
    ]


class Segment(NamedTuple):
    """A part of a packed batch: ``time`` steps of the first ``batch`` sequences, from packed row
    ``row`` on.
    """

    row: int
    time: int
    batch: int


def segments(packing: Packing) -> tuple[Segment, ...]:
    """Returns the segments of a packed batch in the order of time.

    If all sequences have the same length, there is only one segment.
    """
    return _segments(packing.batch_sizes.tobytes())


@lru_cache(maxsize=64)
def _segments(batch_sizes: bytes) -> tuple[Segment, ...]:
    sizes = np.frombuffer(batch_sizes, np.int64)
    starts = np.flatnonzero(np.diff(sizes, prepend=-1))
    lengths = np.diff(starts, append=len(sizes))
    if len(starts) == 1:
        return (Segment(0, len(sizes), int(sizes[0])),)
    pieces, row = [], 0
    for batch, left in zip(sizes[starts].tolist(), lengths.tolist(), strict=True):
        while left:
            time = min(LONGEST, 1 << (left.bit_length() - 1))
            pieces.append(Segment(row, time, batch))
            row += time * batch
            left -= time
    return tuple(pieces)


def single_steps(pieces: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the same steps as segments of one step each, which primitives that only run left to
    right can run in reverse order.
    """
    return tuple(
        Segment(row + t * batch, 1, batch) for row, time, batch in pieces for t in range(time)
    )


# A backend implements a kernel for one layer and direction, or for a whole stack.


class PackedBatch(NamedTuple):
    """The arguments of a kernel: sorted and packed steps (`Packing`), and states in the same
    order.
    """

    words: Array
    """The steps (W, I): the caller's x, or the output of the layer below."""
    y: Array
    """The output (W, O) to fill; its rows may have any stride."""
    packing: Packing
    begin: Sequence[Array]
    """The initial states (N, O)."""
    attention: Array | None = None
    """The attention (W, 1) of AUGRU cells."""


class PackedGradient(NamedTuple):
    """The arguments of a backward pass: the data that `run` kept, and the gradients of its
    results.
    """

    kept: Any
    packing: Packing
    dy: Array
    dend: Sequence[Array]
    weights: Mapping[str, Array]
    """Arrays to which the gradients of weights are added, as in `RnnWeights` without L and D."""


DirectionGradients = tuple[Array, Sequence[Array], Array | None]
"""The gradients of x, of the initial states and of the attention."""


class DirectionKernel:
    """A kernel that runs one layer in one direction for any batch; threads share it.

    A backend overrides `run`, and the methods that differ for its data types.
    """

    name: str
    """The name of the implementation, for `Stack.kernel`."""
    dtype: np.dtype[Any]
    """The dtype of the output of `run`."""
    exact_below: float | None = None
    """If an input reaches this magnitude or is NaN, results may be wrong; None: they are always
    right.
    """

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """Returns the final states, at least of sequences that have steps, and the data for
        `backward`.

        The data is None if the kernel does not train. A kernel that trains may keep references to
        the steps and y, because nothing changes these arrays later.
        """
        raise NotImplementedError

    def backward(self, batch: PackedGradient) -> DirectionGradients:
        """Returns the gradients of x, of the initial states and of the attention."""
        raise NotImplementedError

    def widen(self, y: Array) -> Array:
        """Returns the output of `run`, or a sum of outputs, in the caller's dtype."""
        return y

    def cache_info(self) -> tuple[int, int]:
        """Returns how many primitives were found in the cache, and how many were created."""
        return 0, 0


_T = TypeVar("_T")

Kernels = list[list[DirectionKernel]]
"""For each layer, a list with one kernel for each direction."""


class LayerWalk:
    """A `StackKernel` that consists of `DirectionKernel`s; threads may share it.

    ``prepare`` makes a kernel from the spec and weights of one layer and direction. If there are
    ``options``, it also gets one of them, for this layer and direction. ``threads``: the number of
    threads that run directions, shares of a batch, and parts of the work of large layers.
    ``whole``: whether batches are not divided into shares. ``within(n)`` returns a context manager;
    kernels that are made and run in it use n threads. Without ``within``, kernels use one thread.
    """

    def __init__(
        self,
        spec: RnnSpec,
        layers: Sequence[RnnWeights],
        prepare: Callable[..., DirectionKernel],
        *,
        threads: int = 1,
        whole: bool = True,
        within: Callable[[int], AbstractContextManager[None]] | None = None,
        options: Sequence[Any] = (),
    ) -> None:
        self._options = options
        self._spec, self._layers, self._prepare = spec, layers, prepare
        self._threads, self._within = threads, within or (lambda _: nullcontext())
        self._shares = 1 if spec.directions > 1 or whole else threads
        # OpenMP threads in a kernel save time if each core can keep its part of large weights in
        # its cache.
        together = spec.directions if threads >= spec.directions else 1
        self._inside = threads // together if within and spec.hidden_size >= LARGE else 1
        self._made: dict[int, Kernels] = {}
        kernels = [kernel for row in self._kernels(self._inside) for kernel in row]
        self.name = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
        bounds = [kernel.exact_below for kernel in kernels if kernel.exact_below is not None]
        self._exact_below = min(bounds, default=None)

    def _kernels(self, inside: int) -> Kernels:
        if inside not in self._made:
            with CREATION, self._within(inside):
                if inside not in self._made:
                    rows: Kernels = [[] for _ in self._layers]
                    for at, part in enumerate(parts(self._spec)):
                        weights = self._layers[part.layer].part(0, part.direction)
                        options = self._options[at : at + 1]
                        rows[part.layer].append(self._prepare(part.spec, weights, *options))
                    self._made[inside] = rows
        return self._made[inside]

    @property
    def is_exact(self) -> bool:
        """Whether the results are right for all inputs."""
        return self._exact_below is None

    def takes(self, x: Batch, initial: State) -> bool:
        """Implements `StackKernel.takes`."""
        most = self._exact_below
        return most is None or all(magnitude(a) < most for a in (data_of(x), *initial))

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """Returns None, so that the caller checks and converts every batch."""
        return None

    def run(self, x: Batch, initial: State, attention: Batch | None) -> tuple[Array, State]:
        """Implements `StackKernel.run`."""
        y, final, _ = self._run(x, initial, attention, keeps=False)
        return y, final

    def run_training(
        self, x: Batch, initial: State, attention: Batch | None
    ) -> tuple[Array, State, list[Any]]:
        """Returns the results of `run`, and the data for `backward`."""
        return self._run(x, initial, attention, keeps=True)

    def _run(
        self, x: Batch, initial: State, attention: Batch | None, keeps: bool
    ) -> tuple[Array, State, list[Any]]:
        """Runs a batch. With ``keeps``, the outputs are new arrays, which `backward` reads
        later.
        """
        jobs, inside, words, scale = self._dealt(x, attention)
        kernels = self._kernels(inside)
        final = tuple(s.copy() for s in initial)
        count = len(words) if len(jobs) > 1 else 0
        out = np.empty((count, self._spec.output_size), initial[0].dtype)

        def run_share(share: Share) -> Any:
            nonlocal out
            with borrow(BUFFERS, Buffers) as buffers:

                def output(layer: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
                    if keeps:
                        return np.empty(shape, dtype)
                    return buffers.array(f"layer {layer % 2}", shape, dtype)

                read = words
                if keeps:  # copies x, because the caller may change it before `backward`
                    read = _copy(words, share.rows)
                elif not isinstance(share.rows, slice):
                    read = buffers.gather("words", words, share.rows)
                y, ends, kept = self._forward(
                    kernels,
                    read,
                    share.packing,
                    [np.ascontiguousarray(s[:, :, share.sentences]) for s in initial],
                    None if scale is None else _copy(scale, share.rows),
                    inside,
                    output,
                )
                widen = kernels[-1][0].widen
                if len(jobs) > 1:
                    out[share.rows] = widen(y)
                elif not isinstance(share.rows, slice):  # reorders y before `widen` makes it larger
                    out = widen(share.packing.unpack(y))
                else:
                    out = y.copy() if (wide := widen(y)) is y else wide
            _assign(final, np.s_[:, :, share.sentences], ends)
            return kept

        with self._within(inside):
            kept = self._run_all([partial(run_share, share) for share in jobs], inside)
        return out, final, kept

    def backward(
        self, kept: list[Any], frame: Batch, dy: Array, dend: State
    ) -> tuple[Array, State, tuple[RnnWeights, ...], Array]:
        """Returns (dx (W, I), dbegin, gradients of each layer's weights, dattention).

        ``kept``: the data that `run_training` returned. ``frame``: a batch with the lengths of x
        and any number of channels. ``dy``: (W, O).
        """
        jobs, inside, *_ = self._dealt(frame, None)
        kernels = self._kernels(inside)
        dx = np.empty((len(dy), self._spec.input_size), dy.dtype)
        dscale = np.empty((len(dy), 1), dy.dtype)
        dbegin = tuple(np.empty_like(s) for s in dend)

        def run_share(share: Share, needed: Any) -> list[dict[str, Array]]:
            ends = [s[:, :, share.sentences] for s in dend]
            weights = self.zero_gradients(dy.dtype)
            dx[share.rows], begins, da = self._backward(
                kernels, needed, _copy(dy, share.rows), share.packing, ends, weights, inside
            )
            _assign(dbegin, np.s_[:, :, share.sentences], begins)
            if da is not None:
                dscale[share.rows] = da
            return weights

        with self._within(inside):
            pairs = zip(jobs, kept, strict=True)
            first, *others = self._run_all([partial(run_share, *pair) for pair in pairs], inside)
        for weights in others:
            for total, more in zip(first, weights, strict=True):
                for name, array in total.items():
                    array += more[name]
        sealed: Any = [{name: seal(a) for name, a in arrays.items()} for arrays in first]
        gradients = tuple(RnnWeights(**{"layer": None, **arrays}) for arrays in sealed)
        return dx, dbegin, gradients, dscale

    def zero_gradients(self, dtype: np.dtype[Any]) -> list[dict[str, Array]]:
        """Returns zeros in the shapes of each layer's weights, by the names of `RnnWeights`."""
        return [
            {name: np.zeros(a.shape, dtype) for name, a in layer.arrays.items()}
            for layer in self._layers
        ]

    def _dealt(
        self, x: Batch, attention: Batch | None
    ) -> tuple[list[Share], int, Array, Array | None]:
        jobs = shares(x, self._shares)
        scale = None if attention is None else _rows(attention)
        return jobs, self._inside if len(jobs) == 1 else 1, _rows(x), scale

    def _run_all(self, tasks: Sequence[Callable[[], _T]], inside: int) -> list[_T]:
        if not 1 < len(tasks) <= self._threads:
            return [task() for task in tasks]

        def run_within(task: Callable[[], _T]) -> _T:
            with self._within(inside):
                return task()

        return run_all([partial(run_within, task) for task in tasks])

    def _run_row(
        self, way: str, row: Sequence[DirectionKernel], batches: Sequence[Any], inside: int
    ) -> list[Any]:
        pairs = zip(row, batches, strict=True)
        tasks = [partial(getattr(kernel, way), batch) for kernel, batch in pairs]
        return self._run_all(tasks, inside)

    def _forward(
        self,
        kernels: Kernels,
        words: Array,
        packing: Packing,
        initial: Sequence[Array],
        attention: Array | None,
        inside: int,
        new_array: Callable[[int, tuple[int, int], np.dtype[Any]], Array],
    ) -> tuple[Array, list[Array], list[list[Any]]]:
        """Returns (y, final states, data for `backward` by layer and direction), packed and sorted.

        ``new_array(layer, shape, dtype)`` returns the memory for a layer's output.
        """
        final, kept = [s.copy() for s in initial], []
        width = self._spec.recurrent_size
        sides = [words] * self._spec.directions
        for layer, row in enumerate(kernels):
            out = new_array(layer, (len(words), width * len(row)), row[0].dtype)
            ys = [out[:, d * width : (d + 1) * width] for d in range(len(row))]
            batches = [
                PackedBatch(side, y, packing, [s[layer, d] for s in initial], attention)
                for d, (side, y) in enumerate(zip(sides, ys, strict=True))
            ]
            ran = self._run_row("run", row, batches, inside)
            for d, (ends, _) in enumerate(ran):
                for state, end in zip(final, ends, strict=True):
                    state[layer, d, : len(end)] = end  # empty sequences keep their initial state
            kept.append([needed for _, needed in ran])
            if not self._spec.joins(layer):
                sides = list(map(np.ascontiguousarray, ys))
            elif self._spec.direction == "bidirectional_sum":
                # Adds in the caller's dtype, because the sum of two u8 states does not fit into u8.
                wide = row[0].widen(out)
                sides = [wide[:, :width] + wide[:, width:]] * len(row)
            else:
                sides = [out] * len(row)
        return sides[0], final, kept

    def _backward(
        self,
        kernels: Kernels,
        kept: list[list[Any]],
        dy: Array,
        packing: Packing,
        dend: Sequence[Array],
        weights: list[dict[str, Array]],
        inside: int,
    ) -> tuple[Array, list[Array], Array | None]:
        """Returns (dx, dbegin, dattention), packed and sorted; adds the gradients of the weights to
        ``weights``.
        """
        dbegin, dscale = [np.empty_like(s) for s in dend], None
        dsides = self._split(dy)
        for layer, row in reversed(list(enumerate(kernels))):
            batches = [
                PackedGradient(
                    kept[layer][d],
                    packing,
                    dsides[d],
                    [s[layer, d] for s in dend],
                    {name: array[0, d] for name, array in weights[layer].items()},
                )
                for d in range(len(row))
            ]
            ran = self._run_row("backward", row, batches, inside)
            for d, (_, begins, da) in enumerate(ran):
                _assign(dbegin, (layer, d), begins)
                if da is not None:
                    dscale = da if dscale is None else dscale + da
            dsides = [dx for dx, *_ in ran]
            if layer == 0:
                dsides = [sum(dsides[1:], start=dsides[0])]
            elif self._spec.joins(layer - 1):
                dsides = self._split(sum(dsides[1:], start=dsides[0]))
        return dsides[0], dbegin, dscale

    def _split(self, dy: Array) -> list[Array]:
        if self._spec.direction == "bidirectional_sum":
            return [dy, dy]
        return [np.ascontiguousarray(a) for a in np.split(dy, self._spec.directions, axis=1)]

    def cache_info(self) -> dict[str, int]:
        """Returns how many primitives were found and created so far, over all layers and
        directions.
        """
        made = [
            kernel for kernels in list(self._made.values()) for row in kernels for kernel in row
        ]
        hits, misses = np.sum([kernel.cache_info() for kernel in made], axis=0).tolist()
        return {"hits": hits, "misses": misses}


def magnitude(array: Array) -> float:
    """Returns the largest magnitude in an array: 0 if the array is empty, NaN if it contains
    NaN.
    """
    # In contrast to `abs`, `max` and `min` need no further array. Both return NaN if the array
    # contains NaN.
    return float(np.maximum(array.max(initial=0), -array.min(initial=0)))


def _rows(x: Batch) -> Array:
    data = np.ascontiguousarray(data_of(x))
    return data if data.ndim == 2 else data.reshape(data.shape[0] * data.shape[1], data.shape[2])


def _copy(words: Array, rows: Array | slice) -> Array:
    return (
        np.array(words[rows], order="C")
        if isinstance(rows, slice)
        else np.take(words, rows, axis=0)
    )


def _assign(states: Sequence[Array], place: Any, values: Sequence[Array]) -> None:
    for state, value in zip(states, values, strict=True):
        state[place] = value
