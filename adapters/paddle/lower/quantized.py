"""Paddle's operators between floats and bytes, and the numbers in which an int8 or bf16 layer runs.

Formulas: quantize_mkldnn_op.cc, dequantize_mkldnn_op.cc, requantize_mkldnn_op.cc and
fusion_gru_kernel.cc of 2.6; the order of roundings is measured with 2.6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.precision import OWN, LayerPrecision, PartScales, Scale
from onernn.core.spec import RnnSpec


def _number(op: PaddleOperator, value: float, dtype: str = "float32") -> str:
    return op.builder.constant(np.asarray(value, dtype), f"{op.at.type}/{dtype}")


def _scale(op: PaddleOperator, scale: str, shift: str) -> Scale:
    """q = x * factor + shift. Paddle cuts a shift to a whole number."""
    found = Scale(op.attribute(scale, 1.0), float(int(op.attribute(shift, 0.0))))
    if not (found.factor > 0 and np.isfinite(found.factor) and 0 <= found.shift <= 255):
        raise UnsupportedError(
            f"attributes {scale}={found.factor:g}, {shift}={found.shift:g}: expected a positive"
            " scale and a shift of 0 to 255"
        )
    return found


def _rounded(op: PaddleOperator, x: str, scale: Scale, dtype: str) -> str:
    """x * factor + shift in float32, then rounded half to even, then saturated."""
    x = op.emit("Mul", x, _number(op, scale.factor))
    x = op.emit("Add", x, _number(op, scale.shift))
    return op.emit("QuantizeLinear", x, _number(op, 1), _number(op, 0, dtype))


def _floats(op: PaddleOperator, q: str, scale: Scale) -> str:
    """(q - shift) times the float32 next to 1 / factor."""
    whole = op.emit("Sub", op.emit("Cast", q, to="float32"), _number(op, scale.shift))
    return op.emit("Mul", whole, _number(op, float(np.float32(1) / np.float32(scale.factor))))


def _bfloat16(op: PaddleOperator, scale: Scale) -> bool:
    """Whether the other side is bf16; Paddle's passes give that no scale."""
    op.attribute("output_format", "NHWC")  # of images; the numbers are the same
    found = op.attribute("bfloat16", False)
    if found and scale != (1, 0):
        raise UnsupportedError(f"bfloat16 numbers with scale {scale.factor:g}, {scale.shift:g}")
    return found


@rule("quantize")
def _quantize(op: PaddleOperator) -> Results:
    x, scale = op.value("Input"), _scale(op, "Scale", "Shift")
    signed = op.attribute("is_negative_input", False) and not scale.shift
    op.narrow("Output")
    if _bfloat16(op, scale):
        return {"Output": op.emit("Cast", x, to="bfloat16")}
    return {"Output": _rounded(op, x, scale, "int8" if signed else "uint8")}


@rule("dequantize")
def _dequantize(op: PaddleOperator) -> Results:
    q, scale = op.value("Input"), _scale(op, "Scale", "Shift")
    if _bfloat16(op, scale) or op.dtype("Input").kind == "f":
        return {"Output": op.emit("Identity", q)}
    return {"Output": _floats(op, q, scale)}


@rule("requantize")
def _requantize(op: PaddleOperator) -> Results:
    q, old = op.value("Input"), _scale(op, "Scale_in", "Shift_in")
    new, signed = _scale(op, "Scale_out", "Shift_out"), op.dtype("Input") == np.int8
    if signed and old.shift:
        raise UnsupportedError("attribute Shift_in: int8 numbers have none")
    ratio = float(np.float32(new.factor) / np.float32(old.factor))
    shift = new.shift - ratio * old.shift
    if not 0 <= np.rint(shift) <= 255:
        raise UnsupportedError(
            f"attributes Shift_in, Shift_out: bytes move by {shift:g}, which Paddle cuts off at 0"
            " and 255, so that it computes other numbers than its scales say"
        )
    op.narrow("Output")
    dtype = "int8" if signed and not new.shift else "uint8"
    to = Scale(ratio, float(np.rint(shift)))
    return {"Output": _rounded(op, op.emit("Cast", q, to="float32"), to, dtype)}


class LayerNumbers(NamedTuple):
    """How an operator's layer computes: from ``x`` in float32, in ``precision``."""

    op: PaddleOperator
    x: str
    precision: LayerPrecision = OWN
    scale: Scale | None = None

    def given(self, y: str) -> str:
        """Hidden states as the operator gives them; ``scale``: of those that are bytes."""
        if not self.precision or self.op.attribute("force_fp32_output", False):
            return y
        self.op.narrow("Hidden")
        if self.scale:
            return _rounded(self.op, y, self.scale, "uint8")
        return self.op.emit("Cast", y, to="bfloat16")


def layer_numbers(op: PaddleOperator, spec: RnnSpec, factors: Sequence[Array]) -> LayerNumbers:
    """By the numbers in X, as Paddle chooses its kernel: attributes alone change nothing.

    ``factors``: Scale_weights of each layer and direction, one number or one a gate and output
    channel, which Paddle gives to oneDNN as they are: in the order of oneDNN's gates.
    """
    x, dtype = op.ragged("X"), op.dtype("X").name
    if dtype == "float32" and not op.is_narrow("X"):
        return LayerNumbers(op, x)
    if dtype not in ("float32", "uint8"):
        raise UnsupportedError(f"input X: {dtype} numbers; Paddle's layers take float32 and uint8")
    if spec.activations or spec.peephole:
        raise UnsupportedError("in int8 or bf16: only sigmoid and tanh, and no peepholes")
    if dtype == "float32":
        return LayerNumbers(op, x, LayerPrecision("bf16"))
    scale = _scale(op, "Scale_data", "Shift_data")
    parts = [PartScales(scale, scale, each, each) for each in _factors(spec, factors)]
    return LayerNumbers(op, _behind(op, x, scale), LayerPrecision("u8", tuple(parts)), scale)


def _factors(spec: RnnSpec, given: Sequence[Array]) -> list[Array]:
    count = spec.gates * spec.hidden_size
    for each in given:
        if each.size not in (1, count):
            raise UnsupportedError(
                f"Scale_weights: expected 1 or {count} numbers ({spec.gates} gates of"
                f" {spec.hidden_size} channels), got {each.size}"
            )
    shape = (spec.gates, spec.hidden_size)
    return [np.broadcast_to(each.reshape(-1), count).reshape(shape) for each in given]


def _behind(op: PaddleOperator, q: str, scale: Scale) -> str:
    """What `_rounded` made the bytes q of, where by this scale; else the floats they stand for."""
    made, numbers = q, dict[str, Array]()
    for kind, which in {"QuantizeLinear": "zero", "Add": "shift", "Mul": "factor"}.items():
        node = op.builder.maker(made)
        number = None if node is None else op.builder.constants.get(node.inputs[-1])
        if node is None or node.op != kind or number is None:
            return _floats(op, q, scale)
        made, numbers[which] = node.inputs[0], number
    same = numbers["factor"] == np.float32(scale.factor) and numbers["shift"] == scale.shift
    same = same and numbers["zero"].dtype == np.uint8
    return made if same else _floats(op, q, scale)
