"""Recognizes one step of a recurrent cell among element-wise operators.

By structure: a cell is what computes its formula (RNN developer guide of oneDNN), whatever its
operators are called and however its gates are laid out (design/0011).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from onernn.fuse_passes.affine import Affine, Columns, affine, affine_inside
from onernn.fuse_passes.polynomials import Polynomial, is_arithmetic, is_number, polynomial
from onernn.fuse_passes.rewriting import orders
from onernn.ir.activations import NAMES
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Update


class Reading(NamedTuple):
    """One way to read a step: what is its input, what its state, and the constants it applies.

    ``layer`` and ``iter``: columns for each gate in oneDNN's order; ``biases`` likewise, the sum
    of each. ``signs``: -1 where the gate is computed with its sign turned. ``projection``: what
    makes the state of a projected LSTM.
    """

    x: str
    h: str
    layer: tuple[Columns, ...]
    iter: tuple[Columns, ...]
    biases: tuple[tuple[Columns, ...], ...]
    signs: tuple[int, ...]
    projection: Columns | None = None

    @property
    def constants(self) -> tuple[Any, ...]:
        return self[2:]


class Attention(NamedTuple):
    """One number (N, 1) a sentence. ``keeps``: it scales u itself; in the guide 1 - a does."""

    name: str
    keeps: bool


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a cell: the state it makes, how it may be read, the nodes that compute it.

    The node that makes h is the last one; that of a projected LSTM stands behind one that looks
    like a plain LSTM's.
    """

    cell: Cell
    h: str
    c: str
    c_before: str
    readings: tuple[Reading, ...]
    nodes: tuple[Node, ...]
    update: Update = "keep"
    attention: Attention | None = None


_PLAIN = {NAMES[each.activations[0].name]: each for each in Cell if len(each.gates) == 1}
"""The cells that are a function of a sum, by the operator that is the function."""
_NEAR = 64  # values that a new state is made of, back to its gates


def step_of(graph: Graph, node: Node) -> Step | None:
    """The step whose new state a node makes, None where it makes none."""
    if node.op == "Mul":
        return _lstm(graph, node)
    if node.op in ("Gemm", "MatMul"):
        return _projected(graph, node)
    if node.op in ("Add", "Sub"):
        return _gru(graph, node)
    cell = _PLAIN.get(node.op)
    if cell is None:
        return None
    result = affine(graph, node.inputs[0])
    if result is None or len(result.terms) != 2:
        return None
    readings = tuple(_readings([result], (1,)))
    return Step(cell, node.outputs[0], "", "", readings, (*result.nodes, node))


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
    result = affine_inside(graph, name, function)
    return None if result is None else _Gate(result, result.nodes)


def _lstm(graph: Graph, node: Node) -> Step | None:
    """h = o * tanh(c), c = f * c' + i * g."""
    for out, squashed in orders(node):
        o, tanh = _gate(graph, out, "Sigmoid"), graph.producer(squashed, "Tanh")
        if o is None or tanh is None:
            continue
        cell = graph.producer(tanh.inputs[0], "Add")
        for kept, added in orders(cell):
            keep, add = graph.producer(kept, "Mul"), graph.producer(added, "Mul")
            for forget, before in orders(keep):
                for into, candidate in orders(add):
                    gates = [
                        _gate(graph, into, "Sigmoid"),
                        _gate(graph, forget, "Sigmoid"),
                        _gate(graph, candidate, "Tanh"),
                        o,
                    ]
                    result = [gate for gate in gates if gate]
                    if len(result) < 4 or cell is None or keep is None or add is None:
                        continue
                    readings = tuple(_readings([gate.sum for gate in result], (1, 1, 1, 1)))
                    if readings:
                        nodes = (*_nodes(result), keep, add, cell, tanh, node)
                        c = cell.outputs[0]
                        return Step(Cell.LSTM, node.outputs[0], c, before, readings, nodes)
    return None


def _projected(graph: Graph, node: Node) -> Step | None:
    """h = (o * tanh(c)) W."""
    result, mul = affine(graph, node.outputs[0]), graph.producer(node.inputs[0], "Mul")
    if result is None or result.biases or mul is None:
        return None
    step, columns = _lstm(graph, mul), result.terms.get(node.inputs[0])
    if step is None or columns is None:
        return None
    readings = tuple(reading._replace(projection=columns) for reading in step.readings)
    return replace(step, h=node.outputs[0], readings=readings, nodes=(*step.nodes, node))


def _nodes(gates: Iterable[_Gate]) -> list[Node]:
    return [node for gate in gates for node in gate.nodes]


