"""The rules of ONNX Runtime's own operators on quantized numbers.

Formulas: ONNX Runtime's contrib operators.
"""

from __future__ import annotations

from onernn.adapters.lowering import Results
from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.core.errors import UnsupportedError

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")


def lstm(op: OnnxOperator) -> Results:
    direction = op.attribute("direction", "forward")
    names = [name.lower() for name in op.attribute("activations", _ACTIVATIONS)]
    if names not in (list(_ACTIVATIONS), list(_ACTIVATIONS * 2)):
        raise UnsupportedError(f"attribute activations={names}: only {list(_ACTIVATIONS)}")
    if op.attribute("clip", 1.0) == 0:
        op.builder.notes["clip=0 means no clipping, as it did to those who wrote it"] = None
    return op.emit_many(
        "DynamicQuantizeLSTM",
        3,
        *(op.optional(at) for at in range(12)),
        direction=direction,
        hidden_size=op.attribute("hidden_size", 0),
        clip=op.attribute("clip", 0.0),
        input_forget=op.attribute("input_forget", 0),
    )


def dynamic_matmul(op: OnnxOperator) -> Results:
    """A is put into bytes first."""
    a, scale, zero = op.emit_many("DynamicQuantizeLinear", 3, op.value())
    return _to_float(op, (a, op.value(1), zero, op.optional(3)), (scale, op.value(2)), 4)


def matmul_to_float(op: OnnxOperator) -> Results:
    a, b, a_scale, b_scale = (op.value(at) for at in range(4))
    if op.builder.type_of(a_scale).counts not in ((), (1,)):
        raise UnsupportedError("input a_scale: only one for all rows")
    return _to_float(op, (a, b, op.optional(4), op.optional(5)), (a_scale, b_scale), 6)


def _to_float(
    op: OnnxOperator, factors: tuple[str, ...], scales: tuple[str, str], bias: int
) -> Results:
    """The product in steps of both scales, and what input ``bias`` adds, if it is there."""
    whole = op.emit("Cast", op.emit("MatMulInteger", *factors), to="float32")
    y = op.emit("Mul", whole, op.emit("Mul", *scales))
    return op.emit("Add", y, op.value(bias)) if op.optional(bias) else y
