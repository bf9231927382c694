"""NumPy kernels of the canonical operators."""

from onernn.runtime.kernels import (
    control,
    dense,
    elementwise,
    recurrent,
    reducing,
    sentences,
    sequence,
    shaping,
)
from onernn.runtime.kernels.registry import KERNELS

__all__ = [
    "KERNELS",
    "control",
    "dense",
    "elementwise",
    "recurrent",
    "reducing",
    "sentences",
    "sequence",
    "shaping",
]
