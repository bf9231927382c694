"""Operators that take elements by their places, or put others around them. Indices are checked."""

from __future__ import annotations

from onernn.core.sizes import Shape, volume
from onernn.emit.operators.nests import INDICES, strides_of, whole
from onernn.emit.operators.operator_code import OperatorCode, rule
from onernn.emit.operators.shaping import at_least
from onernn.emit.program import Code
from onernn.operators.rules import at_axis


def _around(shape: Shape, axis: int) -> dict[str, object]:
    """The elements before an axis, and those behind it."""
    return {"outer": volume(shape[:axis]), "inner": volume(shape[axis + 1 :])}


def _chosen(op: OperatorCode, template: str, **more: object) -> Code:
    """By indices, which count from the end where they are negative and the operator says so."""
    op.of("int", at=1)
    table, indices = op.read(0), op.read(1)
    negative = not op.at.non_negative
    return op.code(template, table=table, indices=indices, negative=negative, **more)


@rule("Gather")
def gather(op: OperatorCode) -> Code:
    """Slices of a table."""
    table = op.shape()
    axis = op.axis(len(table))
    op.mixes = [table[axis]]
    count = volume(op.shape(1))
    return _chosen(op, "gather", rows=table[axis], count=count, **_around(table, axis))


@rule("GatherElements")
def gather_elements(op: OperatorCode) -> Code:
    table, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(table))
    for at, size in enumerate(shape):
        if at != axis:
            op.same(table[at], size)
    more = {"rows": table[axis], "count": shape[axis]}
    return _chosen(op, "gather_elements", **more, **_around(shape, axis))


@rule("GatherND")
def gather_nd(op: OperatorCode) -> Code:
    """An index along each of the first axes, behind those of the batch."""
    table, indices, batch = op.shape(0), op.shape(1), op.at.batch_dims
    for size, other in zip(table[:batch], indices[:batch], strict=True):
        op.same(size, other)
    end = batch + (indices[-1].number or 0)
    op.mixes = sizes = table[batch:end]
    more = {"batch": volume(table[:batch]), "count": volume(indices[batch:-1])}
    return _chosen(op, "gather_nd", sizes=sizes, inner=volume(table[end:]), **more)


@rule("Pad")
def pad(op: OperatorCode) -> list[Code]:
    """Every element looks for where it comes from, along each axis."""
    if op.at.mode not in ("constant", "edge", "reflect", "wrap"):
        op.refuse(f"attribute mode={op.at.mode!r}")
    given, (out, shape) = op.shape(), op.out()
    chosen = op.integers(3, "axes") or range(len(given))
    pads, half = op.integers(1, "pads") or [], len(chosen)
    around = dict.fromkeys(range(len(given)), (0, 0))
    for axis, *pair in zip(chosen, pads[:half], pads[half:], strict=True):
        around[at_axis(axis, len(given))] = (pair[0], pair[1])
    op.mixes = [given[axis] for axis, pair in around.items() if any(pair)]
    axes, checks = [], []
    for axis, (low, high) in around.items():
        left, padded = given[axis] + min(low, 0) + min(high, 0), low > 0 or high > 0
        checks += at_least(op, left - 1 if padded and op.at.mode != "constant" else left)
        axes.append({"size": shape[axis], "left": left, "padded": padded})
        axes[-1] |= {"low": max(low, 0), "cut": max(-low, 0)}
    more = {"axes": axes, "strides": strides_of(given), "mode": op.at.mode}
    to = whole(out, shape).at(INDICES[: len(shape)])
    return [*checks, op.code("around", x=op.read(0), value=op.read(2), to=to, **more)]


@rule("ReverseSequence")
def reverse_sequence(op: OperatorCode) -> Code:
    shape, time, batch = op.shape(), op.at.time_axis, op.at.batch_axis
    if {time, batch} != {0, 1}:
        op.refuse(f"time and batch as axes {time} and {batch}, not the first ones")
    op.of("int", at=1)
    op.same(volume(op.shape(1)), shape[batch])
    op.mixes = [shape[time]]
    more = {"time": shape[time], "count": shape[batch], "inner": volume(shape[2:])}
    return op.code("reverse", x=op.read(0), lengths=op.read(1), time_major=time == 0, **more)


@rule("OneHot")
def one_hot(op: OperatorCode) -> Code:
    op.of("int")
    given, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(shape))
    op.numbers(1, "depth")
    more = {"outer": volume(given[:axis]), "inner": volume(given[axis:]), "depth": shape[axis]}
    return op.code("one_hot", indices=op.read(0), values=op.read(2), **more)


@rule("Compress")
def compress(op: OperatorCode) -> Code:
    """How many elements are chosen is known when it has run."""
    given, axis = op.shape(), op.at.axis
    given = (volume(given),) if axis is None else given
    axis = at_axis(axis or 0, len(given))
    op.mixes = [given[axis]]
    chosen = op.finds(op.made(axis), "chosen", given[axis])
    more = {"given": volume(op.shape(1)), "chosen": chosen, "size": given[axis]}
    return op.code("compress", x=op.read(0), condition=op.read(1), **more, **_around(given, axis))


@rule("NonZero")
def non_zero(op: OperatorCode) -> Code:
    op.mixes = given = op.shape()
    chosen = op.finds(op.made(1), "chosen", volume(given))
    more = {"sizes": given, "strides": strides_of(given), "count": volume(given)}
    return op.code("non_zero", x=op.read(0), chosen=chosen, **more)
