"""The machine, the library, and every supported combination against the float64 reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from onernn.backend import Backend, Stack, open_backend
from onernn.backend.compiled.library import kernels_here
from onernn.backend.compiled.packing import CODES, rounded_weights
from onernn.backend.onednn.library import load_library, other_copies
from onernn.backend.onednn.precision import (
    DTYPES,
    GUIDE,
    OURS,
    PRECISIONS,
    SPECIFICATION,
    Row,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import Direction
from onernn.verification.comparing import TOLERANCES, Tolerance, compare, json_text
from onernn.verification.suite import (
    DIRECTIONS,
    KINDS,
    Case,
    Shape,
    sample_case,
)

MODES = ("inference", "training")
WORKS, SLOWER, REFUSED, WRONG = "works", "slower path", "refused", "WRONG"
NEVER_RAN = "never ran"


class Combination(NamedTuple):
    """The subject of a finding; the cell by its name in `KINDS`."""

    cell: str
    direction: Direction
    dtype: str
    mode: str


@dataclass(frozen=True)
class Finding:
    """A combination's verdict: works, slower path (NumPy), never ran, refused or WRONG.

    never ran: on NumPy here, and on oneDNN on no machine that was examined before this one.
    ``guide``: whether oneDNN's guide has the combination in its table of data types.
    ``max_error`` is the largest difference from the float64 reference, of gradients in units of
    the largest of their array, NaN if nothing ran. ``reason``: why slower, refused or wrong;
    of what works, too, where some layers are slower.
    """

    combination: Combination
    verdict: str
    kernel: str = ""
    max_error: float = math.nan
    reason: str = ""
    guide: bool = False


@dataclass(frozen=True)
class Examination:
    """The machine as oneDNN sees it, which kernels are here, a finding for each combination."""

    isa: str
    version: str
    path: str
    threads: int
    other_copies: tuple[str, ...]
    kernels: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.verdict != WRONG for finding in self.findings)

    def to_json(self) -> str:
        """``{"status", "outputs", ..., "findings": [{"cell", ..., "verdict", ...}]}``."""
        findings = []
        for finding in self.findings:
            result = vars(finding).copy()
            findings.append({**result.pop("combination")._asdict(), **result})
        return json_text(self.passed, **{**vars(self), "findings": findings})


# Kernels cut a batch in pieces by its size: its steps have 33 sentences, 17 twice, 16, 3 and 1.
# A projection that is wider than all gates together (they fill 32 numbers) is read another way.
ODD = Shape(7, 5, 1, (5, 0, *[4] * 7, *[1] * 16, 7, 3, *[4] * 6, 5), projection_size=33)
EVEN = Shape(16, 32, 2, (3,) * 16)
LARGE = Shape(32, 512, 1, (5, 3, 3, 1))  # large weights may run another way


Outputs = dict[str, Array]


def _batches(case: Case) -> tuple[Ragged | Array, Ragged | Array | None]:
    """Returns its words and its attention, dense if all sentences are equally long."""
    if len(set(case.lengths)) > 1:
        return case.x, case.attention
    attention = case.attention and case.attention.to_padded(time_major=True)
    return case.padded(time_major=True), attention


def outputs(case: Case, layer: Stack) -> Outputs:
    """Returns the outputs of a run by name."""
    x, attention = _batches(case)
    y, final = layer.run(x, case.state, attention)
    return {"y": data_of(y), **_number("state", final)}


def gradients(case: Case, layer: Stack) -> tuple[Outputs, str, str]:
    """Outputs and gradients by name; the kernel, and why no faster one ran."""
    x, attention = _batches(case)
    y, final, tape = layer.run_training(x, case.state, attention)
    rng = np.random.default_rng(2)
    dy, *dstate = (
        rng.uniform(-1, 1, each.shape).astype(np.float32) for each in (data_of(y), *final)
    )
    grads = layer.backward(tape, y.with_data(dy) if isinstance(y, Ragged) else dy, tuple(dstate))
    out = {"y": data_of(y), **_number("state", final), **_number("dstate", grads.state)}
    out["dx"] = data_of(grads.x)
    if grads.attention is not None:
        out["dattention"] = data_of(grads.attention)
    for k, weights in enumerate(grads.layers):
        out |= {f"d{name}{k}": array for name, array in weights.arrays.items()}
    return out, tape.kernel, tape.why


def _number(name: str, arrays: Sequence[Array]) -> Outputs:
    return {f"{name}{k}": array for k, array in enumerate(arrays)}


def examine(
    threads: int | None = None,
    watch: Callable[[Sequence[Combination]], Iterable[Combination]] = iter,
    backend: str = "auto",
) -> Examination:
    """Runs every cell, direction, data type and mode on this machine against the reference.

    ``watch`` may show the progress of what it iterates over. ``backend``: what runs. Raises
    `LibraryError` where that is missing.
    """
    engine = open_backend(backend, threads=threads)
    try:
        library = load_library()
        onednn = library.effective_isa, library.version, str(library.path)
        threads = threads or library.max_threads
    except LibraryError as error:
        onednn = "", "missing", str(error)
    every = itertools.product(KINDS, DIRECTIONS, MODES, DTYPES)
    wanted = [Combination(cell, way, dtype, mode) for cell, way, mode, dtype in every]
    findings = tuple(examine_one(engine, combination) for combination in watch(wanted))
    return Examination(
        *onednn,
        threads or 0,
        tuple(map(str, other_copies())),
        kernels_here(),
        findings,
    )


def examine_one(backend: Backend, combination: Combination) -> Finding:
    """Returns the verdict on one combination, over batches odd and even, ragged and dense."""
    cell, direction, dtype, mode = combination
    guide = in_guide(combination)
    shapes = [ODD, EVEN]
    if direction == "left2right" and mode == "inference" and cell in ("LSTM", "GRU", "LBR GRU"):
        shapes.append(LARGE)
    kernels, worst, slower, key = [], 0.0, list[str](), (cell, direction, mode)
    for shape in shapes:
        case, expected = _expect(*key, shape)
        try:
            layer = backend.prepare(case.spec, [*case.weights], dtype=dtype)
            if mode == "inference":
                got, kernel = outputs(case, layer), layer.kernel
                reason = "" if layer.backend == "kernels" else layer.why  # these are as fast
            else:
                got, kernel, reason = gradients(case, layer)
        except UnsupportedError as error:
            return Finding(combination, REFUSED, reason=str(error), guide=guide)
        kernels.append(kernel)
        slower += [reason] if reason else []
        tolerance = _tolerance(layer.dtype, direction)
        rounded = expected
        if layer.dtype == CODES:  # only weights are rounded: compared with what these are then
            tolerance, rounded = TOLERANCES["f32"], _expect(*key, shape, rounds=True)[1]
        for name, want in expected.items():
            exact = compare(name, got[name], want, tolerance)
            apart = exact.max_rel if name.startswith("d") else exact.max_abs
            verdict = compare(name, got[name], rounded[name], tolerance)
            if not verdict.passed:
                wrong = f"{name}: {verdict.reason} ({shape})"
                return Finding(combination, WRONG, kernel, apart, wrong, guide)
            worst = max(worst, apart)
    named = ", ".join(dict.fromkeys(kernels))
    result = WORKS
    if len(slower) == len(shapes):
        result = SLOWER if not guide or OURS[dtype].ran else NEVER_RAN
    return Finding(combination, result, named, worst, "; ".join(dict.fromkeys(slower)), guide)


def in_guide(combination: Combination) -> bool:
    """Returns whether oneDNN's guide has it in its table of data types."""
    if combination.dtype not in OURS:
        return False
    kind, extras = KINDS[combination.cell]
    return GUIDE[OURS[combination.dtype].row].has(
        kind,
        peephole="peephole" in extras,
        projection="projection" in extras,
        training=combination.mode == "training",
    )


