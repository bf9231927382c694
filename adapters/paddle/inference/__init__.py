"""The API of `paddle.inference`, implemented by onernn without Paddle.

Use ``from onernn.adapters.paddle import inference as paddle_infer``, or call `install`. After
`install`, ``import paddle`` imports this API. Names and behaviour are the same as in Paddle 2.6.2
(docs/reference/paddle_inference.md lists each name).
"""

from __future__ import annotations

from typing import Any

from onernn.adapters.paddle.inference.config import MODULE_NOT_HERE
from onernn.adapters.paddle.inference.served_modules import SERVED, install

__all__ = [*SERVED["paddle.inference"], "install"]

globals().update(SERVED["paddle.inference"])


def __getattr__(name: str) -> Any:
    why = MODULE_NOT_HERE.get(name)
    reason = f"is not supported: {why}" if why else "is not a name of Paddle 2.6.2"
    raise AttributeError(f"paddle.inference.{name} {reason}")
