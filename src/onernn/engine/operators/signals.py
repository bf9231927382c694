"""Operators on signals: resizing and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.engine.operators.elementwise import copy
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import Call, Nest, Packed, find_moved_type
from onernn.ir.types import Shape, Size, volume
from onernn.ops.rules import ONE
from onernn.ops.signals import find_resampled, signal_axis


@rule("Resize")
def resize(op: OperatorCode) -> list[Call | Nest]:
    """Resamples one axis after another. The positions of source elements are computed before a run,
    so the size of the axis must be known.
    """
    shape, (out, target) = op.shape(), op.out()
    region, scales = op.constant(1), op.constant(2)
    sizes = op.numbers(3, "sizes") if op.node.input(3) else None
    if (region is None and op.node.input(1)) or (scales is None and op.node.input(2)):
        op.refuse("roi or scales are computed at run time: expected constants")
    if any(
        one != wide and (one.number is None or wide.number is None)
        for one, wide in zip(shape, target, strict=True)
    ):
        op.refuse("an axis of an open size changes: fix the size")
    numbers = tuple(1 if size.number is None else size.number for size in shape)
    asked = None if sizes is None else np.array([Size.of(size).number or 1 for size in sizes])
    dtype = np.dtype(op.dtype())
    changed = find_resampled(op.attrs, numbers, dtype, region, scales, asked)
    if any(shape[axis.at].number is None for axis in changed) or any(
        axis.outside.any() for axis in changed
    ):
        op.refuse("an axis has an open size, or roi reaches outside of it: fix the size")
    source, sizes_now, steps = op.read(0), list(shape), list[Call | Nest]()
    for index, axis in enumerate(changed):
        rows, count = sizes_now[axis.at], Size.of(len(axis.before))
        around = volume(tuple(sizes_now[: axis.at])), volume(tuple(sizes_now[axis.at + 1 :]))
        sizes_now[axis.at] = count
        is_last = index == len(changed) - 1
        to = out if is_last else op.keep(f"axis{axis.at}", op.dtype(), sizes_now)
        if axis.after is None:
            function, read, types = "gather", [Packed(axis.before)], [find_moved_type(op.dtype())]
            more = [False]
        else:
            function, types, more = "interpolate", [op.dtype()], []
            read = [Packed(axis.before), Packed(axis.after), Packed(axis.rest)]
        types += ["int64"] * len(more)
        given = to, source, *read, rows, count, *around, *more
        steps.append(Call(function, *given, types=types, checks=True))
        source = to
    return steps or [copy(source, shape, out)]


def _roots(count: int, *, inverse: bool) -> Packed:
    angles = np.arange(count) * (2 * np.pi / count) * (1 if inverse else -1)
    return Packed(np.stack([np.cos(angles), np.sin(angles)], -1))


def _spectra(
    op: OperatorCode,
    window: str,
    count: int,
    rows: tuple[Shape, Shape, Size],
    columns: tuple[Shape, Shape, Size],
    *,
    inverse: bool = False,
    halved: bool = False,
) -> Call:
    """Returns the call that transforms rows of ``count`` numbers. ``rows`` describes the input,
    ``columns`` the output. Each has the sizes and the strides along (outer axes, inner axes, the
    transformed axis), and the number of floats per element: 2 if complex.
    """
    memory = op.keep("rows", "float64", (3 * count, 2))
    how: list[Any] = [count, halved, 1 / count if inverse else 1.0]
    (counts, strides, parts), (bins, to, results) = rows, columns
    given = op.read(0), window, _roots(count, inverse=inverse), memory
    layout = [*counts], [*strides], parts, [*bins], [*to], results
    return op.call("spectra", *given, *layout, *how)


def _number(op: OperatorCode, size: Any, what: str) -> int:
    number = Size.of(size).number
    if number is None or number < 1:
        op.refuse(f"{what} of an open size: fix the size")
    return number


@rule("DFT")
def dft(op: OperatorCode) -> Call:
    op.of("float")
    shape, (_, target) = op.shape(), op.out()
    axis = op.integers(2, "axis")
    at = signal_axis(len(shape), None if axis is None else np.array(axis))
    asked, inverse = op.numbers(1, "dft_length"), bool(op.attrs.inverse)
    halved = inverse and bool(op.attrs.onesided)
    whole = (shape[at] - 1) * 2 if halved else shape[at]
    count = _number(op, asked[0] if asked else whole, "a transform")
    if halved:
        op.same(shape[at], count // 2 + 1)
        op.same(shape[-1], 2)
    elif op.attrs.onesided:
        op.same(shape[-1], 1)
    parts, results = (_number(op, each[-1], "parts") for each in (shape, target))

    def layout(sizes: Shape, width: int) -> tuple[Shape, Shape, Size]:
        outer, inner = volume(sizes[:at]), volume(sizes[at + 1 : -1])
        rows = sizes[at] * inner * width, Size.of(width), inner * width
        return (outer, inner, sizes[at]), rows, Size.of(width)

    columns = layout(target, results)
    return _spectra(op, "", count, layout(shape, parts), columns, inverse=inverse, halved=halved)


@rule("STFT")
def stft(op: OperatorCode) -> Call:
    op.of("float")
    shape, (_, target) = op.shape(), op.out()
    if len(shape) != 3:
        op.refuse(f"signal: expected 3 axes, got {len(shape)}")
    step = _number(op, (op.numbers(1, "frame_step") or [0])[0], "steps between frames")
    length, window = op.numbers(3, "frame_length"), op.node.input(2)
    frame = op.shape(2)[0] if window else length[0] if length else shape[1]
    count = _number(op, frame, "frames")
    if window:
        op.alike(2)
        op.holds(2, count)
    parts, bins = _number(op, shape[-1], "parts"), target[2]
    if op.attrs.onesided:
        op.same(shape[-1], 1)
    frames = target[1]
    rows = (shape[0], frames, Size.of(count)), (shape[1] * parts, ONE * step * parts, ONE * parts)
    columns = (shape[0], frames, bins), (frames * bins * 2, bins * 2, ONE * 2)
    more = (*rows, Size.of(parts)), (*columns, Size.of(2))
    return _spectra(op, op.read(2), count, *more)
