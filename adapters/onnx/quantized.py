"""Rules for ONNX's and ONNX Runtime's operators on quantized values.

A rule turns one operator into onernn's canonical operators. A quantized value q represents (q -
zero point) * scale. Sums of products are exact integers. ONNX Runtime then computes with scales in
float32, and the rules compute in the same order, so that the results are equal. If the order
depends on the CPU, the rules use the order of ONNX Runtime's library MLAS for AVX2.

Formulas: ONNX operator specification; ONNX Runtime's contrib operators and MLAS, version 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import count_up
from onernn.adapters.common.signatures import Tensor, refuse
from onernn.adapters.onnx.microsoft import microsoft
from onernn.adapters.onnx.read import dtype_of
from onernn.adapters.onnx.table import onnx
from onernn.ops import OPERATORS


def _slots(inputs: Sequence[Tensor | None], required: int) -> list[Any]:
    """Returns the ``required`` inputs of an operator, then the zero point that comes after them,
    None for absent inputs.

    A zero point, which comes after each scale, may always be absent.
    """
    if len(inputs) < required:
        refuse(f"input {len(inputs)} is missing: expected {required} inputs or more")
    return [*inputs, None][: required + 1]


def _single(value: Tensor | None) -> Any:
    if value is None:
        return refuse("a scale is missing: expected one for each quantized value")
    known = value.type
    if known.rank is not None and known.counts not in ((), (1,), (None,)):
        refuse(f"input {value.place}: expected one element, got {known}")
    return value if known.rank == 0 else value.Reshape([])


def _scale(value: Tensor | None, count: int | None = 1, axes: int = 1) -> Any:
    """Returns a scale as a float32 scalar, or ``count`` scales in a shape for broadcasting.

    ``count``: the number of slices that may have their own scale; None if unknown. ``axes``: the
    number of axes from the sliced axis to the last one.
    """
    if value is None:
        return refuse("a scale is missing: expected one for each quantized value")
    if value.known is not None and not (np.isfinite(value.known) & (value.known != 0)).all():
        got = f"{value.known.tolist()!s:.60}"
        refuse(f"input {value.place}: expected finite scales other than 0, got {got}")
    if count == 1 or value.type.counts in ((), (1,)):
        return _single(value).cast("float32")
    if count is None or value.type.counts != (count,):
        expected = f"one element or {count or 'a known number'} of them"
        refuse(f"input {value.place}: expected {expected}, got {value.type}")
    return value.cast("float32").reshape(count, *[1] * (axes - 1))


def _zero(zero: Tensor | None, like: Tensor) -> Tensor:
    if zero is None:
        return like.constant(np.zeros((), like.dtype))
    if None not in (zero.type.dtype, like.type.dtype) and zero.type.dtype != like.type.dtype:
        refuse(f"input {zero.place}: expected {like.type.dtype}, got {zero.type.dtype}")
    result: Tensor = _single(zero)
    return result


def _zeros(zero: Tensor | None, count: int | None) -> Tensor | None:
    """Returns the zero points of weights, as one scalar if all ``count`` zero points are equal.

    ONNX Runtime's ConvInteger accepts only one zero point for the weights. With several zero
    points, ONNX Runtime could not run the graph after onernn writes it as ONNX.
    """
    if zero is None or zero.type.counts in ((), (1,)):
        return None if zero is None else _single(zero)
    known = zero.known
    if known is None or known.shape != (count,) or (known != known[0]).any():
        return zero
    return zero.constant(known[0].reshape(()))


def _calculate(formula: Callable[..., Any], *scales: Tensor) -> Tensor:
    arrays = [each.known for each in scales]
    if any(array is None for array in arrays):
        result: Tensor = formula(*scales)
        return result
    with np.errstate(all="ignore"):
        return scales[0].constant(np.asarray(formula(*arrays)))


def _whole(x: Tensor, zero: Tensor | None, dtype: str = "float32") -> Tensor:
    """Returns x minus its zero point in ``dtype``, which is exact for integers of 8 and 16 bits."""
    whole = x.cast(dtype)
    return whole - _zero(zero, x).cast(dtype) if zero else whole


def _round(steps: Tensor, zero: Tensor) -> Tensor:
    """Returns ``steps``, a result divided by its scale, as rounded integers plus the zero point.

    Ties round to the even integer, before the zero point is added.
    """
    result: Tensor = steps.QuantizeLinear(steps.constant(np.ones((), np.float32)), zero)
    return result


def _round_shifted(steps: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """Returns ``steps`` plus the zero point, rounded to the dtype of ``like``; `_round` rounds
    before it adds the zero point.
    """
    steps = steps + _zero(zero, like).cast("float32") if zero else steps
    return _round(steps, _zero(None, like))


def _dequantize(x, scale, zero=None, *_):
    return x.DequantizeLinear(_scale(scale), _zero(zero, x))


def _quantize(y, like, scale, zero=None):
    return y.QuantizeLinear(_scale(scale), _zero(zero, like))


# Quantizing and dequantizing. ONNX Runtime's own operators compute the same as ONNX's, and also
# accept integers of 16 bits in every opset.


@onnx("QuantizeLinear", precision=0)
@microsoft("QuantizeLinear", precision=0)
def quantize(x, y_scale, y_zero_point=None, *, op, axis=1, block_size=0, output_dtype=0):
    """Quantizes to the dtype of the zero point, or to output_dtype if the zero point is absent."""
    zero = y_zero_point
    if output_dtype and not zero:
        if None in y_scale.type.counts:
            refuse(
                f"attribute output_dtype={output_dtype}: expected a scale of known shape, got"
                f" {y_scale.type}"
            )
        zero = y_scale.constant(np.zeros(y_scale.type.counts, dtype_of(output_dtype)))
    if not block_size:
        return x.QuantizeLinear(y_scale, zero, **_axis_of(op))
    scale = _repeat(y_scale, x, axis, block_size)
    steps = (x / scale).Round()
    if zero:
        steps = steps + _repeat(zero, x, axis, block_size).cast(x.dtype)
    like = zero or x.constant(np.zeros((), np.uint8))
    return steps.QuantizeLinear(steps.scalar(1.0), like.constant(np.zeros((), like.dtype)))


@onnx("DequantizeLinear", output_dtype=0)  # the result has the dtype of the scale
@microsoft("DequantizeLinear")
def dequantize(x, x_scale, x_zero_point=None, *, op, axis=1, block_size=0):
    if not block_size:
        return x.DequantizeLinear(x_scale, x_zero_point, **_axis_of(op))
    whole, dtype = x.cast("int32"), x_scale.dtype
    if x_zero_point:
        whole = whole - _repeat(x_zero_point, x, axis, block_size).cast("int32")
    scale = _repeat(x_scale, x, axis, block_size)
    return (whole.cast("float32") * scale.cast("float32")).cast(dtype)


def _axis_of(op):
    return {"axis": op.attribute("axis", 1)} if "axis" in op.attributes else {}


def _repeat(values, x, axis, block):
    """Returns one scale or zero point for each element of x; ``values`` has one for each block of
    elements along the axis.
    """
    sizes = x.shape
    if not -len(sizes) <= axis < len(sizes) or block < 1:
        refuse(
            f"attributes axis={axis}, block_size={block}: expected an axis of x, which has"
            f" {len(sizes)}, and a size of 1 or more"
        )
    axis %= len(sizes)
    blocks = list(sizes)
    blocks[axis] = None if sizes[axis] is None else -(-sizes[axis] // block)
    if None in blocks or values.type.counts != tuple(blocks):
        expected = "x of known sizes" if None in blocks else f"{tuple(blocks)}"
        refuse(f"input {values.place}: expected {expected} (block_size={block}), got {values.type}")
    count = x.constant(np.asarray(sizes[axis], np.int64))
    places = count_up(count)
    return values.Gather(places / count.constant(np.int64(block)), axis=axis)


# Matrix products: exact sums, multiplied by the scales of both factors and divided by the scale of
# the result.


@onnx("QLinearConv")
@microsoft("QLinearConv", channels_last=0)
def qlinear_conv(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B=None, *, op
):
    channels, axes = w.shape[0], w.rank - 1
    zeros = _zero(x_zero_point, x), _zeros(w_zero_point, channels)
    sums = x.ConvInteger(w, *zeros, **op.attributes_of(OPERATORS["Conv"]))
    if B:
        if B.type.counts != (channels,):
            refuse(f"input 8: expected {channels} elements, one per channel, got {B.type}")
        sums = sums + B.reshape(channels, *[1] * (axes - 1))
    scales = _scale(x_scale), _scale(w_scale, channels, axes), _scale(y_scale)
    steps = sums.cast("float32") * _calculate(lambda x, w, y: x * w / y, *scales)
    return _round(steps, _single(y_zero_point))


@onnx("QLinearMatMul")
def qlinear_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    sums = a.MatMulInteger(b, _zero(a_zero_point, a), _zeros(b_zero_point, _columns(b)))
    scales = _scale(a_scale), _of_columns(b_scale, b), _scale(y_scale)
    steps = sums.cast("float32") * _calculate(lambda a, b, y: a * b / y, *scales)
    return _round(steps, _single(y_zero_point))


def _of_columns(scale, b):
    """Returns the scale of b: one scalar, one scale per column, or one per column of each matrix in
    a stack.
    """
    counts = b.type.counts
    if len(counts) > 1 and scale.type.counts == (*counts[:-2], 1, counts[-1]):
        return scale.cast("float32")
    return _scale(scale, _columns(b))


def _columns(b):
    return b.type.counts[-1] if b.type.counts else None


@microsoft("QGemm")
def qgemm(
    A,
    a_scale,
    a_zero_point,
    B,
    b_scale,
    b_zero_point,
    C=None,
    y_scale=None,
    y_zero_point=None,
    *,
    transA=0,
    transB=0,
    alpha=1.0,
):
    """Returns A @ B + C, where C is added to the integer sums. Without y_scale the result is
    float32.
    """
    if bool(y_scale) != bool(y_zero_point):
        refuse("inputs y_scale and y_zero_point: expected both or none")
    if A.rank != 2 or B.rank != 2:
        refuse(f"inputs A and B: expected matrices, got {A.type} and {B.type}")
    a, b = A.swap() if transA else A, B.swap() if transB else B
    sums = a.MatMulInteger(b, _zero(a_zero_point, A), _zeros(b_zero_point, _columns(b)))
    if C:
        sizes = (1, 1, *C.shape)[-2:]
        if C.rank > 2 or any(c not in (1, s) for c, s in zip(sizes, sums.shape, strict=True)):
            refuse(f"input C: expected {sums.type} or one row or column of it, got {C.type}")
        sums = sums + C
    scales, factor = (_scale(a_scale), _of_columns(b_scale, b)), _scale(a_scale).scalar(alpha)
    if not y_scale:
        return sums.cast("float32") * _calculate(lambda f, a, b: f * a * b, factor, *scales)
    every = factor, *scales, _scale(y_scale)
    steps = sums.cast("float32") * _calculate(lambda f, a, b, y: f * a * b / y, *every)
    return _round(steps, _zero(y_zero_point, A))


@microsoft("DynamicQuantizeMatMul")
def dynamic_matmul(A, B, b_scale, b_zero_point=None, bias=None):
    """Quantizes A with a scale that depends on A's values, and multiplies A by B."""
    a, scale, zero = A.DynamicQuantizeLinear(outputs=3)
    return matmul_to_float(a, B, scale, b_scale, zero, b_zero_point, bias)


