"""Output of the command line: tables, sections, a progress bar."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import starmap
from pathlib import Path
from threading import Lock, Timer
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from onernn.ir.errors import OnernnError, message_of, printable
from onernn.ir.files import as_argument
from onernn.verification import doctor
from onernn.verification.auditing import AuditReport
from onernn.verification.comparing import json_text
from onernn.verification.doctor import Examination
from onernn.verification.inspecting import Inspection
from onernn.verification.verifying import Report

T = TypeVar("T")


class _Plain(Console):
    """A console that shows text unchanged: no markup, no emoji names, no terminal control codes."""

    def render_str(self, text: str, **options: Any) -> Text:
        plain = {"markup": False, "emoji": False, "highlight": False}
        return super().render_str(printable(text), **{**options, **plain})

    def on_broken_pipe(self) -> None:
        raise


def complain(what: object) -> None:
    """Prints a message on stderr. Only the message of an `OnernnError` keeps its line breaks."""
    text = message_of(what) if isinstance(what, Exception) else what
    text = printable(text, keep="\n" if isinstance(what, OnernnError) else "")
    print(f"onernn: {text}", file=sys.stderr)


_silent = False
"""Whether the running command prints only warnings, errors and JSON."""


def show_written(
    name: object,
    files: Iterable[Path],
    contents: Iterable[str],
    step: str = "",
    command: Iterable[object] = (),
) -> None:
    """Prints on stderr one line about what a command wrote: the name of a file or folder, its size
    and its contents. If ``step`` is not empty, the line ends with this next step and its command.

    ``files``: the written files. The printed size is the sum of their sizes; pipes and devices have
    no size. If the user passed ``--quiet`` or ``--json``, nothing is printed, and ``contents`` is
    not read.
    """
    if _silent:
        return
    real = [Path(os.path.realpath(each)) for each in files]  # /dev/stdout may be a pipe
    sizes = [each.stat().st_size for each in real if each.is_file()]
    size = [_describe_size(sum(sizes))] if sizes else []
    parts = ", ".join([*size, *contents])
    words = (as_argument(part) if isinstance(part, Path) else str(part) for part in command)
    typed = shlex.join(words)
    usable = typed.isprintable() and step and sizes
    print(
        printable(f"wrote {name}: {parts}") + (f"; {step}: {typed}" if usable else ""),
        file=sys.stderr,
    )


def counted(number: int, noun: str) -> str:
    """Returns a text such as "1 row" or "1,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _describe_size(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return counted(size, "byte")


def show_report(report: Report, json: bool, repair: str = "") -> None:
    """Prints a comparison as JSON, or as a table of its outputs.

    ``repair``: the command that repairs the model, for JSON.
    """
    if json:
        print(report.to_json(repair))
    elif report.outputs:
        table = Table("output", "verdict", "max abs", "max rel", "reason")
        for each in report.outputs:
            verdict = Text("pass", "green") if each.passed else Text("FAIL", "bold red")
            table.add_row(
                each.name, verdict, f"{each.max_abs:.3g}", f"{each.max_rel:.3g}", each.reason
            )
        stdout().print(table)


def show_json(status: bool | str, **more: Any) -> None:
    """Prints a JSON object with the keys that all commands have, and the keys ``more``."""
    print(json_text(status, **more))


PATIENCE = 1.0
"""Seconds after which the progress bar appears. Shorter work ends before a user could read it."""


class _Left:
    """An estimate of the remaining time, from the average speed since the first report of progress.
    The speed of single steps varies too much.
    """

    def __init__(self) -> None:
        self._begun = (0.0, 0.0, 0.0)

    def __call__(self, now: float, done: float, of: float) -> str:
        """Returns the remaining time as text, or "" if it is not known. ``now``: the time in
        seconds. ``done`` and ``of``: the amount of finished work and of all work.
        """
        start, first, total = self._begun
        if of != total or done < first:
            start, first, _ = self._begun = (now, done, of)
        if not of or done <= first:
            return ""
        return str(timedelta(seconds=round((now - start) * (of - done) / (done - first))))


