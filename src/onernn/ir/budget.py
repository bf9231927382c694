"""Budgets that limit the memory and time that files and graphs take.

Even a small file may declare arrays of any size. So readers ask a `Budget` before they allocate an
array whose size a file declares, or inflate a stream (design/0024).
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from onernn.ir.errors import BudgetError
from onernn.ir.records import NamedTuple

LOADING = 180 * 10**6
"""The number of bytes that loading may take in addition to twice the size of the files.

SECURITY.md promises 200 MB. The other 20 MB are for memory that no reader counts: modules that are
imported late, and memory that the allocator keeps.
"""

_OPERATOR = 2_000
"""The bytes that one operator of a framework takes before it becomes a node."""

STEPS = 500_000
"""The maximum number of operators that the loops and layers of one run may run: this many small
operators take some seconds.
"""

_WORK = 2**18
"""The number of multiplications that take as long as one small operator: about 10 us."""


WORK = 10_000_000
"""The maximum count of `Work` for loading and fusing one model; a step of this count takes 100 ns
to 1 us.

The environment variable ONERNN_MAX_WORK sets a different number.
"""


class Work:
    """A count of the work of readers, passes and type inference: nodes of graphs, terms of sizes.

    A graph of kilobytes may be rebuilt thousands of times, or its sizes may be multiplied until
    each has hundreds of terms. The count is in steps, not in seconds, so that whether a file is
    refused does not depend on the machine. Only one thread may use a count.
    """

    def __init__(self) -> None:
        wanted = os.environ.get("ONERNN_MAX_WORK", "")
        self.most = int(wanted) if wanted.isascii() and wanted.isdigit() else WORK
        self.used = 0

    def spend(self, steps: int) -> None:
        """Adds ``steps`` to the count. Raises `BudgetError` if the count exceeds the limit for a
        model.
        """
        self.used += steps
        if self.used > self.most:
            raise BudgetError(
                f"building its graph takes more than {self.most:,} steps of work; set"
                " ONERNN_MAX_WORK to a larger number to allow more"
            )


_WORKS: ContextVar[Work | None] = ContextVar("work of the model", default=None)


T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Sets a context variable for all code inside the block, and yields its value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def working() -> AbstractContextManager[Work]:
    """Returns a context manager, which yields the `Work` that counts the steps of all code inside
    the block. Nested blocks share the outermost block's count.
    """
    return setting(_WORKS, _WORKS.get() or Work())


def spend(steps: int) -> None:
    """Adds steps to the count of the current `working` block, if there is one."""
    if (work := _WORKS.get()) is not None:
        work.spend(steps)


class Recurrence(NamedTuple):
    """The size of a recurrent layer, which determines how long it takes.

    ``runs``: the number of layers times the number of directions; each of them runs step by step.
    ``work``: the number of multiplications for one row of the layer's input, which equals the
    number of the layer's weights.
    """

    runs: int
    work: int

    def cost(self, steps: int, rows: int) -> int:
        """Returns how many small operators take as long as the layer; ``rows``: the number of input
        rows of all sequences together.
        """
        return self.runs * steps + rows * self.work // _WORK

    @property
    def share(self) -> int:
        """The maximum cost per input row. It is reached if the row is a sequence of one step."""
        return self.runs + self.work // _WORK + 1


class TimeLimit(NamedTuple):
    """A time limit for loading or running a model.

    ``seconds``: the duration that the user set. ``ends``: the value of `time.monotonic` at which
    the limit passes.
    """

    seconds: float
    ends: float

    @classmethod
    def after(cls, seconds: float | None) -> TimeLimit | None:
        """Returns a limit of ``seconds`` from now on, or the current limit if that ends earlier or
        ``seconds`` is None.
        """
        current = _LIMIT.get()
        if seconds is None:
            return current
        ends = time.monotonic() + seconds
        return current if current and current.ends <= ends else cls(seconds, ends)

    @property
    def left(self) -> float:
        """Returns the seconds that remain until the limit."""
        return self.ends - time.monotonic()

    def check(self) -> None:
        """Raises `BudgetError` if the limit has passed."""
        if self.left < 0:
            raise BudgetError(
                f"no result after {self.seconds:g} s; --seconds (seconds=) allows more"
            )


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("time limit", default=None)


def time_limit() -> TimeLimit | None:
    """Returns the time limit of the current `limited_to` block, None if there is none."""
    return _LIMIT.get()


def limited_to(limit: TimeLimit | None) -> AbstractContextManager[object]:
    """Sets the time limit of all work inside the block; None removes the limit.

    Runs check the limit before each operator; the NumPy reference checks it before each step.
    """
    return setting(_LIMIT, limit)


class Budget:
    """The memory and the operators that one load or run may take; only one thread may use a budget.

    ``most``: the maximum number of bytes in total. ``way_out``: the end of messages, which names
    the option that raises the limit. ``steps``: the maximum number of operators that loops and
    layers may run in total.
    """

    def __init__(self, most: int, way_out: str = "", steps: int = STEPS) -> None:
        self.most, self.used, self.way_out = most, 0, way_out
        self.most_steps, self.steps = steps, 0
        self.limit = time_limit()

    def ask(self, size: int, what: str = "it") -> None:
        """Raises `BudgetError` if ``size`` further bytes would exceed the limit."""
        if self.used + size > self.most:
            raise BudgetError(
                f"{what} would take {size:,} bytes; {self.used:,} of at most {self.most:,} are"
                f" taken{self.way_out}"
            )

    def turn(self, operators: int) -> None:
        """Counts the operators of one iteration of a loop, or a layer that takes as long as this
        many operators. Raises `BudgetError` if the count exceeds the limit.
        """
        self.steps += operators
        if self.steps > self.most_steps:
            raise BudgetError(
                f"its loops and layers would run more than {self.most_steps:,} operators;"
                " Session(max_steps=...), --max-steps, allows more"
            )

    def take(self, size: int, what: str = "it") -> None:
        """Counts ``size`` bytes as taken. Raises the errors of `ask`."""
        self.ask(size, what)
        self.used += size


_RUNS: ContextVar[Budget | None] = ContextVar("budget of the run", default=None)


def running() -> Budget:
    """Returns the budget of the current run (`budget_of_run`), or a new one outside of runs."""
    return _RUNS.get() or Budget(usable_memory())


def budget_of_run(most: int, steps: int) -> AbstractContextManager[Budget]:
    """Returns a context manager, which yields a new budget that counts for all code inside the
    block.
    """
    way_out = "; Session(max_bytes=...), --max-bytes, allows more"
    return setting(_RUNS, Budget(most, way_out, steps))


class FileBudget(Budget):
    """A budget for loading a model: twice the size of its files plus a constant; each file counts
    once.

    Readers ask it for all memory that they keep: the bytes of files, arrays, and Python's objects.
    """

    def __init__(self, size: int = 0) -> None:
        super().__init__(size + LOADING)
        self._files: set[tuple[int, int]] = set()
        self._may_widen = size // 2

    def reads(self, file: os.stat_result) -> None:
        """Raises the limit by twice the size of a file, unless the same file was counted before.

        A sparse file can have any size without filling a disk, so `usable_memory` bounds the limit.
        """
        if (key := (file.st_dev, file.st_ino)) not in self._files:
            self._files.add(key)
            self.allow(file.st_size)

    def allow(self, size: int) -> None:
        """Raises the limit by twice the ``size`` of a file or array, at most to `usable_memory`."""
        self._may_widen += size
        self.most = min(self.most + 2 * size, usable_memory())

    def widen(self, size: int) -> None:
        """Raises the limit by twice the ``size`` of 16-bit floats, so that they count like float32.

        The floats count at most as often as the files have bytes: tensors may share bytes, or be
        compressed.
        """
        counted = min(size, self._may_widen)
        self._may_widen -= counted
        self.most = min(self.most + 2 * counted, usable_memory())

    def reads_operators(self, count: int) -> None:
        """Counts the memory of a framework's operators or layers, in addition to the file's bytes,
        until all have become nodes.
        """
        self.take(_OPERATOR * count, f"{count:,} operators")

    def release(self, size: int) -> None:
        """Subtracts bytes that were taken and are free again."""
        self.used -= size

    @contextmanager
    def lent(self, size: int, what: str) -> Iterator[None]:
        """Counts ``size`` bytes as taken until the ``with`` block ends."""
        self.take(size, what)
        yield
        self.release(size)

    def parses_json(self, text: bytes) -> None:
        """Counts the memory of the objects that a JSON text becomes: two bytes of text may become
        an object of sixty bytes.

        The decoded text must fit into the budget as well. It does not stay counted, because it is
        released before the objects are read.
        """
        count = text.count
        objects = 96 * (count(b"[") + count(b",")) + 256 * count(b"{") + 160 * count(b":")
        escapes = count(b"\\")  # each makes an object, and may make characters wider
        strings = 8 * len(text) + 96 * escapes if escapes else text_size(text)
        self.take(objects + strings, "the text as objects")
        self.ask(text_size(text), "the text")


_SHORT = 1000  # for fewer bytes, a search in Python is faster than a call of NumPy


def text_size(text: bytes | memoryview) -> int:
    """Returns the bytes that Python takes for the characters of a decoded UTF-8 text: each takes as
    many bytes as the widest one.
    """
    if len(text) < _SHORT and bytes(text).isascii():
        return len(text)
    largest = int(np.frombuffer(text, np.uint8).max(initial=0))
    return len(text) * (4 if largest >= 0xF0 else 2 if largest >= 0xC4 else 1)


_LOADS: ContextVar[FileBudget | None] = ContextVar("budget of the load", default=None)


def loading(size: int = 0) -> FileBudget:
    """Returns the budget of the current load (`budget_of_load`), or a new one outside of loads.

    ``size``: bytes that a new budget allows in addition to `LOADING`.
    """
    return _LOADS.get() or FileBudget(size)


def budget_of_load() -> AbstractContextManager[object]:
    """Makes all files that are read inside the block share one budget; nested blocks share the
    outermost block's.
    """
    return setting(_LOADS, loading())


def bytes_of(array: Any) -> int:
    """Returns the number of bytes of an array, in which sizes of 0 count as 1.

    An array (2**40, 0) is empty, but its sum over the last axis is not.
    """
    size: int = array.nbytes
    return size or math.prod(max(axis, 1) for axis in array.shape) * array.dtype.itemsize


@cache
def usable_memory() -> int:
    """Returns three quarters of the machine's memory, or of the process's cgroup if that has
    less.
    """
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            whole = min(whole, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such cgroup, or the limit is "max"
            pass
    return whole * 3 // 4


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # None if the C library is not glibc


def return_freed_memory() -> None:
    """Makes glibc return freed memory to the system in 3 ms: glibc would keep, for example, 29 MB
    after a model of 25 MB.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
