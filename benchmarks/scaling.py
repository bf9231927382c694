"""Shows how threads share the work of recurrent layers: ``python -m benchmarks.scaling``.

For each row and number of threads, the program prints what the library decides from sizes, without
a run: how many threads take part and how the work is divided, how often threads wait for each
other, how many bytes a thread reads and which cache holds them, and the largest share of
multiplications divided by the mean share. It also prints the time that the library's cost model
predicts on one socket and on two sockets. For the numbers of threads in ``--measure`` (by default
up to the number of CPUs) it also prints the measured minimum wall and CPU time.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders.onernn import prepare_layer
from benchmarks.run import machine
from benchmarks.tasks import Numbers
from benchmarks.workloads import tasks, workloads, written
from onernn import Ragged, Session
from onernn.backend import Stack
from onernn.backend.compiled.backend import Share
from onernn.backend.process import usable_cpus

THREADS = (1, 2, 3, 4, 7, 8, 16, 32, 64)
CROSSING = 0.5e-6
"""The estimated additional seconds per wait of the threads for each other if they are on two
sockets. Four cache lines, one after the other, go over the link between the sockets. Vendors
publish 120 to 190 ns for each."""
EXAMPLES = {
    "segmenter": [(20,), "ragged"],
    "mxnet_language_model": [(1,) * 8, (35,) * 8],
}
"""The models of ``examples/``, and the sequence lengths of the batches for each of their layers."""
CACHES = {2: "L2", 3: "L3", 4: "memory"}
COLUMNS = (
    *("threads", "take part", "divided", "waits", "reads, MB", "held, MB", "by", "largest/mean"),
    *("foretold, ms", "two sockets, ms", "measured, ms", "CPU, ms"),
)


class Row(NamedTuple):
    """A layer, and the sequence lengths of a batch."""

    name: str
    layer: Stack
    lengths: Sequence[int]


def rows(folder: Path, chosen: Sequence[str], dtype: str) -> Iterator[Row]:
    """Yields the rows of the chosen workloads. The name "examples" chooses the layers of the models
    in ``examples/``.
    """
    listed = workloads()
    for name in chosen:
        if name == "examples":
            yield from _layers_of_examples(next(tasks(listed["ragged"])).lengths, dtype)
            continue
        for task in map(lambda task: task.with_(dtype=dtype), tasks(listed[name])):
            numbers = Numbers(written(task, folder / "numbers.npz"))
            yield Row(str(task), prepare_layer(task, numbers, "kernels"), task.lengths)


def _layers_of_examples(ragged: Sequence[int], dtype: str) -> Iterator[Row]:
    for model, batches in EXAMPLES.items():
        session = Session(Path("examples") / model, dtype, backend="kernels")
        for prepared in session.layers.values():
            for lengths in (ragged if each == "ragged" else each for each in batches):
                name = f"{model}, {prepared.node.label}, {len(lengths)} x {max(lengths)}"
                yield Row(name, prepared.layer, lengths)


def account(row: Row, threads: int) -> dict[str, Any]:
    """Returns the library's decisions and predictions for a row with this number of threads, over
    all layers. Times are in seconds, sizes in bytes.
    """
    layers = row.layer.compiled.with_threads(threads).account(row.lengths)
    shares = list(zip_longest(*(layer.shares for layer in layers), fillvalue=Share(0, 0, 0)))
    products = [sum(share.products for share in own) for own in shares]  # for each thread
    groups = sorted({layer.groups for layer in layers})
    turns, seconds = (sum(getattr(each, name) for each in layers) for name in ("turns", "seconds"))
    return {
        "threads": threads,
        "take_part": max(layer.threads for layer in layers),
        "groups": groups,
        "turns": turns,
        "read": max(sum(share.read for share in own) for own in shares),
        "held": max(share.held for own in shares for share in own),
        "cache": CACHES[max(layer.cache for layer in layers)],
        "largest_over_mean": max(products) * len(products) / sum(products),
        "foretold": seconds,
        "foretold_two_sockets": seconds + turns * CROSSING * (threads > 1),
    }


def measured(row: Row, threads: Sequence[int], seconds: float) -> dict[int, dict[str, float]]:
    """Returns the minimum wall and CPU time of a call by the number of threads.

    Calls with different numbers of threads alternate.
    """
    words = (sum(row.lengths), row.layer.spec.input_size)
    numbers = np.random.default_rng(0).uniform(-1, 1, words).astype(np.float32)
    x = Ragged.from_lengths(numbers, row.lengths)
    layers = {count: row.layer.compiled.with_threads(count) for count in threads}
    least = {count: {"wall": np.inf, "cpu": np.inf} for count in threads}
    end = time.perf_counter() + seconds * len(threads)
    while time.perf_counter() < end or np.inf in least[threads[-1]].values():
        for count, layer in layers.items():
            wall, cpu = time.perf_counter(), time.process_time()
            layer.run(x, (), None)
            took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            least[count] = {kind: min(took[kind], least[count][kind]) for kind in took}
    return least


def table(row: dict[str, Any]) -> list[str]:
    """Returns the lines of a row's table, with a line for each number of threads."""
    lines = [COLUMNS]
    for each in row["threads"]:
        ways = [f"{n} groups" if n else "each step" for n in each["groups"]]
        times = (each["foretold"], each["foretold_two_sockets"], each.get("wall"), each.get("cpu"))
        lines.append(
            (
                str(each["threads"]),
                str(each["take_part"]),
                ", ".join(ways) if each["take_part"] > 1 else "whole",
                str(each["turns"]),
                f"{each['read'] / 1e6:.2f}",
                f"{each['held'] / 1e6:.2f}",
                each["cache"],
                f"{each['largest_over_mean']:.3f}",
                *("" if one is None else f"{one * 1e3:.3f}" for one in times),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        row["row"],
        *("  " + "  ".join(map(str.rjust, line, widths)).rstrip() for line in lines),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scaling", description=__doc__)
    parser.add_argument("--workloads", default="ragged,dense,examples")
    parser.add_argument("--only", default="", help="rows in which this regular expression is found")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", default=",".join(map(str, THREADS)))
    parser.add_argument("--measure", help="numbers of threads; empty: none")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measured number")
    parser.add_argument("--json", action="store_true", help="all numbers, in place of tables")
    given = parser.parse_args()
    counts = [int(count) for count in given.threads.split(",")]
    cpus = usable_cpus()
    most = [count for count in counts if count <= cpus]
    timed = (
        most if given.measure is None else list(map(int, filter(None, given.measure.split(","))))
    )
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), given.workloads.split(","), given.dtype):
            if not re.search(given.only, row.name):
                continue
            times = measured(row, timed, given.seconds) if timed else {}
            counted = [account(row, n) | times.get(n, {}) for n in sorted({*counts, *timed})]
            results.append({"row": row.name, "threads": counted})
            if not given.json:
                print(*table(results[-1]), "", sep="\n", flush=True)
    if given.json:
        print(json.dumps({"machine": machine(), "dtype": given.dtype, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
