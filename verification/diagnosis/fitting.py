"""Biases that a file does not tell apart, found from the outputs by least squares.

A layer that resets after the product keeps two biases of the candidate; who permuted gates,
merged biases or left one out has mixed rows that no rearrangement separates again. The outputs do:
there are many more of them than biases.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import OnernnError
from onernn.core.graph import Graph
from onernn.core.ragged import Batch, data_of
from onernn.core.rnn import Recurrent
from onernn.verification.aligning import in_one_form
from onernn.verification.diagnosis.graph_faults import Hypothesis, with_change
from onernn.verification.diagnosis.weight_faults import bias_of, weight_faults
from onernn.verification.diagnosis.weight_relations import (
    OTHER_BIASES,
    Found,
    bias_between,
    told_by_size,
)
from onernn.verification.graph_changes import recurrent_layers, with_layers
from onernn.verification.layerwise import Traced
from onernn.verification.tracing import rerun

Structure = Literal["", "reset_placement", "gates_swapped"]
_MOST = 200
"""Unknowns: each is a run of the model, several times."""
_ROUNDS = 8
_STEP = 2.0**-9  # of a difference quotient in float32: half of its digits
_ENOUGH = 3e-6
_SAME = 1e-4
"""Of the largest bias: a fitted one that is that near is the one that was there."""


def fitted(
    found: Traced,
    group: tuple[str, ...],
    expected: Mapping[str, Batch],
    ends: float,
    structure: Structure,
) -> Iterator[tuple[tuple[str, ...], Hypothesis]]:
    """The layers of a group with the biases that explain the outputs, under a structure that may
    hide them, "" as it is. With each the layers that it changes.
    """
    spec, *others = (rnn.spec for rnn in recurrent_layers(found.graph, group).values())
    if any(other.cell is not spec.cell for other in others):
        return
    if not structure:
        plain = _solved(found, found.graph, group, expected, ends)
        if plain is not None:
            yield from _told(found.graph, plain, group)
        return
    if not spec.cell.is_gru:  # others' biases are apart: they are faults of `weight_faults`
        return
    seen: set[str] = set()
    for fault in weight_faults(spec):
        apart = fault.cause != structure or " only" in fault.text or "other model" in fault.text
        if apart or fault.text in seen:
            continue
        seen.add(fault.text)
        changed = with_change(found.graph, group, fault.change, {})
        graph = changed and _solved(found, changed, group, expected, ends)
        if graph:
            text = f"{fault.text}, each bias where it belongs,"
            yield group, Hypothesis(fault.cause, text, graph)


def _told(
    before: Graph, after: Graph, group: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Hypothesis]]:
    """What the fitted biases are, as if they were a reference's: where they differ."""
    old, new = (recurrent_layers(each, group) for each in (before, after))
    named: dict[str, Found] = {}
    for name, rnn in old.items():
        biases = (bias_of(rnn.spec, each.layers[0]) for each in (rnn, new[name]))
        for found in bias_between(rnn.spec, *biases):
            named[name] = found
    if not named:
        return
    sums = sum(found.apart for found in named.values())
    told = {
        name: told_by_size(found._replace(apart=sums)) if found.text == OTHER_BIASES else found
        for name, found in named.items()
    }
    cause = next(iter(told.values()))
    text = "; ".join(dict.fromkeys(found.text.rstrip(",") for found in told.values()))
    yield tuple(told), Hypothesis(cause.id, text, after, stated=True)


def _biases(graph: Graph, group: tuple[str, ...]) -> dict[str, Array]:
    layers = recurrent_layers(graph, group)
    return {name: bias_of(rnn.spec, rnn.layers[0]) for name, rnn in layers.items()}


def unknowns(found: Traced, group: tuple[str, ...]) -> int:
    """How many biases the layers of a group have."""
    return sum(bias.size for bias in _biases(found.graph, group).values())


def _solved(
    found: Traced, graph: Graph, group: tuple[str, ...], expected: Mapping[str, Batch], ends: float
) -> Graph | None:
    """The graph with fitted biases; None where none explain the outputs. Gauss-Newton."""
    old = _biases(graph, group)
    start = np.concatenate([b.reshape(-1) for b in old.values()]).astype(np.float64)
    if not 0 < start.size <= _MOST:
        return None

    def with_biases(vector: Array) -> Graph:
        pieces = np.split(vector, np.cumsum([b.size for b in old.values()])[:-1])
        new = {k: p.reshape(old[k].shape) for k, p in zip(old, pieces, strict=True)}

        def fitted_to(rnn: Recurrent) -> Recurrent | None:
            if rnn.y not in new:
                return None
            bias = new[rnn.y].astype(rnn.layers[0].iter.dtype)
            return replace(rnn, weights=replace(rnn.layers[0], bias=bias))

        return with_layers(graph, fitted_to) or graph

    def residual(vector: Array) -> Array | None:
        try:
            outputs = rerun(with_biases(vector), found.graph, found.values)
        except OnernnError:
            return None
        pieces = []
        for name, want in expected.items():
            one, other = (np.asarray(data_of(v)) for v in in_one_form(outputs[name], want))
            if one.shape != other.shape or one.dtype.kind != "f":
                return None
            pieces.append((one.astype(np.float64) - other).reshape(-1))
        whole = np.concatenate(pieces)
        return whole if np.isfinite(whole).all() else None

    at, now = start, residual(start)
    if now is None or now.size < start.size:
        return None
    best = float(np.abs(now).max())
    for _ in range(_ROUNDS):
        columns = []
        for k in range(at.size):
            moved = at.copy()
            moved[k] += _STEP
            there = residual(moved) if time.monotonic() < ends else None
            if there is None:
                return None
            columns.append((there - now) / _STEP)
        at = at - np.linalg.lstsq(np.stack(columns, 1), now, rcond=1e-6)[0]
        now = residual(at)
        if now is None:
            return None
        worst = float(np.abs(now).max())
        if worst < _ENOUGH:
            kept = np.abs(at - start) <= _SAME * np.abs(start).max(initial=1.0)
            return with_biases(np.where(kept, start, at))
        if worst > 0.7 * best:
            return None
        best = worst
    return None
