"""Whether two outputs are the same, under a tolerance that has a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.verification.aligning import in_one_form


@dataclass(frozen=True)
class Tolerance:
    """|a - b| <= atol + rtol * max|reference|."""

    atol: float
    rtol: float


TOLERANCES = {
    "f32": Tolerance(1e-6, 1e-5),  # a few rounding errors of sums of some hundred terms
    "bf16": Tolerance(1e-6, 2e-2),  # 8 bits of mantissa, a few roundings a step
    "f16": Tolerance(1e-6, 4e-3),  # 11 bits
    "u8": Tolerance(2e-2, 0.0),  # a state in [-1, 1] has steps of 1/127
    # Derived in design/0034: six deviations of a sum of rounding errors.
    "int8-dynamic": Tolerance(2e-2, 0.0),  # both factors in steps of 1/127 of their largest
    "int8-weights": Tolerance(1.4e-2, 0.0),  # one factor: half of the variance
}


_OF_OUTPUTS = {"float16": "f16"}  # NumPy's name of a narrow dtype, and the tolerance's


def tolerance_of(
    dtype: str, atol: float | None, rtol: float | None, *outputs: Ragged | Array
) -> Tolerance:
    """The default one of a dtype computed in, with what is given in its place; exact for others.

    ``outputs``: what is to be compared. A narrow dtype of theirs widens the relative default, as
    it rounds whatever was computed.
    """
    default = TOLERANCES.get(dtype, Tolerance(0, 0))
    for output in outputs:
        own = TOLERANCES.get(_OF_OUTPUTS.get(data_of(output).dtype.name, ""), default)
        default = replace(default, rtol=max(default.rtol, own.rtol))
    given = {"atol": atol, "rtol": rtol}
    return replace(default, **{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class OutputComparison:
    """One output's verdict. ``max_rel`` is max|a-b| / max|reference|; ``reason``: why it failed."""

    name: str
    passed: bool
    max_abs: float
    max_rel: float
    reason: str = ""

    @classmethod
    def incomparable(cls, name: str, reason: str) -> OutputComparison:
        """The verdict where no difference can be measured."""
        return cls(name, False, np.nan, np.nan, reason)

    def as_json(self) -> dict[str, Any]:
        """``{"name", "pass", "max_abs", "max_rel"}``."""
        numbers = {"max_abs": self.max_abs, "max_rel": self.max_rel}
        return {"name": self.name, "pass": self.passed, **numbers}


def differences(actual: Array, reference: Array) -> Array:
    """|a - b| in float64; 0 where both are the same infinity or NaN, infinite where only one is."""
    one, other = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def compare(
    name: str, actual: Ragged | Array, reference: Ragged | Array, tolerance: Tolerance
) -> OutputComparison:
    """Integers, shapes and LoD must be equal; floats within the tolerance; NaN where NaN is."""
    if isinstance(reference, Ragged):
        if not isinstance(actual, Ragged):
            return OutputComparison.incomparable(name, "LoD is missing")
        if actual.lod != reference.lod:
            return OutputComparison.incomparable(name, "LoD differs")
        reference = reference.data
    actual = actual.data if isinstance(actual, Ragged) else np.asarray(actual)
    if actual.shape != reference.shape:
        reason = f"shape: expected {reference.shape}, got {actual.shape}"
        return OutputComparison.incomparable(name, reason)
    floats = actual.dtype.kind == reference.dtype.kind == "f"
    if actual.dtype != reference.dtype and not floats:
        reason = f"dtype: expected {reference.dtype}, got {actual.dtype}"
        return OutputComparison.incomparable(name, reason)
    if reference.dtype.kind != "f":
        unequal = int(np.count_nonzero(actual != reference))
        reason = f"{unequal} of {reference.size} values differ" if unequal else ""
        worst = np.abs(actual.astype(np.float64) - reference).max(initial=0)
        return OutputComparison(
            name, not unequal, float(worst), _relative(worst, reference), reason
        )
    return _compare_floats(name, actual.astype(np.float64), reference.astype(np.float64), tolerance)


def _compare_floats(
    name: str, actual: Array, reference: Array, tolerance: Tolerance
) -> OutputComparison:
    special = ~np.isfinite(reference)
    if not np.array_equal(actual[special], reference[special], equal_nan=True):
        return OutputComparison.incomparable(name, "NaN or infinity lost")
    if not np.isfinite(actual[~special]).all():
        reason = "NaN or infinity where the reference is finite"
        return OutputComparison.incomparable(name, reason)
    finite = reference[~special]
    worst = np.abs(actual[~special] - finite).max(initial=0)
    allowed = tolerance.atol + tolerance.rtol * np.abs(finite).max(initial=0)
    reason = "" if worst <= allowed else f"{worst:.3g} apart, {allowed:.3g} allowed"
    return OutputComparison(name, not reason, float(worst), _relative(worst, finite), reason)


def _relative(worst: float, reference: Array) -> float:
    largest = float(np.abs(reference.astype(np.float64)).max(initial=0))
    return float(worst / largest) if largest else float(worst and np.inf)


def compare_all(
    outputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> tuple[OutputComparison, ...]:
    """Each expected output, compared in one form."""
    return tuple(
        compare(name, *in_one_form(outputs[name], want), tolerances[name])
        for name, want in expected.items()
    )


def all_pass(
    outputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> bool:
    """Whether every expected output is there within its tolerance."""
    return all(each.passed for each in compare_all(outputs, expected, tolerances))


def largest_difference(outputs: Mapping[str, Batch], expected: Mapping[str, Batch]) -> float:
    """max|a - b| / max|b| over all outputs, infinite where shapes or special values differ."""
    worst = 0.0
    for name, want in expected.items():
        one, other = in_one_form(outputs[name], want)
        a, b = (np.asarray(data_of(v), np.float64) for v in (one, other))
        if a.shape != b.shape:
            return np.inf
        top = float(differences(a, b).max(initial=0))
        worst = max(worst, top / (float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0))
    return worst
