"""The rules of Paddle's operators on arrays of tensors."""

from __future__ import annotations

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.builder import TURN
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.adapters.paddle.lower.tensor_arrays import TensorArray
from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Size


def _array(op: PaddleOperator) -> TensorArray:
    return op.builder.array_of(op.variable("X"))


def _index(op: PaddleOperator) -> Size | None:
    """What is known of the index: its shape is () or (1,)."""
    value = op.builder.type_of(op.value("I")).value
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else None
    return value


@rule("create_array")
def _create(op: PaddleOperator) -> Results:
    op.attribute("dtype", -1)
    op.builder.arrays[op.outputs["Out"][0]] = TensorArray()
    return {"Out": ""}


@rule("write_to_array")
def _write(op: PaddleOperator) -> Results:
    (variable,) = op.outputs["Out"]
    array = op.builder.array_of(variable)
    op.builder.arrays[variable] = array.written(_index(op), op.dense(op.value("X")))
    return {"Out": ""}


@rule("read_from_array")
def _read(op: PaddleOperator) -> Results:
    op.variables("X_W")
    array = _array(op)
    if value := array.element(_index(op)):
        return op.emit("Identity", value)
    at = op.emit("Reshape", op.value("I"), op.ints([]))
    return op.emit("Gather", op.builder.stack(array), at, axis=0, non_negative=True)


@rule("slice_array_dense")
def _slice_element(op: PaddleOperator) -> Results:
    """The element at a place, which may count from the end."""
    array, place = _array(op), op.attribute("starts", (0,))
    at: Size | None = Size.of(place[0])
    if place[0] < 0:
        at = None if array.length is None else array.length + place[0]
    if len(place) == 1 and (value := array.element(at)):
        return op.emit("Identity", value)
    at_value = op.builder.constant(np.int64(place[0]), "place")
    return op.emit("Gather", op.builder.stack(array), at_value, axis=0)


@rule("lod_array_length")
def _length(op: PaddleOperator) -> Results:
    """A list of one number, as Paddle gives it."""
    array, builder = _array(op), op.builder
    found = array.length
    if found is not None and found.number is not None:
        return op.ints([found.number])
    if all(part.value for part in array.parts):
        return op.emit("Shape", builder.stack(array), start=0, end=1)
    before = found - builder.turn if found is not None and builder.turn is not None else None
    if before is None or before.number is None:
        raise UnsupportedError("nobody knows how many elements it has")
    turn = op.emit("Reshape", TURN, op.ints([1]))
    return op.emit("Add", turn, op.ints([before.number]))


@rule("tensor_array_to_tensor")
def _all(op: PaddleOperator) -> Results:
    """Elements along a new axis, or one behind the other along one of theirs."""
    array, axis, new = _array(op), op.attribute("axis", 0), op.attribute("use_stack", False)
    value = op.builder.stack(array)
    rank = op.builder.type_of(value).rank
    if rank is None:
        raise UnsupportedError("nobody knows how many axes its elements have")
    axis += rank - (not new) if axis < 0 else 0
    if not 0 <= axis < rank - (not new):
        raise UnsupportedError(f"attribute axis={axis}: elements of {rank - 1} axes")
    perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    out = op.emit("Transpose", value, perm=perm) if axis else value
    if new:
        if axis == 0:
            op.builder.stacked[op.outputs["Out"][0]] = array
        return {"Out": op.emit("Identity", out)}
    sizes = [op.ints([0] * axis + [-1]), op.emit("Shape", out, start=axis + 2)]
    count = op.emit("Shape", value, start=0, end=1)
    each = op.emit("Shape", value, start=axis + 1, end=axis + 2)
    index = op.emit("Cast", op.emit("Expand", each, count), to="int32")
    joined = op.emit("Reshape", out, op.emit("Concat", *sizes, axis=0))
    return {"Out": joined, "OutIndex": index}
