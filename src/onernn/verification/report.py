"""A report in words for the terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

import io
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.registry import RUNTIMES, pass_name
from onernn.fuse_passes import fuse
from onernn.ir.errors import LibraryError, MissingDependencyError, OnernnError, printable
from onernn.ir.graph import native_types
from onernn.ir.ragged import Batch, Ragged
from onernn.verification.diagnosis.cause import Cause
from onernn.verification.inspecting import filled, fused_values, picture, write_text
from onernn.verification.profiles import Profile
from onernn.verification.verifying import Evidence, Report

_PLOTTED = 6
"""Outputs with pictures; tables list all of them."""
_AROUND = 4
"""Matched nodes shown before and after the first that departs."""


class Plotted(NamedTuple):
    """An output's pictures."""

    name: str
    state: bool
    passed: bool
    plots: list[Plot]


def check_report(path: str | Path) -> None:
    """Raises what `write_report` would, before anything is run."""
    for module in ("jinja2", "matplotlib"):
        require(module, "report")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path}: a report is a file, this is a folder")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no such folder to write a report into")


def write_report(report: Report, path: str | Path, command: str = "") -> None:
    """Writes a verdict as a page. ``command``: what reproduces it, as typed.

    Raises `MissingDependencyError` without jinja2 and matplotlib, `OSError` if it cannot write.
    """
    check_report(path)
    write_text(render(report, command), path)


def render(report: Report, command: str = "") -> str:
    """The page as text."""
    return filled("report.html.jinja", _content(report, command))


def _content(report: Report, command: str) -> dict[str, Any]:
    evidence = report.evidence
    if evidence is None:
        raise ValueError("this report was made without evidence: it has no page")
    failed = [output for output in report.outputs if not output.passed]
    return {
        "report": report,
        "failed": failed,
        "command": command,
        "reference": evidence.reference.who,
        "model": evidence.model.name,
        "headline": _headline(report),
        "tolerances": evidence.tolerances,
        "outputs": [(each, report.errors[each.name]) for each in report.outputs],
        "inputs": [(name, _described(value)) for name, value in evidence.inputs.items()],
        "plotted": list(_plotted(report, evidence)),
        "layers": _around(report),
        "fusion": _fusion(report, evidence),
        "kernels": report.kernels.splitlines(),
        "versions": list(versions()),
    }


def _headline(report: Report) -> str:
    count = len(report.outputs)
    if report.passed:
        return f"All {count} outputs match." if count > 1 else "The output matches."
    failed = sum(not output.passed for output in report.outputs)
    which = "The output differs" if count == 1 else f"{failed} of {count} outputs differ"
    return f"{which} from the reference."


def _described(value: Batch) -> str:
    if isinstance(value, Ragged):
        lengths = ", ".join(map(str, value.lengths[:12])) + (", …" if len(value) > 12 else "")
        return f"{value.data.dtype} {value.data.shape}, {len(value)} sentences of {lengths} words"
    return f"{value.dtype} {value.shape}"


def _plotted(report: Report, evidence: Evidence) -> Iterator[Plotted]:
    """Failing outputs first."""
    verdicts = {output.name: output.passed for output in report.outputs}
    profiles = sorted(report.profiles, key=lambda each: verdicts[each.name])
    for each in profiles[:_PLOTTED]:
        tolerance = evidence.tolerances[each.name]
        result = report.errors[each.name]
        largest = result.max_abs / result.max_rel if result.max_rel > 0 else 0.0
        allowed = tolerance.atol + tolerance.rtol * largest
        pictures = plots(each, allowed)
        if pictures:
            yield Plotted(each.name, each.state, verdicts[each.name], pictures)


def _around(report: Report) -> list[dict[str, Any]]:
    """The matched nodes around the first that departs, or the recurrent ones where all agree."""
    layers, first = report.layers, report.first
    if first is None:
        chosen = [each for each in layers if each.part]
    else:
        index = layers.index(first)
        chosen = list(layers[max(0, index - _AROUND) : index + _AROUND + 1])
    return [{"layer": each, "first": each is first} for each in chosen]


def _fusion(report: Report, evidence: Evidence) -> dict[str, Any]:
    result = fuse(evidence.model)
    before, after = evidence.model, result.model
    old, new = fused_values(before, after)
    apart = set()
    if not report.passed and report.first is not None:
        apart.add(report.first.value.partition("@")[0])
    fired = [
        f"{each.name}: {native_types(each.origin)}"
        + (f" ({name} in Paddle)" if (name := pass_name(each)) else "")
        for each in result.applied
    ]
    return {
        "before": picture(before, "The graph as it was read", fused=old, apart=apart),
        "after": picture(after, "The graph after fusion", fused=new, apart=apart),
        "nodes": (len(before.nodes), len(after.nodes)),
        "coloured": next(iter(new.values()), ""),
        "fired": fired,
        "refusals": list(map(str, result.refusals)),
        "apart": bool(apart),
    }


def versions() -> Iterator[tuple[str, str]]:
    """Versions of this package, of what it runs on, and of the installed frameworks."""
    yield "onernn", metadata.version("onernn")
    yield "numpy", metadata.version("numpy")
    yield from ((each.name, each.version) for each in RUNTIMES.values() if each.version)
    yield "Python", platform.python_version()
    yield "machine", f"{platform.system()} {platform.machine()}"
    try:
        from onernn.backend.onednn.library import load_library

        library = load_library()
        yield "oneDNN", f"{library.version}, {library.effective_isa}"
    except (LibraryError, MissingDependencyError, OnernnError) as error:
        yield "oneDNN", str(error)


# --- where errors lie, as pictures: an SVG from matplotlib for each kind of an output's errors


