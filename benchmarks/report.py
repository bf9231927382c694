"""Writes a page and a plot of results: ``python -m benchmarks.report [--dirty] FILE.json ...``.

The title of the page names the machine. If the measured checkout had uncommitted changes, the page
is written only with ``--dirty``, and its title mentions the changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

OURS = "onernn"
REFUSED = (
    "no page: the measured checkout had uncommitted changes; measure a commit, or pass --dirty"
)
DIRTY = "-dirty"
"""The end of a commit's name if the checkout had uncommitted changes."""
TYPES = {"f32": "float32", "bf16": "bfloat16"}
WORK = {
    "ragged": "ragged batches",
    "dense": "dense batches",
    "stream": "single steps",
    "training": "training",
    "training-ragged": "training on ragged batches",
    "corpus": "4096 sequences in a batch",
    "deepbench": "DeepBench's sizes",
    "onednn": "oneDNN's sizes",
    "models": "whole models",
}
"""The names of workloads in titles."""
Row = Mapping[str, Any]


def markdown(results: Mapping[str, Any]) -> str:
    """Returns the page: the machine, and a table for each workload, dtype and number of threads,
    followed by the contenders that were not measured.
    """
    lines = [f"# {title(results)}", "", *_machine(results), "", *_targets(results["rows"])]
    for (workload, dtype, threads), rows in _groups(results):
        heading = f"{workload}, {dtype}, {threads} thread{'s' * (threads > 1)}"
        tables = _of_models(rows) if "compared" in rows[0] else _table(rows)
        lines += [f"## {heading}", "", *tables, "", *_aside(rows)]
    return "\n".join(lines).rstrip() + "\n"


def title(results: Mapping[str, Any]) -> str:
    """Returns the machine, the dtypes and the workloads of the results."""
    dtypes = dict.fromkeys(TYPES.get(row["dtype"], row["dtype"]) for row in results["rows"])
    work = dict.fromkeys(WORK.get(row["workload"], row["workload"]) for row in results["rows"])
    machine = results.get("core") or results["cpu"]
    text = f"{machine}, {results['cores']} cores, {_listed(dtypes)}, {_listed(work)}"
    return f"{text} (uncommitted changes)" if is_dirty(results) else text


def is_dirty(results: Mapping[str, Any]) -> bool:
    """Returns whether the measured checkout had changes that its commit lacks."""
    return str(results["commit"]).endswith(DIRTY)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _groups(results: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, int], list[Row]]]:
    def key(row: Row) -> tuple[str, str, int]:
        return row["workload"], row["dtype"], row["threads"]

    order = list(dict.fromkeys(map(key, results["rows"])))
    for group, rows in groupby(sorted(results["rows"], key=lambda r: order.index(key(r))), key):
        yield group, list(rows)


def _machine(results: Mapping[str, Any]) -> list[str]:
    loads = [f"{results[when][0]:.2f}" for when in ("load before", "load after") if when in results]
    peaks = "; ".join(f"{name}: {value:.0f}" for name, value in results["peaks"].items())
    out = [
        f"- measured {results['date']}, at {results['commit']}",
        f"- {results['cpu']}, {results['cores']} cores, {results['platform']}",
        f"- {', '.join(f'{name} {number}' for name, number in results['versions'].items())}",
        f"- oneDNN's matmul, GFLOP/s by dtype and threads: {peaks}",
        f"- load average of the minute before and after: {', '.join(loads)}",
    ]
    out += [f"- left out: {name}, {reason}" for name, reason in results["left out"].items()]
    return out


def _table(rows: Iterable[Row]) -> list[str]:
    """Returns a table of median times in ms, with the fastest other framework in bold. One column
    says how many times as fast as this framework onernn is.
    """
    rows = list(rows)
    names = list(dict.fromkeys(c["name"] for row in rows for c in row["contenders"]))
    peers = [name for name in names if name != OURS]
    head = ["ms", "roof", OURS, "of roof", "times faster", "by minima", *peers]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        cells = {c["name"]: _milliseconds(c.get("median")) for c in row["contenders"]}
        if best := row.get("best peer"):
            cells[best] = f"**{cells[best]}**"
        share = f"{row['of roof']:.0%}" if "of roof" in row else "-"
        faster = [
            f"{row['faster'][kind]:.2f}" if "faster" in row else "-" for kind in ("median", "min")
        ]
        own = cells.get(OURS, "-")
        ours = [_milliseconds(row["roof"]), own, share, *faster]
        lines.append([row["row"], *ours, *(cells.get(name, "-") for name in peers)])
    return [f"| {' | '.join(line)} |" for line in lines]


def _of_models(rows: Iterable[Row]) -> list[str]:
    """Returns tables of whole models: the ratios of `measuring.comparisons`, and then the medians
    of rounds, the times of first calls and the memory.
    """
    rows = list(rows)
    names = list(dict.fromkeys(c["name"] for row in rows for c in row["contenders"]))
    names.sort(key=lambda name: OURS != name)

    def table(key: str, unit: str, scale: float = 1) -> list[str]:
        lines = [[unit, *names], ["---", *["---:"] * len(names)]]
        for row in rows:
            cells = {c["name"]: c.get(key) for c in row["contenders"]}
            numbers = [cells.get(name) for name in names]
            times = [_milliseconds(None if n is None else n * scale) for n in numbers]
            lines.append([row["row"], *times])
        return [*(f"| {' | '.join(line)} |" for line in lines), ""]

    head = ["", "beside", "times faster", "by minima", "of the CPU", "wanted", "verdict"]
    head += ["first call", "memory"]
    lines = [head, ["---", "---", *["---:"] * 4, "---", "---:", "---:"]]
    lines += [
        [
            f"{row['row']}: {each['of']}", each["beside"],
            f"{each['median']:.2f}", f"{each['min']:.2f}", f"{each['cpu']:.2f}",
            f"{each['target']:.2f}" if "target" in each else "-", each.get("verdict", "-"),
            f"{each['first']:.2f}", f"{each['resident']:.2f}",
        ]
        for row in rows
        for each in row["compared"]
    ]  # fmt: skip
    return [
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        *table("median", "ms of a round"),
        *table("first", "ms of the first call, from the start of the process", 1e3),
        *table("resident", "MB at the end"),
    ][:-1]


