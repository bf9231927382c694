"""The table: ONNX's operators -> canonical ones, which are ONNX's newest.

What differs between opsets: ONNX's operator changelog.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.onnx.lower import control, recurrent
from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.adapters.onnx.messages import BFLOAT16
from onernn.adapters.onnx.read.tensors import dtype_of
from onernn.core.errors import UnsupportedError
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
    "ConcatFromSequence": control.concat_from_sequence,
}


def rule(*types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


_LIKE = {"axis": 0, "end": 0, "equation": "", "perm": ()}
"""What attributes are like that have no default; the graph compares others with theirs."""


def _plain(operator: Operator) -> Rule:
    """An operator that means the same in every opset.

    Attributes travel along where they are given; the operator's record knows the defaults.
    """

    def lower(op: OnnxOperator) -> Results:
        most = len(op.inputs) if operator.most is None else operator.most
        values = [op.optional(at) for at in range(min(most, len(op.inputs)))]
        given = {
            k: op.attribute(k, _LIKE.get(k)) for k in operator.attributes if k in op.attributes
        }
        return op.emit(op.at.type, *values, **given)

    return lower


for _operator in OPERATORS.values():
    if _operator.since and _operator.name not in RULES:
        rule(_operator.name)(_plain(_operator))


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


@rule("ConstantOfShape")
def _constant_of_shape(op: OnnxOperator) -> Results:
    value = op.attribute("value", np.zeros(1, np.float32))
    return op.emit("ConstantOfShape", op.value(), value=value)


@rule("Range")
def _range(op: OnnxOperator) -> Results:
    return op.emit("Range", *(op.value(at) for at in range(3)))


@rule("Cast")
def _cast(op: OnnxOperator) -> Results:
    number = op.attribute("to", 0)
    if number == BFLOAT16:
        op.builder.notes["bfloat16 values are float32 ones, rounded where the model casts"] = None
    return op.emit("Cast", op.value(), to=dtype_of(number))


@rule("Clip")
def _clip(op: OnnxOperator) -> Results:
    if op.opset >= 11:
        return _plain(OPERATORS["Clip"])(op)
    x = op.value()
    bounds = [op.attribute(name, None) for name in ("min", "max")]
    limits = ["" if b is None else _like(op, b, x) for b in bounds]
    return op.emit("Clip", x, *limits)


def _like(op: OnnxOperator, number: float, x: str) -> str:
    """A constant in the dtype of x, which old opsets do not tell."""
    wide = op.builder.constant(np.asarray(number, np.float64), f"{op.at.type}/number")
    return op.emit("CastLike", wide, x)


@rule("Softmax", "LogSoftmax")
def _softmax(op: OnnxOperator) -> Results:
    if op.opset >= 13:
        return op.emit(op.at.type, op.value(), axis=op.attribute("axis", -1))
    # Up to opset 12 all axes from the given one on are one.
    x = op.value()
    rows = op.emit(op.at.type, op.emit("Flatten", x, axis=op.attribute("axis", 1)), axis=-1)
    return op.emit("Reshape", rows, op.emit("Shape", x), allowzero=1)


def _positions(op: OnnxOperator, since: int, *, required: bool = False) -> str:
    """Axes: an attribute up to an opset, an input from there on."""
    if op.opset >= since:
        return op.value(1) if required else op.optional(1)
    axes = op.attribute("axes", None)
    if axes is None and required:
        raise UnsupportedError("attribute axes is missing")
    return "" if axes is None else op.ints(*axes)


@rule("Squeeze", "Unsqueeze")
def _squeeze(op: OnnxOperator) -> Results:
    axes = _positions(op, 13, required=op.at.type == "Unsqueeze")
    return op.emit(op.at.type, op.value(), axes)


REDUCTIONS = [
    f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
]


@rule(*REDUCTIONS)
def _reduce(op: OnnxOperator) -> Results:
    axes = _positions(op, 13 if op.at.type == "ReduceSum" else 18)
    flags = {"keepdims": op.attribute("keepdims", 1)}
    flags["noop_with_empty_axes"] = op.attribute("noop_with_empty_axes", 0)
    return op.emit(op.at.type, op.value(), axes, **flags)


@rule("Slice")
def _slice(op: OnnxOperator) -> Results:
    if op.opset >= 10:
        places = [op.optional(at) for at in range(1, 5)]
    else:
        given = [op.attribute(name, None) for name in ("starts", "ends", "axes")]
        places = ["" if each is None else op.ints(*each) for each in given]
    return op.emit("Slice", op.value(), *_cutting(op, *places))


def _cutting(op: OnnxOperator, starts: str, ends: str, axes: str, steps: str = "") -> list[str]:
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


@rule("Split")
def _split(op: OnnxOperator) -> Results:
    if op.opset >= 13:
        sizes = op.optional(1)
    else:
        given = op.attribute("split", None)
        sizes = "" if given is None else op.ints(*given)
    count = len(op.outputs)
    if op.attribute("num_outputs", count) != count:
        raise UnsupportedError(f"attribute num_outputs: there are {count} outputs")
    return op.emit_many("Split", count, op.value(), sizes, axis=op.attribute("axis", 0))


@rule("TopK")
def _top_k(op: OnnxOperator) -> Results:
    count = op.value(1) if op.opset >= 10 else op.ints(op.attribute("k", None))
    op.attribute("sorted", 1)  # in order is right where any order is
    flags = {"axis": op.attribute("axis", -1), "largest": op.attribute("largest", 1)}
    return op.emit_many("TopK", 2, op.value(), count, **flags)


@rule("Pad")
def _pad(op: OnnxOperator) -> Results:
    x, mode = op.value(), op.attribute("mode", "constant")
    if op.opset >= 11:
        more = [op.value(1), op.optional(2), op.optional(3)]
    else:
        more = [op.ints(*op.attribute("pads", None))]
        more.append(_like(op, op.attribute("value", 0.0), x))
    return op.emit("Pad", x, *more, mode=mode)


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


@rule("BatchNormalization")
def _batch_normalization(op: OnnxOperator) -> Results:
    op.only("spatial", 1)
    op.only("training_mode", 0)
    inputs = [op.value(at) for at in range(5)]
    return op.emit("BatchNormalization", *inputs, epsilon=op.attribute("epsilon", 1e-5))


@rule("LayerNormalization")
def _layer_normalization(op: OnnxOperator) -> Results:
    op.only("stash_type", 1)
    inputs = [op.value(0), op.value(1), op.optional(2)]
    flags = {"axis": op.attribute("axis", -1), "epsilon": op.attribute("epsilon", 1e-5)}
    return op.emit_many("LayerNormalization", 3, *inputs, **flags)
