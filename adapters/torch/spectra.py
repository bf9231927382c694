"""The rules of aten's operators on complex numbers: Fourier transforms of signals and their
inverses.

A complex value is stored as floats (..., 2): the last axis has the real and the imaginary part.

Formulas: documentation of torch.NAME, and aten/src/ATen/native/SpectralOps.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.torch.table import (
    END,
    WEIGHTS,
    Scalar,
    TorchTensor,
    torch,
)
from onernn.ir.arrays import Array

_SMALLEST_SUM = 1e-11
"""PyTorch's `istft` raises an error if a sum of squared windows is smaller."""
_MOST_PARTS, _LONGEST = 32, 2**16
"""The maximum number of overlapping frames, and the maximum length of a frame."""


@torch(views="view_as_real view_as_complex resolve_conj resolve_neg", complex=True)
def same_parts(self):
    return self


def _part(x: TorchTensor, part: int) -> TorchTensor:
    return x.Gather(part, axis=-1)


def _join(real: Any, imaginary: Any) -> Any:
    return real.unsqueeze(real.rank).Concat(imaginary.unsqueeze(real.rank), axis=-1)


@torch(views="real imag", complex=True)
def part(self, *, op):
    if not op.is_complex("self"):
        return self
    return _part(self, int(op.name == "imag"))


@torch("abs", complex=True)
def magnitude(self, *, op):
    return self.ReduceL2([-1], keepdims=0) if op.is_complex("self") else self.promote().Abs()


@torch("conj_physical _conj_physical", views="conj _conj", complex=True)
def conjugate(self, *, op):
    return self * self.constant([1, -1]) if op.is_complex("self") else self


@torch("complex", complex=True)
def from_parts(real, imag):
    return _join(real, imag)


@torch("polar", complex=True)
def from_angle(abs, angle):
    return _join(abs * angle.Cos(), abs * angle.Sin())


def multiply_complex(x: TorchTensor, y: TorchTensor) -> Any:
    """Returns the product of two complex values, or of a complex value and real numbers."""
    op = x.op
    one, other = (x, y) if op.is_complex(x.slot) else (y, x)
    if not op.is_complex(other.slot):
        real = other.cast(one.dtype)
        return one * (real.unsqueeze(real.rank) if real.rank else real)
    (a, b), (c, d) = ((_part(each, 0), _part(each, 1)) for each in (x, y))
    return _join(a * c - b * d, a * d + b * c)


# Frames of a signal and their spectra.

_WINDOWS = {
    "hann_window": (0.5, 0.5, 0.0),
    "hamming_window": (0.54, 0.46, 0.0),
    "blackman_window": (0.42, 0.5, 0.08),
}
"""The coefficients (a, b, c) of windows a - b * cos(x) + c * cos(2x)."""


@torch(" ".join(f"{name} {name}.periodic" for name in _WINDOWS))
def window(*, window_length=Scalar(), periodic=True, op):
    a, b, c = _WINDOWS[op.name]
    count = int(window_length)
    if count < 1:
        refuse(f"argument window_length={count}: expected 1 or more")
    op.fill([count], 1, op.result_dtype(), "window")  # only checks the memory budget
    angle = np.arange(count) * (2 * math.pi / max(count if periodic else count - 1, 1))
    array = a - b * np.cos(angle) + c * np.cos(2 * angle) if count > 1 else np.ones(1)
    return TorchTensor(op, op.constant(array.astype(op.result_dtype())))


_NORMS = {None: 0, "backward": 0}


@torch("fft_rfft", complex=True)
def fft_rfft(self, *, n=Scalar(), dim=-1, norm=OneOf(None, _NORMS), op):
    """Returns the frequencies from 0 to n / 2 of real signals."""
    return self.unsqueeze(self.rank).DFT(n, op.axis(dim), onesided=1)


