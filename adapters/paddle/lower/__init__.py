"""A Paddle program as a graph of canonical operators."""

from __future__ import annotations

from onernn.adapters.paddle.lower.program import load_paddle, lower

__all__ = ["load_paddle", "lower"]
