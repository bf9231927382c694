"""Windows that go over the axes of a value: what convolution and pooling share.

Along an axis a window has ``size`` elements that stand ``dilation`` apart, moves on by ``stride``,
and also sees what ``before`` and ``after`` add around the axis (ONNX: pads, auto_pad).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.records import dataclass
from onernn.core.sizes import Size

ATTRIBUTES: Mapping[str, Any] = MappingProxyType(
    {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
)
"""Without numbers: windows of neighbours, nothing added, one element further each time."""

_FAR = 2**31
"""Windows are smaller; sizes of more would overflow in C."""


@dataclass(frozen=True)
class Window:
    """A window along one axis; ``same``: SAME_UPPER or SAME_LOWER, what is added follows the size.

    Sizes are numbers or `Size`, but where numbers are told.
    """

    size: int
    stride: int
    dilation: int
    before: int
    after: int
    same: str = ""

    @property
    def extent(self) -> int:
        """From its first element to its last one."""
        return self.dilation * (self.size - 1) + 1

    def reach(self, count: int) -> int:
        """From the first element of the first place to the last one of the last place."""
        return (count - 1) * self.stride + self.extent

    def tap(self, at: int, count: int) -> slice:
        """Where its element ``at`` is, in each of ``count`` places."""
        first = at * self.dilation
        return slice(first, first + (count - 1) * self.stride + 1, self.stride)

    def around(self, size: int) -> Window:
        """With what is added around an axis of this size, a number."""
        if not self.same:
            return self
        added = max(self.reach(self.places(size)) - size, 0)
        less, more = added // 2, added - added // 2
        before, after = (less, more) if self.same == "SAME_UPPER" else (more, less)
        return Window(self.size, self.stride, self.dilation, before, after)

    def places(self, size: Any, ceil: bool = False) -> Any:
        """How many places it has along an axis; ``ceil``: the last ones may reach over its end.

        But each begins before the end: windows over nothing but what is added behind do not count.
        """
        if self.same:
            return _quotient(size + (self.stride - 1), self.stride)
        beyond = self.after - self.extent + self.stride
        if ceil:
            beyond = min(beyond, 0) + self.stride - 1
        return _quotient(size + (self.before + beyond), self.stride)


def _quotient(size: Any, by: int) -> Any:
    return size.floor_div(by) if isinstance(size, Size) else size // by


def windows_of(at: Any, kernel: Sequence[int]) -> list[Window]:
    """The windows that a node's attributes describe. Raises `ShapeError` for what is none."""
    rank = len(kernel)
    sizes = numbers("kernel_shape", kernel, rank, 1)
    strides = numbers("strides", at.strides, rank, 1)
    dilations = numbers("dilations", at.dilations, rank, 1)
    pads = numbers("pads", at.pads, 2 * rank, 0)
    if at.auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ShapeError(f"attribute auto_pad={at.auto_pad!r} is not one of ONNX")
    if at.auto_pad != "NOTSET" and any(pads):
        raise ShapeError(f"attributes auto_pad={at.auto_pad} and pads={pads}: only one may say it")
    same = at.auto_pad if at.auto_pad.startswith("SAME") else ""
    rows = zip(sizes, strides, dilations, pads[:rank], pads[rank:], strict=True)
    found = [Window(*row, same) for row in rows]
    if any(window.extent >= _FAR for window in found):
        raise ShapeError(f"windows of {[window.extent for window in found]} elements")
    return found


def numbers(name: str, given: Any, count: int, least: int) -> list[int]:
    """An attribute's numbers, ``least`` where it is not given."""
    if given is None:
        return [least] * count
    if not isinstance(given, tuple | list) or len(given) != count:
        raise ShapeError(f"attribute {name}={given!r}: expected {count} numbers")
    if not all(isinstance(each, int | np.integer) and least <= each < _FAR for each in given):
        raise ShapeError(f"attribute {name}={list(given)}: expected integers of at least {least}")
    return [int(each) for each in given]


def placed(windows: Sequence[Window], x: Array, ceil: bool = False) -> list[Window]:
    """The windows over an array (N, C, ...), with what is added as numbers.

    Raises `ShapeError` where one does not fit in.
    """
    if not windows or x.ndim != len(windows) + 2:
        raise ShapeError(f"windows over {len(windows)} axes: expected (N, C, ...), got {x.shape}")
    found = [window.around(size) for window, size in zip(windows, x.shape[2:], strict=True)]
    for window, size in zip(found, x.shape[2:], strict=True):
        if window.places(size, ceil) < 1:
            whole = window.before + size + window.after
            raise ShapeError(
                f"a window of {window.extent} elements over an axis of {size}, {whole} with pads"
            )
    return found


def places(windows: Sequence[Window], sizes: Sequence[Any], ceil: bool = False) -> Any:
    """How many places windows have along the axes behind (N, C), of numbers or `Size`."""
    both = zip(windows, sizes, strict=True)
    return tuple(None if size is None else window.places(size, ceil) for window, size in both)


def padded(x: Array, windows: Sequence[Window], fill: Any, counts: Sequence[int]) -> Array:
    """The array with what windows at so many places see around it."""
    around = [(0, 0), (0, 0)]
    for window, size, count in zip(windows, x.shape[2:], counts, strict=True):
        around.append((window.before, max(window.reach(count) - window.before - size, 0)))
    return np.pad(x, around, constant_values=fill) if any(map(any, around)) else x


def seen(x: Array, windows: Sequence[Window], fill: Any, counts: Sequence[int]) -> Array:
    """What windows see, a view of the padded array: (N, C, *places, *window)."""
    x = padded(x, windows, fill, counts)
    axes = tuple(range(2, x.ndim))
    every = np.lib.stride_tricks.sliding_window_view(x, [w.extent for w in windows], axes)
    both = zip(windows, counts, strict=True)
    steps = [window.tap(0, count) for window, count in both]
    taps = [slice(None, None, window.dilation) for window in windows]
    return every[(slice(None), slice(None), *steps, *taps)]


def bytes_padded(x: Array, windows: Sequence[Window], counts: Sequence[int]) -> int:
    """What an array takes with what windows at so many places see around it."""
    sizes = (
        max(window.before + size, window.reach(count))
        for window, size, count in zip(windows, x.shape[2:], counts, strict=True)
    )
    return math.prod((*x.shape[:2], *sizes)) * x.dtype.itemsize
