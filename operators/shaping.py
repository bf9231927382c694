"""ONNX operators that give elements another shape or another place, by name and meaning.

Where opsets differ these are the newest forms: axes, sizes and positions come as inputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, along_axis, define
from onernn.core.sizes import Size
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.rules import (
    ONE,
    at_axis,
    common,
    integers,
    same,
    volume,
    with_size,
)

FAR = 2**31 - 1
"""A Slice to here takes all that is left: exporters write the largest number of 32 or 64 bits."""

define(
    "Identity",
    kind="view",
    inputs="x",
    type=same,
    compute=lambda _, x: x,
    sized=True,
    growth=growth.no_new_bytes,
)


def _perm(at: Any, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)[::-1] if at.perm is None else at.perm)


def _transposed(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    perm = _perm(context.at, len(x.shape))
    if sorted(perm) != list(range(len(x.shape))):
        raise ShapeError(f"perm {perm} of {len(x.shape)} axes")
    return Type(x.dtype, tuple(x.shape[at] for at in perm))


define(
    "Transpose",
    kind="moves",
    inputs="x",
    attributes={"perm": None},
    mixes=lambda at, rank: () if _perm(at, rank)[:1] == (0,) else (0,),
    type=_transposed,
    compute=lambda at, x: x.transpose(at.perm),
    growth=growth.no_new_bytes,
)


def _squeeze(_: Any, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze(None if axes is None else tuple(axes.tolist()))


def _squeezed(_: Context, x: Type, axes: Type | None = None) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    if axes is None:
        if any(size is None or size.number is None for size in x.shape):
            return Type(x.dtype)
        return Type(x.dtype, tuple(size for size in x.shape if size != ONE))
    gone = {at_axis(axis, len(x.shape)) for axis in integers(axes) or ()}
    return Type(x.dtype, tuple(size for at, size in enumerate(x.shape) if at not in gone))


define(
    "Squeeze",
    kind="view",
    inputs="x #axes?",
    drops=lambda _, rank, axes=None: axes is not None and any(a in (0, -rank) for a in axes),
    type=_squeezed,
    compute=_squeeze,
    sized=True,
    growth=growth.no_new_bytes,
)


def _unsqueeze(_: Any, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(axes.tolist()))


def _unsqueezed(_: Context, x: Type, axes: Type) -> Type:
    new = integers(axes) or []
    if x.shape is None:
        return Type(x.dtype)
    rank, rest = len(x.shape) + len(new), iter(x.shape)
    places = {at_axis(axis, rank) for axis in new}
    return Type(x.dtype, tuple(ONE if at in places else next(rest) for at in range(rank)))


define(
    "Unsqueeze",
    kind="view",
    inputs="x #axes",
    drops=lambda _, rank, axes: any(a in (0, -rank - len(axes)) for a in axes),
    type=_unsqueezed,
    compute=_unsqueeze,
    sized=True,
    growth=growth.no_new_bytes,
)


def _joined(context: Context, *parts: Type) -> Type:
    shapes = [part.shape for part in parts if part.shape is not None]
    if not shapes:
        return Type(common(*parts))
    along = at_axis(context.at.axis, len(shapes[0]))
    lengths = [shape[along] for shape in shapes]
    known = None not in lengths and len(shapes) == len(parts)
    whole = sum(filter(None, lengths), Size(())) if known else None
    shape = tuple(
        whole if at == along else context.same(*sizes)
        for at, sizes in enumerate(zip(*shapes, strict=True))
    )
    return Type(common(*parts), shape)


define(
    "Concat",
    kind="moves",
    inputs="first rest*",
    attributes={"axis": REQUIRED},
    mixes=along_axis,
    type=_joined,
    compute=lambda at, *parts: np.concatenate(parts, axis=at.axis),
    sized=True,
    growth=growth.joined,
)


def _flatten(at: Any, x: Array) -> Array:
    return x.reshape(math.prod(x.shape[: at.axis]), math.prod(x.shape[at.axis :]))


def _flattened(context: Context, x: Type) -> Type:
    if x.shape is None:
        return Type(x.dtype, (None, None))
    cut = context.at.axis
    return Type(x.dtype, (volume(x.shape[:cut]), volume(x.shape[cut:])))


define(
    "Flatten",
    kind="view",
    inputs="x",
    attributes={"axis": 1},
    mixes=along_axis,
    type=_flattened,
    compute=_flatten,
    growth=growth.no_new_bytes,
)


def _reshape(at: Any, x: Array, shape: Array) -> Array:
    """A size of 0 is that of the input, unless allowzero."""
    sizes = [
        x.shape[place] if size == 0 and not at.allowzero else size
        for place, size in enumerate(shape.tolist())
    ]
    return x.reshape(sizes)


def _reshaped(context: Context, x: Type, shape: Type) -> Type:
    asked = shape.sizes
    if asked is None:
        rank = shape.shape[0] if shape.shape else None
        known = None if rank is None else rank.number
        return Type(x.dtype, None if known is None else (None,) * known)
    sizes: list[Size | None] = [Size.of(size) for size in asked]
    for at, size in enumerate(sizes):
        if size == Size(()) and not context.at.allowzero:
            sizes[at] = None if x.shape is None else x.shape[at]
    if Size.of(-1) in sizes:
        at = sizes.index(Size.of(-1))
        rest = volume([*sizes[:at], *sizes[at + 1 :]])
        whole = None if x.shape is None else volume(x.shape)
        sizes[at] = _quotient(whole, rest)
    return Type(x.dtype, tuple(sizes))


def _quotient(whole: Size | None, by: Size | None) -> Size | None:
    if whole is None or by is None or by == Size(()):
        return None
    try:
        return whole // by
    except ValueError:
        return None


define(
    "Reshape",
    kind="view",
    inputs="x shape",
    attributes={"allowzero": 0},
    type=_reshaped,
    compute=_reshape,
    sized=True,
)


def _check_backwards(size: int, start: int, end: int, step: int) -> None:
    """Where ONNX's text, its reference and ONNX Runtime 1.32 do not cut the same, nobody does.

    To the largest number ONNX Runtime takes all; from before the axis the reference takes nothing.
    """
    if step < 0 and (end in (FAR, 2**63 - 1) or start < -max(size, 1)):
        raise ShapeError(f"nobody agrees what [{start}:{end}:{step}] takes of {size} elements")


def _slice(
    _: Any,
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    chosen = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    at = [slice(None)] * x.ndim
    for axis, *cut in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
        _check_backwards(x.shape[axis], *cut)
        at[axis] = slice(*cut)
    return x[tuple(at)]


def _sliced(
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
    cuts = [None if each is None else each.sizes for each in (starts, ends, steps)]
    for at, axis in enumerate(chosen):
        first, last, step = (None if cut is None else Size.of(cut.reshape(-1)[at]) for cut in cuts)
        place = at_axis(axis, len(out))
        size = _cut(out[place], first, last, ONE if steps is None else step)
        out = with_size(out, place, context.fresh(f"cut{place}") if size is None else size)
    return Type(x.dtype, out)


def _cut(size: Size | None, *cut: Size | None) -> Size | None:
    """How much of an axis [first:last:step] takes, None where its size does not tell."""
    first, last, step = (None if each is None else each.number for each in cut)
    if size is None or first is None or step is None:
        return None
    if size.number is not None and last is not None:
        _check_backwards(size.number, first, last, step)
        return Size.of(len(range(*slice(first, last, step).indices(size.number))))
    if first >= 0 and step == 1 and last is not None and (last < 0 or last >= FAR):
        taken = size - first + min(last, 0)
        if taken.signs is not None and taken.signs[0] >= 0:  # whatever the size is
            return taken
    forwards = first == 0 and (last is None and cut[1] == size or (last or 0) >= FAR)
    backwards = (first == -1 or first >= FAR) and (last or 0) <= -FAR
    whole = forwards and step > 0 or backwards and step < 0
    return (size + (abs(step) - 1)).floor_div(abs(step)) if whole else None


define(
    "Slice",
    kind="moves",
    inputs="x starts ends #axes? steps?",
    mixes=lambda _, rank, starts, ends, axes=None, steps=None: (
        range(rank) if axes is None else axes.tolist()
    ),
    type=_sliced,
    compute=_slice,
    sized=True,
    growth=growth.no_new_bytes,
)


def _split(at: Any, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    """Into ``sizes``; without these into equal parts, the last one may be smaller."""
    whole, parts = x.shape[at.axis], at.outputs
    if sizes is None:
        ends = np.minimum(np.arange(1, parts + 1) * -(-whole // parts), whole)
    else:
        ends = np.cumsum(sizes)
        if len(sizes) != parts or sizes.min(initial=0) < 0 or ends[-1] != whole:
            raise ShapeError(f"split {sizes.tolist()}: expected {parts} sizes that sum to {whole}")
    return tuple(np.split(x, ends[:-1], axis=at.axis))


def _parts(context: Context, x: Type, sizes: Type | None = None) -> tuple[Type, ...]:
    parts, axis = context.at.outputs, context.at.axis
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


define(
    "Split",
    kind="moves",
    inputs="x sizes?",
    attributes={"axis": 0},
    outputs=2**16,
    mixes=along_axis,
    type=_parts,
    compute=_split,
    growth=growth.no_new_bytes,
)


def _trilu(at: Any, x: Array, k: Array | None = None) -> Array:
    if x.ndim < 2:  # NumPy makes a matrix of a vector
        raise ShapeError(f"Trilu: expected matrices, got {x.shape}")
    diagonal = 0 if k is None else int(k.reshape(()))
    return np.triu(x, diagonal) if at.upper else np.tril(x, diagonal)


define(
    "Trilu",
    kind="mixes",
    inputs="x k?",
    attributes={"upper": 1},
    mixes=lambda at, rank, *_: (rank - 2,),
    type=same,
    compute=_trilu,
    since=14,
)