@torch("fft_irfft", complex=True)
def fft_irfft(self, *, n=Scalar(), dim=-1, norm=OneOf(None, _NORMS), op):
    """Returns the real signals, n samples long, whose frequencies from 0 to n / 2 are given."""
    axis = dim + self.rank - 1 if dim < 0 else dim
    x = self
    if n is not None:
        x = x.Slice([0], [n // 2 + 1], [axis])
    return x.DFT(n, axis, inverse=1, onesided=1).squeeze(-1)


def _lengths(n_fft: Any, hop: Any, win: Any) -> tuple[int, int, int]:
    frame, hop = int(n_fft), int(n_fft // 4 if hop is None else hop)
    window = frame if win is None else int(win)
    if not (hop > 0 and 0 < window <= frame):
        refuse(
            f"arguments n_fft={frame}, hop_length={hop}, win_length={window}: expected hop_length"
            " of 1 or more, and win_length from 1 to n_fft"
        )
    return frame, hop, window


def _center(window: Any, x: TorchTensor, length: int, frame: int) -> TorchTensor:
    if window is None:
        window = x.fill([length], 1)
    before = (frame - length) // 2
    after = frame - length - before
    return window.Pad([before, after]) if length < frame else window


@torch("stft", align_to_window=False, complex=True)
def stft(
    self,
    window=None,
    *,
    n_fft=Scalar(),
    hop_length=Scalar(),
    win_length=Scalar(),
    normalized=False,
    onesided=None,
    return_complex=True,
    op,
):
    """Returns spectra (N, frequencies, frames), or (frequencies, frames) for one signal.

    The program has already padded the signal. ``return_complex`` has no effect, because complex
    values are stored as floats (..., 2).
    """
    if op.is_complex("self") or op.is_complex("window"):
        refuse("expected a real signal and a real window, got complex values")
    frame, hop, length = _lengths(n_fft, hop_length, win_length)
    signal = self if self.rank == 2 else self.unsqueeze(0)
    frames = signal.unsqueeze(2).STFT(
        hop,
        _center(window, self, length, frame),
        frame,
        onesided=int(onesided is None or onesided),
    )
    if normalized:
        frames = frames * frame**-0.5
    spectra = frames.transpose(0, 2, 1, 3)
    return spectra if self.rank == 2 else spectra.squeeze(0)


@torch("istft", return_complex=False, complex=True)
def istft(
    self,
    window=None,
    *,
    n_fft=Scalar(),
    hop_length=Scalar(),
    win_length=Scalar(),
    center=True,
    normalized=False,
    onesided=None,
    length=None,
    op,
):
    """Returns signals (N, T), or (T,), from spectra (N, frequencies, frames).

    Each frame is transformed, multiplied by the window, and added at its original position. The sum
    is divided by the sum of the squared windows at the same positions.
    """
    frame, hop, wide = _lengths(n_fft, hop_length, win_length)
    if hop > wide or -(-frame // hop) > _MOST_PARTS or frame > _LONGEST:
        refuse(
            f"arguments hop_length={hop}, win_length={wide}, n_fft={frame}: expected hop_length up"
            f" to win_length, n_fft up to {_LONGEST}, and at most {_MOST_PARTS} hops in it"
        )
    spectra = self if self.rank == 4 else self.unsqueeze(0)
    spectra.tie(1, WEIGHTS)
    bins = op.builder.find_exported_size(spectra.dims[1])
    if onesided is None:
        onesided = bins != frame
    if bins != (expected := frame // 2 + 1 if onesided else frame):
        refuse(f"frequencies: expected {expected} for n_fft={frame}, got {bins}")
    if not onesided:
        spectra = spectra.Slice([0], [frame // 2 + 1], [1])
    weights = _center(window, self, wide, frame)
    frames = spectra.transpose(0, 2, 1, 3).DFT(frame, 2, inverse=1, onesided=1).squeeze(3)
    if normalized:
        frames = frames * frame**0.5
    begin, count = frame // 2 if center else 0, None
    end = -begin if begin else END
    if length is not None:
        op.builder.tie_numbers([length], op.why)
        spectra.tie(2)
        count, end = op.builder.find_exported_size(spectra.dims[2]), begin + length
    squares = weights.array**2
    _check_sums(squares, hop, count, begin, end)
    sizes = spectra.constant(np.array([1])).join(spectra.size(2), [frame])
    scale = spectra.constant(squares).Expand(sizes)
    signal, total = (
        _overlap(each, frame, hop).Slice([begin], [end], [1]) for each in (frames * weights, scale)
    )
    signal = signal / total
    if length is not None and signal.shape[1] != length:  # zeros after the last frame
        signal = signal.Pad([0, 0, 0, length]).Slice([0], [length], [1])
    return signal if self.rank == 4 else signal.squeeze(0)


def _check_sums(squares: Array, hop: int, count: int | None, begin: int, end: int) -> None:
    """Raises `UnsupportedError` if a sum of squared windows is too small; PyTorch also fails then.

    ``count``: the number of frames, None for a dynamic number. The sums in the middle of a long
    signal repeat, so a limited number of frames is checked.
    """
    most = 2 * -(-len(squares) // hop) + 1
    counts = range(1, most + 1) if count is None else [min(count, most)]
    if count is not None and end > 0:
        end = max(end - hop * max(count - most, 0), min(end, len(squares)))
    for count in counts:
        total = np.zeros(len(squares) + hop * (count - 1))
        for first in range(0, hop * count, hop):
            total[first : first + len(squares)] += squares
        if total[begin:end].min(initial=1) <= _SMALLEST_SUM:
            refuse(
                f"window: expected sums of its squares above {_SMALLEST_SUM} at each sample, as"
                f" PyTorch does; {count} overlapping frames have a smaller sum"
            )


def _overlap(frames: Any, frame: int, hop: int) -> Any:
    """Returns the sum (N, T) of overlapping frames (N, frames, frame), ``hop`` samples apart.

    Each frame is cut into parts of ``hop`` samples. The k-th parts of all frames make one signal,
    which is shifted by k * hop and added.
    """
    parts = -(-frame // hop)
    more = parts * hop - frame
    if more:
        frames = frames.Pad([0, 0, 0, 0, 0, more])
    total: Any = None
    for k in range(parts):
        part = frames.Slice([k * hop], [(k + 1) * hop], [2]).Flatten(axis=1)
        part = part.Pad([0, k * hop, 0, (parts - 1 - k) * hop])
        total = part if total is None else total + part
    return total.Slice([0], [-more], [1]) if more else total
