"""Recognizes one step of a recurrent cell among elementwise operators.

A cell is recognized by its formula (RNN developer guide of oneDNN). The names of its operators and
the layout of its gates do not matter (design/0011).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from onernn.fuse_passes.affine import Affine, Columns, affine, take_apart
from onernn.fuse_passes.gate_functions import (
    LINEAR,
    Gate,
    clipped,
    function_of,
    gate_of,
    is_symmetric,
)
from onernn.fuse_passes.polynomials import Polynomial, atom, is_arithmetic, is_number, polynomial
from onernn.fuse_passes.rewriting import orders
from onernn.ir import cells
from onernn.ir.graph import Graph, Node
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.spec import Activation, Cell, RnnSpec, Update


class Reading(NamedTuple):
    """One interpretation of a step's operators: which value is x, which is h, and the constants.

    ``layer`` and ``iter``: the columns that multiply x and h, for each gate in oneDNN's order.
    ``biases``: for each gate, the columns that are added. ``signs``: -1 for a gate whose sum is the
    negated sum of oneDNN's gate, otherwise 1. ``projection``: the matrix with which a projected
    LSTM makes its state. ``peephole``: the peephole weights of gates i, f, o.
    """

    x: str
    h: str
    layer: tuple[Columns, ...]
    iter: tuple[Columns, ...]
    biases: tuple[tuple[Columns, ...], ...]
    signs: tuple[int, ...]
    projection: Columns | None = None
    peephole: tuple[Columns, ...] = ()

    @property
    def constants(self) -> tuple[Any, ...]:
        return self[2:]


class Attention(NamedTuple):
    """The attention a, of shape (N, 1), that an AUGRU cell reads.

    ``keeps``: whether the cell multiplies its update gate u by a; in oneDNN's guide, it multiplies
    u by 1 - a.
    """

    name: str
    keeps: bool


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a cell: the states before and after it, its possible readings, and its nodes.

    The last node computes h. In a projected LSTM, the second last node computes the state before
    the projection. ``activations``: the cell's functions, in the order of `Cell.activations`.
    """

    cell: Cell
    activations: tuple[Activation, ...]
    h: str
    c: str
    c_before: str
    readings: tuple[Reading, ...]
    nodes: tuple[Node, ...]
    update: Update = "keep"
    attention: Attention | None = None
    cell_clip: tuple[float, float] | None = None


_PLAIN = {each.activations[0]: each for each in Cell if len(each.gates) == 1}
"""The cells with one gate, by the name of their function."""
_NEAR = 64  # maximum number of values to visit on the way from the new state back to its gates


def step_of(graph: Graph, node: Node) -> Step | None:
    """Returns the step whose new state a node computes, or None."""
    if node.op == "Mul":
        return _lstm(graph, node)
    if node.op in ("Gemm", "MatMul"):
        return _match_projection(graph, node)
    if node.op in ("Add", "Sub"):
        return _gru(graph, node)
    gate = gate_of(graph, node.outputs[0]) if function_of(graph, node.outputs[0]) else None
    return _elman(graph, node, gate) if gate else None


def _elman(graph: Graph, node: Node, gate: Gate) -> Step | None:
    """Matches h = f(x W + h U + b)."""
    result = take_apart(graph, gate.sum)
    readings = tuple(_readings([result], (1,)))
    cell = _PLAIN.get(gate.activation, Cell.RNN_TANH)
    return (
        Step(cell, (gate.activation,), node.outputs[0], "", "", readings, result.nodes)
        if readings
        else None
    )


def _readings(gates: list[Affine], signs: tuple[int, ...]) -> Iterator[Reading]:
    """Yields two readings of gates that project the same two values: each may be the state."""
    sources = list(gates[0].terms)
    if len(sources) != 2 or any(set(gate.terms) != set(sources) for gate in gates):
        return
    biases = tuple(gate.biases for gate in gates)
    for x, h in (sources, sources[::-1]):
        layer, recurrent = (tuple(gate.terms[name] for gate in gates) for name in (x, h))
        yield Reading(x, h, layer, recurrent, biases, signs)


