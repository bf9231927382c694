"""ONNX's Resize, by name and meaning: axis by axis, each result is a weighted sum of elements.

Coordinates are computed in float32, as ONNX Runtime does: some lie in the middle of two elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import define
from onernn.core.ragged import data_of
from onernn.core.records import dataclass
from onernn.core.sizes import Size
from onernn.core.types import Type
from onernn.operators.rules import at_axis, with_size

_F32 = np.float32


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis of ``size`` elements that becomes one of ``wanted``; begin and end of its region.

    ``exact``: it was not rounded down to them.
    """

    at: int
    size: int
    wanted: int
    exact: bool
    scale: np.float32
    begin: np.float32
    end: np.float32


def _axes(at: Any, rank: int) -> list[int]:
    axes = range(rank) if at.axes is None else at.axes
    found = [at_axis(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise ShapeError(f"attribute axes={at.axes}: an axis twice")
    return found


def _resized(
    at: Any, x: Array, roi: Array | None, scales: Array | None, sizes: Array | None
) -> list[_Axis]:
    """What changes. Raises `ShapeError` for what cannot be, or what nobody defines."""
    axes = _axes(at, x.ndim)
    given = (at.scales or None) if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else sizes
    if (given is None) == (sizes is None):
        raise ShapeError("expected scales or sizes, and not both")
    numbers = np.asarray(given if sizes is None else sizes).reshape(-1)
    if len(numbers) != len(axes) or not np.isfinite(numbers).all() or (numbers <= 0).any():
        raise ShapeError(f"expected {len(axes)} positive numbers, got {numbers.tolist()}")
    whole = np.array([x.shape[axis] for axis in axes])
    crops = at.coordinate_transformation_mode == "tf_crop_and_resize"
    region = np.array([0] * len(axes) + [1] * len(axes)) if not crops or roi is None else roi
    if region.shape != (2 * len(axes),):
        raise ShapeError(f"roi: expected {2 * len(axes)} numbers, got {region.tolist()}")
    begin, end = np.asarray(region, _F32).reshape(2, -1)
    if sizes is None:
        factors = numbers.astype(_F32)
        told = factors * whole.astype(_F32) * (end - begin)
    else:
        factors, told = _factors(at, numbers, whole), numbers
        if at.keep_aspect_ratio_policy != "stretch":
            told = np.floor(factors * whole.astype(_F32) + _F32(0.5))
    wanted = np.floor(told).astype(float).tolist()
    rows = zip(axes, whole.tolist(), wanted, wanted == told, factors, begin, end, strict=True)
    found = [_Axis(axis, size, int(want), *more) for axis, size, want, *more in rows]
    return [one for one in found if one.size != one.wanted or one.scale != 1 or crops]


def _factors(at: Any, sizes: Array, whole: Array) -> Array:
    """The scales that sizes tell."""
    factors = sizes.astype(_F32) / np.maximum(whole, 1).astype(_F32)  # of none nothing is made
    policy = at.keep_aspect_ratio_policy
    if policy == "stretch":
        return factors
    if policy not in ("not_larger", "not_smaller"):
        raise ShapeError(f"attribute keep_aspect_ratio_policy={policy!r} is not one of ONNX")
    return np.full_like(factors, factors.min() if policy == "not_larger" else factors.max())


def _coordinates(mode: str, axis: _Axis) -> Array:
    """Where each element of the result is among those of the axis."""
    at = np.arange(axis.wanted, dtype=_F32)
    size, wanted, scale, half = _F32(axis.size), _F32(axis.wanted), axis.scale, _F32(0.5)
    if mode == "half_pixel":
        return (at + half) / scale - half
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - wanted / (scale * size))
        return offset + (at + half) / scale - half
    if mode == "pytorch_half_pixel" and (axis.exact or axis.wanted > 1):
        return (at + half) / scale - half if axis.wanted > 1 else at
    if mode == "align_corners" and axis.exact:
        return at * (size - 1) / max(axis.wanted - 1, 1)
    if mode == "tf_crop_and_resize" and axis.exact:
        if axis.wanted == 1:
            return at + half * (axis.begin + axis.end) * (size - 1)
        steps = at * (axis.end - axis.begin) * (size - 1) / (wanted - 1)
        return axis.begin * (size - 1) + steps
    if mode in ("pytorch_half_pixel", "align_corners", "tf_crop_and_resize"):
        raise ShapeError(
            f"attribute coordinate_transformation_mode={mode}: {axis.size} elements times"
            f" {scale} is no whole number, and nobody agrees what that means; give sizes"
        )
    raise ShapeError(f"attribute coordinate_transformation_mode={mode!r} is not one of ONNX")


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda rest: rest > 0.5,
    "round_prefer_ceil": lambda rest: rest >= 0.5,
    "floor": lambda rest: rest < 0,
    "ceil": lambda rest: rest > 0,
}
"""Whether the next element is the nearest one, for what is behind the point."""


