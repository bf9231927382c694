"""Measures how many streams of a model one thread can run in real time.

    python -m benchmarks.streams [--streams 1000] [--clients 100] [--turns 20]

Four kinds of calls alternate: a push and a pull of onernn for each stream; one push and one pull of
onernn for all streams; one call of an ONNX Runtime session for each of ``--clients`` clients; and,
if the model has an axis of clients, one call of ONNX Runtime for all streams. The program prints
the minimum CPU time of each kind, and the memory.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from benchmarks.model_files import fetched
from benchmarks.models import models
from onernn import Session

# For each model: frame: the shapes of a frame's inputs; states: each state and its next value;
# given: inputs that are equal in all frames; ms: the milliseconds of a frame; batch: the axis of
# clients by input, if the model has such an axis.
MODELS: dict[str, dict[str, Any]] = {
    "silero": {
        "frame": {"input": (1, 576)},
        "states": {"state": "stateN"},
        "given": {"sr": np.array(16000)},
        "batch": {"input": 0, "state": 1},
        "ms": 32,
    },
    "dtln": {
        "frame": {"input_2": (1, 1, 257)},
        "states": {"input_3": "tf_op_layer_stack_2"},
        "given": {},
        "ms": 8,
    },
    "nsnet2": {"frame": {"input": (1, 1, 161)}, "states": None, "given": {}, "ms": 10},
}


def resident() -> float:
    """Returns the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def timed(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def compared(name: str, streams: int, clients: int, turns: int) -> list[str]:
    """Returns a row of the table: microseconds per frame, ratios, streams in real time, memory."""
    settings, path = MODELS[name], str(fetched(models()[name]))
    rng = np.random.default_rng(0)
    frame = {
        key: rng.uniform(-1, 1, shape).astype("f4") for key, shape in settings["frame"].items()
    }
    frame |= settings["given"]
    before = resident()
    ours = Session(path, threads=1).streams(streams, settings["states"])
    opened = [ours.open() for _ in range(streams)]

    def tick() -> None:
        for stream in opened:
            ours.push(stream, frame)
        for stream in opened:
            ours.pull(stream)

    ids = np.array(opened)
    rows = {key: np.repeat(array[None], streams, 0) for key, array in frame.items()}

    def at_once() -> None:
        ours.push(ids, rows)
        ours.pull(ids)

    tick()
    at_once()
    taken = resident() - before
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    gc.collect()
    before = resident()
    theirs = onnxruntime.InferenceSession(path, options)
    feed = dict(frame)
    for value in theirs.get_inputs():
        if value.name not in feed:
            sizes = [size if isinstance(size, int) else 1 for size in value.shape]
            feed[value.name] = np.zeros(sizes, np.float32)

    def each() -> None:
        for _ in range(clients):
            theirs.run(None, feed)

    each()
    grown = resident() - before
    axes = settings.get("batch", {})
    wide = {name: np.repeat(feed[name], streams, axis) for name, axis in axes.items()}

    def lockstep() -> None:
        theirs.run(None, feed | wide)

    works = {tick: streams, at_once: streams, each: clients, lockstep: streams}
    found: dict[Callable[[], None], list[float]] = {work: [] for work in works}
    for _ in range(turns):
        for work, frames in works.items():
            found[work].append(timed(work) / frames)
    single, one, other, batched = (min(seconds) for seconds in found.values())
    real = [settings["ms"] / 1000 / seconds for seconds in (one, other)]
    return [
        name,
        f"{single * 1e6:.1f}",
        f"{one * 1e6:.1f}",
        f"{other * 1e6:.1f}",
        f"{batched * 1e6:.1f}" if wide else "",
        f"{other / one:.2f}",
        f"{batched / one:.2f}" if wide else "",
        f"{real[0]:.0f}",
        f"{real[1]:.0f}",
        f"{taken:.0f}",
        f"{grown:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS))
    asked = parser.parse_args()
    heads = "model|us per frame|in one call|ONNX Runtime|in lock-step|ratio|in lock-step"
    heads += "|streams in real time|ONNX Runtime|MB"
    table = Table(*heads.split("|"), "ONNX Runtime")
    for name in asked.models.split(","):  # a new process per model, to measure its memory alone
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            row = pool.submit(compared, name, asked.streams, asked.clients, asked.turns)
            table.add_row(*row.result())
    Console().print(table)


if __name__ == "__main__":
    main()
