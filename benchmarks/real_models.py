"""Real models in each way that they can run: ``python -m benchmarks.real_models [NAME ...]``.

Each model of ``models.toml`` that a package brings: in its framework, by ours alone, inside of the
framework, by the drop-in for it, written anew, and as generated C++. All in processes of their own,
which take turns on one thread. Writes the table into docs/models.md. Exit 1: a way gave other
outputs, or failed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import LEAST_TURNS, Effort, Entry
from benchmarks.model_files import NotThere, fetched
from benchmarks.models import FRAMEWORKS, models, rows
from benchmarks.processes import ROOT, interpreter
from benchmarks.worker import contender
from onernn import audit

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "## The table", "\n**Measured**"
WAYS = ("framework", "alone", "inside", "drop-in", "converted", "emitted")
TIMED = WAYS[:4]
"""The others are only compared: files written anew, and code whose call is a process."""
MODES = {  # of the contenders, by kind of file, in the order of WAYS; "": there is none
    "onnx": (
        *("onnxruntime", "onernn", "onnxruntime onernn", "onnxruntime onernn drop-in"),
        "onnxruntime onernn converted",
    ),
    "paddle": ("paddle default", "onernn", "paddle onernn", "", ""),
}
CALLS = 8
"""At most, of a round: a call of generated code is a process."""
EFFORT = Effort(turns=LEAST_TURNS, turn=0.2, seconds=4, patience=300)


def entry(label: str) -> Entry | str:
    """A contender in one mode, or why there is none."""
    name, _, mode = label.partition(" ")
    folder = ROOT / "benchmarks" / ("" if name == "emitted" else "contenders")
    file = folder / f"{name}.py"
    module = contender(str(file))
    python = interpreter(name, module.PACKAGES)
    return Entry(label, file, mode, module, python, 1) if python else f"no {name} here"


def results_of(name: str, path: Path) -> dict[str, Any]:
    """What each way measured of a model; a text in its place where nothing was."""
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
    """What `onernn audit` says of the framework's own numbers, "" where they may be compared."""
    findings = audit(path).findings if path.suffix == ".onnx" else ()
    wrong = (f.fault for f in findings if f.effect == "wrong" and "file" not in f.paths)
    return ", ".join(dict.fromkeys(wrong))


def cell(way: str, result: Any, host: Any, known: str = "") -> str:
    """A way beside the framework: times as fast, first result, memory; or why not.

    ``known``: faults of the framework, for which outputs differ.
    """
    if isinstance(result, str):
        return result
    if known and "rejected" in result:
        return f"{result['rejected'].partition(',')[0]}: {known}"
    for word in ("left out", "rejected", "failed"):
        if word in result:
            said = {"left out": "refused", "rejected": "**differs**", "failed": "**failed**"}[word]
            return f"{said}: {result[word].replace('|', '/')[:160]}"
    if "median" not in result:
        return "equal"
    costs = f"{result['first'] * 1e3:.0f} ms, {result['resident']:.0f} MB"
    if way == "framework":
        return f"{result['median']:.3g} ms; {costs}"
    if not isinstance(host, dict) or "median" not in host:
        return f"{result['median']:.3g} ms; {costs}"
    return f"{host['median'] / result['median']:.2f}; {costs}"


def main(names: list[str]) -> int:
    listed = [name for name, entry in models().items() if "package" in entry]
    lines = [
        "| model | call | framework: ms a call; first, memory | alone: times as fast; first, memory"
        " | inside | drop-in | converted | emitted |",
        "|---" * 8 + "|",
    ]
    wrong = 0
    for name in names or listed:
        entry = models()[name]
        try:
            path = fetched(entry)
        except NotThere as error:
            lines.append(f"| {name} | left out: {error} ||||||||")
            continue
        print(name, file=sys.stderr)
        found = results_of(name, path)
        known = known_faults(path)
        cells = [cell(way, found[way], found["framework"], known) for way in WAYS]
        wrong |= any("**" in each for each in cells)
        label = f"{name} ({FRAMEWORKS[entry['kind']]})"
        lines.append(f"| {' | '.join([label, found['row'], *cells])} |")
        print(lines[-1])
    if not names:
        page = PAGE.read_text()
        start, stop = page.index(BEGIN), page.index(END)
        PAGE.write_text(page[:start] + "\n".join([BEGIN, "", *lines, ""]) + page[stop:])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
