"""Numbers of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np


def counted(*shape: int, start: int = 1) -> np.ndarray:
    """start, start + 1, ...: every number is told apart from the others and their negatives."""
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def uniform(*shape: int, seed: Any = 0, bound: float = 1.0) -> np.ndarray:
    """float32 within the bound."""
    return np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)
