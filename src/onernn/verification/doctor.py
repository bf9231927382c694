"""Examines the machine and its packages, and compares every kind of layer with the float64
reference.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from onernn.backend import Backend, Stack, open_backend
from onernn.backend.compiled.library import kernels_here
from onernn.backend.compiled.packing import CODES, round_weights
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
MISSING = "missing"
"""The value of `Examination.version` if oneDNN is not installed."""
DEVELOPERS = "bench test docs fuzz dev".split()
"""The extras of the package that are only for developers of onernn."""
WORKS, SLOWER, REFUSED, WRONG = "works", "slower path", "refused", "WRONG"
NEVER_RAN = "never ran"


class Combination(NamedTuple):
    """A kind of layer that is examined. ``cell``: a key of `KINDS`."""

    cell: str
    direction: Direction
    dtype: str
    mode: str


@dataclass(frozen=True)
class Finding:
    """The verdict on a combination: works, slower path (NumPy), never ran, refused or WRONG.

    "never ran": NumPy runs it; oneDNN's guide lists it, but oneDNN ran it on no machine examined
    before. ``guide``: whether the guide's table of data types has the combination. ``max_error`` is
    the largest difference from the float64 reference, NaN if nothing ran; differences of gradients
    are relative to the largest element of their array. ``reason`` says why the combination, or some
    of its layers, is slower, refused or wrong.
    """

    combination: Combination
    verdict: str
    kernel: str = ""
    max_error: float = math.nan
    reason: str = ""
    guide: bool = False

    def as_json(self) -> dict[str, Any]:
        """Returns the fields of the finding and of its combination in one dictionary."""
        result = vars(self).copy()
        return {**result.pop("combination")._asdict(), **result}


@dataclass(frozen=True)
class Package:
    """A package that onernn or one of its extras needs.

    ``needed``: the versions that fit, such as ">=2.1". ``version``: the installed version, or "".
    """

    name: str
    needed: str
    version: str
    fits: bool

    def __str__(self) -> str:
        told = f"{self.name} {self.version or 'missing'}"
        return told if self.fits else f"{told} (needs {self.needed})"


@dataclass(frozen=True)
class Examination:
    """The machine's packages, its kernels and oneDNN, and a finding for each combination.

    ``isa``: the instruction set that oneDNN uses. ``packages``: the packages that onernn needs.
    ``extras``: the packages of each extra. ``findings``: empty if no combination was run.
    """

    isa: str
    version: str
    path: str
    threads: int
    other_copies: tuple[str, ...]
    kernels: str
    machine: str
    onernn: str
    packages: tuple[Package, ...]
    extras: dict[str, tuple[Package, ...]]
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no finding is WRONG, all needed packages are installed in fitting versions, and
        oneDNN or the kernels are usable.
        """
        right = all(finding.verdict != WRONG for finding in self.findings)
        backend = self.version != MISSING or not self.kernels.startswith("none")
        return right and backend and all(each.fits for each in self.packages)

    def to_json(self) -> str:
        """Returns ``{"status", "outputs", ..., "findings": [{"cell", ..., "verdict", ...}]}``."""
        return json_text(self.passed, **vars(self))


# The steps of ODD have 33, 17, 17, 16, 3, 1 and 1 sequences, because kernels split large batches.
# Kernels read a projection differently if it is wider than all gates together (padded to 32).
ODD = Shape(7, 5, 1, (5, 0, *[4] * 7, *[1] * 16, 7, 3, *[4] * 6, 5), projection_size=33)
EVEN = Shape(16, 32, 2, (3,) * 16)
LARGE = Shape(32, 512, 1, (5, 3, 3, 1))  # large weights may run on a different path


Outputs = dict[str, Array]


def _batches(case: Case) -> tuple[Ragged | Array, Ragged | Array | None]:
    """Returns a case's input and attention; padded arrays if all sequences are equally long."""
    if len(set(case.lengths)) > 1:
        return case.x, case.attention
    attention = case.attention and case.attention.to_padded(time_major=True)
    return case.pad(time_major=True), attention


