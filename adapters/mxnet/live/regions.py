"""Finds the cells that a live symbol writes out: unrolled, or in the body of a `_foreach`.

The passes' own recognition decides (design/0011). It reads weights as constants; a symbol has only
their names, so numbers of their shape stand for them, and nothing here looks at the numbers. A
region is then followed from output to output: what does nothing in inference (dropout, BlockGrad)
may do something in training, and keeps MXNet's operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.adapters.mxnet.live.cells import Formula, Rows
from onernn.adapters.mxnet.lower import traced
from onernn.adapters.mxnet.lower.rules import known_name
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.read import attributes as parse
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, Refusal
from onernn.core.records import dataclass
from onernn.core.spec import Cell
from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.unrolled_cells import Chain, chains, obstacle

Shapes = Mapping[str, tuple[int, ...]]
_NO_STATES = frozenset("FullyConnected Concat stack expand_dims ones_like _copy".split())
"""Readers of a state that make no other state of it."""
_ADDS = frozenset("elemwise_add broadcast_add _npi_add".split())


@dataclass(frozen=True)
class Region:
    """Cells that one operator can stand for; ``name`` is that of the node that ends them.

    ``x``: the input of each step. ``states``: the initial ones. ``h``: the new state of each step;
    ``c``: the last cell state of an LSTM. ``loop``: the `_foreach` that runs them, None where they
    are unrolled; ``x`` and ``h`` are whole sequences then.
    """

    name: str
    formula: Formula
    weights: tuple[Entry, ...]
    x: tuple[Entry, ...]
    states: tuple[Entry, ...]
    h: tuple[Entry, ...]
    c: Entry | None = None
    loop: int | None = None


class Refused(Exception):
    """Why cells stay MXNet's."""


def find_regions(symbol: Symbol, shapes: Shapes) -> Iterator[Region | Refusal]:
    """The cells of a symbol, in the order in which they run, or why some stay MXNet's.

    ``shapes``: what is known of its variables'.
    """
    try:
        view = _View(symbol, shapes)
        found = list(chains(view.graph))
    except OnernnError as error:  # a symbol of which nothing is understood stays as it is
        yield Refusal(f"the symbol cannot be read: {error}")
        return
    for chain in found:
        ends = view.entry(chain.steps[-1].h)
        name = symbol.nodes[ends.node].name if ends else chain.steps[-1].h
        try:
            yield _unrolled(view, chain, name)
        except Refused as refused:
            yield Refusal(str(refused), name)
    for at, node in enumerate(symbol.nodes):
        if node.op == "_foreach" and len(node.subgraphs) == 1:
            try:
                yield _loop(symbol, at, shapes)
            except (Refused, OnernnError) as refused:
                yield Refusal(str(refused), node.name)


class _View:
    """A symbol beside its graph: which output of a node is which value."""

    def __init__(self, symbol: Symbol, shapes: Shapes) -> None:
        self.symbol = symbol
        self.weights = _weights(symbol, shapes)
        self.graph, self.values = traced(_declaring(symbol, shapes), self.weights)
        self._entries: dict[str, Entry] = {}
        for entry, value in self.values.items():
            self._entries.setdefault(value, entry)

    def entry(self, value: str) -> Entry | None:
        """The first output of a node that is this value, None where it is none."""
        return self._entries.get(value)

    def behind(self, read: Entry) -> Entry:
        """What is read, behind copies."""
        while known_name(self.symbol.nodes[read.node].op) == "_copy":
            read = self.symbol.nodes[read.node].inputs[0]
        return Entry(*read[:2])

    def variable(self, name: str) -> Entry:
        entry = self.entry(name)
        if entry is None or self.symbol.nodes[entry.node].op != VARIABLE:
            raise Refused(f"its weight {name!r} is computed")
        return entry


class _Reads(NamedTuple):
    """What one step reads from outside, and the nodes that it consists of."""

    x: Entry
    states: tuple[Entry, ...]
    nodes: set[int]


