"""Resources that all layers of a process share: a lock, worker threads, memory, settings."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import LibraryError
from onernn.kernels.build import isas

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


CREATION = RLock()
"""The lock that a thread holds while it creates objects that threads share: primitives, weights,
layers.

A fork waits until the lock is free. Otherwise the child could inherit a lock that stays locked,
because the thread that holds it does not exist in the child. The same applies to libdnnl's own
lock, which a thread holds while it creates a primitive (measured: 3 of 10 children hang).
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CREATION.acquire, after_in_parent=CREATION.release, after_in_child=CREATION.release
    )


# Settings from environment variables.

MAX_ISA = "ONERNN_MAX_ISA"
"""The environment variable for the best instruction set that kernels and oneDNN's primitives may
use.
"""
DNNL_LIBRARY = "ONERNN_DNNL_LIBRARY"
ONEDNN_MAX_ISA = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WISHES = (DNNL_LIBRARY, *ONEDNN_MAX_ISA)
"""Environment variables by which a user chooses the libdnnl or its instruction set. If onernn
cannot follow one, it raises an error that names it.
"""
ONEDNN = {
    "v2": "sse41",
    "avx2": "avx2",
    "avx2_vnni": "avx2_vnni",
    "avx512": "avx512_core",
    "avx512_vnni": "avx512_core_vnni",
    "avx512_bf16": "avx512_core_bf16",
    "avx512_amx": "avx512_core_amx",
}
"""oneDNN's name of each instruction set, for `MAX_ISA`; ONEDNN_MAX_CPU_ISA overrides this limit."""


MOST_THREADS = 64
"""The maximum number of threads that the kernels use."""
TEAM = "ONERNN_TEAM"
"""The environment variable for the exact number of threads that share every product, even a small
one. Tests set it.
"""


def check_count(what: str, number: int | None) -> None:
    """Raises `ValueError` if a number, such as a number of threads, is not an integer of at least
    1; None is valid.
    """
    if number is not None and (not isinstance(number, int) or number < 1):
        raise ValueError(f"{what}: expected at least 1, got {number!r}")


def usable_threads() -> int:
    """Returns the default number of threads: OMP_NUM_THREADS, or all usable CPUs."""
    wish = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(wish) if wish.isdecimal() and int(wish) else usable_cpus()


def usable_cpus() -> int:
    """Returns the number of CPUs that the process may use, by its affinity and its cgroups'
    quotas.
    """
    return min(len(os.sched_getaffinity(0)), _quota())


