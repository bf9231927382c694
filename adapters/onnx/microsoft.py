"""The rules of ONNX Runtime's own operators, which its optimiser and its quantiser write.

Formulas: ONNX Runtime's contrib operators.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.common.lowering import Results, Rules
from onernn.adapters.onnx.table import OnnxOperator
from onernn.ir.errors import UnsupportedError
from onernn.ops import OPERATORS

DOMAIN = "com.microsoft"
rule = RULES = Rules[Callable[[OnnxOperator], Results]]()

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")
MEANINGS = {
    "documented": "DynamicQuantizeLSTM quantizes each sequence by itself, as it is defined for one;"
    " ONNX Runtime quantizes together what a thread has of a batch, so that its results depend on"
    " both: 0.21 apart in ddddocr 1.6.1 (semantics='onnxruntime' gives those of one thread)",
    "onnxruntime": "DynamicQuantizeLSTM quantizes a batch together, as ONNX Runtime does on one"
    " thread: a sequence has other results in another batch, 0.21 apart in ddddocr 1.6.1"
    " (semantics='documented' gives it the same in any batch)",
}


@rule("DynamicQuantizeLSTM")
def _lstm(op: OnnxOperator) -> Results:
    direction = op.attribute("direction", "forward")
    names = [name.lower() for name in op.attribute("activations", _ACTIVATIONS)]
    if names not in (list(_ACTIVATIONS), list(_ACTIVATIONS * 2)):
        raise UnsupportedError(f"attribute activations={names}: only {list(_ACTIVATIONS)}")
    if op.attribute("clip", 1.0) == 0:
        op.builder.notes["clip=0 means no clipping, as it did to those who wrote it"] = None
    op.builder.notes[MEANINGS[op.builder.semantics]] = None
    together = (1 if op.wants(0) else 2) if op.builder.semantics == "onnxruntime" else 0
    return op.emit_many(
        "DynamicQuantizeLSTM",
        3,
        *(op.optional(at) for at in range(12)),
        direction=direction,
        hidden_size=op.attribute("hidden_size", 0),
        clip=op.attribute("clip", 0.0),
        input_forget=op.attribute("input_forget", 0),
        together=together,
    )


@rule("DynamicQuantizeMatMul")
def _dynamic_matmul(op: OnnxOperator) -> Results:
    """A is put into bytes first."""
    a, scale, zero = op.emit_many("DynamicQuantizeLinear", 3, op.value())
    return _to_float(op, (a, op.value(1), zero, op.optional(3)), (scale, op.value(2)), 4)


@rule("MatMulIntegerToFloat")
def _matmul_to_float(op: OnnxOperator) -> Results:
    a, b, a_scale, b_scale = (op.value(at) for at in range(4))
    if op.builder.type_of(a_scale).counts not in ((), (1,)):
        raise UnsupportedError("input a_scale: only one for all rows")
    return _to_float(op, (a, b, op.optional(4), op.optional(5)), (a_scale, b_scale), 6)


def _to_float(
    op: OnnxOperator, factors: tuple[str, ...], scales: tuple[str, str], bias: int
) -> Results:
    """The product in steps of both scales, and what input ``bias`` adds, if it is there."""
    whole = op.cast(op.emit("MatMulInteger", *factors), "float32")
    y = op.emit("Mul", whole, op.emit("Mul", *scales))
    return op.emit("Add", y, op.value(bias)) if op.optional(bias) else y


# Operators that stand for several.


@rule("Gelu BiasGelu FastGelu")
def _gelu(op: OnnxOperator) -> Results:
    """Of the sum of x and a bias; FastGelu's is the approximation by tanh."""
    x = op.value(0)
    if op.at.type == "BiasGelu" or (op.at.type == "FastGelu" and op.optional(1)):
        x = op.emit("Add", x, op.value(1))
    return op.emit("Gelu", x, approximate="tanh" if op.at.type == "FastGelu" else "none")


@rule("QuickGelu")
def _quick_gelu(op: OnnxOperator) -> Results:
    """x sigmoid(alpha x)."""
    x = op.value()
    steep = op.emit("Mul", x, op.scalar(op.attribute("alpha", 1.702), x))
    return op.emit("Mul", x, op.function("Sigmoid", steep))


@rule("SkipLayerNormalization")
def _skip_layer_normalization(op: OnnxOperator) -> Results:
    """Of the sum of both inputs and a bias, which is an output, too. There are no statistics."""
    total = op.emit("Add", op.value(0), op.value(1))
    if op.optional(4):
        total = op.emit("Add", total, op.value(4))
    epsilon = op.attribute("epsilon", 1e-12)
    y = op.emit("LayerNormalization", total, op.value(2), op.optional(3), epsilon=epsilon)
    return {"0": y, "3": total} if op.wants(3) else y


