"""Operators on quantized numbers: q stands for (q - zero point) * scale.

Formulas: ONNX operator specification. Sums of products are integers of 32 bits and exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import OPERATORS, define
from onernn.core.types import Type, dense
from onernn.operators import growth
from onernn.operators.products import product_shape
from onernn.operators.rules import at_axis

_EXACT = 256
"""Products of two numbers of nine bits whose sum float32 holds exactly."""


def _check_parameters(x: Array, scale: Array, zero: Array | None, of: Array | None) -> None:
    """``of``: the array whose dtype the zero point has, None where it says the dtype itself."""
    if scale.dtype.kind != "f" or not (np.isfinite(scale) & (scale != 0)).all():
        raise ShapeError(f"scale {scale.tolist()!s:.60}: expected finite floats other than 0")
    if zero is None:
        return
    if zero.shape != scale.shape:
        raise ShapeError(f"zero point {zero.shape}: expected {scale.shape}, the scale's shape")
    if of is not None and zero.dtype != of.dtype:
        raise ShapeError(f"zero point of {zero.dtype}: expected {of.dtype}, the dtype of {x.shape}")


def _along(at: Any, x: Array, given: Array) -> Array:
    """Scales or zero points as they stretch over x: one for all, or one a slice of ``axis``."""
    if given.size == 1 and given.ndim < 2:
        return given.reshape(())
    if given.ndim != 1:
        raise ShapeError(f"scale {given.shape}: expected one number, or one a slice of an axis")
    axis = at_axis(at.axis, x.ndim)
    if len(given) != x.shape[axis]:
        raise ShapeError(f"scale {given.shape}: expected {x.shape[axis]}, x has axis {axis} of it")
    return given.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


def rounded(x: Array, scale: Array, zero: Array) -> Array:
    """x / scale, half to even, beside the zero point, in the range of its dtype."""
    if np.isnan(x).any():
        raise ShapeError("x holds NaN, for which no quantized number stands")
    bounds = np.iinfo(zero.dtype)
    whole = np.rint(x / scale) + zero.astype(scale.dtype)
    top = np.asarray(bounds.max, whole.dtype)
    return np.clip(whole, np.asarray(bounds.min, whole.dtype), top).astype(zero.dtype)


def _quantize(at: Any, x: Array, scale: Array, zero: Array | None = None) -> Array:
    _check_parameters(x, scale, zero, None)
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    if zero.dtype.kind not in "iu" or zero.dtype.itemsize > 2:
        raise ShapeError(f"zero point of {zero.dtype}: expected integers of 8 or 16 bits")
    return rounded(x.astype(scale.dtype), _along(at, x, scale), _along(at, x, zero))


define(
    "QuantizeLinear",
    kind="elementwise",
    inputs="x scale zero?",
    attributes={"axis": 1},
    since=10,
    mixes=lambda at, rank, scale=None, _=None: (0,) if at.axis in (0, -rank) else (),
    type=lambda _, x, __, zero=None: Type("uint8" if zero is None else zero.dtype, x.shape),
    compute=_quantize,
    growth=growth.wide,
)


def _dequantize(at: Any, x: Array, scale: Array, zero: Array | None = None) -> Array:
    _check_parameters(x, scale, zero, x)
    if x.dtype.kind not in "iu" or x.dtype.itemsize > 4:
        raise ShapeError(f"x of {x.dtype}: expected integers of 8, 16 or 32 bits")
    if zero is not None and x.dtype.itemsize == 4 and zero.any():
        raise ShapeError("zero point of 32-bit numbers: expected 0")
    whole = x.astype(np.int32) if zero is None else x.astype(np.int32) - _along(at, x, zero)
    return whole.astype(scale.dtype) * _along(at, x, scale)


define(
    "DequantizeLinear",
    kind="elementwise",
    inputs="x scale zero?",
    attributes={"axis": 1},
    since=10,
    mixes=lambda at, rank, scale=None, _=None: (0,) if at.axis in (0, -rank) else (),
    type=lambda _, x, scale, zero=None: Type(scale.dtype, x.shape),
    compute=_dequantize,
    growth=growth.wide,
)


def parameters(low: Array, high: Array) -> tuple[Array, Array]:
    """(scales, zero points) of ranges in bytes without a sign: float32, the latter whole ones.

    0 is in each range. What is not finite has the scale NaN; a range without width, or with one
    below what float32 divides, has the scale 1.
    """
    steps = (high - low) / np.float32(255)
    scale = np.where(steps > 0, steps, np.float32(1))
    scale = np.where(np.isfinite(steps), scale, np.float32(np.nan))
    return scale, np.clip(np.rint(-low / scale), 0, 255)


def _dynamic(_: Any, x: Array) -> tuple[Array, Array, Array]:
    if x.dtype != np.float32:
        raise ShapeError(f"x of {x.dtype}: expected float32")
    scale, zero = parameters(x.min(initial=0), x.max(initial=0))
    if np.isnan(scale):
        raise ShapeError("x holds NaN or infinity, for which no byte stands")
    zero = np.asarray(zero, np.uint8)
    return rounded(x, scale, zero), scale, zero


define(
    "DynamicQuantizeLinear",
    kind="mixes",
    inputs="x",
    outputs=(3, 3),
    since=11,
    mixes=lambda *_: (0,),
    type=lambda _, x: (Type("uint8", x.shape), dense("float32", ()), dense("uint8", ())),
    compute=_dynamic,
    growth=growth.wide,
)


def _shifted(role: str, x: Array, zero: Array | None, column: bool) -> Array:
    """x - its zero point, which is one for all, or one a row of ``a`` or a column of ``b``."""
    if x.dtype not in (np.uint8, np.int8):
        raise ShapeError(f"{role} of {x.dtype}: expected uint8 or int8")
    whole = x.astype(np.int16)
    if zero is None:
        return whole
    if zero.dtype != x.dtype:
        raise ShapeError(f"zero point of {role} is {zero.dtype}: expected {x.dtype}")
    if zero.ndim == 1 and zero.size > 1 and not column:
        zero = zero[:, None]
    if zero.ndim > 1 and zero.shape[-2 if column else -1] != 1:
        raise ShapeError(f"zero point of {role} {zero.shape}: expected one a row or column")
    shifted = whole - zero
    if shifted.shape != x.shape:
        raise ShapeError(f"zero point of {role} {zero.shape}: expected one a row of {x.shape}")
    return shifted


def exact_product(a: Array, b: Array) -> Array:
    """The product of integers of nine bits, modulo 2**32, from float32's own products."""
    sums = np.zeros((), np.int32)
    for k in range(0, max(a.shape[-1], 1), _EXACT):
        some = b[k : k + _EXACT] if b.ndim == 1 else b[..., k : k + _EXACT, :]
        sums = sums + (a[..., k : k + _EXACT].astype("f4") @ some.astype("f4")).astype(np.int32)
    return np.asarray(sums)


