"""LoD tensors <-> the sorted packed layout."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.ragged import offsets_of
from onernn.ir.records import cached_property, dataclass


@dataclass(frozen=True, eq=False)
class Packing:
    """Where each word stands in the sorted packed layout: no padding, time-major.

    Sentences are sorted by length, longest first (``order``, (N,)); then come all first words,
    all second words, ... At step t the first ``batch_sizes[t]`` sentences are still running, so
    that steps of equal batch size are a dense (T, N, C) tensor.
    """

    lengths: Int64  # (N,), sorted
    order: Int64  # (N,)
    batch_sizes: Int64  # (T,)
    rows: Int64  # (W,), the word at each packed row

    @classmethod
    def of(cls, offsets: Int64) -> Packing:
        """Returns the packing of the last level of a LoD; kept for the batch shapes seen last."""
        return _packing(offsets.tobytes())

    @classmethod
    def sorted(cls, order: Int64, lengths: Int64, starts: Int64) -> Packing:
        """From the lengths of sorted sequences, and where each begins in the caller's order."""
        steps = np.arange(lengths[0] if len(lengths) else 0)
        batch_sizes = np.searchsorted(-lengths, -steps, side="left")
        time = np.repeat(steps, batch_sizes)
        sentence = np.arange(len(time)) - np.repeat(offsets_of(batch_sizes)[:-1], batch_sizes)
        return cls(*map(frozen, (lengths, order, batch_sizes, starts[sentence] + time)))

    def parts(self, count: int) -> tuple[Packing, ...]:
        """Returns the batch dealt out sentence by sentence into batches of nearly equal work.

        ``rows`` and ``order`` of each still speak of the whole batch.
        """
        if count not in self._parts:
            starts = np.zeros_like(self.order)
            starts[: len(self.last)] = self.rows[: len(self.last)]
            self._parts[count] = tuple(
                self.sorted(self.order[p::count], self.lengths[p::count], starts[p::count])
                for p in range(count)
            )
        return self._parts[count]

    @cached_property
    def _parts(self) -> dict[int, tuple[Packing, ...]]:
        return {}

    @classmethod
    def rectangle(cls, time: int, batch: int) -> Packing:
        """For N sentences of T words each: packed rows are those of (T, N, ...)."""
        return cls.of(np.arange(batch + 1, dtype=np.int64) * time)

    @cached_property
    def step_offsets(self) -> Int64:
        """(T+1,): the packed row at which each step starts."""
        return frozen(offsets_of(self.batch_sizes))

    @cached_property
    def words(self) -> Int64:
        """(W,): the packed row of each word, the inverse of ``rows``."""
        return frozen(_inverse(self.rows))

    @cached_property
    def unsort(self) -> Int64:
        """(N,): where each of the caller's sentences went, the inverse of ``order``."""
        return frozen(_inverse(self.order))

    @cached_property
    def last(self) -> Int64:
        """The packed row of the last word of each sorted sentence that has one."""
        running = self.lengths[self.lengths > 0]
        return frozen(self.step_offsets[running - 1] + np.arange(len(running)))

    def pack(self, words: Array) -> Array:
        """Returns (W, ...) in the caller's order -> sorted packed."""
        return np.take(words, self.rows, axis=0)

    def unpack(self, packed: Array) -> Array:
        """Sorted packed (W, ...) -> the caller's order."""
        return np.take(packed, self.words, axis=0)


def _inverse(permutation: Int64) -> Int64:
    out = np.empty_like(permutation)
    out[permutation] = np.arange(len(permutation))
    return out


@lru_cache(maxsize=64)
def _packing(offsets: bytes) -> Packing:
    starts = np.frombuffer(offsets, np.int64)
    lengths = np.diff(starts)
    order = np.argsort(-lengths, kind="stable")
    return Packing.sorted(order, lengths[order], starts[order])
