"""How far a model in bytes may be from the one in float32, and how far it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Batch, data_of
from onernn.verification.comparing import differences

Outputs = Mapping[str, Batch]
Measure = Callable[[Sequence[Outputs], Sequence[Outputs]], float]
"""(outputs of each batch, those in float32) -> how far apart they are; 0 where they are equal."""
_FORM = re.compile(r"\s*(labels|max_abs|rmse)\s+([0-9.eE+-]+)\s*(%?)\s*")


class Budget(NamedTuple):
    """At most ``limit`` by a ``measure``; ``name`` is what reports call it."""

    name: str
    limit: float
    measure: Measure

    @classmethod
    def of(cls, text: str) -> Budget:
        """ "labels 0.1%": the share of labels that change. "max_abs 0.02": of any output.

        "rmse 0.001": the root of the mean square over the numbers of all outputs. Labels are the
        integers that the model gives; where it gives none, the largest of each row of its outputs.
        Raises `UnsupportedError` for other texts.
        """
        found = _FORM.fullmatch(text)
        try:
            limit = float(found[2]) / (100 if found[3] else 1) if found else -1.0
        except ValueError:
            limit = -1.0
        if found is None or not 0 <= limit < np.inf or (found[3] and found[1] != "labels"):
            raise UnsupportedError(
                f"budget {text!r}: expected 'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'"
            )
        return cls(found[1], limit, MEASURES[found[1]])

    def shown(self, amount: float) -> str:
        """An amount of it in words."""
        return f"{amount:.3%}" if self.name == "labels" else f"{amount:.3g}"


def labels_of(outputs: Outputs) -> dict[str, Array]:
    """The labels (rows,) by the names of outputs.

    Raises `UnsupportedError` where there are none.
    """
    arrays = {name: data_of(value) for name, value in outputs.items()}
    whole = {name: each.ravel() for name, each in arrays.items() if each.dtype.kind in "biu"}
    if whole:
        return whole
    rows = {name: each for name, each in arrays.items() if each.ndim and each.shape[-1] > 1}
    if not rows:
        raise UnsupportedError(
            "budget labels: no output has integers, or several numbers a row; take max_abs or rmse"
        )
    return {name: each.argmax(axis=-1).ravel() for name, each in rows.items()}


def _labels(given: Sequence[Outputs], exact: Sequence[Outputs]) -> float:
    changed = total = 0
    for one, other in zip(given, exact, strict=True):
        found = labels_of(one)
        for name, want in labels_of(other).items():
            same = found[name].shape == want.shape  # else nobody knows which belongs to which
            changed += int(np.count_nonzero(found[name] != want)) if same else want.size
            total += want.size
    return changed / total if total else 0.0


def _apart(given: Sequence[Outputs], exact: Sequence[Outputs]) -> list[Array]:
    """|a - b| of each output of each batch; infinite where a shape, or NaN, is another one."""
    found = []
    for one, other in zip(given, exact, strict=True):
        for name, want in other.items():
            a, b = data_of(one[name]), data_of(want)
            found.append(differences(a, b) if a.shape == b.shape else np.array([np.inf]))
    return found


def _max_abs(given: Sequence[Outputs], exact: Sequence[Outputs]) -> float:
    return max((float(each.max(initial=0)) for each in _apart(given, exact)), default=0.0)


def _rmse(given: Sequence[Outputs], exact: Sequence[Outputs]) -> float:
    apart = _apart(given, exact)
    count = sum(each.size for each in apart)
    return float(np.sqrt(sum(float(np.square(each).sum()) for each in apart) / max(count, 1)))


MEASURES: dict[str, Measure] = {"labels": _labels, "max_abs": _max_abs, "rmse": _rmse}
