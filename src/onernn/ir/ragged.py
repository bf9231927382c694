"""Batches of sequences with different lengths, and conversion of callers' arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.errors import MISFITS, ShapeError
from onernn.ir.records import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

Side = Literal["right", "left"]


def _check_offsets(offsets: npt.ArrayLike, count: int, of: str, level: str) -> Int64:
    result = as_array(offsets, level)
    if result.ndim != 1 or result.size == 0 or result.dtype.kind not in "iu":
        raise ShapeError(
            f"{level}: expected a list of at least one integer offset,"
            f" got {result.dtype} {result.shape}"
        )
    problem = ""
    if result[0] != 0:
        problem = f"must start at 0, got {result[0]}"
    elif (where := falls(result)).size:
        at = where[0]
        problem = f"must not decrease, position {at + 1} goes from {result[at]} to {result[at + 1]}"
    elif result[-1] != count:
        problem = f"must end at {count}, the number of {of}, got {result[-1]}"
    if problem:
        are_lengths = result.min() >= 0 and int(result.sum(dtype=object)) == count
        hint = ""
        if are_lengths:
            hint = f"{offsets_of(result).tolist()!s:.60} (Ragged.from_lengths converts lengths)"
            hint = f"; {result.tolist()!s:.60} are lengths: write the offsets {hint}"
        raise ShapeError(f"{level}: {problem}{hint}")
    return frozen(result.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Ragged:
    """N sequences of W steps in total: ``data`` (W, ...), ``offsets`` (N+1,), int64.

    Sequence n is ``data[offsets[n]:offsets[n+1]]``; length zero is valid. ``outer`` holds the upper
    LoD levels, outermost first; the last offset of a level is the number of sequences in the next
    level. Data is not copied. Raises `ShapeError` with the wrong numbers unless offsets start at 0,
    never decrease and end at W. Also raises it if an element is masked (numpy.ma).

    >>> batch = onernn.Ragged.from_list([np.zeros((3, 8)), np.zeros((1, 8))])
    >>> batch.data.shape, batch.offsets.tolist(), batch.to_padded().shape
    ((4, 8), [0, 3, 4], (2, 3, 8))
    """

    data: Array
    offsets: Int64
    outer: tuple[Int64, ...] = ()

    def __post_init__(self) -> None:
        data = _rows(self.data, "data")
        offsets = _check_offsets(self.offsets, len(data), "steps", "offsets")
        below, outer = len(offsets) - 1, []
        for depth, level in reversed(list(enumerate(self.outer))):
            outer.append(_check_offsets(level, below, "elements below", f"outer level {depth}"))
            below = len(outer[-1]) - 1
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "outer", tuple(reversed(outer)))

    def __reduce__(self) -> Any:
        return Ragged, (self.data, self.offsets, self.outer)

    @classmethod
    def from_lod(cls, data: Array, lod: Sequence[npt.ArrayLike]) -> Ragged:
        """Makes a batch from LoD offsets of any depth; RNNs run over the last level.

        Raises `ShapeError` naming the level whose offsets do not fit.

        >>> onernn.Ragged.from_lod(np.zeros((4, 8)), [[0, 2], [0, 3, 4]]).lod
        [[0, 2], [0, 3, 4]]
        """
        if not len(lod):
            raise ShapeError("lod: expected at least one level of offsets, got none")
        *outer, last = lod
        return cls(data, cast(Int64, last), cast(tuple[Int64, ...], tuple(outer)))

    @classmethod
    def from_lengths(cls, data: Array, lengths: npt.ArrayLike) -> Ragged:
        """Makes a batch from the steps of all sequences (W, ...) and their lengths (N,), integers.

        Raises `ShapeError` if the lengths do not add up to W.

        >>> onernn.Ragged.from_lengths(np.zeros((4, 8)), [3, 1]).offsets.tolist()
        [0, 3, 4]
        """
        data = _rows(data, "data")
        return cls(data, offsets_of(_check_lengths(lengths, None, len(data))))

    @classmethod
    def from_list(cls, sentences: Sequence[Array]) -> Ragged:
        """Makes a batch from a list of arrays (T_n, ...), one for each sequence; the list must not
        be empty.

        Raises `ShapeError` naming a sequence whose other axes differ from the first sequence's.

        >>> onernn.Ragged.from_list([np.zeros((3, 8)), np.zeros((1, 8))]).lengths.tolist()
        [3, 1]
        """
        if not len(sentences):
            raise ShapeError("sequences: expected at least one array, got an empty list")
        arrays = [_rows(s, f"sequence {n}") for n, s in enumerate(sentences)]
        for n, array in enumerate(arrays):
            if array.shape[1:] != arrays[0].shape[1:]:
                raise ShapeError(
                    f"sequence {n}: expected (T, {str(arrays[0].shape[1:])[1:]}, got {array.shape}"
                )
        return cls(np.concatenate(arrays), offsets_of(np.array([len(a) for a in arrays])))

    @classmethod
    def from_mask(cls, padded: Array, mask: npt.ArrayLike) -> Ragged:
        """Makes a batch from padded (N, T, ...) and a mask (N, T), which is 1 for valid steps.
        Raises `ShapeError` for a mask of another shape, or if a sequence's valid steps are not
        consecutive.

        >>> onernn.Ragged.from_mask(np.zeros((2, 3, 8)), [[1, 1, 1], [0, 1, 0]]).lengths.tolist()
        [3, 1]
        """
        padded, kept = as_array(padded, "padded"), as_array(mask, "mask").astype(bool)
        if kept.shape != padded.shape[:2] or kept.ndim != 2:
            raise ShapeError(f"mask: expected (N, T) = {padded.shape[:2]}, got {kept.shape}")
        edges = np.count_nonzero(np.diff(kept, axis=1, prepend=False), axis=1)
        if (edges > 2).any():
            n = int(np.flatnonzero(edges > 2)[0])
            raise ShapeError(f"mask: sequence {n} has holes, expected one run of ones")
        return cls(padded[kept], offsets_of(kept.sum(1)))

    @classmethod
    def from_padded(
        cls,
        padded: Array,
        lengths: npt.ArrayLike,
        *,
        time_major: bool = False,
        side: Side = "right",
    ) -> Ragged:
        """Makes a batch from (N, T, ...), or (T, N, ...) if ``time_major``, padded on ``side``.

        ``lengths``: integers (N,), each at most T. Raises `ShapeError` if they do not fit, and
        `ValueError` for a side other than "right" and "left".

        >>> onernn.Ragged.from_padded(np.zeros((2, 3, 8)), [3, 1]).data.shape
        (4, 8)
        """
        padded = as_array(padded, "padded")
        if padded.ndim < 2:
            raise ShapeError(f"padded: expected at least batch and time axes, got {padded.shape}")
        batch_major = np.swapaxes(padded, 0, 1) if time_major else padded
        n, t = batch_major.shape[:2]
        counts = _check_lengths(lengths, n, t)
        return cls(batch_major[_valid(counts, t, side)], offsets_of(counts))

    @property
    def lod(self) -> list[list[int]]:
        """All levels of offsets, outermost first, in the form of Paddle's ``lod()``."""
        return [level.tolist() for level in (*self.outer, self.offsets)]

    @property
    def lengths(self) -> Int64:
        """The number of steps of each sequence: (N,), int64."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        """Returns the number of sequences, N."""
        return len(self.offsets) - 1

    def with_data(self, data: Array) -> Ragged:
        """Returns a batch of ``data`` with the same offsets, which are not checked again."""
        data = as_array(data, "data")
        if data.shape[:1] != self.data.shape[:1]:
            return Ragged(data, self.offsets, self.outer)  # lets the constructor raise its error
        same = object.__new__(Ragged)
        for name, value in (("data", data), ("offsets", self.offsets), ("outer", self.outer)):
            object.__setattr__(same, name, value)
        return same

    def to_list(self) -> list[Array]:
        """Returns one view (T_n, ...) per sequence."""
        return np.split(self.data, self.offsets[1:-1]) if len(self) else []

    def to_padded(
        self, *, time: int | None = None, time_major: bool = False, side: Side = "right"
    ) -> Array:
        """Returns (N, T, ...), or (T, N, ...) if ``time_major``, with zeros on ``side``.

        T is the length of the longest sequence, or ``time``; raises `ShapeError` if ``time`` is
        shorter.
        """
        longest = int(self.lengths.max(initial=0))
        t = longest if time is None else time
        if t < longest:
            raise ShapeError(f"time: expected at least the longest sequence, {longest}, got {t}")
        out = np.zeros((len(self), t, *self.data.shape[1:]), self.data.dtype)
        out[_valid(self.lengths, t, side)] = self.data
        return np.ascontiguousarray(np.swapaxes(out, 0, 1)) if time_major else out

    def __repr__(self) -> str:
        return f"Ragged({self.data.dtype} {self.data.shape}, {len(self)} sequences)"


def falls(offsets: Array) -> Array:
    """Returns the index of each offset that is larger than the next offset.

    Compares the offsets instead of their differences, which could overflow.
    """
    return np.flatnonzero(offsets[1:] < offsets[:-1])


def offsets_of(lengths: Int64) -> Int64:
    """Returns the N+1 offsets of sequences with these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _rows(data: Any, what: str) -> Array:
    array = as_array(data, what)
    if array.ndim == 0:
        raise ShapeError(f"{what}: expected at least one axis (steps), got a scalar")
    return array


