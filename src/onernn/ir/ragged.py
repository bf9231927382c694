"""Variable-length batches, and the sorted packed layout that runs them without padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.cached import cached_property
from onernn.ir.errors import ShapeError
from onernn.ir.records import dataclass

Side = Literal["right", "left"]


def _checked_offsets(offsets: npt.ArrayLike, count: int, of: str, level: str) -> Int64:
    found = np.asarray(offsets)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise ShapeError(
            f"{level}: expected a list of at least one integer offset,"
            f" got {found.dtype} {found.shape}"
        )
    found = found.astype(np.int64)
    if found[0] != 0:
        raise ShapeError(f"{level}: must start at 0, starts at {found[0]}")
    falls = np.flatnonzero(np.diff(found) < 0)
    if falls.size:
        at = falls[0]
        raise ShapeError(
            f"{level}: must not decrease, position {at + 1} goes"
            f" from {found[at]} to {found[at + 1]}"
        )
    if found[-1] != count:
        raise ShapeError(f"{level}: ends at {found[-1]}, but there are {count} {of}")
    return frozen(found)


@dataclass(frozen=True, eq=False)
class Ragged:
    """N sentences of W words in all: ``data`` (W, ...), ``offsets`` (N+1,), int64.

    Sentence n is ``data[offsets[n]:offsets[n+1]]``; length zero is legal. ``outer`` holds the
    upper LoD levels, outermost first; the last entry of each counts the elements one level below.
    Data is taken as it is (no copy). Raises `ShapeError` with the offending numbers.
    """

    data: Array
    offsets: Int64
    outer: tuple[Int64, ...] = ()

    def __post_init__(self) -> None:
        data = np.asarray(self.data)
        if data.ndim == 0:
            raise ShapeError("data: expected at least one axis (steps), got a scalar")
        offsets = _checked_offsets(self.offsets, len(data), "steps", "offsets")
        below, outer = len(offsets) - 1, []
        for depth, level in reversed(list(enumerate(self.outer))):
            outer.append(_checked_offsets(level, below, "elements below", f"outer level {depth}"))
            below = len(outer[-1]) - 1
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "outer", tuple(reversed(outer)))

    def __reduce__(self) -> Any:
        return Ragged, (self.data, self.offsets, self.outer)

    @classmethod
    def from_lod(cls, data: Array, lod: Sequence[npt.ArrayLike]) -> Ragged:
        """From LoD offsets of any depth; the last level is the one that RNNs run over."""
        if not len(lod):
            raise ShapeError("lod: expected at least one level of offsets, got none")
        *outer, last = (np.asarray(level) for level in lod)
        return cls(data, last, tuple(outer))

    @classmethod
    def from_lengths(cls, data: Array, lengths: npt.ArrayLike) -> Ragged:
        """From the words of all sentences (W, ...) and the length of each (N,)."""
        return cls(data, _offsets(_checked_lengths(lengths, None)))

    @classmethod
    def from_list(cls, sentences: Sequence[Array]) -> Ragged:
        """From one array (T_n, ...) a sentence; at least one, for its dtype and channels."""
        if not len(sentences):
            raise ShapeError("sequences: expected at least one array, got an empty list")
        arrays = [np.asarray(s) for s in sentences]
        for n, array in enumerate(arrays):
            if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
                raise ShapeError(
                    f"sequence {n}: expected (T, {str(arrays[0].shape[1:])[1:]}, got {array.shape}"
                )
        return cls(np.concatenate(arrays), _offsets(np.array([len(a) for a in arrays])))

    @classmethod
    def from_mask(cls, padded: Array, mask: npt.ArrayLike) -> Ragged:
        """From padded (N, T, ...) and a mask (N, T) with one run of ones a sentence."""
        kept = np.asarray(mask).astype(bool)
        if kept.shape != padded.shape[:2] or kept.ndim != 2:
            raise ShapeError(f"mask: expected (N, T) = {padded.shape[:2]}, got {kept.shape}")
        edges = np.count_nonzero(np.diff(kept, axis=1, prepend=False), axis=1)
        if (edges > 2).any():
            n = int(np.flatnonzero(edges > 2)[0])
            raise ShapeError(f"mask: sequence {n} has holes, expected one run of ones")
        return cls(padded[kept], _offsets(kept.sum(1)))

    @classmethod
    def from_padded(
        cls,
        padded: Array,
        lengths: npt.ArrayLike,
        *,
        time_major: bool = False,
        side: Side = "right",
    ) -> Ragged:
        """From (N, T, ...), or (T, N, ...) where ``time_major``, padded on ``side``."""
        padded = np.asarray(padded)
        if padded.ndim < 2:
            raise ShapeError(f"padded: expected at least batch and time axes, got {padded.shape}")
        batch_major = np.swapaxes(padded, 0, 1) if time_major else padded
        n, t = batch_major.shape[:2]
        counts = _checked_lengths(lengths, n, t)
        return cls(batch_major[_valid(counts, t, side)], _offsets(counts))

    @property
    def lod(self) -> list[list[int]]:
        """All levels of offsets, outermost first, as Paddle's ``lod()`` gives them."""
        return [level.tolist() for level in (*self.outer, self.offsets)]

    @property
    def lengths(self) -> Int64:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        """The number of sentences, N."""
        return len(self.offsets) - 1

    def with_data(self, data: Array) -> Ragged:
        """Other words under the same offsets, which are not checked again."""
        data = np.asarray(data)
        if data.shape[:1] != self.data.shape[:1]:
            return Ragged(data, self.offsets, self.outer)  # says what is wrong
        same = object.__new__(Ragged)
        for name, value in (("data", data), ("offsets", self.offsets), ("outer", self.outer)):
            object.__setattr__(same, name, value)
        return same

    def to_list(self) -> list[Array]:
        """One view (T_n, ...) a sentence."""
        return np.split(self.data, self.offsets[1:-1]) if len(self) else []

    def to_padded(
        self, *, time: int | None = None, time_major: bool = False, side: Side = "right"
    ) -> Array:
        """(N, T, ...), or (T, N, ...) where ``time_major``; zeros on ``side``.

        T is the longest sentence, or ``time``; `ShapeError` where that is shorter.
        """
        longest = int(self.lengths.max(initial=0))
        t = longest if time is None else time
        if t < longest:
            raise ShapeError(f"time: expected at least the longest sequence, {longest}, got {t}")
        out = np.zeros((len(self), t, *self.data.shape[1:]), self.data.dtype)
        out[_valid(self.lengths, t, side)] = self.data
        return np.ascontiguousarray(np.swapaxes(out, 0, 1)) if time_major else out

    @property
    def packing(self) -> Packing:
        """The index of the sorted packed layout; kept for the batch shapes seen last."""
        return _packing(self.offsets.tobytes())

    def __repr__(self) -> str:
        return f"Ragged({self.data.dtype} {self.data.shape}, {len(self)} sequences)"


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _checked_lengths(lengths: npt.ArrayLike, count: int | None, limit: int | None = None) -> Int64:
    found = np.asarray(lengths)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ShapeError(f"lengths: expected integers (N,), got {found.dtype} {found.shape}")
    if count is not None and len(found) != count:
        raise ShapeError(f"lengths: expected {count}, one a sequence, got {len(found)}")
    bad = (found < 0) | (False if limit is None else found > limit)
    if bad.any():
        n = int(np.flatnonzero(bad)[0])
        raise ShapeError(
            f"lengths: sequence {n} has {found[n]}, expected 0 to {'W' if limit is None else limit}"
        )
    return found.astype(np.int64)


