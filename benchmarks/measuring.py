"""Measures a task in several contenders, and computes ratios of their times.

A contender is a framework, or onernn, that runs the task. The contenders run alternately. In one
turn a contender makes some calls.
"""

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
"""The minimum number of turns of each contender, however slow it is."""
STARTS = 3
"""How often a new process measures the first call of a whole model. The fastest process counts."""

UNMEASURED = ("left out", "rejected", "failed")
"""Keys of a result that has a reason in place of times."""


class Effort(NamedTuple):
    """How long to measure. ``turns``: the number of turns of each contender. ``turn``: the seconds
    of a turn, which has at least one call. ``seconds``: the seconds for each contender and row.
    ``patience``: the seconds after which a contender without an answer has failed.
    """

    turns: int
    turn: float
    seconds: float
    patience: float


@dataclass
class Entry:
    """A contender in one mode with one number of threads: its process and its measurements of the
    current task.
    """

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
        """Returns the process's answer to a request, or the key "failed" with the reason if the
        process ended. The next request starts a new process.
        """
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
        """Sets up the task, and compares the first outputs with the expected outputs.

        Returns the outputs that are expected from the next contender: ``expected``, or if it is
        None the outputs of this contender.
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
        """Compares the first outputs with the expected outputs; see `prepare`."""
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
        """Returns the seconds from the start of a process to the outputs of its first call."""
        self.close()
        start = time.perf_counter()
        self.ask(patience, do="prepare", task=task.to_json(), output=str(output))
        return time.perf_counter() - start

    def turn(self, effort: Effort) -> None:
        """Measures some calls, unless the contender failed or has used up its time."""
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
        """Returns the result with times in ms: ``median`` is the median of the turns' medians,
        ``min`` the minimum of all calls, and ``resident`` the memory in MB after the last turn.
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
    """Returns the task and a row of results for each number of threads.

    All contenders, and the matrix products of the roof, run alternately. If ``expected`` is None,
    the outputs of the first contender that runs are the expected outputs of the others. For a model
    this is the model's own framework, if it is installed.
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
"""The share of the limit's speed that is enough if a target needs a larger share."""


def verdict(faster: float, of_limit: float, target: float) -> str:
    """Returns "met" if the target is reached. Otherwise returns "the limit" if the share
    ``of_limit`` is at least `NEAR`, or "missed".
    """
    if faster >= target:
        return "met"
    return "the limit" if of_limit >= NEAR else "missed"


def ratios(
    row: dict[str, Any], roof_ms: float, bound: Limit | None = None, target: float | None = None
) -> dict[str, Any]:
    """Returns the comparison of onernn's time with the roof, the limit and the fastest other
    framework.

    ``roof_ms``: the roof in ms. ``bound``: the limit. ``target``: how many times as fast as the
    fastest framework onernn should be.
    """
    measured = {c["name"]: c for c in row["contenders"] if "median" in c}
    ours = measured.pop(OURS, None)
    # A different mode of onernn, or onernn inside a framework, is not another framework.
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
    """Returns whether a name is a mode of the contender without onernn inside it."""
    words = name.split()
    return words[0] == contender and OURS not in words[1:]


def comparisons(row: dict[str, Any], model: Model) -> dict[str, Any]:
    """Returns comparisons of onernn with the best mode of the model's framework: onernn alone,
    inside the framework, and as drop-in. A further one compares a compiled plan with Python, which
    calls operators one by one.

    Each ratio is the compared mode's value divided by onernn's. ``cpu``: the minimum CPU time.
    ``first``: the time of the first call. ``resident``: the memory.
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