def _matmul(
    _: Any, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return exact_product(_shifted("a", a, a_zero, False), _shifted("b", b, b_zero, True))


def _integers_type(context: Context, a: Type, b: Type, *_: Type | None) -> Type:
    if a.shape is None or b.shape is None:
        return Type("int32")
    return Type("int32", product_shape(context, a.shape, b.shape))


define(
    "MatMulInteger",
    kind="mixes",
    inputs="a b a_zero? b_zero?",
    since=10,
    type=_integers_type,
    compute=_matmul,
    growth=growth.matmul_integer,
)

_CONV = OPERATORS["Conv"]


def _conv(
    at: Any, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    """What stands around x counts as its zero point. Sums of float64 are exact below 2**53."""
    if x_zero is not None and x_zero.size != 1:
        raise ShapeError(f"zero point of x {x_zero.shape}: expected one for all of x")
    if w_zero is not None and w_zero.ndim == 1 and w_zero.size > 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    given = _shifted("x", x, x_zero, True), _shifted("w", w, w_zero, True)
    assert _CONV.compute is not None
    sums = _CONV.compute(at, *(each.astype(np.float64) for each in given))
    return sums.astype(np.int64).astype(np.int32)


def _conv_growth(at: Any, x: Array, w: Array, *_: Any) -> int:
    """That of float64, and both factors without their zero points."""
    assert _CONV.growth is not None
    return 8 * _CONV.growth(at, x, w) + 10 * (x.size + w.size)


define(
    "ConvInteger",
    kind="mixes",
    inputs="x w x_zero? w_zero?",
    attributes=_CONV.attributes,
    mixes=lambda *_: (0,),
    since=10,
    type=lambda context, x, w, *_: Type("int32", _CONV.type(context, x, w).shape),
    compute=_conv,
    growth=_conv_growth,
)
