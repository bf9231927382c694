"""Recognizes one step of a recurrent cell among element-wise operators.

By structure: a cell is what computes its formula (RNN developer guide of oneDNN), whatever its
operators are called and however its gates are laid out (design/0011).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from onernn.core.graph import Graph, Node
from onernn.core.records import dataclass
from onernn.core.spec import Cell
from onernn.fuse_passes.affine import Affine, Columns, affine
from onernn.operators.activations import NAMES


class Reading(NamedTuple):
    """One way to read a step: what is its input, what its state, and the constants it applies.

    ``layer`` and ``iter``: columns for each gate in oneDNN's order; ``biases`` likewise, the sum
    of each. ``signs``: -1 where the gate is computed with its sign turned.
    """

    x: str
    h: str
    layer: tuple[Columns, ...]
    iter: tuple[Columns, ...]
    biases: tuple[tuple[Columns, ...], ...]
    signs: tuple[int, ...]

    @property
    def constants(self) -> tuple[Any, ...]:
        return self[2:]


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a cell: the state it makes, how it may be read, the nodes that compute it."""

    cell: Cell
    h: str
    c: str
    c_before: str
    readings: tuple[Reading, ...]
    nodes: tuple[Node, ...]


_PLAIN = {NAMES[each.activations[0].name]: each for each in Cell if len(each.gates) == 1}
"""The cells that are a function of a sum, by the operator that is the function."""


def step_of(graph: Graph, node: Node) -> Step | None:
    """The step whose new state a node makes, None where it makes none."""
    if node.op == "Mul":
        return _lstm(graph, node)
    if node.op == "Add":
        return _gru(graph, node)
    cell = _PLAIN.get(node.op)
    if cell is None:
        return None
    made = affine(graph, node.inputs[0])
    if made is None or len(made.terms) != 2:
        return None
    readings = tuple(_readings([made], (1,)))
    return Step(cell, node.outputs[0], "", "", readings, (*made.nodes, node))


def _readings(gates: list[Affine], signs: tuple[int, ...]) -> Iterator[Reading]:
    """Both ways to read gates that are sums of two projections each, of the same two values."""
    sources = list(gates[0].terms)
    if len(sources) != 2 or any(set(gate.terms) != set(sources) for gate in gates):
        return
    biases = tuple(gate.biases for gate in gates)
    for x, h in (sources, sources[::-1]):
        layer, recurrent = (tuple(gate.terms[name] for gate in gates) for name in (x, h))
        yield Reading(x, h, layer, recurrent, biases, signs)


class _Gate(NamedTuple):
    """A function of a sum of projections; ``nodes`` end with the function."""

    sum: Affine
    nodes: tuple[Node, ...]


def _gate(graph: Graph, name: str, function: str) -> _Gate | None:
    node = graph.producer(name)
    if node is None or node.op != function:
        return None
    made = affine(graph, node.inputs[0])
    return None if made is None else _Gate(made, (*made.nodes, node))


def _orders(node: Node | None, op: str) -> Iterator[tuple[str, str]]:
    """The two factors or terms of a node, both ways round."""
    if node is not None and node.op == op and len(node.inputs) == 2:
        one, other = node.inputs
        yield one, other
        if one != other:
            yield other, one


def _lstm(graph: Graph, node: Node) -> Step | None:
    """h = o * tanh(c), c = f * c' + i * g."""
    for out, squashed in _orders(node, "Mul"):
        o, tanh = _gate(graph, out, "Sigmoid"), graph.producer(squashed)
        if o is None or tanh is None or tanh.op != "Tanh":
            continue
        cell = graph.producer(tanh.inputs[0])
        for kept, added in _orders(cell, "Add"):
            keep, add = graph.producer(kept), graph.producer(added)
            for forget, before in _orders(keep, "Mul"):
                for into, candidate in _orders(add, "Mul"):
                    gates = [
                        _gate(graph, into, "Sigmoid"),
                        _gate(graph, forget, "Sigmoid"),
                        _gate(graph, candidate, "Tanh"),
                        o,
                    ]
                    found = [gate for gate in gates if gate]
                    if len(found) < 4 or cell is None or keep is None or add is None:
                        continue
                    readings = tuple(_readings([gate.sum for gate in found], (1, 1, 1, 1)))
                    if readings:
                        nodes = (*_nodes(found), keep, add, cell, tanh, node)
                        c = cell.outputs[0]
                        return Step(Cell.LSTM, node.outputs[0], c, before, readings, nodes)
    return None


