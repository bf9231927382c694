"""A report in words: for the terminal, and for the page that shows it."""

from __future__ import annotations

from onernn.verification.diagnosis.cause import Cause
from onernn.verification.error_profiles import Profile
from onernn.verification.verifying import Report


def explanation(report: Report) -> list[tuple[str, list[str]]]:
    """Titles and lines: the cause, the first node apart, where the errors lie, what was assumed."""
    sections = []
    if report.causes:
        title = "cause" if len(report.causes) == 1 else f"{len(report.causes)} causes"
        lines = [line for each in report.causes for line in _told(each)]
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
        lines += [] if first.reads else ["what it reads is apart already: look before it"]
        lines += [f"the last that agrees: {agreed[-1]}"] if agreed else []
        sections.append(("first node apart", lines))
    if not report.passed:
        failed = {output.name for output in report.outputs if not output.passed}
        lines = [line for each in report.profiles if each.name in failed for line in summary(each)]
        sections.append(("errors", lines))
    sections.append(("notes", list(report.notes)))
    return [(title, lines) for title, lines in sections if lines]


def _told(cause: Cause) -> list[str]:
    """What is so, how sure that is, and what to change."""
    how = {
        "proved": "proved: without it the outputs match, on inputs that it was not found with, too",
        "candidate": "a candidate: without it the outputs match on this batch, which is no proof",
    }
    return [f"{cause.text} [{cause.id}]", how[cause.evidence], *filter(None, [cause.advice])]


def summary(profile: Profile) -> list[str]:
    """One line for each kind of an output's errors: where the largest are, in words."""
    lines = []
    where = f"{profile.name} (final state)" if profile.state else profile.name
    for kind, rows in (
        ("time step", profile.steps),
        ("sentence length", profile.lengths),
        ("direction", profile.directions),
        ("place", profile.ends),
    ):
        if len(rows) > 1:
            shown = rows if len(rows) <= 6 else _spread(rows)
            numbers = ", ".join(f"{at}: {worst:.2g}" for at, worst, _ in shown)
            lines.append(f"{where}, largest by {kind}: {numbers}")
    return lines


def _spread(rows: tuple[tuple[str, float, float], ...]) -> list[tuple[str, float, float]]:
    """Six rows of many, the first and the last among them."""
    return [rows[round(k * (len(rows) - 1) / 5)] for k in range(6)]
