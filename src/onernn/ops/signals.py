"""ONNX's Resize and Fourier transforms.

Resize computes axis by axis: each result is a weighted sum of elements. Coordinates are computed in
float32, the same as in ONNX Runtime: for a coordinate close to the middle between two elements,
rounding decides which element is nearest. Inputs and results of transforms are (..., 1) if real and
(..., 2) if complex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context
from onernn.ir.operator import Axes, Path, at_axis, op, over, rank_of
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.types import Size, Type
from onernn.ops.rules import ONE, Sizes, sizes_rule, with_size

_F32 = np.float32


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis that Resize changes from ``size`` to ``target`` elements.

    ``exact``: whether ``target`` was an integer before rounding. ``begin``, ``end``: the region of
    interest.
    """

    at: int
    size: int
    target: int
    exact: bool
    scale: np.float32
    begin: np.float32
    end: np.float32


def _axes(attrs: Any, rank: int) -> list[int]:
    axes = range(rank) if attrs.axes is None else attrs.axes
    result = [at_axis(axis, rank) for axis in axes]
    if len(set(result)) < len(result):
        raise ShapeError(f"attribute axes={attrs.axes}: expected each axis once")
    return result


def _find_resized(
    attrs: Any,
    shape: tuple[int, ...],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
) -> list[_Axis]:
    """Returns the axes that change. Raises `ShapeError` for invalid scales, sizes or regions."""
    axes = _axes(attrs, len(shape))
    scales = (attrs.scales or None) if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else sizes
    if (scales is None) == (sizes is None):
        got = "neither" if sizes is None else "both"
        raise ShapeError(f"scales and sizes: expected one of them, got {got}")
    numbers = np.asarray(scales if sizes is None else sizes).reshape(-1)
    if len(numbers) != len(axes) or not np.isfinite(numbers).all() or (numbers <= 0).any():
        which = "scales" if sizes is None else "sizes"
        expected = f"expected {len(axes)} positive numbers"
        raise ShapeError(f"{which}: {expected}, got {numbers.tolist()}")
    lengths = np.array([shape[axis] for axis in axes])
    crops = attrs.coordinate_transformation_mode == "tf_crop_and_resize"
    region = np.array([0] * len(axes) + [1] * len(axes)) if not crops or roi is None else roi
    if region.shape != (2 * len(axes),):
        raise ShapeError(f"roi: expected {2 * len(axes)} numbers, got {region.tolist()}")
    begin, end = np.asarray(region, _F32).reshape(2, -1)
    if sizes is None:
        factors = numbers.astype(_F32)
        exact = factors * lengths.astype(_F32) * (end - begin)
    else:
        factors, exact = _factors(attrs, numbers, lengths), numbers
        if attrs.keep_aspect_ratio_policy != "stretch":
            exact = np.floor(factors * lengths.astype(_F32) + _F32(0.5))
    targets = np.floor(exact).astype(float).tolist()
    rows = zip(axes, lengths.tolist(), targets, targets == exact, factors, begin, end, strict=True)
    result = [_Axis(axis, size, int(target), *more) for axis, size, target, *more in rows]
    return [axis for axis in result if axis.size != axis.target or axis.scale != 1 or crops]


def _factors(attrs: Any, sizes: Array, lengths: Array) -> Array:
    factors = sizes.astype(_F32) / np.maximum(lengths, 1).astype(_F32)  # avoids a division by 0
    policy = attrs.keep_aspect_ratio_policy
    if policy == "stretch":
        return factors
    if policy not in ("not_larger", "not_smaller"):
        expected = "expected stretch, not_larger or not_smaller"
        raise ShapeError(f"attribute keep_aspect_ratio_policy={policy!r}: {expected}")
    return np.full_like(factors, factors.min() if policy == "not_larger" else factors.max())