def _tolerance(dtype: str, direction: Direction) -> Tolerance:
    """Returns the data type's tolerance; a sum of two directions in bytes has the steps of both."""
    result = TOLERANCES[dtype]
    both = dtype in ("u8", "int8-dynamic") and direction == "bidirectional_sum"
    return replace(result, atol=2 * result.atol) if both else result


@lru_cache(maxsize=8)
def _expect(
    cell: str, direction: Direction, mode: str, shape: Shape, *, rounds: bool = False
) -> tuple[Case, Outputs]:
    """Returns a layer and what the reference makes of it; the data types share it.

    ``rounds``: its matrices hold the numbers of int8-weights.
    """
    case = sample_case(cell, direction, shape, training=mode == "training")
    weights = list(map(rounded_weights, case.weights)) if rounds else [*case.weights]
    layer = open_backend("reference").prepare(case.spec, weights, dtype="f64")
    return case, outputs(case, layer) if mode == "inference" else gradients(case, layer)[0]


# --- the support table of the manual and the terminal: made by an examination, not by hand


COLUMNS = [f"{dtype} {mode}" for mode in MODES for dtype in DTYPES]
LEGEND = (
    "Largest difference from the float64 reference (of gradients, in units of the largest);"
    " in brackets: on NumPy, in float32; never ran: likewise, and on oneDNN, whose guide has it,"
    " on no machine so far; refused: raises UnsupportedError; columns refused throughout are left"
    " out."
)


