"""ONNX's convolutions and pooling: windows that move along the axes of (N, C, ...).

Along an axis a window has ``size`` elements at distances of ``dilation``, and moves by ``stride``.
It also covers the padding ``before`` and ``after`` the axis (ONNX: pads, auto_pad). In this module,
a place is one position of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import running
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context
from onernn.ir.operator import REQUIRED, Path, op, over, rank_of
from onernn.ir.records import dataclass
from onernn.ir.types import Size, Type, dense
from onernn.ops import row_rules
from onernn.ops.reducing import as_column, lowest
from onernn.ops.rules import ONE, common

ATTRIBUTES: Mapping[str, Any] = MappingProxyType(
    {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
)
"""The defaults mean dilation 1, no padding and stride 1."""

_FAR = 2**31
"""The limit for a window's extent, because larger sizes would overflow in C."""


@dataclass(frozen=True)
class Window:
    """A window along one axis; ``same``: SAME_UPPER or SAME_LOWER if the axis's size determines the
    padding.

    Sizes are integers or `Size`, unless a method asks for integers.
    """

    size: int
    stride: int
    dilation: int
    before: int
    after: int
    same: str = ""

    @property
    def extent(self) -> int:
        """The distance from the window's first element to its last one, plus 1."""
        return self.dilation * (self.size - 1) + 1

    def reach(self, count: int) -> int:
        """Returns how many elements ``count`` places cover: from the first element of the first
        place to the last element of the last place.
        """
        return (count - 1) * self.stride + self.extent

    def tap(self, index: int, count: int) -> slice:
        """Returns the slice of the axis that holds the window's element ``index`` in each of
        ``count`` places.
        """
        first = index * self.dilation
        return slice(first, first + (count - 1) * self.stride + 1, self.stride)

    def around(self, size: int) -> Window:
        """Returns the window with the padding that SAME means for an axis of ``size`` elements."""
        if not self.same:
            return self
        added = max(self.reach(self.places(size)) - size, 0)
        less, more = added // 2, added - added // 2
        before, after = (less, more) if self.same == "SAME_UPPER" else (more, less)
        return Window(self.size, self.stride, self.dilation, before, after)

    def places(self, size: Any, ceil: bool = False) -> Any:
        """Returns the number of places of the window along an axis.

        ``ceil``: the last place may extend over the end of the padded axis; places that contain
        only padding do not count.
        """
        if self.same:
            return _quotient(size + (self.stride - 1), self.stride)
        beyond = self.after - self.extent + self.stride
        if ceil:
            beyond = min(beyond, 0) + self.stride - 1
        return _quotient(size + (self.before + beyond), self.stride)


def _quotient(size: Any, by: int) -> Any:
    return size.floor_div(by) if isinstance(size, Size) else size // by


def windows_of(attrs: Any, kernel: Sequence[int]) -> list[Window]:
    """Returns the windows that a node's attributes describe. Raises `ShapeError` for invalid
    attributes.
    """
    rank = len(kernel)
    sizes = numbers("kernel_shape", kernel, rank, 1)
    strides = numbers("strides", attrs.strides, rank, 1)
    dilations = numbers("dilations", attrs.dilations, rank, 1)
    pads = numbers("pads", attrs.pads, 2 * rank, 0)
    if attrs.auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        expected = "expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
        raise ShapeError(f"attribute auto_pad={attrs.auto_pad!r}: {expected}")
    if attrs.auto_pad != "NOTSET" and any(pads):
        raise ShapeError(
            f"attributes auto_pad={attrs.auto_pad} and pads={pads}: expected only one of them"
        )
    same = attrs.auto_pad if attrs.auto_pad.startswith("SAME") else ""
    rows = zip(sizes, strides, dilations, pads[:rank], pads[rank:], strict=True)
    result = [Window(*row, same) for row in rows]
    if any(window.extent >= _FAR for window in result):
        extents = [window.extent for window in result]
        raise ShapeError(f"windows of {extents} elements: expected fewer than {_FAR}")
    return result


def numbers(name: str, given: Any, count: int, least: int) -> list[int]:
    """Returns the ``count`` integers of an attribute; each is ``least`` if the attribute is
    absent.
    """
    if given is None:
        return [least] * count
    if not isinstance(given, tuple | list) or len(given) != count:
        raise ShapeError(f"attribute {name}={given!r}: expected {count} integers")
    if not all(isinstance(each, int | np.integer) and least <= each < _FAR for each in given):
        raise ShapeError(f"attribute {name}={list(given)}: expected integers of at least {least}")
    return [int(each) for each in given]


