"""Kernels of ONNX operators that move elements, by name and meaning.

Where opsets differ these are the newest forms: axes, sizes and positions come as inputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.kernels.registry import Attributes, kernel, row_wise


def _sizes(shape: Array) -> tuple[int, ...]:
    if shape.min(initial=0) < 0:
        raise ShapeError(f"a value of shape {shape.tolist()}: sizes are at least 0")
    return tuple(shape.tolist())


def _moved_words(attributes: Attributes, _: Array) -> list[int]:
    return [] if tuple(attributes.get("perm", ()))[:1] == (0,) else [0]


@row_wise("Transpose", axes=_moved_words)
def _transpose(attributes: Attributes, a: Array) -> Array:
    return a.transpose(attributes.get("perm"))


@row_wise("Squeeze", reshapes=True)
def _squeeze(_: Attributes, a: Array, axes: Array | None = None) -> Array:
    return a.squeeze(None if axes is None else tuple(axes.tolist()))


@row_wise("Unsqueeze", reshapes=True)
def _unsqueeze(_: Attributes, a: Array, axes: Array) -> Array:
    return np.expand_dims(a, tuple(axes.tolist()))


@row_wise("Concat")
def _concat(attributes: Attributes, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=attributes["axis"])


@row_wise("Flatten")
def _flatten(attributes: Attributes, a: Array) -> Array:
    axis = attributes.get("axis", 1)
    rows = math.prod(a.shape[:axis])
    return a.reshape(rows, math.prod(a.shape[axis:]))


@row_wise("Reshape")
def _reshape(attributes: Attributes, a: Array, shape: Array) -> Array:
    """A size of 0 is that of the input, unless allowzero."""
    kept = not attributes.get("allowzero", 0)
    sizes = [a.shape[at] if kept and size == 0 else size for at, size in enumerate(shape.tolist())]
    return a.reshape(sizes)


@row_wise("Slice", axes=lambda _, a, s, e, axes=None, *__: range(a.ndim) if axes is None else axes)
def _slice(
    _: Attributes,
    a: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    chosen = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    at = [slice(None)] * a.ndim
    for axis, *cut in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
        at[axis] = slice(*cut)
    return a[tuple(at)]


@kernel("Split")
def _split(node: Node, a: Any, sizes: Array | None = None) -> tuple[Any, ...]:
    """Into ``sizes``; without these into equal parts, the last one may be smaller."""
    array, axis, parts = data_of(a), node.attributes.get("axis", 0), len(node.outputs)
    whole = array.shape[axis]
    if isinstance(a, Ragged) and axis in (0, -array.ndim):
        raise ShapeError("axis 0 would split the words of a LoD; drop the LoD before")
    if sizes is None:
        ends = np.minimum(np.arange(1, parts + 1) * -(-whole // parts), whole)
    else:
        ends = np.cumsum(sizes)
        if len(sizes) != parts or sizes.min(initial=0) < 0 or ends[-1] != whole:
            raise ShapeError(f"split {sizes.tolist()}: expected {parts} sizes that sum to {whole}")
    pieces = np.split(array, ends[:-1], axis=axis)
    return tuple(a.with_data(each) if isinstance(a, Ragged) else each for each in pieces)


@kernel("Shape")
def _shape(node: Node, a: Any) -> Array:
    shape = data_of(a).shape[node.attributes.get("start", 0) : node.attributes.get("end")]
    return np.array(shape, np.int64)


@kernel("Size")
def _size(_: Node, a: Any) -> Array:
    return np.array(data_of(a).size, np.int64)


@row_wise("Expand")
def _expand(_: Attributes, a: Array, shape: Array) -> Array:
    """Broadcasting both ways: the shape need not be the larger one."""
    return np.broadcast_to(a, np.broadcast_shapes(a.shape, _sizes(shape)))


@kernel("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Array) -> Array:
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    return np.full(_sizes(shape), value[0], value.dtype)


@kernel("Range")
def _range(_: Node, start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (np.asarray(number).reshape(()).item() for number in (start, limit, delta))
    if not step:
        raise ShapeError("delta is 0")
    count = max(math.ceil((end - first) / step), 0)
    dtype = np.asarray(start).dtype
    return (first + np.arange(count, dtype=dtype) * dtype.type(step)).astype(dtype)


@kernel("Tile")
def _tile(_: Node, a: Any, repeats: Array) -> Array:
    array = data_of(a)
    if len(repeats) != array.ndim:
        raise ShapeError(f"expected {array.ndim} repeats, got {len(repeats)}")
    return np.tile(array, repeats)


def _checked_indices(at: Array, size: int, lowest: int) -> Array:
    if at.size and (at.min() < lowest or at.max() >= size):
        bad = at[(at < lowest) | (at >= size)].flat[0]
        raise ShapeError(f"index {bad} is outside [{lowest}, {size})")
    return at


@kernel("Gather")
def _gather(node: Node, data: Any, indices: Any) -> Any:
    axis, at, table = node.attributes.get("axis", 0), data_of(indices), data_of(data)
    size = table.shape[axis]
    lowest = 0 if node.attributes.get("non_negative") else -size
    out = np.take(table, _checked_indices(at, size, lowest), axis=axis)
    along_words = axis in (0, -table.ndim)
    if isinstance(data, Ragged) and not along_words:
        return data.with_data(out)
    return indices.with_data(out) if isinstance(indices, Ragged) and along_words else out


@row_wise("GatherElements", axes=lambda attributes, *_: [attributes.get("axis", 0)])
def _gather_elements(attributes: Attributes, data: Array, indices: Array) -> Array:
    axis = attributes.get("axis", 0)
    size = data.shape[axis]
    at = _checked_indices(indices, size, -size)
    cut = [slice(0, count) for count in at.shape]  # indices may be the smaller one elsewhere
    cut[axis] = slice(None)
    return np.take_along_axis(data[tuple(cut)], at % max(size, 1), axis=axis)


@kernel("GatherND")
def _gather_nd(node: Node, data: Any, indices: Any) -> Array:
    table, at = data_of(data), data_of(indices)
    batch = node.attributes.get("batch_dims", 0)
    outer = at.shape[:batch]
    if table.shape[:batch] != outer or not 0 <= batch < at.ndim:
        raise ShapeError(f"batch_dims={batch} of {table.shape} and indices {at.shape}")
    rows = table.reshape(math.prod(outer), *table.shape[batch:])
    picks = at.reshape(math.prod(outer), -1, at.shape[-1])
    for axis in range(at.shape[-1]):
        _checked_indices(picks[..., axis], rows.shape[1 + axis], -rows.shape[1 + axis])
    first = np.arange(len(rows))[:, None]
    out = rows[(first, *np.moveaxis(picks, -1, 0))]
    return out.reshape(*at.shape[:-1], *out.shape[2:])


@kernel("Pad")
def _pad(
    node: Node, a: Any, pads: Array, value: Array | None = None, axes: Array | None = None
) -> Array:
    """Negative pads cut."""
    array, mode = data_of(a), node.attributes.get("mode", "constant")
    chosen = [axis % array.ndim for axis in (range(array.ndim) if axes is None else axes.tolist())]
    if len(pads) != 2 * len(chosen):
        raise ShapeError(f"pads {pads.tolist()}: expected two for each of {len(chosen)} axes")
    around = np.zeros((array.ndim, 2), np.int64)
    around[chosen] = pads.reshape(2, -1).T
    cut = tuple(
        slice(max(-low, 0), size + min(high, 0))
        for size, (low, high) in zip(array.shape, around.tolist(), strict=True)
    )
    array, around = array[cut], np.maximum(around, 0)
    if mode == "constant":
        filled = array.dtype.type(0) if value is None else value.reshape(-1)[0]
        return np.pad(array, around, constant_values=filled)
    if mode not in ("reflect", "edge", "wrap"):
        raise ShapeError(f"attribute mode={mode!r}")
    return np.pad(array, around, mode=mode)


@kernel("ReverseSequence")
def _reverse_sequence(node: Node, a: Any, lengths: Array) -> Array:
    """The first words of each sentence backwards, those behind its length where they are."""
    array = data_of(a)
    time, batch = node.attributes.get("time_axis", 0), node.attributes.get("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise ShapeError(f"expected time and batch as the first axes, got {time} and {batch}")
    batch_major = array.swapaxes(0, 1) if time == 0 else array
    n, t = batch_major.shape[:2]
    if lengths.shape != (n,) or (n and not 0 <= lengths.min() <= lengths.max() <= t):
        raise ShapeError(f"sequence_lens: expected ({n},) of at most {t}, got {lengths.tolist()}")
    steps = np.arange(t)
    inside = steps < lengths[:, None]
    at = np.where(inside, lengths[:, None] - 1 - steps, steps)
    out = batch_major[np.arange(n)[:, None], at]
    return out.swapaxes(0, 1) if time == 0 else out


@kernel("OneHot")
def _one_hot(node: Node, indices: Any, depth: Array, values: Array) -> Any:
    """values = (off, on); an index outside [-depth, depth) gives a row of off."""
    at, count, axis = data_of(indices), int(depth.reshape(-1)[0]), node.attributes.get("axis", -1)
    if count < 0:
        raise ShapeError(f"depth {count}")
    at = np.where(at < 0, at + count, at)[..., None]
    hot = np.where(at == np.arange(count), values[1], values[0])
    rank = hot.ndim
    last = axis in (-1, rank - 1)
    out = hot if last else np.moveaxis(hot, -1, axis)
    return indices.with_data(out) if isinstance(indices, Ragged) and last else out


@row_wise("Trilu", axes=lambda _, a, *__: [a.ndim - 2])
def _trilu(attributes: Attributes, a: Array, k: Array | None = None) -> Array:
    at = 0 if k is None else int(k.reshape(()))
    return np.triu(a, at) if attributes.get("upper", 1) else np.tril(a, at)


@kernel("Compress")
def _compress(node: Node, a: Any, condition: Array) -> Array:
    """The elements, or slices along an axis, for which the condition holds."""
    return np.compress(condition, data_of(a), node.attributes.get("axis"))


@kernel("NonZero")
def _non_zero(_: Node, a: Any) -> Array:
    return np.array(np.nonzero(data_of(a)), np.int64)
