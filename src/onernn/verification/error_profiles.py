"""How far two outputs are apart, in numbers, and where a recurrent layer's errors lie."""

from __future__ import annotations

import math

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.ragged import Batch, Ragged
from onernn.ir.records import dataclass
from onernn.verification.comparing import differences
from onernn.verification.output_axes import Axes

_SMALL = 1e-3
"""Elements below this part of the largest have no meaningful relative error of their own."""


@dataclass(frozen=True)
class Errors:
    """Of one output: |a - b|, |a - b| / |b| of the elements that are not small, and the cosine.

    ``max_rel`` is max|a - b| / max|b|, as in the verdict. NaN where nothing can be said: no
    elements, or none that is finite in both.
    """

    max_abs: float = math.nan
    mean_abs: float = math.nan
    median_abs: float = math.nan
    p99_abs: float = math.nan
    max_rel: float = math.nan
    mean_rel: float = math.nan
    median_rel: float = math.nan
    p99_rel: float = math.nan
    cosine: float = math.nan


def errors(actual: Array, reference: Array) -> Errors:
    """The numbers for two arrays of equal shape; elements that are not finite are left out."""
    if actual.shape != reference.shape or actual.size == 0:
        return Errors()
    one, other = (np.asarray(a, np.float64).reshape(-1) for a in (actual, reference))
    kept = np.isfinite(one) & np.isfinite(other)
    one, other = one[kept], other[kept]
    if not kept.any():
        return Errors()
    apart, size = np.abs(one - other), np.abs(other)
    largest = float(size.max())
    sizeable = size > _SMALL * largest
    relative = apart[sizeable] / size[sizeable] if sizeable.any() else np.array([math.nan])
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    worst = float(apart.max())
    return Errors(
        worst,
        float(apart.mean()),
        float(np.median(apart)),
        float(np.percentile(apart, 99)),
        worst / largest if largest else (math.inf if worst else 0.0),
        float(relative.mean()),
        float(np.median(relative)),
        float(np.percentile(relative, 99)),
        float(one @ other) / norms if norms else (math.nan if worst else 1.0),
    )


@dataclass(frozen=True)
class Profile:
    """Where the errors of one output lie: (what, max|a - b|, mean|a - b|) rows of each kind.

    ``steps``: by position within the sentence; ``lengths``: by sentence length; ``directions``:
    the halves of a bidirectional layer; ``ends``: inside and beyond the sentences. Kinds that an
    output does not have are empty. ``state``: a final state, with one row a sentence length.
    """

    name: str
    state: bool
    steps: tuple[tuple[str, float, float], ...] = ()
    lengths: tuple[tuple[str, float, float], ...] = ()
    directions: tuple[tuple[str, float, float], ...] = ()
    ends: tuple[tuple[str, float, float], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Rows as {"at", "max_abs", "mean_abs"}."""
        keys = ("at", "max_abs", "mean_abs")
        kinds = {k: getattr(self, k) for k in ("steps", "lengths", "directions", "ends")}
        rows = {kind: [dict(zip(keys, row, strict=True)) for row in kinds[kind]] for kind in kinds}
        return {"name": self.name, "state": self.state, **rows}


def profile(name: str, actual: Batch, reference: Batch, axes: Axes | None) -> Profile | None:
    """The errors of one output by what recurrent layers go wrong in; None where nothing is known.

    ``axes``: where time, batch and direction stand in it, as `output_axes.axes_of` finds them.
    """
    lengths = axes.lengths if axes else None
    if isinstance(reference, Ragged):
        lengths = reference.lengths
        time, batch = np.arange(len(reference.data)), lengths  # by word, not by axis
        if not isinstance(actual, Ragged) or actual.data.shape != reference.data.shape:
            return None
        apart = differences(actual.data, reference.data)
        sentence = np.repeat(np.arange(len(lengths)), lengths)
        step = time - np.repeat(reference.offsets[:-1], lengths)
        words = apart.reshape(len(apart), -1)
        return Profile(
            name,
            False,
            _rows(words, step),
            _rows(words, batch[sentence]),
            _halves(apart, axes),
        )
    actual, reference = np.asarray(actual), np.asarray(reference)
    mixed = axes is None or (axes.time is None and not axes.state)
    if axes is None or mixed or actual.shape != reference.shape:
        return None
    apart = differences(actual, reference)
    if axes.batch is None or lengths is None or len(lengths) != apart.shape[axes.batch]:
        lengths = None
    if axes.time is None:
        by_sentence = () if lengths is None else _along(apart, axes.batch, lengths)
        return Profile(name, axes.state, (), by_sentence, _halves(apart, axes))
    steps = np.arange(apart.shape[axes.time])
    by_step = _along(apart, axes.time, steps)
    if lengths is None:
        return Profile(name, axes.state, by_step, (), _halves(apart, axes))
    assert axes.batch is not None
    grid = np.moveaxis(apart, (axes.batch, axes.time), (0, 1))
    cells = grid.reshape(*grid.shape[:2], -1)
    inside = steps < lengths[:, None]
    at = np.broadcast_to(steps, inside.shape)
    return Profile(
        name,
        axes.state,
        _rows(cells[inside], at[inside]),
        _rows(cells[inside], np.broadcast_to(lengths[:, None], inside.shape)[inside]),
        _halves(apart, axes),
        tuple(
            (where, *_worst(cells[chosen]))
            for where, chosen in (("inside", inside), ("beyond the end", ~inside))
            if chosen.any()
        ),
    )


def _worst(values: Array) -> tuple[float, float]:
    return (float(values.max()), float(values.mean())) if values.size else (0.0, 0.0)


def _rows(words: Array, key: Int64) -> tuple[tuple[str, float, float], ...]:
    """A row for each key of the words (W, ...)."""
    return tuple((str(each), *_worst(words[key == each])) for each in np.unique(key))


def _along(apart: Array, axis: int | None, key: Int64) -> tuple[tuple[str, float, float], ...]:
    return () if axis is None else _rows(np.moveaxis(apart, axis, 0), key)


def _halves(apart: Array, axes: Axes | None) -> tuple[tuple[str, float, float], ...]:
    """Both directions, in a bidirectional layer's output."""
    side = axes.direction if axes else None
    if side is None or -side > apart.ndim or apart.shape[side] % 2:
        return ()
    forward, backward = np.split(apart, 2, side)
    return (("forward", *_worst(forward)), ("backward", *_worst(backward)))
