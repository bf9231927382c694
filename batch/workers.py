"""Processes that score windows; one that dies is replaced, and its windows are scored again."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from socket import socketpair
from typing import Any

from onernn.batch.sources import Window
from onernn.batch.worker import Job
from onernn.core.errors import OnernnError, UnforeseenError
from onernn.core.records import dataclass

_AHEAD = 2
"""Windows that a worker holds: it need not wait for the next one."""
_MOST_DEATHS = 8  # of workers in one window: some may be killed for other reasons

_START = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from onernn.batch.worker import work
work(connection)
"""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Done:
    """A window that is on the disk."""

    index: int
    rows: int
    words: int
    rejected: int
    read: float


class Workers:
    """``count`` processes at most, started as windows come. Close it: they end with the block."""

    def __init__(self, job: Job, count: int) -> None:
        self._job = pickle.dumps(job, protocol=5)
        self._count = count
        self._workers: list[_Worker] = []
        self._deaths: Counter[int] = Counter()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def run(self, windows: Iterator[Window]) -> Iterator[Done]:
        """Each window once it is written. Raises what a worker raised."""
        again: deque[Window] = deque()

        while True:
            while (worker := self._free()) is not None:
                window = again.popleft() if again else next(windows, None)
                if window is None:
                    break
                worker.give(window)
            busy = {each.connection: each for each in self._workers if each.windows}
            if not busy:
                return
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                try:
                    kind, *told = worker.connection.recv()
                except (EOFError, OSError):
                    again.extend(self._buried(worker))
                    continue
                if kind == "failed":
                    _raise(*told)
                window = worker.windows.popleft()
                index, rows, words, rejected = told
                yield Done(index, rows, words, rejected, window.read)

    def _free(self) -> _Worker | None:
        """The worker with the fewest windows; a new one before any gets a second."""
        least = min(self._workers, key=lambda each: len(each.windows), default=None)
        if (least is None or least.windows) and len(self._workers) < self._count:
            least = _Worker(self._job)
            self._workers.append(least)
        return least if least is not None and len(least.windows) < _AHEAD else None

    def _buried(self, worker: _Worker) -> list[Window]:
        """The windows of a worker that died: the first of them is what it died of."""
        self._workers.remove(worker)
        how = worker.end()
        window = worker.windows[0]
        self._deaths[window.index] += 1
        if self._deaths[window.index] >= _MOST_DEATHS:
            last = window.first + window.table.num_rows - 1
            raise UnforeseenError(
                f"rows {window.first:,} to {last:,} (window {window.index}) ended"
                f" {_MOST_DEATHS} workers, the last one by {how}; nothing of them is written. Take"
                " these rows out, or give fewer words or rows at once (--words, --window) where"
                " memory is short"
            )
        return list(worker.windows)


class _Worker:
    """A process in a session of its own: an interrupt from the terminal does not reach it."""

    def __init__(self, job: bytes) -> None:
        here, there = socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                start_new_session=True,
            )
        self.connection = Connection(here.detach())
        self.windows: deque[Window] = deque()
        self._send(sys.path, job)

    def give(self, window: Window) -> None:
        import pyarrow as pa

        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, window.table.schema) as writer:
            writer.write_table(window.table)
        self.windows.append(window)
        self._send((window.index, window.first, window.bad), stream.getvalue())

    def _send(self, head: Any, content: Any) -> None:
        with suppress(OSError):  # it is dead, as reading from it will tell
            self.connection.send(head)
            self.connection.send_bytes(content)

    def end(self) -> str:
        """Ends the process at once: what it was writing has no name yet. Tells how it ended."""
        self._process.kill()
        self.connection.close()
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _raise(kind: type[Exception], args: tuple[Any, ...], filename: Any) -> None:
    """What a worker raised, as it was."""
    if issubclass(kind, OnernnError):
        error: Exception = kind.__new__(kind)
        error.args = args
        raise error
    if issubclass(kind, OSError):
        raise OSError(*args[:2], filename)
    raise kind(*args)
