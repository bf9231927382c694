"""Recognizes one step of a recurrent cell among element-wise operators.

By structure: a cell is what computes its formula (RNN developer guide of oneDNN), whatever its
operators are called and however its gates are laid out (design/0011).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any, NamedTuple

from onernn.fuse_passes.affine import Affine, Columns, affine, affine_inside
from onernn.fuse_passes.polynomials import Polynomial, is_arithmetic, is_number, polynomial
from onernn.fuse_passes.rewriting import orders
from onernn.ir import cells
from onernn.ir.activations import NAMES
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, RnnSpec, Update


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
    """Returns the step whose new state a node makes, None where it makes none."""
    if node.op == "Mul":
        return _lstm(graph, node)
    if node.op in ("Gemm", "MatMul"):
        return _match_projection(graph, node)
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
    """Yields both ways to read gates that are sums of two projections each, of the same two
    values.
    """
    sources = list(gates[0].terms)
    if len(sources) != 2 or any(set(gate.terms) != set(sources) for gate in gates):
        return
    biases = tuple(gate.biases for gate in gates)
    for x, h in (sources, sources[::-1]):
        layer, recurrent = (tuple(gate.terms[name] for gate in gates) for name in (x, h))
        yield Reading(x, h, layer, recurrent, biases, signs)


class _Letters:
    """Makes the values of `cells.step` out of letters: of the gates, h, c, and a for attention.

    ``turned``: the update gate is 1 - u.
    """

    def __init__(self, cell: Cell, turned: bool, attention: Polynomial | None) -> None:
        self.cell, self.turned, self.attention = cell, turned, attention

    def x(self, gate: int) -> Polynomial:
        return _letter(self.cell.gates[gate])

    def h(self, gate: int, state: Polynomial) -> Polynomial:
        return Polynomial({})  # part of its gate

    def inner(self, product: Polynomial) -> Polynomial:
        return product

    def gate(self, place: int, value: Polynomial) -> Polynomial:
        return 1 - value if self.turned and value.atoms == {"u"} else value

    def apply(self, place: int, value: Polynomial) -> Polynomial:
        return _letter("tanh")


def _letter(name: str) -> Polynomial:
    return Polynomial({(name,): 1.0})


class _Form(NamedTuple):
    """One way to write a GRU's step: ``state`` is the new one over h, o, u and a.

    ``sign``: -1 if u is there with its sign turned; ``keeps``: see `Attention`, None without one.
    """

    state: Polynomial
    sign: int
    update: Update
    keeps: bool | None


def _forms() -> Iterator[_Form]:
    updates: tuple[Update, ...] = ("keep", "replace")
    for keeps, turned, update in product((None, True, False), (False, True), updates):
        attention = None if keeps is None else 1 - _letter("a") if keeps else _letter("a")
        spec = RnnSpec(Cell.GRU if keeps is None else Cell.AUGRU, 1, 1, update=update)
        (state,) = cells.step(spec, _Letters(spec.cell, turned, attention), _letter("h"))
        if keeps is not None or update == "keep":
            yield _Form(state, -1 if turned else 1, update, keeps)


_GRUS = tuple(_forms())
_LSTM = ("Sigmoid", "Sigmoid", "Tanh")  # of i, f, c
_, _CELL_STATE = cells.step(
    RnnSpec(Cell.LSTM, 1, 1), _Letters(Cell.LSTM, False, None), _letter("h"), _letter("before")
)


def _match_letters(
    formula: Polynomial, value: Polynomial, **known: str
) -> Iterator[dict[str, str]]:
    """Yields the values in place of letters for which the formula is the value."""
    free = sorted(formula.atoms - known.keys())
    others = sorted(value.atoms - set(known.values()))
    for names in permutations(others, len(free)):
        of = known | dict(zip(free, names, strict=True))
        if len(formula.terms) == len(value.terms) and formula.rename(of).terms == value.terms:
            yield of


def _lstm(graph: Graph, node: Node) -> Step | None:
    """h = o * tanh(c), c as in the formula."""
    for out, squashed in orders(node):
        o, tanh = affine_inside(graph, out, "Sigmoid"), graph.producer(squashed, "Tanh")
        cell = graph.producer(tanh.inputs[0], "Add") if o and tanh else None
        parts = [graph.producer(name, "Mul") for name in cell.inputs] if cell else []
        factors = {name for each in parts if each for name in each.inputs}
        if o is None or tanh is None or cell is None or None in parts:
            continue
        value = polynomial(graph, cell.outputs[0], factors.__contains__)
        for of in _match_letters(_CELL_STATE, value) if value else ():
            gates = [affine_inside(graph, of[g], f) for g, f in zip("ifc", _LSTM, strict=True)]
            result = [gate for gate in (*gates, o) if gate]
            if len(result) < 4:
                continue
            if readings := tuple(_readings(result, (1,) * 4)):
                nodes = (*_nodes(result), *filter(None, parts), cell, tanh, node)
                return Step(
                    Cell.LSTM, node.outputs[0], cell.outputs[0], of["before"], readings, nodes
                )
    return None


def _match_projection(graph: Graph, node: Node) -> Step | None:
    """h = (o * tanh(c)) W."""
    result, mul = affine(graph, node.outputs[0]), graph.producer(node.inputs[0], "Mul")
    if result is None or result.biases or mul is None:
        return None
    step, columns = _lstm(graph, mul), result.terms.get(node.inputs[0])
    if step is None or columns is None:
        return None
    readings = tuple(reading._replace(projection=columns) for reading in step.readings)
    return replace(step, h=node.outputs[0], readings=readings, nodes=(*step.nodes, node))


def _nodes(gates: Iterable[Affine]) -> list[Node]:
    return [node for gate in gates for node in gate.nodes]


def _gru(graph: Graph, node: Node) -> Step | None:
    """h = u * h' + (1 - u) * o, as whatever sum; an attention may scale u."""
    one_unit = _is_narrow(graph, node.outputs[0])
    for h in _states(graph, node):

        def is_atom(name: str, h: str = h) -> bool:
            return name == h or not one_unit and _is_one_channel(graph, name)

        value = polynomial(graph, node.outputs[0], is_atom)
        if value is None:
            continue
        inside = {name for each in value.nodes for name in each.outputs} | value.atoms
        for form in _GRUS if value.likes <= inside else ():
            for of in _match_letters(form.state, value, h=h):
                update = affine_inside(graph, of["u"], "Sigmoid")
                if update is None or form.keeps is not None and not _is_narrow(graph, of["a"]):
                    continue
                nodes = (n for n in value.nodes if one_unit or not _is_narrow(graph, n.outputs[0]))
                outer = (*update.nodes, *nodes)
                step = _candidate(graph, node, update, of["o"], h, form.sign, outer)
                if step and form.keeps is not None:
                    cell = Cell.LBR_AUGRU if step.cell is Cell.LBR_GRU else Cell.AUGRU
                    attention = Attention(of["a"], form.keeps)
                    step = replace(step, cell=cell, update=form.update, attention=attention)
                if step:
                    return step
    return None


