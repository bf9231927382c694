"""ONNX operators that give elements another shape or another place, or compute shapes.

Where opsets differ these are the newest forms: axes, sizes and positions come as inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import (
    Axes,
    Axis,
    Path,
    Shape,
    at_axis,
    join,
    op,
    over,
    rank_of,
    stretch,
)
from onernn.ir.types import Size, Type, evaluate
from onernn.ops import row_rules
from onernn.ops.growth import no_new_bytes, results
from onernn.ops.rules import (
    ONE,
    broadcast,
    common,
    integers,
    quotient,
    same,
    volume,
    with_size,
)
from onernn.ops.windows import Window

_ZERO = np.zeros(1, np.float32)


def checked_sizes(shape: Array) -> tuple[int, ...]:
    """Returns the sizes as integers. Raises `ShapeError` for those below 0."""
    if shape.min(initial=0) < 0:
        raise ShapeError(f"a value of shape {shape.tolist()}: sizes are at least 0")
    return tuple(shape.tolist())


def _shape_type(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type("int64", (None,))
    sizes = [
        context.fresh(f"size{axis}") if size is None else size for axis, size in enumerate(x.shape)
    ]
    return evaluate("int64", np.array(sizes[context.attrs.start : context.attrs.end], object))


def _shape_of_rows(m: Any, node: Node) -> None:
    """Rows are alike in their shape, so it is no value of a row."""
    rank = m.rank(node, node.inputs[0])

    def place(index: int) -> int:
        return 1 + (index if index >= 0 else max(0, index + rank))

    ends = {} if node.attrs.end is None else {"end": place(node.attrs.end)}
    m.nodes.append(replace(node, attributes={"start": place(node.attrs.start), **ends}))


@op(
    "Shape",
    kind="sizes",
    drops=True,
    type=_shape_type,
    growth=no_new_bytes,
    batched=_shape_of_rows,
)
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


def _size_type(_: Context, x: Type) -> Type:
    count = None if x.shape is None else volume(x.shape)
    return Type("int64", (), (), count)


@op("Size", kind="sizes", drops=True, type=_size_type, growth=no_new_bytes)
def size(x: Array) -> Array:
    return np.array(x.size, np.int64)


def _ask(shape: Type) -> tuple[Size | None, ...] | None:
    """Returns the shape in an input of integers; only its rank, where the numbers are unknown."""
    if shape.sizes is not None:
        return tuple(map(Size.of, shape.sizes))
    rank = shape.shape[0] if shape.shape else None
    return None if rank is None or rank.number is None else (None,) * rank.number


def _expanded_rows(m: Any, node: Node) -> None:
    x, shape = node.inputs
    wanted = m.graph.types[shape].counts
    if shape in m.mapped or len(wanted) != 1 or wanted[0] is None:
        raise m.refused(node, "its shape is not known before a run")
    ones = [1] * (m.rank(node, x) - wanted[0])
    m.put(node, (m.widened(node, x, wanted[0]), m.shape([1, *ones, shape])))


def _expanded_paths(_: Any, x: Type, shape: Type) -> list[Path] | None:
    sizes, rank = _ask(shape), rank_of(x)
    more = None if sizes is None else max(len(sizes) - rank, 0)
    return None if more is None else [range(more, more + rank)]


@op(
    "Expand",
    kind="moves",
    type=lambda _, x, shape: Type(x.dtype, broadcast(x.shape, _ask(shape))),
    growth=results,
    paths=_expanded_paths,
    batched=_expanded_rows,
)
def expand(x: Array, shape: Shape) -> Array:
    """Broadcasting both ways: the shape need not be the larger one."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, checked_sizes(shape)))


@op(
    "ConstantOfShape",
    kind="sizes",
    drops=True,
    type=lambda context, shape: Type(np.asarray(context.attrs.value).dtype.name, _ask(shape)),
    growth=results,
    rows=lambda *_: row_rules.SIZED,
)
def constant_of_shape(shape: Shape, *, value: Any = _ZERO) -> Array:
    number = np.asarray(value).reshape(-1)
    return np.full(checked_sizes(shape), number[0], number.dtype)