def _nodes(gates: Iterable[_Gate]) -> list[Node]:
    return [node for gate in gates for node in gate.nodes]


def _gru(graph: Graph, node: Node) -> Step | None:
    """h = (1 - z) * n + z * h', or with z and 1 - z exchanged."""
    for one, other in _orders(node, "Add"):
        new, old = graph.producer(one), graph.producer(other)
        for weight, value in _orders(new, "Mul"):
            for gate, rest in _orders(old, "Mul"):
                if new is None or old is None:
                    continue
                update = _gate(graph, gate, "Sigmoid")
                left = _one_minus(graph, weight, gate)
                if update is None or left is None:
                    continue
                nodes = (*update.nodes, *left, new, old, node)
                step = _candidate(graph, node, update, value, rest, 1, nodes)
                step = step or _candidate(graph, node, update, rest, value, -1, nodes)
                if step:
                    return step
    return None


def _one_minus(graph: Graph, name: str, gate: str) -> tuple[Node, ...] | None:
    """The nodes that compute 1 - gate."""
    node = graph.producer(name)
    if node is None or node.op != "Sub" or node.inputs[1] != gate:
        return None
    ones = graph.constants.get(node.inputs[0])
    if ones is not None:
        return (node,) if (ones == 1).all() and ones.size == 1 else None
    filled = graph.producer(node.inputs[0])
    if filled is None or filled.op != "ConstantOfShape":
        return None
    if not (np.asarray(filled.attributes.get("value", 0)) == 1).all():
        return None
    shape = graph.producer(filled.inputs[0])
    like = shape is not None and shape.op == "Shape" and shape.inputs[0] == gate
    return (node, filled, shape) if like and shape else None


def _candidate(
    graph: Graph, node: Node, update: _Gate, name: str, h: str, sign: int, outer: tuple[Node, ...]
) -> Step | None:
    """n = tanh(x W + r * (h U + b')), or reset before: n = tanh(x W + (r * h) U).

    ``sign`` is -1 where the update gate lets the new state in: 1 - z is z with its sign turned.
    """
    tanh = graph.producer(name)
    if tanh is None or tanh.op != "Tanh" or len(update.sum.terms) != 2 or h not in update.sum.terms:
        return None
    (x,) = set(update.sum.terms) - {h}
    signs = (sign, 1, 1)
    whole = affine(graph, tanh.inputs[0])
    if whole is not None and len(whole.terms) == 2 and x in whole.terms:
        (scaled,) = set(whole.terms) - {x}
        product = graph.producer(scaled)
        for reset, state in _orders(product, "Mul"):
            r = _gate(graph, reset, "Sigmoid")
            if r is None or state != h or set(r.sum.terms) != {x, h} or product is None:
                continue
            gates = [update.sum, r.sum, whole]
            layer = tuple(gate.terms[x] for gate in gates)
            recurrent = (update.sum.terms[h], r.sum.terms[h], whole.terms[scaled])
            biases = tuple(gate.biases for gate in gates)
            reading = Reading(x, h, layer, recurrent, biases, signs)
            nodes = (*outer, *r.nodes, product, *whole.nodes, tanh)
            return Step(Cell.GRU, node.outputs[0], "", "", (reading,), nodes)
    added = graph.producer(tanh.inputs[0])
    for one, other in _orders(added, "Add"):
        of_x, product = affine(graph, one), graph.producer(other)
        for reset, inner in _orders(product, "Mul"):
            r, of_h = _gate(graph, reset, "Sigmoid"), affine(graph, inner)
            if r is None or of_x is None or of_h is None or product is None or added is None:
                continue
            if (set(of_x.terms), set(of_h.terms)) != ({x}, {h}) or set(r.sum.terms) != {x, h}:
                continue
            layer = (update.sum.terms[x], r.sum.terms[x], of_x.terms[x])
            recurrent = (update.sum.terms[h], r.sum.terms[h], of_h.terms[h])
            biases = (update.sum.biases, r.sum.biases, of_x.biases, of_h.biases)
            reading = Reading(x, h, layer, recurrent, biases, signs)
            nodes = (*outer, *r.nodes, *of_x.nodes, *of_h.nodes, product, added, tanh)
            return Step(Cell.LBR_GRU, node.outputs[0], "", "", (reading,), nodes)
    return None
