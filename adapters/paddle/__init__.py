"""Paddle: reads its models without Paddle, and works inside a live one."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`optimize`, imported when it is asked for: the reader does not need what it needs."""
    if name == "optimize":
        from onernn.adapters.paddle.live.plugin import optimize

        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
