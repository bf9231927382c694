"""Operators on quantized numbers. What they refuse the walk refuses, too, and tells why."""

from __future__ import annotations

import numpy as np

from onernn.backend.compiled.packing import LANES, MOST_ROWS, padded, panels, quad_rows
from onernn.core.arrays import Array
from onernn.core.sizes import Size, volume
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.operators.products import groups_of, packed
from onernn.engine.steps import Call, Packed, Team
from onernn.operators.quantized_lstm import Quantized, quantized

_BYTES = ("int8", "uint8")


@rule("QuantizeLinear")
def quantize(op: OperatorCode) -> Call:
    made = op.program.dtype(op.node.outputs[0])
    if op.dtype() != "float32" or op.dtype(1) != "float32" or made not in _BYTES:
        op.refuse(f"from {op.dtype()} to {made}")
    return _linear(op, "quantize", made)


@rule("DequantizeLinear")
def dequantize(op: OperatorCode) -> Call:
    given = op.dtype()
    if op.dtype(1) != "float32" or given not in (*_BYTES, "int32"):
        op.refuse(f"from {given} to {op.dtype(1)}")
    if given == "int32" and op.node.input(2):
        op.refuse("a zero point of 32-bit numbers")
    op.alike(2)
    return _linear(op, "dequantize", given)


def _linear(op: OperatorCode, function: str, dtype: str) -> Call:
    shape, scales = op.shape(), op.shape(1)
    if op.node.input(2) and op.shape(2) != scales:
        op.refuse("a zero point of another shape than the scale's")
    outer, count, inner = Size.of(1), Size.of(1), volume(shape)
    if scales and scales != (count,):
        if len(scales) != 1:
            op.refuse("scales of several axes")
        axis = op.axis(len(shape))
        op.same(scales[0], shape[axis])
        outer, count, inner = volume(shape[:axis]), shape[axis], volume(shape[axis + 1 :])
    given = op.read(0), op.read(1), op.read(2)
    return op.call(function, *given, outer, count, inner, types=[dtype], checks=True)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(op: OperatorCode) -> Call:
    op.of("float32")
    return op.call(
        "dynamic_quantize", *op.node.outputs[1:], op.read(0), volume(op.shape()), checks=True
    )


def _zero_point(op: OperatorCode, at: int) -> str:
    """Of the first factor: one for all of it, or none."""
    if op.node.input(at) and (volume(op.shape(at)) != Size.of(1) or op.dtype(at) != op.dtype()):
        op.refuse("a zero point for each row, or of another dtype")
    return op.read(at)


@rule("MatMulInteger")
def matmul(op: OperatorCode) -> Call:
    """With a matrix that is known now, of bytes with a sign: others are moved by 128."""
    a, b = op.shape(0), op.shape(1)
    matrix = op.program.graph.constants.get(op.node.inputs[1])
    zeros = op.program.graph.constants.get(op.node.input(3))
    if matrix is None or matrix.ndim != 2 or not 1 <= len(matrix) <= MOST_ROWS:
        op.refuse("a second factor that is no constant matrix")
    if op.dtype() not in _BYTES or matrix.dtype.name not in _BYTES:
        op.refuse(f"of {op.dtype()} and {matrix.dtype}")
    if op.node.input(3) and (zeros is None or zeros.dtype != matrix.dtype or zeros.ndim > 1):
        op.refuse("zero points of its second factor")
    inner = op.same(a[-1], b[0])
    op.mixes = [a[-1]]
    columns = matrix.shape[1]
    shift = np.zeros((), np.int16) if zeros is None else zeros.astype(np.int16)
    if shift.shape not in ((), (1,), (columns,)):
        op.refuse("zero points of another number of columns")
    whole, shift = _as_bytes(matrix.astype(np.int16) - shift)
    wide = packed(whole)
    numbers = quad_rows(wide, np.ones(wide[:, 0].shape, np.float32))
    types = [op.dtype(), str(groups_of(columns))]
    given = op.read(0), _zero_point(op, 2), volume(a[:-1]), inner
    more = Packed(numbers), Packed(packed(shift)) if shift.any() else "", columns, Team()
    return op.call("dense_bytes", *given, *more, types=types)


def _as_bytes(whole: Array) -> tuple[Array, Array]:
    """Numbers of nine bits (K, C) as bytes with a sign, and the zero points (1, C) of these.

    A column has at most 256 numbers in its range: it is moved where it does not fit.
    """
    low, high = whole.min(axis=0, keepdims=True), whole.max(axis=0, keepdims=True)
    zeros = np.where(high > 127, 127 - high, np.where(low < -128, -128 - low, 0)).astype(np.int32)
    return whole + zeros, zeros


