"""Biases that a file does not tell apart, found from the outputs by least squares.

A layer that resets after the product keeps two biases of the candidate; who permuted gates,
merged biases or left one out has mixed rows that no rearrangement separates again. The outputs do:
there are many more of them than biases.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import OnernnError
from onernn.core.graph import Graph
from onernn.core.ragged import Batch, data_of
from onernn.core.rnn import Recurrent
from onernn.verification.aligning import in_one_form
from onernn.verification.diagnosis.graph_faults import Hypothesis, with_change
from onernn.verification.diagnosis.weight_faults import bias_of, weight_faults
from onernn.verification.graph_changes import recurrent_layers, with_layers
from onernn.verification.layerwise import Traced
from onernn.verification.tracing import fast_backend, rerun

_MOST = 200
"""Unknowns: each is a run of the model, several times."""
_ROUNDS = 8
_STEP = 2.0**-9  # of a difference quotient in float32: half of its digits
_ENOUGH = 3e-6


def fitted(
    found: Traced, group: tuple[str, ...], expected: Mapping[str, Batch], ends: float
) -> Iterator[Hypothesis]:
    """The layers of a group with the biases that explain the outputs, under each structure that

    may hide them: as it is, gates permuted, reset elsewhere.
    """
    spec, *others = (rnn.spec for rnn in recurrent_layers(found.graph, group).values())
    if any(other.cell is not spec.cell for other in others):
        return
    plain = _solved(found, found.graph, group, expected, ends)
    if plain is not None:
        yield Hypothesis(*_told(found.graph, plain, group), plain)
    seen: set[str] = set()
    for fault in weight_faults(spec):
        structural = (
            fault.cause in ("gates_swapped", "reset_placement") and " only" not in fault.text
        )
        if not structural or fault.text in seen or "other model" in fault.text:
            continue
        seen.add(fault.text)
        changed = with_change(found.graph, group, fault.change, {})
        graph = changed and _solved(found, changed, group, expected, ends)
        if graph:
            yield Hypothesis(fault.cause, f"{fault.text}, each bias where it belongs,", graph)


def _told(before: Graph, after: Graph, group: tuple[str, ...]) -> tuple[str, str]:
    """The cause and its text where only the biases differ."""
    old, new = _biases(before, group), _biases(after, group)
    merged = [
        b.shape[2] == 4 and not b[..., 3, :].any() and a[..., 3, :].any()
        for b, a in zip(old.values(), new.values(), strict=True)
    ]
    if all(merged):
        return "bias_merged", "both biases of the candidate stand apart, one inside r*(...),"
    if size_of_biases(before, group) > size_of_biases(after, group):
        return "bias_doubled", "its bias is smaller: one of its biases is added twice,"
    return "bias_merged", "its bias is larger: one of two biases is left out,"


def size_of_biases(graph: Graph, group: tuple[str, ...]) -> float:
    """The sum of the squares of all biases of these layers."""
    return sum(float(np.square(bias).sum()) for bias in _biases(graph, group).values())


def _biases(graph: Graph, group: tuple[str, ...]) -> dict[str, Array]:
    layers = recurrent_layers(graph, group)
    return {name: bias_of(rnn.spec, rnn.layers[0]) for name, rnn in layers.items()}


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
            outputs = rerun(with_biases(vector), found.graph, found.values, fast_backend())
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
            return with_biases(at)
        if worst > 0.7 * best:
            return None
        best = worst
    return None
