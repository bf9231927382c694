"""What no code can be faster than here: operations at the peak, or bytes at the bandwidth.

`roof` is what products take one by one; this is what is left where every product were ideal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.roof import Seconds, peak
from benchmarks.tasks import GATES, Task

SIZES = {"f32": 4, "bf16": 2, "u8": 1}
"""Bytes of a weight."""
SECONDS = 0.005
"""Of one measurement of one size; every turn measures it again, and the best counts."""

Rate = Callable[[int, int], float]
"""Bytes a second, by the bytes that are read again and again, and threads."""


class Limit(NamedTuple):
    seconds: float
    of: Literal["operations", "bytes"]


def limit(task: Task, of: Seconds, rate: Rate) -> Limit:
    """The slower of both. Each step reads the recurrent weights again, for all rows at once; input
    weights, x and y are read once. Training reads the recurrent weights again for the gradient.
    """
    width, directions, size = task.hidden_size, task.directions, SIZES[task.dtype]
    recurrent = GATES[task.cell] * width * width * size
    once = GATES[task.cell] * width * size * directions * sum(task.input_sizes)
    once += 4 * sum(task.lengths) * (task.input_size + directions * width)
    reads = task.time * directions * task.layers * (2 if task.kind == "training" else 1)
    moved = reads * recurrent / rate(recurrent, task.threads) + once / rate(once, task.threads)
    computed = task.flops / peak(task.dtype, task.threads, of)
    return Limit(moved, "bytes") if moved > computed else Limit(computed, "operations")


class Reads:
    """Bandwidth of reading what is as near as its size allows: NumPy's maximum, best call so far.

    Each thread reads its part of the bytes; caches nearer than 200 kB are faster than this tells,
    but there operations are the limit.
    """

    def __init__(self) -> None:
        self._best: dict[tuple[int, int], float] = {}

    def best(self, size: int, threads: int) -> float:
        """Bytes a second; measured now where it never was."""
        found = self._best.get((size, threads))
        return self.measured(size, threads) if found is None else found

    def measured(self, size: int, threads: int) -> float:
        """Bytes a second, after measuring some calls more."""
        parts = [np.ones(-(-size // (8 * threads)), np.int64) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            rate = sum(pool.map(_rate, parts))
        best = self._best[size, threads] = max(rate, self._best.get((size, threads), 0.0))
        return best


def _rate(part: np.ndarray) -> float:
    """Bytes a second of reading an array again and again, most of the time without Python."""
    again = np.broadcast_to(part, (1 + int(1e8 * SECONDS) // part.size, part.size))
    read: list[Callable[[], object]] = [
        partial(np.max, again.view(kind), axis=1) for kind in (np.int64, np.int32)
    ]
    best, end = np.inf, time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == np.inf:
        for call in read:
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return again.nbytes / best