def outputs(case: Case, layer: Stack) -> Outputs:
    """Returns a layer's outputs on a case by name: y, state0, state1."""
    x, attention = _batches(case)
    y, final = layer.run(x, case.state, attention)
    return {"y": data_of(y), **_number("state", final)}


def gradients(case: Case, layer: Stack) -> tuple[Outputs, str, str]:
    """Returns outputs and gradients by name, the kernel's name, and why it is slow, or ""."""
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


def survey(threads: int | None = None) -> Examination:
    """Returns the versions of oneDNN, onernn and packages, and the kernels; runs no layer."""
    try:
        library = load_library()
        onednn = library.effective_isa, library.version, str(library.path)
        threads = threads or library.max_threads
    except LibraryError as error:
        onednn = "", MISSING, str(error)
    try:
        version, packages = metadata.version("onernn"), _packages()
        extras = metadata.metadata("onernn").get_all("Provides-Extra", [])
    except metadata.PackageNotFoundError:
        version, packages, extras = "not installed by pip", (), []
    return Examination(
        *onednn,
        threads or 0,
        tuple(map(str, other_copies())),
        kernels_here(),
        _describe_machine(),
        version,
        packages,
        {extra: _packages(extra) for extra in extras if extra not in DEVELOPERS},
    )


def _describe_machine() -> str:
    cpu = None
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        cpu = re.search(r"model name\s*: (.*)", lines.read(8192))
    name = cpu[1] if cpu else "CPU of unknown name"
    cores = len(os.sched_getaffinity(0))
    return f"Python {platform.python_version()}, {platform.platform()}, {name}, {cores} cores"


def _packages(extra: str = "") -> tuple[Package, ...]:
    """Returns the packages that onernn, or an extra of onernn, needs on this machine."""
    from packaging.requirements import Requirement  # no other command needs it

    result = []
    for each in map(Requirement, metadata.requires("onernn") or ()):
        chosen = each.marker is None or each.marker.evaluate({"extra": extra})
        if chosen and ("extra ==" in str(each.marker)) == bool(extra):
            try:
                version = metadata.version(each.name)
            except metadata.PackageNotFoundError:
                version = ""
            fits = bool(version) and each.specifier.contains(version, prereleases=True)
            result.append(Package(each.name, str(each.specifier), version, fits))
    return tuple(result)


def examine(
    threads: int | None = None,
    watch: Callable[[Sequence[Combination]], Iterable[Combination]] = iter,
    backend: str = "auto",
) -> Examination:
    """Compares every cell, direction, data type and mode with the float64 reference on this
    machine.

    ``watch`` gets the combinations and returns an iterable over them; it may show progress.
    ``backend``: the backend that runs. Raises `LibraryError` if the backend is missing.
    """
    engine = open_backend(backend, threads=threads)
    every = itertools.product(KINDS, DIRECTIONS, MODES, DTYPES)
    wanted = [Combination(cell, way, dtype, mode) for cell, way, mode, dtype in every]
    findings = tuple(examine_one(engine, combination) for combination in watch(wanted))
    return replace(survey(threads), findings=findings)


