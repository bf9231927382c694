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
from benchmarks.models import FRAMEWORKS, Model
from benchmarks.processes import Died, Worker
from benchmarks.roof import Products, roof
from benchmarks.tasks import Array, Task
from onernn.verification.comparing import TOLERANCES, compare

OURS = "onernn"
LEAST_TURNS = 3
"""So many turns each contender gets, however slow it is."""
STARTS = 3
"""So often a process runs a whole model for the first time; the fastest counts."""

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

    def prepare(
        self, task: Task | Model, expected: list[Array] | None, patience: float
    ) -> list[Array] | None:
        """Sets up the task, and compares the first outputs with those that are expected.

        Gives what is expected of the next contender: where nothing was, the outputs.
        """
        task = task.with_(threads=self.threads)
        output = Path(task.file).with_name("output.npz")
        self.turns, self.spent = [], 0.0
        started: dict[str, float] = {}
        if isinstance(task, Model):
            first = task.with_(first=True)
            started = {"first": min(self._start(first, output, patience) for _ in range(STARTS))}
            self.close()
        expected = self.check(task, expected, patience)
        if self.result.keys().isdisjoint(UNMEASURED):
            self.result |= started
        return expected

    def check(
        self, task: Task | Model, expected: list[Array] | None, patience: float
    ) -> list[Array] | None:
        """The first outputs beside those that are expected; see `prepare`."""
        output = Path(task.file).with_name("output.npz")
        self.result = self.ask(patience, do="prepare", task=task.to_json(), output=str(output))
        if not self.result.keys().isdisjoint(UNMEASURED):
            return expected
        with np.load(output) as saved:
            outputs = [saved[name] for name in saved.files]
        if expected is None:
            expected = outputs
        verdicts = [
            compare("output", got, wanted, TOLERANCES[task.dtype])
            for got, wanted in zip(outputs, expected, strict=False)
        ]
        failed = [verdict.reason for verdict in verdicts if not verdict.passed]
        if len(outputs) != len(expected):
            failed = [f"expected {len(expected)} outputs, got {len(outputs)}"]
        if failed:
            self.result = {"rejected": failed[0]}
        else:
            worst = max(verdict.max_abs for verdict in verdicts)
            self.result |= {"max_abs": worst}
        return expected

    def _start(self, task: Model, output: Path, patience: float) -> float:
        """Seconds from no process to the outputs of a first call: imports, files, packing."""
        self.close()
        start = time.perf_counter()
        self.ask(patience, do="prepare", task=task.to_json(), output=str(output))
        return time.perf_counter() - start

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

    def record(self) -> dict[str, Any]:
        """The result, with times in ms: the median of the turns' medians, the minimum of all.

        ``resident``: MB of memory after the last turn.
        """
        out = {"name": self.name, **self.result}
        if self.turns and out.keys().isdisjoint(UNMEASURED):
            medians = [turn["median"] * 1e3 for turn in self.turns]
            out |= {
                "median": median(medians),
                "min": min(turn["min"] for turn in self.turns) * 1e3,
                "cpu": min(turn["cpu"] for turn in self.turns) * 1e3,
                "calls": sum(turn["calls"] for turn in self.turns),
                "resident": self.turns[-1]["resident"] / 1e6,
                "turns": [float(f"{m:.4g}") for m in medians],
            }
        return out


def measure(
    task: Task | Model,
    expected: list[Array] | None,
    entries: Sequence[Entry],
    effort: Effort,
    products: Products,
    reads: Reads,
) -> list[tuple[Task | Model, dict[str, Any]]]:
    """A row for each thread count; all contenders, and the roof's products, take turns.

    Without ``expected`` the first that gives outputs tells what is expected of the others: the
    framework that a model is of, where it is there.
    """
    taking = [entry for entry in entries if task.taken_by(entry.module.MODES[entry.mode])]
    if isinstance(task, Model):
        taking.sort(key=lambda entry: not _is_of(entry.name, FRAMEWORKS[task.kind]))
    each_count = [task.with_(threads=t) for t in sorted({entry.threads for entry in taking})]
    before = os.getloadavg()[0]
    for entry in taking:
        expected = entry.prepare(task, expected, effort.patience)
    for _ in range(effort.turns):
        for entry in taking:
            entry.turn(effort)
        for each in each_count:
            if isinstance(each, Task):
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
                **({"gflop": task.flops / 1e9} if isinstance(task, Task) else {}),
                "contenders": [entry.record() for entry in taking if entry.threads == each.threads],
            },
        )
        for each in each_count
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


def _is_of(name: str, contender: str) -> bool:
    """Whether this is a mode of the contender, without ours inside of it."""
    words = name.split()
    return words[0] == contender and OURS not in words[1:]


def comparisons(row: dict[str, Any], model: Model) -> dict[str, Any]:
    """Ours alone and inside of the model's framework, beside the best of that framework's modes;
    and ours beside its own walk. How many times less ours takes of each: ``cpu`` is the least time
    of the CPU, ``first`` the first call, ``resident`` memory.
    """
    measured = {c["name"]: c for c in row["contenders"] if "median" in c}
    host = FRAMEWORKS[model.kind]
    walk = f"{OURS} walk"
    inside = f"{host} {OURS}"
    pairs = {"alone": (OURS, host), "inside": (inside, host), "walk": (OURS, walk)}
    pairs["drop-in"] = f"{inside} drop-in", host
    compared = []
    for pair, (name, other) in pairs.items():
        others = [c for n, c in measured.items() if n == other or _is_of(n, other)]
        if name in measured and others:
            ratio = {
                kind: min(c[kind] for c in others) / measured[name][kind]
                for kind in ("median", "min", "cpu", "first", "resident")
            }
            best = min(others, key=lambda c: c["median"])
            one = {"of": name, "beside": best["name"], **ratio}
            if wanted := model.wanted.get(pair):
                one |= {"target": wanted, "verdict": verdict(ratio["median"], 0.0, wanted)}
            compared.append(one)
    return {"compared": compared}
