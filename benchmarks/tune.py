"""Measures which way is faster for which batch, and writes this machine's table of it.

``python -m benchmarks.tune --help``; `onernn.backend.choosing` reads the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import ways
from benchmarks.measuring import Effort, Entry
from benchmarks.run import machine
from benchmarks.tasks import DTYPES, Task
from benchmarks.workloads import written
from onernn import Cell, OnernnError
from onernn.backend.choosing import MARGIN, TABLES, Row, isa_of, measurements
from onernn.backend.onednn.library import load_library

CELLS = ("gru", "lbr_gru", "lstm")
HIDDEN = (64, 128, 256, 512, 1024, 1536, 2048)
BATCHES = (
    ("step", 1), ("dense", 1), ("dense", 2), ("dense", 4), ("dense", 8), ("dense", 32),
    ("ragged", 8), ("ragged", 64), ("training", 32),
)  # fmt: skip
STEPS = 16
"""Of a dense batch, and on average of a ragged one."""
QUICK = ((64,), BATCHES[:2])
CHAINED = 512
"""A chain is not faster for smaller layers, and is not measured there."""
TRAINED = 1024
"""Larger layers are not measured in training: the harness's own arrays are six times as large."""
EFFORT = Effort(turns=6, turn=0.04, seconds=2.0, patience=60)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.tune", description=__doc__)
    add = parser.add_argument
    add("--dtypes", default=",".join(DTYPES))
    add("--threads", default="1,2")
    add("--hidden", default=",".join(map(str, HIDDEN)), help="the columns (default: %(default)s)")
    add("--quick", action="store_true", help="a few points, that show that this works")
    add("--out", type=Path, help="a new table, instead of new rows of the package's own")
    return parser.parse_args()


def lengths(kind: str, sentences: int) -> tuple[int, ...]:
    if kind != "ragged":
        return (1 if kind == "step" else STEPS,) * sentences
    drawn = np.random.default_rng(7).lognormal(np.log(STEPS) - 0.7**2 / 2, 0.7, sentences)
    return tuple(np.clip(np.round(drawn), 1, None).astype(int).tolist())


class Timer:
    """The least time of each way; a process a way and thread count, taking turns."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._entries: dict[tuple[str, int], Entry] = {}

    def written(self, task: Task) -> Task:
        """The task with its weights in a file; the last one's are gone."""
        return written(task, self._folder / "task.npz")

    def times(self, task: Task, modes: tuple[str, ...]) -> dict[str, float]:
        """Seconds by mode, of those that run the task; of the CPU where one thread runs it, which
        other work on the machine hardly changes."""
        entries = [self._entry(mode, task.threads) for mode in modes]
        for entry in entries:
            output = str(self._folder / "output.npz")
            request = {"do": "prepare", "task": task.to_json(), "output": output}
            entry.turns, entry.spent = [], 0.0
            entry.result = entry.ask(EFFORT.patience, **request)
        for _ in range(EFFORT.turns):
            for entry in entries:
                entry.turn(EFFORT)
        told = {entry.mode: entry.told() for entry in entries}
        for mode, each in told.items():
            for why in ("failed", "left out"):
                if why in each:
                    print(f"{mode}, {task} {task.dtype} {why}: {each[why]}", file=sys.stderr)
        clock = "cpu" if task.threads == 1 else "min"
        return {
            entry.mode: min(turn[clock] for turn in entry.turns)
            for entry in entries
            if "min" in told[entry.mode]
        }

    def _entry(self, mode: str, threads: int) -> Entry:
        if (mode, threads) not in self._entries:
            file = Path(ways.__file__)
            made = Entry(mode, file, mode, ways, sys.executable, threads)
            self._stack.callback(made.close)
            self._entries[mode, threads] = made
        return self._entries[mode, threads]


def ratios(times: dict[str, float]) -> dict[str, float]:
    """How many times faster the chain is than the primitive, and the kernels than the better of
    these; 0 where one of them does not run."""
    chain = times.get("primitive", 0) / times["chain"] if "chain" in times else 0.0
    best = times.get("onednn", 0) or times.get("primitive", 0) / max(chain, 1.0)
    return {"chain": chain, "kernels": best / times["kernels"] if "kernels" in times else 0.0}


