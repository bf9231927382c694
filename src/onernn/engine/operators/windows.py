"""Convolutions and pools over one axis or two: constant weights are packed, others in each call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.backend.compiled.packing import LANES
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.operators.products import dense
from onernn.engine.operators.shaping import at_least
from onernn.engine.steps import Call, Packed, Step, Team
from onernn.ir.arrays import Array
from onernn.ir.types import Shape, Size, listed, volume
from onernn.ops.rules import ONE
from onernn.ops.windows import Window, reached_along, windows_of

FEW = 8
"""Places: with no more of them channels stand side by side, see kernels/convolutions.hpp."""
_ROWS = 24
"""Windows that are multiplied together there: kRowsAtOnce in kernels/products.hpp."""


class Windows:
    """Windows over an operator's first input, along rows and columns; one axis is a column.

    ``x``, ``y``: (C, H, W) of what windows go over, and of what they make.
    """

    def __init__(self, op: OperatorCode, windows: Sequence[Window], x: Shape, y: Shape) -> None:
        if len(windows) not in (1, 2):
            op.refuse(f"windows over {len(windows)} axes")
        around = [_around(op, window, size) for window, size in zip(windows, x[1:], strict=True)]
        self.before, self.after = ([sizes[at] for sizes in around] for at in range(2))
        flat = 2 - len(windows)
        self.windows = [Window(1, 1, 1, 0, 0)] * flat + [*windows]
        self.before, self.after = ([Size(())] * flat + s for s in (self.before, self.after))
        self.x, self.y = ([shape[0], *[ONE] * flat, *shape[1:]] for shape in (x, y))

    @property
    def sizes(self) -> tuple[list[Size], list[Size], list[Size]]:
        """As kernels/windows.hpp takes them."""
        rows = [[getattr(w, key) for w in self.windows] for key in ("size", "stride", "dilation")]
        return self.x, self.y, [*map(Size.of, sum(rows, [])), *self.before]

    @property
    def inside(self) -> bool:
        """Whether windows see nothing but their input, for all sizes."""
        return not any(size.terms for size in (*self.before, *self.after))

    @property
    def copied(self) -> Size:
        """Numbers of an image with what windows see around it, at most."""
        if self.inside and all(window.stride == 1 for window in self.windows):
            return Size(())
        count = self.x[0]
        for window, places in zip(self.windows, self.y[1:], strict=True):
            count = count * window.stride * (places + (window.extent - 1) // window.stride)
        return count


def _around(op: OperatorCode, window: Window, size: Size) -> tuple[Size, Size]:
    """How many elements a window sees before an axis, and behind it."""
    if size.number is not None:
        window = window.around(size.number)
    if not window.same:
        return Size.of(window.before), Size.of(window.after)
    if window.extent < window.stride:
        op.refuse(f"auto_pad={window.same} around {size} elements: say --static")
    added = (window.places(size) - 1) * window.stride + window.extent - size
    less = added.floor_div(2)
    return (less, added - less) if window.same == "SAME_UPPER" else (added - less, less)


def at_places(op: OperatorCode, windows: Windows) -> list[Call]:
    """Checks in each call that windows fit in."""
    return at_least(op, *(places - 1 for places in windows.y[1:]))


@rule("Conv")
def conv(op: OperatorCode) -> list[Step]:
    op.of("float")
    op.alike(1, 2)
    x, weights, (out, y) = op.shape(), op.shape(1), op.out()
    kernel = _kernel(op, weights)
    windows = Windows(op, windows_of(op.at, kernel), x[1:], y[1:])
    groups, channels = op.at.group, weights[0].number
    if channels is None or channels % groups:
        op.refuse(f"{weights[0]} channels in {groups} groups")
    op.same(weights[1] * groups, x[1])
    if op.node.input(2):
        op.same(volume(op.shape(2)), channels)
    op.mixes = x[1:]
    count, checks = volume(weights[1:]), at_places(op, windows)
    constant = op.program.graph.constants.get(op.node.inputs[1])
    if constant is not None and groups == 1 and windows.inside and y[2:] == (ONE,) * len(kernel):
        if x[2:] == weights[2:]:  # a window sees everything: rows
            matrix = constant.reshape(channels, -1).T
            return [*checks, dense(op, out, op.read(0), x[0], matrix, op.read(2))]
    own = channels // groups
    together = _together(own) if op.dtype() == "float32" else 1  # library/convolutions.cpp
    types = [op.dtype(), str(together)]
    panels: str | Packed
    if constant is not None:
        panels = Packed(_panels(constant.reshape(groups, own, -1), together * LANES))
    else:
        wide = -(-own // (together * LANES)) * together * LANES
        panels = op.keep("panels", op.dtype(), [count * (groups * wide)])
        checks.append(Call("pack", panels, op.read(1), groups, own, count, types=types))
    places = volume(tuple(windows.y[1:])).number
    few = own >= LANES and (places is None or places <= FEW)
    copied = windows.copied if not few or places is None else Size(())
    seen = op.keep("seen", op.dtype(), [copied + count * _ROWS if few else copied])
    taps = op.keep("taps", "int64", [count])
    given = op.read(0), panels, op.read(2), seen, taps, x[0]
    sizes = *windows.sizes, groups, Team()
    return [*checks, op.call("convolve", *given, *sizes, types=types)]


@rule("ConvTranspose")
def conv_transpose(op: OperatorCode) -> list[Step]:
    op.of("float")
    op.alike(1, 2)
    x, weights, (_, y) = op.shape(), op.shape(1), op.out()
    windows = windows_of(op.at, _kernel(op, weights))
    if len(windows) not in (1, 2):
        op.refuse(f"windows over {len(windows)} axes")
    if op.at.output_shape and any(size.number is None for size in x[2:]):
        op.refuse(f"output_shape={op.at.output_shape} of {listed(x)}: say --static")
    sizes = [size if size.number is None else size.number for size in x[2:]]
    before = [less for _, less in reached_along(op.at, windows, sizes)]
    op.same(weights[0], x[1])
    if op.node.input(2):
        op.same(volume(op.shape(2)), y[1])
    op.mixes = x[1:]
    flat = 2 - len(windows)
    windows = [Window(1, 1, 1, 0, 0)] * flat + windows
    told = [getattr(w, key) for key in ("size", "stride", "dilation") for w in windows]
    planes = ([shape[1], *[ONE] * flat, *shape[2:]] for shape in (x, y))
    given = op.read(0), op.read(1), op.read(2), x[0], *planes, [*told, *[0] * flat, *before]
    checks = at_least(op, *(size - 1 for size in y[2:]))
    return [*checks, op.call("convolve_back", *given, op.at.group, types=[op.dtype()])]


def _kernel(op: OperatorCode, weights: Shape) -> list[int]:
    """The sizes of a window."""
    kernel = [size.number or op.refuse(f"a window of {size} elements") for size in weights[2:]]
    if op.at.kernel_shape not in (None, tuple(kernel)):
        op.refuse(f"kernel_shape={op.at.kernel_shape}, weights of {kernel}")
    return kernel


def _together(channels: int) -> int:
    """How many panels of 16 channels a window's sums have side by side: with fewer of them
    multiplications wait for each other, with more of them more are of channels that are not there.
    """
    slower = {1: 2.0, 2: 1.25, 3: 1.0, 4: 1.0}
    return max(
        slower, key=lambda count: (channels // (-count * LANES) * count * slower[count], count)
    )


def _panels(weights: Array, wide: int) -> Array:
    """(groups, M, K) -> (groups, panels, K, wide), zeros for channels that are not there."""
    groups, channels, count = weights.shape
    out = np.zeros((groups, -(-channels // wide) * wide, count), weights.dtype)
    out[:, :channels] = weights
    return out.reshape(groups, -1, wide, count).swapaxes(2, 3)


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
