"""Conversion of a table's columns to a model's inputs, and of a model's outputs to columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import BudgetError, ShapeError, UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.types import Size, counts_of

_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_MOST_VALUES = 2**31 - 1  # pyarrow's limit for one array of lists


class Column:
    """A column of a table of N rows, converted to the values of one input.

    ``value``: the input. ``name``: the column's name in errors. ``axis``: the batch axis of a dense
    input. ``bad``: why a row cannot be an input, by the row's number. ``words`` (N): the number of
    steps of each row, at least 1. ``filled`` (N): whether a row has steps. ``shapes`` (N, K): the
    sizes of each row that must be equal in all rows of a batch; the lengths of a ragged input's
    sequences are not among them. Raises `ShapeError` if the column's type does not fit the input.
    """

    def __init__(self, value: Value, name: str, column: Any, axis: int = 0) -> None:
        self._value, self._axis, self._depth = value, axis, value.lod_depth
        self.bad: dict[int, str] = {}
        sizes = None if value.shape is None else list(value.shape)
        if sizes:
            del sizes[0 if self._depth else axis]
        array = _whole(column, self._depth + len(sizes or ()))
        self._rows = np.arange(len(array))
        leaf = self._open_lists(array)
        levels = len(self._lods)
        if sizes is None:
            features: list[int | None] = [None] * (levels - self._depth)
        else:  # with the shape (W, 1) or (N, 1), a step or row is a scalar
            features = [] if levels == self._depth and set(sizes) == {1} else sizes
        if levels != self._depth + len(features):
            kind = "ragged" if self._depth else "dense"
            raise ShapeError(
                f"column {name!r}: expected numbers in {self._depth + len(features)} levels of"
                f" lists for the {kind} input {value}, got {array.type}"
            )
        misfit = (
            f"column {name!r}: expected values for input {value}, got {array.type}; cast the column"
        )
        self._leaf = self._cast(leaf, misfit)
        self.shapes = self._uniform(features)
        steps = self._starts[min(max(self._depth, 1), levels)]
        self.filled = np.diff(steps) > 0
        self.words = np.maximum(np.diff(steps), 1)

    def _open_lists(self, array: pa.Array) -> Array:
        """Returns the scalars of all rows in one array, without the lists around them.

        Sets ``_lods``, the offsets of the lists of each level of nesting. Sets ``_starts``, the
        index of each row's first entry in each level.
        """
        self._lods: list[Int64] = []
        self._starts: list[Int64] = [np.arange(len(array) + 1)]
        while True:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary.take(array.indices)  # both may have nulls
            self._reject(_nulls(array), array, "null")
            if not any(getattr(pa.types, f"is_{kind}")(array.type) for kind in _LISTS):
                break
            lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
            self._lods.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
            self._starts.append(self._lods[-1][self._starts[-1]])
            array = array.flatten()
        self._dtype_is_known = not pa.types.is_null(array.type)
        if not self._dtype_is_known:
            return np.zeros(len(array), np.uint8)  # uint8 can be cast to every dtype
        if pa.types.is_nested(array.type):
            return np.empty(len(array), object)  # `_cast` refuses this dtype
        if array.null_count:
            array = array.fill_null(pa.scalar(0).cast(array.type))
        return np.asarray(array.to_numpy(zero_copy_only=False))

    def _row_of(self, level: int) -> Int64:
        """Returns the row's number for each entry of a level of nesting."""
        return np.repeat(self._rows, np.diff(self._starts[level]))

    def _reject(self, wrong: npt.NDArray[np.bool_], values: Any, why: str) -> None:
        """Adds the rows of wrong entries to ``bad``.

        ``wrong``: whether an entry is wrong, for the entries of the innermost level in ``_starts``.
        ``values``: these entries; an entry replaces ``{}`` in ``why``.
        """
        entries = np.flatnonzero(wrong)
        for row, entry in zip(self._row_of(-1)[entries], entries, strict=True):
            self.bad.setdefault(int(row), why.format(values[entry]))

    def _cast(self, leaf: Array, misfit: str) -> Array:
        dtype = np.dtype(self._value.dtype) if self._value.dtype else leaf.dtype
        if leaf.dtype.kind not in "biuf" or leaf.size and leaf.dtype != dtype == np.bool_:
            raise ShapeError(misfit)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = leaf.astype(dtype)
            if leaf.dtype != dtype:
                lost = cast != leaf if dtype.kind in "iu" else np.isinf(cast) & np.isfinite(leaf)
                self._reject(lost, leaf, f"expected {dtype}, got {{}}")
        if leaf.dtype.kind == "f":
            self._reject(np.isnan(leaf), leaf, "expected a number, got NaN")
        return cast

    def _uniform(self, features: Sequence[int | None]) -> Int64:
        """Returns the sizes (N, K) of the lists inside a row's steps, or inside the row if the
        input is dense. Rows with lists of unequal or wrong sizes are added to ``bad``.

        ``features``: the K sizes that the input declares, None for an open size.
        """
        rows = len(self._rows)
        out = np.zeros((rows, len(features)), np.int64)
        for index, declared in enumerate(features):
            level = self._depth + index
            lengths = np.diff(self._lods[level])
            least, most = np.full(rows, np.iinfo(np.int64).max), np.full(rows, -1)
            np.minimum.at(least, self._row_of(level), lengths)
            np.maximum.at(most, self._row_of(level), lengths)
            empty = most < 0  # a row without steps has no lists of this level
            usual = declared if declared is not None else int(most.max(initial=0))
            out[:, index] = np.where(empty, usual, most)
            for row in np.flatnonzero(~empty & (least != most)):
                self.bad.setdefault(
                    int(row), f"expected lists of one length, got {least[row]} and {most[row]}"
                )
            if declared is not None:
                for row in np.flatnonzero(~empty & (most != declared)):
                    reason = f"expected lists of {declared} values, got {most[row]}"
                    self.bad.setdefault(int(row), reason)
        return out

    def batch(self, rows: Int64) -> Batch:
        """Returns a batch of the rows with these numbers, in this order.

        The rows must have equal ``shapes``, and must not be in ``bad``.
        """
        data = self._leaf[self._entries(-1, rows)]
        shape = tuple(self.shapes[rows[0]])
        declared = self._value.shape
        if not self._depth:
            dense = data.reshape(len(rows), *shape)
            if declared is not None and len(declared) == dense.ndim + 1:
                dense = dense[..., None]  # the input's shape is (N, 1)
            return np.ascontiguousarray(np.moveaxis(dense, 0, min(self._axis, dense.ndim - 1)))
        lengths = [
            np.diff(lod)[self._entries(level, rows)]
            for level, lod in enumerate(self._lods[: self._depth])
        ]
        lods = [np.concatenate([[0], np.cumsum(each)]) for each in lengths]
        ones = () if declared is None else [1] * (len(declared) - 1 - len(shape))
        return Ragged.from_lod(data.reshape(lods[-1][-1], *shape, *ones), lods)

    @property
    def value(self) -> Value:
        """The input, with the column's dtype and number of axes if the model leaves them open."""
        shape = self._value.shape
        axes = 1 + self.shapes.shape[1]
        return replace(
            self._value,
            dtype=self._value.dtype or (self._leaf.dtype.name if self._dtype_is_known else None),
            shape=(None,) * axes if shape is None else shape,
        )

    def lengths_differ(self, other: Column) -> npt.NDArray[np.bool_]:
        """Returns for each row whether its sequences differ in length between two ragged inputs."""
        result = np.zeros(len(self._rows), bool)
        for up in range(min(self._depth, other._depth)):
            mine, theirs = (np.diff(each._starts[each._depth - up]) for each in (self, other))
            result |= mine != theirs
            if up:  # there are equally many sequences, but their lengths may differ
                for row in np.flatnonzero(~result).tolist():
                    one, two = (each._parts(row, each._depth - up) for each in (self, other))
                    result[row] = not np.array_equal(one, two)
        return result

    def _parts(self, row: int, level: int) -> Int64:
        """Returns the lengths of a row's lists in a level of nesting."""
        begin, end = self._starts[level][row : row + 2]
        return np.diff(self._lods[level][begin : end + 1])

    def _entries(self, level: int, rows: Int64) -> Int64:
        """Returns the indices of all entries that these rows have in a level of nesting."""
        starts = self._starts[level]
        counts = starts[rows + 1] - starts[rows]
        ends = np.cumsum(counts)
        return np.repeat(starts[rows] - (ends - counts), counts) + np.arange(ends[-1])


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return result