_KINDS = (
    ("steps", "time step", "position in the sentence", True),
    ("lengths", "sentence length", "length of the sentence", False),
    ("directions", "direction", "", False),
    ("ends", "place", "beside each sentence's end", False),
)


class Plot(NamedTuple):
    """An SVG, and what it shows in words."""

    label: str
    svg: str


def plots(profile: Profile, allowed: float) -> list[Plot]:
    """A picture for each kind of which there are two rows or more, with the allowed difference."""
    result = []
    for kind, what, axis, many in _KINDS:
        if len(rows := getattr(profile, kind)) < 2:
            continue
        worst = max(rows, key=lambda row: row[1])
        label = f"{profile.name}: differences by {what}, largest {worst[1]:.3g} at {worst[0]}"
        draw = partial(_draw, rows, allowed, many, f"by {what}", axis)
        result.append(figure(f"{profile.name}/{kind}", label, draw))
    return result


def least(errors: Sequence[float], limit: float) -> float:
    """The end of a logarithmic axis, below which zeros stand: below other errors and the limit."""
    return min((each for each in (*errors, limit) if 0 < each < np.inf), default=1e-6) / 3


def figure(name: str, label: str, draw: Callable[[Any], None]) -> Plot:
    """The picture that ``draw`` makes. ``name``: gives the pictures of one page different ids."""
    require("matplotlib", "report")
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # no window, no global state

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": printable(name)}):  # text stays text
        page = Figure(figsize=(4.2, 2.9), layout="constrained")
        axes = page.add_subplot()
        draw(axes)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        page.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Plot(label, inline(text.getvalue()))


def _draw(
    rows: tuple[tuple[str, float, float], ...],
    allowed: float,
    many: bool,
    title: str,
    axis: str,
    axes: Any,
) -> None:
    names = [name for name, _, _ in rows]
    worst, mean = np.array([row[1:] for row in rows], float).T
    worst, mean = np.where(np.isfinite([worst, mean]), [worst, mean], np.nan)
    axes.set_yscale("symlog", linthresh=least([*worst, *mean], allowed))  # zero has a place, too
    if many:
        steps = [int(name) for name in names]
        axes.plot(steps, worst, color="#b91c1c", label="largest", linewidth=1.8)
        axes.plot(steps, mean, color="#1d4ed8", label="mean", linewidth=1.4, linestyle="--")
    else:
        place = np.arange(len(names))
        axes.bar(place - 0.2, worst, 0.38, color="#b91c1c", label="largest")
        axes.bar(place + 0.2, mean, 0.38, color="#1d4ed8", label="mean")
        shown = place[:: max(1, len(names) // 12)]
        axes.set_xticks(shown, [names[k] for k in shown])
    if allowed > 0:
        axes.axhline(allowed, color="#15803d", linewidth=1.2, label="allowed")
    axes.set_ylim(bottom=0)
    axes.set(xlabel=axis, ylabel="|difference|")
    axes.set_title(title, fontsize=11, loc="left")
    axes.figure.legend(fontsize=8, frameon=False, ncols=3, loc="outside lower center")


def inline(svg: str) -> str:
    """Only the svg element, sized by the page."""
    element = svg[svg.index("<svg") :]
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg[^>]*?) height="[^"]*"',
        r"\1\2",
        element,
        count=1,
    )


# --- a report in words: for the terminal, and for the page that shows it


def explanation(report: Report) -> list[tuple[str, list[str]]]:
    """Titles and lines: the cause, the first node apart, where the errors lie, what was assumed."""
    sections = []
    if report.causes:
        title = "cause" if len(report.causes) == 1 else f"{len(report.causes)} causes"
        lines = [line for each in report.causes for line in _cause_lines(each)]
        sections.append((title, [*lines, *filter(None, [report.stopped])]))
    elif not report.passed:
        sections.append(("cause", [report.stopped or "none of the known faults explains it"]))
    if not report.passed and report.first is not None:
        first = report.first
        agreed = [  # but for what one operator does before its layers
            each
            for each in report.layers[: report.layers.index(first)]
            if each.part or each.native != first.native
        ]
        lines = [f"{first}: {first.comparison.reason}"]
        lines += [f"the last that agrees: {agreed[-1]}"] if agreed else []
        sections.append(("first node apart", lines))
    if not report.passed:
        failed = {output.name for output in report.outputs if not output.passed}
        lines = [line for each in report.profiles if each.name in failed for line in summary(each)]
        sections.append(("errors", lines))
    sections.append(("notes", list(report.notes)))
    return [(title, lines) for title, lines in sections if lines]


def _cause_lines(cause: Cause) -> list[str]:
    """The cause, how sure it is, and the change that removes it."""
    how = {
        "proved": "proved: without it the outputs match, on inputs that it was not found with, too",
        "candidate": "a candidate: without it the outputs match on this batch, which is no proof",
    }
    return [f"{cause.text} [{cause.id}]", how[cause.evidence], *filter(None, [cause.advice])]


def summary(profile: Profile) -> list[str]:
    """One line for each kind of an output's errors: where the largest are, in words."""
    lines = []
    where = f"{profile.name} (final state)" if profile.state else profile.name
    for kind, what, _, _ in _KINDS:
        if len(rows := getattr(profile, kind)) > 1:
            shown = rows if len(rows) <= 6 else _spread(rows)
            numbers = ", ".join(f"{place}: {worst:.2g}" for place, worst, _ in shown)
            lines.append(f"{where}, largest by {what}: {numbers}")
    return lines


def _spread(rows: tuple[tuple[str, float, float], ...]) -> list[tuple[str, float, float]]:
    """Six rows of many, the first and the last among them."""
    return [rows[round(k * (len(rows) - 1) / 5)] for k in range(6)]
