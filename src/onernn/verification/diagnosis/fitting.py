"""Biases that a file does not separate, found from the outputs by least squares.

A layer that resets after the product keeps two biases of the candidate; permuted gates,
merged biases or a missing one mix rows that no rearrangement separates again. The outputs do,
where there are many more of them than biases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import data_of
from onernn.ir.rnn import Recurrent
from onernn.verification.comparing import in_one_form
from onernn.verification.diagnosis.differences import Trial
from onernn.verification.diagnosis.faults import (
    Relation,
    bias_between,
    bias_of,
    in_layer,
    merged,
    permutations,
    resets,
)
from onernn.verification.diagnosis.graph_faults import with_fault
from onernn.verification.tracing import recurrent_layers, rerun, with_layers, with_nodes

Structure = Literal["", "reset_placement", "gates_swapped"]
_MOST = 200
"""Unknowns: each is a run of the model, several times."""
_OUTPUTS = 3
"""For each bias that is solved for, at least: as many unknowns as outputs explain any outputs."""
_ROUNDS = 8
_STEP = 2.0**-9  # of a difference quotient in float32: half of its digits
_ENOUGH = 3e-6
_SAME = 1e-4
"""Part of the largest bias: a fitted one that is as near stays the old one."""


def fitted(
    trial: Trial,
    group: tuple[str, ...],
    ends: float,
    structure: Structure,
) -> Iterator[tuple[tuple[str, ...], Fault[Graph]]]:
    """The layers of a group with the biases that explain the outputs, under a structure that may
    hide them, "" as it is. With each the layers that it changes.
    """
    spec, *others = (rnn.spec for rnn in recurrent_layers(trial.graph, group).values())
    if any(other.cell is not spec.cell for other in others):
        return
    if not structure:
        plain = _solved(trial, *_biases(trial.graph, group), ends)
        if plain is not None:
            yield from _compared(trial.graph, plain, group)
        return
    if not spec.cell.is_gru:  # others' biases are apart: they are faults of layers
        return
    later = structure == "reset_placement" and not spec.cell.linear_before_reset
    faults = resets(spec) if structure == "reset_placement" else map(in_layer, permutations(spec))
    for fault in {fault.text: fault for fault in faults}.values():
        changed = with_fault(trial.graph, group, fault)
        unknown = changed and _biases(changed, group, parted=later)
        if unknown and (graph := _solved(trial, *unknown, ends)):
            text = f"{fault.text}, each bias where it belongs,"
            yield group, _giving(fault.id, text, graph)


def fitted_outputs(trial: Trial, ends: float) -> Iterator[tuple[str, Fault[Graph]]]:
    """The label of a product to which no bias is added, and the graph in which the one is added
    that explains the outputs.
    """
    for node in trial.graph.nodes:
        weight = trial.graph.constants.get(node.inputs[1]) if len(node.inputs) == 2 else None
        if node.op not in ("MatMul", "Gemm") or weight is None or weight.ndim != 2:
            continue
        name = node.outputs[0]
        if any(user.op == "Add" for user in trial.graph.users(name)):
            continue
        columns = data_of(trial.values[name]).shape[-1]

        def with_bias(vector: Array, node: Node = node, name: str = name) -> Graph:
            product = replace(node, outputs=(f"{name}.product",))
            added = Node("Add", (f"{name}.product", f"{name}.bias"), (name,))
            bias = {f"{name}.bias": vector.astype(np.float32)}
            return with_nodes(trial.graph, {name: [product, added]}, bias)

        if graph := _solved(trial, np.zeros(columns), with_bias, ends):
            yield node.label, _giving("operator_missing", "a bias is added", graph)


def _giving(id: str, text: str, graph: Graph) -> Fault[Graph]:
    return Fault(id, text, lambda _: graph)


def _compared(
    before: Graph, after: Graph, group: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Fault[Graph]]]:
    """The fitted biases that differ, named as if they were a reference's."""
    old, new = (recurrent_layers(each, group) for each in (before, after))
    named: dict[str, Relation] = {}
    for name, rnn in old.items():
        biases = (bias_of(rnn.spec, each.layers[0]) for each in (rnn, new[name]))
        for relation in bias_between(rnn.spec, *biases):
            named[name] = relation
    if not named:
        return
    cause = next(iter(named.values()))
    text = "; ".join(dict.fromkeys(relation.text.rstrip(",") for relation in named.values()))
    yield tuple(named), _giving(cause.id, text, after)


def _biases(
    graph: Graph, group: tuple[str, ...], parted: bool = False
) -> tuple[Array, Callable[[Array], Graph]]:
    """The biases of these layers in one vector, and the graph with those of another vector.

    ``parted``: only the part of the candidates' biases that is reset, too, where the sum is known.
    """
    layers = recurrent_layers(graph, group)
    old = {name: bias_of(rnn.spec, rnn.layers[0]) for name, rnn in layers.items()}
    whole = {name: merged(bias)[..., 2:3, :] for name, bias in old.items()} if parted else old
    start = [bias.reshape(-1) * (0.5 if parted else 1.0) for bias in whole.values()]
    ends = np.cumsum([each.size for each in start])[:-1]

    def with_biases(vector: Array) -> Graph:
        new = dict(zip(whole, np.split(vector, ends), strict=True))

        def with_bias(rnn: Recurrent) -> Recurrent | None:
            if rnn.y not in new:
                return None
            bias = new[rnn.y].reshape(whole[rnn.y].shape)
            if parted:
                rest = whole[rnn.y] - bias
                bias = np.concatenate([old[rnn.y][..., :2, :], rest, bias], axis=-2)
            bias = bias.astype(rnn.layers[0].iter.dtype)
            return replace(rnn, weights=replace(rnn.layers[0], bias=bias))

        return with_layers(graph, with_bias) or graph

    return np.concatenate(start).astype(np.float64), with_biases


def _solved(
    trial: Trial,
    start: Array,
    graph_with: Callable[[Array], Graph],
    ends: float,
) -> Graph | None:
    """The graph made of the vector that explains the outputs; None for none. Gauss-Newton."""
    if not 0 < start.size <= _MOST:
        return None

    def residual(vector: Array) -> Array | None:
        try:
            outputs = rerun(graph_with(vector), trial.graph, trial.values)
        except OnernnError:
            return None
        pieces = []
        for name, want in trial.expected.items():
            one, other = (np.asarray(data_of(v)) for v in in_one_form(outputs[name], want))
            if one.shape != other.shape or one.dtype.kind != "f":
                return None
            pieces.append((one.astype(np.float64) - other).reshape(-1))
        whole = np.concatenate(pieces)
        return whole if np.isfinite(whole).all() else None

    point, now = start, residual(start)
    if now is None or now.size < _OUTPUTS * start.size:
        return None
    best = float(np.abs(now).max())
    for _ in range(_ROUNDS):
        columns = []
        for k in range(point.size):
            moved = point.copy()
            moved[k] += _STEP
            there = residual(moved) if time.monotonic() < ends else None
            if there is None:
                return None
            columns.append((there - now) / _STEP)
        if np.count_nonzero(np.any(columns, axis=0)) < _OUTPUTS * start.size:
            return None  # the others are padding, or behind a function that is flat there
        point = point - np.linalg.lstsq(np.stack(columns, 1), now, rcond=1e-6)[0]
        now = residual(point)
        if now is None:
            return None
        worst = float(np.abs(now).max())
        if worst < _ENOUGH:
            kept = np.abs(point - start) <= _SAME * np.abs(start).max(initial=1.0)
            return graph_with(np.where(kept, start, point))
        if worst > 0.7 * best:
            return None
        best = worst
    return None
