"""The table: Paddle's operators -> canonical ones. Importing it registers every rule.

Formulas, slots and defaults: Paddle's operator definitions (REGISTER_OPERATOR, *OpMaker) of 2.6.
Which LoD an output gets: ShareLoD in their InferShape, measured with 2.6.2.
"""

from __future__ import annotations

from onernn.adapters.paddle.lower import (
    arithmetic,
    arrays,
    control,
    convolution,
    dygraph,
    filling,
    quantized,
    recurrent,
    rows,
    sequences,
    shaping,
)
from onernn.adapters.paddle.lower.rules import RULES

__all__ = [
    "RULES",
    "arithmetic",
    "arrays",
    "control",
    "convolution",
    "dygraph",
    "filling",
    "quantized",
    "recurrent",
    "rows",
    "sequences",
    "shaping",
]
