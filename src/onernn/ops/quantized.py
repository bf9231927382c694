"""Operators on quantized values: an integer q stands for (q - zero point) * scale.

The formulas follow the ONNX operator specification. Sums of products are exact 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.ir.activations import function
from onernn.ir.arrays import Array
from onernn.ir.budget import Recurrence, bytes_of, running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import OPERATORS, REQUIRED, Axis, Path, at_axis, op, over, rank_of
from onernn.ir.ragged import data_of
from onernn.ir.records import NamedTuple
from onernn.ir.spec import Activation
from onernn.ir.types import Size, Type, dense
from onernn.ops.elementwise import FORMULAS
from onernn.ops.growth import results, wide
from onernn.ops.products import batch_product, product_paths, product_shape
from onernn.ops.reducing import as_column
from onernn.ops.windows import conv

_EXACT = 256
"""A sum of this many products of two nine-bit integers is exact in float32."""


def _is_single(values: Array) -> bool:
    return values.size == 1 and values.ndim < 2


def _check_parameters(x: Array, scale: Array, zero: Array | None, of: Array | None) -> None:
    """Raises `ShapeError` for wrong scales, and for zero points whose dtype differs from the dtype
    of ``of``.

    A single scale or zero point is () or (1,): ONNX Runtime takes both, and its quantizer mixes
    them.
    """
    if scale.dtype.kind != "f" or not (np.isfinite(scale) & (scale != 0)).all():
        raise ShapeError(f"scale {scale.tolist()!s:.60}: expected finite floats other than 0")
    if zero is None:
        return
    if zero.shape != scale.shape and not (_is_single(zero) and _is_single(scale)):
        raise ShapeError(f"zero point {zero.shape}: expected {scale.shape}, the scale's shape")
    if of is not None and zero.dtype != of.dtype:
        raise ShapeError(f"zero point: expected {of.dtype}, the dtype of x, got {zero.dtype}")


def _along(axis: int, x: Array, values: Array) -> Array:
    """Returns scales or zero points in a shape that broadcasts with x. There is one for all
    elements, or one per index of ``axis``.
    """
    if _is_single(values):
        return values.reshape(())
    if values.ndim != 1:
        raise ShapeError(f"scale {values.shape}: expected one value, or one per slice of an axis")
    axis = at_axis(axis, x.ndim)
    if len(values) != x.shape[axis]:
        size = x.shape[axis]
        raise ShapeError(
            f"scale {values.shape}: expected {size} values, the size of x's axis {axis}"
        )
    return values.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


def round_scaled(x: Array, scale: Array, zero: Array) -> Array:
    """Returns x / scale, rounded half to even, plus the zero point, clipped to the zero point's
    dtype.
    """
    if np.isnan(x).any():
        raise ShapeError("x: expected values without NaN, which has no quantized value")
    bounds = np.iinfo(zero.dtype)
    whole = np.rint(x / scale) + zero.astype(scale.dtype)
    top = np.asarray(bounds.max, whole.dtype)
    return np.clip(whole, np.asarray(bounds.min, whole.dtype), top).astype(zero.dtype)


def _scale_paths(attrs: Any, x: Type, *others: Type | None) -> list[Path]:
    single = [[at_axis(attrs.axis, rank_of(x))] * (rank_of(each) == 1) for each in others]
    return [*over(x, ()), *single]


@op(
    "QuantizeLinear",
    kind="elementwise",
    since=10,
    paths=_scale_paths,
    type=lambda _, x, __, zero=None: Type("uint8" if zero is None else zero.dtype, x.shape),
    growth=wide,
)
def quantize_linear(x: Array, scale: Array, zero: Array | None = None, *, axis: Axis = 1) -> Array:
    _check_parameters(x, scale, zero, None)
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    if zero.dtype.kind not in "iu" or zero.dtype.itemsize > 2:
        raise ShapeError(f"zero point: expected integers of 8 or 16 bits, got {zero.dtype}")
    return round_scaled(x.astype(scale.dtype), _along(axis, x, scale), _along(axis, x, zero))


@op(
    "DequantizeLinear",
    kind="elementwise",
    since=10,
    paths=_scale_paths,
    type=lambda _, x, scale, zero=None: Type(scale.dtype, x.shape),
    growth=wide,
)
def dequantize_linear(
    x: Array, scale: Array, zero: Array | None = None, *, axis: Axis = 1
) -> Array:
    _check_parameters(x, scale, zero, x)
    if x.dtype.kind not in "iu" or x.dtype.itemsize > 4:
        raise ShapeError(f"x: expected integers of 8, 16 or 32 bits, got {x.dtype}")
    if zero is not None and x.dtype.itemsize == 4 and zero.any():
        raise ShapeError(f"zero point of {x.dtype}: expected 0, got {zero.tolist()!s:.60}")
    whole = x.astype(np.int32) if zero is None else x.astype(np.int32) - _along(axis, x, zero)
    return whole.astype(scale.dtype) * _along(axis, x, scale)


def parameters(low: Array, high: Array) -> tuple[Array, Array]:
    """Returns the (scales, zero points) that map the ranges from ``low`` to ``high`` to uint8.

    Both are float32; zero points have integer values. Each range must contain 0. A range that is
    not finite has the scale NaN. A range without width, or with a width too small for a float32
    scale, has the scale 1.
    """
    steps = (high - low) / np.float32(255)
    scale = np.where(steps > 0, steps, np.float32(1))
    scale = np.where(np.isfinite(steps), scale, np.float32(np.nan))
    return scale, np.clip(np.rint(-low / scale), 0, 255)


@op(
    "DynamicQuantizeLinear",
    kind="mixes",
    outputs=(3, 3),
    since=11,
    paths=lambda _, x: over(x, range(rank_of(x))),
    type=lambda _, x: (Type("uint8", x.shape), dense("float32", ()), dense("uint8", ())),
    growth=wide,
)
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    if x.dtype != np.float32:
        raise ShapeError(f"x: expected float32, got {x.dtype}")
    scale, zero = parameters(x.min(initial=0), x.max(initial=0))
    if np.isnan(scale):
        raise ShapeError("x: expected finite values, got NaN or infinity")
    zero = np.asarray(zero, np.uint8)
    return round_scaled(x, scale, zero), scale, zero


def _shift(role: str, x: Array, zero: Array | None, column: bool) -> Array:
    """Returns x minus its zero points: one for all elements, one per row, or if ``column`` one per
    column. ``role``: the name of x in errors.
    """
    if x.dtype not in (np.uint8, np.int8):
        raise ShapeError(f"{role}: expected uint8 or int8, got {x.dtype}")
    whole = x.astype(np.int16)
    if zero is None:
        return whole
    if zero.dtype != x.dtype:
        raise ShapeError(f"zero point of {role}: expected {x.dtype}, got {zero.dtype}")
    if zero.ndim == 1 and zero.size > 1 and not column:
        zero = zero[:, None]
    if zero.ndim > 1 and zero.shape[-2 if column else -1] != 1:
        raise ShapeError(f"zero point of {role} {zero.shape}: expected one per row or column")
    shifted = whole - zero
    if shifted.shape != x.shape:
        raise ShapeError(f"zero point of {role} {zero.shape}: expected one per row of {x.shape}")
    return shifted


def exact_product(a: Array, b: Array) -> Array:
    """Returns the matrix product of nine-bit integers, modulo 2**32, computed by float32 matrix
    products.
    """
    sums = np.zeros((), np.int32)
    for k in range(0, max(a.shape[-1], 1), _EXACT):
        some = b[k : k + _EXACT] if b.ndim == 1 else b[..., k : k + _EXACT, :]
        sums = sums + (a[..., k : k + _EXACT].astype("f4") @ some.astype("f4")).astype(np.int32)
    return np.asarray(sums)


def _product_growth(node: Node, a: Array, b: Array, *_: Any) -> int:
    """Returns the bytes of three int32 results, and of the factors as int16 and as float32."""
    return 3 * results(node, a, b) + 6 * (bytes_of(data_of(a)) + bytes_of(b))


@op(
    "MatMulInteger",
    kind="mixes",
    since=10,
    type=lambda context, a, b, *_: Type("int32", product_shape(context, a, b)),
    growth=_product_growth,
    paths=product_paths,
    batched=batch_product,
)
def matmul_integer(
    a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return exact_product(_shift("a", a, a_zero, False), _shift("b", b, b_zero, True))


_CONV = OPERATORS["Conv"]


@op(
    "ConvInteger",
    kind="mixes",
    attributes=_CONV.attributes,
    since=10,
    type=lambda context, x, w, *_: Type("int32", _CONV.type(context, x, w).shape),
    batched="batch",
)
def conv_integer(
    attrs: Any, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    """Convolves integers in float64, which is exact below 2**53. Padding has the value of x's zero
    point.
    """
    if x_zero is not None and x_zero.size != 1:
        raise ShapeError(f"zero point of x {x_zero.shape}: expected one value for all of x")
    if w_zero is not None and w_zero.ndim == 1 and w_zero.size > 1:
        w_zero = as_column(w_zero, w.ndim)
    running().ask(10 * (x.size + w.size))  # x and w as int16 and as float64
    factors = _shift("x", x, x_zero, True), _shift("w", w, w_zero, True)
    sums = conv(attrs, *(each.astype(np.float64) for each in factors))
    return sums.astype(np.int64).astype(np.int32)


_FUNCTIONS: tuple[tuple[Callable[..., Array], ...], ...] = (
    tuple(function(Activation(name)) for name in ("sigmoid", "tanh")),
    tuple(FORMULAS[f"rational_{name}"].compute for name in ("sigmoid", "tanh")),
)
"""The functions (sigmoid, tanh) of gates. The first pair is accurate, the second pair returns the
same bits as ONNX Runtime.
"""


class Quantized(NamedTuple):
    """A quantized array: its 8-bit integers minus their zero point (``whole``), and its scales
    (``steps``).

    For weights, ``whole`` is (D, K, 4*O) and ``steps`` is (D, 4*O).
    """

    whole: Array
    steps: Array


def shift_bytes(name: str, q: Array, scale: Array, zero: Array) -> Quantized:
    """Returns a quantized matrix as integers minus its zero point, and its scales. Raises
    `ShapeError` for a dtype, shape or scale that the operator does not take.
    """
    if q.dtype not in (np.uint8, np.int8) or zero.dtype != q.dtype:
        raise ShapeError(
            f"{name}: expected int8 or uint8, and a zero point of the same dtype, got {q.dtype} and"
            f" {zero.dtype}"
        )
    allowed = ((len(q),), (len(q), q.shape[2]))
    if scale.shape not in allowed or zero.shape not in allowed:
        shapes = f"scale {scale.shape} and zero point {zero.shape}"
        raise ShapeError(f"{shapes} of {name}: expected {allowed[0]} or {allowed[1]}")
    if scale.dtype != np.float32 or not (np.isfinite(scale) & (scale > 0)).all():
        got = f"{scale.dtype} {scale.tolist()!s:.60}"
        raise ShapeError(f"scale of {name}: expected finite float32 values above 0, got {got}")
    wide = zero.astype(np.int16).reshape(len(q), 1, -1)
    steps = np.broadcast_to(scale.reshape(len(q), -1), (len(q), q.shape[2]))
    return Quantized(q.astype(np.int16) - wide, steps)


def in_bytes(x: Array, inside: Array, axes: tuple[int, ...]) -> Quantized:
    """Returns x quantized to uint8. The integers, minus their zero points, are stored as floats.

    Elements along ``axes`` share a range. Elements outside of the mask ``inside`` count as 0. If a
    range contains NaN, its scale is NaN.
    """
    x = np.where(inside, x, np.float32(0))
    low, high = x.min(axes, keepdims=True, initial=0), x.max(axes, keepdims=True, initial=0)
    steps, zero = parameters(low, high)
    return Quantized(np.clip(np.rint(x / steps) + zero, 0, 255) - zero, steps)


def lstm_shapes(attrs: Any, x: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Returns the shapes of the LSTM's inputs after x (T, N, I), in their order.

    Sizes are numbers or `Size`. Raises `ShapeError` for an unknown direction.
    """
    if attrs.direction not in ("forward", "reverse", "bidirectional"):
        expected = "expected forward, reverse or bidirectional"
        raise ShapeError(f"attribute direction={attrs.direction!r}: {expected}")
    _, n, width = x
    count, units = 2 if attrs.direction == "bidirectional" else 1, attrs.hidden_size
    return {
        "w": (count, width, 4 * units),
        "r": (count, units, 4 * units),
        "b": (count, 8 * units),
        "lengths": (n,),
        "h": (count, n, units),
        "c": (count, n, units),
        "p": (count, 3 * units),
    }