def examine_one(backend: Backend, combination: Combination) -> Finding:
    """Returns the verdict on one combination, from ragged and padded batches of odd and even
    sizes.
    """
    cell, direction, dtype, mode = combination
    guide = in_guide(combination)
    find = partial(Finding, combination, guide=guide)
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
                reason = "" if layer.backend == "kernels" else layer.why  # kernels are fast
            else:
                got, kernel, reason = gradients(case, layer)
        except UnsupportedError as error:
            return find(REFUSED, reason=str(error))
        kernels.append(kernel)
        slower += [reason] if reason else []
        tolerance = _tolerance(layer.dtype, direction)
        rounded = expected
        if layer.dtype == CODES:  # only weights are rounded: compare with rounded weights
            tolerance, rounded = TOLERANCES["f32"], _expect(*key, shape, rounds=True)[1]
        for name, want in expected.items():
            exact = compare(name, got[name], want, tolerance)
            apart = exact.max_rel if name.startswith("d") else exact.max_abs
            verdict = compare(name, got[name], rounded[name], tolerance)
            if not verdict.passed:
                wrong = f"{name}: {verdict.reason} ({shape})"
                return find(WRONG, kernel, apart, wrong)
            worst = max(worst, apart)
    named = ", ".join(dict.fromkeys(kernels))
    result = WORKS
    if len(slower) == len(shapes):
        result = SLOWER if not guide or OURS[dtype].ran else NEVER_RAN
    return find(result, named, worst, "; ".join(dict.fromkeys(slower)))


def in_guide(combination: Combination) -> bool:
    """Returns whether oneDNN's guide has the combination in its table of data types."""
    if combination.dtype not in OURS:
        return False
    return GUIDE[OURS[combination.dtype].row].has(
        KINDS[combination.cell],
        peephole="peephole" in combination.cell,
        projection="projection" in combination.cell,
        training=combination.mode == "training",
    )


def _tolerance(dtype: str, direction: Direction) -> Tolerance:
    """Returns the data type's tolerance, doubled for the sum of two directions in 8 bits."""
    result = TOLERANCES[dtype]
    both = dtype in ("u8", "int8-dynamic") and direction == "bidirectional_sum"
    return replace(result, atol=2 * result.atol) if both else result


@lru_cache(maxsize=8)
def _expect(
    cell: str, direction: Direction, mode: str, shape: Shape, *, rounds: bool = False
) -> tuple[Case, Outputs]:
    """Returns a case and the float64 reference's results for it; all data types use the same case.

    ``rounds``: round the matrices as int8-weights does.
    """
    case = sample_case(cell, direction, shape, training=mode == "training")
    weights = list(map(round_weights, case.weights)) if rounds else [*case.weights]
    layer = open_backend("reference").prepare(case.spec, weights, dtype="f64")
    return case, outputs(case, layer) if mode == "inference" else gradients(case, layer)[0]


# --- the support table in the manual and in the terminal, generated from an examination


COLUMNS = [f"{dtype} {mode}" for mode in MODES for dtype in DTYPES]
LEGEND = (
    "Each number is the largest difference from the float64 reference. Differences of gradients"
    " are divided by the gradient's largest element. (2e-07): NumPy ran the layer, in float32."
    " never ran (2e-07): also NumPy; oneDNN's guide lists this layer, but oneDNN ran it on no"
    " machine so far. refused: onernn raises UnsupportedError. Columns with only refused entries"
    " are left out."
)


def entry(finding: Finding) -> str:
    """Returns a finding's entry in the table: "refused" or the largest error, such as 2e-07,
    (2e-07) on NumPy, never ran (2e-07) or WRONG 2e-07.
    """
    if finding.verdict == REFUSED:
        return "refused"
    number = f"{finding.max_error:.0e}"
    words = {WRONG: f"WRONG {number}", NEVER_RAN: f"never ran ({number})", SLOWER: f"({number})"}
    return words.get(finding.verdict, number)


def columns(examination: Examination) -> list[str]:
    """Returns the names in `COLUMNS` of the data types and modes in which any combination ran."""
    every = [each.combination for each in examination.findings if each.verdict != REFUSED]
    ran = {f"{each.dtype} {each.mode}" for each in every}
    return [name for name in COLUMNS if name in ran]


def rows(examination: Examination) -> list[list[str]]:
    """Returns the table's rows: a cell, a direction, and the entry of each column."""
    entries = {tuple(finding.combination): entry(finding) for finding in examination.findings}
    shown = [tuple(name.split()) for name in columns(examination)]
    layers = itertools.product(KINDS, DIRECTIONS)
    return [[*layer, *(entries[*layer, *column] for column in shown)] for layer in layers]


