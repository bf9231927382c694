"""Windows, pads and channels: shared by the convolutions, pools and norms of several frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onernn.adapters.common.signatures import refuse
from onernn.ir.arrays import Array


def each_axis(values: Any, axes: int, what: str = "windows") -> tuple[int, ...]:
    """Returns a number for each axis; one stands for all."""
    listed = tuple(values) if isinstance(values, list | tuple) else (values,)
    listed = listed * axes if len(listed) == 1 else listed
    if len(listed) != axes or not all(type(each) is int for each in listed):
        refuse(f"attribute {what}={values!r}: expected {axes} integers")
    return listed


def same_pads(kernel: Sequence[int | None], dilations: Sequence[int]) -> tuple[int, ...]:
    """Returns pads, all begins and then all ends, that keep sizes; the odd one is at the end."""
    added = [by * ((size or 1) - 1) for by, size in zip(dilations, kernel, strict=True)]
    return (*(each // 2 for each in added), *(each - each // 2 for each in added))


def channels_first(x: Any) -> Any:
    """Returns (N, ..., C) as (N, C, ...)."""
    return x.transpose(0, x.rank - 1, *range(1, x.rank - 1))


def channels_last(x: Any) -> Any:
    """Returns (N, C, ...) as (N, ..., C)."""
    return x.transpose(0, *range(2, x.rank), 1)


def over_channels(x: Any, last: bool, layer: Callable[[Any], Any]) -> Any:
    """Applies ``layer`` to (N, C, ...); ``last``: the channels are the last axis of x."""
    return channels_last(layer(channels_first(x))) if last else layer(x)


def slopes(x: Any, slope: Array) -> Any:
    """Returns x with one slope below zero, or one for each channel, which is axis 1."""
    return x.PRelu(slope.reshape(-1, *[1] * (x.rank - 2)) if slope.size > 1 else slope)


def stack(values: Sequence[Any], axis: int) -> Any:
    """Returns values of one shape along a new axis."""
    first, *others = (value.unsqueeze(axis) for value in values)
    return first.Concat(*others, axis=axis)


def extreme_index(x: Any, kind: str, axis: int | None, keepdims: bool) -> Any:
    """Returns where the first largest ("ArgMax") or smallest element is; None: of all axes."""
    if axis is None:
        return getattr(x.reshape(-1), kind)(axis=0, keepdims=0)
    return getattr(x, kind)(axis=axis, keepdims=int(keepdims))
