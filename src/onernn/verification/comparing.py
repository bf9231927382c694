"""Compares a model's outputs with reference outputs, under a tolerance for each dtype."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onernn.fuse_passes.ragged_inputs import LENGTHS
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.types import Counts

Batches = Mapping[str, Batch]
"""Arrays or ragged batches of a model's inputs or outputs, by name."""


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference of an output: |a - b| <= atol + rtol * max|reference|."""

    atol: float
    rtol: float


TOLERANCES = {
    "f32": Tolerance(1e-6, 1e-5),  # a few rounding errors of sums of some hundred terms
    "bf16": Tolerance(1e-6, 2e-2),  # 8 bits of mantissa; each step rounds a few times
    "f16": Tolerance(1e-6, 4e-3),  # 11 bits of mantissa
    "u8": Tolerance(2e-2, 0.0),  # int8 stores a state in [-1, 1] in steps of 1/127
    # design/0034 derives the next two: six standard deviations of a sum of rounding errors.
    "int8-dynamic": Tolerance(2e-2, 0.0),  # rounds inputs and weights to 1/127 of their maximum
    "int8-weights": Tolerance(1.4e-2, 0.0),  # rounds only the weights, which halves the variance
}


_OF_OUTPUTS = {"float16": "f16"}  # a narrow dtype's name in NumPy and in `TOLERANCES`


def tolerance_of(dtype: str, atol: float | None, rtol: float | None, *outputs: Batch) -> Tolerance:
    """Returns the tolerance of a dtype: ``atol`` and ``rtol``, or the default for each that is
    None.

    The defaults are in `TOLERANCES`, and 0 for a dtype that is missing there. If one of the
    ``outputs`` to compare is float16, the default ``rtol`` is at least float16's.
    """
    default = TOLERANCES.get(dtype, Tolerance(0, 0))
    for output in outputs:
        own = TOLERANCES.get(_OF_OUTPUTS.get(data_of(output).dtype.name, ""), default)
        default = replace(default, rtol=max(default.rtol, own.rtol))
    asked = {"atol": atol, "rtol": rtol}
    return replace(default, **{key: value for key, value in asked.items() if value is not None})


@dataclass(frozen=True)
class OutputComparison:
    """The verdict on one output: whether it matches its reference.

    ``max_abs`` is max|a-b|, ``max_rel`` is max|a-b| / max|reference|, and ``reason`` says why the
    output failed.
    """

    name: str
    passed: bool
    max_abs: float
    max_rel: float
    reason: str = ""

    @classmethod
    def incomparable(cls, name: str, reason: str) -> OutputComparison:
        """Returns a failed verdict for an output whose difference cannot be measured."""
        return cls(name, False, np.nan, np.nan, reason)

    def as_json(self) -> dict[str, Any]:
        """Returns ``{"name", "pass", "max_abs", "max_rel"}``."""
        numbers = {"max_abs": self.max_abs, "max_rel": self.max_rel}
        return {"name": self.name, "pass": self.passed, **numbers}


def differences(actual: Array, reference: Array) -> Array:
    """Returns |a - b| in float64: 0 for two NaN or two equal infinities, infinite for other pairs
    with NaN or infinity.
    """
    one, other = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def compare(name: str, actual: Batch, reference: Batch, tolerance: Tolerance) -> OutputComparison:
    """Compares one output with its reference.

    Integers, shapes and LoD must be equal, floats within the tolerance, and NaN and infinities at
    the same positions.
    """
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
    outputs: Batches, expected: Batches, tolerances: Mapping[str, Tolerance]
) -> tuple[OutputComparison, ...]:
    """Compares each expected output, after `in_one_form` has made both ragged or both padded."""
    return tuple(
        compare(name, *in_one_form(outputs[name], want), tolerances[name])
        for name, want in expected.items()
    )


def all_pass(outputs: Batches, expected: Batches, tolerances: Mapping[str, Tolerance]) -> bool:
    """Returns whether every expected output is within its tolerance."""
    return all(each.passed for each in compare_all(outputs, expected, tolerances))


def largest_difference(outputs: Batches, expected: Batches) -> float:
    """Returns the largest max|a - b| / max|b| over all outputs.

    The result is infinite if shapes differ, or if NaN or an infinity is in one array only.
    """
    worst = 0.0
    for name, want in expected.items():
        one, other = in_one_form(outputs[name], want)
        a, b = (np.asarray(data_of(v), np.float64) for v in (one, other))
        if a.shape != b.shape:
            return np.inf
        top = float(differences(a, b).max(initial=0))
        worst = max(worst, top / (float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0))
    return worst


# --- how inputs and outputs of one model are passed to another model


GIVEN = "is given"
MAP = "--map MINE=THEIRS (names={MINE: THEIRS})"
"""The hint in messages that tells how to pair inputs and outputs by name instead of in order."""


def pair_inputs(mine: Sequence[Value], theirs: Sequence[Value]) -> dict[str, Value]:
    """Returns another model's input for each input of a model: the input of the same name, or else
    the next input in order.
    """
    named = {value.name: value for value in theirs}
    own = {value.name for value in mine}
    spare = iter([value for value in theirs if value.name not in own])
    pairs = ((v.name, named.get(v.name) or next(spare, None)) for v in mine)
    return {name: twin for name, twin in pairs if twin is not None}


def inputs_by_name(wanted: Sequence[Value], batches: Batches) -> tuple[dict[str, Batch], set[str]]:
    """Returns the batches of a model's inputs, found by name, and the names of the batches that
    were used.

    A ragged NAME is converted to a padded NAME and NAME_lengths, or the reverse, if the model takes
    the other form. A last axis of size 1 is added or removed to fit the declared shape.
    """
    names = [value.name for value in wanted]
    result: dict[str, Batch] = {}
    used: set[str] = set()
    for value in wanted:
        name = value.name
        batch, lengths = batches.get(name), batches.get(name + LENGTHS)
        whole = batches.get(name.removesuffix(LENGTHS))
        if batch is None and isinstance(whole, Ragged):
            result[name] = whole.lengths.astype(value.dtype or np.int32)
            continue
        if isinstance(batch, Ragged) and not value.lod_depth and name + LENGTHS in names:
            longest = max(1, int(batch.lengths.max(initial=0)))
            _, declared, *_ = (*(value.shape or ()), None, None)  # some files declare a fixed T
            batch = batch.to_padded(time=longest if declared is None else declared)
        elif batch is not None and value.lod_depth == 1 and not isinstance(batch, Ragged):
            if lengths is None:
                continue
            used.add(name + LENGTHS)
            batch = Ragged.from_padded(batch, np.asarray(lengths).astype(np.int64))
        if batch is not None:
            used.add(name)
            result[name] = map_data(batch, partial(_fit_last_axis, value.shape))
    return result, used


def _fit_last_axis(declared: Counts | None, array: Array) -> Array:
    if declared is None or not array.ndim:
        return array
    if len(declared) == array.ndim + 1 and declared[-1] == 1:
        return array[..., None]
    without = len(declared) == array.ndim - 1 and array.shape[-1] == 1
    return array[..., 0] if without else array


def feed_for(
    wanted: Sequence[Value], batches: Batches, who: str
) -> tuple[dict[str, Batch], list[str]]:
    """Returns a model's inputs, found among ``batches`` by name (see `inputs_by_name`) or in order,
    and notes on what was assumed.

    ``who``: the model's name in messages. Raises `ModelFormatError` for an input without a batch.
    """
    result, used = inputs_by_name(wanted, batches)
    names = [value.name for value in wanted]
    missing = _without_lengths([name for name in names if name not in result])
    spare = _without_lengths([n for n in batches if n not in used and n not in names])
    notes = []
    if missing and len(missing) <= len(spare):
        other = {
            new + end: batches[old + end]
            for new, old in zip(missing, spare, strict=False)
            for end in ("", LENGTHS)
            if old + end in batches
        }
        found, taken = inputs_by_name([v for v in wanted if v.name not in result], other)
        if all(v.name in result or _is_like(v, found.get(v.name)) for v in wanted):
            pairs = dict(zip(missing, spare, strict=False))
            notes = [f"input {new!r} of {who} {GIVEN} {old!r}" for new, old in pairs.items()]
            result |= found
            used |= {pairs[n.removesuffix(LENGTHS)] + LENGTHS for n in taken if n not in pairs}
            missing, spare = [], spare[len(missing) :]
    if missing:
        takes, has = "; ".join(map(str, wanted)), ", ".join(batches)
        listed = ", ".join(map(repr, missing))
        fits = f"; the inputs in order do not fit: pass {MAP}" if spare else ""
        raise ModelFormatError(
            f"{who} takes {takes}: expected {listed}, and the data has {has}{fits}"
        )
    notes += [f"{who} does not take the input {name!r}" for name in spare]
    return {name: result[name] for name in names}, notes


def _without_lengths(names: list[str]) -> list[str]:
    """Returns the names; NAME_lengths is left out if NAME is in the list."""
    return [n for n in names if not (n.endswith(LENGTHS) and n.removesuffix(LENGTHS) in names)]


def _is_like(value: Value, batch: Batch | None) -> bool:
    """Returns whether a batch fits an input's LoD, rank and sizes."""
    if batch is None or isinstance(batch, Ragged) != bool(value.lod_depth):
        return False
    shape = np.shape(data_of(batch))
    declared = shape if value.shape is None else value.shape
    return len(shape) == len(declared) and all(
        a in (None, b) for a, b in zip(declared, shape, strict=True)
    )


