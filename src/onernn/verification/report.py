"""Shows a report as text for the terminal, and as one HTML file that needs no other file."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from onernn.adapters.registry import RUNTIMES
from onernn.fuse_passes import fuse
from onernn.ir.errors import OnernnError
from onernn.ir.files import check_folder
from onernn.ir.ragged import Batch, Ragged
from onernn.verification.diagnosis.cause import Cause
from onernn.verification.inspecting import Inspection, fill_page, pictures, write_text
from onernn.verification.profiles import PLACES, Profile
from onernn.verification.verifying import Report

_PROFILES = 6
"""Maximum number of outputs whose errors the page shows by step, length and direction."""
_STEPS = 8
"""Maximum number of layers in the text's list of steps."""
_AROUND = 4
"""The number of matched nodes that are shown before and after the first node that differs."""


def check_report(path: str | Path) -> None:
    """Raises the error that `write_report` would raise for this path; it is called before a model
    runs.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path}: expected a file for the report, got a folder")
    check_folder(path)


def write_report(report: Report, path: str | Path, command: str = "", repairs: str = "") -> None:
    """Writes a report as an HTML page.

    ``command``: the command that reproduces the report. ``repairs``: the command that undoes the
    causes. Raises `OSError` if the file cannot be written.
    """
    check_report(path)
    write_text(render(report, command, repairs), path)


def render(report: Report, command: str = "", repairs: str = "") -> str:
    """Returns the HTML page of a report."""
    content = {**_content(report), "command": command, "repairs": repairs}
    return fill_page("report.html.jinja", content)


def _content(report: Report) -> dict[str, Any]:
    evidence = report.evidence
    if evidence is None:
        raise ValueError("report: expected a result of onernn.verify with its evidence")
    inspection = Inspection(evidence.model, fuse(evidence.model), (), ())
    first = None if report.matches else report.first
    marks = {first.value.partition("@")[0]: "first that differs"} if first else {}
    passed = {output.name: output.passed for output in report.outputs}
    return {
        "report": report,
        "reference": evidence.reference.who,
        "proved": evidence.reference.against is not None,
        "model": evidence.model.name,
        "headline": _headline(report),
        "outputs": [(each, report.errors[each.name]) for each in report.outputs],
        "inputs": [(name, _describe(value)) for name, value in evidence.inputs.items()],
        "profiles": sorted(report.profiles, key=lambda each: passed[each.name])[:_PROFILES],
        "passed": passed,
        "kinds": PLACES,
        "layers": _around(report),
        "inspection": inspection,
        **pictures(inspection, marks),
        "kernels": report.kernels.splitlines(),
        "versions": list(versions()),
    }


def _headline(report: Report) -> str:
    count = len(report.outputs)
    if report.matches:
        if report.unseen:
            return "The outputs match, on too few steps."
        return f"All {count} outputs match." if count > 1 else "The output matches."
    failed = sum(not output.passed for output in report.outputs)
    which = "The output differs" if count == 1 else f"{failed} of {count} outputs differ"
    return f"{which} from the reference."


def _describe(value: Batch) -> str:
    if isinstance(value, Ragged):
        lengths = ", ".join(map(str, value.lengths[:12])) + (", …" if len(value) > 12 else "")
        return f"{value.data.dtype} {value.data.shape}, {len(value)} sequences of {lengths} steps"
    return f"{value.dtype} {value.shape}"


def _around(report: Report) -> list[dict[str, Any]]:
    """Returns up to `_AROUND` matched nodes on each side of the first that differs; if all agree,
    the recurrent nodes.
    """
    layers, first = report.layers, report.first
    if first is None:
        chosen = [each for each in layers if each.part]
    else:
        index = layers.index(first)
        chosen = [*layers[max(0, index - _AROUND) : index + _AROUND + 1]]
    return [{"layer": each, "first": each is first} for each in chosen]


def versions() -> Iterator[tuple[str, str]]:
    """Yields the name and version of onernn, NumPy, Python, oneDNN and each installed framework."""
    yield "onernn", metadata.version("onernn")
    yield "numpy", metadata.version("numpy")
    yield from ((each.name, each.version) for each in RUNTIMES.values() if each.version)
    yield "Python", platform.python_version()
    yield "machine", f"{platform.system()} {platform.machine()}"
    try:
        from onernn.backend.onednn.library import load_library

        library = load_library()
        yield "oneDNN", f"{library.version}, {library.effective_isa}"
    except OnernnError as error:
        yield "oneDNN", str(error)


# --- a report as text, for the terminal and for the page


def explanation(report: Report) -> list[tuple[str, list[str]]]:
    """Returns the sections of a report, each as a title and lines.

    The sections are the cause, the first node that differs, the errors, the steps of layers, and
    the assumptions.
    """
    sections: dict[str, list[str]] = {}
    if not report.matches:
        count = len(report.causes)
        lines = [line for each in report.causes for line in _cause_lines(each)]
        lines += filter(None, [report.stopped])
        title = f"{count} causes" if count > 1 else "cause"
        sections[title] = lines or ["none of the known faults explains it"]
    if not report.matches and (first := report.first):
        agreed = [  # omits nodes that are not layers and come from the same operator as `first`
            each
            for each in report.layers[: report.layers.index(first)]
            if each.part or each.native != first.native
        ]
        lines = [f"{first}: {first.comparison.reason}"]
        lines += [f"the last that agrees: {agreed[-1]}"] if agreed else []
        sections["first node apart"] = lines
    if not report.matches:
        failed = {output.name for output in report.outputs if not output.passed}
        profiles = (each for each in report.profiles if each.name in failed)
        sections["errors"] = [line for each in profiles for line in summary(each)]
    sections["too few steps"] = list(report.unseen)
    steps = list(map(str, report.steps))
    more = [f"and {len(steps) - _STEPS} more"] if len(steps) > _STEPS else []
    sections["steps of recurrent layers"] = [*steps[:_STEPS], *more]
    sections["notes"] = list(report.notes)
    return [(title, lines) for title, lines in sections.items() if lines]


def _cause_lines(cause: Cause) -> list[str]:
    how = {
        "proved": "proved: without it the outputs match, on inputs that it was not found with, too",
        "candidate": "a candidate: without it the outputs match on this batch, which is no proof",
    }
    return [f"{cause.text} [{cause.id}]", how[cause.evidence], *filter(None, [cause.advice])]


def summary(profile: Profile) -> list[str]:
    """Returns lines with an output's largest errors: one line by step, one by length, one by
    direction.
    """
    lines = []
    where = f"{profile.name} (final state)" if profile.state else profile.name
    for kind, what in PLACES.items():
        if len(rows := getattr(profile, kind)) > 1:
            shown = rows if len(rows) <= 6 else _spread(rows)
            numbers = ", ".join(f"{place}: {worst:.2g}" for place, worst, _ in shown)
            lines.append(f"{where}, largest by {what}: {numbers}")
    return lines


def _spread(rows: tuple[tuple[str, float, float], ...]) -> list[tuple[str, float, float]]:
    return [rows[round(k * (len(rows) - 1) / 5)] for k in range(6)]
