"""Contenders taking turns at one task; times, ratios and the roof of it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.limits import Limit, Reads, limit
from benchmarks.processes import Died, Worker
from benchmarks.roof import Products, roof
from benchmarks.tasks import Array, Task
from onernn.verification.comparing import TOLERANCES, compare

OURS = "onernn"
LEAST_TURNS = 3
"""So many turns each contender gets, however slow it is."""

UNMEASURED = ("left out", "rejected", "failed")
"""What a result says, with the reason, in place of times."""


class Effort(NamedTuple):
    """How long to measure: turns of each contender, seconds of a turn (one call at least), of a
    contender in a row, and until an answer is given up."""

    turns: int
    turn: float
    seconds: float
    patience: float


@dataclass
class Entry:
    """A contender's mode under one thread count: its process, and what it did in this row."""

    name: str
    file: Path
    mode: str
    module: ModuleType
    python: str
    threads: int
    worker: Worker | None = None
    result: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, float]] = field(default_factory=list)
    spent: float = 0.0

    def takes(self, task: Task) -> bool:
        mode = self.module.MODES[self.mode]
        wanted = ((task.kind, mode.kinds), (task.dtype, mode.dtypes), (task.cell, mode.cells))
        return all(value in listed.split() for value, listed in wanted)

    def ask(self, patience: float, **request: Any) -> dict[str, Any]:
        """The worker's answer. One that died is named, and started anew with the next request."""
        if self.worker is None:
            self.worker = Worker(self.python, self.file, self.mode, self.threads)
        try:
            return self.worker.ask(patience, **request)
        except Died as reason:
            self.close()
            return {"failed": str(reason)}

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = None

    def prepare(self, task: Task, expected: Array, patience: float) -> None:
        """Sets up the task, and compares the first output with the reference."""
        task = task.with_(threads=self.threads)
        output = Path(task.file).with_name("output.npy")
        self.turns, self.spent = [], 0.0
        self.result = self.ask(patience, do="prepare", task=task.to_json(), output=str(output))
        if self.result.keys().isdisjoint(UNMEASURED):
            verdict = compare("output", np.load(output), expected, TOLERANCES[task.dtype])
            self.result["max_abs"] = verdict.max_abs
            if not verdict.passed:
                self.result = {"rejected": verdict.reason}

    def turn(self, effort: Effort) -> None:
        """Some calls more, unless there is nothing to measure or the time is used up."""
        used_up = len(self.turns) >= LEAST_TURNS and self.spent > effort.seconds
        if used_up or not self.result.keys().isdisjoint(UNMEASURED):
            return
        start = time.perf_counter()
        answer = self.ask(effort.patience, do="turn", seconds=effort.turn)
        self.spent += time.perf_counter() - start
        if "failed" in answer:
            self.result = answer
        else:
            self.turns.append(answer)

    def told(self) -> dict[str, Any]:
        """The result, with times in ms: the median of the turns' medians, the minimum of all."""
        out = {"name": self.name, **self.result}
        if self.turns and out.keys().isdisjoint(UNMEASURED):
            medians = [turn["median"] * 1e3 for turn in self.turns]
            out |= {
                "median": median(medians),
                "min": min(turn["min"] for turn in self.turns) * 1e3,
                "calls": sum(turn["calls"] for turn in self.turns),
                "turns": [float(f"{m:.4g}") for m in medians],
            }
        return out


def measure(
    task: Task,
    expected: Array,
    entries: Sequence[Entry],
    effort: Effort,
    products: Products,
    reads: Reads,
) -> list[tuple[Task, dict[str, Any]]]:
    """A row for each thread count; all contenders, and the roof's products, take turns."""
    taking = [entry for entry in entries if entry.takes(task)]
    roofs = [task.with_(threads=t) for t in sorted({entry.threads for entry in taking})]
    before = os.getloadavg()[0]
    for entry in taking:
        entry.prepare(task, expected, effort.patience)
    for _ in range(effort.turns):
        for entry in taking:
            entry.turn(effort)
        for each in roofs:
            roof(each, products.measured)
            limit(each, products.best, reads.measured)
    products.release()
    return [
        (
            each,
            {
                "row": str(task),
                "dtype": task.dtype,
                "threads": each.threads,
                "load": [before, os.getloadavg()[0]],
                "gflop": task.flops / 1e9,
                "contenders": [entry.told() for entry in taking if entry.threads == each.threads],
            },
        )
        for each in roofs
    ]


NEAR = 0.85
"""The part of the limit that is enough, where a target would need more of it."""


def verdict(faster: float, of_limit: float, target: float) -> str:
    """met; the limit, where the target is beyond it and we are near; or missed."""
    if faster >= target:
        return "met"
    return "the limit" if of_limit >= NEAR else "missed"


def ratios(
    row: dict[str, Any], roof_ms: float, bound: Limit | None = None, target: float | None = None
) -> dict[str, Any]:
    """The roof, the limit and the best peer: what part of these, how many times that ours reaches.

    ``target``: how many times faster than the best peer ours is to be.
    """
    measured = {c["name"]: c for c in row["contenders"] if "median" in c}
    ours = measured.pop(OURS, None)
    # Ours under another mode, or inside of a peer, is none.
    peers = [c for name, c in measured.items() if OURS not in name.split()]
    best = min(peers, key=lambda c: c["median"], default=None)
    out: dict[str, Any] = {"roof": roof_ms, "best peer": best and best["name"]}
    if bound:
        out["limit"] = {"ms": bound.seconds * 1e3, "of": bound.of}
    if ours:
        out["of roof"] = roof_ms / ours["median"]
        if best:
            out["faster"] = {kind: best[kind] / ours[kind] for kind in ("median", "min")}
        if bound:
            out["of limit"] = bound.seconds * 1e3 / ours["median"]
        if best and bound and target is not None:
            out["target"] = target
            out["verdict"] = verdict(out["faster"]["median"], out["of limit"], target)
    return out
