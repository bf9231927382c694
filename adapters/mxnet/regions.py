"""Finds the cells that a live symbol writes out: unrolled, or in the body of a `_foreach`.

The passes' own recognition decides (design/0011). It reads weights as constants; a symbol has
only their names, so numbers of their shape stand for them, and nothing here looks at the
numbers. A region is then followed from output to output: what does nothing in inference
(dropout, BlockGrad) may do something in training, and keeps MXNet's operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.control import loop_places
from onernn.adapters.mxnet.custom_operator import UNFOUND
from onernn.adapters.mxnet.live_layer import Formula, Rows
from onernn.adapters.mxnet.lower import traced
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.table import known_name
from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.unrolled_cells import Chain, chains, obstacle
from onernn.ir.arrays import Array, sealed
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T")
_ADDS = frozenset("elemwise_add broadcast_add _npi_add".split())
_NO_STATES = _ADDS | frozenset(
    "FullyConnected Concat stack expand_dims ones_like zeros_like _copy".split()
)
"""Operators that read a state without making another state."""


@dataclass(frozen=True)
class Region:
    """Cells that one operator can stand for; ``name`` is that of the node that ends them.

    ``cell``: what they are called where they stay, however many steps there are. ``x``: the input
    of each step. ``states``: the initial ones. ``h``: the new state of each step; ``c``: the last
    cell state of an LSTM. ``loop``: the `_foreach` that runs them, None where they are unrolled;
    ``x`` and ``h`` are whole sequences then.
    """

    name: str
    cell: str
    formula: Formula
    weights: tuple[Entry, ...]
    x: tuple[Entry, ...]
    states: tuple[Entry, ...]
    h: tuple[Entry, ...]
    c: Entry | None = None
    loop: int | None = None


def find_regions(symbol: Symbol, shapes: Shapes) -> Iterator[Region | Refusal]:
    """The cells of a symbol, in the order in which they run, or why some stay MXNet's.

    ``shapes``: known shapes of its variables.
    """
    view = _tried("", _View, symbol, shapes)
    if isinstance(view, Refusal):
        yield view
        return
    left, steps = dict[Any, Refusal](), Counter[Any]()
    for chain in chains(view.graph):
        ends = view.entry(chain.steps[-1].h)
        name = symbol.nodes[ends.node].name if ends else chain.steps[-1].h
        reading = chain.readings[0]
        weights = frozenset(part.constant for part in (*reading.layer, *reading.iter)) - {""}
        cell = parse.cell_of(weights) or name
        result = _tried(cell, _unrolled, view, chain, name, cell)
        if isinstance(result, Region):
            yield result
        else:
            left.setdefault(weights, result)
            steps[weights] += len(chain.steps)
    for weights, refusal in left.items():
        count = f"{steps[weights]} steps of it: " if steps[weights] > 1 else ""
        yield replace(refusal, reason=f"{count}{refusal.reason}")
    for at, node in enumerate(symbol.nodes):
        if node.op == "_foreach":
            yield _tried(node.name, _loop, symbol, at, shapes)


def _tried(where: str, make: Callable[..., T], *arguments: Any) -> T | Refusal:
    """What a function makes, or why it cannot: MXNet runs the symbol, or says what is wrong."""
    try:
        return make(*arguments)
    except OnernnError as refused:
        return Refusal(str(refused), where)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        return Refusal(f"malformed: {type(error).__name__} {error}", where)


class _View:
    """A symbol and its graph: maps outputs of nodes to values."""

    def __init__(self, symbol: Symbol, shapes: Shapes) -> None:
        self.symbol = symbol
        self.weights = _weights(symbol, shapes)
        self.graph, self.values = traced(_declaring(symbol, shapes), self.weights)
        self._entries: dict[str, Entry] = {}
        for entry, value in self.values.items():
            self._entries.setdefault(value, entry)

    def entry(self, value: str) -> Entry | None:
        """The first output of a node that is this value, None if there is none."""
        return self._entries.get(value)

    def behind(self, read: Entry) -> Entry:
        """The entry that is read, behind copies."""
        while known_name(self.symbol.nodes[read.node].op) == "_copy":
            read = self.symbol.nodes[read.node].inputs[0]
        return Entry(*read[:2])

    def variable(self, name: str) -> Entry:
        entry = self.entry(name)
        if entry is None or self.symbol.nodes[entry.node].op != VARIABLE:
            raise UnsupportedError(f"its weight {name!r} is computed")
        return entry


class _Reads(NamedTuple):
    """The inputs of one step from outside, and its nodes."""

    x: Entry
    states: tuple[Entry, ...]
    nodes: set[int]


def _unrolled(view: _View, chain: Chain, name: str, cell: str) -> Region:
    if len(chain.steps) < 2:
        raise UnsupportedError(_why_single(view, chain))
    if reason := obstacle(view.graph, chain):
        raise UnsupportedError(reason)
    formula, weights = _formula(view, chain.steps[0].cell, chain.readings[0])
    reads = [
        _reads(view, step, reading)
        for step, reading in zip(chain.steps, chain.readings, strict=True)
    ]
    ends = [_new_states(view, step) for step in chain.steps]
    for before, after in zip(ends, reads[1:], strict=False):
        for state, read in zip(before, after.states, strict=True):
            if state != read:
                raise UnsupportedError(_between(view.symbol, read.node))
    h, c = tuple(states[0] for states in ends), (*ends[-1], None)[1]
    inside = set().union(*(step.nodes for step in reads))
    _check_readers(view.symbol, inside, {*h, c})
    xs = tuple(step.x for step in reads)
    return Region(name, cell, formula, weights, xs, reads[0].states, h, c)


def _why_single(view: _View, chain: Chain) -> str:
    """Why no step follows this one: which operator reads its states instead."""
    step, symbol = chain.steps[0], view.symbol
    states, own = _new_states(view, step), _reads(view, step, chain.readings[0]).nodes
    readers = [
        at
        for at, node in enumerate(symbol.nodes)
        if at not in own and known_name(node.op) not in _NO_STATES
        if any(view.behind(read) in states for read in node.inputs)
    ]
    return _between(symbol, readers[0]) if readers else UNFOUND


def _between(symbol: Symbol, at: int) -> str:
    node = symbol.nodes[at]
    drops = "Dropout" in (node.op, *(symbol.nodes[read.node].op for read in node.inputs))
    hint = "; it drops in training: only a hybridized block's prediction runs here" if drops else ""
    return f"{node.op} {node.name!r} stands between its steps{hint}"


def _loop(symbol: Symbol, at: int, shapes: Shapes) -> Region:
    """The cell in the body of a `_foreach`."""
    node = symbol.nodes[at]
    (body,) = node.subgraphs
    body = replace(body, attributes=symbol.attributes)
    data, state, rest = loop_places(node, body)
    variables = [k for k, each in enumerate(body.nodes) if each.op == VARIABLE]
    outer = {
        variables[place]: Entry(*entry[:2])
        for place, entry in zip((*data, *state, *rest), node.inputs, strict=True)
    }
    steps = {variables[place] for place in data}  # each turn reads one step of them
    inner_shapes = {
        body.nodes[k].name: shapes[symbol.nodes[entry.node].name][k in steps :]
        for k, entry in outer.items()
        if symbol.nodes[entry.node].name in shapes
    }
    unknown = -1 if symbol.np_shape else 0
    for place in state:  # a cell gives (N, O), and a state keeps its shape
        inner_shapes.setdefault(body.nodes[variables[place]].name, (unknown, unknown))
    view = _View(body, inner_shapes)
    heads = [view.behind(head) for head in body.heads]
    outputs = len(heads) - len(state)
    if len(data) != 1:
        raise UnsupportedError(f"it runs over {len(data)} sequences, a layer over one")
    x, carried = Entry(variables[data[0]]), [Entry(variables[place]) for place in state]
    for step in filter(None, (step_of(view.graph, each) for each in view.graph.nodes)):
        new_states = _new_states(view, step)
        if sorted(heads[outputs:]) != sorted(new_states):
            continue
        order = [heads[outputs:].index(entry) for entry in new_states]
        for reading in step.readings:
            reads = _reads(view, step, reading)
            if reads.x != x or reads.states != tuple(carried[k] for k in order):
                continue
            if any(head != new_states[0] for head in heads[:outputs]):
                raise UnsupportedError("it collects something else than the state")
            _check_readers(body, reads.nodes, set(new_states))
            formula, weights = _formula(view, step.cell, reading)
            if any(symbol.nodes[outer[entry.node].node].op != VARIABLE for entry in weights):
                raise UnsupportedError("its weights are computed")
            finals = [Entry(at, outputs + k) for k in order]
            return Region(
                node.name,
                node.name,
                formula,
                tuple(outer[entry.node] for entry in weights),
                (outer[x.node],),
                tuple(outer[carried[k].node] for k in order),
                (*(Entry(at, k) for k in range(outputs)), finals[0]),
                (*finals, None)[1],
                at,
            )
    raise UnsupportedError("its body is not one recurrent cell")


def _new_states(view: _View, step: Step) -> tuple[Entry, ...]:
    """The new states of a step."""
    result = [view.entry(name) for name in (step.h, step.c) if name]
    if None in result:
        raise UnsupportedError("its state is no output of an operator")
    return tuple(entry for entry in result if entry)


def _reads(view: _View, step: Step, reading: Reading) -> _Reads:
    """What a step reads, followed from its new states back; every operator must be the cell's."""

    def flattened(value: str) -> set[str]:
        node = view.graph.producer(value)
        return {value, node.inputs[0]} if node is not None and node.op == "Flatten" else {value}

    own = {op.position for node in step.nodes for op in node.origin}
    result: tuple[set[Entry], ...] = (set(), set(), set())
    names = (flattened(reading.x), flattened(reading.h), {step.c_before} if step.c else set())
    waiting, nodes = [entry.node for entry in _new_states(view, step)], set[int]()
    while waiting:
        at = waiting.pop()
        if at in nodes:
            continue
        nodes.add(at)
        if at not in own:
            node = view.symbol.nodes[at]
            raise UnsupportedError(f"{node.op} {node.name!r} stands inside of it")
        for read in view.symbol.nodes[at].inputs:
            entry = view.behind(read)
            value = view.values[entry]
            borders = [kind for kind, values in enumerate(names) if value in values]
            for kind in borders:
                result[kind].add(entry)
            if not borders and value not in view.weights:
                waiting.append(entry.node)
    if any(len(entries) != 1 for entries, values in zip(result, names, strict=True) if values):
        raise UnsupportedError("its gates read different copies of its input or state")
    x, *states = (next(iter(entries)) for entries in result if entries)
    return _Reads(x, tuple(states), nodes)