def _coordinates(mode: str, axis: _Axis) -> Array:
    at = np.arange(axis.target, dtype=_F32)
    size, target, scale, half = _F32(axis.size), _F32(axis.target), axis.scale, _F32(0.5)
    if mode == "half_pixel":
        return (at + half) / scale - half
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - target / (scale * size))
        return offset + (at + half) / scale - half
    if mode == "pytorch_half_pixel" and (axis.exact or axis.target > 1):
        return (at + half) / scale - half if axis.target > 1 else at
    if mode == "align_corners" and axis.exact:
        return at * (size - 1) / max(axis.target - 1, 1)
    if mode == "tf_crop_and_resize" and axis.exact:
        if axis.target == 1:
            return at + half * (axis.begin + axis.end) * (size - 1)
        steps = at * (axis.end - axis.begin) * (size - 1) / (target - 1)
        return axis.begin * (size - 1) + steps
    if mode in ("pytorch_half_pixel", "align_corners", "tf_crop_and_resize"):
        raise ShapeError(
            f"attribute coordinate_transformation_mode={mode}: {axis.size} elements times"
            f" {scale} is not an integer, and implementations round it differently; export the"
            " model with sizes"
        )
    raise ShapeError(f"attribute coordinate_transformation_mode={mode!r}: expected a mode of ONNX")


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda rest: rest > 0.5,
    "round_prefer_ceil": lambda rest: rest >= 0.5,
    "floor": lambda rest: rest < 0,
    "ceil": lambda rest: rest > 0,
}
"""Functions of a coordinate's fractional part, which return whether the rounded coordinate is the
next integer.
"""


def _nearest(attrs: Any, where: Array) -> Array:
    if attrs.nearest_mode not in _ROUNDED:
        expected = f"expected one of {', '.join(_ROUNDED)}"
        raise ShapeError(f"attribute nearest_mode={attrs.nearest_mode!r}: {expected}")
    before = np.floor(where)
    return before + _ROUNDED[attrs.nearest_mode](where - before)


@sizes_rule
def _resize_type(
    context: Context,
    shape: Sizes,
    roi: Any = None,
    scales: Any = None,
    sizes: Type | None = None,
) -> Sizes:
    attrs = context.attrs
    axes = _axes(attrs, len(shape))
    numbers = None if sizes is None else sizes.sizes
    crops = attrs.coordinate_transformation_mode == "tf_crop_and_resize"
    for k, axis in enumerate(axes):
        size: Size | None = None
        if numbers is not None and attrs.keep_aspect_ratio_policy == "stretch":
            size = Size.of(numbers[k])
        elif attrs.scales and not crops:
            size = _scale(shape[axis], attrs.scales[k])
        shape = with_size(shape, axis, size)
    return shape


def _scale(size: Size | None, scale: float) -> Size | None:
    """Returns ``size`` times a scale, rounded down; None if rounding in float32 may change this
    integer.
    """
    if size is None:
        return None
    if size.number is not None:
        return Size.of(int(np.floor(_F32(scale) * _F32(size.number))))
    over, under = float(scale).as_integer_ratio()
    return (size * over).floor_div(under) if under <= 2**10 and over <= 2**10 else None


def _resize_paths(
    attrs: Any, x: Type, roi: Any = None, scales: Type | None = None, sizes: Any = None
) -> list[Path] | None:
    if scales is not None:
        return None
    axes = _axes(attrs, rank_of(x))
    if attrs.scales and attrs.coordinate_transformation_mode != "tf_crop_and_resize":
        axes = [axis for axis, scale in zip(axes, attrs.scales, strict=True) if scale != 1]
    return over(x, axes)


