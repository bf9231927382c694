"""Operators that move elements, or only look at them in another shape."""

from __future__ import annotations

import numpy as np

from onernn.core.sizes import Shape, Size, shape_of, volume
from onernn.engine.operators.elementwise import broadcast, filled
from onernn.engine.operators.nests import COPY, each_element, nest, stretched, strides_of, whole
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import UnknownError
from onernn.engine.steps import Access, Call, Nest, Step
from onernn.operators.rules import ONE
from onernn.operators.shaping import FAR


@rule("Shape", "Size")
def shape(op: OperatorCode) -> None:
    """Known as soon as its input's shape is."""
    raise UnknownError(op.node.outputs[0])


@rule("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "SequenceData")
def view(op: OperatorCode) -> None:
    """The same elements in the same order."""
    op.source = op.read(0)
    if op.node.op == "Squeeze":
        for axis in op.integers(1, "axes") or ():
            op.same(op.size(op.node.inputs[0], axis), 1)
    elif op.node.op != "Identity" and op.node.input(1):
        op.numbers(1, "shape")
    given, (_, shape) = op.shape(), op.out()
    op.same(volume(given), volume(shape))
    names = frozenset[str]().union(*(size.names for size in (*given, *shape)))
    op.mixes = [Size.of(name) for name in names if _before(given, name) != _before(shape, name)]


def _before(shape: Shape, name: str) -> Size | None:
    """How many elements stand before the axis that a name tells: elsewhere it is another axis."""
    at = next((at for at, size in enumerate(shape) if name in size.names), None)
    return None if at is None else volume(shape[:at])


@rule("Transpose")
def transpose(op: OperatorCode) -> Nest:
    op.mixes = []
    source, given = op.read(0), op.shape()
    strides = strides_of(given)
    perm = op.at.perm or range(len(given))[::-1]
    return each_element(op, [Access(source, tuple(strides[axis] for axis in perm))], COPY)


@rule("Slice")
def slices(op: OperatorCode) -> list[Step]:
    given = op.shape()
    starts, ends = (op.numbers(at, "starts and ends") or [] for at in (1, 2))
    axes = op.integers(3, "axes") or list(range(len(starts)))
    steps = op.integers(4, "steps") or [1] * len(starts)
    op.mixes = [given[axis] for axis in axes]
    strides, begin, checks = list(strides_of(given)), Size.of(0), []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, count, spare = _cut(op, given[axis], Size.of(start), Size.of(end), step)
        op.same(op.made(axis), count)
        begin = begin + first * strides[axis]
        strides[axis] = strides[axis] * step
        checks += at_least(op, *spare)
    return [*checks, each_element(op, [Access(op.read(0), tuple(strides), begin)], COPY)]


def _cut(
    op: OperatorCode, size: Size, start: Size, end: Size, step: int
) -> tuple[Size, Size, tuple[Size, ...]]:
    """(first, count) along an axis, and what must not be negative."""
    numbers = [each.number for each in (start, end, size)]
    if None not in numbers:
        bounds = slice(numbers[0], numbers[1], step).indices(numbers[2] or 0)
        return Size.of(bounds[0]), Size.of(len(range(*bounds))), ()
    first, last, _ = (None if n is None else max(min(n, FAR), -FAR) for n in numbers)
    if step < 0 and first in (-1, FAR) and last == -FAR:
        return size - 1, (size - step - 1).floor_div(-step), ()
    if step < 0:
        op.refuse(f"[{start}:{end}:{step}] of an axis of {size}: say --static")
    start = size + start if first is not None and first < 0 else start
    end = size if last == FAR else size + end if last is not None and last < 0 else end
    count = (end - start + (step - 1)).floor_div(step)
    return start, count, (start, end - start, size - end)


def _is_natural(size: Size) -> bool:
    """Whether it is at least 0 for all that its names may be."""
    return all(by > 0 for _, by in size.terms)


def at_least(op: OperatorCode, *sizes: Size) -> list[Call]:
    """Checks in each call that sizes are not negative; refuses those that are in any case."""
    if any((size.number or 0) < 0 for size in sizes):
        op.refuse(f"sizes {', '.join(map(str, sizes))}: at least 0")
    return [Call("natural", size, checks=True) for size in sizes if not _is_natural(size)]


@rule("Split")
def split(op: OperatorCode) -> list[Nest]:
    """Parts without a name are passed over."""
    source, given = op.read(0), op.shape()
    axis, strides = op.axis(len(given)), strides_of(given)
    if op.node.input(1):
        op.numbers(1, "sizes")
    parts, codes, end = op.types_of_outputs(), [], Size.of(0)
    for at, out in enumerate(op.node.outputs):
        size = (parts[at].shape or given)[axis]
        if out:
            shape = op.program.shape(out)
            reads = [Access(source, strides, end * strides[axis])]
            codes.append(nest(shape, whole(out, shape), reads))
            size = shape[axis]
        if size is None:
            raise UnknownError(source)
        end = end + op.program.size(size)
    op.same(end, given[axis])
    return codes


@rule("Concat")
def concat(op: OperatorCode) -> list[Nest]:
    shapes = [op.shape(at) for at in range(len(op.node.inputs))]
    axis = op.axis(len(shapes[0]))
    for shape in shapes[1:]:
        for at, size in enumerate(shape):
            if at != axis:
                op.same(shapes[0][at], size)
    out, shape = op.out()
    strides, start, codes = strides_of(shape), Size.of(0), []
    for at, part in enumerate(shapes):
        to, read = Access(out, strides, start), whole(op.read(at), part)
        codes.append(nest(part, to, [read]))
        start = start + part[axis] * strides[axis]
    return codes


@rule("Expand")
def expand(op: OperatorCode) -> Nest:
    """Sizes that are asked for stretch as those of an input do."""
    source, asked = op.read(0), shape_of(op.numbers(1, "shape") or ())
    broadcast(op, [op.shape(), asked])
    return each_element(op, [stretched(source, op.shape(), op.out()[1])], COPY)


@rule("Tile")
def tile(op: OperatorCode) -> Nest:
    """Two loops an axis: one over its repetitions, one over its elements."""
    source, given, (out, shape) = op.read(0), op.shape(), op.out()
    times = shape_of(op.numbers(1, "repeats") or ())
    op.mixes = [size for size, count in zip(given, times, strict=True) if count != ONE]
    loops = tuple(size for pair in zip(times, given, strict=True) for size in pair)
    to, read = [], []
    for wide, own, size in zip(strides_of(shape), strides_of(given), given, strict=True):
        to += [size * wide, wide]
        read += [Size(()), own]
    return nest(loops, Access(out, tuple(to)), [Access(source, tuple(read))])


@rule("ConstantOfShape")
def constant_of_shape(op: OperatorCode) -> Call:
    op.numbers(0, "shape")
    return filled(op, 0, np.asarray(op.at.value).reshape(-1)[0])


@rule("Range")
def counted(op: OperatorCode) -> Call:
    """From one size to another; between numbers it is a constant."""
    op.of("int")
    start, limit, step = (Size.of(op.numbers(at, "limits")[0]) for at in range(3))  # type: ignore[index]
    if step != ONE or not _is_natural(limit - start):
        op.refuse(f"from {start} to {limit} by {step}: say --static")
    count = op.same(op.made(0), limit - start)
    op.mixes = [count]
    return op.call("range", start, count, types=[op.program.dtype(op.node.outputs[0])])


@rule("GateLayout")
def gate_layout(op: OperatorCode) -> list[Nest]:
    """Gate after gate, from a framework's order and signs."""
    source, (out, shape) = op.read(0), op.out()
    layout, strides = op.at.layout, strides_of(shape)
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