class _Bar:
    """A progress bar on stderr, which appears if the work takes longer than `PATIENCE`."""

    def __init__(self, title: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),  # empty while the total is unknown
            TimeElapsedColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[left]}"),
            console=_console(stderr=True),
            transient=True,
            redirect_stdout=False,  # True would write results to stderr
        )
        self._task = self._progress.add_task(title, total=None, left="")
        self._left = _Left()
        self._over, self._lock = False, Lock()
        self._timer = Timer(PATIENCE, self._start)
        self._timer.daemon = True
        self._timer.start()

    def _start(self) -> None:
        with self._lock:
            if not self._over:
                self._progress.start()

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            if not self._over:
                self._over = True
                self._progress.stop()

    def tell(self, stage: str, done: float, of: float) -> None:
        text = printable(stage)
        left = self._left(time.monotonic(), done, of)
        self._progress.update(
            self._task, description=text, completed=done, total=of or None, left=left
        )


@contextmanager
def broken_pipes() -> Iterator[None]:
    """Removes the errno of a `BrokenPipeError`, for which typer would end with exit code 1."""
    try:
        yield
    except BrokenPipeError as error:
        error.errno = None
        raise


class Output:
    """A stream that wraps stdout or stderr. The first result removes the progress bar.

    After an error all text is discarded. For stdout the error is raised, also by all later calls,
    because click ignores some errors.
    """

    def __init__(self, stream: TextIO, is_result: bool) -> None:
        self._stream, self._is_result = stream, is_result
        self._error: OSError | None = None

    def write(self, text: str) -> int:
        if self._is_result:
            hide_bar()
        with self._checked():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            with broken_pipes():
                yield
        except OSError as error:
            with suppress(OSError):  # otherwise the end of Python would raise the error again
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            error.filename = "stdout"
            self._error = error
        if self._error and self._is_result:
            raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_bar: _Bar | None = None
"""The progress bar of the running command, None if it has none."""


@contextmanager
def working(title: str, hidden: bool) -> Iterator[None]:
    """Shows a progress bar while the block runs, if stderr is a terminal and ``hidden`` is false.

    If ``hidden`` is true, `show_written` prints nothing.
    """
    global _bar, _silent
    _silent = hidden
    if hidden or not _console(stderr=True).is_interactive:
        yield
        return
    _bar = _Bar(title)
    try:
        yield
    finally:
        _bar.stop()
        _bar = None


def hide_bar() -> None:
    """Removes the progress bar."""
    if _bar:
        _bar.stop()


@contextmanager
def progress() -> Iterator[Callable[[str, float, float], None]]:
    """Yields a function that moves the command's progress bar.

    The function takes the name of the stage, the amount of finished work, and the amount of all
    work, which is 0 if unknown.
    """
    yield _bar.tell if _bar else lambda stage, done, of: None


