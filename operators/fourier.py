"""ONNX's Fourier transforms, by name and meaning: numbers are (..., 1) real or (..., 2) complex."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import define
from onernn.core.ragged import data_of
from onernn.core.sizes import Size
from onernn.core.types import Type
from onernn.operators.rules import ONE, Sizes, at_axis, with_size

_TWO = Size.of(2)


def _number(what: str, given: Array) -> int:
    """A scalar input of at least 1."""
    if given.size != 1 or given.dtype.kind not in "iu" or given.reshape(()) < 1:
        raise ShapeError(f"{what}: expected a number of at least 1, got {given.tolist()}")
    return int(given.reshape(()))


def _numbers_of(x: Array, *, real: bool = False) -> Array:
    """Real or complex numbers without their last axis."""
    if x.ndim < 2 or x.shape[-1] not in (1, 2) or x.dtype.kind != "f":
        raise ShapeError(f"expected floats (..., 1) or (..., 2), got {x.dtype} {x.shape}")
    if real and x.shape[-1] != 1:
        raise ShapeError(f"attribute onesided=1 is of real numbers, got {x.shape}")
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(x: Array, dtype: Any) -> Array:
    """Complex numbers as (..., 2)."""
    return np.stack([x.real, x.imag], -1).astype(dtype, copy=False)


def _along(rank: int, axis: Array | None) -> int:
    """The axis of the signal. The last one holds the parts of a number."""
    at = -2 if axis is None else int(axis.reshape(()))
    if at_axis(at, rank) == rank - 1:
        raise ShapeError(f"axis {at} holds the parts of complex numbers")
    return at_axis(at, rank)


def _dft(at: Any, x: Array, length: Array | None = None, axis: Array | None = None) -> Array:
    """What is longer than ``length`` is cut, what is shorter filled up with zeros."""
    along = _along(x.ndim, axis)
    halved = at.onesided and at.inverse
    if halved and x.shape[-1] != 2:
        raise ShapeError(f"attributes inverse=1 and onesided=1 are of complex numbers: {x.shape}")
    signal = _numbers_of(x, real=at.onesided and not at.inverse)
    whole = 2 * (x.shape[along] - 1) if halved else x.shape[along]
    count = _number("dft_length", np.asarray(whole) if length is None else length)
    if halved and count // 2 + 1 != x.shape[along]:
        raise ShapeError(f"dft_length: {x.shape[along]} frequencies are not those of {count}")
    if halved:
        return np.fft.irfft(signal, count, along).astype(x.dtype, copy=False)[..., None]
    transform = np.fft.ifft if at.inverse else np.fft.rfft if at.onesided else np.fft.fft
    return _parts(transform(signal, count, along), x.dtype)


def _dft_type(
    context: Context, x: Type, length: Type | None = None, axis: Type | None = None
) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    told, onesided, inverse = None, context.at.onesided, context.at.inverse
    along = _along(len(x.shape), None if axis is None else axis.numbers)
    size = x.shape[along]
    if length is not None:
        told = length.sizes
        size = None if told is None else Size.of(told.reshape(()).item())
    elif onesided and inverse and size is not None:
        size = (size - 1) * 2
    if onesided and not inverse and size is not None:
        size = size.floor_div(2) + 1
    return Type(
        x.dtype, (*with_size(x.shape, along, size)[:-1], ONE if onesided and inverse else _TWO)
    )


def _dft_growth(_: Any, x: Any, length: Any = None, axis: Any = None) -> int:
    x = data_of(x)
    along = _along(x.ndim, axis)
    count = x.shape[along] if length is None else _number("dft_length", length)
    rows = x.size // max(x.shape[along], 1)
    return 48 * rows * (2 * max(x.shape[along], count) + 1)


define(
    "DFT",
    kind="mixes",
    inputs="x length? #axis?",
    attributes={"inverse": 0, "onesided": 0},
    mixes=lambda _, rank, length=None, axis=None: (_along(rank, axis),),
    since=17,
    type=_dft_type,
    compute=_dft,
    growth=_dft_growth,
)


def _framing(x: Array, step: Array, window: Array | None, length: Array | None) -> tuple[int, int]:
    """(the length of a frame, how far the next one begins behind it)."""
    if x.ndim != 3:
        raise ShapeError(f"signal: expected (N, T, 1) or (N, T, 2), got {x.shape}")
    sizes = [] if length is None else [_number("frame_length", length)]
    sizes += [] if window is None else [window.size]
    frame = (*sizes, x.shape[1])[0]
    if window is not None and window.shape != (frame,):
        raise ShapeError(f"window: expected ({frame},), got {window.shape}")
    if not 1 <= frame <= x.shape[1]:
        raise ShapeError(f"frames of {frame} in a signal of {x.shape[1]}")
    return frame, _number("frame_step", step)


def _stft(
    at: Any, x: Array, step: Array, window: Array | None = None, length: Array | None = None
) -> Array:
    frame, stride = _framing(x, step, window, length)
    signal = _numbers_of(x, real=bool(at.onesided))
    frames = np.lib.stride_tricks.sliding_window_view(signal, frame, 1)[:, ::stride]
    frames = frames if window is None else frames * window
    return _parts((np.fft.rfft if at.onesided else np.fft.fft)(frames), x.dtype)


def _stft_type(
    context: Context,
    x: Type,
    step: Type,
    window: Type | None = None,
    length: Type | None = None,
) -> Type:
    if x.shape is None:
        return Type(x.dtype)
    batch, size, _ = x.shape
    shape: Sizes = (batch, None, None, _TWO)
    frame = size
    if window is not None:
        frame = window.shape[0] if window.shape else None
    if length is not None:
        frame = None if length.numbers is None else Size.of(length.numbers.item())
    if frame is not None:
        bins = frame.floor_div(2) + 1 if context.at.onesided else frame
        shape = with_size(shape, 2, bins)
        if size is not None and step.numbers is not None:
            frames = (size - frame).floor_div(step.numbers.item()) + 1
            shape = with_size(shape, 1, frames)
    return Type(x.dtype, shape)


def _stft_growth(_: Any, x: Any, step: Any, window: Any = None, length: Any = None) -> int:
    x = data_of(x)
    frame, stride = _framing(x, step, window, length)
    return 64 * len(x) * ((x.shape[1] - frame) // stride + 1) * (frame + 1)


define(
    "STFT",
    kind="mixes",
    inputs="x step window? length?",
    attributes={"onesided": 1},
    since=17,
    type=_stft_type,
    compute=_stft,
    growth=_stft_growth,
)
