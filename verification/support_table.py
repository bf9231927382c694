"""The support table of the README and the terminal: made by an examination, not by hand."""

from __future__ import annotations

from collections.abc import Iterable

from onernn.verification.doctor import (
    DTYPES,
    MODES,
    REFUSED,
    SLOWER,
    WRONG,
    Examination,
    Finding,
)
from onernn.verification.sample_layers import DIRECTIONS, KINDS

COLUMNS = [f"{dtype} {mode}" for mode in MODES for dtype in DTYPES]
LEGEND = (
    "Largest difference from the float64 reference (of gradients, in units of the largest);"
    " in brackets: on NumPy, in float32; refused: raises UnsupportedError."
)


def entry(finding: Finding) -> str:
    """One finding in a word: 2e-07 on oneDNN, (2e-07) on NumPy, refused, or WRONG."""
    if finding.verdict == REFUSED:
        return "refused"
    number = f"{finding.max_error:.0e}"
    if finding.verdict == WRONG:
        return f"WRONG {number}"
    return f"({number})" if finding.verdict == SLOWER else number


def rows(examination: Examination) -> list[list[str]]:
    """Cell, direction, and an entry for each of `COLUMNS`."""
    entries = {tuple(finding.combination): entry(finding) for finding in examination.findings}
    return [
        [cell, way, *(entries[cell, way, dtype, mode] for mode in MODES for dtype in DTYPES)]
        for cell in KINDS
        for way in DIRECTIONS
    ]


def markdown(examination: Examination) -> str:
    """The table and where it was made."""
    lines = [
        f"oneDNN {examination.version} on {examination.isa}. {LEGEND}",
        "",
        _line(["cell", "direction", *COLUMNS]),
        _line(["---"] * (2 + len(COLUMNS))),
        *map(_line, rows(examination)),
    ]
    return "\n".join(lines)


def kernels(examination: Examination) -> list[str]:
    """Each kernel that ran, and the cells, data types and modes that it ran."""
    ran = [finding for finding in examination.findings if finding.kernel]
    return _grouped((finding.kernel, _brief(finding)) for finding in ran)


def reasons(examination: Examination) -> list[str]:
    """Why combinations run slower, are refused or are wrong; each reason once, with its cells."""
    told = [finding for finding in examination.findings if finding.reason]
    return _grouped((f"{finding.verdict}: {finding.reason}", _brief(finding)) for finding in told)


def _brief(finding: Finding) -> str:
    cell, way, dtype, mode = finding.combination
    direction = f" {way}" if finding.verdict == WRONG else ""
    return f"{cell}{direction} {dtype}{' training' if mode == 'training' else ''}"


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    groups: dict[str, dict[str, None]] = {}
    for head, item in pairs:
        groups.setdefault(head, {})[item] = None
    return [f"{head}: {', '.join(items)}" for head, items in groups.items()]


def _line(entries: Iterable[str]) -> str:
    return f"| {' | '.join(entries)} |"