def count_places(windows: Sequence[Window], x: Array, ceil: bool = False) -> list[Window]:
    """Returns the windows with the padding that they have on the axes of x (N, C, ...).

    Raises `ShapeError` if a window is larger than its padded axis.
    """
    if not windows or x.ndim != len(windows) + 2:
        axes = f"{len(windows)} further axes"
        raise ShapeError(
            f"x: expected (N, C, ...) with {axes}, those of the windows, got {x.shape}"
        )
    result = [window.around(size) for window, size in zip(windows, x.shape[2:], strict=True)]
    for window, size in zip(result, x.shape[2:], strict=True):
        if window.places(size, ceil) < 1:
            whole = window.before + size + window.after
            raise ShapeError(
                f"a window of {window.extent} elements: expected at most {whole}, an axis of {size}"
                " with its pads"
            )
    return result


def places(windows: Sequence[Window], sizes: Sequence[Any], ceil: bool = False) -> Any:
    """Returns the number of a window's places along each axis after (N, C), as integers or
    `Size`.
    """
    both = zip(windows, sizes, strict=True)
    return tuple(None if size is None else window.places(size, ceil) for window, size in both)


def pad(x: Array, windows: Sequence[Window], fill: Any, counts: Sequence[int]) -> Array:
    """Returns the array with the padding that windows cover in ``counts`` places along each
    axis.
    """
    around = [(0, 0), (0, 0)]
    for window, size, count in zip(windows, x.shape[2:], counts, strict=True):
        around.append((window.before, max(window.reach(count) - window.before - size, 0)))
    return np.pad(x, around, constant_values=fill) if any(map(any, around)) else x


def view_windows(x: Array, windows: Sequence[Window], fill: Any, counts: Sequence[int]) -> Array:
    """Returns a view of the padded array that has each window's elements: (N, C, *places,
    *window).
    """
    x = pad(x, windows, fill, counts)
    axes = tuple(range(2, x.ndim))
    every = np.lib.stride_tricks.sliding_window_view(x, [w.extent for w in windows], axes)
    both = zip(windows, counts, strict=True)
    steps = [window.tap(0, count) for window, count in both]
    taps = [slice(None, None, window.dilation) for window in windows]
    return every[(slice(None), slice(None), *steps, *taps)]


def bytes_padded(x: Array, windows: Sequence[Window], counts: Sequence[int]) -> int:
    """Returns the bytes of the array that `pad` returns."""
    sizes = (
        max(window.before + size, window.reach(count))
        for window, size, count in zip(windows, x.shape[2:], counts, strict=True)
    )
    return math.prod((*x.shape[:2], *sizes)) * x.dtype.itemsize


_AT_ONCE = 2**22
"""The maximum number of window elements copied for one matrix product; a product has at least one
image.
"""


def _check(attrs: Any, x: Array, w: Array, bias: Array | None, *, back: bool = False) -> None:
    if x.ndim < 3 or w.ndim != x.ndim:
        got = f"got {x.shape} and {w.shape}"
        raise ShapeError(f"x and weights: expected (N, C, ...), as many axes in both, {got}")
    if x.dtype.kind != "f" or w.dtype != x.dtype:
        raise ShapeError(f"x and weights: expected floats of one dtype, got {x.dtype}, {w.dtype}")
    if attrs.kernel_shape is not None and tuple(attrs.kernel_shape) != w.shape[2:]:
        expected = f"expected {w.shape[2:]}, as the weights have"
        raise ShapeError(f"attribute kernel_shape={attrs.kernel_shape}: {expected}")
    whole, part = len(w), w.shape[1] * attrs.group
    taken, result = (whole, part) if back else (part, whole)
    if attrs.group < 1 or x.shape[1] != taken or whole % attrs.group:
        raise ShapeError(
            f"attribute group={attrs.group}: expected a divisor of {whole}, and {taken} channels in"
            f" x, got x {x.shape} and weights {w.shape}"
        )
    if bias is not None and (bias.shape != (result,) or bias.dtype != x.dtype):
        raise ShapeError(f"bias: expected {x.dtype} ({result},), got {bias.dtype} {bias.shape}")