@microsoft("MatMulIntegerToFloat")
def matmul_to_float(A, B, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    a_zero = _zero(a_zero_point, A) if a_zero_point else None
    scale = _calculate(lambda a, b: a * b, _scale(a_scale), _of_columns(b_scale, B))
    y = A.MatMulInteger(B, a_zero, _zeros(b_zero_point, _columns(B))).cast("float32") * scale
    return y + bias if bias else y


# Operators on elements.


@microsoft("QLinearAdd")
def qlinear_add(*inputs):
    """Returns A + B in units of the result's scale. All zero points are combined into one constant.

    MLAS rounds once after a multiplication and an addition. Computing both in float64 leads to the
    same result.
    """
    A, a_scale, a_zero, B, b_scale, b_zero, c_scale, c_zero = _slots(inputs, 7)
    over = _scale(c_scale)
    first, second = (_calculate(lambda s, c: s / c, _scale(s), over) for s in (a_scale, b_scale))
    pairs = ((a_zero, A), (b_zero, B), (c_zero, A))
    zeros = [_zero(zero, x).cast("float32") for zero, x in pairs]
    y = _calculate(lambda f, s, a, b, c: c - (f * a + s * b), first, second, *zeros)
    for x, ratio in ((B, second), (A, first)):
        y = (x.cast("float64") * ratio.cast("float64") + y.cast("float64")).cast("float32")
    return _round(y, _zero(None, A))


@microsoft("QLinearMul")
def qlinear_mul(*inputs):
    A, a_scale, a_zero, B, b_scale, b_zero, c_scale, c_zero = _slots(inputs, 7)
    scales = map(_scale, (a_scale, b_scale, c_scale))
    product = _whole(A, a_zero) * _whole(B, b_zero)
    steps = product * _calculate(lambda a, b, c: a * b / c, *scales)
    return _round_shifted(steps, c_zero, A)


@microsoft("QLinearSigmoid QLinearLeakyRelu")
def qlinear_function(*inputs, op, alpha=None):
    X, x_scale, x_zero, y_scale, y_zero = _slots(inputs, 4)
    attributes = {} if alpha is None else {"alpha": alpha}
    y = op.emit(op.at.type[7:], _dequantize(X, x_scale, x_zero).name, **attributes)
    return _quantize(X.new(y), X, y_scale, y_zero)


@microsoft("QLinearWhere")
def qlinear_where(condition, *inputs):
    X, x_scale, x_zero, Y, y_scale, y_zero, z_scale, z_zero = _slots(inputs, 7)
    first, other = _dequantize(X, x_scale, x_zero), _dequantize(Y, y_scale, y_zero)
    return _quantize(condition.Where(first, other), X, z_scale, z_zero)


@microsoft("QLinearConcat")
def qlinear_concat(scale, zero, *inputs, axis=0):
    if not inputs or len(inputs) % 3:
        refuse(f"expected a scale and a zero point for each value, got {len(inputs) + 2} inputs")
    first, *others = (_dequantize(*inputs[at : at + 3]) for at in range(0, len(inputs), 3))
    return _quantize(first.Concat(*others, axis=axis), inputs[0], scale, zero)


# Operators whose results combine several elements: softmax and pooling.


@microsoft("QLinearSoftmax")
def qlinear_softmax(*inputs, op, opset):
    """Returns the softmax in units of the result's scale; the inverse of that scale is rounded down
    to an integer. The zero point of X has no effect.

    Up to opset 12, the axis and all axes after it count as one axis.
    """
    X, x_scale, _, y_scale, y_zero = _slots(inputs, 4)
    axis = op.attribute("axis", -1 if opset >= 13 else 1)
    x = X.cast("float32") * _scale(x_scale)
    if opset >= 13:
        y = x.Softmax(axis=axis)
    else:
        y = x.Flatten(axis=axis).Softmax(axis=-1).Reshape(X.sizes, allowzero=1)
    steps = (y.scalar(1.0) / _scale(y_scale)).Floor()
    return _round(y * steps, _zero(y_zero, X))


@microsoft("QLinearGlobalAveragePool")
def qlinear_global_average_pool(*inputs, channels_last=0):
    """Multiplies integer sums by one scale, which includes the division by the number of
    elements.
    """
    X, x_scale, x_zero, y_scale, y_zero = _slots(inputs, 4)
    if X.rank < 3:
        refuse(f"input 0: expected three axes or more, got {X.type}")
    axes = list(range(1, X.rank - 1) if channels_last else range(2, X.rank))
    sums = _whole(X, x_zero, "int32").ReduceSum(axes)
    count = X.sizes.Gather(axes, axis=0).ReduceProd(keepdims=0).cast("float32")
    steps = sums.cast("float32") * (_scale(x_scale) / (_scale(y_scale) * count))
    return _round(steps, _zero(y_zero, X))


@microsoft("QLinearAveragePool", channels_last=0)
def qlinear_average_pool(*inputs, op):
    X, x_scale, x_zero, y_scale, y_zero = _slots(inputs, 4)
    attributes = op.attributes_of(OPERATORS["AveragePool"])
    y = _dequantize(X, x_scale, x_zero).AveragePool(**attributes)
    return _round_shifted(y / _scale(y_scale), y_zero, X)