def entry(finding: Finding) -> str:
    """Returns one finding in a word: 2e-07 on oneDNN, (2e-07) on NumPy, refused, or WRONG."""
    if finding.verdict == REFUSED:
        return "refused"
    number = f"{finding.max_error:.0e}"
    if finding.verdict == WRONG:
        return f"WRONG {number}"
    if finding.verdict == NEVER_RAN:
        return f"never ran ({number})"
    return f"({number})" if finding.verdict == SLOWER else number


def columns(examination: Examination) -> list[str]:
    """Returns the `COLUMNS` in which a combination ran: the kernels have data types that oneDNN
    lacks.
    """
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
    """Returns the table and where it was made."""
    kernels_isa = examination.kernels.split()[0].strip(":")  # without the path behind it
    lines = [
        f"oneDNN {examination.version} on {examination.isa}, kernels {kernels_isa}. {LEGEND}",
        "",
        _line(["cell", "direction", *columns(examination)]),
        _line(["---"] * (2 + len(columns(examination)))),
        *map(_line, rows(examination)),
    ]
    return "\n".join(lines)


def manual_tables(examination: Examination) -> str:
    """Returns both tables of the manual."""
    return f"{markdown(examination)}\n\n{data_types()}"


def data_types() -> str:
    """For each type of input data a row: the guide's, the specification's, and onernn's."""
    head = [
        *("data and h", "weights", "bias", "c", "output", "oneDNN's guide", "oneAPI 1.3"),
        *("here", "runs on oneDNN from", "compared with the reference on"),
    ]
    lines = [_line(head), _line(["---"] * len(head))]
    for dtype, row in GUIDE.items():
        here, theirs = OURS[dtype], SPECIFICATION.get(dtype)
        taken = [f"**{t}**" if t == here.output else t for t in row.output]
        dtype_here = f'`dtype="{dtype}"`' if dtype in PRECISIONS else f"refused: {here.refused}"
        entries = [*row[4:5], *row[7:9], row.cell_state, ", ".join(taken), _cells(row)]
        entries.append("no such row" if theirs is None else _cells(theirs, like=row))
        ran = ", ".join(here.ran) or "never ran on any machine"
        entries += [dtype_here, here.since or "-", ran if here.since else "-"]
        lines.append(_line(entries))
    return "\n".join(lines)


def _cells(row: Row, like: Row | None = None) -> str:
    """Returns the cells of a row and which way it goes; what differs from another row is added."""
    cells = "every cell" if row.cells == "all" else ", ".join(row.cells)
    lacks = [name for name in ("peephole", "projection") if not getattr(row, name)]
    text = f"{row.propagation}: {cells}" + (f" without {' and '.join(lacks)}" if lacks else "")
    if like is None:
        return text
    same = (row.propagation, row.cells, row.peephole, row.projection) == (
        (like.propagation, like.cells, like.peephole, like.projection)
    )
    other = f"; c is {row.cell_state}" if row.cell_state != like.cell_state else ""
    return ("the same" if same else text) + other


def kernels(examination: Examination) -> list[str]:
    """Returns each kernel that ran, and the cells, data types and modes that it ran."""
    ran = [finding for finding in examination.findings if finding.kernel]
    return _group((finding.kernel, _brief(finding)) for finding in ran)


def reasons(examination: Examination) -> list[str]:
    """Returns why combinations run slower, are refused or are wrong; each reason once, with its
    cells.
    """
    explained = [finding for finding in examination.findings if finding.reason]
    return _group(
        (f"{finding.verdict}: {finding.reason}", _brief(finding)) for finding in explained
    )


def wrong(examination: Examination, most: int = 4) -> list[str]:
    """Returns one line for each of the first wrong combinations, and how many more there are."""
    findings = [finding for finding in examination.findings if finding.verdict == WRONG]
    lines = [f"wrong: {_brief(each)} on {each.kernel}: {each.reason}" for each in findings[:most]]
    rest = len(findings) - most
    return [*lines, f"wrong: {rest} more"] if rest > 0 else lines


def _brief(finding: Finding) -> str:
    cell, way, dtype, mode = finding.combination
    direction = f" {way}" if finding.verdict == WRONG else ""
    return f"{cell}{direction} {dtype}{' training' if mode == 'training' else ''}"


def _group(pairs: Iterable[tuple[str, str]]) -> list[str]:
    groups: dict[str, dict[str, None]] = {}
    for head, item in pairs:
        groups.setdefault(head, {})[item] = None
    return [f"{head}: {', '.join(items)}" for head, items in groups.items()]


def _line(entries: Iterable[str]) -> str:
    return f"| {' | '.join(entries)} |"
