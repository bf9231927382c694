"""A lower limit for the time of a task on this machine: the operations at peak speed, or the bytes
at the memory's bandwidth.

`roof` adds the measured times of the task's matrix products. The limit of this module assumes that
every product is ideal, so it is lower than the roof.
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
"""The size of a weight in bytes, by dtype."""
SECONDS = 0.005
"""The duration of one measurement of a size. Each turn measures again, and the best result counts.
"""

Rate = Callable[[int, int], float]
"""A function from a size in bytes and a number of threads to the bytes per second with which the
threads repeatedly read so many bytes.
"""


class Limit(NamedTuple):
    seconds: float
    of: Literal["operations", "bytes"]


def limit(task: Task, of: Seconds, rate: Rate) -> Limit:
    """Returns the larger of two times: the time of the operations and the time to read the bytes.

    Each step reads the recurrent weights once for all sequences. Input weights, x and y are read
    once. Training reads the recurrent weights again for the gradient. ``of``: returns the seconds
    of a matrix product. ``rate``: returns the bytes per second.
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
    """The measured bandwidth of reading arrays from the caches or memory that can hold them.

    Each thread computes NumPy's maximum of its part of the bytes, and the fastest call counts. For
    less than 200 kB the caches are faster than this measurement, but then the operations are the
    limit.
    """

    def __init__(self) -> None:
        self._best: dict[tuple[int, int], float] = {}

    def best(self, size: int, threads: int) -> float:
        """Returns the bytes per second, and measures them if this was not done yet."""
        found = self._best.get((size, threads))
        return self.measured(size, threads) if found is None else found

    def measured(self, size: int, threads: int) -> float:
        """Measures some further calls, and returns the best bytes per second of all calls."""
        parts = [np.ones(-(-size // (8 * threads)), np.int64) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            rate = sum(pool.map(_rate, parts))
        best = self._best[size, threads] = max(rate, self._best.get((size, threads), 0.0))
        return best


def _rate(part: np.ndarray) -> float:
    """Returns the bytes per second with which one thread repeatedly reads an array."""
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
