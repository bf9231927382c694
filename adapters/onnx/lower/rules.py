"""The table: ONNX's operators -> canonical ones, which are ONNX's newest.

What differs between opsets: ONNX's operator changelog.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.onnx.lower import control, quantized, recurrent
from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.adapters.onnx.messages import BFLOAT16
from onernn.adapters.onnx.read.tensors import dtype_of
from onernn.core.errors import UnsupportedError
from onernn.core.operator import REQUIRED
from onernn.operators import OPERATORS, Operator

_WHOLE = 2**31 - 1  # where a Slice ends that goes to the end

Rule = Callable[[OnnxOperator], Results]
RULES: dict[str, Rule] = {
    "RNN": recurrent.rnn,
    "GRU": recurrent.gru,
    "LSTM": recurrent.lstm,
    "If": control.conditional,
    "Loop": control.loop,
    "Scan": control.scan,
    "SequenceEmpty": control.sequence_empty,
    "SplitToSequence": control.split_to_sequence,
    "SequenceAt": control.sequence_at,
    "SequenceLength": control.sequence_length,
    "ConcatFromSequence": control.concat_from_sequence,
}
MICROSOFT = "com.microsoft"
_MICROSOFT: dict[str, Rule] = {
    "DynamicQuantizeLSTM": quantized.lstm,
    "DynamicQuantizeMatMul": quantized.dynamic_matmul,
    "MatMulIntegerToFloat": quantized.matmul_to_float,
}
"""Operators of ONNX Runtime's own domain."""


