"""Worker threads for executions that need no barrier between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_T = TypeVar("_T")
_lock = Lock()
_pool: ThreadPoolExecutor | None = None


def run_all(tasks: Sequence[Callable[[], _T]]) -> list[_T]:
    """The results of tasks that run side by side, the first in this thread.

    An error of any reaches the caller. Tasks may call `run_all` only with a single task: a worker
    that waited for workers could wait for itself. cffi releases the GIL while kernels run.
    """
    first, *others = tasks
    if not others:
        return [first()]
    from concurrent.futures import wait

    started = []
    ends: list[Callable[[], _T]] = []
    for task in others:
        try:
            started.append(_workers().submit(task))
            ends.append(started[-1].result)
        except RuntimeError:  # Python is ending and starts no threads; MXNet's engine still runs
            ends.append(task)
    try:
        result = first()
    finally:
        wait(started)
    return [result, *(end() for end in ends)]


def _workers() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # 4 ms: most processes need no workers

    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="onernn")
        return _pool


def _after_fork() -> None:
    """The workers did not survive: the child starts its own."""
    global _lock, _pool
    _lock, _pool = Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
