"""ONNX's pooling, by name and meaning: (N, C, ...), windows over each channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.ragged import data_of
from onernn.core.types import Type
from onernn.operators.rules import ONE
from onernn.operators.windows import (
    ATTRIBUTES,
    Window,
    bytes_padded,
    padded,
    placed,
    places,
    seen,
    windows_of,
)

_ATTRIBUTES = {**ATTRIBUTES, "ceil_mode": 0, "kernel_shape": REQUIRED}


def _windows(at: Any) -> list[Window]:
    windows = windows_of(at, at.kernel_shape)
    if any(max(w.before, w.after) >= w.size for w in windows):
        raise ShapeError(f"attribute pads={at.pads}: a window sees nothing but what is added")
    if at.ceil_mode and at.auto_pad == "VALID":
        raise ShapeError("attributes ceil_mode and auto_pad=VALID: nobody says what both mean")
    return windows


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _reduced(x: Array, windows: list[Window], fill: Any, counts: Any, both: np.ufunc) -> Array:
    """What windows see as one number, axis by axis."""
    x = padded(x, windows, fill, counts)
    for axis, (window, count) in enumerate(zip(windows, counts, strict=True), 2):
        lines = x.swapaxes(0, axis)
        taps = (lines[window.tap(at, count)] for at in range(window.size))
        x = reduce(both, taps).swapaxes(0, axis)
    return x


def _max_pool(at: Any, x: Array) -> Any:
    """(the largest, where it stands in x as x is flat)."""
    ceil = bool(at.ceil_mode)
    windows = placed(_windows(at), x, ceil)
    counts = places(windows, x.shape[2:], ceil)
    top = _reduced(x, windows, _lowest(x.dtype), counts, np.maximum)
    return top if at.outputs == 1 else (top, _positions(at, x, windows, top))


def _positions(at: Any, x: Array, windows: list[Window], top: Array) -> Array:
    """Of equal ones the first; of NaN and others, too."""
    axes, counts = len(windows), top.shape[2:]
    parts = seen(x, windows, 0, counts)
    inside = seen(np.ones((1, 1, *x.shape[2:]), bool), windows, False, counts)
    largest = ~(parts < top.reshape(*top.shape, *[1] * axes)) & inside
    taps = np.unravel_index(largest.reshape(*top.shape, -1).argmax(-1), parts.shape[-axes:])
    images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * axes)
    found = images * math.prod(x.shape[2:])
    for axis, (window, tap) in enumerate(zip(windows, taps, strict=True), 2):
        inner = x.shape[2:axis] if at.storage_order else x.shape[axis + 1 :]
        first = np.arange(counts[axis - 2]) * window.stride - window.before
        place = first.reshape(-1, *[1] * (x.ndim - 1 - axis)) + tap * window.dilation
        found = found + place * math.prod(inner)
    return found


def _floats(x: Array) -> None:
    if x.dtype.kind != "f":
        raise ShapeError(f"expected floats, got {x.dtype}")


def _inside(window: Window, count: int, low: int, high: int) -> Array:
    """How many elements of each place stand from low to high."""
    starts = np.arange(count) * window.stride - window.before
    at = starts[:, None] + np.arange(window.size) * window.dilation
    return ((at >= low) & (at < high)).sum(1)


def _average_pool(at: Any, x: Array) -> Array:
    """What ``ceil_mode`` sees behind all pads never counts."""
    _floats(x)
    windows, ceil = placed(_windows(at), x, bool(at.ceil_mode)), bool(at.ceil_mode)
    counts = places(windows, x.shape[2:], ceil)
    divisor: Any = 1
    for axis, (window, size) in enumerate(zip(windows, x.shape[2:], strict=True)):
        low, high = (-window.before, size + window.after) if at.count_include_pad else (0, size)
        column = _inside(window, counts[axis], low, high)
        divisor = divisor * column.reshape(-1, *[1] * (len(windows) - 1 - axis))
    return _reduced(x, windows, 0, counts, np.add) / divisor.astype(x.dtype)


def _pooled(*more: str) -> Callable[..., Any]:
    """The type of the result; others have its shape."""

    def rule(context: Context, x: Type) -> tuple[Type, ...]:
        if x.shape is None:
            return Type(x.dtype), *map(Type, more)
        windows, sizes = _windows(context.at), x.shape[2:]
        if len(windows) != len(sizes):
            raise ShapeError(f"windows over {len(windows)} axes")
        found = places(windows, sizes, bool(context.at.ceil_mode))
        return tuple(Type(each, (*x.shape[:2], *found)) for each in (x.dtype, *more))

    return rule


def _growth(at: Any, x: Any) -> int:
    """With all that windows see where positions are asked for, in integers."""
    x, ceil = data_of(x), bool(at.ceil_mode)
    windows = placed(_windows(at), x, ceil)
    counts = places(windows, x.shape[2:], ceil)
    positions = math.prod(window.size for window in windows) + 32 if at.outputs > 1 else 0
    made = math.prod((*x.shape[:2], *counts)) * (x.dtype.itemsize + positions)
    return 3 * bytes_padded(x, windows, counts) + made


define(
    "MaxPool",
    kind="mixes",
    inputs="x",
    attributes={**_ATTRIBUTES, "storage_order": 0},
    outputs=2,
    since=8,
    keeps=True,
    type=_pooled("int64"),
    compute=_max_pool,
    growth=_growth,
)

define(
    "AveragePool",
    kind="mixes",
    inputs="x",
    attributes={**_ATTRIBUTES, "count_include_pad": 0},
    since=7,
    type=_pooled(),
    compute=_average_pool,
    growth=_growth,
)


def _global(context: Context, x: Type) -> Type:
    return Type(x.dtype, x.shape and (*x.shape[:2], *[ONE] * len(x.shape[2:])))


def _over_all(reduction: Any) -> Callable[..., Array]:
    def run(_: Any, x: Array) -> Array:
        _floats(x)
        if x.ndim < 3 or not x[:1, :1].size:
            raise ShapeError(f"expected (N, C, ...) with elements, got {x.shape}")
        return np.asarray(reduction(x, axis=tuple(range(2, x.ndim)), keepdims=True), x.dtype)

    return run


for _name, _reduction in {"Average": np.mean, "Max": np.max}.items():
    define(
        f"Global{_name}Pool",
        kind="mixes",
        inputs="x",
        since=7,
        keeps=_reduction is np.max,
        type=_global,
        compute=_over_all(_reduction),
    )
