"""The support table of the manual and the terminal: made by an examination, not by hand."""

from __future__ import annotations

from collections.abc import Iterable

from onernn.backend.onednn.precision import (
    DTYPES,
    GUIDE,
    OURS,
    PRECISIONS,
    SPECIFICATION,
    Row,
)
from onernn.verification.cases import DIRECTIONS, KINDS
from onernn.verification.doctor import (
    MODES,
    NEVER_RAN,
    REFUSED,
    SLOWER,
    WRONG,
    Examination,
    Finding,
)

COLUMNS = [f"{dtype} {mode}" for mode in MODES for dtype in DTYPES]
LEGEND = (
    "Largest difference from the float64 reference (of gradients, in units of the largest);"
    " in brackets: on NumPy, in float32; never ran: likewise, and on oneDNN, whose guide has it,"
    " on no machine so far; refused: raises UnsupportedError; columns refused throughout are left"
    " out."
)


def entry(finding: Finding) -> str:
    """One finding in a word: 2e-07 on oneDNN, (2e-07) on NumPy, refused, or WRONG."""
    if finding.verdict == REFUSED:
        return "refused"
    number = f"{finding.max_error:.0e}"
    if finding.verdict == WRONG:
        return f"WRONG {number}"
    if finding.verdict == NEVER_RAN:
        return f"never ran ({number})"
    return f"({number})" if finding.verdict == SLOWER else number


def columns(examination: Examination) -> list[str]:
    """Those of `COLUMNS` in which anything ran: the kernels have data types that oneDNN lacks."""
    ran = [finding.combination for finding in examination.findings if finding.verdict != REFUSED]
    return [name for name in COLUMNS if name in {f"{of.dtype} {of.mode}" for of in ran}]


def rows(examination: Examination) -> list[list[str]]:
    """Cell, direction, and an entry for each of `columns`."""
    entries = {tuple(finding.combination): entry(finding) for finding in examination.findings}
    shown = [name.split() for name in columns(examination)]
    return [
        [cell, way, *(entries[cell, way, dtype, mode] for dtype, mode in shown)]
        for cell in KINDS
        for way in DIRECTIONS
    ]


def markdown(examination: Examination) -> str:
    """The table and where it was made."""
    kernels_isa = examination.kernels.split()[0].strip(":")  # without the path behind it
    lines = [
        f"oneDNN {examination.version} on {examination.isa}, kernels {kernels_isa}. {LEGEND}",
        "",
        _line(["cell", "direction", *columns(examination)]),
        _line(["---"] * (2 + len(columns(examination)))),
        *map(_line, rows(examination)),
    ]
    return "\n".join(lines)


def data_types() -> str:
    """For each type of input data a row: the guide's, the specification's, and ours."""
    head = [
        *("data and h", "weights", "bias", "c", "output", "oneDNN's guide", "oneAPI 1.3"),
        *("here", "runs on oneDNN from", "compared with the reference on"),
    ]
    lines = [_line(head), _line(["---"] * len(head))]
    for dtype, row in GUIDE.items():
        ours, theirs = OURS[dtype], SPECIFICATION.get(dtype)
        taken = [f"**{t}**" if t == ours.output else t for t in row.output]
        here = f'`dtype="{dtype}"`' if dtype in PRECISIONS else f"refused: {ours.refused}"
        entries = [*row[4:5], *row[7:9], row.cell_state, ", ".join(taken), _cells(row)]
        entries.append("no such row" if theirs is None else _cells(theirs, like=row))
        ran = ", ".join(ours.ran) or "never ran on any machine"
        entries += [here, ours.since or "-", ran if ours.since else "-"]
        lines.append(_line(entries))
    return "\n".join(lines)


def _cells(row: Row, like: Row | None = None) -> str:
    """The cells of a row and which way it goes; what differs from another row is added."""
    cells = "every cell" if row.cells == "all" else ", ".join(row.cells)
    lacks = [name for name in ("peephole", "projection") if not getattr(row, name)]
    told = f"{row.propagation}: {cells}" + (f" without {' and '.join(lacks)}" if lacks else "")
    if like is None:
        return told
    same = (row.propagation, row.cells, row.peephole, row.projection) == (
        (like.propagation, like.cells, like.peephole, like.projection)
    )
    other = f"; c is {row.cell_state}" if row.cell_state != like.cell_state else ""
    return ("the same" if same else told) + other


def kernels(examination: Examination) -> list[str]:
    """Each kernel that ran, and the cells, data types and modes that it ran."""
    ran = [finding for finding in examination.findings if finding.kernel]
    return _grouped((finding.kernel, _brief(finding)) for finding in ran)


def reasons(examination: Examination) -> list[str]:
    """Why combinations run slower, are refused or are wrong; each reason once, with its cells."""
    told = [finding for finding in examination.findings if finding.reason]
    return _grouped((f"{finding.verdict}: {finding.reason}", _brief(finding)) for finding in told)


def wrong(examination: Examination, most: int = 4) -> list[str]:
    """One line for each of the first wrong combinations, and how many more there are."""
    findings = [finding for finding in examination.findings if finding.verdict == WRONG]
    lines = [f"wrong: {_brief(each)} on {each.kernel}: {each.reason}" for each in findings[:most]]
    rest = len(findings) - most
    return [*lines, f"wrong: {rest} more"] if rest > 0 else lines


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
