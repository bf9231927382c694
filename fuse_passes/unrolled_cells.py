"""Recurrent cells written out step by step become one rnn.

Found by structure: a cell is what computes its formula (RNN developer guide of oneDNN), whatever
its operators are called and however its gates are laid out (design/0011).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import Refusal
from onernn.core.graph import Graph, NativeOp, Node
from onernn.core.spec import Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.fuse_passes.affine import Affine, Columns, affine
from onernn.fuse_passes.ordering import ordered
from onernn.fuse_passes.steps import Stacker


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


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that hand their states on, all read alike."""

    steps: tuple[Step, ...]
    readings: tuple[Reading, ...]


class FuseUnrolledCells:
    """h1 = cell(x1, h0), h2 = cell(x2, h1), ... -> ``Rnn`` over the inputs put together."""

    name = "unrolled_cells"

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Graph, dict[str, Chain]] = WeakKeyDictionary()

    def match(self, graph: Graph, node: Node) -> Chain | Refusal | None:
        if graph not in self._found:
            self._found[graph] = {chain.steps[0].h: chain for chain in chains(graph)}
        chain = self._found[graph].get(node.outputs[0])
        if chain is None:
            return None
        reason = _obstacle(graph, chain)
        return Refusal(reason, chain.steps[-1].h) if reason else chain

    def rewrite(self, graph: Graph, match: Chain) -> Graph:
        first, last = match.steps[0], match.steps[-1]
        cell, count = first.cell, len(match.steps)
        origin = _origin(match.steps)
        stacker = Stacker(graph, last.h, origin)
        x = stacker.stack(tuple(reading.x for reading in match.readings))
        assert x is not None  # copying is always possible
        spec, weights = _layer(graph, cell, match.readings[0], x.backwards)
        names = (match.readings[0].h, *((first.c_before,) if first.c else ()))
        states = [_state(stacker, graph, name) for name in names]
        y, *finals = (f"{last.h}/{name}" for name in ("y", "h", "c")[: 2 + bool(first.c)])
        rnn = Node(
            "Rnn", (x.name, *states), (y, *finals), {"spec": spec, "weights": weights}, origin
        )
        made = [rnn, *_final(stacker, graph, last.c, finals)]
        axis = stacker.constant([0])
        rows = tuple(f"{last.h}/step{t}" for t in range(count))
        made.append(Node("Split", (y,), rows, {"axis": 0}, origin))
        steps = match.steps[::-1] if x.backwards else match.steps
        for row, step in zip(rows, steps, strict=True):
            made.append(Node("Squeeze", (row, axis), (step.h,), {}, origin))
        return _replaced(graph, match, [*stacker.nodes, *made], stacker.constants)


def chains(graph: Graph) -> Iterator[Chain]:
    """The chains of a graph, each as long as it is."""
    steps = {step.h: step for node in graph.nodes if (step := _step(graph, node))}
    after: dict[str, tuple[Step, Reading]] = {}
    for step in steps.values():
        for reading in step.readings:
            before = steps.get(reading.h)
            if before and before.h not in after and _continues(before, step, reading):
                after[before.h] = (step, reading)
                break
    followers = {step.h for step, _ in after.values()}
    for step in steps.values():
        if step.h in followers:
            continue
        members, readings = [step], []
        while members[-1].h in after:
            step, reading = after[members[-1].h]
            members.append(step)
            readings.append(reading)
        first = _first_reading(graph, members[0], readings)
        if first is not None:
            yield Chain(tuple(members), (first, *readings))


def _continues(before: Step, step: Step, reading: Reading) -> bool:
    """Whether a step goes on where the other ended, with the same constants."""
    return (
        before.cell is step.cell
        and before.c == step.c_before
        and any(each.constants == reading.constants for each in before.readings)
    )


def _first_reading(graph: Graph, step: Step, readings: list[Reading]) -> Reading | None:
    """As the steps behind it are read; a single step as its sizes allow, which is always right."""
    fitting = [r for r in step.readings if _fits(graph, r)]
    if readings:
        fitting = [r for r in fitting if r.constants == readings[0].constants]
    elif step.cell in (Cell.RNN_TANH, Cell.RNN_RELU, Cell.RNN_SIGMOID):
        return None  # two projections, added: nothing tells that one of them is of a state
    return fitting[-1] if fitting else None


def _fits(graph: Graph, reading: Reading) -> bool:
    """Whether the state is as wide as each gate."""
    widths = {columns.stop - columns.start for columns in (*reading.layer, *reading.iter)}
    rows = {len(columns.of(graph)) for columns in reading.iter}
    inputs = {len(columns.of(graph)) for columns in reading.layer}
    return len(widths) == 1 and rows == widths and len(inputs) == 1