def measured(
    timer: Timer, dtypes: list[str], threads: list[int], quick: bool, hidden: tuple[int, ...]
) -> Iterator[Row]:
    """The rows of a table, those of one layer side by side."""
    batches = QUICK[1] if quick else BATCHES
    found: dict[tuple[str, str, int, str, int, str], dict[int, float]] = {}
    for cell, size, (kind, sentences) in product(CELLS, hidden, batches):
        print(f"{cell} {size}, {sentences} {kind}", file=sys.stderr)
        if kind == "training" and size > TRAINED:
            continue
        of = "dense" if kind == "step" else kind
        task = timer.written(Task(of, cell, size, size, lengths(kind, sentences)))
        trained = [dtype for dtype in dtypes if dtype != "u8"]
        for dtype, count in product(trained if kind == "training" else dtypes, threads):
            chains = count == 1 and dtype != "u8" and kind != "training"
            chained = chains and (size >= CHAINED or quick)
            modes = ("primitive", "chain", "kernels") if chained else ("onednn", "kernels")
            times = timer.times(task.with_(dtype=dtype, threads=count), modes)
            for way, ratio in ratios(times).items():
                if way == "kernels" or chains:
                    key = (way, dtype, count, Cell(cell).name, sentences, kind)
                    found.setdefault(key, {})[size] = ratio
    for key, ratios_found in found.items():
        yield Row(*key, ratios_found)


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """The new rows, and the old ones that were not measured again; in the table's order."""
    rows = {row[:6]: row for row in (*old, *new)}
    return sorted(rows.values(), key=lambda row: (row.way, DTYPES.index(row.dtype), *row[2:4]))


def text(rows: list[Row]) -> str:
    """The table as `onernn.backend.choosing.measurements` reads it."""
    told, hidden = machine(), sorted({size for row in rows for size in row.ratios})
    lines = [
        "# oneDNN's time over that of another way, by hidden size; -: not measured, or not run.",
        "# chain: its primitive's time over that of its chain of products. kernels: its time, the",
        "# shorter of both, over that of the kernels. `make tune` wrote this on:",
        f"# {told['cpu']}, oneDNN {load_library().version}, {told['date'][:10]}",
        f"{'way':<7} dtype threads {'cell':<8} {'batch':<11} "
        + " ".join(f"{size:5}" for size in hidden),
    ]
    for row in rows:
        batch = f"{row.sentences:>2} {row.kind}"
        cells = [f"{r:5.2f}" if (r := row.ratios.get(h)) else "    -" for h in hidden]
        lines.append(
            f"{row.way:<7} {row.dtype:<5} {row.threads:<7} {row.cell:<8} {batch:<11} "
            + " ".join(cells)
        )
    return "\n".join(lines) + "\n"


def rules(rows: list[Row]) -> Iterator[str]:
    """What follows: for each layer the batches that take another way than before."""
    for row in rows:
        taken = [str(size) for size, ratio in row.ratios.items() if ratio >= MARGIN]
        if taken:
            yield (
                f"{row.cell} {row.dtype}, {row.threads} thread{'s' * (row.threads > 1)},"
                f" {row.sentences} {row.kind}: {row.way} for H near {', '.join(taken)}"
            )


def main() -> int:
    given = options()
    hidden = QUICK[0] if given.quick else tuple(map(int, given.hidden.split(",")))
    threads = list(map(int, given.threads.split(",")))
    try:
        isa = isa_of(load_library().effective_isa)
        out = given.out or TABLES.resolve() / f"{isa}.txt"
        with ExitStack() as stack:
            dtypes = given.dtypes.split(",")
            new = list(measured(Timer(stack), dtypes, threads, given.quick, hidden))
    except (OnernnError, OSError) as error:
        print(f"benchmarks.tune: {error}", file=sys.stderr)
        return 2
    print(text(new), *rules(new), sep="\n")
    if not given.quick or given.out:
        out.write_text(text(merged(() if given.out else measurements(isa), new)))
        print(f"written: {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
