"""ONNX operators that take elements by their places, or put others around them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import along_axis, define
from onernn.core.ragged import Ragged, data_of
from onernn.core.sizes import Size
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.rules import at_axis, integers, same, with_size

_FROM_ZERO = {"non_negative": False}
"""An attribute of our own: ONNX counts negative indices from the end, Paddle and MXNet do not."""


def _check_indices(at: Any, indices: Array, size: int) -> None:
    lowest = 0 if at.non_negative else -size
    if indices.size and (indices.min() < lowest or indices.max() >= size):
        bad = indices[(indices < lowest) | (indices >= size)].flat[0]
        raise ShapeError(f"index {bad} is outside [{lowest}, {size})")


def _gather(at: Any, table: Any, indices: Any) -> Any:
    """Along the words of a ragged table the result is dense, or ragged like the indices."""
    data, chosen = data_of(table), data_of(indices)
    _check_indices(at, chosen, data.shape[at.axis])
    out = np.take(data, chosen, axis=at.axis)
    along_words = at.axis in (0, -data.ndim)
    if isinstance(table, Ragged) and not along_words:
        return table.with_data(out)
    return indices.with_data(out) if isinstance(indices, Ragged) and along_words else out


def _gathered(context: Context, table: Type, indices: Type) -> Type:
    if table.shape is None:
        return Type(table.dtype, None, () if table.lod == () == indices.lod else None)
    axis = at_axis(context.at.axis, len(table.shape))
    lod = table.lod if axis else indices.lod
    if indices.shape is None:
        return Type(table.dtype, None, lod)
    return Type(table.dtype, (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), lod)


define(
    "Gather",
    kind="moves",
    inputs="table indices",
    attributes={"axis": 0, **_FROM_ZERO},
    offsets=True,
    type=_gathered,
    compute=_gather,
    sized=True,
    growth=growth.gather,
)


def _gather_elements(at: Any, x: Array, indices: Array) -> Array:
    size = x.shape[at.axis]
    _check_indices(at, indices, size)
    cut = [slice(0, count) for count in indices.shape]  # indices may be the smaller one elsewhere
    cut[at.axis] = slice(None)
    return np.take_along_axis(x[tuple(cut)], indices % max(size, 1), axis=at.axis)


define(
    "GatherElements",
    kind="moves",
    inputs="x indices",
    attributes={"axis": 0, **_FROM_ZERO},
    mixes=along_axis,
    type=lambda _, x, indices: Type(x.dtype, indices.shape),
    compute=_gather_elements,
)


def _gather_nd(at: Any, table: Array, indices: Array) -> Array:
    batch = at.batch_dims
    outer = indices.shape[:batch]
    if table.shape[:batch] != outer or not 0 <= batch < indices.ndim:
        raise ShapeError(f"batch_dims={batch} of {table.shape} and indices {indices.shape}")
    rows = table.reshape(math.prod(outer), *table.shape[batch:])
    picks = indices.reshape(math.prod(outer), -1, indices.shape[-1])
    for axis in range(indices.shape[-1]):
        _check_indices(at, picks[..., axis], rows.shape[1 + axis])
    first = np.arange(len(rows))[:, None]
    out = rows[(first, *np.moveaxis(picks, -1, 0))]
    return out.reshape((*indices.shape[:-1], *out.shape[2:]))


def _gathered_nd(context: Context, table: Type, indices: Type) -> Type:
    if table.shape is None or indices.shape is None or indices.shape[-1] is None:
        return Type(table.dtype)
    depth = indices.shape[-1].number
    if depth is None:
        return Type(table.dtype)
    inner = table.shape[context.at.batch_dims + depth :]
    return Type(table.dtype, (*indices.shape[:-1], *inner))


define(
    "GatherND",
    kind="moves",
    inputs="table indices",
    attributes={"batch_dims": 0, **_FROM_ZERO},
    drops=True,
    type=_gathered_nd,
    compute=_gather_nd,
    growth=growth.gather_nd,
)


def _pad(
    at: Any, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None
) -> Array:
    """Negative pads cut."""
    chosen = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes.tolist())]
    if len(pads) != 2 * len(chosen):
        raise ShapeError(f"pads {pads.tolist()}: expected two for each of {len(chosen)} axes")
    around = np.zeros((x.ndim, 2), np.int64)
    around[chosen] = pads.reshape(2, -1).T
    if (np.minimum(around, 0).sum(1) + x.shape < 0).any():
        raise ShapeError(f"pads {pads.tolist()} cut more than there is of {x.shape}")
    cut = tuple(
        slice(max(-low, 0), size + min(high, 0))
        for size, (low, high) in zip(x.shape, around.tolist(), strict=True)
    )
    x, around = x[cut], np.maximum(around, 0)
    if at.mode == "constant":
        filled = x.dtype.type(0) if value is None else value.reshape(-1)[0]
        return np.pad(x, around, constant_values=filled)
    if at.mode not in ("reflect", "edge", "wrap"):
        raise ShapeError(f"attribute mode={at.mode!r}")
    return np.pad(x, around, mode=at.mode)


def _padded(
    _: Context, x: Type, pads: Type, value: Type | None = None, axes: Type | None = None
) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    shape: tuple[Size | None, ...] = (None,) * len(x.shape)
    if pads.sizes is not None and (axes is None or axes.numbers is not None):
        chosen = integers(axes) or range(len(x.shape))
        shape = x.shape
        for axis, (low, high) in zip(chosen, pads.sizes.reshape(2, -1).T, strict=True):
            size = shape[at_axis(axis, len(shape))]
            shape = with_size(shape, axis, None if size is None else size + low + high)
    return Type(x.dtype, shape)


define(
    "Pad",
    kind="moves",
    inputs="x pads value? axes?",
    attributes={"mode": "constant"},
    drops=True,
    type=_padded,
    compute=_pad,
    growth=growth.pad,
)


def _reverse_sequence(at: Any, x: Array, lengths: Array) -> Array:
    """The first words of each sentence backwards, those behind its length where they are."""
    time, batch = at.time_axis, at.batch_axis
    if {time, batch} != {0, 1}:
        raise ShapeError(f"expected time and batch as the first axes, got {time} and {batch}")
    batch_major = x.swapaxes(0, 1) if time == 0 else x
    n, t = batch_major.shape[:2]
    if lengths.shape != (n,) or (n and not 0 <= lengths.min() <= lengths.max() <= t):
        raise ShapeError(f"sequence_lens: expected ({n},) of at most {t}, got {lengths.tolist()}")
    steps = np.arange(t)
    inside = steps < lengths[:, None]
    places = np.where(inside, lengths[:, None] - 1 - steps, steps)
    out = batch_major[np.arange(n)[:, None], places]
    return out.swapaxes(0, 1) if time == 0 else out


define(
    "ReverseSequence",
    kind="moves",
    inputs="x lengths",
    attributes={"time_axis": 0, "batch_axis": 1},
    drops=True,
    type=same,
    compute=_reverse_sequence,
)


def _one_hot(at: Any, indices: Any, depth: Array, values: Array) -> Any:
    """values = (off, on); an index outside [-depth, depth) gives a row of off."""
    chosen, count, axis = data_of(indices), int(depth.reshape(-1)[0]), at.axis
    if count < 0:
        raise ShapeError(f"depth {count}")
    chosen = np.where(chosen < 0, chosen + count, chosen)[..., None]
    hot = np.where(chosen == np.arange(count), values[1], values[0])
    last = axis in (-1, hot.ndim - 1)
    out = hot if last else np.moveaxis(hot, -1, axis)
    return indices.with_data(out) if isinstance(indices, Ragged) and last else out


def _one_hot_type(context: Context, indices: Type, depth: Type, values: Type) -> Type:
    if indices.shape is None:
        return Type(values.dtype)
    rank = len(indices.shape) + 1
    at = at_axis(context.at.axis, rank)
    count = None if depth.sizes is None else Size.of(depth.sizes.reshape(-1)[0])
    lod = indices.lod if at == rank - 1 else ()
    return Type(values.dtype, (*indices.shape[:at], count, *indices.shape[at:]), lod)


define(
    "OneHot",
    kind="mixes",
    inputs="indices depth values",
    attributes={"axis": -1},
    offsets=True,
    type=_one_hot_type,
    compute=_one_hot,
    growth=growth.one_hot,
)


def _compressed(context: Context, x: Type, condition: Type) -> Type:
    if context.at.axis is None:
        return Type(x.dtype, (context.fresh("chosen"),))
    if x.shape is None:
        return Type(x.dtype)
    return Type(x.dtype, with_size(x.shape, context.at.axis, context.fresh("chosen")))


define(
    "Compress",
    kind="moves",
    inputs="x condition",
    attributes={"axis": None},
    drops=True,
    type=_compressed,
    compute=lambda at, x, condition: np.compress(condition, x, at.axis),
)


def _non_zero(context: Context, x: Type) -> Type:
    rank = None if x.rank is None else Size.of(x.rank)
    return Type("int64", (rank, context.fresh("chosen")))


define(
    "NonZero",
    kind="moves",
    inputs="x",
    drops=True,
    type=_non_zero,
    compute=lambda _, x: np.array(np.nonzero(x), np.int64),
    growth=growth.non_zero,
)
