"""Bounds for the memory and time that files and graphs cost: code asks before it takes more.

Sizes that stand in a file cost its author nothing. No array of that size is allocated, and no
stream inflated, before a `Budget` was asked (design/0024).
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.ir.errors import BudgetError

LOADING = 180 * 10**6
"""Bytes that loading may take besides twice the size of the files.

SECURITY.md promises 200 MB, which also cover what no reader counts: modules that are imported late,
and what the allocator keeps.
"""


STEPS = 500_000
"""Operators that the loops and layers of a run may run in all: the smallest take some seconds."""

_WORK = 2**18
"""Multiplications that take as long as a small operator: some 10 us."""


WORK = 10_000_000
"""Steps of work that building one model may take, some 100 ns to 1 us each; see `working`.

ONERNN_MAX_WORK in the environment allows another number.
"""


class Work:
    """Counts what readers, passes and inference go through: nodes of graphs, terms of sizes.

    A graph of kilobytes may be rebuilt thousands of times, or sizes be multiplied until each has
    hundreds of terms. Steps are counted, not seconds, so that a file is refused on each machine or
    on none. Used by one thread.
    """

    def __init__(self) -> None:
        wanted = os.environ.get("ONERNN_MAX_WORK", "")
        self.most = int(wanted) if wanted.isascii() and wanted.isdigit() else WORK
        self.used = 0

    def spend(self, steps: int) -> None:
        """Counts steps. Raises `BudgetError` where they are more than a model may take."""
        self.used += steps
        if self.used > self.most:
            raise BudgetError(
                f"building its graph takes more than {self.most:,} steps of work; a larger number"
                " in ONERNN_MAX_WORK allows more"
            )


_WORKS: ContextVar[Work | None] = ContextVar("work of the model", default=None)


@contextmanager
def working() -> Iterator[Work]:
    """One count of work for all that is built inside; that of outside, if there is one."""
    work = _WORKS.get() or Work()
    token = _WORKS.set(work)
    try:
        yield work
    finally:
        _WORKS.reset(token)


def spend(steps: int) -> None:
    """Counts steps of work, if a model is being built."""
    if (work := _WORKS.get()) is not None:
        work.spend(steps)


class Recurrence(NamedTuple):
    """The size of a recurrent layer, which decides how long it takes.

    ``runs``: layers times directions, each of which goes step by step. ``work``: multiplications
    for one row of its input, which are as many as its weights have numbers.
    """

    runs: int
    work: int

    def cost(self, steps: int, rows: int) -> int:
        """Returns the number of operators that take as long; ``rows``: of all sequences
        together.
        """
        return self.runs * steps + rows * self.work // _WORK

    @property
    def share(self) -> int:
        """Most that a row costs: one sequence of one step."""
        return self.runs + self.work // _WORK + 1


class Budget:
    """Bytes that may still be taken, ``most`` in all; ``way_out``: what allows more.

    ``steps``: operators that loops and layers may run in all. One object for one load or one run,
    used by one thread.
    """

    def __init__(self, most: int, way_out: str = "", steps: int = STEPS) -> None:
        self.most, self.used, self.way_out = most, 0, way_out
        self.most_steps, self.steps = steps, 0

    def ask(self, size: int, what: str = "it") -> None:
        """Raises `BudgetError` where ``size`` bytes more would be too many."""
        if self.used + size > self.most:
            raise BudgetError(
                f"{what} would take {size:,} bytes; {self.used:,} of at most {self.most:,} are"
                f" taken{self.way_out}"
            )

    def turn(self, operators: int) -> None:
        """Counts a turn of a loop with so many operators, or a layer that takes as long."""
        self.steps += operators
        if self.steps > self.most_steps:
            raise BudgetError(
                f"its loops and layers would run more than {self.most_steps:,} operators;"
                " Session(max_steps=...), --max-steps, allows more"
            )

    def take(self, size: int, what: str = "it") -> None:
        """Asks for ``size`` bytes, and counts them."""
        self.ask(size, what)
        self.used += size


_RUNS: ContextVar[Budget | None] = ContextVar("budget of the run", default=None)


def running() -> Budget:
    """Returns the budget of the run that this code is part of; a new one outside of runs."""
    return _RUNS.get() or Budget(usable_memory())


@contextmanager
def budget_of_run(most: int, steps: int) -> Iterator[Budget]:
    """A budget for what runs inside."""
    budget = Budget(most, "; Session(max_bytes=...), --max-bytes, allows more", steps)
    token = _RUNS.set(budget)
    try:
        yield budget
    finally:
        _RUNS.reset(token)


class FileBudget(Budget):
    """A budget for loading a model: twice the size of its files, each counted once, and some.

    Readers ask it for all that they keep: the bytes of files, arrays, and Python's objects.
    """

    def __init__(self, size: int = 0) -> None:
        super().__init__(size + LOADING)
        self._files: set[tuple[int, int]] = set()

    def reads(self, file: os.stat_result) -> None:
        """A file more; the same one under another name gives nothing more.

        A sparse file has any size and fills no disk: never more than the machine's memory.
        """
        if (key := (file.st_dev, file.st_ino)) not in self._files:
            self._files.add(key)
            self.allow(2 * file.st_size)

    def allow(self, more: int) -> None:
        """Allows so many bytes more: for what a file holds."""
        self.most = min(self.most + more, usable_memory())

    def release(self, size: int) -> None:
        """Gives back bytes that were taken and are free again."""
        self.used -= size

    @contextmanager
    def lent(self, size: int, what: str) -> Iterator[None]:
        """Bytes that are taken until the block ends."""
        self.take(size, what)
        yield
        self.release(size)

    def parses_json(self, text: bytes) -> None:
        """Takes the objects that a text in JSON becomes: two bytes may become sixty.

        Its decoded text is asked for only: it goes before the objects are read.
        """
        count = text.count
        objects = 96 * (count(b"[") + count(b",")) + 256 * count(b"{") + 160 * count(b":")
        escapes = count(b"\\")  # each is a piece of a string, and may make all of it wide
        strings = 8 * len(text) + 96 * escapes if escapes else text_size(text)
        self.take(objects + strings, "the text as objects")
        self.ask(text_size(text), "the text")


def text_size(text: bytes | memoryview) -> int:
    """Returns the bytes of a decoded text: one wide character makes all of them wide."""
    largest = int(np.frombuffer(text, np.uint8).max(initial=0))
    return len(text) * (4 if largest >= 0xF0 else 2 if largest >= 0xC4 else 1)


_LOADS: ContextVar[FileBudget | None] = ContextVar("budget of the load", default=None)


def loading(size: int = 0) -> FileBudget:
    """Returns the budget of the load that this code is part of; outside of loads a new one.

    ``size``: bytes that a new one allows besides those that are always allowed.
    """
    return _LOADS.get() or FileBudget(size)


@contextmanager
def budget_of_load() -> Iterator[None]:
    """One budget for all files that are read inside: that of a load which is under way, or a new
    one.
    """
    token = _LOADS.set(loading())
    try:
        yield
    finally:
        _LOADS.reset(token)


def bytes_of(array: Any) -> int:
    """Returns the bytes of an array; where a size is 0, the bytes by its other sizes.

    (2**40, 0) is empty, but its sum over the last axis is not.
    """
    size: int = array.nbytes
    return size or math.prod(max(axis, 1) for axis in array.shape) * array.dtype.itemsize


@cache
def usable_memory() -> int:
    """Returns three quarters of the memory that this process may use: the machine's, or its
    cgroup's.
    """
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            whole = min(whole, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            pass
    return whole * 3 // 4


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # None: another C library


def return_freed_memory() -> None:
    """Gives the system what was freed: glibc keeps it, 29 MB behind a model of 25 MB, for 3 ms."""
    if _malloc_trim is not None:
        _malloc_trim(0)
