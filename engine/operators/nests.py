"""Loops over an output's elements: all that elementwise and moving operators need."""

from __future__ import annotations

from collections.abc import Sequence

from onernn.core.sizes import Shape, Size
from onernn.engine.operators.operator_code import OperatorCode
from onernn.engine.steps import Access, Expression, Nest

COPY: Expression = ("same", 0)


def strides_of(shape: Shape) -> tuple[Size, ...]:
    """Elements between neighbours along each axis, rows one behind the other."""
    out: list[Size] = []
    stride = Size.of(1)
    for size in reversed(shape):
        out.append(stride)
        stride = stride * size
    return tuple(reversed(out))


def whole(name: str, shape: Shape) -> Access:
    return Access(name, strides_of(shape))


def stretched(name: str, shape: Shape, out: Shape) -> Access:
    """Broadcast to a shape, from the right."""
    own = strides_of(shape)
    front = len(out) - len(shape)
    strides = [Size(())] * front + [
        Size(()) if size.number == 1 and wide.number != 1 else stride
        for size, wide, stride in zip(shape, out[front:], own, strict=True)
    ]
    return Access(name, tuple(strides))


def each_element(op: OperatorCode, reads: Sequence[Access], expression: Expression) -> Nest:
    """The whole output, element by element."""
    out, shape = op.out()
    return nest(shape, whole(out, shape), reads, expression)


def nest(loops: Shape, out: Access, reads: Sequence[Access], expression: Expression = COPY) -> Nest:
    """out = expression(reads), element by element."""
    return Nest(loops, out, tuple(reads), expression)