def _whole(column: Any, depth: int) -> pa.Array:
    """Returns a column as one array of scalars or of nested lists.

    A column with only nulls has no type, so it becomes an array of nulls whose type has ``depth``
    levels of lists.
    """
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not pa.types.is_null(array.type):
        return array
    kind = pa.uint8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.nulls(len(array), kind)


def parse_type(text: str | pa.DataType) -> pa.DataType:
    """Returns a column's type from its name, such as "int64" or "list<float>". Files of Parquet
    show the latter as "list<element: float>".

    Raises `UnsupportedError` for an unknown name.
    """
    if not isinstance(text, str):
        return text
    inner = re.fullmatch(r"list<(?:item: |element: )?(.*)>", text.strip())
    try:
        return pa.list_(parse_type(inner[1])) if inner else pa.type_for_alias(text.strip())
    except ValueError:
        example = "expected a type such as int64 or list<float>"
        raise UnsupportedError(f"type {text!r}: {example}") from None


def batch_size(value: Value, axis: int) -> Size | None:
    """Returns the size of an input's axis of rows in the graph's types.

    Returns None if the input is dense and has no such axis.
    """
    if value.lod_depth:
        return counts_of(value.type)[0]
    shape = value.type.shape
    return shape[axis] if shape is not None and axis < len(shape) else None