def rule(*types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


def rule_for(domain: str, op_type: str) -> Rule:
    """The rule of an operator. Raises `UnsupportedError` where there is none."""
    known, own = OPERATORS.get(op_type), _MICROSOFT if domain == MICROSOFT else RULES
    plain = known is not None and known.since and known.domain == domain
    if domain not in ("", MICROSOFT) or not (op_type in own or plain):
        raise UnsupportedError("this operator is not known")
    return own.get(op_type, _plain)


_BECAME_INPUTS = {
    "Slice": (10, ("starts", "ends", "axes")),
    "TopK": (10, ("k",)),
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "Split": (13, ("split",)),
    "Squeeze": (13, ("axes",)),
    "Unsqueeze": (13, ("axes",)),
    "ReduceSum": (13, ("axes",)),
}
"""Attributes that are inputs from an opset on, in the order of the inputs."""
_ONLY = {"block_size": 0, "precision": 0, "spatial": 1, "stash_type": 1, "training_mode": 0}
"""Attributes of which one value is understood."""
_LIKE = {"axis": 0, "equation": "", "perm": ()}
"""What attributes are like of which the operator's record has no default."""


def became_inputs(op_type: str) -> tuple[int, tuple[str, ...]]:
    """The first opset in which attributes are inputs, and which; (0, ()) for most operators."""
    reduces = (18, ("axes",)) if op_type.startswith("Reduce") else (0, ())
    return _BECAME_INPUTS.get(op_type, reduces)


def _plain(op: OnnxOperator) -> Results:
    """An operator that means the same in every opset, but for attributes that became inputs.

    Attributes travel along where they are given; the operator's record knows the defaults.
    """
    operator = OPERATORS[op.at.type]
    values = _values(op, operator)
    count = min(len(op.outputs), operator.outputs[1])
    return op.emit_many(op.at.type, count, *values, **_attributes(op, operator))


def _attributes(op: OnnxOperator, operator: Operator) -> dict[str, Any]:
    """Those that are given."""
    for name in _ONLY.keys() & op.attributes.keys():
        op.only(name, _ONLY[name])
    told = {k: v for k, v in operator.attributes.items() if v is not None and v is not REQUIRED}
    like = {**_LIKE, **told}
    return {k: op.attribute(k, like.get(k)) for k in operator.attributes if k in op.attributes}


def _values(op: OnnxOperator, operator: Operator) -> list[str]:
    """The inputs, constants in the place of what older opsets have as attributes."""
    since, names = became_inputs(op.at.type)
    if op.opset < since:
        x = op.value()
        return [x, *(_constant_input(op, name, at, x) for at, name in enumerate(names, 1))]
    most = len(op.inputs) if operator.most is None else operator.most
    slots = map(operator.slot, range(max(operator.least, min(most, len(op.inputs)))))
    return [
        op.optional(at) if slot.optional or slot.variadic else op.value(at)
        for at, slot in enumerate(slots)
    ]


def _constant_input(op: OnnxOperator, name: str, at: int, x: str) -> str:
    """What older opsets have as an attribute; numbers are of the dtype of x."""
    found = op.attribute(name, None)
    if found is None and not OPERATORS[op.at.type].slot(at).optional:
        raise UnsupportedError(f"attribute {name} is missing")
    if found is not None and name in ("min", "max", "value"):
        wide = op.builder.constant(np.asarray(found, np.float64), f"{op.at.type}/number")
        return op.emit("CastLike", wide, x)
    return "" if found is None else op.ints(*np.atleast_1d(found))


@rule("Identity")
def _identity(op: OnnxOperator) -> Results:
    return op.value()


@rule("Constant")
def _constant(op: OnnxOperator) -> Results:
    numbers = {"value_float": "float32", "value_floats": "float32"}
    numbers |= {"value_int": "int64", "value_ints": "int64"}
    given = [(k, op.attribute(k, None)) for k in ("value", *numbers) if k in op.attributes]
    if len(given) != 1:
        raise UnsupportedError("expected one attribute of numbers")
    ((kind, value),) = given
    array = np.asarray(value, numbers.get(kind))
    if array.dtype.kind not in "biuf":
        raise UnsupportedError(f"attribute {kind}: expected numbers, got {array.dtype}")
    return op.builder.constant(array, op.scope.variable(op.outputs["0"][0]))


@rule("Cast")
def _cast(op: OnnxOperator) -> Results:
    number = op.attribute("to", 0)
    if number == BFLOAT16:
        op.builder.notes["bfloat16 values are float32 ones, rounded where the model casts"] = None
    return op.emit("Cast", op.value(), to=dtype_of(number))


@rule("Scatter")
def _scatter(op: OnnxOperator) -> Results:
    """What opset 11 calls ScatterElements."""
    values = [op.value(at) for at in range(3)]
    return op.emit("ScatterElements", *values, axis=op.attribute("axis", 0))


@rule("Softmax", "LogSoftmax")
def _softmax(op: OnnxOperator) -> Results:
    if op.opset >= 13:
        return _plain(op)
    # Up to opset 12 all axes from the given one on are one.
    x = op.value()
    rows = op.emit(op.at.type, op.emit("Flatten", x, axis=op.attribute("axis", 1)), axis=-1)
    return op.emit("Reshape", rows, op.emit("Shape", x), allowzero=1)


@rule("Slice")
def _slice(op: OnnxOperator) -> Results:
    x, *places = _values(op, OPERATORS["Slice"])
    return op.emit("Slice", x, *_cutting(op, *places))


def _cutting(
    op: OnnxOperator, starts: str, ends: str, axes: str = "", steps: str = ""
) -> list[str]:
    """Where a Slice cuts, without the axes of which it takes all: TensorFlow writes them."""
    arrays = [op.builder.constants.get(name) for name in (starts, ends, axes, steps)]
    given = [starts, ends, axes, *([steps] if steps else [])]
    if any(a is None for a, name in zip(arrays, (starts, ends, axes, steps), strict=True) if name):
        return given
    first, last, along, by = (None if a is None else a.reshape(-1).tolist() for a in arrays)
    count = len(first or ())
    rows = list(zip(first or (), last or (), along or range(count), by or [1] * count, strict=True))
    kept = [row for row in rows if not (row[0] == 0 and row[1] >= _WHOLE and row[3] == 1)]
    if not kept or len(kept) == count:
        return given
    return [op.ints(*each) for each in zip(*kept, strict=True)]


@rule("QuantizeLinear")
def _quantize(op: OnnxOperator) -> Results:
    """The dtype of the result is the zero point's: output_dtype tells it where there is none."""
    number = op.attribute("output_dtype", 0)
    if not number or op.optional(2):
        return _plain(op)
    scale = op.value(1)
    shape = op.builder.type_of(scale).counts
    if None in shape:
        raise UnsupportedError("attribute output_dtype, and nobody tells the shape of the scale")
    zero = op.builder.constant(np.zeros(shape, dtype_of(number)), "QuantizeLinear/zero")
    axis = op.attribute("axis", 1)
    op.only("block_size", 0)
    op.only("precision", 0)
    return op.emit("QuantizeLinear", op.value(), scale, zero, axis=axis)


@rule("DequantizeLinear")
def _dequantize(op: OnnxOperator) -> Results:
    """In the dtype of its scale."""
    op.only("output_dtype", 0)
    return _plain(op)


@rule("Split")
def _split(op: OnnxOperator) -> Results:
    op.only("num_outputs", len(op.outputs))
    return _plain(op)


@rule("Dropout")
def _dropout(op: OnnxOperator) -> Results:
    op.attribute("ratio", 0.5)  # in inference nothing is dropped
    op.optional(1)
    training = op.constant(2, "input training_mode")
    if training is not None and training.any():
        raise UnsupportedError("input training_mode is true: only inference is run")
    if not op.wants(1):
        return op.value()
    if op.opset < 12:
        raise UnsupportedError("output 1: before opset 12 it was not said what it is")
    return op.value(), op.emit_many("Dropout", 2, op.value())[1]


@rule("GroupNormalization")
def _group_normalization(op: OnnxOperator) -> Results:
    if op.opset < 21:
        raise UnsupportedError("before opset 21 its scale and bias are those of groups")
    return _plain(op)


@rule("DFT")
def _dft(op: OnnxOperator) -> Results:
    """The axis is an attribute before opset 20."""
    if op.opset >= 20:
        return _plain(op)
    x, length, axis = op.value(), op.optional(1), op.ints(op.attribute("axis", 1))
    return op.emit("DFT", x, length, axis, **_attributes(op, OPERATORS["DFT"]))


@rule("Resize", "Upsample")
def _resize(op: OnnxOperator) -> Results:
    """Constant scales become an attribute of our own: types follow from it."""
    record = OPERATORS["Resize"]
    if op.opset > 10:
        if op.at.type == "Upsample":
            raise UnsupportedError("Upsample is of opsets up to 9")
        x, roi, scales, sizes = op.value(), *(op.optional(at) for at in (1, 2, 3))
        given = _attributes(op, record)
    else:
        x, roi, sizes = op.value(), "", ""
        given = {"mode": op.attribute("mode", "nearest"), **_OLD_RESIZE}
        told = op.attribute("scales", None) if op.opset < 9 else None
        scales = op.value(1) if told is None else op.builder.constant(np.float32(told), "scales")
    array = op.builder.constants.get(scales)
    if array is not None:
        scales = ""
        if array.size:
            given["scales"] = tuple(array.reshape(-1).tolist())
    if op.opset == 10 and given["mode"] == "nearest":
        told = given.get("scales", (0,))
        if not all(scale >= 1 or math.frexp(scale)[0] == 0.5 for scale in told):
            raise UnsupportedError("before opset 11 nobody says which element is the nearest")
    return op.emit("Resize", x, roi, scales, sizes, **given)


_OLD_RESIZE = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""What Resize means before opset 11, and Upsample: the latter's scales are at least 1."""