def _check(attrs: Any, x: Array, *others: Array | None) -> None:
    if x.dtype != np.float32 or x.ndim != 3:
        raise ShapeError(f"x: expected float32 (T, N, I), got {x.dtype} {x.shape}")
    expected = lstm_shapes(attrs, x.shape)
    for (name, shape), array in zip(expected.items(), others, strict=True):
        if array is not None and array.shape != shape:
            raise ShapeError(f"{name}: expected {shape}, got {array.shape}")
        if name in "bhcp" and array is not None and array.dtype != np.float32:
            raise ShapeError(f"{name}: expected float32, got {array.dtype}")


def _types(context: Context, x: Type, w: Type, r: Type, *_: Type | None) -> tuple[Type, ...]:
    steps, batch, _width = x.shape or (None, None, None)
    count = Size.of(2 if context.attrs.direction == "bidirectional" else 1)
    state = count, batch, Size.of(context.attrs.hidden_size)
    final = Type("float32", state)
    return Type("float32", (steps, *state)), final, final


def _lstm_paths(attrs: Any, *_: Type | None) -> list[Path]:
    rows = None if attrs.together else 2
    return [[None, rows, None], (), (), (), [rows], *[[None, rows, None]] * 2]


@op(
    "DynamicQuantizeLSTM",
    kind="mixes",
    attributes={
        **{"direction": "forward", "hidden_size": REQUIRED, "clip": 0.0, "input_forget": 0},
        "together": 0,
    },
    outputs=3,
    since=1,
    domain="com.microsoft",
    paths=_lstm_paths,
    type=_types,
)
def lstm(
    attrs: Any,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
) -> tuple[Array, Array, Array]:
    """Returns (Y (T, D, N, O), Y_h (D, N, O), Y_c (D, N, O)).

    The attribute ``together`` does not exist in ONNX. It selects one scale for all sequences, the
    same as in ONNX Runtime on one thread. The range of this scale includes the padding up to the
    longest sequence. It also includes the states of a sequence until the step after its last one,
    because ONNX Runtime then writes zeros into Y. With ``together=2``, for a node without an output
    Y, the range includes later states as well.
    """
    _check(attrs, x, w, r, b, lengths, h, c, p)
    words = max(x.shape[0], 1) * max(x.shape[1], 1)
    running().ask(4 * bytes_of(x) + 16 * words * w.shape[2] + 4 * (w.size + r.size))
    matrices = (("w", w, w_scale, w_zero), ("r", r, r_scale, r_zero))
    of_x, of_h = (shift_bytes(*matrix) for matrix in matrices)
    t, n, units = *x.shape[:2], r.shape[1]
    count = len(w)
    own = np.full(n, t) if lengths is None else lengths.astype(np.int64)
    if own.min(initial=0) < 0 or own.max(initial=0) > t:
        raise ShapeError(f"lengths {own.tolist()!s:.60}: expected 0 to {t}")
    inside = np.arange(t)[:, None] < own
    running().turn(recurrence(w, r).cost(int(own.max(initial=0)), t * n))
    longest = own.max(initial=0)
    axes = (0, 1, 2) if attrs.together else (0, 2)
    mask = np.arange(t)[:, None] < longest if attrs.together else inside
    words = in_bytes(x, mask[..., None], axes)
    y = np.zeros((t, count, n, units), np.float32)
    final = np.zeros((2, count, n, units), np.float32)
    zeros = np.zeros((n, units), np.float32)
    for d in range(count):
        back = d == 1 or attrs.direction == "reverse"
        sums = exact_product(words.whole, of_x.whole[d])
        fed = sums.astype(np.float32) * (words.steps * of_x.steps[d])
        state, memory = (zeros if initial is None else initial[d] for initial in (h, c))
        bias = np.zeros(8 * units, np.float32) if b is None else b[d]
        peepholes = None if p is None else p[d]
        cell = _Cell(attrs, of_h.whole[d], of_h.steps[d], bias, peepholes)
        for step in range(longest):
            now = np.where(inside[step], own - 1 - step if back else step, 0)
            rows = np.arange(n)
            counts = (step <= own) | (attrs.together == 2) & (own > 0)
            result = cell.step(fed[now, rows], state, memory, counts[:, None])
            runs = inside[step][:, None]
            state, memory = np.where(runs, result[0], state), np.where(runs, result[1], memory)
            y[now[inside[step]], d, rows[inside[step]]] = state[inside[step]]
        # A sequence of length zero ends with zeros, whatever its initial state was: see
        # design/0008.
        final[:, d] = np.where((own > 0)[:, None], np.stack([state, memory]), 0)
    return y, final[0], final[1]