def markdown(examination: Examination) -> str:
    """Returns the support table in Markdown, after a title with the machine's oneDNN and
    kernels.
    """
    kernels_isa = examination.kernels.split()[0].strip(":")  # the ISA, without the path after it
    title = f"oneDNN {examination.version} on {examination.isa}, kernels {kernels_isa}. {LEGEND}"
    head = ["cell", "direction", *columns(examination)]
    return f"{title}\n\n{_table(head, rows(examination))}"


def manual_tables(examination: Examination) -> str:
    """Returns the manual's two tables: the support table and the table of data types."""
    return f"{markdown(examination)}\n\n{data_types()}"


def data_types() -> str:
    """Returns a table that compares oneDNN's guide, the oneAPI specification and onernn, a row per
    type of input data.
    """
    head = [
        *("data and h", "weights", "bias", "c", "output", "oneDNN's guide", "oneAPI 1.3"),
        *("here", "runs on oneDNN from", "compared with the reference on"),
    ]
    lines = []
    for dtype, row in GUIDE.items():
        here, theirs = OURS[dtype], SPECIFICATION.get(dtype)
        taken = [f"**{t}**" if t == here.output else t for t in row.output]
        dtype_here = f'`dtype="{dtype}"`' if dtype in PRECISIONS else f"refused: {here.refused}"
        entries = [*row[4:5], *row[7:9], row.cell_state, ", ".join(taken), _cells(row)]
        entries.append("no such row" if theirs is None else _cells(theirs, like=row))
        ran = ", ".join(here.ran) or "never ran on any machine"
        lines.append([*entries, dtype_here, here.since or "-", ran if here.since else "-"])
    return _table(head, lines)


def _cells(row: Row, like: Row | None = None) -> str:
    """Returns a text with the propagation kind and cells of a table row. If these are equal in the
    row ``like``, the text is "the same".
    """
    cells = "every cell" if row.cells == "all" else ", ".join(row.cells)
    lacks = [name for name in ("peephole", "projection") if not getattr(row, name)]
    text = f"{row.propagation}: {cells}" + (f" without {' and '.join(lacks)}" if lacks else "")
    if like is None:
        return text
    other = f"; c is {row.cell_state}" if row.cell_state != like.cell_state else ""
    return ("the same" if text == _cells(like) else text) + other


def kernels(examination: Examination) -> list[str]:
    """Returns a line for each kernel, with the cells, data types and modes that it ran."""
    return _group((each.kernel, _brief(each)) for each in examination.findings if each.kernel)


def reasons(examination: Examination) -> list[str]:
    """Returns a line for each reason why combinations are slower, refused or wrong, with the
    combinations.
    """
    explained = [each for each in examination.findings if each.reason]
    return _group((f"{each.verdict}: {each.reason}", _brief(each)) for each in explained)


def wrong(examination: Examination) -> list[str]:
    """Returns a line for each of the first four wrong combinations, and a line that counts the
    rest.
    """
    findings = [each for each in examination.findings if each.verdict == WRONG]
    lines = [f"wrong: {_brief(each)} on {each.kernel}: {each.reason}" for each in findings]
    rest = len(lines) - 4
    return [*lines[:4], f"wrong: {rest} more"] if rest > 0 else lines


def _brief(finding: Finding) -> str:
    cell, way, dtype, mode = finding.combination
    direction = f" {way}" if finding.verdict == WRONG else ""
    return f"{cell}{direction} {dtype}{' training' if mode == 'training' else ''}"


def _group(pairs: Iterable[tuple[str, str]]) -> list[str]:
    groups: dict[str, dict[str, None]] = {}
    for head, item in pairs:
        groups.setdefault(head, {})[item] = None
    return [f"{head}: {', '.join(items)}" for head, items in groups.items()]


def _table(head: list[str], lines: list[list[str]]) -> str:
    every = (head, ["---"] * len(head), *lines)
    return "\n".join(f"| {' | '.join(entries)} |" for entries in every)