def _check_readers(
    symbol: Symbol, inside: Collection[int], shown: Collection[Entry | None]
) -> None:
    """Refuses a region of which an operator outside reads an inner value."""
    readers = [(node.name, node.inputs) for at, node in enumerate(symbol.nodes) if at not in inside]
    for name, inputs in [*readers, ("the caller", symbol.heads)]:
        for read in inputs:
            if read.node in inside and Entry(*read[:2]) not in shown:
                raise UnsupportedError(
                    f"{name} reads {symbol.nodes[read.node].name!r}, a value inside of it"
                )


def _formula(view: _View, cell: Cell, reading: Reading) -> tuple[Formula, tuple[Entry, ...]]:
    """The formula of a cell, and the variables that are its weights."""
    entries: dict[Entry, int] = {}

    def rows(columns: Columns, matrix: bool) -> Rows:
        if columns.transposed != matrix:
            raise UnsupportedError(f"its weight {columns.constant!r} is not one of FullyConnected")
        number = entries.setdefault(view.variable(columns.constant), len(entries))
        return number, columns.start, columns.stop

    layer, recurrent = (
        tuple(rows(columns, True) for columns in gates) for gates in (reading.layer, reading.iter)
    )
    biases = tuple(tuple(rows(columns, False) for columns in row) for row in reading.biases)
    projection = reading.projection and rows(reading.projection, True)
    widths = {stop - start for _, start, stop in (*layer, *recurrent)}
    if len(widths) > 1:
        raise UnsupportedError("its gates are of different sizes")
    count = tuple(len(view.weights[view.symbol.nodes[entry.node].name]) for entry in entries)
    formula = Formula(cell.value, count, layer, recurrent, biases, reading.signs, projection)
    return formula, tuple(entries)


