"""Operators that mix the elements of an axis."""

from __future__ import annotations

import re

from onernn.engine.operators.elementwise import each_element, whole
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.operators.shaping import at_least
from onernn.engine.steps import Access, Call, Nest, moved
from onernn.ir.types import Size, volume
from onernn.ops.rules import ONE, at_axis


def _along(op: OperatorCode, axes: list[int]) -> tuple[Size, Size, Size]:
    """Neighbouring axes: (outer, count, inner)."""
    shape, first, last = op.shape(), min(axes), max(axes) + 1
    if sorted(axes) != list(range(first, last)):
        op.refuse(f"axes {axes}: only neighbouring ones")
    return volume(shape[:first]), volume(shape[first:last]), volume(shape[last:])


@rule("Softmax", "LogSoftmax")
def softmax(op: OperatorCode) -> Call:
    op.of("float")
    function = "softmax" if op.node.op == "Softmax" else "log_softmax"
    return op.call(
        function, op.read(0), *_along(op, [op.axis(len(op.shape()))]), types=[op.dtype()]
    )


@rule("ArgMax", "ArgMin")
def extreme(op: OperatorCode) -> list[Call]:
    axis = op.axis(len(op.shape()))
    checks = at_least(op, op.shape()[axis] - 1)
    kind = op.node.op == "ArgMin", bool(op.at.select_last_index)
    made = op.call("arg_extreme", op.read(0), *_along(op, [axis]), *kind, types=[op.dtype()])
    return [*checks, made]


@rule("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce_numbers(op: OperatorCode) -> Call | None:
    op.of("float", "int")
    return _reduced(op)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumSquare")
def reduce(op: OperatorCode) -> Call | None:
    op.of("float")
    return _reduced(op)


def _reduced(op: OperatorCode) -> Call | None:
    rank = len(op.shape())
    axes = op.integers(1, "axes") or ([] if op.at.noop_with_empty_axes else range(rank))
    if not axes:
        op.source = op.read(0)
        return None
    function = re.sub("(?=[A-Z])", "_", op.node.op).lower().strip("_")
    around = _along(op, sorted({at_axis(axis, rank) for axis in axes}))
    return op.call(function, op.read(0), *around, types=[op.dtype()])


@rule("LayerNormalization")
def layer_normalization(op: OperatorCode) -> Call:
    op.of("float")
    op.alike(1, 2)
    shape = op.shape()
    axes = list(range(op.axis(len(shape)), len(shape)))
    rows, count, _ = _along(op, axes)
    for at in range(1, len(op.node.inputs)):
        if op.node.input(at):
            op.same(volume(op.shape(at)), count)
    statistics = (*op.node.outputs[1:], "", "")[:2]
    given = (op.read(0), op.read(1), op.read(2), *statistics)
    return op.call("layer_norm", *given, rows, count, float(op.at.epsilon), types=[op.dtype()])


@rule("BatchNormalization")
def batch_normalization(op: OperatorCode) -> Nest:
    op.of("float")
    if op.at.training_mode:
        op.refuse("attribute training_mode=1: only inference is generated")
    op.alike(1, 2, 3, 4)
    shape = op.shape()
    reads = [whole(op.read(0), shape)]
    for at in range(1, 5):
        op.same(volume(op.shape(at)), shape[1])
        strides = [ONE * (axis == 1) for axis in range(len(shape))]
        reads.append(Access(op.read(at), tuple(strides)))
    return each_element(op, reads, ("normalized", *range(5), float(op.at.epsilon)))


@rule("InstanceNormalization", "GroupNormalization")
def group_normalization(op: OperatorCode) -> Call:
    op.of("float")
    op.alike(1, 2)
    shape = op.shape()
    channels = groups = shape[1]
    if op.node.op == "GroupNormalization":
        groups = Size.of(op.at.num_groups)
        if channels.number is None or op.at.num_groups < 1 or channels.number % op.at.num_groups:
            op.refuse(f"{channels} channels in {groups} groups")
    for at in (1, 2):
        op.same(volume(op.shape(at)), shape[1])
    op.mixes = shape[1:]
    given = op.read(0), op.read(1), op.read(2), shape[0], channels, volume(shape[2:]), groups
    return op.call("group_norm", *given, float(op.at.epsilon), types=[op.dtype()])


@rule("CumSum")
def cum_sum(op: OperatorCode) -> Call:
    op.of("float", "int")
    (axis,) = op.integers(1, "axis") or [0]
    around = _along(op, [at_axis(axis, len(op.shape()))])
    how = bool(op.at.exclusive), bool(op.at.reverse)
    return op.call("cum_sum", op.read(0), *around, *how, types=[op.dtype()])


@rule("TopK")
def top_k(op: OperatorCode) -> list[Call]:
    shape = op.shape()
    axis = op.axis(len(shape))
    (count,) = op.numbers(1, "k") or [0]
    checks = at_least(op, shape[axis] - count)
    given = (*op.node.outputs, "")[1], op.read(0), op.keep("order", "int64", [shape[axis]])
    how = Size.of(count), bool(op.at.largest)
    return [*checks, op.call("top_k", *given, *_along(op, [axis]), *how, types=[op.dtype()])]


@rule("Trilu")
def trilu(op: OperatorCode) -> Call:
    shape = op.shape()
    if len(shape) < 2:
        op.refuse("of a vector")
    op.mixes = shape[-2:]
    (k,) = op.integers(1, "k") or [0]
    sizes = volume(shape[:-2]), shape[-2], shape[-1], k, bool(op.at.upper)
    return op.call("trilu", op.read(0), *sizes, types=[moved(op.dtype())])