def _unrolled(view: _View, chain: Chain, name: str) -> Region:
    if len(chain.steps) < 2:
        raise Refused(_alone(view, chain))
    if reason := obstacle(view.graph, chain):
        raise Refused(reason)
    formula, weights = _formula(view, chain.steps[0].cell, chain.readings[0])
    reads = [
        _reads(view, step, reading)
        for step, reading in zip(chain.steps, chain.readings, strict=True)
    ]
    ends = [_made(view, step) for step in chain.steps]
    for before, after in zip(ends, reads[1:], strict=False):
        for made, read in zip(before, after.states, strict=True):
            if made != read:
                between = view.symbol.nodes[read.node]
                raise Refused(f"{between.op} {between.name!r} stands between its steps")
    h, c = tuple(each[0] for each in ends), (*ends[-1], None)[1]
    inside = set().union(*(each.nodes for each in reads))
    _check_readers(view.symbol, inside, {*h, c})
    xs = tuple(each.x for each in reads)
    return Region(name, formula, weights, xs, reads[0].states, h, c)


def _alone(view: _View, chain: Chain) -> str:
    """Why a step is followed by none: what else than a product reads its states."""
    step, symbol = chain.steps[0], view.symbol
    made, own = _made(view, step), _reads(view, step, chain.readings[0]).nodes
    for at, node in enumerate(symbol.nodes):
        reads = any(view.behind(read) in made for read in node.inputs)
        if reads and at not in own and known_name(node.op) not in _NO_STATES:
            return f"{node.op} {node.name!r} stands between its steps"
    return "it is one step of a cell: there is nothing to put together"


def _loop(symbol: Symbol, at: int, shapes: Shapes) -> Region:
    """The cell that the body of a `_foreach` is."""
    node = symbol.nodes[at]
    (body,) = node.subgraphs
    body = replace(body, attributes=symbol.attributes)
    data, state, rest = (
        parse.sizes(node.attributes[f"{kind}_locs"]) for kind in ("in_data", "in_state", "remain")
    )
    variables = [k for k, each in enumerate(body.nodes) if each.op == VARIABLE]
    outer = {
        variables[place]: Entry(*entry[:2])
        for place, entry in zip((*data, *state, *rest), node.inputs, strict=True)
    }
    known = {
        body.nodes[k].name: shapes[symbol.nodes[entry.node].name]
        for k, entry in outer.items()
        if symbol.nodes[entry.node].name in shapes
    }
    unknown = -1 if symbol.np_shape else 0
    for place in state:  # a cell gives (N, O), and a state keeps its shape
        known.setdefault(body.nodes[variables[place]].name, (unknown, unknown))
    view = _View(body, known)
    heads = [view.behind(head) for head in body.heads]
    outputs = len(heads) - len(state)
    if len(data) != 1:
        raise Refused(f"it runs over {len(data)} sequences, a layer over one")
    x, carried = Entry(variables[data[0]]), [Entry(variables[place]) for place in state]
    for step in filter(None, (step_of(view.graph, each) for each in view.graph.nodes)):
        made = _made(view, step)
        if sorted(heads[outputs:]) != sorted(made):
            continue
        order = [heads[outputs:].index(entry) for entry in made]
        for reading in step.readings:
            reads = _reads(view, step, reading)
            if reads.x != x or reads.states != tuple(carried[k] for k in order):
                continue
            if any(head != made[0] for head in heads[:outputs]):
                raise Refused("it collects something else than the state")
            _check_readers(body, reads.nodes, set(made))
            formula, weights = _formula(view, step.cell, reading)
            if any(symbol.nodes[outer[entry.node].node].op != VARIABLE for entry in weights):
                raise Refused("its weights are computed")
            finals = [Entry(at, outputs + k) for k in order]
            return Region(
                node.name,
                formula,
                tuple(outer[entry.node] for entry in weights),
                (outer[x.node],),
                tuple(outer[carried[k].node] for k in order),
                (*(Entry(at, k) for k in range(outputs)), finals[0]),
                (*finals, None)[1],
                at,
            )
    raise Refused("its body is not one recurrent cell")


def _made(view: _View, step: Step) -> tuple[Entry, ...]:
    """The new states of a step."""
    found = [view.entry(name) for name in (step.h, step.c) if name]
    if None in found:
        raise Refused("its state is no output of an operator")
    return tuple(entry for entry in found if entry)


