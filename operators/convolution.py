"""ONNX's convolutions, by name and meaning: (N, C, ...) over one axis or more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import define
from onernn.core.ragged import data_of
from onernn.core.sizes import Size
from onernn.core.types import Type, dense
from onernn.operators.rules import common
from onernn.operators.windows import (
    ATTRIBUTES,
    Window,
    bytes_padded,
    numbers,
    placed,
    places,
    seen,
    windows_of,
)

_AT_ONCE = 2**22
"""Elements that windows see, copied for one product: with more, images go one by one."""


def _checked(at: Any, x: Array, w: Array, bias: Array | None, *, back: bool = False) -> None:
    """Raises `ShapeError`. ``back``: the weights are those of a convolution the other way."""
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ShapeError(f"expected (N, C, ...) and weights of as many axes: {x.shape}, {w.shape}")
    if x.dtype.kind != "f" or w.dtype != x.dtype:
        raise ShapeError(f"expected floats of one type, got {x.dtype} and weights {w.dtype}")
    if at.kernel_shape is not None and tuple(at.kernel_shape) != w.shape[2:]:
        raise ShapeError(f"attribute kernel_shape={at.kernel_shape}, weights of {w.shape}")
    whole, part = len(w), w.shape[1] * at.group
    taken, made = (whole, part) if back else (part, whole)
    if at.group < 1 or x.shape[1] != taken or whole % at.group:
        raise ShapeError(f"weights of {w.shape} in {at.group} groups do not fit {x.shape}")
    if bias is not None and (bias.shape != (made,) or bias.dtype != x.dtype):
        raise ShapeError(f"bias: expected {x.dtype} ({made},), got {bias.dtype} {bias.shape}")


def _at_once(count: int, image: int) -> list[slice]:
    """The images that one product takes."""
    step = max(_AT_ONCE // max(image, 1), 1)
    return [slice(first, first + step) for first in range(0, count, step)]


def _conv(at: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    """What a window sees is a column of a matrix."""
    windows, groups = placed(windows_of(at, w.shape[2:]), x), at.group
    _checked(at, x, w, bias)
    counts = places(windows, x.shape[2:])
    axes, count, depth = len(windows), math.prod(counts), math.prod(w.shape[1:])
    kernels = w.reshape(groups, len(w) // groups, depth)
    out = np.empty((len(x), groups, len(w) // groups, count), x.dtype)
    taps_first = (0, 1, *range(axes + 2, 2 * axes + 2), *range(2, axes + 2))
    for part in _at_once(len(x), groups * depth * count):
        columns = seen(x[part], windows, 0, counts).transpose(taps_first)
        np.matmul(kernels, columns.reshape(-1, groups, depth, count), out=out[part])
    return _with_bias(out.reshape(len(x), len(w), *counts), bias)


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape(-1, *[1] * (y.ndim - 2))


def _conv_type(context: Context, x: Type, w: Type, bias: Type | None = None) -> Type:
    return _type(context, x, w, w.shape[0] if w.shape else None, places)


def _type(context: Context, x: Type, w: Type, channels: Size | None, sizes: Any) -> Type:
    """``sizes(windows, sizes)``: of the axes behind the channels."""
    dtype = common(x, w)
    if x.shape is None or w.shape is None:
        return Type(dtype)
    kernel = context.at.kernel_shape or [size and size.number for size in w.shape[2:]]
    if None in kernel:
        return Type(dtype, (x.shape[0], channels, *[None] * len(kernel)))
    found = sizes(windows_of(context.at, kernel), x.shape[2:])
    return dense(dtype, (x.shape[0], channels, *found))


def _conv_growth(at: Any, x: Any, w: Any, bias: Any = None) -> int:
    """The columns of all images together are at least those of one."""
    x, w = data_of(x), data_of(w)
    windows = placed(windows_of(at, w.shape[2:]), x)
    counts = places(windows, x.shape[2:])
    row = max(len(x), 1) * math.prod(counts) * x.dtype.itemsize
    columns = row * max(math.prod((x.shape[1], *w.shape[2:])), 1)
    return bytes_padded(x, windows, counts) + 2 * row * len(w) + columns


define(
    "Conv",
    kind="mixes",
    inputs="x w bias?",
    attributes={**ATTRIBUTES, "group": 1, "kernel_shape": None},
    since=7,
    type=_conv_type,
    compute=_conv,
    growth=_conv_growth,
)


def reached_along(
    at: Any, windows: Sequence[Window], sizes: Sequence[Any]
) -> list[tuple[Any, int]]:
    """(the size of the result, what is cut off before it) of each axis, of numbers or `Size`.

    Raises `ShapeError` where more is asked for than windows reach: ONNX does not say what is there.
    """
    more = numbers("output_padding", at.output_padding, len(windows), 0)
    told = at.output_shape and numbers("output_shape", at.output_shape, len(windows), 1)
    found: list[tuple[Any, int]] = []
    for axis, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        asked = told[axis] if told else size * window.stride if window.same else None
        if size is None or isinstance(size, Size) and told:  # a run knows what is cut off
            found.append((asked, 0))
            continue
        reach = size * window.stride + (window.extent - window.stride + more[axis])
        before, after = window.before, window.after
        if asked is not None:
            cut: Any = reach - asked
            cut = cut.number if isinstance(cut, Size) else cut
            before, after = cut // 2, cut - cut // 2
            if at.auto_pad != "SAME_UPPER":
                before, after = after, before
            if before < 0 or told is None and after < 0:
                raise ShapeError(f"axis {axis + 2}: windows reach {-cut} elements less than asked")
        found.append((reach - (before + after), before))
    return found


def _conv_transpose(at: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Each element lays the weights, times itself, around its place."""
    _checked(at, x, w, bias, back=True)
    windows, sizes, groups = windows_of(at, w.shape[2:]), x.shape[2:], at.group
    reached = reached_along(at, windows, sizes)
    if any(size < 1 for size, _ in reached):
        raise ShapeError(f"gives axes of {[size for size, _ in reached]} elements")
    channels, count = w.shape[1] * groups, math.prod(sizes)
    kernels = w.reshape(groups, len(w) // groups, math.prod(w.shape[1:])).swapaxes(1, 2)
    out = np.zeros((len(x), channels, *_whole(windows, sizes, reached)), x.dtype)
    for part in _at_once(len(x), channels * math.prod(w.shape[2:]) * count):
        made = kernels @ x[part].reshape(-1, groups, len(w) // groups, count)
        made = made.reshape(-1, channels, *w.shape[2:], *sizes)
        for taps in np.ndindex(*w.shape[2:]):
            laid = zip(windows, taps, sizes, strict=True)
            there = [window.tap(tap, size) for window, tap, size in laid]
            out[(part, slice(None), *there)] += made[(slice(None), slice(None), *taps)]
    kept = [slice(before, before + size) for size, before in reached]
    return _with_bias(out[(slice(None), slice(None), *kept)], bias)


def _whole(
    windows: Sequence[Window], sizes: Sequence[int], reached: Sequence[tuple[int, int]]
) -> list[int]:
    """The sizes before anything is cut off."""
    rows = zip(windows, sizes, reached, strict=True)
    return [max(window.reach(size), before + kept) for window, size, (kept, before) in rows]


def _conv_transpose_type(context: Context, x: Type, w: Type, bias: Type | None = None) -> Type:
    def sizes(windows: Sequence[Window], sizes: Sequence[Any]) -> list[Any]:
        return [size for size, _ in reached_along(context.at, windows, sizes)]

    part = w.shape[1] if w.shape else None
    return _type(context, x, w, None if part is None else part * context.at.group, sizes)


def _conv_transpose_growth(at: Any, x: Any, w: Any, bias: Any = None) -> int:
    x, w = data_of(x), data_of(w)
    windows, sizes = windows_of(at, w.shape[2:]), x.shape[2:]
    rows = max(len(x), 1) * w.shape[1] * at.group * x.dtype.itemsize
    whole = _whole(windows, sizes, reached_along(at, windows, sizes))
    return rows * (2 * math.prod(whole) + 2 * math.prod((*w.shape[2:], *sizes)))


define(
    "ConvTranspose",
    kind="mixes",
    inputs="x w bias?",
    attributes={
        **ATTRIBUTES,
        "group": 1,
        "kernel_shape": None,
        "output_padding": None,
        "output_shape": None,
    },
    since=7,
    type=_conv_transpose_type,
    compute=_conv_transpose,
    growth=_conv_transpose_growth,
)