class _Letters:
    """Implements the operations of `cells.step` on polynomials whose variables (letters) are the
    gates, h, c, and attention a.

    ``turned``: whether the letter u means 1 minus oneDNN's update gate.
    """

    def __init__(self, cell: Cell, turned: bool, attention: Polynomial | None) -> None:
        self.cell, self.turned, self.attention = cell, turned, attention

    def x(self, gate: int) -> Polynomial:
        return atom(self.cell.gates[gate])

    def h(self, gate: int, state: Polynomial) -> Polynomial:
        return Polynomial({})  # a gate's letter already includes h U

    def inner(self, product: Polynomial) -> Polynomial:
        return product

    def gate(self, place: int, value: Polynomial) -> Polynomial:
        return 1 - value if self.turned and value.atoms == {"u"} else value

    def apply(self, place: int, value: Polynomial) -> Polynomial:
        return atom("tanh")


class _Form(NamedTuple):
    """One form of a GRU's formula: ``state`` is the new state as a polynomial of h, o, u and a.

    ``sign``: -1 if u is 1 minus oneDNN's u. ``keeps``: see `Attention`; None without attention.
    """

    state: Polynomial
    sign: int
    update: Update
    keeps: bool | None


def _forms() -> Iterator[_Form]:
    updates: tuple[Update, ...] = ("keep", "replace")
    for keeps, turned, update in product((None, True, False), (False, True), updates):
        attention = None if keeps is None else 1 - atom("a") if keeps else atom("a")
        spec = RnnSpec(Cell.GRU if keeps is None else Cell.AUGRU, 1, 1, update=update)
        (state,) = cells.step(spec, _Letters(spec.cell, turned, attention), atom("h"))
        if keeps is not None or update == "keep":
            yield _Form(state, -1 if turned else 1, update, keeps)


_GRUS = tuple(_forms())
_, _CELL_STATE = cells.step(
    RnnSpec(Cell.LSTM, 1, 1), _Letters(Cell.LSTM, False, None), atom("h"), atom("before")
)


def _match_letters(
    formula: Polynomial, value: Polynomial, **known: str
) -> Iterator[dict[str, str]]:
    """Yields each mapping of letters to values' names with which the formula equals the value."""
    free = sorted(formula.atoms - known.keys())
    others = sorted(value.atoms - set(known.values()))
    for names in permutations(others, len(free)):
        of = known | dict(zip(free, names, strict=True))
        if len(formula.terms) == len(value.terms) and formula.rename(of).terms == value.terms:
            yield of


def _lstm(graph: Graph, node: Node) -> Step | None:
    """Matches h = o * f(c) for the cell state c of an LSTM, which may be clipped."""
    for out, squashed in orders(node):
        o, function = gate_of(graph, out, peepholes=True), function_of(graph, squashed)
        activation, c = (function.activation, function.source) if function else (LINEAR, squashed)
        clip = clipped(graph, c)
        cell = graph.producer(clip.source, "Add") if o else None
        parts = [graph.producer(name, "Mul") for name in cell.inputs] if cell else []
        factors = {name for each in parts if each for name in each.inputs}
        if o is None or cell is None or None in parts:
            continue
        value = polynomial(graph, clip.source, factors.__contains__)
        for of in _match_letters(_CELL_STATE, value) if value else ():
            gates = [g for each in "ifc" if (g := gate_of(graph, of[each], peepholes=True))]
            if len(gates) < 3 or {g.activation for g in (*gates[:2], o)} != {o.activation}:
                continue
            sums = [take_apart(graph, gate.sum) for gate in (*gates, o)]
            before, peephole = of["before"], _peepholes(sums, of["before"], c)
            readings = tuple(_readings(sums, (1,) * 4))
            if readings and peephole is not None:
                at = (*clip.nodes, *(function.nodes if function else ()), node)
                return Step(
                    Cell.LSTM,
                    (o.activation, gates[2].activation, activation),
                    node.outputs[0],
                    c,
                    before,
                    tuple(each._replace(peephole=peephole) for each in readings),
                    (*_nodes(sums), *filter(None, parts), cell, *at),
                    cell_clip=(clip.low, clip.high) if clip.nodes else None,
                )
    return None


def _peepholes(sums: list[Affine], before: str, c: str) -> tuple[Columns, ...] | None:
    """Returns the peephole weights of i, f and o: () if there are none, None if they do not match
    an LSTM.
    """
    seen = [dict(each.scaled) for each in sums]
    if not any(seen):
        return ()
    if [set(each) for each in seen] != [{before}, {before}, set(), {c}]:
        return None
    return (seen[0][before], seen[1][before], seen[3][c])


