"""The process of a contender: ``python -m benchmarks.worker FILE MODE``.

Each line on stdin is a request in JSON, and each line on stdout is an answer in JSON. Output of the
framework goes to stderr. The requests are ``versions``; ``prepare``, which prepares a task and
saves the outputs of its first run; and ``turn``, which makes one call without timing, and then
measures calls for some seconds.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.models import Model
from benchmarks.tasks import LeftOut, Prepared, Task, named


def contender(file: str) -> ModuleType:
    """Returns the module of a contender. The module imports its framework only in functions."""
    name = f"benchmarks.contenders.{named(file)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(prepared: Prepared, seconds: float) -> dict[str, Any]:
    """Makes calls for some seconds. Returns the median and minimum of their times in seconds,
    without the first call, whose caches are cold.

    ``cpu``: the mean CPU time of a call, of all threads together. It is the CPU time of the turn
    divided by the number of calls, because a machine may count CPU time in ticks that are longer
    than a call. ``resident``: the memory in bytes after the calls.
    """
    call, clock, used = prepared.call, time.perf_counter, time.process_time
    gc.collect()
    gc.disable()
    try:
        call()
        times: list[float] = []
        end, before = clock() + seconds, used()
        while not times or clock() < end or used() == before:
            start = clock()
            call()
            times.append(clock() - start)
        cpu = (used() - before) / len(times)
    finally:
        gc.enable()
    result = {"median": median(times), "min": min(times), "cpu": cpu, "calls": len(times)}
    return result | {"resident": resident()}


def resident() -> int:
    """Returns the resident memory of the process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(module: ModuleType, mode: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prepared: Prepared | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if request["do"] == "versions":
                answer["versions"] = module.versions()
            elif request["do"] == "prepare":
                prepared = None  # frees the memory of the last task first
                kind = Model if "path" in request["task"] else Task
                prepared = module.prepare(kind.from_json(request["task"]), mode)
                outputs = prepared.read(prepared.call())
                several = outputs if isinstance(outputs, list) else [outputs]
                np.savez(request["output"], *several)
                answer["note"] = prepared.note
            elif prepared is not None:
                answer = timed(prepared, request["seconds"])
        except LeftOut as reason:
            answer["left out"] = str(reason)
        except Exception as error:  # the report shows every exception of a framework
            first = (str(error).strip() or "no message").splitlines()[0]
            answer["failed"] = f"{type(error).__name__}: {first}"
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    if sys.platform == "linux":  # ends this process, even if stopped, when its parent ends
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    serve(contender(sys.argv[1]), sys.argv[2])