def outputs_for(
    names: Sequence[str], outputs: Batches
) -> tuple[dict[str, tuple[str, Batch]], list[str]]:
    """Returns (name, batch) of the reference's output for each output of a model, by name or in
    order, and notes on what was assumed.

    Raises `ModelFormatError` if no output has a counterpart.
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
            f"no outputs to compare: expected {', '.join(names)} of the model in the reference, got"
            f" {', '.join(outputs)}; pass {MAP}"
        )
    return {name: result[name] for name in names if name in result}, notes


def in_one_form(actual: Batch, reference: Batch) -> tuple[Batch, Batch]:
    """Returns both outputs as ragged batches, if one is ragged and the other has the same sequences
    padded.

    Then the padding is not compared. If both outputs have integers of different dtypes, both become
    int64.
    """
    if isinstance(reference, Ragged) and not isinstance(actual, Ragged):
        actual = _unpad(actual, reference)
    elif isinstance(actual, Ragged) and not isinstance(reference, Ragged):
        reference = _unpad(reference, actual)
        if not isinstance(reference, Ragged) and actual.data.shape == np.shape(reference):
            # The reference has lost its offsets in some operator: compare only the data.
            actual = actual.data
    dtypes = [data_of(value).dtype for value in (actual, reference)]
    if dtypes[0] != dtypes[1] and all(dtype.kind in "iu" for dtype in dtypes):
        actual, reference = (
            map_data(value, lambda array: array.astype(np.int64)) for value in (actual, reference)
        )
    return actual, reference


def map_data(value: Batch, change: Callable[[Array], Array]) -> Batch:
    """Returns a batch with the same offsets, and with ``change`` applied to its array."""
    data = change(data_of(value))
    return value.with_data(data) if isinstance(value, Ragged) else data


def _unpad(padded: Batch, like: Ragged) -> Batch:
    """Returns the sequences of a padded (N, T, ...) or (T, N, ...), or the array if no shape
    fits.
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
    """Returns a command's result as JSON: ``{"status", "outputs": [], "cause": null, ...}``.

    ``status``: a text, or whether the command passed. A dataclass becomes the result of its method
    ``as_json``, or if it has none, its fields. NaN and infinity become null, because JSON lacks
    them.
    """
    words = status if isinstance(status, str) else "pass" if status else "fail"
    return json.dumps(_as_json({"status": words, "outputs": [], "cause": None, **more}))


def _as_json(value: Any) -> Any:
    if is_dataclass(value):
        value = value.as_json() if hasattr(value, "as_json") else vars(value)
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