def _reads(view: _View, step: Step, reading: Reading) -> _Reads:
    """What a step reads, followed from its new states back; every operator must be the cell's."""

    def flattened(value: str) -> set[str]:
        node = view.graph.producer(value)
        return {value, node.inputs[0]} if node is not None and node.op == "Flatten" else {value}

    own = {op.position for node in step.nodes for op in node.origin}
    found: tuple[set[Entry], ...] = (set(), set(), set())
    names = (flattened(reading.x), flattened(reading.h), {step.c_before} if step.c else set())
    waiting, nodes = [entry.node for entry in _made(view, step)], set[int]()
    while waiting:
        at = waiting.pop()
        if at in nodes:
            continue
        nodes.add(at)
        if at not in own:
            node = view.symbol.nodes[at]
            raise Refused(f"{node.op} {node.name!r} stands inside of it")
        for read in view.symbol.nodes[at].inputs:
            entry = view.behind(read)
            value = view.values[entry]
            borders = [kind for kind, values in enumerate(names) if value in values]
            for kind in borders:
                found[kind].add(entry)
            if not borders and value not in view.weights:
                waiting.append(entry.node)
    if any(len(entries) != 1 for entries, wanted in zip(found, names, strict=True) if wanted):
        raise Refused("its gates read different copies of its input or state")
    x, *states = (next(iter(entries)) for entries in found if entries)
    return _Reads(x, tuple(states), nodes)


def _check_readers(
    symbol: Symbol, inside: Collection[int], shown: Collection[Entry | None]
) -> None:
    """Refuses a region of which somebody outside reads an inner value."""
    readers = [(node.name, node.inputs) for at, node in enumerate(symbol.nodes) if at not in inside]
    for name, inputs in [*readers, ("the caller", symbol.heads)]:
        for read in inputs:
            if read.node in inside and Entry(*read[:2]) not in shown:
                raise Refused(
                    f"{name} reads {symbol.nodes[read.node].name!r}, a value inside of it"
                )


def _formula(view: _View, cell: Cell, reading: Reading) -> tuple[Formula, tuple[Entry, ...]]:
    """The formula of a cell, and the variables that are its weights."""
    entries: dict[Entry, int] = {}

    def rows(columns: Columns, matrix: bool) -> Rows:
        if columns.transposed != matrix:
            raise Refused(f"its weight {columns.constant!r} is not one of FullyConnected")
        number = entries.setdefault(view.variable(columns.constant), len(entries))
        return Rows(number, columns.start, columns.stop)

    layer, recurrent = (
        tuple(rows(each, True) for each in gates) for gates in (reading.layer, reading.iter)
    )
    biases = tuple(tuple(rows(each, False) for each in row) for row in reading.biases)
    projection = reading.projection and rows(reading.projection, True)
    widths = {each.stop - each.start for each in (*layer, *recurrent)}
    if len(widths) > 1:
        raise Refused("its gates are of different sizes")
    count = tuple(len(view.weights[view.symbol.nodes[entry.node].name]) for entry in entries)
    formula = Formula(cell.value, count, layer, recurrent, biases, reading.signs, projection)
    return formula, tuple(entries)


def _weights(symbol: Symbol, shapes: Shapes) -> dict[str, Array]:
    """Numbers in the shape of each weight and bias of a FullyConnected, never 0 or 1."""
    found: dict[str, Array] = {}
    for at, node in enumerate(symbol.nodes):
        if known_name(node.op) != "FullyConnected":
            continue
        rows = parse.integer(node.attributes["num_hidden"])
        for entry, rank in zip(node.inputs[1:], (2, 1), strict=False):
            read = symbol.nodes[entry.node]
            if read.op != VARIABLE or read.name in found:
                continue
            shape = shapes.get(read.name, ())
            if len(shape) != rank or min(shape) < 1:
                shape = (rows, rows // _gates(symbol, at))[:rank]
            found[read.name] = np.full(shape, 0.5, np.float32)
    return found


def _declaring(symbol: Symbol, shapes: Shapes) -> Symbol:
    """The symbol, in which variables declare their shapes."""

    def declared(node: SymbolNode) -> SymbolNode:
        if node.op != VARIABLE or not shapes.get(node.name):
            return node
        return replace(node, attributes={**node.attributes, "__shape__": str(shapes[node.name])})

    return replace(symbol, nodes=tuple(map(declared, symbol.nodes)))


def _gates(symbol: Symbol, at: int) -> int:
    """In how many gates a projection is cut, behind sums: a state is as wide as a gate."""
    ahead: Sequence[int] = [at]
    while ahead:
        readers = [
            k
            for k, node in enumerate(symbol.nodes)
            if any(entry.node in ahead for entry in node.inputs)
        ]
        for k in readers:
            if known_name(symbol.nodes[k].op) == "SliceChannel":
                return max(1, parse.integer(symbol.nodes[k].attributes["num_outputs"]))
        ahead = [k for k in readers if known_name(symbol.nodes[k].op) in _ADDS]
    return 1