def _check_lengths(lengths: npt.ArrayLike, count: int | None, most: int) -> Int64:
    result = as_array(lengths, "lengths")
    if result.ndim != 1 or (result.size and result.dtype.kind not in "iu"):
        raise ShapeError(f"lengths: expected integers (N,), got {result.dtype} {result.shape}")
    if count is not None and len(result) != count:
        raise ShapeError(f"lengths: expected {count}, one per sequence, got {len(result)}")
    bad = np.flatnonzero((result < 0) | (result > most))
    if bad.size:
        raise ShapeError(f"lengths: sequence {bad[0]} has {result[bad[0]]}, expected 0 to {most}")
    return result.astype(np.int64)


def _valid(lengths: Int64, time: int, side: Side) -> npt.NDArray[np.bool_]:
    if side not in ("right", "left"):
        raise ValueError(f"side: expected 'right' or 'left', got {side!r}")
    from_start = np.arange(time) < lengths[:, None]
    return from_start if side == "right" else from_start[:, ::-1]


Batch = Ragged | Array
"""A value that a graph takes or returns."""


def depth_of(value: Any) -> int:
    """Returns the number of LoD levels; 0 for arrays."""
    return len(value.outer) + 1 if isinstance(value, Ragged) else 0


def data_of(value: Any) -> Array:
    """Returns the steps of a ragged batch, or the array itself."""
    return value.data if isinstance(value, Ragged) else as_array(value, "value")


