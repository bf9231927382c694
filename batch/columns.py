"""A column of a table as a model's input: ragged or dense batches of any of its rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onernn.core.arrays import Array, Int64
from onernn.core.errors import ShapeError
from onernn.core.graph import Value
from onernn.core.ragged import Batch, Ragged
from onernn.core.records import dataclass

if TYPE_CHECKING:
    import pyarrow as pa


class Column:
    """What one input takes from the rows of a table.

    ``bad``: why a row cannot be an input, by its number. ``words``: how much work each row is.
    ``shapes`` (N, K): rows of one batch have the same one; the sequences of a ragged input differ.
    ``axis``: the batch axis of a dense input. Raises `ShapeError` where no row fits.
    """

    def __init__(self, value: Value, name: str, column: Any, axis: int = 0) -> None:
        self._value, self._axis, self._ragged = value, axis, value.lod_depth
        self.bad: dict[int, str] = {}
        self._sizes = None if value.shape is None else list(value.shape)
        if self._sizes:
            del self._sizes[0 if self._ragged else axis]
        scalar = not self._ragged and self._sizes is not None and set(self._sizes) <= {1}
        array = _parsed(column, self.bad, scalar, self._ragged + len(self._sizes or ()))
        self._nested = nested = _Nested.of(array, self.bad)
        features = self._features(nested.depth)
        if nested.depth != self._ragged + len(features):
            kind = "ragged" if self._ragged else "dense"
            raise ShapeError(
                f"column {name!r} is {array.type}; the {kind} input {value} takes numbers in"
                f" {self._ragged + len(features)} levels of lists"
            )
        self._leaf = self._cast(f"column {name!r} is {array.type}; the input is {value}")
        self.shapes = self._uniform(features)
        self.words = self._work(features)

    def _features(self, levels: int) -> list[int | None]:
        """The axes that a row's lists have besides the ragged ones."""
        if self._sizes is None:
            return [None] * (levels - self._ragged)
        # (W, 1), (N, 1): a word or row is one number.
        return [] if levels == self._ragged and set(self._sizes) == {1} else self._sizes

    def _cast(self, misfit: str) -> Array:
        leaf = self._nested.leaf
        dtype = np.dtype(self._value.dtype) if self._value.dtype else leaf.dtype
        if leaf.dtype.kind not in "biuf" or leaf.size and leaf.dtype != dtype == np.bool_:
            raise ShapeError(misfit)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = leaf.astype(dtype)
            if leaf.dtype != dtype:
                lost = cast != leaf if dtype.kind in "iu" else np.isinf(cast) & np.isfinite(leaf)
                self._reject(lost, leaf, f"{{}} is no {dtype}")
        if leaf.dtype.kind == "f":
            self._reject(np.isnan(leaf), leaf, "NaN is no number")
        return cast

    def _reject(self, wrong: npt.NDArray[np.bool_], leaf: Array, why: str) -> None:
        for at in np.flatnonzero(wrong):
            self.bad.setdefault(int(self._nested.row_of_leaf[at]), why.format(leaf[at]))

    def _uniform(self, features: Sequence[int | None]) -> Int64:
        """The sizes (N, K) of each row's lists below its sequence; rows with several are bad."""
        rows = self._nested.rows
        out = np.zeros((rows, len(features)), np.int64)
        for at, declared in enumerate(features):
            level = self._nested.levels[self._ragged + at]
            least = np.full(rows, np.iinfo(np.int64).max)
            most = np.full(rows, -1)
            np.minimum.at(least, level.row_of, level.lengths)
            np.maximum.at(most, level.row_of, level.lengths)
            empty = most < 0  # a row without words says nothing of their size
            usual = declared if declared is not None else int(most.max(initial=0))
            out[:, at] = np.where(empty, usual, most)
            for row in np.flatnonzero(~empty & (least != most)):
                self.bad.setdefault(int(row), f"lists of {least[row]} and {most[row]} values")
            if declared is not None:
                for row in np.flatnonzero(~empty & (most != declared)):
                    self.bad.setdefault(
                        int(row), f"expected lists of {declared} values, got {most[row]}"
                    )
        return out

    def _work(self, features: Sequence[int | None]) -> Int64:
        """The words of each row: its values, without the axis that is one word's features."""
        if self._ragged:
            return self._nested.levels[self._ragged - 1].total
        axes = len(features)
        if axes and self._leaf.dtype.kind == "f" and (axes > 1 or features[-1] is not None):
            axes -= 1
        return np.maximum(self.shapes[:, :axes].prod(axis=1), 1)

    def batch(self, rows: Int64) -> Batch:
        """The rows, in this order; they have the same shape and none is bad."""
        data = self._leaf[_ranges(self._nested.leaf_starts[rows], self._nested.leaf_counts[rows])]
        shape = tuple(self.shapes[rows[0]]) if len(rows) else tuple(self.shapes[:1].reshape(-1))
        if not self._ragged:
            dense = data.reshape(len(rows), *shape)
            declared = self._value.shape
            if declared is not None and len(declared) == dense.ndim + 1:
                dense = dense[..., None]  # (N, 1): a row is one number
            return np.ascontiguousarray(np.moveaxis(dense, 0, min(self._axis, dense.ndim - 1)))
        lods = []
        for level in self._nested.levels[: self._ragged]:
            lengths = level.lengths[_ranges(level.starts[rows], level.counts[rows])]
            lods.append(np.concatenate([[0], np.cumsum(lengths)]))
        words = int(lods[-1][-1])
        data = data.reshape(words, *shape)
        declared = self._value.shape
        if declared is not None and len(declared) > data.ndim:
            data = data.reshape(words, *[1] * (len(declared) - 1))
        return Ragged.from_lod(data, lods)


