"""Memory that executions use again: aligned bytes, and objects that one thread has at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from onernn.ir.arrays import Array

_T = TypeVar("_T")

ALIGNMENT = 64  # a cache line, and the widest vector


def aligned(nbytes: int) -> Array:
    """Uninitialised bytes that start on a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


LARGEST_KEPT = 1 << 24
"""Bytes of the largest array that is used again: larger ones hold much, and get huge pages."""


class Buffers:
    """Arrays of one execution at a time, used again by the next one.

    The allocator returns some MB to the system at the end of a call, and asks for them again, page
    by page, in the next: 2 of 10 ms for 1028 words and 256 units.
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Uninitialised; it overwrites what this name was before."""
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if nbytes > LARGEST_KEPT:
            return np.empty(shape, dtype)
        held = self._held.get(name)
        if held is None or len(held) < nbytes:
            held = self._held[name] = aligned(nbytes)
        return held[:nbytes].view(dtype).reshape(shape)

    def gathered(self, name: str, words: Array, rows: Array) -> Array:
        """``words[rows]``, each of them (W, C); the rows are in range."""
        out = self.array(name, (len(rows), words.shape[1]), words.dtype)
        return np.take(words, rows, axis=0, out=out, mode="clip")


BUFFERS: deque[Buffers] = deque(maxlen=8)
"""Buffers that nobody has now, for any layer: those used last are still in the cache."""


@contextmanager
def borrowed(idle: deque[_T], make: Callable[[], _T]) -> Iterator[_T]:
    """One that nobody else has, or a new one; it waits for the next one afterwards."""
    try:
        one = idle.pop()
    except IndexError:
        one = make()
    try:
        yield one
    finally:
        idle.append(one)
