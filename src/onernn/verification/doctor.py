"""The machine, the library, and every supported combination against the float64 reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from onernn.backend import Backend, open_backend
from onernn.backend.compiled.library import kernels_here
from onernn.backend.compiled.packing import CODES, rounded_weights
from onernn.backend.onednn.library import load_library, other_copies
from onernn.backend.onednn.precision import DTYPES, GUIDE, OURS
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Direction
from onernn.verification.cases import (
    DIRECTIONS,
    EVEN,
    KINDS,
    LARGE,
    ODD,
    Outputs,
    SampleLayer,
    Shape,
    sample_layer,
)
from onernn.verification.comparing import TOLERANCES, Tolerance, compare
from onernn.verification.json_text import json_text

MODES = ("inference", "training")
WORKS, SLOWER, REFUSED, WRONG = "works", "slower path", "refused", "WRONG"
NEVER_RAN = "never ran"


class Combination(NamedTuple):
    """What a finding is about; the cell by its name in `KINDS`."""

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
    the largest of their array, NaN where nothing ran. ``reason``: why slower, refused or wrong;
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
            found = vars(finding).copy()
            findings.append({**found.pop("combination")._asdict(), **found})
        status = "pass" if self.passed else "fail"
        common: dict[str, Any] = {"status": status, "outputs": [], "cause": None}
        return json_text({**common, **vars(self), "findings": findings})


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
    findings = tuple(examined(engine, combination) for combination in watch(wanted))
    return Examination(
        *onednn,
        threads or 0,
        tuple(map(str, other_copies())),
        kernels_here(),
        findings,
    )


def examined(backend: Backend, combination: Combination) -> Finding:
    """The verdict on one combination, over batches odd and even, ragged and dense."""
    cell, direction, dtype, mode = combination
    guide = in_guide(combination)
    shapes = [ODD, EVEN]
    if direction == "left2right" and mode == "inference" and cell in ("LSTM", "GRU", "LBR GRU"):
        shapes.append(LARGE)
    kernels, worst, slower, key = [], 0.0, list[str](), (cell, direction, mode)
    for shape in shapes:
        case, expected = _expected(*key, shape)
        try:
            layer = backend.prepare(case.spec, case.weights, dtype=dtype)
            if mode == "inference":
                got, kernel = case.outputs(layer), layer.kernel
                reason = "" if layer.backend == "kernels" else layer.why  # these are as fast
            else:
                got, kernel, reason = case.gradients(layer)
        except UnsupportedError as error:
            return Finding(combination, REFUSED, reason=str(error), guide=guide)
        kernels.append(kernel)
        slower += [reason] if reason else []
        tolerance = _tolerance(layer.dtype, direction)
        rounded = expected
        if layer.dtype == CODES:  # only weights are rounded: compared with what these are then
            tolerance, rounded = TOLERANCES["f32"], _expected(*key, shape, rounds=True)[1]
        for name, want in expected.items():
            exact = compare(name, got[name], want, tolerance)
            apart = exact.max_rel if name.startswith("d") else exact.max_abs
            verdict = compare(name, got[name], rounded[name], tolerance)
            if not verdict.passed:
                wrong = f"{name}: {verdict.reason} ({shape})"
                return Finding(combination, WRONG, kernel, apart, wrong, guide)
            worst = max(worst, apart)
    named = ", ".join(dict.fromkeys(kernels))
    found = WORKS
    if len(slower) == len(shapes):
        found = SLOWER if not guide or OURS[dtype].ran else NEVER_RAN
    return Finding(combination, found, named, worst, "; ".join(dict.fromkeys(slower)), guide)


def in_guide(combination: Combination) -> bool:
    """Whether oneDNN's guide has it in its table of data types."""
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
    """That of the data type; a sum of two directions in bytes has the steps of both."""
    found = TOLERANCES[dtype]
    both = dtype in ("u8", "int8-dynamic") and direction == "bidirectional_sum"
    return replace(found, atol=2 * found.atol) if both else found


@lru_cache(maxsize=8)
def _expected(
    cell: str, direction: Direction, mode: str, shape: Shape, *, rounds: bool = False
) -> tuple[SampleLayer, Outputs]:
    """A layer and what the reference makes of it; the data types share it.

    ``rounds``: its matrices hold the numbers of int8-weights.
    """
    case = sample_layer(cell, direction, shape, training=mode == "training")
    weights = list(map(rounded_weights, case.weights)) if rounds else case.weights
    layer = open_backend("reference").prepare(case.spec, weights, dtype="f64")
    return case, case.outputs(layer) if mode == "inference" else case.gradients(layer)[0]
