"""Measures onernn and other frameworks on the same work: ``python -m benchmarks.run --help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onernn
from benchmarks.limits import Reads, limit
from benchmarks.measuring import (
    OURS,
    UNMEASURED,
    Effort,
    Entry,
    comparisons,
    measure,
    ratios,
)
from benchmarks.model_files import NotThere, fetched
from benchmarks.models import Model, models
from benchmarks.models import rows as rows_of_model
from benchmarks.processes import ROOT, interpreter
from benchmarks.report import REFUSED, is_dirty, markdown
from benchmarks.roof import Products, peak, roof
from benchmarks.tasks import DTYPES, Task, named
from benchmarks.worker import contender
from benchmarks.workloads import reference, target, tasks, workloads, written
from onernn import OnernnError

CONTENDERS = Path(__file__).with_name("contenders")
MODELS = "models"
"""The name of the workload that ``models.toml`` describes."""
Rows = list[tuple[str, Task | Model, list[str]]]
"""A list of (workload's name, task, dtypes)."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.run", description=__doc__, epilog="Exit 1: ours was wrong or failed."
    )
    known = ", ".join(sorted(map(named, CONTENDERS.glob("*.py"))))
    add = parser.add_argument
    known_workloads = ", ".join([*workloads(), MODELS])
    add("--workloads", default="ragged,dense", help=f"of {known_workloads}; or all")
    add("--only", default="", help="rows with this regular expression, such as 'LSTM (1|25)x'")
    add("--dtypes", default="all", help=f"of {', '.join(DTYPES)}, where the workload has them")
    add("--threads", default="1", help="such as 1,2: these take turns, too (default: %(default)s)")
    add("--contenders", default="all", help=f"of {known}; or files like those")
    add("--python", action="append", default=[], metavar="NAME=FILE", help="a contender's Python")
    add("--turns", type=int, default=9, help="turns of each contender (default: %(default)s)")
    add("--turn", type=float, default=0.1, help="seconds of a turn (default: %(default)s)")
    add("--seconds", type=float, default=4, help="of a contender in a row (default: %(default)s)")
    add("--patience", type=float, default=120, help="seconds to wait for an answer (%(default)s)")
    add("--out", type=Path, required=True, help="the JSON to write, with a page of the same name")
    add("--dirty", action="store_true", help="write the page of a checkout with changes, too")
    return parser.parse_args()


def some_of(text: str, known: Sequence[str], option: str) -> list[str]:
    """Returns the parts of a list with commas, or ``known`` for "all".

    Raises `ValueError` if a part is not in ``known``.
    """
    given = list(known) if text == "all" else [part.strip() for part in text.split(",")]
    for part in given:
        if part not in known:
            raise ValueError(f"{option}: expected some of {', '.join(known)}, got {part!r}")
    return list(dict.fromkeys(given))


def chosen_rows(given: argparse.Namespace) -> Rows:
    known = workloads()
    dtypes = some_of(given.dtypes, DTYPES, "--dtypes")
    rows: Rows = []
    for name in some_of(given.workloads, [*known, MODELS], "--workloads"):
        of_models = [model for each in models() for model in rows_of_model(each)]
        listed = of_models if name == MODELS else tasks(known[name])
        its = known.get(name, {}).get("dtypes", ["f32"])
        rows += [
            (name, task, [dtype for dtype in its if dtype in dtypes])
            for task in listed
            if re.search(given.only, str(task), re.IGNORECASE)
        ]
    if not any(of for _, _, of in rows):
        raise ValueError("--workloads, --only and --dtypes leave no row")
    return rows


def with_files(rows: Rows) -> tuple[Rows, dict[str, str]]:
    """Returns the rows whose models' files exist, after downloading missing files. Also returns the
    reason for each model that could not be downloaded.
    """
    there: Rows = []
    absent: dict[str, str] = {}
    for name, task, dtypes in rows:
        if isinstance(task, Model):
            try:
                # A path relative to the checkout: results must not name folders of this machine.
                task = task.with_(path=str(fetched(models()[task.name]).relative_to(ROOT)))
            except NotThere as error:
                absent[task.name] = str(error)
                continue
        there.append((name, task, dtypes))
    return there, absent


def chosen_entries(given: argparse.Namespace) -> tuple[list[Entry], dict[str, str]]:
    """Returns every mode of every contender with every number of threads. Also returns the reason
    for each contender that is not installed.
    """
    files = {named(file): file for file in sorted(CONTENDERS.glob("*.py"))}
    if given.contenders != "all":
        listed = given.contenders.split(",")
        files |= {named(part): Path(part).resolve() for part in listed if part.endswith(".py")}
        names = some_of(",".join(map(named, listed)), list(files), "--contenders")
        files = {name: files[name] for name in names}
    pythons = dict(part.partition("=")[::2] for part in given.python)
    some_of(",".join(pythons) or "all", list(files), "--python")
    threads = [int(part) if part.isdecimal() else 0 for part in given.threads.split(",")]
    if min(threads) < 1:
        raise ValueError(f"--threads: expected numbers of at least 1, got {given.threads!r}")
    if given.out.suffix != ".json":
        raise ValueError(f"--out: expected a name that ends in .json, got {given.out}")
    entries: list[Entry] = []
    absent: dict[str, str] = {}
    for name, file in files.items():
        module = contender(str(file))
        python = pythons.get(name) or interpreter(name, module.PACKAGES)
        if python is None:
            absent[name] = f"not installed: {', '.join(module.PACKAGES)}"
            continue
        for mode in module.MODES:
            label = f"{name} {mode}".strip()
            entries += [Entry(label, file, mode, module, python, t) for t in sorted(set(threads))]
    return entries, absent