def _at_once(count: int, image: int) -> list[slice]:
    step = max(_AT_ONCE // max(image, 1), 1)
    return [slice(first, first + step) for first in range(0, count, step)]


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + as_column(bias, y.ndim - 1)


def _type(context: Context, x: Type, w: Type, channels: Size | None, sizes: Any) -> Type:
    dtype = common(x, w)
    if x.shape is None or w.shape is None:
        return Type(dtype)
    kernel = context.attrs.kernel_shape or [size and size.number for size in w.shape[2:]]
    if None in kernel:
        return Type(dtype, (x.shape[0], channels, *[None] * len(kernel)))
    result = sizes(windows_of(context.attrs, kernel), x.shape[2:])
    return dense(dtype, (x.shape[0], channels, *result))


def _conv_reach(attrs: Any, axis: int, x: Type, w: Type, *_: Any) -> Window | None:
    kernel: Any = attrs.kernel_shape or w.counts[2:]
    return None if axis < 2 or None in kernel else windows_of(attrs, kernel)[axis - 2]


@op(
    "Conv",
    kind="mixes",
    attributes={**ATTRIBUTES, "group": 1, "kernel_shape": None},
    type=lambda context, x, w, *_: _type(context, x, w, w.shape[0] if w.shape else None, places),
    reach=_conv_reach,
    batched="batch",
)
def conv(attrs: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Multiplies weights with a matrix whose columns are the elements of each window."""
    windows, groups = count_places(windows_of(attrs, w.shape[2:]), x), attrs.group
    _check(attrs, x, w, bias)
    counts = places(windows, x.shape[2:])
    axes, count, depth = len(windows), math.prod(counts), math.prod(w.shape[1:])
    kernels = w.reshape(groups, len(w) // groups, depth)
    row = max(len(x), 1) * count * x.dtype.itemsize
    # Memory for the padded array, two copies of the results, and the columns of all images.
    running().ask(bytes_padded(x, windows, counts) + row * (2 * len(w) + max(depth * groups, 1)))
    out = np.empty((len(x), groups, len(w) // groups, count), x.dtype)
    taps_first = (0, 1, *range(axes + 2, 2 * axes + 2), *range(2, axes + 2))
    for part in _at_once(len(x), groups * depth * count):
        columns = view_windows(x[part], windows, 0, counts).transpose(taps_first)
        np.matmul(kernels, columns.reshape(-1, groups, depth, count), out=out[part])
    return _with_bias(out.reshape(len(x), len(w), *counts), bias)


def find_transposed_sizes(
    attrs: Any, windows: Sequence[Window], sizes: Sequence[Any]
) -> list[tuple[Any, int]]:
    """Returns for each axis (the result's size, the number of elements that are cut off at the
    beginning).

    Sizes are integers or `Size`. Raises `ShapeError` if the result is larger than windows reach:
    ONNX does not define the elements that no window reaches.
    """
    more = numbers("output_padding", attrs.output_padding, len(windows), 0)
    wanted = attrs.output_shape and numbers("output_shape", attrs.output_shape, len(windows), 1)
    result: list[tuple[Any, int]] = []
    for axis, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        asked = wanted[axis] if wanted else size * window.stride if window.same else None
        if size is None or isinstance(size, Size) and wanted:  # only a run knows what to cut off
            result.append((asked, 0))
            continue
        reach = size * window.stride + (window.extent - window.stride + more[axis])
        before, after = window.before, window.after
        if asked is not None:
            cut: Any = reach - asked
            cut = cut.number if isinstance(cut, Size) else cut
            before, after = cut // 2, cut - cut // 2
            if attrs.auto_pad != "SAME_UPPER":
                before, after = after, before
            if before < 0 or wanted is None and after < 0:
                raise ShapeError(f"axis {axis + 2}: expected at most {reach} elements, got {asked}")
        result.append((reach - (before + after), before))
    return result


def _whole(
    windows: Sequence[Window], sizes: Sequence[int], reached: Sequence[tuple[int, int]]
) -> list[int]:
    rows = zip(windows, sizes, reached, strict=True)
    return [max(window.reach(size), before + kept) for window, size, (kept, before) in rows]


def _conv_transpose_type(context: Context, x: Type, w: Type, bias: Type | None = None) -> Type:
    def sizes(windows: Sequence[Window], sizes: Sequence[Any]) -> list[Any]:
        return [size for size, _ in find_transposed_sizes(context.attrs, windows, sizes)]

    part = w.shape[1] if w.shape else None
    return _type(context, x, w, None if part is None else part * context.attrs.group, sizes)


def _conv_transpose_reach(attrs: Any, axis: int, x: Type, w: Type, *_: Any) -> Window | None:
    window = _conv_reach(attrs, axis, x, w)
    return window if window and window.size == 1 else None


@op(
    "ConvTranspose",
    kind="mixes",
    attributes={
        **ATTRIBUTES,
        "group": 1,
        "kernel_shape": None,
        "output_padding": None,
        "output_shape": None,
    },
    type=_conv_transpose_type,
    reach=_conv_transpose_reach,
    batched="batch",
)
def conv_transpose(attrs: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Multiplies the weights by each element of x, and adds the products up in the element's
    window.
    """
    _check(attrs, x, w, bias, back=True)
    windows, sizes, groups = windows_of(attrs, w.shape[2:]), x.shape[2:], attrs.group
    reached = find_transposed_sizes(attrs, windows, sizes)
    if any(size < 1 for size, _ in reached):
        counts = [size for size, _ in reached]
        raise ShapeError(f"result axes of {counts} elements: expected 1 or more; decrease the pads")
    channels, count, whole = w.shape[1] * groups, math.prod(sizes), _whole(windows, sizes, reached)
    row = 2 * max(len(x), 1) * channels * x.dtype.itemsize
    running().ask(row * (math.prod(whole) + math.prod((*w.shape[2:], *sizes))))
    kernels = w.reshape(groups, len(w) // groups, math.prod(w.shape[1:])).swapaxes(1, 2)
    out = np.zeros((len(x), channels, *whole), x.dtype)
    for part in _at_once(len(x), channels * math.prod(w.shape[2:]) * count):
        result = kernels @ x[part].reshape(-1, groups, len(w) // groups, count)
        result = result.reshape(-1, channels, *w.shape[2:], *sizes)
        for taps in np.ndindex(*w.shape[2:]):
            laid = zip(windows, taps, sizes, strict=True)
            there = [window.tap(tap, size) for window, tap, size in laid]
            out[(part, slice(None), *there)] += result[(slice(None), slice(None), *taps)]
    kept = [slice(before, before + size) for size, before in reached]
    return _with_bias(out[(slice(None), slice(None), *kept)], bias)


_ATTRIBUTES = {**ATTRIBUTES, "ceil_mode": 0, "kernel_shape": REQUIRED}


def _windows(attrs: Any) -> list[Window]:
    windows = windows_of(attrs, attrs.kernel_shape)
    if any(max(w.before, w.after) >= w.size for w in windows):
        expected = f"expected less than kernel_shape={attrs.kernel_shape}"
        raise ShapeError(f"attribute pads={attrs.pads}: {expected}, or a window reads only padding")
    if attrs.ceil_mode and attrs.auto_pad == "VALID":
        raise ShapeError(
            "attributes ceil_mode and auto_pad=VALID: expected only one of them; ONNX does not"
            " define both together"
        )
    return windows


def _reduce(x: Array, windows: list[Window], fill: Any, counts: Any, both: np.ufunc) -> Array:
    x = pad(x, windows, fill, counts)
    for axis, (window, count) in enumerate(zip(windows, counts, strict=True), 2):
        lines = x.swapaxes(0, axis)
        taps = (lines[window.tap(index, count)] for index in range(window.size))
        x = reduce(both, taps).swapaxes(0, axis)
    return x


def _positions(attrs: Any, x: Array, windows: list[Window], top: Array) -> Array:
    """Returns the index in the flattened x of the first largest element of each window. If a window
    contains NaN, the result is the index of its first element.
    """
    axes, counts = len(windows), top.shape[2:]
    parts = view_windows(x, windows, 0, counts)
    inside = view_windows(np.ones((1, 1, *x.shape[2:]), bool), windows, False, counts)
    largest = ~(parts < top.reshape(*top.shape, *[1] * axes)) & inside
    sizes = parts.shape[-axes:]
    taps = np.unravel_index(largest.reshape(*top.shape, math.prod(sizes)).argmax(-1), sizes)
    images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * axes)
    result = images * math.prod(x.shape[2:])
    for axis, (window, tap) in enumerate(zip(windows, taps, strict=True), 2):
        inner = x.shape[2:axis] if attrs.storage_order else x.shape[axis + 1 :]
        first = np.arange(counts[axis - 2]) * window.stride - window.before
        place = as_column(first, x.ndim - axis) + tap * window.dilation
        result = result + place * math.prod(inner)
    return result


def _check_floats(x: Array) -> None:
    if x.dtype.kind != "f":
        raise ShapeError(f"x: expected floats, got {x.dtype}")


def _inside(window: Window, count: int, low: int, high: int) -> Array:
    starts = np.arange(count) * window.stride - window.before
    at = starts[:, None] + np.arange(window.size) * window.dilation
    return ((at >= low) & (at < high)).sum(1)


def _pool_paths(_: Any, x: Type) -> list[Path]:
    return over(x, range(2, rank_of(x)))


def _pool_reach(attrs: Any, axis: int, x: Type) -> Window | None:
    return None if axis < 2 else _windows(attrs)[axis - 2]


def _pool(*more: str) -> Callable[..., Any]:
    def rule(context: Context, x: Type) -> tuple[Type, ...]:
        if x.shape is None:
            return Type(x.dtype), *map(Type, more)
        windows, sizes = _windows(context.attrs), x.shape[2:]
        if len(windows) != len(sizes):
            expected = f"expected {len(sizes)} numbers, one per axis of x"
            raise ShapeError(f"attribute kernel_shape: {expected}, got {len(windows)}")
        result = places(windows, sizes, bool(context.attrs.ceil_mode))
        return tuple(Type(each, (*x.shape[:2], *result)) for each in (x.dtype, *more))

    return rule


def _place(attrs: Any, x: Array, outputs: int = 1) -> tuple[list[Window], tuple[int, ...]]:
    """Returns the windows of a pool and their numbers of places; asks the run's budget for memory.

    The second output, indices, takes additional memory for the elements of all windows.
    """
    ceil = bool(attrs.ceil_mode)
    windows = count_places(_windows(attrs), x, ceil)
    counts = places(windows, x.shape[2:], ceil)
    each = x.dtype.itemsize + (outputs > 1) * (math.prod(w.size for w in windows) + 32)
    running().ask(3 * bytes_padded(x, windows, counts) + math.prod((*x.shape[:2], *counts)) * each)
    return windows, counts


@op(
    "MaxPool",
    kind="mixes",
    attributes={**_ATTRIBUTES, "storage_order": 0},
    outputs=2,
    keeps=True,
    type=_pool("int64"),
    paths=_pool_paths,
    reach=_pool_reach,
    batched="batch",
    # The second output holds indices into the whole batch, so that its rows are not independent.
    rows=lambda flow, node: row_rules.follow(flow, node)[:1],
)
def max_pool(attrs: Any, x: Array) -> Any:
    """Returns (the largest elements, their indices in the flattened x)."""
    windows, counts = _place(attrs, x, attrs.outputs)
    top = _reduce(x, windows, lowest(x.dtype), counts, np.maximum)
    return top if attrs.outputs == 1 else (top, _positions(attrs, x, windows, top))


@op(
    "AveragePool",
    kind="mixes",
    attributes={**_ATTRIBUTES, "count_include_pad": 0},
    type=_pool(),
    paths=_pool_paths,
    reach=_pool_reach,
    batched="batch",
)
def average_pool(attrs: Any, x: Array) -> Array:
    """Averages windows. An average leaves out elements after the pads, which windows cover if
    ``ceil_mode`` is set.
    """
    _check_floats(x)
    windows, counts = _place(attrs, x)
    divisor: Any = 1
    for axis, (window, size) in enumerate(zip(windows, x.shape[2:], strict=True)):
        low, high = (-window.before, size + window.after) if attrs.count_include_pad else (0, size)
        inside = _inside(window, counts[axis], low, high)
        divisor = divisor * as_column(inside, len(windows) - axis)
    return _reduce(x, windows, 0, counts, np.add) / divisor.astype(x.dtype)


def _over_all(reduction: Any) -> Callable[..., Array]:
    def pool(x: Array) -> Array:
        _check_floats(x)
        if x.ndim < 3 or not x[:1, :1].size:
            raise ShapeError(f"x: expected (N, C, ...) with elements, got {x.shape}")
        return np.asarray(reduction(x, axis=tuple(range(2, x.ndim)), keepdims=True), x.dtype)

    return pool


for _name, _reduction in {"Average": np.mean, "Max": np.max}.items():
    op(
        f"Global{_name}Pool",
        kind="mixes",
        keeps=_reduction is np.max,
        type=lambda _, x: Type(x.dtype, x.shape and (*x.shape[:2], *[ONE] * len(x.shape[2:]))),
        paths=_pool_paths,
        batched="batch",
    )(_over_all(_reduction))
