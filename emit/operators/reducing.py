"""Operators that mix the elements of an axis."""

from __future__ import annotations

from onernn.core.sizes import Size, volume
from onernn.emit.operators.nests import Access, each_element, whole
from onernn.emit.operators.operator_code import OperatorCode, rule
from onernn.emit.operators.shaping import at_least
from onernn.emit.program import Code
from onernn.operators.rules import ONE


def _along(op: OperatorCode, axes: list[int], **more: object) -> Code:
    """Over neighbouring axes: (outer, count, inner)."""
    source, shape = op.read(0), op.shape()
    first, last = min(axes), max(axes) + 1
    if sorted(axes) != list(range(first, last)):
        op.refuse(f"axes {axes}: only neighbouring ones")
    around = {"outer": volume(shape[:first]), "inner": volume(shape[last:])}
    more |= {"count": volume(shape[first:last]), "real": op.program.ctype(source)}
    return op.code("along_axis", kind=op.node.op, x=source, **around, **more)


@rule("Softmax", "LogSoftmax")
def softmax(op: OperatorCode) -> Code:
    op.of("float")
    return _along(op, [op.axis(len(op.shape()))])


@rule("ArgMax", "ArgMin")
def extreme(op: OperatorCode) -> Code:
    axis = op.axis(len(op.shape()))
    if op.shape()[axis].number == 0:
        op.refuse("of no elements")
    return _along(op, [axis], last=bool(op.at.select_last_index))


@rule("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce_numbers(op: OperatorCode) -> Code | None:
    op.of("float", "int")
    return _reduced(op)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumSquare")
def reduce(op: OperatorCode) -> Code | None:
    op.of("float")
    return _reduced(op)


def _reduced(op: OperatorCode) -> Code | None:
    rank = len(op.shape())
    axes = op.integers(1, "axes") or ([] if op.at.noop_with_empty_axes else range(rank))
    if not axes:
        op.source = op.read(0)
        return None
    return _along(op, sorted({axis % rank for axis in axes}))


@rule("LayerNormalization")
def layer_normalization(op: OperatorCode) -> Code:
    op.of("float")
    shape = op.shape()
    axes = list(range(op.axis(len(shape)), len(shape)))
    tail = volume(tuple(shape[axis] for axis in axes))
    for at in range(1, len(op.node.inputs)):
        if op.node.input(at):
            op.same(volume(op.shape(at)), tail)
    context = {"scale": op.read(1), "bias": op.read(2), "epsilon": op.at.epsilon}
    statistics = (*op.node.outputs[1:], "", "")
    return _along(op, axes, mean_out=statistics[0], inverse_out=statistics[1], **context)


@rule("BatchNormalization")
def batch_normalization(op: OperatorCode) -> Code:
    op.of("float")
    if op.at.training_mode:
        op.refuse("attribute training_mode=1: only inference is generated")
    shape = op.shape()
    reads = [whole(op.read(0), shape)]
    for at in range(1, 5):
        op.same(volume(op.shape(at)), shape[1])
        strides = [ONE * (axis == 1) for axis in range(len(shape))]
        reads.append(Access(op.read(at), tuple(strides)))
    real = op.program.ctype(op.node.inputs[0])
    return each_element(op, reads, "Normalized", numbers={"epsilon": op.at.epsilon}, real=real)


@rule("CumSum")
def cum_sum(op: OperatorCode) -> Code:
    op.of("float", "int")
    (axis,) = op.integers(1, "axis") or [0]
    more = {"exclusive": bool(op.at.exclusive), "reverse": bool(op.at.reverse)}
    return _along(op, [axis % len(op.shape())], **more)


@rule("TopK")
def top_k(op: OperatorCode) -> list[Code]:
    shape = op.shape()
    axis = op.axis(len(shape))
    (count,) = op.numbers(1, "k") or [0]
    checks = at_least(op, shape[axis] - count)
    order = op.keep("order", "int64", [shape[axis]])
    indices = (*op.node.outputs, "")[1]
    more = {"indices": indices, "best": Size.of(count), "largest": bool(op.at.largest)}
    return [*checks, _along(op, [axis], order=order, **more)]


@rule("Trilu")
def trilu(op: OperatorCode) -> Code:
    shape = op.shape()
    if len(shape) < 2:
        op.refuse("of a vector")
    op.mixes = shape[-2:]
    (k,) = op.integers(1, "k") or [0]
    more = {"outer": volume(shape[:-2]), "rows": shape[-2], "columns": shape[-1]}
    return op.code("trilu", x=op.read(0), k=k, upper=bool(op.at.upper), **more)
