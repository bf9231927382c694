"""Definitions of the canonical operators, one per operator."""

from onernn.ir.operator import OPERATORS, Operator, op
from onernn.ops import (
    control,
    elementwise,
    growth,
    indexing,
    products,
    quantized,
    reducing,
    sampling,
    sequences,
    shaping,
    signals,
    windows,
)

__all__ = [
    "OPERATORS",
    "Operator",
    "control",
    "elementwise",
    "growth",
    "indexing",
    "op",
    "products",
    "quantized",
    "reducing",
    "sampling",
    "sequences",
    "shaping",
    "signals",
    "windows",
]
