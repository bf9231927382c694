"""Converts LoD tensors to the sorted packed layout, and back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.ragged import offsets_of
from onernn.ir.records import cached_property, dataclass


@dataclass(frozen=True, eq=False)
class Packing:
    """The position of each step in the sorted packed layout, which has no padding.

    Sequences are sorted by length, longest first; ``order`` (N,) has their original indices. The
    layout has the first steps of all sequences, then all second steps, and so on. The first
    ``batch_sizes[t]`` sequences have a step t. So consecutive steps of equal batch size form a
    dense (T, N, C) tensor.
    """

    lengths: Int64  # (N,), in sorted order
    order: Int64  # (N,)
    batch_sizes: Int64  # (T,)
    rows: Int64  # (W,), the caller's row of each packed row

    @classmethod
    def of(cls, offsets: Int64) -> Packing:
        """Returns the packing of the last level of a LoD; the last 64 packings are cached."""
        return _packing(offsets.tobytes())

    @classmethod
    def of_sorted(cls, order: Int64, lengths: Int64, starts: Int64) -> Packing:
        """Returns the packing of sorted sequences; ``starts``: the rows of their first steps."""
        steps = np.arange(lengths[0] if len(lengths) else 0)
        batch_sizes = np.searchsorted(-lengths, -steps, side="left")
        time = np.repeat(steps, batch_sizes)
        sentence = np.arange(len(time)) - np.repeat(offsets_of(batch_sizes)[:-1], batch_sizes)
        return cls(*map(frozen, (lengths, order, batch_sizes, starts[sentence] + time)))

    def parts(self, count: int) -> tuple[Packing, ...]:
        """Divides the sequences of the batch into batches of nearly equal work.

        ``rows`` and ``order`` of each part refer to the whole batch.
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
        """Returns the packing of N sequences of T steps; its packed rows are the rows of a (T, N,
        C) array.
        """
        return cls.of(np.arange(batch + 1, dtype=np.int64) * time)

    @cached_property
    def step_offsets(self) -> Int64:
        """The index of the first packed row of each step, followed by the number of rows:
        (T+1,).
        """
        return frozen(offsets_of(self.batch_sizes))

    @cached_property
    def words(self) -> Int64:
        """The packed row of each of the caller's rows, the inverse of ``rows``: (W,)."""
        return frozen(_inverse(self.rows))

    @cached_property
    def unsort(self) -> Int64:
        """The position of each of the caller's sequences in sorted order, the inverse of ``order``:
        (N,).
        """
        return frozen(_inverse(self.order))

    @cached_property
    def last(self) -> Int64:
        """The packed row of the last step of each sequence that has steps, in sorted order."""
        running = self.lengths[self.lengths > 0]
        return frozen(self.step_offsets[running - 1] + np.arange(len(running)))

    def pack(self, words: Array) -> Array:
        """Converts (W, ...) from the caller's order to the sorted packed layout."""
        return np.take(words, self.rows, axis=0)

    def unpack(self, packed: Array) -> Array:
        """Converts (W, ...) from the sorted packed layout to the caller's order."""
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
