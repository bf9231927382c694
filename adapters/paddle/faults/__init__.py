"""The known faults of Paddle's own recurrent path."""

from __future__ import annotations

from onernn.adapters.paddle.faults.detection import find_faults

__all__ = ["find_faults"]
