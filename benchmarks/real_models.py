"""Runs published models in several ways: ``python -m benchmarks.real_models [NAME ...]``.

The ways are: in the model's framework, in onernn alone, with onernn inside the framework, with the
drop-in for the framework, converted to a new file, and as generated C++. Each way has its own
process, and the processes run alternately on one thread. The program writes the tables into
docs/models.md. Exit 1: in some way a model failed, or its outputs differ from the framework's.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import LEAST_TURNS, Effort, Entry
from benchmarks.model_files import NotThere, fetched
from benchmarks.models import FRAMEWORKS, models, rows
from benchmarks.processes import ROOT, interpreter
from benchmarks.worker import contender
from onernn import audit

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "## Speed", "\n**Measured**"
WAYS = ("framework", "alone", "inside", "drop-in", "converted", "emitted")
TIMED = WAYS[:4]
"""The ways whose times are measured. For converted files and generated C++ only outputs are
compared.
"""
MODES = {  # of the contenders by kind of file, in the order of WAYS; "" for no contender
    "onnx": (
        *("onnxruntime", "onernn", "onnxruntime onernn", "onnxruntime onernn drop-in"),
        "onnxruntime onernn converted",
    ),
    "paddle": ("paddle default", "onernn", "paddle onernn", "", ""),
}
CALLS = 8
"""The maximum number of calls of a round. Each call of generated code starts a process."""
EFFORT = Effort(turns=LEAST_TURNS, turn=0.2, seconds=4, patience=300)


def entry(label: str) -> Entry | str:
    """Returns a contender in one mode, or the reason why it cannot run."""
    name, _, mode = label.partition(" ")
    folder = ROOT / "benchmarks" / ("" if name == "emitted" else "contenders")
    file = folder / f"{name}.py"
    module = contender(str(file))
    python = interpreter(name, module.PACKAGES)
    return Entry(label, file, mode, module, python, 1) if python else f"no {name} here"


def results_of(name: str, path: Path) -> dict[str, Any]:
    """Returns the results of a model by way. A way that was not measured has a text in place of its
    results.
    """
    task = next(rows(name))
    task = task.with_(path=str(path), calls=min(task.calls, CALLS))
    labels = dict(zip(WAYS, (*MODES[task.kind], "emitted"), strict=True))
    taking = {way: entry(label) if label else "-" for way, label in labels.items()}
    expected = None
    with tempfile.TemporaryDirectory() as folder:
        task = task.written(Path(folder, "task.npz"))
        entries = {way: each for way, each in taking.items() if isinstance(each, Entry)}
        for way, each in entries.items():
            if way in TIMED:
                expected = each.prepare(task, expected, EFFORT.patience)
            else:
                each.check(task, expected, EFFORT.patience)
        for _ in range(LEAST_TURNS):
            for way in TIMED:
                if way in entries:
                    entries[way].turn(EFFORT)
        results = {way: each.record() for way, each in entries.items()}
        for each in entries.values():
            each.close()
    for each in results.values():
        if "median" in each:
            each["median"] /= task.calls
    return {**taking, **results, "row": str(task).partition(", ")[2]}


def known_faults(path: Path) -> str:
    """Returns the faults that `onernn audit` finds in the framework's outputs for a model, or "" if
    there are none.
    """
    findings = audit(path).findings if path.suffix == ".onnx" else ()
    wrong = (f.fault for f in findings if f.effect == "wrong" and "file" not in f.paths)
    return ", ".join(dict.fromkeys(wrong))


class Cell(NamedTuple):
    """A table's cell for one way of a model: a ratio or a word, the time and memory of the first
    call, and the reason for the word.
    """

    text: str
    costs: str = ""
    reason: str = ""


def cell(way: str, result: Any, host: Any, known: str = "") -> Cell:
    """Returns how many times as fast as the framework a way is, or a word and its reason if this is
    not known.

    ``known``: the faults of the framework that make outputs differ.
    """
    if isinstance(result, str):
        return Cell("-", reason=result.strip("-"))
    if known and "rejected" in result:
        return Cell("differs", reason=f"{result['rejected'].partition(',')[0]}: {known}")
    for word in ("left out", "rejected", "failed"):
        if word in result:
            said = {"left out": "refused", "rejected": "**differs**", "failed": "**failed**"}[word]
            reason = re.split(r" for \w+\(", result[word])[0]  # a list of types follows
            return Cell(said, reason=reason[:160])
    if "median" not in result:
        return Cell("equal")
    costs = f"{result['first'] * 1e3:.0f} ms, {result['resident']:.0f} MB"
    if way == "framework" or not isinstance(host, dict) or "median" not in host:
        return Cell(f"{result['median']:.3g}{' ms' * (way != 'framework')}", costs)
    return Cell(f"{host['median'] / result['median']:.2f}", costs)


def tables(rows: Iterable[tuple[str, str, list[Cell]]]) -> list[str]:
    """Returns the lines of two tables, and of a list of reasons between them. Numbers in brackets
    in the first table point to the list.
    """
    reasons: dict[str, int] = {}
    speed = [["model", "call", "framework, ms", *WAYS[1:]]]
    costs = [["model", *TIMED]]
    for label, call, cells in rows:
        for each in cells:
            if each.reason:
                reasons.setdefault(each.reason, len(reasons) + 1)
        texts = (
            f"{each.text} ({reasons[each.reason]})" if each.reason else each.text for each in cells
        )
        speed.append([label, call, *texts])
        costs.append([label, *(each.costs or "-" for each in cells[: len(TIMED)])])
    lines = [BEGIN, "", SPEED, "", *_lines(speed)]
    if reasons:
        lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return [*lines, "", "## First result and memory", "", COSTS, "", *_lines(costs), ""]


SPEED = (
    "The columns *alone*, *inside* and *drop-in* have the framework's time of a call, divided by"
    " onernn's time: above 1, onernn is faster. `8 x 1 step` means that eight calls, each of one"
    " step, were timed. *converted* and *emitted* say whether the outputs are equal. A number in"
    " brackets refers to the list below the table."
)
COSTS = "The time from the start of the process to the first result, and the memory after it."


def _lines(rows: list[list[str]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]


def main(names: list[str]) -> int:
    listed = [name for name, entry in models().items() if "package" in entry]
    found: list[tuple[str, str, list[Cell]]] = []
    for name in names or listed:
        entry = models()[name]
        label = f"{name} ({FRAMEWORKS[entry['kind']]})"
        try:
            path = fetched(entry)
        except NotThere as error:
            found.append((label, "", [Cell("-", reason=f"left out: {error}")] * len(WAYS)))
            continue
        print(name, file=sys.stderr)
        results = results_of(name, path)
        known = known_faults(path)
        cells = [cell(way, results[way], results["framework"], known) for way in WAYS]
        found.append((label, results["row"], cells))
    lines = tables(found)
    print("\n".join(lines))
    if not names:
        page = PAGE.read_text()
        start, stop = page.index(BEGIN), page.index(END)
        PAGE.write_text(page[:start] + "\n".join(lines) + page[stop:])
    return int(any("**" in each.text for _, _, cells in found for each in cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