@op(
    "Resize",
    kind="mixes",
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
        # onernn's own attribute: constant scales, for the type rule
        "scales": (),
    },
    paths=_resize_paths,
    since=10,
    type=_resize_type,
)
def resize(
    attrs: Any,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Array:
    outside = np.zeros((1,) * x.ndim, bool)
    for axis in find_resampled(attrs, x.shape, x.dtype, roi, scales, sizes):
        row = x.size // max(x.shape[axis.at], 1) * x.dtype.itemsize
        running().ask(4 * len(axis.before) * (row + 32))
        column = (-1, *[1] * (x.ndim - 1 - axis.at))
        outside = outside | axis.outside.reshape(column)
        first = np.take(x, axis.before, axis.at)
        if axis.after is None:
            x = first
            continue
        rest = axis.rest.reshape(column)
        x = first * (1 - rest) + np.take(x, axis.after, axis.at) * rest
    return np.where(outside, x.dtype.type(attrs.extrapolation_value), x) if outside.any() else x


class Resampled(NamedTuple):
    """The indices of the elements that each result reads along axis ``at``. A result is the element
    ``before`` times 1 - ``rest``, plus the element ``after`` times ``rest``.

    ``after`` is None if a result is the element ``before`` alone. ``outside``: a mask of the
    results whose coordinates are not on the axis.
    """

    at: int
    before: Array
    after: Array | None
    rest: Array
    outside: Array


def find_resampled(
    attrs: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
) -> list[Resampled]:
    """Returns the elements that a Resize reads along each axis that changes, axis by axis."""
    changed = _find_resized(attrs, shape, roi, scales, sizes)
    if attrs.mode not in ("nearest", "linear"):
        raise ShapeError(f"attribute mode={attrs.mode!r}: expected nearest or linear")
    if (
        attrs.antialias
        and attrs.mode != "nearest"
        and any(axis.target < axis.size for axis in changed)
    ):
        raise ShapeError("attribute antialias=1: expected 0 if an axis shrinks")
    if attrs.mode == "linear" and dtype.kind != "f":
        raise ShapeError(f"attribute mode=linear: expected floats, got {dtype}")
    result = []
    for axis in changed:
        if axis.target and not axis.size:
            raise ShapeError(
                f"axis {axis.at} has no elements: expected a size of 0, got {axis.target}"
            )
        running().ask(64 * axis.target)
        where = _coordinates(attrs.coordinate_transformation_mode, axis)
        outside = np.zeros(len(where), bool)
        if attrs.coordinate_transformation_mode == "tf_crop_and_resize":
            outside = (where < 0) | (where > axis.size - 1)
        if attrs.mode == "nearest":
            nearest = np.clip(_nearest(attrs, where), 0, axis.size - 1).astype(np.int64)
            result.append(Resampled(axis.at, nearest, None, where, outside))
            continue
        where = np.clip(where, 0, axis.size - 1)
        before = np.floor(where).astype(np.int64)
        after = np.minimum(before + 1, axis.size - 1)
        rest = (where - before).astype(dtype)
        result.append(Resampled(axis.at, before, after, rest, outside))
    return result


_TWO = Size.of(2)


def _number(name: str, array: Array) -> int:
    if array.size != 1 or array.dtype.kind not in "iu" or array.reshape(()) < 1:
        raise ShapeError(f"{name}: expected one integer of at least 1, got {array.tolist()}")
    return int(array.reshape(()))


def _numbers_of(x: Array, *, real: bool = False) -> Array:
    if x.ndim < 2 or x.shape[-1] not in (1, 2) or x.dtype.kind != "f":
        raise ShapeError(f"x: expected floats (..., 1) or (..., 2), got {x.dtype} {x.shape}")
    if real and x.shape[-1] != 1:
        raise ShapeError(f"attribute onesided=1: expected real numbers (..., 1), got {x.shape}")
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(x: Array, dtype: Any) -> Array:
    return np.stack([x.real, x.imag], -1).astype(dtype, copy=False)


def signal_axis(rank: int, axis: Array | None) -> int:
    """Returns the axis of the signal. Raises `ShapeError` for the last axis, which holds complex
    parts.
    """
    at = -2 if axis is None else int(axis.reshape(()))
    if at_axis(at, rank) == rank - 1:
        raise ShapeError(f"axis {at}: expected an axis before the last, which holds complex parts")
    return at_axis(at, rank)


@sizes_rule
def _dft_type(
    context: Context, shape: Sizes, length: Type | None = None, axis: Type | None = None
) -> Sizes:
    onesided, inverse = context.attrs.onesided, context.attrs.inverse
    along = signal_axis(len(shape), None if axis is None else axis.numbers)
    size = shape[along]
    if length is not None:
        size = None if length.sizes is None else Size.of(length.sizes.reshape(()).item())
    elif onesided and inverse and size is not None:
        size = (size - 1) * 2
    if onesided and not inverse and size is not None:
        size = size.floor_div(2) + 1
    return (*with_size(shape, along, size)[:-1], ONE if onesided and inverse else _TWO)


def _dft_paths(_: Any, x: Type, length: Any = None, axis: Type | None = None) -> list[Path] | None:
    number = None if axis is None else axis.numbers
    if axis is not None and number is None:
        return None
    return over(x, (signal_axis(rank_of(x), number), -1))


@op(
    "DFT",
    kind="mixes",
    paths=_dft_paths,
    since=17,
    type=_dft_type,
    batched=lambda m, node: m.over_axes(node, (-2,)),
)
def dft(
    x: Array,
    length: Array | None = None,
    axis: Axes | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """Returns the Fourier transform of the signal, which is cut to ``length`` or filled up with
    zeros.
    """
    along = signal_axis(x.ndim, axis)
    halved = onesided and inverse
    if halved and x.shape[-1] != 2:
        expected = "expected complex numbers (..., 2)"
        raise ShapeError(f"attributes inverse=1 and onesided=1: {expected}, got {x.shape}")
    signal = _numbers_of(x, real=bool(onesided and not inverse))
    default = 2 * (x.shape[along] - 1) if halved else x.shape[along]
    count = _number("dft_length", np.asarray(default) if length is None else length)
    running().ask(48 * (x.size // max(x.shape[along], 1)) * (2 * max(x.shape[along], count) + 1))
    if halved and count // 2 + 1 != x.shape[along]:
        got = x.shape[along]
        raise ShapeError(f"dft_length={count}: expected {count // 2 + 1} frequencies, got {got}")
    if halved:
        return np.fft.irfft(signal, count, along).astype(x.dtype, copy=False)[..., None]
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    return _parts(transform(signal, count, along), x.dtype)


def _framing(x: Array, step: Array, window: Array | None, length: Array | None) -> tuple[int, int]:
    """Returns (the length of a frame, the distance between the starts of two frames)."""
    if x.ndim != 3:
        raise ShapeError(f"signal: expected (N, T, 1) or (N, T, 2), got {x.shape}")
    sizes = [] if length is None else [_number("frame_length", length)]
    sizes += [] if window is None else [window.size]
    frame = (*sizes, x.shape[1])[0]
    if window is not None and window.shape != (frame,):
        raise ShapeError(f"window: expected ({frame},), got {window.shape}")
    if not 1 <= frame <= x.shape[1]:
        raise ShapeError(f"frame_length={frame}: expected 1 to {x.shape[1]}, the signal's length")
    return frame, _number("frame_step", step)


@sizes_rule
def _stft_type(
    context: Context,
    signal: Sizes,
    step: Type,
    window: Type | None = None,
    length: Type | None = None,
) -> Sizes:
    batch, size, _ = signal
    shape: Sizes = (batch, None, None, _TWO)
    frame = size
    if window is not None:
        frame = window.shape[0] if window.shape else None
    if length is not None:
        frame = None if length.numbers is None else Size.of(length.numbers.item())
    if frame is not None:
        bins = frame.floor_div(2) + 1 if context.attrs.onesided else frame
        shape = with_size(shape, 2, bins)
        if size is not None and step.numbers is not None:
            frames = (size - frame).floor_div(step.numbers.item()) + 1
            shape = with_size(shape, 1, frames)
    return shape


@op("STFT", kind="mixes", since=17, type=_stft_type, batched="batch")
def stft(
    x: Array,
    step: Array,
    window: Array | None = None,
    length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    frame, stride = _framing(x, step, window, length)
    running().ask(64 * len(x) * ((x.shape[1] - frame) // stride + 1) * (frame + 1))
    signal = _numbers_of(x, real=bool(onesided))
    frames = np.lib.stride_tricks.sliding_window_view(signal, frame, 1)[:, ::stride]
    frames = frames if window is None else frames * window
    return _parts((np.fft.rfft if onesided else np.fft.fft)(frames), x.dtype)