def _range_type(context: Context, start: Type, limit: Type, delta: Type) -> Type:
    numbers = [each.numbers for each in (start, limit, delta)]
    if any(number is None for number in numbers):
        first, _, step = numbers
        end = limit.value if isinstance(limit.value, Size) else None
        if first == 0 and step == 1 and end is not None and end == end.most():
            return Type(start.dtype, (end,))
        return Type(start.dtype, (context.fresh("count"),))
    return Type(start.dtype, (Size.of(len(range(*(int(n) for n in numbers if n is not None)))),))


@op("Range", kind="sizes", drops=True, type=_range_type)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (np.asarray(number).reshape(()).item() for number in (start, limit, delta))
    if not step:
        raise ShapeError("delta is 0")
    count, dtype = max(math.ceil((end - first) / step), 0), np.asarray(start).dtype
    running().ask(8 * count)
    return (first + np.arange(count, dtype=dtype) * dtype.type(step)).astype(dtype)


def _tile(_: Context, x: Type, repeats: Type) -> Type:
    times = _ask(repeats)
    if x.shape is None or times is None:
        return Type(x.dtype, x.shape and (None,) * len(x.shape))
    return Type(x.dtype, tuple(map(volume, zip(x.shape, times, strict=True))))


def _tiled_rows(m: Any, node: Node) -> None:
    x, repeats = node.inputs
    m.alike(node, (repeats,))
    m.put(node, (x, m.shape([1, repeats])))


def _tiled_paths(_: Any, x: Type, repeats: Type) -> list[Path] | None:
    times = _ask(repeats)
    return None if times is None else over(x, (k for k, size in enumerate(times) if size != ONE))


@op(
    "Tile",
    kind="moves",
    drops=True,
    type=_tile,
    growth=results,
    paths=_tiled_paths,
    batched=_tiled_rows,
)
def tile(x: Array, repeats: Array) -> Array:
    if len(repeats) != x.ndim:
        raise ShapeError(f"expected {x.ndim} repeats, got {len(repeats)}")
    return np.tile(x, repeats)


Ints = tuple[int, ...]

FAR = 2**31 - 1
"""A Slice to here takes all that is left: exporters write the largest number of 32 or 64 bits."""


@op(
    "Identity",
    kind="view",
    type=same,
    sized=True,
    growth=no_new_bytes,
    paths=stretch,
    batched="stretched",
    rows=row_rules.follow,
)
def identity(x: Array) -> Array:
    return x


def perm_of(attrs: Any, rank: int) -> tuple[int, ...]:
    """Returns the order of a Transpose's axes."""
    return tuple(range(rank)[::-1] if attrs.perm is None else attrs.perm)