def as_array(value: Any, what: str) -> Array:
    """Returns a caller's value as an array; ``what``: its name in messages. Raises `ShapeError` if
    NumPy cannot convert it, and if elements are masked, because a plain array would contain them.
    """
    if type(value) is np.ndarray:
        return value
    parts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, np.ma.MaskedArray) and np.ma.is_masked(each) for each in parts):
        raise ShapeError(f"{what}: expected no masked elements; fill them, such as with .filled(0)")
    try:
        return np.asarray(value)
    except (*MISFITS, RuntimeError) as error:
        raise ShapeError(
            f"{what}: expected an array, got {type(value).__name__}: {error}"
        ) from error


def convert(array: Array, dtype: npt.DTypeLike, what: str) -> Array:
    """Returns the values in a dtype; floats are rounded. Returns the array itself if it already has
    the dtype.

    Raises `ShapeError` if the array's dtype is of another kind, such as integers instead of floats.
    Also raises it if an integer would change, or if a finite float would become infinite.
    """
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    lost = None
    if np.can_cast(array.dtype, wanted, "same_kind"):
        with np.errstate(over="ignore"):
            result = array.astype(wanted)
        lost = result != array if wanted.kind in "iu" else np.isinf(result) & ~np.isinf(array)
        if not lost.any():
            return result
    if array.dtype.kind == "f" and wanted.kind in "iu":
        raise ShapeError(
            f"{what}: got {array.dtype}; floats are not converted to integers;"
            f" pass {wanted}, such as array.astype({wanted.name!r})"
        )
    which = "" if lost is None else f" {array[lost][0]}"
    got = f"got {array.dtype}{which}, which {wanted} cannot hold"
    raise ShapeError(f"{what}: {got}; convert the array first")
