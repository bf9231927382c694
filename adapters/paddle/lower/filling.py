"""The rules of Paddle's operators that make values of sizes and numbers, and repeat values.

Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError

_MOST = 2**16
"""Most elements of a constant that is made while reading; larger ones are made at run time."""


def _filling(op: PaddleOperator) -> Any:
    """The value of fill_constant and its like: a text comes before a number."""
    dtype, text = op.chosen_dtype("dtype", 5), op.attribute("str_value", "")
    number = op.attribute("value", 0.0)
    if text:
        number = float(text)  # also of integers
    op.attribute("force_cpu", False)
    op.attribute("place_type", -1)
    return np.asarray(number).astype(dtype)


@rule("fill_constant")
def _fill_constant(op: PaddleOperator) -> Results:
    value = _filling(op)
    if given := op.optional("ValueTensor"):
        value = op.builder.array(given, "ValueTensor").reshape(()).astype(value.dtype)
    shape = op.integers("shape", "ShapeTensor", "ShapeTensorList")
    sizes = op.builder.constants.get(shape)
    if sizes is not None and min(sizes, default=0) >= 0 and math.prod(sizes.tolist()) <= _MOST:
        return op.builder.constant(np.full(sizes, value), "filled")
    return op.emit("ConstantOfShape", shape, value=value.reshape(1))


@rule("fill_constant_batch_size_like")
def _fill_like(op: PaddleOperator) -> Results:
    """One size is that of another value; of a ragged one, the number of its sentences."""
    value, like, shape = _filling(op), op.value("Input"), list(op.attribute("shape", ()))
    source, target = op.attribute("input_dim_idx", 0), op.attribute("output_dim_idx", 0)
    if op.is_ragged(like) and source == 0:
        like = op.emit("SequenceLengths", like)
    if not 0 <= target < len(shape) or source < 0:
        raise UnsupportedError(f"attribute output_dim_idx={target} of shape {shape}")
    size = op.emit("Shape", like, start=source, end=source + 1)
    parts = [op.ints(shape[:target]), size, op.ints(shape[target + 1 :])]
    whole = op.emit("Concat", *parts, axis=0)
    return op.emit("ConstantOfShape", whole, value=value.reshape(1))


@rule("fill_any_like")
def _fill_any_like(op: PaddleOperator) -> Results:
    x, dtype = op.value("X"), op.attribute("dtype", -1)
    kind = str(op.dtype("X")) if dtype == -1 else op.chosen_dtype("dtype", -1)
    value = np.asarray(op.attribute("value", 0.0)).astype(kind).reshape(1)
    made = op.emit("ConstantOfShape", op.emit("Shape", op.dense(x)), value=value)
    return op.under(made, x)


@rule("assign_value")
def _assign_value(op: PaddleOperator) -> Results:
    """The numbers stand in an attribute for their type; ``values`` holds them since 2.6."""
    names = ("values", "bool_values", "fp32_values", "fp64_values", "int32_values", "int64_values")
    given = [found for name in names if (found := op.attribute(name, ()))]
    dtype, shape = op.chosen_dtype("dtype", 5), op.attribute("shape", ())
    if len(given) > 1 or math.prod(shape) != len(given[0] if given else ()):
        raise UnsupportedError(f"attribute shape={shape}: its values are others")
    return op.builder.constant(
        np.asarray(given[0] if given else ()).astype(dtype).reshape(shape), "v"
    )


@rule("range")
def _range(op: PaddleOperator) -> Results:
    """Start, End and Step have the shape () or (1,)."""
    scalar = op.ints([])
    slots = (op.dense(op.value(slot)) for slot in ("Start", "End", "Step"))
    return op.emit("Range", *(op.emit("Reshape", value, scalar) for value in slots))


@rule("increment")
def _increment(op: PaddleOperator) -> Results:
    x, dtype, step = op.dense(op.value("X")), op.dtype("X"), op.attribute("step", 1.0)
    return op.emit("Add", x, op.builder.constant(np.asarray(step).astype(dtype), "step"))


@rule("expand_v2")
def _expand(op: PaddleOperator) -> Results:
    """A size of -1 stays what it is."""
    shape = op.integers("shape", "Shape", "expand_shapes_tensor")
    if shape in op.builder.constants:
        sizes = op.builder.constants[shape]
        shape = op.ints(np.where(sizes == -1, 1, sizes))
    else:
        minus, one = op.ints([-1]), op.ints([1])
        shape = op.emit("Where", op.emit("Equal", shape, minus), one, shape)
    return op.emit("Expand", op.dense(op.value("X")), shape)


@rule("expand_as_v2")
def _expand_as(op: PaddleOperator) -> Results:
    x, like = op.dense(op.value("X")), op.optional("Y")
    sizes = op.attribute("target_shape", ())  # what Y has, where it is known
    shape = op.emit("Shape", op.dense(like)) if like else op.ints(sizes)
    return op.emit("Expand", x, shape)


@rule("tile")
def _tile(op: PaddleOperator) -> Results:
    """Fewer repeats, or fewer axes, than the other: ones stand before them."""
    x, rank = op.value("X"), len(op.shape("X"))
    repeats = op.integers("repeat_times", "RepeatTimes", "repeat_times_tensor")
    shape = op.builder.type_of(repeats).counts
    if len(shape) != 1 or shape[0] is None:
        raise UnsupportedError("nobody knows how many axes are repeated")
    more = shape[0] - rank
    if more < 0:
        repeats = op.emit("Concat", op.ints([1] * -more), repeats, axis=0)
    x = op.emit("Unsqueeze", x, op.ints(range(more))) if more > 0 else x
    if op.is_ragged(x):
        raise UnsupportedError("input X carries a LoD, which Paddle keeps though it does not fit")
    return op.emit("Tile", x, repeats)


@rule("tril_triu")
def _tril_triu(op: PaddleOperator) -> Results:
    upper, diagonal = not op.attribute("lower", True), op.attribute("diagonal", 0)
    k = op.builder.constant(np.int64(diagonal), "diagonal")
    return op.emit("Trilu", op.dense(op.value("X")), k, upper=int(upper))


@rule("sequence_mask")
def _sequence_mask(op: PaddleOperator) -> Results:
    """Whether a step comes before the end of its sequence; as many steps as the longest has."""
    lengths, dtype = op.dense(op.value("X")), op.chosen_dtype("out_dtype", 3)
    most, given = op.attribute("maxlen", -1), op.optional("MaxLenTensor")
    axes = op.ints(range(len(op.shape("X"))))
    if given:
        end = op.emit("Reshape", op.dense(given), op.ints([]))
    elif most >= 0:
        end = op.builder.constant(np.int64(most), "most")
    else:
        end = op.emit("ReduceMax", lengths, axes, keepdims=0)
    first, step = (op.builder.constant(np.int64(number), "steps") for number in (0, 1))
    steps = op.emit("Range", first, op.emit("Cast", end, to="int64"), step)
    longer = op.emit("Unsqueeze", op.emit("Cast", lengths, to="int64"), op.ints([-1]))
    return {"Y": op.emit("Cast", op.emit("Less", steps, longer), to=dtype)}
