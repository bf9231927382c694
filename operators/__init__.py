"""What each canonical operator is: one record an operator, by name."""

from onernn.core.operator import OPERATORS, Operator, define
from onernn.operators import (
    control,
    elementwise,
    indexing,
    offsets,
    products,
    reducing,
    rnn,
    sequences,
    shaping,
    sizing,
)

__all__ = [
    "OPERATORS",
    "Operator",
    "control",
    "define",
    "elementwise",
    "indexing",
    "offsets",
    "products",
    "reducing",
    "rnn",
    "sequences",
    "shaping",
    "sizing",
]
