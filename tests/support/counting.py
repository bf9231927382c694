"""How much work something is, told by counting: no clock of a busy machine has a say."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(act: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, are called meanwhile; what it raises comes out."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return counted


def memory_peak(act: Callable[[], Any]) -> int:
    """The most bytes that Python's objects and NumPy's arrays take meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
