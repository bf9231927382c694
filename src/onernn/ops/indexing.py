"""ONNX operators that read, replace or pad elements by their positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import Axes, Axis, Path, at_axis, join, op, over, rank_of
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.types import Size, Type
from onernn.ops.growth import results, wide
from onernn.ops.rules import Sizes, integers, same, sizes_rule, with_size
from onernn.ops.windows import Window

# Attribute ``non_negative`` is onernn's own: ONNX counts negative indices from the end, Paddle and
# MXNet do not.


def _check_indices(non_negative: bool, indices: Array, size: int) -> None:
    lowest = 0 if non_negative else -size
    if indices.size and (indices.min() < lowest or indices.max() >= size):
        bad = indices[(indices < lowest) | (indices >= size)].flat[0]
        raise ShapeError(f"index {bad}: expected an index in [{lowest}, {size})")


def _gather(context: Context, table: Type, indices: Type) -> Type:
    if table.shape is None:
        return Type(table.dtype, None, () if table.lod == () == indices.lod else None)
    axis = at_axis(context.attrs.axis, len(table.shape))
    lod = table.lod if axis else indices.lod
    if indices.shape is None:
        return Type(table.dtype, None, lod)
    return Type(table.dtype, (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), lod)


def _batch_gather(m: Any, node: Node) -> None:
    x, indices = node.inputs
    if x in m.mapped:
        if indices in m.mapped:
            raise m.make_error(node, "data and indices differ from row to row: only one may")
        m.add_mapped(node, node.inputs, axis=node.attrs.axis + (node.attrs.axis >= 0))
        return
    axis, rank = node.attrs.axis % m.rank(node, x), m.rank(node, x) + m.rank(node, indices)
    if axis == 0:
        m.add_mapped(node, node.inputs)
        return
    result = m.emit("Gather", *node.inputs, **node.attributes)
    m.end(
        node,
        "Transpose",
        (result,),
        perm=(axis, *(index for index in range(rank) if index != axis)),
    )


def _gather_paths(attrs: Any, table: Type, indices: Type) -> list[Path]:
    axis, more = at_axis(attrs.axis, rank_of(table)), rank_of(indices)
    before, after = range(axis), range(axis + more, rank_of(table) + more - 1)
    return [[*before, None, *after], range(axis, axis + more)]


@op(
    "Gather",
    kind="moves",
    offsets=True,
    type=_gather,
    sized=True,
    paths=_gather_paths,
    batched=_batch_gather,
)
def gather(table: Any, indices: Any, *, axis: Axis = 0, non_negative: bool = False) -> Any:
    """Returns the entries of the table at the indices. If the indices are ragged and the axis is 0,
    the result has their offsets.
    """
    data, chosen = data_of(table), data_of(indices)
    _check_indices(non_negative, chosen, data.shape[axis])
    out = np.take(data, chosen, axis=axis)
    along_words = axis in (0, -data.ndim)
    if isinstance(table, Ragged) and not along_words:
        return table.with_data(out)
    return indices.with_data(out) if isinstance(indices, Ragged) and along_words else out


@op(
    "GatherElements",
    kind="moves",
    paths=join,
    type=lambda _, x, indices: Type(x.dtype, indices.shape),
    batched="joined",
)
def gather_elements(
    x: Array, indices: Array, *, axis: Axis = 0, non_negative: bool = False
) -> Array:
    size = x.shape[axis]
    _check_indices(non_negative, indices, size)
    # Along axes other than ``axis``, indices may have smaller sizes than x.
    cut = [slice(0, count) for count in indices.shape]
    cut[axis] = slice(None)
    return np.take_along_axis(x[tuple(cut)], indices % max(size, 1), axis=axis)


@sizes_rule
def _gather_nd_type(context: Context, table: Sizes, indices: Type) -> Sizes | None:
    *_, depth = indices.counts or (None,)
    if indices.shape is None or depth is None:
        return None
    return (*indices.shape[:-1], *table[context.attrs.batch_dims + depth :])


def _nd_paths(attrs: Any, table: Type, indices: Type) -> list[Path]:
    own = over(table, range(attrs.batch_dims, rank_of(table)))[0]
    return [own, [*range(rank_of(indices) - 1), None]]


@op("GatherND", kind="moves", drops=True, type=_gather_nd_type, scratch=8, paths=_nd_paths)
def gather_nd(
    table: Array, indices: Array, *, batch_dims: int = 0, non_negative: bool = False
) -> Array:
    batch = batch_dims
    outer = indices.shape[:batch]
    if table.shape[:batch] != outer or not 0 <= batch < indices.ndim:
        raise ShapeError(
            f"attribute batch_dims={batch}: expected as many equal first axes, got data"
            f" {table.shape} and indices {indices.shape}"
        )
    rows = table.reshape(math.prod(outer), *table.shape[batch:])
    picks = indices.reshape(math.prod(outer), -1, indices.shape[-1])
    for axis in range(indices.shape[-1]):
        _check_indices(non_negative, picks[..., axis], rows.shape[1 + axis])
    first = np.arange(len(rows))[:, None]
    out = rows[(first, *np.moveaxis(picks, -1, 0))]
    return out.reshape((*indices.shape[:-1], *out.shape[2:]))


MODES = ("constant", "edge", "reflect", "wrap")
"""The modes of padding, in the order of `around` in `kernels/moves.hpp`."""


@sizes_rule
def _pad(
    _: Context, shape: Sizes, pads: Type, value: Type | None = None, axes: Type | None = None
) -> Sizes:
    if pads.sizes is None or axes is not None and axes.numbers is None:
        return (None,) * len(shape)
    chosen = integers(axes) or range(len(shape))
    for axis, (low, high) in zip(chosen, pads.sizes.reshape(2, -1).T, strict=True):
        size = shape[at_axis(axis, len(shape))]
        shape = with_size(shape, axis, None if size is None else size + low + high)
    return shape


def _around(_: Any, x: Type, pads: Type, value: Any = None, axes: Type | None = None) -> Any:
    """Returns (axis, before, after) for each padded axis; None if only a run knows the pads."""
    chosen = range(rank_of(x)) if axes is None else integers(axes)
    if pads.numbers is None or chosen is None:
        return None
    pairs = zip(chosen, pads.numbers.reshape(2, -1).T.tolist(), strict=True)
    return [(at_axis(axis, rank_of(x)), *pair) for axis, pair in pairs if any(pair)]


def _pad_paths(attrs: Any, *types: Any) -> list[Path] | None:
    around = _around(attrs, *types)
    return None if around is None else over(types[0], (axis for axis, *_ in around))


def _reach(attrs: Any, axis: int, *types: Any) -> Window | None:
    pairs = {at: (1, 1, 1, *pair) for at, *pair in _around(attrs, *types) or ()}
    return Window(*pairs[axis]) if axis in pairs and attrs.mode == "constant" else None


@op(
    "Pad",
    kind="moves",
    drops=True,
    type=_pad,
    growth=results,
    batched=lambda m, node: m.over_axes(node, range(m.rank(node, node.inputs[0]))),
    paths=_pad_paths,
    reach=_reach,
)
def pad(
    x: Array,
    pads: Array,
    value: Array | None = None,
    axes: Axes | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Adds elements at both ends of the axes; negative pads cut elements off."""
    chosen = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes.tolist())]
    if len(pads) != 2 * len(chosen):
        raise ShapeError(f"pads {pads.tolist()}: expected two for each of {len(chosen)} axes")
    around = np.zeros((x.ndim, 2), np.int64)
    around[chosen] = pads.reshape(2, -1).T
    if (np.minimum(around, 0).sum(1) + x.shape < 0).any():
        raise ShapeError(f"pads {pads.tolist()}: expected to cut at most the axes of {x.shape}")
    cut = tuple(
        slice(max(-low, 0), size + min(high, 0))
        for size, (low, high) in zip(x.shape, around.tolist(), strict=True)
    )
    x, around = x[cut], np.maximum(around, 0)
    if mode == "constant":
        filled = x.dtype.type(0) if value is None else value.reshape(-1)[0]
        return np.pad(x, around, constant_values=filled)
    if mode not in MODES:
        raise ShapeError(f"attribute mode={mode!r}: expected constant, reflect, edge or wrap")
    return np.pad(x, around, mode=mode)  # type: ignore[call-overload]


