"""The operators that C++ is generated for, by name."""

from onernn.emit.operators import (
    dense,
    elementwise,
    recurrent,
    reducing,
    sentences,
    shaping,
    sizing,
)
from onernn.emit.operators.registry import OPERATORS, Code, Operator

__all__ = [
    "OPERATORS",
    "Code",
    "Operator",
    "dense",
    "elementwise",
    "recurrent",
    "reducing",
    "sentences",
    "shaping",
    "sizing",
]