@rule("DynamicQuantizeLSTM")
def lstm(op: OperatorCode) -> Call:
    """Weights that are known now, of bytes without their zero point, or moved by it."""
    names = dict(zip("x w r b lengths h c p".split(), range(8), strict=True))
    constant = [op.program.graph.constants.get(name) for name in op.node.inputs]
    w, r, b, p = (constant[names[name]] for name in "wrbp")
    scales = [each for each in constant[8:12] if each is not None]
    if w is None or r is None or len(scales) < 4:
        op.refuse("weights that are computed at run time")
    if any(op.node.input(names[n]) and constant[names[n]] is None for n in "bp"):
        op.refuse("a bias that is computed at run time")
    count, units = (2 if op.at.direction == "bidirectional" else 1), op.at.hidden_size
    x, known = op.shape(), op.at.direction in ("forward", "reverse", "bidirectional")
    op.of("float32")
    if not known or w.ndim != 3 or r.shape != (count, units, 4 * units) or units < 1:
        op.refuse(f"weights of {w.shape} and {r.shape} for {units} units, {op.at.direction}")
    if w.shape[::2] != (count, 4 * units) or w.shape[1] < 1 or max(w.shape[1], units) > MOST_ROWS:
        op.refuse(f"weights of {w.shape} for {units} units")
    op.same(x[2], w.shape[1])
    for name, shape in (("h", (count, x[1], units)), ("c", (count, x[1], units))):
        if op.node.input(names[name]):
            op.of("float32", at=names[name])
            for size, wanted in zip(op.shape(names[name]), shape, strict=True):
                op.same(size, wanted)
    if op.node.input(4):
        op.of("int32", at=4)
        op.same(volume(op.shape(4)), x[1])
    bias = np.zeros((count, 8 * units), np.float32) if b is None else b
    peepholes = np.zeros((count, 3 * units), np.float32) if p is None else p
    if bias.shape != (count, 8 * units) or peepholes.shape != (count, 3 * units):
        op.refuse(f"a bias of {bias.shape}, peepholes of {peepholes.shape}")
    if {bias.dtype.name, peepholes.dtype.name} != {"float32"}:
        op.refuse(f"a bias of {bias.dtype}, peepholes of {peepholes.dtype}")
    matrices = [_gates(quantized("w", w, *scales[:2])), _gates(quantized("r", r, *scales[2:]))]
    summed = bias[:, : 4 * units] + bias[:, 4 * units :]
    given = [op.read(at) for at in (0, 4, 5, 6)]
    sizes = (*x[:2], w.shape[1], units, count, op.at.direction == "reverse")
    stored = [Packed(numbers) for numbers, _ in matrices] + [zeros for _, zeros in matrices]
    more = Packed(_in_panels(summed, 4)), Packed(_in_panels(peepholes, 3)), float(op.at.clip)
    fed = op.keep("fed", "float32", (*x[:2], 4 * padded(units)))
    outputs = *(*op.node.outputs[1:], "", "")[:2], fed
    op.mixes = x[:1]
    return op.call(
        "quantized_lstm",
        *outputs,
        *given,
        *sizes,
        *stored,
        *more,
        bool(op.at.input_forget),
        Team(),
        checks=True,
    )


def _gates(matrix: Quantized) -> tuple[Array, Packed | str]:
    """Panels of sixteen units with their gates, of each direction, and their zero points."""
    numbers, zeros = [], []
    for whole, steps in zip(matrix.whole, matrix.steps, strict=True):
        stored, shift = _as_bytes(whole)
        wide = panels(stored.reshape(len(whole), 4, -1))[:, :, 0]
        numbers.append(quad_rows(wide, panels(steps.reshape(1, 4, -1))[:, 0, 0].copy()))
        zeros.append(_in_panels(shift, 4))
    together = np.stack(zeros)
    return np.stack(numbers), Packed(together) if together.any() else ""


def _in_panels(rows: Array, gates: int) -> Array:
    """(D, gates * O) -> (D, panels, gates, 16)"""
    units = rows.shape[1] // gates
    out = np.zeros((len(rows), gates, padded(units)), rows.dtype)
    out[:, :, :units] = rows.reshape(len(rows), gates, units)
    return np.ascontiguousarray(out.reshape(len(rows), gates, -1, LANES).swapaxes(1, 2))
