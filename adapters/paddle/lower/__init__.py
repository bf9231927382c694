"""A Paddle program as a graph of canonical operators."""

from __future__ import annotations

from onernn.adapters.paddle.lower.program import load_paddle, lower
from onernn.adapters.paddle.lower.table import RULES

__all__ = ["RULES", "load_paddle", "lower"]