def _weights(symbol: Symbol, shapes: Shapes) -> dict[str, Array]:
    """Numbers in the shape of each weight and bias of a FullyConnected, never 0 or 1.

    Only in front of gates: the weight behind them may be of a whole vocabulary.
    """
    result, before = dict[str, Array](), set[int]()
    for at, node in reversed([*enumerate(symbol.nodes)]):
        if at in before or node.op in parse.GATES:
            before.update(entry.node for entry in node.inputs)
        if at not in before or known_name(node.op) != "FullyConnected":
            continue
        rows = parse.integer(node.attributes["num_hidden"])
        for entry, rank in zip(node.inputs[1:], (2, 1), strict=False):
            read = symbol.nodes[entry.node]
            if read.op != VARIABLE or read.name in result:
                continue
            shape = shapes.get(read.name, ())
            if len(shape) != rank or min(shape) < 1:
                shape = (rows, rows // _gates(symbol, at))[:rank]
            result[read.name] = sealed(np.full(shape, 0.5, np.float32))
    return result


def _declaring(symbol: Symbol, shapes: Shapes) -> Symbol:
    """The symbol, in which variables declare their shapes."""

    def declared(node: SymbolNode) -> SymbolNode:
        if node.op != VARIABLE or not shapes.get(node.name):
            return node
        return replace(node, attributes={**node.attributes, "__shape__": str(shapes[node.name])})

    return replace(symbol, nodes=tuple(map(declared, symbol.nodes)))


def _gates(symbol: Symbol, at: int) -> int:
    """Into how many gates a projection is cut, behind sums: a state is as wide as a gate."""
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