def watch(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yields the items in order, and moves the progress bar by one item each time. ``what`` is the
    bar's text.
    """
    with progress() as tell:
        for done, item in enumerate(items):
            tell(what, done, len(items))
            yield item


def _console(**options: Any) -> Console:
    """Returns a console. If NO_COLOR is set, the console shows no colours and no bold text."""
    return _Plain(color_system=None if os.environ.get("NO_COLOR") else "auto", **options)


def stdout() -> Console:
    """Returns the console for results."""
    # In a pipe no line is wrapped, so that grep finds whole lines.
    console = _console(soft_wrap=True)
    return console if console.is_terminal else _console(soft_wrap=True, width=200)


def section(console: Console, title: str, lines: Iterable[object]) -> None:
    """Prints the lines that are not empty under a title. Prints nothing if all lines are empty."""
    for index, line in enumerate(filter(None, lines)):
        if not index:
            console.print(title, style="bold")
        console.print(f"  {line}")


def show_inspection(console: Console, inspection: Inspection, plugin: str) -> None:
    """Prints the result of inspecting a model. ``plugin``: a line that says how to run the model in
    its framework, or "".
    """
    console.print(inspection.model.name, style="bold")
    section(console, "inputs", inspection.model.inputs)
    section(console, "outputs", inspection.model.outputs)
    table = Table("operator", "before", "after", title="operators", title_justify="left")
    for op, (before, after) in inspection.operators.items():
        table.add_row(op, str(before), str(after))
    console.print(table)
    fired = [
        f"{each['pass']} -> {each['where']}: {each['from']}"
        + (f" ({each['called']})" if each["called"] else "")
        for each in inspection.fused
    ]
    section(console, "fused", fired)
    section(console, "not fused", inspection.result.refusals)
    section(console, "unsupported", inspection.unsupported)
    advice = "--rules FILE.py: functions that say what these operators compute"
    section(console, "runs anyway", [plugin, advice if inspection.unsupported else ""])
    section(console, "kernels", inspection.kernel_lines)
    section(console, "in Python", [inspection.interpreted])
    section(console, "notes", inspection.model.notes)


def show_audit(console: Console, report: AuditReport) -> None:
    """Prints the known faults that affect a model, with the operators and the errors they cause."""
    section(console, "audit", [f"{report.model}, under {report.framework}", f"on {report.batch}"])
    section(console, "paths", [f"{path}: {what}" for path, what in report.ways.items()])
    table = Table("fault", "paths", "operator", "value", "effect", "max abs")
    for each in report.findings:
        silent = each.effect == "wrong" and not each.counts
        effect = "not on this batch" if silent and not each.max_abs else each.effect
        error = "" if each.max_abs is None else f"{each.max_abs:.3g}"
        table.add_row(each.fault, ", ".join(each.paths), each.operator, each.value, effect, error)
    if report.findings:
        console.print(table)
    section(console, "why", dict.fromkeys(f"{each.fault}: {each.text}" for each in report.findings))
    lines = [
        f"{path}, {each.name}: {each.reason or f'{each.max_abs:.3g} apart'}"
        for path, outputs in report.paths.items()
        for each in outputs
        if not each.passed
    ]
    section(console, "all faults of a path together", lines)
    hits = sum(each.counts for each in report.findings)
    faults = counted(hits, "known fault") if hits else "no known faults"
    console.print(f"{faults} of {report.framework} would hit a run on one of these paths")


def show_examination(console: Console, examination: Examination) -> None:
    """Prints the installed kernels and packages. If the examination checked the cells, it also
    prints the verdict and a table of errors.
    """
    result = examination
    if result.findings:
        verdicts = Counter(finding.verdict for finding in result.findings)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        console.print(f"verdict: {'pass' if result.passed else 'FAIL'}: {counts}")
    else:
        console.print(f"onernn {result.onernn}, {result.machine}")
    console.print(f"kernels: {result.kernels}")
    isa = f" ({result.isa})" if result.isa else ""
    console.print(f"oneDNN: {result.version}{isa}, {result.path}")
    console.print(f"threads: {result.threads or 'as the library chooses'}")
    if result.other_copies:
        console.print(f"other copies of libdnnl here: {', '.join(result.other_copies)}")
    console.print(f"packages: {', '.join(map(str, result.packages)) or 'not installed by pip'}")
    if not result.findings:
        section(console, "extras", starmap(_describe_extra, result.extras.items()))
        console.print("onernn doctor --full compares every kind of layer with a reference")
        return
    for line in doctor.wrong(result):
        console.print(line)
    columns = ("cell", "direction", *doctor.columns(result))
    table = Table(*columns, title="max error", title_justify="left")
    for row in doctor.rows(result):
        table.add_row(*row)
    console.print(table)
    console.print(doctor.LEGEND)
    section(console, "kernels", doctor.kernels(result))
    section(console, "reasons", doctor.reasons(result))


def _describe_extra(extra: str, packages: Sequence[doctor.Package]) -> str:
    """Returns a line with the versions of an extra's packages. If packages are missing, the line
    has the command that installs them.
    """
    text = f"{extra}: {', '.join(map(str, packages))}"
    whole = all(each.fits for each in packages)
    return text if whole else f"{text}; pip install 'onernn[{extra}]'"