class OpenTypeError(UnsupportedError):
    """An error if the model leaves the type of an output open, and no scored row shows the type."""


class Result:
    """An output of a model that becomes a column. Each axis after the axis of rows becomes a level
    of lists, unless the axis has the known size 1. Sequences of a ragged output also become lists.

    ``value``: the output. ``rows``: for each input, the size of its axis of rows in the graph's
    types, see `batch_size`. The axis of a dense output that has such a size is its axis of rows. If
    no axis or several axes have such a size, ``axis`` is the axis of rows.
    """

    def __init__(self, graph: Graph, value: Value, rows: set[Size | None], axis: int) -> None:
        self.name = value.name
        known = graph.types[value.name]
        sizes = known.counts if known.shape is not None else value.shape
        self._dtype = known.dtype or value.dtype
        self._seen: pa.DataType | None = None
        self._depth = known.depth or value.lod_depth
        axes = [index for index, size in enumerate(known.shape or ()) if size in rows]
        self._axis = 0 if self._depth else axes[0] if len(axes) == 1 else axis
        self._sizes = None if sizes is None else list(sizes)
        if self._sizes and self._axis < len(self._sizes):
            del self._sizes[self._axis]

    def by_rows(self, batch: Batch, rows: int, axis: int | None = None) -> Batch:
        """Returns an output of a batch, with its axis of rows moved to the front.

        ``rows``: the number of rows of the batch. ``axis``: the axis of rows, if it is known.
        Raises `UnsupportedError` if the output does not have one entry per row.
        """
        axis = self._axis if axis is None else axis
        if isinstance(batch, Ragged):
            count: Any = len((*batch.outer, batch.offsets)[0]) - 1
            if count == rows:
                return batch
        else:
            count = batch.shape
            if batch.ndim > axis and count[axis] == rows:
                return np.moveaxis(batch, axis, 0)
        raise UnsupportedError(
            f"output {self.name!r}: expected one entry per row, got {count} for {rows} rows; leave"
            " it out (outputs=, --output), or pass the inputs' axis of rows (batch_axis=,"
            " --batch-axis)"
        )

    def array(
        self, batches: Sequence[Batch], places: Int64, rows: int, kind: pa.DataType | None
    ) -> pa.Array:
        """Returns the column of this output for a table of ``rows`` rows, with nulls for rows that
        did not run.

        Entry i of the concatenated ``batches`` belongs to row ``places[i]``. ``kind``: the expected
        type of the column, if known. Raises `OpenTypeError` if no row ran and the type is not
        known, and `ShapeError` if the column has a different type than ``kind``.
        """
        if sum(data_of(each).size for each in batches) > _MOST_VALUES:
            raise BudgetError(
                f"output {self.name!r}: expected at most {_MOST_VALUES:,} values for {rows} rows,"
                " got more; score fewer rows at once (window=, --window)"
            )
        if not batches:
            return pa.nulls(rows, kind or self._seen or self._type())
        entries = pa.concat_arrays([self._lists(each) for each in batches])
        if kind is not None and entries.type != kind:
            raise ShapeError(f"output {self.name!r}: expected {kind}, got {entries.type}")
        self._seen = entries.type
        source = np.full(rows, -1)
        source[places] = np.arange(len(places))
        return entries.take(pa.array(source, mask=source < 0))

    def _type(self) -> pa.DataType:
        """Returns the column's type from the graph's types. Raises `OpenTypeError` if they leave it
        open.
        """
        if self._dtype is None or self._sizes is None:
            raise OpenTypeError(
                f"output {self.name!r}: its type is not known before a row was scored; pass it"
                f" (types={{{self.name!r}: TYPE}}, --output-type {self.name}=TYPE), such as"
                " list<float>"
            )
        out = pa.from_numpy_dtype(np.dtype(self._dtype))
        for _ in range(self._depth + sum(size != 1 for size in self._sizes)):
            out = pa.list_(out)
        return out

    def _lists(self, batch: Batch) -> pa.Array:
        """Returns an array with one entry per row: a scalar or nested lists."""
        data = data_of(batch)
        values = pa.array(np.ascontiguousarray(data).reshape(-1))
        levels = [
            np.arange(int(np.prod(data.shape[:axis])) + 1) * data.shape[axis]
            for axis in range(data.ndim - 1, 0, -1)
            if self._sizes is None or self._sizes[axis - 1] != 1
        ]
        if isinstance(batch, Ragged):
            levels += [batch.offsets, *reversed(batch.outer)]
        for level in levels:
            values = pa.ListArray.from_arrays(pa.array(level.astype(np.int32)), values)
        return values