@op(
    "ReverseSequence",
    kind="moves",
    drops=True,
    type=same,
    paths=lambda attrs, x, _: [*over(x, (attrs.time_axis,)), [attrs.batch_axis]],
)
def reverse_sequence(x: Array, lengths: Array, *, time_axis: int = 0, batch_axis: int = 1) -> Array:
    """Reverses the first ``lengths[n]`` steps of each sequence n; later steps keep their
    positions.
    """
    time, batch = time_axis, batch_axis
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


def _one_hot_type(context: Context, indices: Type, depth: Type, values: Type) -> Type:
    if indices.shape is None:
        return Type(values.dtype)
    rank = len(indices.shape) + 1
    at = at_axis(context.attrs.axis, rank)
    count = None if depth.sizes is None else Size.of(depth.sizes.reshape(-1)[0])
    lod = indices.lod if at == rank - 1 else ()
    return Type(values.dtype, (*indices.shape[:at], count, *indices.shape[at:]), lod)


def _one_hot_paths(attrs: Any, indices: Type, *_: Type) -> list[Path]:
    new = at_axis(attrs.axis, rank_of(indices) + 1)
    return [[k + (k >= new) for k in range(rank_of(indices))]]


@op(
    "OneHot",
    kind="mixes",
    offsets=True,
    type=_one_hot_type,
    growth=results,
    paths=_one_hot_paths,
)
def one_hot(indices: Any, depth: Array, values: Array, *, axis: Axis = -1) -> Any:
    """Returns ``depth`` elements per index: ``values[1]`` at the index, ``values[0]`` elsewhere.
    For an index outside [-depth, depth) all elements are ``values[0]``.
    """
    chosen, count = data_of(indices), int(depth.reshape(-1)[0])
    if count < 0:
        raise ShapeError(f"depth={count}: expected 0 or more")
    chosen = np.where(chosen < 0, chosen + count, chosen)[..., None]
    hot = np.where(chosen == np.arange(count), values[1], values[0])
    last = axis in (-1, hot.ndim - 1)
    out = hot if last else np.moveaxis(hot, -1, axis)
    return indices.with_data(out) if isinstance(indices, Ragged) and last else out