def _match_projection(graph: Graph, node: Node) -> Step | None:
    """Matches h = (o * tanh(c)) W."""
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
    """Matches all forms of h = u * h' + (1 - u) * o; an attention may scale u."""
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
                update = gate_of(graph, of["u"])
                if update is None or form.keeps is not None and not _is_narrow(graph, of["a"]):
                    continue
                if form.sign < 0 and not is_symmetric(update.activation):
                    continue
                nodes = (n for n in value.nodes if one_unit or not _is_narrow(graph, n.outputs[0]))
                outer = (*update.sum.nodes, *nodes)
                step = _candidate(graph, node, update, of["o"], h, form.sign, outer)
                if step and form.keeps is not None:
                    cell = Cell.LBR_AUGRU if step.cell is Cell.LBR_GRU else Cell.AUGRU
                    attention = Attention(of["a"], form.keeps)
                    step = replace(step, cell=cell, update=form.update, attention=attention)
                if step:
                    return step
    return None


def _states(graph: Graph, node: Node) -> Iterable[str]:
    """Returns the values that may be the previous state: both the gates and the new state read
    them.
    """
    waiting, read, has_function = [*node.inputs], set[str](), False
    for name in waiting:  # the loop appends to this list, nearest values first
        result = graph.producer(name)
        if result is None:
            continue
        if is_arithmetic(result.op) and len(waiting) < _NEAR:
            waiting += (each for each in result.inputs if each not in waiting)
        elif gate := gate_of(graph, name):
            read.update(take_apart(graph, gate.sum).terms)
        has_function = has_function or function_of(graph, name) is not None
    return [name for name in waiting if name in read] if has_function else ()


def _is_narrow(graph: Graph, name: str) -> bool:
    return graph.types[name].counts[1:] == (1,)


def _is_one_channel(graph: Graph, name: str) -> bool:
    """Returns whether a value has the shape (N, 1), and is neither constant nor computed from a
    constant, such as 1 - a.
    """
    node = graph.producer(name)
    if not _is_narrow(graph, name) or is_number(graph, name):
        return False
    parts = node.inputs if node and is_arithmetic(node.op) else ()
    return len(parts) != 1 and not any(is_number(graph, each) for each in parts)


def _candidate(
    graph: Graph, node: Node, update: Gate, name: str, h: str, sign: int, outer: tuple[Node, ...]
) -> Step | None:
    """Matches n = f(x W + r * (h U + b')), or n = f(x W + (r * h) U).

    ``update``: the update gate. ``name``: the value n. ``sign``: see `_Form`; -1 later negates the
    weights of the gate, because 1 - f(a) is f(-a) (`is_symmetric`).
    """
    function, z = function_of(graph, name), take_apart(graph, update.sum)
    if function is None or len(z.terms) != 2 or h not in z.terms:
        return None
    (x,) = set(z.terms) - {h}

    def reset_of(value: str) -> Affine | None:
        """Returns the sum in a reset gate; None unless the gate has the same function as the update
        gate.
        """
        gate = gate_of(graph, value)
        r = gate and take_apart(graph, gate.sum)
        alike = gate is not None and gate.activation == update.activation
        return r if r and alike and set(r.terms) == {x, h} else None

    def build(cell: Cell, r: Affine, source: Affine, of_h: Columns, *biases: Any, at: Any) -> Step:
        layer = (z.terms[x], r.terms[x], source.terms[x])
        recurrent = (z.terms[h], r.terms[h], of_h)
        every = (z.biases, r.biases, source.biases, *biases)
        reading = Reading(x, h, layer, recurrent, every, (sign, 1, 1))
        nodes = (*outer, *z.nodes, *r.nodes, *source.nodes, *at, *function.nodes)
        functions = (update.activation, function.activation)
        return Step(cell, functions, node.outputs[0], "", "", (reading,), nodes)

    whole = affine(graph, function.source)
    whole = whole and take_apart(graph, whole)
    if whole is not None and len(whole.terms) == 2 and x in whole.terms:
        (scaled,) = set(whole.terms) - {x}
        product = graph.producer(scaled, "Mul")
        for reset, state in orders(product):
            r = reset_of(reset)
            if r is not None and state == h:
                return build(Cell.GRU, r, whole, whole.terms[scaled], at=(product,))
    added = graph.producer(function.source, "Add")
    for one, other in orders(added):
        of_x, product = affine(graph, one), graph.producer(other, "Mul")
        for reset, inner in orders(product):
            r, of_h = reset_of(reset), affine(graph, inner)
            if r is None or of_x is None or of_h is None:
                continue
            if (set(of_x.terms), set(of_h.terms)) == ({x}, {h}):
                at = (*of_h.nodes, product, added)
                return build(Cell.LBR_GRU, r, of_x, of_h.terms[h], of_h.biases, at=at)
    return None
