"""ONNX operators that reshape or move elements, or that compute shapes.

The operators have the form of ONNX's newest opset, in which axes, sizes and positions are inputs.
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
    Sizes,
    broadcast,
    common,
    integers,
    quotient,
    same,
    sizes_rule,
    volume,
    with_size,
)
from onernn.ops.windows import Window

_ZERO = np.zeros(1, np.float32)


def check_sizes(shape: Array) -> tuple[int, ...]:
    """Returns the sizes as integers. Raises `ShapeError` for those below 0."""
    if shape.min(initial=0) < 0:
        raise ShapeError(f"shape {shape.tolist()}: expected sizes of at least 0")
    return tuple(shape.tolist())


def _shape_type(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type("int64", (None,))
    sizes = [
        context.fresh(f"size{axis}") if size is None else size for axis, size in enumerate(x.shape)
    ]
    return evaluate("int64", np.array(sizes[context.attrs.start : context.attrs.end], object))


def _batch_shape(m: Any, node: Node) -> None:
    """Adds one Shape for all rows, without the axis of rows: the shapes of all rows are equal."""
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
    batched=_batch_shape,
)
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


@op(
    "Size",
    kind="sizes",
    drops=True,
    type=lambda _, x: Type("int64", (), (), None if x.shape is None else volume(x.shape)),
    growth=no_new_bytes,
)
def size(x: Array) -> Array:
    return np.array(x.size, np.int64)


def _ask(shape: Type) -> Sizes | None:
    """Returns the sizes that an integer input holds, None for unknown ones. Returns None if their
    number is unknown.
    """
    if shape.sizes is not None:
        return tuple(map(Size.of, shape.sizes))
    rank = shape.shape[0] if shape.shape else None
    return None if rank is None or rank.number is None else (None,) * rank.number


def _batch_expand(m: Any, node: Node) -> None:
    x, shape = node.inputs
    wanted = m.graph.types[shape].counts
    if shape in m.mapped or len(wanted) != 1 or wanted[0] is None:
        raise m.make_error(node, "its shape is not known before a run: expected a constant")
    ones = [1] * (m.rank(node, x) - wanted[0])
    m.add_mapped(node, (m.widen(node, x, wanted[0]), m.shape([1, *ones, shape])))


def _expand_paths(_: Any, x: Type, shape: Type) -> list[Path] | None:
    sizes, rank = _ask(shape), rank_of(x)
    more = None if sizes is None else max(len(sizes) - rank, 0)
    return None if more is None else [range(more, more + rank)]


@op(
    "Expand",
    kind="moves",
    type=lambda _, x, shape: Type(x.dtype, broadcast(x.shape, _ask(shape))),
    growth=results,
    paths=_expand_paths,
    batched=_batch_expand,
)
def expand(x: Array, shape: Shape) -> Array:
    """Returns x broadcast with ``shape``; both x and ``shape`` may have sizes of 1."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, check_sizes(shape)))


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
    return np.full(check_sizes(shape), number[0], number.dtype)


def _range_type(context: Context, start: Type, limit: Type, delta: Type) -> Type:
    numbers = [each.numbers for each in (start, limit, delta)]
    if any(number is None for number in numbers):
        first, _, step = numbers
        end = limit.value if isinstance(limit.value, Size) else None
        if first == 0 and step == 1 and end is not None and end == end.most():
            return Type(start.dtype, (end,))
        return Type(start.dtype, (context.fresh("count"),))
    return Type(start.dtype, (Size.of(len(range(*(int(n) for n in numbers if n is not None)))),))


@op("Range", kind="sizes", drops=True, type=_range_type, growth=no_new_bytes)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (np.asarray(number).reshape(()).item() for number in (start, limit, delta))
    if not step:
        raise ShapeError("delta=0: expected a number other than 0")
    count, dtype = max(math.ceil((end - first) / step), 0), np.asarray(start).dtype
    running().ask(8 * count)
    return (first + np.arange(count, dtype=dtype) * dtype.type(step)).astype(dtype)


@sizes_rule
def _tile(_: Context, shape: Sizes, repeats: Type) -> Sizes:
    times = _ask(repeats) or (None,) * len(shape)
    return tuple(map(volume, zip(shape, times, strict=True)))