def _compress(context: Context, x: Type, condition: Type) -> Type:
    if context.attrs.axis is None:
        return Type(x.dtype, (context.fresh("chosen"),))
    if x.shape is None:
        return Type(x.dtype)
    return Type(x.dtype, with_size(x.shape, context.attrs.axis, context.fresh("chosen")))


@op(
    "Compress",
    kind="moves",
    drops=True,
    type=_compress,
    paths=lambda attrs, x, _: None if attrs.axis is None else over(x, (attrs.axis,)),
)
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    return np.compress(condition, x, axis)


def _non_zero(context: Context, x: Type) -> Type:
    rank = None if x.rank is None else Size.of(x.rank)
    return Type("int64", (rank, context.fresh("chosen")))


@op("NonZero", kind="moves", drops=True, type=_non_zero)
def non_zero(x: Array) -> Array:
    running().ask(16 * max(x.ndim, 1) * x.size)
    return np.array(np.nonzero(x), np.int64)


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
MEETINGS = ("none", *_REDUCTIONS)
"""How scattered updates are combined with old elements, in the order of `meet` in
`kernels/moves.hpp`.
"""


def _inside(indices: Array, sizes: Array | int) -> Array:
    """Returns the indices as numbers from 0 on; negative ones count from the end. Raises
    `ShapeError` for indices outside of [-size, size).
    """
    if indices.dtype.kind not in "iu":
        raise ShapeError(f"indices: expected integers, got {indices.dtype}")
    outside = (indices < -sizes) | (indices >= sizes)
    if outside.any():
        bad = indices[outside][0]
        raise ShapeError(f"index {bad}: expected an index inside of axes of sizes {sizes}")
    return np.where(indices < 0, indices + sizes, indices)


def _update(reduction: str, out: Array, places: Any, updates: Array) -> None:
    """Writes updates to ``out[places]``. If ``reduction`` is "none" and an element has several
    updates, it gets the last one, the same as in ONNX Runtime.
    """
    if updates.dtype != out.dtype:
        raise ShapeError(f"updates: expected {out.dtype}, the dtype of data, got {updates.dtype}")
    if reduction == "none":
        out[places] = updates
    elif reduction in _REDUCTIONS:
        _REDUCTIONS[reduction].at(out, places, updates)
    else:
        known = ", ".join(MEETINGS)
        raise ShapeError(f"attribute reduction={reduction!r}: expected one of {known}")


@op(
    "ScatterElements",
    kind="mixes",
    since=11,
    paths=join,
    type=same,
    growth=wide,
    batched="joined",
)
def scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: Axis = 0, reduction: str = "none"
) -> Array:
    axis = at_axis(axis, x.ndim)
    fits = indices.ndim == x.ndim and all(
        k == axis or few <= many
        for k, (few, many) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits or indices.shape != updates.shape:
        shapes = f"indices {indices.shape} and updates {updates.shape}"
        raise ShapeError(f"{shapes}: expected equal shapes, no larger than {x.shape}")
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[axis] = _inside(indices, x.shape[axis])
    out = x.copy()
    _update(reduction, out, tuple(places), updates)
    return out


@op("ScatterND", kind="mixes", since=11, type=same, growth=wide)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    depth = indices.shape[-1] if indices.ndim else 0
    if not indices.ndim or depth > x.ndim:
        raise ShapeError(f"indices {indices.shape}: expected a last axis of at most {x.ndim}")
    outer, inner = x.shape[:depth], x.shape[depth:]
    if updates.shape != (*indices.shape[:-1], *inner):
        raise ShapeError(f"updates {updates.shape}: expected {(*indices.shape[:-1], *inner)}")
    places = np.zeros(indices.shape[:-1], np.int64)
    whole = _inside(indices, np.array(outer, np.int64))
    for axis, size in enumerate(outer):
        places = places * size + whole[..., axis]
    out = x.reshape(math.prod(outer), *inner).copy()
    _update(reduction, out, places, updates)
    return out.reshape(x.shape)
