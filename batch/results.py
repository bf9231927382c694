"""A model's outputs as columns of a table, one entry a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.errors import BudgetError, UnsupportedError
from onernn.core.graph import Graph, Value
from onernn.core.ragged import Batch, Ragged, data_of
from onernn.core.sizes import Size
from onernn.core.types import counts_of

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_VALUES = 2**31 - 1  # of one array of lists


def batch_size(value: Value, axis: int) -> Size | None:
    """What the number of rows is called in types, where an input takes them on this axis."""
    if value.lod_depth:
        return counts_of(value.type)[0]
    shape = value.type.shape
    return shape[axis] if shape is not None and axis < len(shape) else None


class Result:
    """How one output becomes a column: a ragged one lists, a dense one values or lists.

    Axes of known size become lists of fixed size, and where that is 1 they are left out. ``rows``:
    what their number is called in the graph's types; where these leave it open, ``axis`` has them.
    """

    def __init__(self, graph: Graph, value: Value, rows: set[Size], axis: int) -> None:
        self.name = value.name
        known = graph.types[value.name]
        sizes = known.counts if known.shape is not None else value.shape
        self._dtype = known.dtype or value.dtype
        self._ragged = known.depth or value.lod_depth
        axes = [at for at, size in enumerate(known.shape or ()) if size in rows]
        self._axis = 0 if self._ragged else axes[0] if len(axes) == 1 else axis
        self._sizes = None if sizes is None else list(sizes)
        if self._sizes and self._axis < len(self._sizes):
            del self._sizes[self._axis]

    def by_rows(self, batch: Batch, rows: int) -> Batch:
        """The batch with rows on its first axis. Raises `UnsupportedError` where it has others."""
        if isinstance(batch, Ragged):
            found = len(batch.outer[0]) - 1 if batch.outer else len(batch)
            if found == rows:
                return batch
        else:
            array = np.asarray(batch)
            if array.ndim > self._axis and array.shape[self._axis] == rows:
                return np.moveaxis(array, self._axis, 0)
            found = array.shape  # type: ignore[assignment]
        raise UnsupportedError(
            f"output {self.name!r} is not one entry a row: it has {found} for {rows} rows; leave it"
            " out (outputs=, --output), or tell on which axis the inputs have their rows"
            " (batch_axis=, --batch-axis)"
        )

    def array(self, batches: Sequence[Batch], places: Int64, rows: int) -> pa.Array:
        """The column: entry i of all batches together belongs to row ``places[i]``."""
        import pyarrow as pa

        if sum(data_of(each).size for each in batches) > _MOST_VALUES:
            raise BudgetError(
                f"output {self.name!r} has more than {_MOST_VALUES:,} values for {rows} rows; give"
                " fewer rows at once (window=, --window)"
            )
        if not batches:
            return pa.nulls(rows, self._empty())
        made = pa.concat_arrays([lists(each, self._sizes) for each in batches])
        source = np.full(rows, -1)
        source[places] = np.arange(len(places))
        return made.take(pa.array(source, mask=source < 0))

    def _empty(self) -> pa.DataType:
        """The column's type as far as it is known before anything ran."""
        import pyarrow as pa

        if self._dtype is None or self._sizes is None:
            return pa.null()
        out = pa.from_numpy_dtype(np.dtype(self._dtype))
        for size in reversed(self._sizes):
            out = out if size == 1 else pa.list_(out, -1 if size is None else size)
        for _ in range(self._ragged):
            out = pa.list_(out)
        return out


def lists(batch: Batch, sizes: Sequence[int | None] | None) -> pa.Array:
    """An entry a row. ``sizes``: those of the further axes, where they are known."""
    import pyarrow as pa

    data = data_of(batch)
    values = pa.array(np.ascontiguousarray(data).reshape(-1))
    for at in range(data.ndim - 1, 0, -1):
        size = data.shape[at]
        if sizes is None or sizes[at - 1] is None:
            offsets = np.arange(int(np.prod(data.shape[:at])) + 1, dtype=np.int32) * size
            values = pa.ListArray.from_arrays(pa.array(offsets), values)
        elif size != 1:
            values = pa.FixedSizeListArray.from_arrays(values, size)
    if isinstance(batch, Ragged):
        for level in (batch.offsets, *reversed(batch.outer)):
            values = pa.ListArray.from_arrays(pa.array(level.astype(np.int32)), values)
    return values


def row_of(batch: Batch, at: int) -> Array:
    """The values of one row."""
    if not isinstance(batch, Ragged):
        return np.asarray(batch)[at]
    first, last = at, at + 1
    for level in (*batch.outer, batch.offsets):
        first, last = int(level[first]), int(level[last])
    return batch.data[first:last]


def differ(one: Array, other: Array) -> bool:
    """Whether values are others, and not the same ones rounded otherwise."""
    if one.shape != other.shape or not one.size:
        return one.shape != other.shape
    if one.dtype.kind != "f":
        return bool(np.mean(one != other) > 0.5)
    apart: Any = np.abs(np.nan_to_num(one) - np.nan_to_num(other)).max()
    return bool(apart > 0.05 * max(np.abs(np.nan_to_num(one)).max(), 1e-3))
