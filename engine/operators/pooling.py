"""Pools over one axis or two, and over all."""

from __future__ import annotations

from onernn.core.sizes import Size, volume
from onernn.engine.operators.convolution import Windows, at_places
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.operators.shaping import at_least
from onernn.engine.steps import Step
from onernn.operators.windows import windows_of


@rule("MaxPool", "AveragePool")
def pool(op: OperatorCode) -> list[Step]:
    op.of("float")
    if any(op.node.outputs[1:]):
        op.refuse("asks for positions")
    x, (_, y) = op.shape(), op.out()
    windows = Windows(op, windows_of(op.at, op.at.kernel_shape), x[1:], y[1:])
    op.mixes = x[2:]
    given = op.read(0), volume(x[:2]), *windows.sizes
    types, checks = [op.dtype()], at_places(op, windows)
    if op.node.op == "MaxPool":
        return [*checks, op.call("max_pool", *given, types=types)]
    after = windows.after if op.at.count_include_pad else [Size.of(-1)] * 2
    return [*checks, op.call("average_pool", *given, *after, types=types)]


@rule("GlobalAveragePool", "GlobalMaxPool")
def over_all(op: OperatorCode) -> list[Step]:
    op.of("float")
    x = op.shape()
    op.mixes = x[2:]
    function = "reduce_mean" if op.node.op == "GlobalAveragePool" else "reduce_max"
    sizes = volume(x[:2]), volume(x[2:]), 1
    checks = at_least(op, volume(x[1:]) - 1)
    return [*checks, op.call(function, op.read(0), *sizes, types=[op.dtype()])]
