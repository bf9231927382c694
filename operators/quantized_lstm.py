"""LSTM on quantized weights, whose input and states are put into bytes while it runs.

Formulas: ONNX Runtime's operator DynamicQuantizeLSTM, for each sentence as if it were alone: x has
one scale and zero point for all steps of a sentence, h one for each sentence and step. So a
sentence has the same bits in any batch, however it is padded. See design/0045.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import bytes_of
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.sizes import Size
from onernn.core.spec import Activation
from onernn.core.types import Type
from onernn.operators.activations import function
from onernn.operators.quantized import exact_product, parameters

_SIGMOID, _TANH = function(Activation("sigmoid")), function(Activation("tanh"))


class Quantized(NamedTuple):
    """A matrix of each direction, (D, K, 4*O): whole numbers in steps of (D, 4*O)."""

    whole: Array
    steps: Array


def quantized(name: str, q: Array, scale: Array, zero: Array) -> Quantized:
    """A matrix without its zero point. Raises `ShapeError` for what is not one of the operator."""
    if q.dtype not in (np.uint8, np.int8) or zero.dtype != q.dtype:
        raise ShapeError(f"{name} of {q.dtype}, zero point of {zero.dtype}: expected bytes of one")
    allowed = ((len(q),), (len(q), q.shape[2]))
    if scale.shape not in allowed or zero.shape not in allowed:
        shapes = f"scale {scale.shape} and zero point {zero.shape}"
        raise ShapeError(f"{shapes} of {name}: expected {allowed[0]} or {allowed[1]}")
    if scale.dtype != np.float32 or not (np.isfinite(scale) & (scale > 0)).all():
        raise ShapeError(f"scale of {name}: expected finite float32 above 0")
    wide = zero.astype(np.int16).reshape(len(q), 1, -1)
    steps = np.broadcast_to(scale.reshape(len(q), -1), (len(q), q.shape[2]))
    return Quantized(q.astype(np.int16) - wide, steps)


class Bytes(NamedTuple):
    """Numbers as floats that are whole: those of bytes without their zero point, and steps."""

    whole: Array
    steps: Array


def in_bytes(x: Array, inside: Array, axes: tuple[int, ...]) -> Bytes:
    """x with one range along ``axes``, of what is ``inside``; a range with NaN has the step NaN."""
    kept = np.where(inside, x, np.float32(0))
    low, high = kept.min(axes, keepdims=True, initial=0), kept.max(axes, keepdims=True, initial=0)
    steps, zero = parameters(low, high)
    return Bytes(np.clip(np.rint(kept / steps) + zero, 0, 255) - zero, steps)


def _check(at: Any, x: Array, w: Array, r: Array, shapes: dict[str, Array | None]) -> None:
    count = 2 if at.direction == "bidirectional" else 1
    if at.direction not in ("forward", "reverse", "bidirectional"):
        raise ShapeError(f"attribute direction={at.direction!r}")
    if x.dtype != np.float32 or x.ndim != 3:
        raise ShapeError(f"x: expected float32 (T, N, I), got {x.dtype} {x.shape}")
    units = r.shape[1] if r.ndim == 3 else 0
    n = x.shape[1]
    expected = {
        "w": (w, (count, x.shape[2], 4 * units)),
        "r": (r, (count, units, 4 * units)),
        "b": (shapes["b"], (count, 8 * units)),
        "lengths": (shapes["lengths"], (n,)),
        "h": (shapes["h"], (count, n, units)),
        "c": (shapes["c"], (count, n, units)),
        "p": (shapes["p"], (count, 3 * units)),
    }
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise ShapeError(f"{name}: expected {shape}, got {array.shape}")
        if name in "bhcp" and array is not None and array.dtype != np.float32:
            raise ShapeError(f"{name}: expected float32, got {array.dtype}")
    if at.hidden_size != units:
        raise ShapeError(f"attribute hidden_size={at.hidden_size}: r is {r.shape}")


def _lstm(
    at: Any,
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
    """(Y (T, D, N, O), Y_h (D, N, O), Y_c (D, N, O))"""
    _check(at, x, w, r, {"b": b, "lengths": lengths, "h": h, "c": c, "p": p})
    weights = quantized("w", w, w_scale, w_zero), quantized("r", r, r_scale, r_zero)
    t, n, units = *x.shape[:2], r.shape[1]
    count = len(w)
    own = np.full(n, t) if lengths is None else lengths.astype(np.int64)
    if own.min(initial=0) < 0 or own.max(initial=0) > t:
        raise ShapeError(f"lengths {own.tolist()!s:.60}: expected 0 to {t}")
    inside = np.arange(t)[:, None] < own
    words = in_bytes(x, inside[..., None], (0, 2))
    y = np.zeros((t, count, n, units), np.float32)
    final = np.zeros((2, count, n, units), np.float32)
    zeros = np.zeros((n, units), np.float32)
    for d in range(count):
        back = d == 1 or at.direction == "reverse"
        sums = exact_product(words.whole, weights[0].whole[d])
        fed = sums.astype(np.float32) * (words.steps * weights[0].steps[d])
        state, memory = (zeros if given is None else given[d] for given in (h, c))
        bias = np.zeros(8 * units, np.float32) if b is None else b[d]
        peepholes = None if p is None else p[d]
        cell = _Cell(at, weights[1].whole[d], weights[1].steps[d], bias, peepholes)
        for step in range(own.max(initial=0)):
            now = np.where(inside[step], own - 1 - step if back else step, 0)
            each = np.arange(n)
            made = cell.step(fed[now, each], state, memory)
            runs = inside[step][:, None]
            state, memory = np.where(runs, made[0], state), np.where(runs, made[1], memory)
            y[now[inside[step]], d, each[inside[step]]] = state[inside[step]]
        # A sentence of no words ends with zeros, whatever it began with: see design/0008.
        final[:, d] = np.where((own > 0)[:, None], np.stack([state, memory]), 0)
    return y, final[0], final[1]


class _Cell:
    """One direction's equations; gates in ONNX's order i, o, f, c."""

    def __init__(self, at: Any, r: Array, steps: Array, b: Array, p: Array | None) -> None:
        self.r, self.steps = r, steps
        self.bias = b[: len(b) // 2] + b[len(b) // 2 :]
        self.p = np.zeros((3, len(r)), np.float32) if p is None else p.reshape(3, -1)
        self.clip = at.clip or np.inf
        self.tied = bool(at.input_forget)

    def step(self, fed: Array, h: Array, c: Array) -> tuple[Array, Array]:
        row = in_bytes(h, np.array(True), (1,))
        product = exact_product(row.whole, self.r).astype(np.float32)
        sums = fed + product * (row.steps * self.steps) + self.bias
        i, o, f, g = np.split(sums, 4, axis=1)
        i = _SIGMOID(self._clipped(i + self.p[0] * c))
        f = 1 - i if self.tied else _SIGMOID(self._clipped(f + self.p[2] * c))
        c = f * c + i * _TANH(self._clipped(g))
        return _SIGMOID(self._clipped(o + self.p[1] * c)) * _TANH(c), c

    def _clipped(self, x: Array) -> Array:
        return np.clip(x, np.float32(-self.clip), np.float32(self.clip))


def _types(context: Context, x: Type, w: Type, r: Type, *_: Type | None) -> tuple[Type, ...]:
    steps, batch, _width = x.shape or (None, None, None)
    count = Size.of(2 if context.at.direction == "bidirectional" else 1)
    state = count, batch, Size.of(context.at.hidden_size)
    final = Type("float32", state)
    return Type("float32", (steps, *state)), final, final


def _growth(at: Any, x: Array, w: Array, r: Array, *_: Any) -> int:
    """Whole numbers and sums of all words, gates, results; matrices without their zero points."""
    words = max(x.shape[0], 1) * max(x.shape[1], 1)
    gates = w.shape[-1] if w.ndim else 0
    return 4 * bytes_of(x) + 16 * words * gates + 4 * (w.size + r.size)


define(
    "DynamicQuantizeLSTM",
    kind="mixes",
    inputs="x w r b? lengths? h? c? p? w_scale w_zero r_scale r_zero",
    attributes={"direction": "forward", "hidden_size": REQUIRED, "clip": 0.0, "input_forget": 0},
    outputs=3,
    since=1,
    domain="com.microsoft",
    mixes=lambda *_: (0, 1),
    type=_types,
    compute=_lstm,
    growth=_growth,
)