def _targets(rows: Iterable[Row]) -> list[str]:
    """Returns a table of the rows that have a target, with the measured ratio and the share of the
    limit. A line after it names rows in which u8 is not faster than bf16.
    """
    rows = [row for row in rows if "verdict" in row]
    if not rows:
        return []
    met = sum(row["verdict"] != "missed" for row in rows)
    head = ["", "dtype", "threads", "best peer", "times faster", "by minima", "wanted"]
    head += ["ms", "limit", "of limit", "verdict"]
    lines = [head, ["---", "---", "---:", "---", *["---:"] * 6, "---"]]
    for row in rows:
        bound = row["limit"]
        lines.append([
            row["row"], row["dtype"], str(row["threads"]), row["best peer"],
            f"{row['faster']['median']:.2f}", f"{row['faster']['min']:.2f}", f"{row['target']:.2f}",
            _milliseconds(_own(row)), f"{_milliseconds(bound['ms'])} ({bound['of']})",
            f"{row['of limit']:.0%}", row["verdict"],
        ])  # fmt: skip
    own = {(row["workload"], row["row"], row["threads"], row["dtype"]): _own(row) for row in rows}
    slow = [
        f"{row}, {threads} thread{'s' * (threads > 1)}"
        for (workload, row, threads, dtype), ms in own.items()
        if workload == "ragged" and dtype == "u8"
        if ms >= own.get((workload, row, threads, "bf16"), ms + 1)
    ]
    warning = [f"- u8 is not faster than bf16: {', '.join(slow)}", ""] if slow else []
    return [
        f"## Targets: {met} of {len(rows)} met",
        "",
        "The limit: operations at the machine's peak, or bytes at its bandwidth, whichever is"
        " slower. 85 % of it is enough where a target would need more.",
        "",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        *warning,
    ]


def _own(row: Row) -> float:
    return next(float(c["median"]) for c in row["contenders"] if c["name"] == OURS)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _aside(rows: Iterable[Row]) -> list[str]:
    """Returns lines that name the contenders without a time, with the reason and the rows."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for c in row["contenders"]:
            for kind in ("rejected", "failed", "left out"):
                if kind in c:
                    reasons.setdefault(f"{c['name']} {kind}: {c[kind]}", []).append(row["row"])
    lines = [f"- {reason} ({', '.join(where)})" for reason, where in reasons.items()]
    return [*lines, ""] if lines else []


def plot(results: Mapping[str, Any], file: Path) -> None:
    """Writes a plot with a line for each row. A point is the median time of a contender as a
    multiple of the roof, and onernn's points are black diamonds.

    Raises `ModuleNotFoundError` if matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    # A fixed salt writes the same bytes each time; text without outlines keeps the file small.
    matplotlib.rcParams |= {"svg.hashsalt": "onernn", "svg.fonttype": "none"}
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    rows = [(group, row) for group, rows in _groups(results) for row in rows if "roof" in row]
    names = list(dict.fromkeys(c["name"] for _, row in rows for c in row["contenders"]))
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.24 * len(rows)), layout="constrained")
    colours = pyplot.get_cmap("tab20").colors
    for k, name in enumerate([n for n in names if n != OURS] + [n for n in names if n == OURS]):
        points = [
            (c["median"] / row["roof"], -y)
            for y, (_, row) in enumerate(rows)
            for c in row["contenders"]
            if c["name"] == name and "median" in c
        ]
        ours = name == OURS
        style = {"color": "black"} if ours else {"color": colours[k % 20], "alpha": 0.8}
        axes.scatter(*zip(*points, strict=True) if points else ((), ()), label=name,
                     marker="D" if ours else "o", s=36 if ours else 22, **style)  # fmt: skip
    labels = [f"{row['row']}  {dtype}, {n}" for (_, dtype, n), row in rows]
    axes.set_yticks([-y for y in range(len(rows))], labels, fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel(f"time / roof ({results['cpu']}; row, dtype, threads)")
    axes.grid(axis="y", linewidth=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=5, fontsize=7, frameon=False)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def main(files: list[str]) -> int:
    names = [each for each in files if each != "--dirty"]
    if not names:
        print("usage: python -m benchmarks.report [--dirty] RESULT.json ...", file=sys.stderr)
        return 2
    for name in names:
        try:
            results = json.loads(Path(name).read_text())
            text = markdown(results)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"benchmarks.report: {name}: {error!r}", file=sys.stderr)
            return 2
        if is_dirty(results) and "--dirty" not in files:
            print(f"benchmarks.report: {name}: {REFUSED}", file=sys.stderr)
            return 2
        Path(name).with_suffix(".md").write_text(text)
        try:
            if any("roof" in row for row in results["rows"]):
                plot(results, Path(name).with_suffix(".svg"))
        except ModuleNotFoundError as error:
            print(f"benchmarks.report: no plot: {error}; pip install matplotlib", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
