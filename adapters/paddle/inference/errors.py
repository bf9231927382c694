"""What Paddle raises a RuntimeError for, and who in a program asked."""

from __future__ import annotations

import sys

from onernn.core.errors import OnernnError


class PaddleRuntimeError(OnernnError, RuntimeError):
    """An unknown name, or a tensor that holds nothing yet."""


def asked_by() -> str:
    """The file and line of the program that runs, import machinery and this package left out."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith((__package__, "importlib.")):
            break
        frame = frame.f_back
    return f"asked by {frame.f_code.co_filename}, line {frame.f_lineno}"