@dataclass(frozen=True, eq=False)
class _Level:
    """One level of lists: how long each one is, and in which row it stands."""

    lengths: Int64
    row_of: Int64
    starts: Int64  # (N,): the first list of each row
    counts: Int64  # (N,): the lists of each row

    @property
    def total(self) -> Int64:
        """What the lists of each row hold together."""
        out = np.zeros(len(self.starts), np.int64)
        np.add.at(out, self.row_of, self.lengths)
        return out


@dataclass(frozen=True, eq=False)
class _Nested:
    """Lists in lists, flat: the levels from the outermost, then the values."""

    rows: int
    levels: list[_Level]
    leaf: Array
    row_of_leaf: Int64
    leaf_starts: Int64
    leaf_counts: Int64

    @property
    def depth(self) -> int:
        return len(self.levels)

    @classmethod
    def of(cls, array: pa.Array, bad: dict[int, str]) -> _Nested:
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds = pa.types
        lists = [kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list]
        lists += [kinds.is_list_view, kinds.is_large_list_view]
        rows = len(array)
        row_of = np.arange(rows)
        levels = []
        while any(is_kind(array.type) for is_kind in lists):
            for row in row_of[_nulls(array)]:
                bad.setdefault(int(row), "null")
            lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
            lengths = lengths.astype(np.int64)
            levels.append(_Level(lengths, row_of, *_runs(row_of, rows)))
            row_of = np.repeat(row_of, lengths)
            array = array.flatten()
        for row in row_of[_nulls(array)]:
            bad.setdefault(int(row), "null")
        if pa.types.is_null(array.type):
            leaf: Array = np.zeros(len(array), np.uint8)  # any number can hold it
        elif pa.types.is_nested(array.type):
            leaf = np.empty(len(array), object)  # no numbers
        elif pa.types.is_boolean(array.type):
            leaf = array.fill_null(False).to_numpy(zero_copy_only=False)
        else:
            if array.null_count:
                array = array.fill_null(pa.scalar(0).cast(array.type))
            leaf = array.to_numpy(zero_copy_only=False)
        return cls(rows, levels, leaf, row_of, *_runs(row_of, rows))


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), bool)
    return array.is_null().to_numpy(zero_copy_only=False)


def _runs(row_of: Int64, rows: int) -> tuple[Int64, Int64]:
    counts = np.bincount(row_of, minlength=rows).astype(np.int64)
    return np.cumsum(counts) - counts, counts


def _ranges(starts: Int64, counts: Int64) -> Int64:
    """The numbers of all ranges, one behind the other."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


def _parsed(column: Any, bad: dict[int, str], scalar: bool, depth: int) -> pa.Array:
    """One array of numbers, or of lists of them; text, as CSV has it, is read.

    ``depth``: the lists that a column without values has, whose type nobody knows.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no chunk, in older releases
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        kind = pa.uint8()
        for _ in range(depth):
            kind = pa.list_(kind)
        return pa.nulls(len(array), kind)
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if array.type not in texts:
        return array
    found: list[Any] = []
    for row, text in enumerate(array.to_pylist()):
        value: Any = None
        try:
            value = None if text is None else _read(text)
            if scalar and value is not None:
                (value,) = value
        except (TypeError, ValueError):
            bad[row] = f"expected numbers, got {text[:40]!r}"
        found.append(value)
    return array_of(found, bad)


def _read(text: str) -> Any:
    """What stands in a cell: ``[1, 2]`` or ``1 2``."""
    return json.loads(text) if text.lstrip().startswith("[") else list(map(_number, text.split()))


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def array_of(values: list[Any], bad: dict[int, str], kind: pa.DataType | None = None) -> pa.Array:
    """An array of Python's values; what does not fit ``kind``, or most of them, is bad and null."""
    import pyarrow as pa

    misfits = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        return pa.array(values, kind)
    except misfits:
        pass
    if kind is None:
        counted: Counter[pa.DataType] = Counter()
        for each in values:
            with suppress(*misfits):
                counted[pa.array([each]).type] += 1
        known = pa.schema([])
        for found, _ in counted.most_common():
            with suppress(*misfits):
                both = [known, pa.schema([("", found)])]
                known = pa.unify_schemas(both, promote_options="permissive")
        kind = known.types[0] if known.types else pa.null()
    out: list[Any] = []
    for row, each in enumerate(values):
        try:
            out += pa.array([each], kind).to_pylist()
        except misfits:
            out.append(None)
            bad.setdefault(row, f"expected {kind}, got {str(each)[:40]!r}")
    return pa.array(out, kind)
