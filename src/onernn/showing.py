"""How the command line shows what was found: tables, sections, a bar for what takes long."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from rich.text import Text

from onernn.adapters.registry import pass_name
from onernn.core.errors import OnernnError, printable
from onernn.core.graph import Graph, native_types
from onernn.fuse_passes import FuseResult
from onernn.verification import support_table
from onernn.verification.auditing import AuditReport
from onernn.verification.doctor import Examination
from onernn.verification.verifying import Report, error_json

T = TypeVar("T")


class _Plain(Console):
    """Shows text as it is: no markup, no emoji names, nothing that a terminal would obey."""

    def render_str(self, text: str, **options: Any) -> Text:
        plain = {"markup": False, "emoji": False, "highlight": False}
        return super().render_str(printable(text), **{**options, **plain})


def complain(what: object) -> None:
    """A message on stderr. Only our own errors have further lines: what they list."""
    text = printable(what, keep="\n" if isinstance(what, OnernnError) else "")
    print(f"onernn: {text}", file=sys.stderr)


def show_report(report: Report, json: bool) -> None:
    """A comparison: as JSON, or as a table of its outputs."""
    if json:
        print(report.to_json())
    elif report.outputs:
        table = Table("output", "verdict", "max abs", "max rel", "reason")
        for each in report.outputs:
            verdict = "pass" if each.passed else "FAIL"
            table.add_row(
                each.name, verdict, f"{each.max_abs:.3g}", f"{each.max_rel:.3g}", each.reason
            )
        stdout().print(table)


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """Prints an error as JSON before it is raised, where a command was asked for JSON."""
    try:
        yield
    except (OnernnError, OSError, ValueError) as error:
        if wanted:
            print(error_json(error))
        raise


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal's stderr, for what takes long."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda stage, done, of: bar.update(
            task, description=stage, completed=done, total=of or None
        )


def watched(what: str, items: Sequence[T]) -> Iterable[T]:
    """The items, one after the other, with a bar on a terminal's stderr."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def stdout() -> Console:
    """The console that results go to."""
    # In a pipe nothing is wrapped: lines stay whole for grep.
    console = _Plain(soft_wrap=True)
    return console if console.is_terminal else _Plain(soft_wrap=True, width=200)


def section(console: Console, title: str, lines: object) -> None:
    """Lines under a title; nothing where there are none."""
    listed = list(lines)  # type: ignore[call-overload]
    if listed:
        console.print(title, style="bold")
        for line in listed:
            console.print(f"  {line}")


def show_fusion(console: Console, graph: Graph, result: FuseResult) -> None:
    """A graph's operators before and after fusion, what fused, and what did not and why."""
    before, after = (Counter(node.op for node in g.nodes) for g in (graph, result.model))
    table = Table("operator", "before", "after", title="operators", title_justify="left")
    for op in sorted(before | after):
        table.add_row(op, str(before[op]), str(after[op]))
    console.print(table)
    fired = [
        f"{each.name} -> {each.where}: {native_types(each.origin)}"
        + (f" ({name})" if (name := pass_name(each)) else "")
        for each in result.applied
    ]
    section(console, "fused", fired)
    section(console, "not fused", map(str, result.refusals))


def show_audit(console: Console, found: AuditReport) -> None:
    """Which faults would hit a model, where, and how large they are."""
    section(console, "audit", [f"{found.model}, under {found.framework}", f"on {found.batch}"])
    section(console, "paths", [f"{path}: {what}" for path, what in found.ways.items()])
    table = Table("fault", "paths", "operator", "value", "effect", "max abs")
    for each in found.findings:
        silent = each.effect == "wrong" and not each.counts
        effect = "not on this batch" if silent and not each.max_abs else each.effect
        error = "" if each.max_abs is None else f"{each.max_abs:.3g}"
        table.add_row(each.fault, ", ".join(each.paths), each.operator, each.value, effect, error)
    if found.findings:
        console.print(table)
    section(console, "why", dict.fromkeys(f"{each.fault}: {each.text}" for each in found.findings))
    lines = [
        f"{path}, {each.name}: {each.reason or f'{each.max_abs:.3g} apart'}"
        for path, outputs in found.paths.items()
        for each in outputs
        if not each.passed
    ]
    section(console, "all faults of a path together", lines)
    hits = sum(each.counts for each in found.findings)
    counted = f"{hits or 'no'} known fault{'s' if hits != 1 else ''}"
    console.print(f"{counted} of {found.framework} would hit a run on one of these paths")


def show_examination(console: Console, examination: Examination) -> None:
    """What this machine can do, how exactly, and why not."""
    found = examination
    section(
        console,
        "machine",
        [
            f"instruction set of oneDNN: {found.isa or '-'}",
            f"library: oneDNN {found.version}, {found.path}",
            f"kernels: {found.kernels}",
            f"threads: {found.threads or 'as the library chooses'}",
            *(f"another libdnnl in this process: {path}" for path in found.other_copies),
        ],
    )
    table = Table(
        "cell", "direction", *support_table.COLUMNS, title="max error", title_justify="left"
    )
    for row in support_table.rows(found):
        table.add_row(*row)
    console.print(table)
    console.print(support_table.LEGEND)
    section(console, "kernels", support_table.kernels(found))
    section(console, "reasons", support_table.reasons(found))
    verdicts = Counter(finding.verdict for finding in found.findings)
    section(console, "verdicts", [f"{count} {verdict}" for verdict, count in verdicts.items()])