def versions(entries: list[Entry], patience: float) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the versions that the contenders report, and the reason for each contender that does
    not start.
    """
    versions: dict[str, str] = {}
    broken: dict[str, str] = {}
    for file in dict.fromkeys(entry.file for entry in entries):
        first = next(entry for entry in entries if entry.file == file)
        answer = first.ask(patience, do="versions")
        if "failed" in answer:
            broken[named(file)] = f"installed, but does not start: {answer['failed']}"
        else:
            versions |= answer["versions"]
    return versions, broken


def machine() -> dict[str, Any]:
    """Returns facts about the machine on which the times depend, without paths and host name."""
    with open("/proc/cpuinfo") as lines:
        told = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    command = ["git", "describe", "--always", "--dirty"]
    source = Path(onernn.__file__).parent
    commit = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    capped = f", seen as {os.environ['CPU_CLASS']}" if "CPU_CLASS" in os.environ else ""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "cpu": told.get("model name", platform.processor()) + capped,
        "core": core + capped if (core := named_core(told)) else "",
        "cores": os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "load before": os.getloadavg(),
    }


def named_core(told: dict[str, str]) -> str:
    """Returns the microarchitecture of an AMD CPU by its family and model, "" if it is not known.

    A virtual machine may hide the model's name: many AMD CPUs are "AMD EPYC" there.
    """
    family, model = (int(told.get(key, 0)) for key in ("cpu family", "model"))
    if told.get("vendor_id") != "AuthenticAMD" or family not in (23, 25, 26):
        return ""
    if family == 25:
        return "AMD Zen 3" if model < 0x10 or 0x20 <= model < 0x60 else "AMD Zen 4"
    return "AMD Zen 5" if family == 26 else "AMD Zen 2" if model >= 0x30 else "AMD Zen"


def beside(
    task: Task | Model, row: dict[str, Any], products: Products, reads: Reads
) -> dict[str, Any]:
    """Returns a row's comparisons: see `measuring.comparisons` and `measuring.ratios`."""
    if isinstance(task, Model):
        return comparisons(row, task)
    return ratios(
        row,
        roof(task, products.best) * 1e3,
        limit(task, products.best, reads.best),
        target(workloads()[row["workload"]], task),
    )


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Returns all results. The results are written to the file after every row, so that an
    interrupted run keeps the finished rows.
    """
    (rows, missing), (entries, absent) = with_files(chosen_rows(given)), chosen_entries(given)
    effort = Effort(given.turns, given.turn, given.seconds, given.patience)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    products, reads, measured = Products(), Reads(), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for entry in entries:
            stack.callback(entry.close)
        results = machine()
        results["versions"], broken = versions(entries, given.patience)
        results |= {"left out": missing | absent | broken, "peaks": {}, "rows": []}
        entries = [entry for entry in entries if named(entry.file) not in broken]
        for workload, plain, dtypes in rows:
            if isinstance(plain, Model):
                task, expected = plain.written(folder / "task.npz"), None
            else:
                task = written(plain, folder / "task.npz")
                expected = [reference(task)]
            for dtype in dtypes:
                print(f"{workload}: {task} {dtype}", file=sys.stderr)
                typed = task.with_(dtype=dtype)
                measured += [
                    (each, {"workload": workload, **row})
                    for each, row in measure(typed, expected, entries, effort, products, reads)
                ]
                # Later measurements may find faster products, so all roofs are computed again.
                results["peaks"] = {
                    f"{d}, {t}": peak(d, t, products.best) / 1e9
                    for d, t in dict.fromkeys((each.dtype, each.threads) for each, _ in measured)
                }
                results["rows"] = [
                    row | beside(each, row, products, reads) for each, row in measured
                ]
                results["load after"] = os.getloadavg()
                given.out.write_text(json.dumps(results, indent=1) + "\n")
    return results


def main() -> int:
    given = options()
    # SIGTERM raises KeyboardInterrupt, so that processes and temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = run(given)
        table = markdown(results)
        if given.dirty or not is_dirty(results):
            given.out.with_suffix(".md").write_text(table)
        else:
            print(f"benchmarks.run: {REFUSED}", file=sys.stderr)
    except (ValueError, OSError, OnernnError, re.error) as error:
        print(f"benchmarks.run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"benchmarks.run: interrupted; {given.out} has the rows before", file=sys.stderr)
        return 130
    print(table)
    measured = [
        c for row in results["rows"] for c in row["contenders"] if c["name"].split()[0] == OURS
    ]
    return int(OURS in results["left out"] or any(set(c) & set(UNMEASURED[1:]) for c in measured))


if __name__ == "__main__":
    sys.exit(main())
