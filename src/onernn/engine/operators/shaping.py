"""Operators that move elements: to another shape, by index, or with padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.engine.found_sizes import bound_of
from onernn.engine.operators.elementwise import (
    broadcast,
    each_element,
    fill,
    nest,
    stretch,
    strides_of,
    whole,
)
from onernn.engine.operators.operator_code import OperatorCode, at_least, is_natural, rule
from onernn.engine.program import (
    Access,
    Call,
    Nest,
    RuntimeSize,
    Step,
    UnknownError,
    find_moved_type,
    sizes_in,
)
from onernn.ir.operator import at_axis
from onernn.ir.types import Shape, Size, shape_of, volume
from onernn.ops.indexing import MEETINGS, MODES
from onernn.ops.rules import ONE
from onernn.ops.shaping import cut, perm_of


def raise_known_before(op: OperatorCode) -> None:
    """Raises `UnknownError`. Operators such as Shape get a rule only if the shape of the input is
    unknown.
    """
    raise UnknownError(op.node.outputs[0])


def view(op: OperatorCode) -> list[Call]:
    """Makes the output a view of the input: the same elements in the same order."""
    op.view(op.read(0))
    checks = list[Call]()
    if op.node.op == "Squeeze":
        for axis in op.integers(1, "axes") or ():
            size = op.size(op.node.inputs[0], axis)
            if size.quotients:  # such a size cannot be bound: each call checks it
                checks += at_least(op, size - 1, ONE - size)
            else:
                op.same(size, 1)
    elif op.node.input(1):
        op.numbers(1, "shape")
    input_shape, (_, shape) = op.shape(), op.out()
    if not checks:
        op.same(volume(input_shape), volume(shape))
    return checks


@rule("Transpose")
def transpose(op: OperatorCode) -> Nest:
    source, input_shape = op.read(0), op.shape()
    strides = strides_of(input_shape)
    perm = perm_of(op.attrs, len(input_shape))
    return each_element(op, [Access(source, tuple(strides[axis] for axis in perm))])


@rule("Slice")
def slices(op: OperatorCode) -> list[Step]:
    input_shape = op.shape()
    starts, ends = (op.numbers(index, "starts and ends") or [] for index in (1, 2))
    axes = op.integers(3, "axes") or list(range(len(starts)))
    steps = op.integers(4, "steps") or [1] * len(starts)
    strides, begin, checks = list(strides_of(input_shape)), Size.of(0), list[Step]()

    def holds(*sizes: Size) -> bool:
        checks.extend(at_least(op, *sizes))
        return True

    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken = cut(input_shape[axis], Size.of(start), Size.of(end), step, holds)
        if taken is None:
            part = f"slice [{start}:{end}:{step}]"
            op.refuse(f"{part} of an axis of {input_shape[axis]} elements: fix the size")
        first, count = taken
        op.same(op.result_size(axis), count)
        begin = begin + first * strides[axis]
        strides[axis] = strides[axis] * step
    return [*checks, each_element(op, [Access(op.read(0), tuple(strides), begin)])]


@rule("Split")
def split(op: OperatorCode) -> list[Nest]:
    """Returns a copy for each output that has a name."""
    source, input_shape = op.read(0), op.shape()
    axis, strides = op.axis(len(input_shape)), strides_of(input_shape)
    if op.node.input(1):
        op.numbers(1, "sizes")
    parts, codes, end = op.types_of_outputs(), [], Size.of(0)
    for index, out in enumerate(op.node.outputs):
        size = (parts[index].shape or input_shape)[axis]
        if out:
            shape = op.program.shape(out)
            reads = [Access(source, strides, end * strides[axis])]
            codes.append(nest(shape, whole(out, shape), reads))
            size = shape[axis]
        if size is None:
            raise UnknownError(source)
        end = end + op.program.size(size)
    op.same(end, input_shape[axis])
    return codes


@rule("Concat")
def concat(op: OperatorCode) -> list[Nest]:
    shapes = [op.shape(index) for index in range(len(op.node.inputs))]
    axis = op.axis(len(shapes[0]))
    for shape in shapes[1:]:
        for index, size in enumerate(shape):
            if index != axis:
                op.same(shapes[0][index], size)
    out, shape = op.out()
    strides, start, codes = strides_of(shape), Size.of(0), []
    for index, part in enumerate(shapes):
        to, read = Access(out, strides, start), whole(op.read(index), part)
        codes.append(nest(part, to, [read]))
        start = start + part[axis] * strides[axis]
    return codes


@rule("Expand")
def expand(op: OperatorCode) -> Nest:
    """Broadcasts the input to the requested sizes."""
    source, asked = op.read(0), shape_of(op.numbers(1, "shape") or ())
    broadcast(op, [op.shape(), asked])
    return each_element(op, [stretch(source, op.shape(), op.out()[1])])


@rule("Tile")
def tile(op: OperatorCode) -> Nest:
    """Returns two loops for each axis: one over the repetitions, one over the elements of the
    axis.
    """
    source, input_shape, (out, shape) = op.read(0), op.shape(), op.out()
    times = shape_of(op.numbers(1, "repeats") or ())
    loops = tuple(size for pair in zip(times, input_shape, strict=True) for size in pair)
    to, read = [], []
    for wide, own, size in zip(
        strides_of(shape), strides_of(input_shape), input_shape, strict=True
    ):
        to += [size * wide, wide]
        read += [Size(()), own]
    return nest(loops, Access(out, tuple(to)), [Access(source, tuple(read))])


@rule("ConstantOfShape")
def constant_of_shape(op: OperatorCode) -> Call:
    op.numbers(0, "shape")
    return fill(op, 0, np.asarray(op.attrs.value).reshape(-1)[0])


@rule("Range")
def count_shape(op: OperatorCode) -> Call:
    """Returns the call that counts from one size to another in steps of 1."""
    op.of("int")
    start, limit, step = (Size.of(op.numbers(index, "limits")[0]) for index in range(3))  # type: ignore[index]
    if step != ONE or not is_natural(limit - start):
        op.refuse(f"start={start}, limit={limit}, delta={step}: fix the size")
    count = op.same(op.result_size(0), limit - start)
    return op.call("range", start, count, types=[op.program.dtype(op.node.outputs[0])])


@rule("FoundSize")
def found_size(op: OperatorCode) -> Call:
    """Returns the call that reads an integer from memory and makes it a size of the plan."""
    op.of("int")
    source = op.read(0)
    most = bound_of(op.program, source).most or op.refuse(
        "a size that a run computes has no known maximum"
    )
    (size,) = sizes_in(op.program, op.node.outputs[0])
    number = RuntimeSize(op.finds(size, "number", most))
    return Call("read_size", number, source, most, types=[op.dtype()], checks=True)


@rule("GateLayout")
def gate_layout(op: OperatorCode) -> list[Nest]:
    """Returns loops that copy each gate to its position in onernn's gate order, with onernn's
    sign.
    """
    source, (out, shape) = op.read(0), op.out()
    layout, strides = op.attrs.layout, strides_of(shape)
    units = shape[-1] // len(layout.permutation)
    return [
        nest(
            (*shape[:-1], units),
            Access(out, strides, units * gate),
            [Access(source, strides, units * place)],
            ("same" if sign > 0 else "negative", 0),
        )
        for gate, (place, sign) in enumerate(zip(layout.permutation, layout.signs, strict=True))
    ]


def _around(shape: Shape, axis: int) -> tuple[Size, Size]:
    return volume(shape[:axis]), volume(shape[axis + 1 :])


def _choose(op: OperatorCode, function: str, *sizes: Any) -> Call:
    """Returns the call of a function that takes indices. It counts negative indices from the end if
    the operator allows them.
    """
    op.of("int", index=1)
    negative = not op.attrs.non_negative
    return op.move(function, *op.read_first(2), *sizes, negative, by=1, checks=True)


@rule("Gather")
def gather(op: OperatorCode) -> Call:
    """Returns the call that takes slices of a table by their indices along an axis."""
    table = op.shape()
    axis = op.axis(len(table))
    return _choose(op, "gather", table[axis], volume(op.shape(1)), *_around(table, axis))


@rule("GatherElements")
def gather_elements(op: OperatorCode) -> Call:
    table, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(table))
    for index, size in enumerate(shape):
        if index != axis:
            op.same(table[index], size)
    return _choose(op, "gather_elements", table[axis], shape[axis], *_around(shape, axis))


@rule("GatherND")
def gather_nd(op: OperatorCode) -> Call:
    """Returns the call that takes elements by indices of the axes after the batch axes."""
    table, indices, batch = op.shape(0), op.shape(1), op.attrs.batch_dims
    for size, other in zip(table[:batch], indices[:batch], strict=True):
        op.same(size, other)
    end = batch + (indices[-1].number or 0)
    sizes = table[batch:end]
    around = volume(table[:batch]), volume(indices[batch:-1]), volume(table[end:])
    return _choose(op, "gather_nd", list(sizes), *around)


@rule("ScatterElements")
def scatter_elements(op: OperatorCode) -> Call:
    shape, sizes = op.shape(), op.shape(1)
    axis = op.axis(len(shape))
    for index, (few, many) in enumerate(zip(sizes, shape, strict=True)):
        if index != axis and (
            few.number is None or many.number is None or few.number > many.number
        ):
            op.same(few, many)
    op.fits(2, sizes)
    how = volume(shape), axis, shape[axis], list(sizes), list(strides_of(shape))
    return _scatter(op, "scatter_elements", *how)


@rule("ScatterND")
def scatter_nd(op: OperatorCode) -> Call:
    shape, sizes = op.shape(), op.shape(1)
    depth = sizes[-1].number if sizes else None
    if depth is None:
        op.refuse("the last axis of indices has an open size: fix the size")
    op.fits(2, (*sizes[:-1], *shape[depth:]))
    counts = volume(sizes[:-1]), volume(shape[depth:])
    return _scatter(op, "scatter_nd", list(shape[:depth]), *counts)


def _scatter(op: OperatorCode, function: str, *sizes: Any) -> Call:
    op.of("float", "int")
    op.of("int32", "int64", index=1)
    op.alike(2)
    if op.attrs.reduction not in MEETINGS:
        known = ", ".join(MEETINGS)
        op.refuse(f"attribute reduction={op.attrs.reduction!r}: expected one of {known}")
    types, how = [op.dtype(), op.dtype(1)], MEETINGS.index(op.attrs.reduction)
    return op.call(function, *op.read_first(3), *sizes, how, types=types, checks=True)


def _cut_off(pad: Size) -> Size:
    """Returns how many elements a negative pad removes. Calls check that open sizes are not
    negative.
    """
    return Size.of(max(-(pad.number or 0), 0))


@rule("Pad")
def pad(op: OperatorCode) -> list[Call]:
    """Returns a call in which each element of the result looks up its source along each axis."""
    if op.attrs.mode not in MODES:
        op.refuse(f"attribute mode={op.attrs.mode!r}: expected one of {', '.join(MODES)}")
    op.alike(2)
    input_shape, (_, shape) = op.shape(), op.out()
    chosen = op.integers(3, "axes") or range(len(input_shape))
    pads, half = [*map(Size.of, op.numbers(1, "pads") or [])], len(chosen)
    around = dict.fromkeys(range(len(input_shape)), (Size(()), Size(())))
    # known pads may be negative
    checks = at_least(op, *(pad for pad in pads if pad.number is None))
    for axis, *pair in zip(chosen, pads[:half], pads[half:], strict=True):
        around[at_axis(axis, len(input_shape))] = (pair[0], pair[1])
    left = []
    for axis, ends in around.items():
        left.append(input_shape[axis] - _cut_off(ends[0]) - _cut_off(ends[1]))
        needed = op.attrs.mode != "constant" and any(_cut_off(end) != end * -1 for end in ends)
        checks += at_least(op, left[-1] - 1 if needed else left[-1])
    low = [begin + _cut_off(begin) for begin, _ in around.values()]
    cut = [_cut_off(begin) for begin, _ in around.values()]
    axes = [list(sizes) for sizes in (shape, low, left, cut, strides_of(input_shape))]
    mode = MODES.index(op.attrs.mode)
    return [*checks, op.move("around", op.read(0), op.read(2), *axes, mode)]


@rule("ReverseSequence")
def reverse_sequence(op: OperatorCode) -> Call:
    shape, time, batch = op.shape(), op.attrs.time_axis, op.attrs.batch_axis
    if {time, batch} != {0, 1}:
        op.refuse(f"attributes time_axis={time}, batch_axis={batch}: expected the first two axes")
    op.of("int", index=1)
    op.holds(1, shape[batch])
    sizes = shape[time], shape[batch], volume(shape[2:]), time == 0
    return op.move("reverse", *op.read_first(2), *sizes, by=1, checks=True)


@rule("OneHot")
def one_hot(op: OperatorCode) -> Call:
    op.of("int")
    input_shape, (_, shape) = op.shape(), op.out()
    axis = op.axis(len(shape))
    op.numbers(1, "depth")
    op.holds(2, 2)
    sizes = volume(input_shape[:axis]), volume(input_shape[axis:]), shape[axis]
    types = [find_moved_type(op.dtype(2)), op.dtype()]
    return op.call("one_hot", op.read(0), op.read(2), *sizes, types=types)


@rule("Compress")
def compress(op: OperatorCode) -> Call:
    """Returns the call that also computes the number of chosen elements."""
    op.of("bool", index=1)
    input_shape, axis = op.shape(), op.attrs.axis
    input_shape = (volume(input_shape),) if axis is None else input_shape
    axis = at_axis(axis or 0, len(input_shape))
    chosen = RuntimeSize(op.finds(op.result_size(axis), "chosen", input_shape[axis]))
    sizes = volume(op.shape(1)), chosen, input_shape[axis], *_around(input_shape, axis)
    return op.move("compress", *op.read_first(2), *sizes, checks=True)


@rule("NonZero")
def non_zero(op: OperatorCode) -> Call:
    input_shape = op.shape()
    chosen = RuntimeSize(op.finds(op.result_size(1), "chosen", volume(input_shape)))
    sizes = chosen, list(input_shape), list(strides_of(input_shape)), volume(input_shape)
    return op.call("non_zero", op.read(0), *sizes)
