"""Operators that take elements by their places, or put others around them. Indices are checked."""

from __future__ import annotations

from typing import Any

from onernn.core.sizes import Shape, Size, volume
from onernn.engine.operators.nests import strides_of
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.operators.shaping import at_least
from onernn.engine.steps import Call, Found, moved
from onernn.operators.rules import at_axis

MODES = ("constant", "edge", "reflect", "wrap")
"""As `around` in `kernels/moves.hpp` numbers them."""


def _around(shape: Shape, axis: int) -> tuple[Size, Size]:
    """The elements before an axis, and those behind it."""
    return volume(shape[:axis]), volume(shape[axis + 1 :])


def _chosen(op: OperatorCode, function: str, *sizes: Any) -> Call:
    """By indices, which count from the end where they are negative and the operator says so."""
    op.of("int", at=1)
    types = [moved(op.dtype()), op.dtype(1)]
    indices = op.read(0), op.read(1)
    negative = not op.at.non_negative
    return op.call(function, *indices, *sizes, negative, types=types, checks=True)


@rule("Gather")
def gather(op: OperatorCode) -> Call:
    """Slices of a table."""
    table = op.shape()
    axis = op.axis(len(table))
    op.mixes = [table[axis]]
    return _chosen(op, "gather", table[axis], volume(op.shape(1)), *_around(table, axis))


@rule("GatherElements")
def gather_elements(op: OperatorCode) -> Call:
    table, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(table))
    for at, size in enumerate(shape):
        if at != axis:
            op.same(table[at], size)
    return _chosen(op, "gather_elements", table[axis], shape[axis], *_around(shape, axis))


@rule("GatherND")
def gather_nd(op: OperatorCode) -> Call:
    """An index along each of the first axes, behind those of the batch."""
    table, indices, batch = op.shape(0), op.shape(1), op.at.batch_dims
    for size, other in zip(table[:batch], indices[:batch], strict=True):
        op.same(size, other)
    end = batch + (indices[-1].number or 0)
    op.mixes = sizes = table[batch:end]
    around = volume(table[:batch]), volume(indices[batch:-1]), volume(table[end:])
    return _chosen(op, "gather_nd", list(sizes), *around)


_MEETINGS = ("none", "add", "mul", "max", "min")
"""As `meet` in `kernels/moves.hpp` numbers them."""


@rule("ScatterElements")
def scatter_elements(op: OperatorCode) -> Call:
    shape, sizes = op.shape(), op.shape(1)
    axis = op.axis(len(shape))
    for at, (few, many) in enumerate(zip(sizes, shape, strict=True)):
        if at != axis and (few.number is None or many.number is None or few.number > many.number):
            op.same(few, many)
    for few, other in zip(sizes, op.shape(2), strict=True):
        op.same(few, other)
    how = volume(shape), axis, shape[axis], list(sizes), list(strides_of(shape))
    return _scattered(op, "scatter_elements", *how)


@rule("ScatterND")
def scatter_nd(op: OperatorCode) -> Call:
    shape, sizes, updates = op.shape(), op.shape(1), op.shape(2)
    depth = sizes[-1].number if sizes else None
    if depth is None:
        op.refuse("nobody tells how many indices a place has")
    for one, other in zip((*sizes[:-1], *shape[depth:]), updates, strict=True):
        op.same(one, other)
    counts = volume(sizes[:-1]), volume(shape[depth:])
    return _scattered(op, "scatter_nd", list(shape[:depth]), *counts)


def _scattered(op: OperatorCode, function: str, *sizes: Any) -> Call:
    op.of("float", "int")
    op.of("int32", "int64", at=1)
    op.alike(2)
    if op.at.reduction not in _MEETINGS:
        op.refuse(f"attribute reduction={op.at.reduction!r}")
    given, types = [op.read(at) for at in range(3)], [op.dtype(), op.dtype(1)]
    how = _MEETINGS.index(op.at.reduction)
    return op.call(function, *given, *sizes, how, types=types, checks=True)


@rule("Pad")
def pad(op: OperatorCode) -> list[Call]:
    """Every element looks for where it comes from, along each axis."""
    if op.at.mode not in MODES:
        op.refuse(f"attribute mode={op.at.mode!r}")
    op.alike(2)
    given, (_, shape) = op.shape(), op.out()
    chosen = op.integers(3, "axes") or range(len(given))
    pads, half = op.integers(1, "pads") or [], len(chosen)
    around = dict.fromkeys(range(len(given)), (0, 0))
    for axis, *pair in zip(chosen, pads[:half], pads[half:], strict=True):
        around[at_axis(axis, len(given))] = (pair[0], pair[1])
    op.mixes = [given[axis] for axis, pair in around.items() if any(pair)]
    left, checks = [], []
    for axis, ends in around.items():
        left.append(given[axis] + min(ends[0], 0) + min(ends[1], 0))
        needed = max(ends) > 0 and op.at.mode != "constant"
        checks += at_least(op, left[-1] - 1 if needed else left[-1])
    low, cut = ([max(sign * pair[0], 0) for pair in around.values()] for sign in (1, -1))
    axes = [list(sizes) for sizes in (shape, low, left, cut, strides_of(given))]
    mode, types = MODES.index(op.at.mode), [moved(op.dtype())]
    return [*checks, op.call("around", op.read(0), op.read(2), *axes, mode, types=types)]


@rule("ReverseSequence")
def reverse_sequence(op: OperatorCode) -> Call:
    shape, time, batch = op.shape(), op.at.time_axis, op.at.batch_axis
    if {time, batch} != {0, 1}:
        op.refuse(f"time and batch as axes {time} and {batch}, not the first ones")
    op.of("int", at=1)
    op.same(volume(op.shape(1)), shape[batch])
    op.mixes = [shape[time]]
    sizes = shape[time], shape[batch], volume(shape[2:]), time == 0
    types = [moved(op.dtype()), op.dtype(1)]
    return op.call("reverse", op.read(0), op.read(1), *sizes, types=types, checks=True)


@rule("OneHot")
def one_hot(op: OperatorCode) -> Call:
    op.of("int")
    given, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(shape))
    op.numbers(1, "depth")
    op.same(volume(op.shape(2)), 2)
    sizes = volume(given[:axis]), volume(given[axis:]), shape[axis]
    types = [moved(op.dtype(2)), op.dtype()]
    return op.call("one_hot", op.read(0), op.read(2), *sizes, types=types)


@rule("Compress")
def compress(op: OperatorCode) -> Call:
    """How many elements are chosen is known when it has run."""
    op.of("bool", at=1)
    given, axis = op.shape(), op.at.axis
    given = (volume(given),) if axis is None else given
    axis = at_axis(axis or 0, len(given))
    op.mixes = [given[axis]]
    chosen = Found(op.finds(op.made(axis), "chosen", given[axis]))
    sizes = volume(op.shape(1)), chosen, given[axis], *_around(given, axis)
    types = [moved(op.dtype())]
    return op.call("compress", op.read(0), op.read(1), *sizes, types=types, checks=True)


@rule("NonZero")
def non_zero(op: OperatorCode) -> Call:
    op.mixes = given = op.shape()
    chosen = Found(op.finds(op.made(1), "chosen", volume(given)))
    sizes = chosen, list(given), list(strides_of(given)), volume(given)
    return op.call("non_zero", op.read(0), *sizes, types=[op.dtype()])