def recurrence(w: Array, r: Array) -> Recurrence:
    """Returns the `Recurrence` of the layer, from which its cost follows."""
    return Recurrence(len(w), w.size + r.size)


class _Cell:
    """The LSTM's equations in one direction, with gates in ONNX's order i, o, f, c."""

    def __init__(self, attrs: Any, r: Array, steps: Array, b: Array, p: Array | None) -> None:
        self.r, self.steps = r, steps
        self.bias = b[: len(b) // 2] + b[len(b) // 2 :]
        self.p = np.zeros((3, len(r)), np.float32) if p is None else p.reshape(3, -1)
        self.clip = attrs.clip or np.inf
        self.tied = bool(attrs.input_forget)
        self.axes = (0, 1) if attrs.together else (1,)
        self.sigmoid, self.tanh = _FUNCTIONS[bool(attrs.together)]

    def step(self, fed: Array, h: Array, c: Array, counts: Array) -> tuple[Array, Array]:
        """Returns the states (h, c) after a step.

        ``counts``: a mask of the rows of h that determine the scale of h.
        """
        row = in_bytes(h, counts, self.axes)
        product = exact_product(row.whole, self.r).astype(np.float32)
        sums = fed + product * (row.steps * self.steps) + self.bias
        i, o, f, g = np.split(sums, 4, axis=1)
        i = self.sigmoid(self._clip(i + self.p[0] * c))
        f = 1 - i if self.tied else self.sigmoid(self._clip(f + self.p[2] * c))
        c = f * c + i * self.tanh(self._clip(g))
        return self.sigmoid(self._clip(o + self.p[1] * c)) * self.tanh(c), c

    def _clip(self, x: Array) -> Array:
        return np.clip(x, np.float32(-self.clip), np.float32(self.clip))
