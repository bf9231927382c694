"""Which Paddle's behaviour this is."""

from __future__ import annotations

PADDLE_VERSION = "2.6.2"


def get_version() -> str:
    """Begins as that of Paddle."""
    return f"version: {PADDLE_VERSION}\ncommit: onernn\nbranch: onernn\n"


def get_trt_compile_version() -> tuple[int, int, int]:
    """Zeros: there is no TensorRT."""
    return 0, 0, 0


def get_trt_runtime_version() -> tuple[int, int, int]:
    return 0, 0, 0