def _states(graph: Graph, node: Node) -> Iterable[str]:
    """Returns values that may be the old state of a node that makes the new one: gates and h read
    it.
    """
    waiting, read, tanh = [*node.inputs], set[str](), False
    for name in waiting:  # it grows: the nearest come first
        result = graph.producer(name)
        if result is None:
            continue
        if is_arithmetic(result.op) and len(waiting) < _NEAR:
            waiting += (each for each in result.inputs if each not in waiting)
        elif gate := affine_inside(graph, name, "Sigmoid"):
            read.update(gate.terms)
        tanh = tanh or result.op == "Tanh"
    return [name for name in waiting if name in read] if tanh else ()


def _is_narrow(graph: Graph, name: str) -> bool:
    """Returns whether a value is (N, 1)."""
    return graph.types[name].counts[1:] == (1,)


def _is_one_channel(graph: Graph, name: str) -> bool:
    """Returns whether a value is (N, 1), no number, and not made of a number and another one, as 1
    - a.
    """
    node = graph.producer(name)
    if not _is_narrow(graph, name) or is_number(graph, name):
        return False
    parts = node.inputs if node and is_arithmetic(node.op) else ()
    return len(parts) != 1 and not any(is_number(graph, each) for each in parts)


def _candidate(
    graph: Graph, node: Node, update: Affine, name: str, h: str, sign: int, outer: tuple[Node, ...]
) -> Step | None:
    """n = tanh(x W + r * (h U + b')), or reset before: n = tanh(x W + (r * h) U).

    ``sign`` is -1 where the update gate lets the new state in: 1 - z is z with its sign turned.
    """
    tanh = graph.producer(name, "Tanh")
    if tanh is None or len(update.terms) != 2 or h not in update.terms:
        return None
    (x,) = set(update.terms) - {h}

    def build(cell: Cell, r: Affine, source: Affine, of_h: Columns, *biases: Any, at: Any) -> Step:
        layer = (update.terms[x], r.terms[x], source.terms[x])
        recurrent = (update.terms[h], r.terms[h], of_h)
        every = (update.biases, r.biases, source.biases, *biases)
        reading = Reading(x, h, layer, recurrent, every, (sign, 1, 1))
        nodes = (*outer, *r.nodes, *source.nodes, *at, tanh)
        return Step(cell, node.outputs[0], "", "", (reading,), nodes)

    whole = affine(graph, tanh.inputs[0])
    if whole is not None and len(whole.terms) == 2 and x in whole.terms:
        (scaled,) = set(whole.terms) - {x}
        product = graph.producer(scaled, "Mul")
        for reset, state in orders(product):
            r = affine_inside(graph, reset, "Sigmoid")
            if r is not None and state == h and set(r.terms) == {x, h}:
                return build(Cell.GRU, r, whole, whole.terms[scaled], at=(product,))
    added = graph.producer(tanh.inputs[0], "Add")
    for one, other in orders(added):
        of_x, product = affine(graph, one), graph.producer(other, "Mul")
        for reset, inner in orders(product):
            r, of_h = affine_inside(graph, reset, "Sigmoid"), affine(graph, inner)
            if r is None or of_x is None or of_h is None or set(r.terms) != {x, h}:
                continue
            if (set(of_x.terms), set(of_h.terms)) == ({x}, {h}):
                at = (*of_h.nodes, product, added)
                return build(Cell.LBR_GRU, r, of_x, of_h.terms[h], of_h.biases, at=at)
    return None
