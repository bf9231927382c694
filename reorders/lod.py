"""LoD tensors <-> the sorted packed layout."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.ragged import offsets_of
from onernn.ir.records import cached_property, dataclass


@dataclass(frozen=True, eq=False)
class Packing:
    """The position of each step in the sorted packed layout: no padding, time-major.

    Sequences are sorted by length, longest first (``order``, (N,)). All first steps come first,
    then all second steps, and so on. At step t the first ``batch_sizes[t]`` sequences are still
    running, so that steps of equal batch size are a dense (T, N, C) tensor.
    """

    lengths: Int64  # (N,), sorted
    order: Int64  # (N,)
    batch_sizes: Int64  # (T,)
    rows: Int64  # (W,), the step at each packed row

    @classmethod
    def of(cls, offsets: Int64) -> Packing:
        """Returns the packing of the last level of a LoD; kept for the batch shapes seen last."""
        return _packing(offsets.tobytes())

    @classmethod
    def of_sorted(cls, order: Int64, lengths: Int64, starts: Int64) -> Packing:
        """Returns the packing of sorted sequences of these lengths and starts."""
        steps = np.arange(lengths[0] if len(lengths) else 0)
        batch_sizes = np.searchsorted(-lengths, -steps, side="left")
        time = np.repeat(steps, batch_sizes)
        sentence = np.arange(len(time)) - np.repeat(offsets_of(batch_sizes)[:-1], batch_sizes)
        return cls(*map(frozen, (lengths, order, batch_sizes, starts[sentence] + time)))

    def parts(self, count: int) -> tuple[Packing, ...]:
        """Divides the batch, sequence by sequence, into batches of nearly equal work.

        ``rows`` and ``order`` of each part still refer to the whole batch.
        """
        if count not in self._parts:
            starts = np.zeros_like(self.order)
            starts[: len(self.last)] = self.rows[: len(self.last)]
            self._parts[count] = tuple(
                self.of_sorted(self.order[p::count], self.lengths[p::count], starts[p::count])
                for p in range(count)
            )
        return self._parts[count]

    @cached_property
    def _parts(self) -> dict[int, tuple[Packing, ...]]:
        return {}

    @classmethod
    def rectangle(cls, time: int, batch: int) -> Packing:
        """Returns the packing of N sequences of T steps, with rows in the order of (T, N, ...)."""
        return cls.of(np.arange(batch + 1, dtype=np.int64) * time)

    @cached_property
    def step_offsets(self) -> Int64:
        """(T+1,): the packed row at which each step starts."""
        return frozen(offsets_of(self.batch_sizes))

    @cached_property
    def words(self) -> Int64:
        """The packed row of each step (W,): the inverse of ``rows``."""
        return frozen(_inverse(self.rows))

    @cached_property
    def unsort(self) -> Int64:
        """The sorted position of each of the caller's sequences (N,): the inverse of ``order``."""
        return frozen(_inverse(self.order))

    @cached_property
    def last(self) -> Int64:
        """The packed row of the last step of each sorted sequence that has steps."""
        running = self.lengths[self.lengths > 0]
        return frozen(self.step_offsets[running - 1] + np.arange(len(running)))

    def pack(self, words: Array) -> Array:
        """Converts (W, ...) from the caller's order to sorted packed."""
        return np.take(words, self.rows, axis=0)

    def unpack(self, packed: Array) -> Array:
        """Converts (W, ...) from sorted packed to the caller's order."""
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
    return Packing.of_sorted(order, lengths[order], starts[order])