@cache  # each call of a layer needs it, and reading the files takes 0.2 ms
def _quota() -> int:
    return min([sys.maxsize, *_quotas(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def _quotas(root: Path, groups: Path) -> Iterator[int]:
    """Yields the CPU quota of the process's cgroup and of each of its parents, rounded up.

    1.5 CPUs count as 2, because one thread would leave half a CPU unused. Linux pauses a process
    only when its threads have used up the quota of a 0.1 s period. A missing or damaged file sets
    no limit.
    """
    try:
        lines = groups.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    for line in ("0::/", "1:cpu:/", *lines):  # in a container, the own cgroup is at the root
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:  # cgroups version 2
            folder, files = root, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            folder, files = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            try:
                words = [(folder / each / file).read_text() for file in files]
                quota, period = map(int, " ".join(words).split())
            except (OSError, ValueError):  # no such cgroup, or "max"
                continue
            if quota > 0 and period > 0:
                yield -(-quota // period)


def team_of(threads: int) -> int:
    """Returns the thread count for the kernels' library: at most ``threads``, at most one per CPU.

    If the variable `TEAM` is set, returns its value with a negative sign: the library then uses
    exactly this number.
    """
    wish = os.environ.get(TEAM, "")
    if wish and not (wish.isdecimal() and 1 <= int(wish) <= MOST_THREADS):
        raise LibraryError(f"{TEAM}={wish}: expected a number from 1 to {MOST_THREADS}")
    return -int(wish) if wish else min(threads, usable_cpus(), MOST_THREADS)


def read_isa_cap() -> str | None:
    """Returns the instruction set that `MAX_ISA` sets, or None. Raises `LibraryError` for an
    unknown name.
    """
    wish = os.environ.get(MAX_ISA, "").lower()
    if wish in ("", *isas()):
        return wish or None
    raise LibraryError(
        f"{MAX_ISA}={os.environ[MAX_ISA]}: expected an instruction set of this machine's libraries;"
        f" unset it, or set it to one of {', '.join(isas())}"
    )


# Worker threads for tasks that do not wait for each other.

_T = TypeVar("_T")
_lock = Lock()
_pool: ThreadPoolExecutor | None = None


def run_all(tasks: Sequence[Callable[[], _T]]) -> list[_T]:
    """Returns the results of tasks that run in parallel, the first in this thread.

    Raises the error of any task. A task may call `run_all` only with a single task: otherwise a
    worker thread could wait for a task that only it could run. cffi releases the GIL while kernels
    run.
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
        except RuntimeError:  # Python is exiting and starts no threads
            ends.append(task)
    try:
        result = first()
    finally:
        wait(started)
    return [result, *(end() for end in ends)]


def _workers() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # takes 4 ms; most processes need no workers

    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="onernn")
        return _pool


def _after_fork() -> None:
    global _lock, _pool
    _lock, _pool = Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Memory that runs reuse: aligned bytes, and objects that one thread uses at a time.

ALIGNMENT = 64  # bytes of a cache line, and of an AVX-512 register


def allocate_aligned(nbytes: int) -> Array:
    """Returns uninitialised bytes that start on a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def align(array: Array) -> Array:
    """Returns the array if it starts on a cache line, otherwise a copy that does."""
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = allocate_aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


LARGEST_KEPT = 1 << 24
"""The size in bytes of the largest array that is reused: keeping larger arrays would take too much
memory.
"""


class Buffers:
    """The arrays of one run, which the next run reuses.

    Without this reuse, the allocator would return some MB to the system at the end of a call. The
    next call would request the same memory again, page by page. For 1028 steps and 256 units, this
    takes 2 of 10 ms.
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Returns an uninitialised array, which may share memory with the last array of this
        name.
        """
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if nbytes > LARGEST_KEPT:
            return np.empty(shape, dtype)
        held = self._held.get(name)
        if held is None or len(held) < nbytes:
            held = self._held[name] = allocate_aligned(nbytes)
        return held[:nbytes].view(dtype).reshape(shape)

    def gather(self, name: str, words: Array, rows: Array) -> Array:
        """Returns a copy of some rows of an array (W, C); ``rows`` must be in range."""
        out = self.array(name, (len(rows), words.shape[1]), words.dtype)
        return np.take(words, rows, axis=0, out=out, mode="clip")


class UsualNeed:
    """Decides from the needs of the last 16 runs whether memory stays allocated for later runs.

    The need of a run is the number of elements of its largest array. The usual need is the second
    largest of the last 16 runs, so a single run does not change it. Memory for a need of at most
    ``always`` stays in any case.
    """

    def __init__(self, always: int = 1 << 16) -> None:
        self._always, self._needs = always, deque([0] * 16, maxlen=16)

    def note(self, need: int) -> None:
        """Records the need of a run that ended."""
        self._needs.append(need)

    def keeps(self, largest: int) -> bool:
        """Returns whether memory for this need stays: it is at most ``always`` or 4 times the usual
        need.
        """
        return largest <= self._always or largest <= 4 * sorted(self._needs)[-2]


BUFFERS: deque[Buffers] = deque(maxlen=8)
"""The `Buffers` that no thread uses at present; the last one is probably still in the CPU's
cache.
"""


def take_idle(idle: deque[_T], make: Callable[[], _T]) -> _T:
    """Returns the object that became idle last, or a new one; no other thread gets it."""
    try:
        return idle.pop()
    except IndexError:
        return make()


@contextmanager
def borrow(idle: deque[_T], make: Callable[[], _T]) -> Iterator[_T]:
    """Yields an idle object, or a new one, which becomes idle again when the block ends."""
    one = take_idle(idle, make)
    try:
        yield one
    finally:
        idle.append(one)