def _transpose(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    perm = perm_of(context.attrs, len(x.shape))
    if sorted(perm) != list(range(len(x.shape))):
        raise ShapeError(f"perm {perm} of {len(x.shape)} axes")
    return Type(x.dtype, tuple(x.shape[index] for index in perm))


def _transposed_rows(m: Any, node: Node) -> None:
    perm = perm_of(node.attrs, m.rank(node, node.inputs[0]))
    m.put(node, node.inputs, perm=(0, *(axis + 1 for axis in perm)))


def _transposed_paths(attrs: Any, x: Type) -> list[Path]:
    perm = perm_of(attrs, rank_of(x))
    return [[perm.index(axis) for axis in range(len(perm))]]


@op(
    "Transpose",
    kind="moves",
    paths=_transposed_paths,
    type=_transpose,
    growth=no_new_bytes,
    batched=_transposed_rows,
)
def transpose(x: Array, *, perm: Ints | None = None) -> Array:
    return x.transpose(perm)


def _begins(axes: Array, rank: int) -> bool:
    """Returns whether axis 0 is among these axes."""
    return any(axis in (0, -rank) for axis in axes)


def _squeeze(_: Context, x: Type, axes: Type | None = None) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    if axes is None:
        if any(size is None or size.number is None for size in x.shape):
            return Type(x.dtype)
        return Type(x.dtype, tuple(size for size in x.shape if size != ONE))
    gone = {at_axis(axis, len(x.shape)) for axis in integers(axes) or ()}
    return Type(x.dtype, tuple(size for index, size in enumerate(x.shape) if index not in gone))


def _squeezed_rows(m: Any, node: Node) -> None:
    sizes = m.graph.types[node.inputs[0]].counts
    if not node.input(1) and None in sizes:
        raise m.refused(node, "which axes are of size 1 is not known before a run")
    m.over_axes(node, [axis for axis, size in enumerate(sizes) if size == 1])


@op(
    "Squeeze",
    kind="view",
    drops=lambda _, x, axes=None: axes is not None and _begins(axes.numbers, x.rank),
    type=_squeeze,
    sized=True,
    growth=no_new_bytes,
    batched=_squeezed_rows,
)
def squeeze(x: Array, axes: Axes | None = None) -> Array:
    return x.squeeze(None if axes is None else tuple(axes.tolist()))


def _unsqueeze(_: Context, x: Type, axes: Type) -> Type:
    new = integers(axes) or []
    if x.shape is None:
        return Type(x.dtype)
    rank, rest = len(x.shape) + len(new), iter(x.shape)
    places = {at_axis(axis, rank) for axis in new}
    return Type(x.dtype, tuple(ONE if index in places else next(rest) for index in range(rank)))


@op(
    "Unsqueeze",
    kind="view",
    drops=lambda _, x, axes: _begins(axes.numbers, x.rank + len(axes.numbers)),
    type=_unsqueeze,
    sized=True,
    growth=no_new_bytes,
)
def unsqueeze(x: Array, axes: Axes) -> Array:
    return np.expand_dims(x, tuple(axes.tolist()))


def _join(context: Context, *parts: Type) -> Type:
    shapes = [part.shape for part in parts if part.shape is not None]
    if not shapes:
        return Type(common(*parts))
    along = at_axis(context.attrs.axis, len(shapes[0]))
    lengths = [shape[along] for shape in shapes]
    known = None not in lengths and len(shapes) == len(parts)
    whole = sum(filter(None, lengths), Size(())) if known else None
    shape = tuple(
        whole if index == along else context.same(*sizes)
        for index, sizes in enumerate(zip(*shapes, strict=True))
    )
    return Type(common(*parts), shape)


@op(
    "Concat",
    kind="moves",
    paths=join,
    type=_join,
    sized=True,
    batched="joined",
)
def concat(first: Array, *rest: Array, axis: Axis) -> Array:
    return np.concatenate((first, *rest), axis=axis)


def _flatten(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype, (None, None))
    cut = context.attrs.axis
    return Type(x.dtype, (volume(x.shape[:cut]), volume(x.shape[cut:])))


def _flattened_rows(m: Any, node: Node) -> None:
    x = node.inputs[0]
    rank = m.rank(node, x)
    axis = node.attrs.axis + rank * (node.attrs.axis < 0)
    front = m.emit("ReduceProd", (m.sizes(x, 1, 1 + axis),)) if axis else 1
    back = m.emit("ReduceProd", (m.sizes(x, 1 + axis, None),)) if axis < rank else 1
    m.end(node, "Reshape", (x, m.shape([m.count, front, back])))


@op(
    "Flatten",
    kind="view",
    type=_flatten,
    growth=no_new_bytes,
    batched=_flattened_rows,
)
def flatten(x: Array, *, axis: Axis = 1) -> Array:
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _reshape(context: Context, x: Type, shape: Type) -> Type:
    asked = _ask(shape)
    if asked is None or None in asked:
        return Type(x.dtype, asked)
    sizes = list(asked)
    for at, size in enumerate(sizes):
        if size == Size(()) and not context.attrs.allowzero:
            sizes[at] = None if x.shape is None else x.shape[at]
    if Size.of(-1) in sizes:
        at = sizes.index(Size.of(-1))
        rest = volume([*sizes[:at], *sizes[at + 1 :]])
        whole = None if x.shape is None else volume(x.shape)
        sizes[at] = quotient(whole, rest)
    return Type(x.dtype, tuple(sizes))


def _reshaped_rows(m: Any, node: Node) -> None:
    x, shape = node.inputs
    m.alike(node, (shape,))
    m.put(node, (x, m.shape([m.count, shape])))  # a 0 takes the same axis: both moved by one


@op("Reshape", kind="view", type=_reshape, sized=True, batched=_reshaped_rows)
def reshape(x: Array, shape: Shape, *, allowzero: int = 0) -> Array:
    """A size of 0 is that of the input, unless allowzero."""
    sizes = [
        x.shape[place] if size == 0 and not allowzero else size
        for place, size in enumerate(shape.tolist())
    ]
    return x.reshape(sizes)


def _check_backwards(size: int, start: int, end: int, step: int) -> None:
    """Refuses what ONNX's text, its reference and ONNX Runtime 1.32 do not cut alike.

    To the largest number ONNX Runtime takes all; from before the axis the reference takes nothing.
    """
    if step < 0 and (end in (FAR, 2**63 - 1) or start < -max(size, 1)):
        raise ShapeError(f"implementations disagree on [{start}:{end}:{step}] of {size} elements")


def _slice(
    context: Context,
    x: Type,
    starts: Type,
    ends: Type,
    axes: Type | None = None,
    steps: Type | None = None,
) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    if axes is None and (starts.shape is None or not starts.shape or starts.shape[0] is None):
        return Type(x.dtype, (None,) * len(x.shape))
    chosen = integers(axes)
    if chosen is None:
        chosen = list(range((starts.shape or (ONE,))[0].number or 0))  # type: ignore[union-attr]
    out = x.shape
    given = [None if each is None else each.sizes for each in (starts, ends, steps)]
    for index, axis in enumerate(chosen):
        first, last, step = (
            None if each is None else Size.of(each.reshape(-1)[index]) for each in given
        )
        stride, place = 1 if steps is None else step and step.number, at_axis(axis, len(out))
        size, taken = out[place], None
        if size is not None and first is not None and last is not None and stride:
            taken = cut(size, first, last, stride, _always)
        out = with_size(out, place, taken[1] if taken else context.fresh(f"cut{place}"))
    return Type(x.dtype, out)


def cut(
    size: Size, start: Size, end: Size, step: int, holds: Callable[..., bool]
) -> tuple[Size, Size] | None:
    """Returns (first, count) of what [start:end:step] takes of an axis; None where only a run
    knows.

    ``holds(*sizes)``: whether these are at least 0, which a plan checks in each call.
    """
    if size.number is not None and start.number is not None and end.number is not None:
        _check_backwards(size.number, start.number, end.number, step)
        bounds = slice(start.number, end.number, step).indices(size.number)
        return Size.of(bounds[0]), Size.of(len(range(*bounds)))
    first, last = (n if n is None else max(min(n, FAR), -FAR) for n in (start.number, end.number))
    if step < 0:
        whole = first in (-1, FAR) and last == -FAR
        return (size - 1, (size - step - 1).floor_div(-step)) if whole else None
    start = size + start if first is not None and first < 0 else start
    end = size if last == FAR else size + end if last is not None and last < 0 else end
    whole = start == Size.of(0) and end == size  # which no axis has less than 0 of
    if not whole and not holds(start, end - start, size - end):
        return None
    return start, (end - start + (step - 1)).floor_div(step)


def _always(*sizes: Size) -> bool:
    """Returns whether sizes are at least 0, whatever their names stand for."""
    return all(size.signs is not None and size.signs[0] >= 0 for size in sizes)


def _cut_paths(
    _: Any, x: Type, starts: Type, ends: Type, axes: Type | None = None, steps: Type | None = None
) -> list[Path] | None:
    chosen = range(rank_of(starts) and starts.counts[0] or 0) if axes is None else axes.numbers
    return None if chosen is None else over(x, chosen)


def _reach(
    _: Any,
    axis: int,
    x: Type,
    starts: Type,
    ends: Type,
    axes: Type | None = None,
    steps: Type | None = None,
) -> Window | None:
    """Elements that are cut off at both ends; None where that is not known."""
    chosen = integers(axes)
    places = range(rank_of(x)) if chosen is None else [at_axis(a, rank_of(x)) for a in chosen]
    given = [None if each is None else each.sizes for each in (starts, ends, steps)]
    if given[0] is None or given[1] is None or (steps is not None and given[2] is None):
        return None
    first, last, step = (
        ONE if each is None else Size.of(each[places.index(axis)]) for each in given
    )
    size = x.shape and x.shape[axis]
    behind = (last - size).number if size else None
    behind = last.number if behind is None else behind
    behind = 0 if behind is not None and behind >= FAR else behind
    if first.number is None or first.number < 0 or step != ONE or behind is None or behind > 0:
        return None
    return Window(1, 1, 1, -first.number, behind)


@op(
    "Slice",
    kind="moves",
    paths=_cut_paths,
    reach=_reach,
    type=_slice,
    sized=True,
    growth=no_new_bytes,
)
def slice_(
    x: Array,
    starts: Array,
    ends: Array,
    axes: Axes | None = None,
    steps: Array | None = None,
) -> Array:
    chosen = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    at = [slice(None)] * x.ndim
    for axis, *cut in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
        _check_backwards(x.shape[axis], *cut)
        at[axis] = slice(*cut)
    return x[tuple(at)]


def _parts(context: Context, x: Type, sizes: Type | None = None) -> tuple[Type, ...]:
    parts, axis = context.attrs.outputs, context.attrs.axis
    if x.shape is None:
        return (Type(x.dtype),) * parts
    whole = x.shape[at_axis(axis, len(x.shape))]
    each: list[Size | None] = [context.fresh(f"part{k}") for k in range(parts)]
    if sizes is not None:
        asked = sizes.sizes
        each = each if asked is None else [Size.of(size) for size in asked]
    elif whole is not None and whole.number is not None:
        step = -(-whole.number // parts)
        ends = [min(step * (k + 1), whole.number) for k in range(parts)]
        each = [Size.of(b - a) for a, b in zip([0, *ends], ends, strict=False)]
    return tuple(Type(x.dtype, with_size(x.shape, axis, size)) for size in each)


@op("Split", kind="moves", outputs=2**16, type=_parts, growth=no_new_bytes)
def split(
    x: Array, sizes: Array | None = None, *, axis: Axis = 0, outputs: int
) -> tuple[Array, ...]:
    """Into ``sizes``; without these into equal parts, the last one may be smaller."""
    whole = x.shape[axis]
    if sizes is None:
        ends = np.minimum(np.arange(1, outputs + 1) * -(-whole // outputs), whole)
    else:
        ends = np.cumsum(sizes)
        if len(sizes) != outputs or sizes.min(initial=0) < 0 or ends[-1] != whole:
            asked = f"expected {outputs} sizes that sum to {whole}"
            raise ShapeError(f"split {sizes.tolist()}: {asked}")
    return tuple(np.split(x, ends[:-1], axis=axis))


@op("Trilu", kind="mixes", paths=lambda _, x, *__: over(x, (-2, -1)), type=same, since=14)
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    if x.ndim < 2:  # NumPy makes a matrix of a vector
        raise ShapeError(f"Trilu: expected matrices, got {x.shape}")
    diagonal = 0 if k is None else int(k.reshape(()))
    return np.triu(x, diagonal) if upper else np.tril(x, diagonal)