def _batch_tile(m: Any, node: Node) -> None:
    x, repeats = node.inputs
    m.alike(node, (repeats,))
    m.add_mapped(node, (x, m.shape([1, repeats])))


def _tile_paths(_: Any, x: Type, repeats: Type) -> list[Path] | None:
    times = _ask(repeats)
    return None if times is None else over(x, (k for k, size in enumerate(times) if size != ONE))


@op(
    "Tile",
    kind="moves",
    drops=True,
    type=_tile,
    growth=results,
    paths=_tile_paths,
    batched=_batch_tile,
)
def tile(x: Array, repeats: Array) -> Array:
    if len(repeats) != x.ndim:
        raise ShapeError(f"repeats: expected {x.ndim} numbers, one per axis, got {len(repeats)}")
    return np.tile(x, repeats)


Ints = tuple[int, ...]

FAR = 2**31 - 1
"""A Slice whose end is at least this number takes all remaining elements. Exporters write the
largest integer of 32 or 64 bits.
"""


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


@sizes_rule
def _transpose(context: Context, shape: Sizes) -> Sizes:
    perm = perm_of(context.attrs, len(shape))
    if sorted(perm) != list(range(len(shape))):
        raise ShapeError(f"attribute perm={perm}: expected each of 0 to {len(shape) - 1} once")
    return tuple(shape[index] for index in perm)


def _batch_transpose(m: Any, node: Node) -> None:
    perm = perm_of(node.attrs, m.rank(node, node.inputs[0]))
    m.add_mapped(node, node.inputs, perm=(0, *(axis + 1 for axis in perm)))


def _transpose_paths(attrs: Any, x: Type) -> list[Path]:
    perm = perm_of(attrs, rank_of(x))
    return [[perm.index(axis) for axis in range(len(perm))]]


@op(
    "Transpose",
    kind="moves",
    paths=_transpose_paths,
    type=_transpose,
    growth=no_new_bytes,
    batched=_batch_transpose,
)
def transpose(x: Array, *, perm: Ints | None = None) -> Array:
    return x.transpose(perm)


def _begins(axes: Array, rank: int) -> bool:
    return any(axis in (0, -rank) for axis in axes)


@sizes_rule
def _squeeze(_: Context, shape: Sizes, axes: Type | None = None) -> Sizes | None:
    if axes is None:
        is_known = all(size is not None and size.number is not None for size in shape)
        return tuple(size for size in shape if size != ONE) if is_known else None
    gone = {at_axis(axis, len(shape)) for axis in integers(axes) or ()}
    return tuple(size for index, size in enumerate(shape) if index not in gone)


def _batch_squeeze(m: Any, node: Node) -> None:
    sizes = m.graph.types[node.inputs[0]].counts
    if not node.input(1) and None in sizes:
        why = "which axes have size 1 is not known before a run: declare the sizes with --input"
        raise m.make_error(node, why)
    m.over_axes(node, [axis for axis, size in enumerate(sizes) if size == 1])


