"""Biases that a file does not separate, found from the outputs by least squares.

A layer that resets after the product keeps two biases of the candidate, of which a file may hold
the sum. The outputs separate them, where there are many more outputs than biases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import data_of
from onernn.ir.rnn import Recurrent
from onernn.verification.comparing import in_one_form
from onernn.verification.diagnosis.faults import bias_of, merged, resets
from onernn.verification.diagnosis.graph_faults import GraphFault, Site, in_cells
from onernn.verification.tracing import Trial, with_nodes

_MOST = 400
"""Unknowns: each is a run of the model, several times."""
_OUTPUTS = 3
"""For each bias that is solved for, at least: as many unknowns as outputs explain any outputs."""
_ROUNDS = 12
_STEP = 2.0**-9  # of a difference quotient in float32: half of its digits
_ENOUGH = 3e-6
_SAME = 1e-4
"""Part of the largest bias: a fitted one that is as near stays the old one."""


Unknown = tuple[Array, Callable[[Array], Graph]]
"""A vector to begin with, and the graph that another vector makes."""


def fitted_faults(site: Site, ends: float) -> Iterator[GraphFault]:
    """Other biases of the layers of a site: as they are, and with the reset gate on the other side
    of the product. Nothing is solved for after ``ends``.
    """
    cells = {rnn.spec.cell: rnn.spec for rnn in site.layers.values()}
    if len(cells) != 1:
        return
    (spec,) = cells.values()
    moved = [in_cells(fault, spec.cell) for fault in resets(spec)][-1:]
    known = "bias_changed", "its biases are others"
    if spec.cell.linear_before_reset:
        yield Fault(*known, _Fitted(partial(_biases, inside=True), ends))
        moved = []
    yield Fault(*known, _Fitted(_biases, ends))
    for fault in moved:
        unknown = partial(_biases, inside=True, moved=fault)
        text = f"{fault.text}, each bias where it belongs,"
        yield Fault(fault.id, text, _Fitted(unknown, ends))


def fitted_outputs(graph: Graph, ends: float) -> Iterator[tuple[str, GraphFault]]:
    """The label of a product to which no bias is added, and the fault that one is missing."""
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if len(node.inputs) == 2 else None
        if node.op not in ("MatMul", "Gemm") or weight is None or weight.ndim != 2:
            continue
        (name,) = node.outputs
        if any(user.op == "Add" for user in graph.users(name)):
            continue

        def unknown(site: Site, node: Node = node, name: str = name) -> Unknown:
            product = replace(node, outputs=(f"{name}.product",))
            added = Node("Add", (f"{name}.product", f"{name}.bias"), (name,))

            def with_bias(vector: Array) -> Graph:
                bias = {f"{name}.bias": vector.astype(np.float32)}
                return with_nodes(site.graph, {name: [product, added]}, bias)

            return np.zeros(data_of(site.values[name]).shape[-1]), with_bias

        yield node.label, Fault("operator_missing", "a bias is added", _Fitted(unknown, ends))


def _biases(site: Site, inside: bool = False, moved: GraphFault | None = None) -> Unknown | None:
    """The biases of all layers of a site. ``inside``: only the parts of the candidates' that are
    reset, too, where the sums are known. ``moved``: a fault that the layers have besides.
    """
    if moved is not None:
        if (graph := moved.apply(site)) is None:
            return None
        site = replace(site, graph=graph)
    old = {name: bias_of(rnn.spec, rnn.layers[0]) for name, rnn in site.layers.items()}
    unknown = {name: bias[..., 3:, :] if inside else bias for name, bias in old.items()}
    parts = np.cumsum([bias.size for bias in unknown.values()])[:-1]

    def with_biases(vector: Array) -> Graph:
        new = dict(zip(old, np.split(vector, parts), strict=True))

        def with_bias(rnn: Recurrent) -> Recurrent:
            (weights,), before = rnn.layers, old[rnn.y]
            bias = new[rnn.y].reshape(unknown[rnn.y].shape)
            if inside:
                outside = merged(before)[..., 2:3, :] - bias
                bias = np.concatenate([before[..., :2, :], outside, bias], axis=-2)
            bias = bias.astype(weights.iter.dtype)
            return replace(rnn, weights=replace(weights, bias=bias))

        return site.changed(with_bias) or site.graph

    start = np.concatenate([bias.reshape(-1) for bias in unknown.values()])
    return start.astype(np.float64), with_biases


class _Fitted:
    """The graph with the numbers that explain the outputs of the first trial that it is applied to;
    other trials get the same numbers.
    """

    def __init__(self, unknown: Callable[[Site], Unknown | None], ends: float) -> None:
        self._unknown, self._ends = unknown, ends
        self._solution: Array | None = None

    def __call__(self, site: Site) -> Graph | None:
        if (unknown := self._unknown(site)) is None:
            return None
        start, graph_with = unknown
        if self._solution is None:
            self._solution = _solved(site.trial, start, graph_with, self._ends)
        return None if self._solution is None else graph_with(self._solution)


def _solved(
    trial: Trial, start: Array, graph_with: Callable[[Array], Graph], ends: float
) -> Array | None:
    """The vector that explains the outputs; None for none. Gauss-Newton."""

    def residual(vector: Array) -> Array | None:
        outputs = trial.outputs(graph_with(vector)) if time.monotonic() < ends else None
        pairs = [(outputs[name], want) for name, want in trial.expected.items()] if outputs else []
        pieces = []
        for one, other in (map(data_of, in_one_form(*pair)) for pair in pairs):
            if one.shape != other.shape or one.dtype.kind != "f":
                return None
            pieces.append((one.astype(np.float64) - other).reshape(-1))
        whole = np.concatenate(pieces) if pieces else None
        return whole if whole is not None and np.isfinite(whole).all() else None

    point, now = start, residual(start) if start.size <= _MOST else None
    for _ in range(_ROUNDS):
        if now is None or now.size < _OUTPUTS * start.size:
            return None
        if np.abs(now).max() < _ENOUGH:
            kept = np.abs(point - start) <= _SAME * np.abs(start).max(initial=1.0)
            return np.where(kept, start, point)
        columns = []
        for k in range(point.size):
            moved = point.copy()
            moved[k] += _STEP
            if (there := residual(moved)) is None:
                return None
            columns.append((there - now) / _STEP)
        if np.count_nonzero(np.any(columns, axis=0)) < _OUTPUTS * start.size:
            return None  # the others are padding, or behind a function that is flat there
        step = np.linalg.lstsq(np.stack(columns, 1), now, rcond=1e-6)[0]
        tried = ((there, residual(there)) for there in (point - step / 2**k for k in range(4)))
        nearer = ((p, r) for p, r in tried if r is not None and r @ r < now @ now)
        point, now = next(nearer, (point, None))
    return None