def _obstacle(graph: Graph, chain: Chain) -> str:
    """Why a chain stays as it is, "" where it can become one rnn."""
    arrays = [columns.of(graph) for columns in _columns(chain.readings[0])]
    if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype.kind != "f":
        return "its constants are of different dtypes"
    inside = {id(node) for step in chain.steps for node in step.nodes}
    free = {step.h for step in chain.steps} | {chain.steps[-1].c}
    for step in chain.steps:
        for node in step.nodes:
            for name in node.outputs:
                if name in free:
                    continue
                if graph.is_output(name) or any(id(u) not in inside for u in graph.users(name)):
                    return f"{name!r} has another user"
    made = {step.h for step in chain.steps} | {step.c for step in chain.steps if step.c}
    starts = [*(r.x for r in chain.readings), chain.readings[0].h, chain.steps[0].c_before]
    if _reach(graph, starts, made):
        return "its input is made of its own output"
    for name in (chain.readings[0].h, chain.steps[0].c_before):
        array = graph.constants.get(name)
        if array is not None and array.any() and array.shape[:1] == (1,):
            return f"{name!r} is one state for all sentences"
    return ""


def _reach(graph: Graph, names: Iterable[str], goals: set[str]) -> bool:
    """Whether any of the names is, or is made of, one of the goals."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in goals:
            return True
        node = graph.producer(name)
        if node is not None and name not in seen:
            seen.add(name)
            waiting += node.inputs
    return False


def _columns(reading: Reading) -> list[Columns]:
    return [*reading.layer, *reading.iter, *(b for row in reading.biases for b in row)]


def _layer(
    graph: Graph, cell: Cell, reading: Reading, backwards: bool
) -> tuple[RnnSpec, RnnWeights]:
    def matrix(columns: Iterable[Columns]) -> Array:
        gates = [s * c.of(graph) for s, c in zip(reading.signs, columns, strict=True)]
        return np.stack(gates, axis=1)[None, None]

    layer, recurrent = matrix(reading.layer), matrix(reading.iter)
    hidden = recurrent.shape[-1]
    rows = np.zeros((len(reading.biases), hidden), layer.dtype)
    for row, biases in zip(rows, reading.biases, strict=True):
        for columns in biases:
            row += columns.of(graph)[0]
    rows[: len(reading.signs)] *= np.array(reading.signs, rows.dtype)[:, None]
    direction: Direction = "right2left" if backwards else "left2right"
    spec = RnnSpec(cell, layer.shape[2], hidden, direction=direction)
    weights = RnnWeights(layer, recurrent, rows[None, None])
    weights.check(spec)
    return spec, weights


def _state(stacker: Stacker, graph: Graph, name: str) -> str:
    """(N, O) -> ldnc (1, 1, N, O); absent where it is zero."""
    array = graph.constants.get(name)
    if array is not None and not array.any():
        return ""
    return stacker.emit("Unsqueeze", (name, stacker.constant([0, 1])))


def _final(stacker: Stacker, graph: Graph, c: str, finals: list[str]) -> list[Node]:
    if not c:
        return []
    return [Node("Squeeze", (finals[1], stacker.constant([0, 1])), (c,), {}, stacker.origin)]


def _replaced(graph: Graph, chain: Chain, new: list[Node], constants: dict[str, Array]) -> Graph:
    gone = {id(node) for step in chain.steps for node in step.nodes}
    kept = [node for node in graph.nodes if id(node) not in gone]
    nodes = ordered([*kept, *new])
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants}).pruned()


def _origin(steps: Iterable[Step]) -> tuple[NativeOp, ...]:
    found = {op for step in steps for node in step.nodes for op in node.origin}
    return tuple(sorted(found))


def _step(graph: Graph, node: Node) -> Step | None:
    if node.op == "Mul":
        return _lstm(graph, node)
    if node.op == "Add":
        return _gru(graph, node)
    cells = {"Tanh": Cell.RNN_TANH, "Relu": Cell.RNN_RELU, "Sigmoid": Cell.RNN_SIGMOID}
    if node.op not in cells:
        return None
    made = affine(graph, node.inputs[0])
    if made is None or len(made.terms) != 2:
        return None
    readings = tuple(_readings([made], (1,)))
    return Step(cells[node.op], node.outputs[0], "", "", readings, (*made.nodes, node))


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
    return made and _Gate(made, (*made.nodes, node))


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
