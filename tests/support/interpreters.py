"""Code in interpreters of its own: what it prints, and how the children end that it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

SECONDS = 300
"""Until children are ended: what waits for a thread that is not there waits for ever."""


def printed(
    code: str, *arguments: object, seconds: float | None = 2 * SECONDS, **environment: str
) -> list[str]:
    """The words that a new interpreter prints; it finds these helpers."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def run_program(
    *words: object, status: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A program that has ended with a status; None: with any."""
    command = [*map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert status in (None, done.returncode), (done.stdout + done.stderr)[-8000:]
    return done


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A new interpreter that has ended, see `run_program`."""
    return run_program(sys.executable, *words, **options)


def resident() -> float:
    """MB of memory in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def ends_of_children(
    count: int, work: Callable[[int], None], child: Callable[[], int]
) -> list[str]:
    """How children end that are forked while two threads call ``work`` with ever new numbers.

    Each runs ``child`` and ends with what it gives.
    """
    running = True

    def turns(at: int) -> None:
        while running:
            work(at)
            at += 2

    workers = [threading.Thread(target=turns, args=(at,)) for at in (0, 1)]
    for worker in workers:
        worker.start()
    started = []
    for _ in range(count):
        time.sleep(0.03)
        process = os.fork()
        if not process:
            sys.exit(child())  # which takes down what it has inherited
        started.append(process)
    running = False
    for worker in workers:
        worker.join()
    ends: dict[int, str] = {}
    deadline = time.time() + SECONDS
    while len(ends) < count and time.time() < deadline:
        for process in set(started) - ends.keys():
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                ends[process] = str(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    for process in set(started) - ends.keys():
        os.kill(process, signal.SIGKILL)
    return [ends.get(process, "hangs") for process in started]
