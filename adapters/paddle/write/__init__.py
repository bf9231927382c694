"""A graph of canonical operators as a Paddle program."""

from __future__ import annotations

from onernn.adapters.paddle.write.graph import Place, write_paddle

__all__ = ["Place", "write_paddle"]
