"""ONNX operators that tell shapes, and those whose results have shapes made of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import define
from onernn.core.sizes import Size
from onernn.core.types import Type, valued
from onernn.operators import growth
from onernn.operators.rules import broadcast, volume


def checked_sizes(shape: Array) -> tuple[int, ...]:
    """The sizes as integers. Raises `ShapeError` for those below 0."""
    if shape.min(initial=0) < 0:
        raise ShapeError(f"a value of shape {shape.tolist()}: sizes are at least 0")
    return tuple(shape.tolist())


def _shape_type(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type("int64", (None,))
    sizes = [
        context.fresh(f"size{axis}") if size is None else size for axis, size in enumerate(x.shape)
    ]
    return valued("int64", np.array(sizes[context.at.start : context.at.end], object))


define(
    "Shape",
    kind="sizes",
    inputs="x",
    attributes={"start": 0, "end": None},
    drops=True,
    type=_shape_type,
    compute=lambda at, x: np.array(x.shape[at.start : at.end], np.int64),
    growth=growth.no_new_bytes,
)


def _size_type(_: Context, x: Type) -> Type:
    count = None if x.shape is None else volume(x.shape)
    return Type("int64", (), (), count)


define(
    "Size",
    kind="sizes",
    inputs="x",
    drops=True,
    type=_size_type,
    compute=lambda _, x: np.array(x.size, np.int64),
    growth=growth.no_new_bytes,
)


def _asked(shape: Type) -> tuple[Size | None, ...] | None:
    """The shape that an input of integers tells; only its rank, where the numbers are unknown."""
    if shape.sizes is not None:
        return tuple(map(Size.of, shape.sizes))
    rank = shape.shape[0] if shape.shape else None
    return None if rank is None or rank.number is None else (None,) * rank.number


def _expand(_: Any, x: Array, shape: Array) -> Array:
    """Broadcasting both ways: the shape need not be the larger one."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, checked_sizes(shape)))


define(
    "Expand",
    kind="moves",
    inputs="x shape",
    type=lambda _, x, shape: Type(x.dtype, broadcast(x.shape, _asked(shape))),
    compute=_expand,
    growth=growth.expand,
)


def _filled(at: Any, shape: Array) -> Array:
    value = np.asarray(at.value).reshape(-1)
    return np.full(checked_sizes(shape), value[0], value.dtype)


define(
    "ConstantOfShape",
    kind="sizes",
    inputs="shape",
    attributes={"value": np.zeros(1, np.float32)},
    drops=True,
    type=lambda context, shape: Type(np.asarray(context.at.value).dtype.name, _asked(shape)),
    compute=_filled,
    growth=growth.constant_of_shape,
)


def _range(_: Any, start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (np.asarray(number).reshape(()).item() for number in (start, limit, delta))
    if not step:
        raise ShapeError("delta is 0")
    count = max(math.ceil((end - first) / step), 0)
    dtype = np.asarray(start).dtype
    return (first + np.arange(count, dtype=dtype) * dtype.type(step)).astype(dtype)


def _range_type(context: Context, start: Type, limit: Type, delta: Type) -> Type:
    numbers = [each.numbers for each in (start, limit, delta)]
    if any(number is None for number in numbers):
        first, _, step = numbers
        end = limit.value if isinstance(limit.value, Size) else None
        if first == 0 and step == 1 and end is not None and end == end.most():
            return Type(start.dtype, (end,))
        return Type(start.dtype, (context.fresh("count"),))
    return Type(start.dtype, (Size.of(len(range(*(int(n) for n in numbers if n is not None)))),))


define(
    "Range",
    kind="sizes",
    inputs="start limit delta",
    drops=True,
    type=_range_type,
    compute=_range,
    growth=growth.span,
)


def _tile(_: Any, x: Array, repeats: Array) -> Array:
    if len(repeats) != x.ndim:
        raise ShapeError(f"expected {x.ndim} repeats, got {len(repeats)}")
    return np.tile(x, repeats)


def _tiled(_: Context, x: Type, repeats: Type) -> Type:
    times = _asked(repeats)
    if x.shape is None or times is None:
        return Type(x.dtype, x.shape and (None,) * len(x.shape))
    return Type(x.dtype, tuple(map(volume, zip(x.shape, times, strict=True))))


define(
    "Tile",
    kind="moves",
    inputs="x repeats",
    drops=True,
    type=_tiled,
    compute=_tile,
    growth=growth.tile,
)