def _valid(lengths: Int64, time: int, side: Side) -> npt.NDArray[np.bool_]:
    """(N, T) true where a word stands."""
    if side not in ("right", "left"):
        raise ValueError(f"side: expected 'right' or 'left', got {side!r}")
    from_start = np.arange(time) < lengths[:, None]
    return from_start if side == "right" else from_start[:, ::-1]


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
        lengths = np.diff(offsets)
        order = np.argsort(-lengths, kind="stable")
        return cls._sorted(order, lengths[order], offsets[order])

    @classmethod
    def _sorted(cls, order: Int64, lengths: Int64, starts: Int64) -> Packing:
        steps = np.arange(lengths[0] if len(lengths) else 0)
        batch_sizes = np.searchsorted(-lengths, -steps, side="left")
        time = np.repeat(steps, batch_sizes)
        sentence = np.arange(len(time)) - np.repeat(_offsets(batch_sizes)[:-1], batch_sizes)
        return cls(*map(frozen, (lengths, order, batch_sizes, starts[sentence] + time)))

    def parts(self, count: int) -> tuple[Packing, ...]:
        """The batch dealt out sentence by sentence into batches of nearly equal work.

        ``rows`` and ``order`` of each still speak of the whole batch.
        """
        if count not in self._parts:
            starts = np.zeros_like(self.order)
            starts[: len(self.last)] = self.rows[: len(self.last)]
            self._parts[count] = tuple(
                self._sorted(self.order[p::count], self.lengths[p::count], starts[p::count])
                for p in range(count)
            )
        return self._parts[count]

    @cached_property
    def _parts(self) -> dict[int, tuple[Packing, ...]]:
        return {}

    @classmethod
    def rectangle(cls, time: int, batch: int) -> Packing:
        """For N sentences of T words each: packed rows are those of (T, N, ...)."""
        return _packing((np.arange(batch + 1, dtype=np.int64) * time).tobytes())

    @cached_property
    def step_offsets(self) -> Int64:
        """(T+1,): the packed row at which each step starts."""
        return frozen(_offsets(self.batch_sizes))

    @cached_property
    def words(self) -> Int64:
        """(W,): the packed row of each word, the inverse of ``rows``."""
        return frozen(_inverse(self.rows))

    @cached_property
    def unsort(self) -> Int64:
        """(N,): where each of the caller's sentences went, the inverse of ``order``."""
        return frozen(_inverse(self.order))

    @cached_property
    def flip(self) -> Int64:
        """(W,): each packed row's counterpart when every sentence is read backwards."""
        time = np.repeat(np.arange(len(self.batch_sizes)), self.batch_sizes)
        sentence = np.arange(len(time)) - self.step_offsets[time]
        return frozen(self.step_offsets[self.lengths[sentence] - 1 - time] + sentence)

    @cached_property
    def last(self) -> Int64:
        """The packed row of the last word of each sorted sentence that has one."""
        running = self.lengths[self.lengths > 0]
        return frozen(self.step_offsets[running - 1] + np.arange(len(running)))

    def pack(self, words: Array) -> Array:
        """(W, ...) in the caller's order -> sorted packed."""
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
    return Packing.of(np.frombuffer(offsets, np.int64))


Batch = Ragged | Array
"""What a graph takes and gives."""


def data_of(value: Any) -> Array:
    """The array inside: a ragged batch's words, or the array itself."""
    return value.data if isinstance(value, Ragged) else np.asarray(value)
