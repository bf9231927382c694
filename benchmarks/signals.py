"""Generated inputs for models of audio and images, which resemble real recordings and scans."""

from __future__ import annotations

import numpy as np

from benchmarks.tasks import Array

RATE = 16000


def speech(count: int, rng: np.random.Generator) -> Array:
    """Returns audio samples at 16 kHz that resemble speech: voiced syllables of changing pitch,
    hisses, pauses and some noise.
    """
    t = np.arange(count) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t) + 10 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voiced = sum(np.sin(k * phase) / (1 + abs(k - 5 - 3 * np.sin(9 * t))) for k in range(1, 25))
    hiss = np.diff(rng.normal(size=count + 1))
    syllable = np.clip(np.sin(2 * np.pi * 2.3 * t), 0, None) ** 0.7
    between = np.clip(np.sin(2 * np.pi * 1.15 * t + 2), 0, None) ** 4
    pause = (np.sin(2 * np.pi * 0.35 * t) > -0.6).astype(float)
    made = pause * (0.12 * syllable * voiced + 0.05 * between * hiss)
    return (made + 0.002 * rng.normal(size=count)).astype(np.float32)


def frames(steps: int, width: int, rng: np.random.Generator) -> Array:
    """Returns speech cut into frames, as an array (steps, width)."""
    return speech(steps * width, rng).reshape(steps, width)


def magnitudes(steps: int, width: int, rng: np.random.Generator) -> Array:
    """Returns the magnitude spectra of speech, as an array (steps, width). The frames are windowed
    and overlap by half.
    """
    size = 2 * (width - 1)
    sound = speech((steps + 1) * size // 2, rng)
    starts = np.arange(steps) * (size // 2)
    cut = sound[starts[:, None] + np.arange(size)] * np.hanning(size)
    return np.abs(np.fft.rfft(cut)).astype(np.float32)


def log_powers(steps: int, width: int, rng: np.random.Generator) -> Array:
    return np.log10(np.maximum(magnitudes(steps, width, rng) ** 2, 1e-12)).astype(np.float32)


def image(width: int, height: int, rng: np.random.Generator) -> Array:
    """Returns an image of dark strokes on paper, with values from -1 to 1. The values are in the
    order of (height, width), but the array has the shape (width, height).
    """
    y, x = np.mgrid[:height, :width].astype(float)
    paper = 0.85 + 0.05 * np.sin(x / 9) + 0.03 * rng.normal(size=(height, width))
    for begin in np.arange(6, max(width - 18, 7), 22):
        for _ in range(3):
            (x1, x2), (y1, y2) = begin + rng.uniform(0, 16, 2), height * rng.uniform(0.15, 0.85, 2)
            along = np.hypot(x2 - x1, y2 - y1) + 1e-6
            at = np.clip(((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / along**2, 0, 1)
            apart = np.hypot(x - x1 - at * (x2 - x1), y - y1 - at * (y2 - y1))
            paper -= 0.8 * np.exp(-((apart / 1.8) ** 2))
    return (2 * np.clip(paper, 0, 1) - 1).astype(np.float32).reshape(width, height)


SIGNALS = {"frames": frames, "magnitudes": magnitudes, "log_powers": log_powers, "image": image}