def _nearest(at: Any, where: Array) -> Array:
    if at.nearest_mode not in _ROUNDED:
        raise ShapeError(f"attribute nearest_mode={at.nearest_mode!r} is not one of ONNX")
    before = np.floor(where)
    return before + _ROUNDED[at.nearest_mode](where - before)


def _resize(
    at: Any,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Array:
    changed = _resized(at, x, roi, scales, sizes)
    if at.mode not in ("nearest", "linear"):
        raise ShapeError(f"attribute mode={at.mode!r}: only nearest and linear are computed")
    if at.antialias and at.mode != "nearest" and any(one.wanted < one.size for one in changed):
        raise ShapeError("attribute antialias=1 is not computed")
    if at.mode == "linear" and x.dtype.kind != "f":
        raise ShapeError(f"attribute mode=linear is of floats, got {x.dtype}")
    dtype, outside = x.dtype, np.zeros((1,) * x.ndim, bool)
    for one in changed:
        if one.wanted and not one.size:
            raise ShapeError(f"axis {one.at} has no elements, {one.wanted} are asked for")
        where = _coordinates(at.coordinate_transformation_mode, one)
        column = (-1, *[1] * (x.ndim - 1 - one.at))
        if at.coordinate_transformation_mode == "tf_crop_and_resize":
            outside = outside | ((where < 0) | (where > one.size - 1)).reshape(column)
        if at.mode == "nearest":
            nearest = np.clip(_nearest(at, where), 0, one.size - 1)
            x = np.take(x, nearest.astype(np.int64), one.at)
            continue
        where = np.clip(where, 0, one.size - 1)
        before = np.floor(where).astype(np.int64)
        after = np.minimum(before + 1, one.size - 1)
        rest = (where - before).reshape(column).astype(dtype)
        x = np.take(x, before, one.at) * (1 - rest) + np.take(x, after, one.at) * rest
    return np.where(outside, dtype.type(at.extrapolation_value), x) if outside.any() else x


def _resized_type(
    context: Context,
    x: Type,
    roi: Type | None = None,
    scales: Type | None = None,
    sizes: Type | None = None,
) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    at, shape = context.at, x.shape
    axes = _axes(at, len(shape))
    told = None if sizes is None else sizes.sizes
    crops = at.coordinate_transformation_mode == "tf_crop_and_resize"
    for k, axis in enumerate(axes):
        size: Size | None = None
        if told is not None and at.keep_aspect_ratio_policy == "stretch":
            size = Size.of(told[k])
        elif at.scales and not crops:
            size = _scaled(shape[axis], at.scales[k])
        shape = with_size(shape, axis, size)
    return Type(x.dtype, shape)


def _scaled(size: Size | None, scale: float) -> Size | None:
    """``size`` times a scale, rounded down; None where float32 may round it to another number."""
    if size is None:
        return None
    if size.number is not None:
        return Size.of(int(np.floor(_F32(scale) * _F32(size.number))))
    over, under = float(scale).as_integer_ratio()
    return (size * over).floor_div(under) if under <= 2**10 and over <= 2**10 else None


def _growth(at: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> int:
    x = data_of(x)
    shape = list(x.shape)
    most = 0
    for one in _resized(at, x, roi, scales, sizes):
        shape[one.at] = one.wanted
        most = max(most, math.prod(shape) * x.dtype.itemsize + 32 * one.wanted)
    return 4 * most


def _along(at: Any, rank: int, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """The axes that change; of sizes nobody knows here whether they are new."""
    given = at.scales if scales is None else scales
    axes = _axes(at, rank)
    if not len(given) or at.coordinate_transformation_mode == "tf_crop_and_resize":
        return axes
    return [axis for axis, scale in zip(axes, given, strict=True) if scale != 1]


define(
    "Resize",
    kind="mixes",
    inputs="x roi? scales? sizes?",
    attributes={
        "antialias": 0,
        "axes": None,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
        "scales": (),  # our own: constant ones, so that types know them
    },
    mixes=_along,
    since=10,
    type=_resized_type,
    compute=_resize,
    growth=_growth,
)
