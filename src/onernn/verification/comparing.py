"""Whether two outputs are the same, under a tolerance that has a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass


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
    """Returns the default one of a dtype computed in, with what is given in its place; exact for
    others.

    ``outputs``: what is to be compared. A narrow dtype of theirs widens the relative default, as
    it rounds whatever was computed.
    """
    default = TOLERANCES.get(dtype, Tolerance(0, 0))
    for output in outputs:
        own = TOLERANCES.get(_OF_OUTPUTS.get(data_of(output).dtype.name, ""), default)
        default = replace(default, rtol=max(default.rtol, own.rtol))
    asked = {"atol": atol, "rtol": rtol}
    return replace(default, **{key: value for key, value in asked.items() if value is not None})


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
        """Returns the verdict where no difference can be measured."""
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
    apart = differences(actual, reference)
    worst = float(apart.max(initial=0))
    if worst == np.inf:
        lost = apart[~np.isfinite(reference)].any()
        reason = "lost" if lost else "where the reference is finite"
        return OutputComparison.incomparable(name, f"NaN or infinity {reason}")
    largest = float(np.abs(reference[np.isfinite(reference)].astype(np.float64)).max(initial=0))
    reason = ""
    if reference.dtype.kind == "f":
        allowed = tolerance.atol + tolerance.rtol * largest
        reason = "" if worst <= allowed else f"{worst:.3g} apart, {allowed:.3g} allowed"
    elif unequal := int(np.count_nonzero(actual != reference)):
        reason = f"{unequal} of {reference.size} values differ"
    relative = worst / largest if largest else float(worst and np.inf)
    return OutputComparison(name, not reason, worst, relative, reason)


def compare_all(
    outputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> tuple[OutputComparison, ...]:
    """Returns each expected output, compared in one form."""
    return tuple(
        compare(name, *in_one_form(outputs[name], want), tolerances[name])
        for name, want in expected.items()
    )


def all_pass(
    outputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> bool:
    """Returns whether every expected output is there within its tolerance."""
    return all(each.passed for each in compare_all(outputs, expected, tolerances))


def largest_difference(outputs: Mapping[str, Batch], expected: Mapping[str, Batch]) -> float:
    """max|a - b| / max|b| over all outputs, infinite if shapes or special values differ."""
    worst = 0.0
    for name, want in expected.items():
        one, other = in_one_form(outputs[name], want)
        a, b = (np.asarray(data_of(v), np.float64) for v in (one, other))
        if a.shape != b.shape:
            return np.inf
        top = float(differences(a, b).max(initial=0))
        worst = max(worst, top / (float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0))
    return worst


# --- one model's inputs and outputs by another's names and in its forms


LENGTHS = "_lengths"
"""Suffix of the input of lengths that `onernn convert` adds to a padded input."""


def paired_inputs(mine: Sequence[Value], theirs: Sequence[Value]) -> dict[str, Value]:
    """Returns another model's input for each of one's: by name, the rest in order as `feed_for`
    does.
    """
    named = {value.name: value for value in theirs}
    own = {value.name for value in mine}
    spare = iter([value for value in theirs if value.name not in own])
    pairs = ((v.name, named.get(v.name) or next(spare, None)) for v in mine)
    return {name: twin for name, twin in pairs if twin is not None}


def feed_for(
    wanted: Sequence[Value], batches: Mapping[str, Batch], who: str
) -> tuple[dict[str, Batch], list[str]]:
    """Returns the inputs that a model takes, from batches by name; and what had to be assumed.

    By name; a ragged NAME serves a model that takes NAME padded and NAME_lengths, and these serve
    one that takes it ragged. What is left over is matched in order. Raises `ModelFormatError`
    if an input stays without a batch.
    """
    names = [value.name for value in wanted]
    result: dict[str, Batch] = {}
    used: set[str] = set()
    for value in wanted:
        name = value.name
        batch = batches.get(name)
        stem = name.removesuffix(LENGTHS)
        if batch is None and name != stem and isinstance(ragged := batches.get(stem), Ragged):
            result[name] = ragged.lengths.astype(value.dtype or np.int32)
        elif batch is not None and value.lod_depth == 1 and not isinstance(batch, Ragged):
            if (lengths := batches.get(name + LENGTHS)) is None:
                continue
            used |= {name, name + LENGTHS}
            result[name] = Ragged.from_padded(batch, np.asarray(lengths).astype(np.int64))
        elif isinstance(batch, Ragged) and not value.lod_depth and name + LENGTHS in names:
            used.add(name)
            longest = max(1, int(batch.lengths.max(initial=0)))
            _, declared, *_ = (*(value.shape or ()), None, None)  # T, which some files fix
            result[name] = batch.to_padded(time=longest if declared is None else declared)
        elif batch is not None:
            used.add(name)
            result[name] = batch
    missing = [value for value in wanted if value.name not in result]
    spare = [name for name in batches if name not in used and name not in names]
    notes = []
    if missing and len(missing) <= len(spare) and _alike(missing, [batches[n] for n in spare]):
        for value, name in zip(missing, spare, strict=False):
            notes.append(f"input {value.name!r} of {who} is given {name!r}")
            result[value.name] = batches[name]
            used.add(name)
        missing, spare = [], spare[len(missing) :]
    if missing:
        takes, has = "; ".join(map(str, wanted)), ", ".join(batches)
        listed = ", ".join(repr(value.name) for value in missing)
        raise ModelFormatError(f"{who} takes {takes}; the data has no {listed}, it has {has}")
    spare = [n for n in spare if not n.endswith(LENGTHS) or n.removesuffix(LENGTHS) not in used]
    notes += [f"{who} does not take the input {name!r}" for name in spare]
    return {name: result[name] for name in names}, notes


def _alike(missing: Sequence[Value], spare: Sequence[Batch]) -> bool:
    """Returns whether batches could be these inputs, in order: ranks, sizes and LoD fit."""
    for value, batch in zip(missing, spare, strict=False):
        if isinstance(batch, Ragged) != bool(value.lod_depth):
            return False
        shape = batch.data.shape if isinstance(batch, Ragged) else np.shape(batch)
        if value.shape is not None and (
            len(shape) != len(value.shape)
            or any(a not in (None, b) for a, b in zip(value.shape, shape, strict=True))
        ):
            return False
    return True


def outputs_for(
    names: Sequence[str], outputs: Mapping[str, Batch]
) -> tuple[dict[str, tuple[str, Batch]], list[str]]:
    """For outputs of a model, the reference's by name, or in order; and what had to be assumed.

    Raises `ModelFormatError` if none can be compared.
    """
    result = {name: (name, outputs[name]) for name in names if name in outputs}
    left = [name for name in names if name not in result]
    spare = [name for name in outputs if name not in result]
    notes = []
    if left and len(left) == len(spare):
        for name, other in zip(left, spare, strict=True):
            result[name] = (other, outputs[other])
            notes.append(f"output {name!r} is compared with {other!r}")
        left, spare = [], []
    notes += [
        f"output {name!r} is not compared: the reference has none of that name" for name in left
    ]
    notes += [f"the reference's output {name!r} is not compared" for name in spare]
    if not result:
        raise ModelFormatError(
            f"no outputs to compare: the model gives {', '.join(names)},"
            f" the reference {', '.join(outputs)}"
        )
    return {name: result[name] for name in names if name in result}, notes


def in_one_form(actual: Batch, reference: Batch) -> tuple[Batch, Batch]:
    """Returns both outputs ragged where only one is and the other holds the same sentences padded.

    What stands behind a sentence is then no part of the comparison: a ragged output has none.
    Integers of any width are the same kind.
    """
    if isinstance(reference, Ragged) and not isinstance(actual, Ragged):
        actual = _unpad(actual, reference)
    elif isinstance(actual, Ragged) and not isinstance(reference, Ragged):
        reference = _unpad(reference, actual)
        if not isinstance(reference, Ragged) and actual.data.shape == np.shape(reference):
            actual = actual.data  # the reference lost its offsets, as some operators do
    one, other = (v.data if isinstance(v, Ragged) else np.asarray(v) for v in (actual, reference))
    if one.dtype != other.dtype and one.dtype.kind in "iu" and other.dtype.kind in "iu":
        wide = one.astype(np.int64)
        actual = actual.with_data(wide) if isinstance(actual, Ragged) else wide
        wide = other.astype(np.int64)
        reference = reference.with_data(wide) if isinstance(reference, Ragged) else wide
    return actual, reference


def _unpad(padded: Batch, like: Ragged) -> Batch:
    """Returns the sentences of padded (N, T, ...) or (T, N, ...), or the array where it is
    neither.
    """
    array: Array = np.asarray(padded)
    longest = int(like.lengths.max(initial=0))
    for n, t in ((0, 1), (1, 0)):
        if array.ndim < 2 or array.shape[n] != len(like) or array.shape[t] < longest:
            continue
        if array.ndim == like.data.ndim + 1 and array.shape[2:] == like.data.shape[1:]:
            words = Ragged.from_padded(array, like.lengths, time_major=n == 1)
            return like.with_data(words.data)
    return padded


# --- verdicts as JSON


def json_text(status: bool | str, **more: Any) -> str:
    """Returns a result with the keys that all have: ``{"status", "outputs": [], "cause": null,
    ...}``.

    ``status``: in words, or whether it passed. NaN and infinity, which JSON has not, become null.
    """
    words = status if isinstance(status, str) else "pass" if status else "fail"
    return json.dumps(_finite({"status": words, "outputs": [], "cause": None, **more}))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