@rule("FusedMatMul")
def _fused_matmul(op: OnnxOperator) -> Results:
    op.only(transBatchA=0, transBatchB=0)
    y = op.emit("MatMul", _turned(op, 0, "transA"), _turned(op, 1, "transB"))
    alpha = op.attribute("alpha", 1.0)
    return y if alpha == 1 else op.emit("Mul", y, op.scalar(alpha, y))


def _turned(op: OnnxOperator, index: int, name: str) -> str:
    """A factor, its last two axes exchanged if the attribute says so; a vector has only one."""
    x = op.value(index)
    turned = op.attribute(name, 0) and op.builder.type_of(x).rank != 1
    return op.swapped(x) if turned else x


@rule("FusedGemm")
def _fused_gemm(op: OnnxOperator) -> Results:
    numbers = {name: op.attribute(name, 1.0) for name in ("alpha", "beta")}
    turned = {name: op.attribute(name, 0) for name in ("transA", "transB")}
    y = op.emit("Gemm", op.value(0), op.value(1), op.optional(2), **numbers, **turned)
    names = ("alpha", "beta", "gamma")
    given = {n: op.attribute(f"activation_{n}", 0.0) for n in names}
    given = {n: number for n, number in given.items() if f"activation_{n}" in op.attributes}
    return _activated(op, y, **given)


@rule("FusedConv")
def _fused_conv(op: OnnxOperator) -> Results:
    """Input 3 is added to the windows' sums."""
    y = op.emit("Conv", op.value(0), op.value(1), op.optional(2), **op.given(OPERATORS["Conv"]))
    if op.optional(3):
        y = op.emit("Add", y, op.value(3))
    numbers = op.attribute("activation_params", ())
    if op.attributes.get("activation") == "Clip" and len(numbers) == 2:
        op.only(activation="Clip")
        return op.emit("Clip", y, *(op.scalar(number, y) for number in numbers))
    if len(numbers) > 2:
        raise UnsupportedError(f"attribute activation_params={numbers}: expected two at most")
    return _activated(op, y, **dict(zip(("alpha", "beta"), numbers, strict=False)))


_NUMBERS = {"alpha", "beta", "gamma"}


def _activated(op: OnnxOperator, y: str, **numbers: float) -> str:
    """What attribute ``activation`` names, of y; its own attributes are ``numbers``."""
    name = op.attribute("activation", "")
    record = OPERATORS.get(name)
    known = set(record.attributes) - {"rational"} if record else set[str]()
    elementwise = record is not None and record.kind == "elementwise" and record.most == 1
    if (name and not elementwise) or not known <= _NUMBERS or not numbers.keys() <= known:
        more = f" with {', '.join(numbers)}" if numbers else ""
        raise UnsupportedError(f"attribute activation={name!r}{more}: this is not known")
    return op.function(name, y, **numbers) if name else y


# Operators on quantized numbers: those of real numbers, of which the results are quantized.


@rule("QLinearAdd QLinearMul")
def _quantized_pair(op: OnnxOperator) -> Results:
    name = op.at.type.removeprefix("QLinear")
    return _quantized(op, op.emit(name, _dequantized(op, 0), _dequantized(op, 3)), 6)


@rule("QLinearSigmoid QLinearLeakyRelu")
def _quantized_function(op: OnnxOperator) -> Results:
    name = op.at.type.removeprefix("QLinear")
    more = {"alpha": op.attribute("alpha", 0.01)} if name == "LeakyRelu" else {}
    return _quantized(op, op.emit(name, _dequantized(op, 0), **more), 3)


@rule("QLinearConcat")
def _quantized_concat(op: OnnxOperator) -> Results:
    parts = [_dequantized(op, index) for index in range(2, len(op.inputs), 3)]
    return _quantized(op, op.emit("Concat", *parts, axis=op.attribute("axis", 0)), 0, like=2)


@rule("QLinearGlobalAveragePool")
def _quantized_mean(op: OnnxOperator) -> Results:
    op.only(channels_last=0)
    return _quantized(op, op.emit("GlobalAveragePool", _dequantized(op, 0)), 3)


def _dequantized(op: OnnxOperator, index: int) -> str:
    """Inputs from ``index`` on: numbers, their scale, their zero point."""
    return op.emit(
        "DequantizeLinear", *(op.value(index + k) for k in (0, 1)), op.optional(index + 2)
    )


def _quantized(op: OnnxOperator, y: str, index: int, like: int = 0) -> str:
    """y by the scale and the zero point in inputs from ``index`` on, as bytes like ``like``'s."""
    zero = op.optional(index + 1)
    if not zero:
        zero = op.constant(np.zeros((), op.dtype_of(op.value(like))), "zero")
    return op.emit("QuantizeLinear", y, op.value(index), zero)