@op(
    "Squeeze",
    kind="view",
    drops=lambda _, x, axes=None: axes is not None and _begins(axes.numbers, x.rank),
    type=_squeeze,
    sized=True,
    growth=no_new_bytes,
    batched=_batch_squeeze,
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


def _batch_flatten(m: Any, node: Node) -> None:
    x = node.inputs[0]
    rank = m.rank(node, x)
    axis = node.attrs.axis + rank * (node.attrs.axis < 0)
    front = m.emit("ReduceProd", m.sizes(x, 1, 1 + axis)) if axis else 1
    back = m.emit("ReduceProd", m.sizes(x, 1 + axis, None)) if axis < rank else 1
    m.end(node, "Reshape", (x, m.shape([m.count, front, back])))


@op(
    "Flatten",
    kind="view",
    type=_flatten,
    growth=no_new_bytes,
    batched=_batch_flatten,
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


def _batch_reshape(m: Any, node: Node) -> None:
    x, shape = node.inputs
    m.alike(node, (shape,))
    m.add_mapped(node, (x, m.shape([m.count, shape])))  # 0 still means x's size


@op("Reshape", kind="view", type=_reshape, sized=True, batched=_batch_reshape)
def reshape(x: Array, shape: Shape, *, allowzero: int = 0) -> Array:
    """Returns x in another shape; a size of 0 means x's size of that axis, unless ``allowzero``."""
    sizes = [
        x.shape[place] if size == 0 and not allowzero else size
        for place, size in enumerate(shape.tolist())
    ]
    return x.reshape(sizes)


def _check_backwards(size: int, start: int, end: int, step: int) -> None:
    """Raises `ShapeError` for slices with a negative step on which implementations disagree.

    If the end is the largest integer, ONNX Runtime 1.32 takes all elements, in contrast to ONNX's
    specification. If the start is before the first element, ONNX's reference takes none.
    """
    if step < 0 and (end in (FAR, 2**63 - 1) or start < -max(size, 1)):
        raise ShapeError(
            f"slice [{start}:{end}:{step}] of {size} elements: implementations disagree on it;"
            " expected a start on the axis, and an end below the largest integer"
        )


def _cuts(
    rank: int, starts: Type, ends: Type, axes: Type | None = None, steps: Type | None = None
) -> list[tuple[int, list[Size | None]]] | None:
    """Returns (axis, [start, end, step]) for each cut axis. Returns None if ``axes`` is absent and
    only a run knows the number of ``starts``.

    Raises `ShapeError` if only a run knows the integers of ``axes``.
    """
    chosen: Any = integers(axes)
    if chosen is None:
        if not starts.shape or starts.shape[0] is None:
            return None
        chosen = range(starts.shape[0].number or 0)
    given = [each.sizes for each in (starts, ends)]
    given.append(np.ones(len(chosen), int) if steps is None else steps.sizes)
    columns = [
        [None] * len(chosen) if each is None else list(map(Size.of, each.reshape(-1)))
        for each in given
    ]
    return [(at_axis(axis, rank), [*cut]) for axis, *cut in zip(chosen, *columns, strict=True)]


@sizes_rule
def _slice(context: Context, shape: Sizes, *cuts: Any) -> Sizes:
    known = _cuts(len(shape), *cuts)
    if known is None:
        return (None,) * len(shape)
    for axis, (first, last, step) in known:
        size, taken = shape[axis], None
        if size is not None and first is not None and last is not None and step and step.number:
            taken = cut(size, first, last, step.number, _always)
        shape = with_size(shape, axis, taken[1] if taken else context.fresh(f"cut{axis}"))
    return shape


def cut(
    size: Size, start: Size, end: Size, step: int, holds: Callable[..., bool]
) -> tuple[Size, Size] | None:
    """Returns (first index, count) of the slice [start:end:step] of an axis; None if only a run can
    compute them.

    ``holds(*sizes)`` returns whether these sizes are at least 0; a plan checks this in each call.
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
    whole = start == Size.of(0) and end == size  # takes all of the axis
    if not whole and not holds(start, end - start, size - end):
        return None
    return start, (end - start + (step - 1)).floor_div(step)


def _always(*sizes: Size) -> bool:
    return all(size.signs is not None and size.signs[0] >= 0 for size in sizes)


def _cut_paths(
    _: Any, x: Type, starts: Type, ends: Type, axes: Type | None = None, steps: Type | None = None
) -> list[Path] | None:
    chosen = range(rank_of(starts) and starts.counts[0] or 0) if axes is None else axes.numbers
    return None if chosen is None else over(x, chosen)


def _reach(_: Any, axis: int, x: Type, *cuts: Any) -> Window | None:
    """Returns a window of one element with negative padding: minus the number of elements that the
    slice cuts off at each end.
    """
    first, last, step = dict(_cuts(rank_of(x), *cuts) or ()).get(axis, (None,) * 3)
    if first is None or last is None:
        return None
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


@op("Split", kind="moves", outputs=2**16, type=_parts, sized=True, growth=no_new_bytes)
def split(
    x: Array, sizes: Array | None = None, *, axis: Axis = 0, outputs: int
) -> tuple[Array, ...]:
    """Splits into ``sizes``, or into equal parts, of which the last one may be smaller."""
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
    if x.ndim < 2:  # NumPy turns a vector into a matrix
        raise ShapeError(f"x: expected matrices, got {x.shape}")
    diagonal = 0 if k is None else int(k.reshape(()))
    return np.triu(x, diagonal) if upper else np.tril(x, diagonal)
