"""Builds operators that several frameworks have; the rules of their adapters call these functions.

Values with channels are (N, C, ...). Attributes have the same meaning as in ONNX's operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.adapters.common.signatures import refuse
from onernn.ir.arrays import Array
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, RnnWeights


def recurrent_stack(
    x: Any,
    states: Sequence[Any],
    spec: RnnSpec,
    weights: Sequence[RnnWeights],
    lengths: Any = None,
    batch_major: bool = False,
    precision: LayerPrecision = OWN,
) -> tuple[Any, ...]:
    """Adds recurrent layers. Returns y (T, N, D*R), the final states (L*D, N, R), and an LSTM's
    final cell states (L*D, N, O).

    ``states``: the initial states in the same shapes, None for zeros. ``lengths``: the lengths of
    the sequences; steps after the end of a sequence do not run, and y is zero for them.
    ``batch_major``: whether x and y are (N, T, ...).
    """
    widths = (spec.recurrent_size, spec.hidden_size)

    def spread(state: Any, width: int) -> Any:
        if state is None:
            return None
        if spec.layers == 1:
            return state.unsqueeze(0)
        return state.reshape(spec.layers, spec.directions, -1, width)

    begin = [*map(spread, states, widths)]
    words = x
    if lengths is not None:
        words = x.SequenceUnpad(lengths, time_major=not batch_major)
    elif batch_major:
        words = x.transpose(1, 0, 2)
    own: dict[str, Any] = {"precision": precision} if precision else {}
    packed = weights if len(weights) > 1 else weights[0]
    count = 1 + len(spec.cell.states)
    y, *ends = words.Rnn(*begin, spec=spec, weights=packed, outputs=count, **own)
    if lengths is not None:
        y = y.SequencePad(x, time_major=not batch_major)
    elif batch_major:
        y = y.transpose(1, 0, 2)
    if spec.layers == 1:
        return y, *(end.squeeze(0) for end in ends)
    rows = spec.layers * spec.directions
    return y, *(end.reshape(rows, -1, width) for end, width in zip(ends, widths, strict=False))


def pool_windows(
    x: Any, kind: str, kernel: Sequence[int], *, counts_pads: bool = False, **windows: Any
) -> Any:
    """Returns the largest element ("max") or the mean ("avg") of each window; ``counts_pads``:
    whether the mean includes the padding.

    Raises `UnsupportedError` if a window at the end of an axis may contain only padding.
    """
    after = windows.get("pads", [0] * len(kernel))[-len(kernel) :]
    strides = windows["strides"]
    numbers = zip(kernel, strides, after, strict=True)
    if windows.get("ceil_mode") and any(size < stride + pad for size, stride, pad in numbers):
        refuse(
            f"windows {(*kernel,)}, strides {(*strides,)}, padding {(*after,)}, sizes rounded up:"
            " expected windows of at least stride + padding, because others may hold only padding"
        )
    if kind == "max":
        return x.MaxPool(kernel_shape=tuple(kernel), **windows)
    windows["count_include_pad"] = int(counts_pads)
    return x.AveragePool(kernel_shape=tuple(kernel), **windows)


def pool_whole(x: Any, kind: str) -> Any:
    """Returns the largest element ("max") or the mean ("avg") of each channel."""
    return x.GlobalMaxPool() if kind == "max" else x.GlobalAveragePool()


def remainder(x: Any, y: Any) -> Any:
    """Returns the remainder of floor division of floats; it has the sign of the divisor."""
    rest, zero = x.Mod(y, fmod=1), x.scalar(0)
    apart = rest.Less(zero).Xor(y.Less(zero))
    wrong = apart.And(rest.Equal(zero).Not())
    return wrong.Where(rest.Add(y), rest)


def truncate(x: Any) -> Any:
    """Returns floats rounded towards zero."""
    return x.Sign() * x.Abs().Floor()


def round_half_away(x: Any) -> Any:
    """Returns floats rounded to the nearest integer, halfway values away from zero."""
    size = x.Abs()
    whole = size.Floor()
    return x.Sign() * (whole + (size - whole).GreaterOrEqual(0.5).cast(x.dtype))


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "rsqrt": lambda x: x.Sqrt().Reciprocal(),
    "log2": lambda x: x.Log() * (1 / math.log(2)),
    "log10": lambda x: x.Log() * (1 / math.log(10)),
    "silu": lambda x: x * x.Sigmoid(),
    "mish": lambda x: x * x.Softplus().Tanh(),
    "log_sigmoid": lambda x: x.Neg().Softplus().Neg(),
}
"""Functions of one value that several frameworks have under these names."""


# Windows, pads and channels of convolutions, pools and norms; indices.


def each_axis(values: Any, axes: int, what: str = "windows") -> tuple[int, ...]:
    """Returns one number per axis; a single number is used for all axes."""
    listed = tuple(values) if isinstance(values, list | tuple) else (values,)
    listed = listed * axes if len(listed) == 1 else listed
    if len(listed) != axes or not all(type(each) is int for each in listed):
        refuse(f"attribute {what}={values!r}: expected {axes} integers")
    return listed


def same_pads(kernel: Sequence[int | None], dilations: Sequence[int]) -> tuple[int, ...]:
    """Returns the pads with which a convolution keeps the sizes: first at the start of every axis,
    then at every end. An odd element is added at the end.
    """
    added = [by * ((size or 1) - 1) for by, size in zip(dilations, kernel, strict=True)]
    return (*(each // 2 for each in added), *(each - each // 2 for each in added))


def channels_first(x: Any) -> Any:
    """Returns (N, ..., C) as (N, C, ...)."""
    return x.transpose(0, x.rank - 1, *range(1, x.rank - 1))


def channels_last(x: Any) -> Any:
    """Returns (N, C, ...) as (N, ..., C)."""
    return x.transpose(0, *range(2, x.rank), 1)


def over_channels(x: Any, last: bool, layer: Callable[[Any], Any]) -> Any:
    """Returns ``layer(x)`` for a layer that takes (N, C, ...). ``last``: whether x is (N, ...,
    C).
    """
    return channels_last(layer(channels_first(x))) if last else layer(x)


def slopes(x: Any, slope: Array) -> Any:
    """Returns x with negative values scaled by one slope, or by one slope per channel (axis 1)."""
    return x.PRelu(slope.reshape(-1, *[1] * (x.rank - 2)) if slope.size > 1 else slope)


def stack(values: Sequence[Any], axis: int) -> Any:
    """Returns values of one shape along a new axis."""
    first, *others = (value.unsqueeze(axis) for value in values)
    return first.Concat(*others, axis=axis)


def move_axes(x: Any, sources: Sequence[int], places: Sequence[int]) -> Any:
    """Returns x with its axes ``sources`` moved to ``places``; the other axes keep their order."""
    left = iter(axis for axis in range(x.rank) if axis not in sources)
    moved = dict(zip(places, sources, strict=True))
    perm = [moved[at] if at in moved else next(left) for at in range(x.rank)]
    return x if perm == [*range(x.rank)] else x.transpose(*perm)


def broadcast(values: Sequence[Any]) -> list[Any]:
    """Returns values expanded to their common shape."""
    first, shapes = values[0], {each.type.shape for each in values}
    if len(shapes) == 1 and None not in (first.type.shape or [None]):
        return [*values]
    for each in values[1:]:
        first = first.Expand(each.sizes)
    return [each.Expand(first.sizes) for each in values]


def count_up(count: Any) -> Any:
    """Returns the integers from 0 up to, but not including, an int64 scalar."""
    return count.constant(np.asarray(0, np.int64)).Range(count, 1)


def extreme_index(x: Any, kind: str, axis: int | None, keepdims: bool) -> Any:
    """Returns the index of the first largest ("ArgMax") or smallest element along an axis, or of
    all elements if the axis is None.
    """
    if axis is None:
        return getattr(x.reshape(-1), kind)(axis=0, keepdims=0)
    return getattr(x, kind)(axis=axis, keepdims=int(keepdims))


NEAREST = {
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
    "mode": "nearest",
}
"""The attributes of a Resize that repeats or drops elements (nearest neighbor)."""

PAD_MODES = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
"""ONNX's modes of padding, by the names that PyTorch and Paddle use."""