def _gru(graph: Graph, node: Node) -> Step | None:
    """h = w * h' + (1 - w) * n, as whatever sum; w or 1 - w is z, or z times an attention."""
    one_unit = _is_narrow(graph, node.outputs[0])
    for h in _states(graph, node):

        def is_atom(name: str, h: str = h) -> bool:
            return name == h or not one_unit and _is_one_channel(graph, name)

        result = polynomial(graph, node.outputs[0], is_atom)
        parted = None if result is None else result.over(h)
        if result is None or parted is None:
            continue
        keep, rest = parted
        inside = {name for each in result.nodes for name in each.outputs} | result.atoms
        for new, gate in product(rest.atoms, keep.atoms):
            update, parts, weight = _gate(graph, gate, "Sigmoid"), rest.over(new), keep.over(gate)
            if update is None or parts is None or weight is None or not result.likes <= inside:
                continue
            if parts[1].terms or keep.plus(parts[0]).terms != {(): 1.0}:
                continue
            scaled = _scaled(graph, *weight)
            if scaled is None:
                continue
            nodes = (n for n in result.nodes if one_unit or not _is_narrow(graph, n.outputs[0]))
            step = _candidate(graph, node, update, new, h, scaled.sign, (*update.nodes, *nodes))
            if step and scaled.attention:
                cell = Cell.LBR_AUGRU if step.cell is Cell.LBR_GRU else Cell.AUGRU
                step = replace(step, cell=cell, update=scaled.update, attention=scaled.attention)
            if step:
                return step
    return None


def _states(graph: Graph, node: Node) -> Iterable[str]:
    """Values that may be the old state of a node that makes the new one: gates and h read it."""
    waiting, read, tanh = [*node.inputs], set[str](), False
    for name in waiting:  # it grows: the nearest come first
        result = graph.producer(name)
        if result is None:
            continue
        if is_arithmetic(result.op) and len(waiting) < _NEAR:
            waiting += (each for each in result.inputs if each not in waiting)
        elif gate := _gate(graph, name, "Sigmoid"):
            read.update(gate.sum.terms)
        tanh = tanh or result.op == "Tanh"
    return [name for name in waiting if name in read] if tanh else ()


def _is_narrow(graph: Graph, name: str) -> bool:
    """Whether a value is (N, 1)."""
    return graph.types[name].counts[1:] == (1,)


def _is_one_channel(graph: Graph, name: str) -> bool:
    """Whether a value is (N, 1), no number, and not made of a number and another one, as 1 - a."""
    node = graph.producer(name)
    if not _is_narrow(graph, name) or is_number(graph, name):
        return False
    parts = node.inputs if node and is_arithmetic(node.op) else ()
    return len(parts) != 1 and not any(is_number(graph, each) for each in parts)


class _Scaled(NamedTuple):
    """``sign``: -1 where the gate stands with its sign turned; ``attention``: what scales it."""

    sign: int
    update: Update = "keep"
    attention: Attention | None = None


def _scaled(graph: Graph, factor: Polynomial, rest: Polynomial) -> _Scaled | None:
    """How factor * z + rest, the weight of the old state, is made of z and k: k * z and the like.

    k, the factor of u in the guide's cells, is 1, an attention, or 1 - attention.
    """
    one = Polynomial({(): 1.0})
    minus = Polynomial({}).plus(factor, -1.0)
    ways: tuple[tuple[Polynomial, Polynomial, int, Update], ...] = (
        (factor, Polynomial({}), 1, "keep"),  # k z
        (minus, minus, -1, "keep"),  # k (1 - z)
        (minus, one, 1, "replace"),  # 1 - k z
        (factor, one.plus(factor, -1.0), -1, "replace"),  # 1 - k (1 - z)
    )
    for scale, wanted, sign, update in ways:
        if rest.terms != wanted.terms:
            continue
        if scale.terms == one.terms:
            return _Scaled(sign, update)
        for name in scale.atoms:
            if not _is_narrow(graph, name):
                continue
            if scale.terms == {(name,): 1.0}:
                return _Scaled(sign, update, Attention(name, keeps=True))
            if scale.terms == {(): 1.0, (name,): -1.0}:
                return _Scaled(sign, update, Attention(name, keeps=False))
    return None


def _candidate(
    graph: Graph, node: Node, update: _Gate, name: str, h: str, sign: int, outer: tuple[Node, ...]
) -> Step | None:
    """n = tanh(x W + r * (h U + b')), or reset before: n = tanh(x W + (r * h) U).

    ``sign`` is -1 where the update gate lets the new state in: 1 - z is z with its sign turned.
    """
    tanh = graph.producer(name, "Tanh")
    if tanh is None or len(update.sum.terms) != 2 or h not in update.sum.terms:
        return None
    (x,) = set(update.sum.terms) - {h}
    signs = (sign, 1, 1)
    whole = affine(graph, tanh.inputs[0])
    if whole is not None and len(whole.terms) == 2 and x in whole.terms:
        (scaled,) = set(whole.terms) - {x}
        product = graph.producer(scaled, "Mul")
        for reset, state in orders(product):
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
    added = graph.producer(tanh.inputs[0], "Add")
    for one, other in orders(added):
        of_x, product = affine(graph, one), graph.producer(other, "Mul")
        for reset, inner in orders(product):
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
