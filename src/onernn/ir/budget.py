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

from onernn.ir.errors import BudgetError

LOADING = 200 * 10**6
"""Bytes that loading may take besides twice the size of the files."""


STEPS = 500_000
"""Operators that the loops and layers of a run may run in all: the smallest take some seconds."""

_WORK = 2**18
"""Multiplications that take as long as a small operator: some 10 us."""


class Recurrence(NamedTuple):
    """The size of a recurrent layer, which decides how long it takes.

    ``runs``: layers times directions, each of which goes step by step. ``work``: multiplications
    for one row of its input, which are as many as its weights have numbers.
    """

    runs: int
    work: int

    def cost(self, steps: int, rows: int) -> int:
        """The number of operators that take as long; ``rows``: of all sequences together."""
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
    """The budget of the run that this code is part of; a new one outside of runs."""
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
    """A budget for loading a model: twice the size of its files, each counted once, and some."""

    def __init__(self, size: int = 0) -> None:
        super().__init__(size + LOADING)
        self._files: set[tuple[int, int]] = set()

    def reads(self, file: os.stat_result) -> None:
        """A file more; the same one under another name gives nothing more.

        A sparse file has any size and fills no disk: never more than the machine's memory.
        """
        if (key := (file.st_dev, file.st_ino)) not in self._files:
            self._files.add(key)
            self.most = min(self.most + 2 * file.st_size, usable_memory())

    def parses_json(self, text: bytes) -> None:
        """Asks for the objects that a text in JSON becomes: two bytes may become sixty."""
        objects = 64 * (text.count(b"[") + text.count(b",")) + 256 * text.count(b"{")
        self.ask(objects, "the text as objects")


_LOADS: ContextVar[FileBudget | None] = ContextVar("budget of the load", default=None)


def loading() -> FileBudget:
    """The budget of the model that is being loaded; a new one for a file outside of a load."""
    return _LOADS.get() or FileBudget()


@contextmanager
def budget_of_load() -> Iterator[None]:
    """One budget for all files that are read inside."""
    token = _LOADS.set(FileBudget())
    try:
        yield
    finally:
        _LOADS.reset(token)


def bytes_of(array: Any) -> int:
    """The bytes of an array; where a size is 0, the bytes by its other sizes.

    (2**40, 0) is empty, but its sum over the last axis is not.
    """
    size: int = array.nbytes
    return size or math.prod(max(axis, 1) for axis in array.shape) * array.dtype.itemsize


@cache
def usable_memory() -> int:
    """Three quarters of the memory that this process may use: the machine's, or its cgroup's."""
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
