"""Finds the cells that a live symbol writes out: unrolled, or in the body of a `_foreach`.

The passes' own recognition decides (design/0011). It reads weights as constants; a symbol has
only their names, so placeholders of their shape replace them, and nothing here depends on their
elements. The operators of the cell are then compared with the symbol: an operator that does
nothing in inference (dropout, BlockGrad) may do something in training, and keeps its cell in MXNet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.control import loop_places
from onernn.adapters.mxnet.custom_operator import UNFOUND
from onernn.adapters.mxnet.live_layer import Formula, Rows
from onernn.adapters.mxnet.lower import trace
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.table import known_name
from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.unrolled_cells import Chain, chains, obstacle
from onernn.ir.arrays import Array, seal
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T")
_ADDS = frozenset("elemwise_add broadcast_add _npi_add".split())
_NO_STATES = _ADDS | frozenset(
    "FullyConnected Concat stack expand_dims ones_like zeros_like _copy".split()
)
"""Operators that read a state without computing another state."""


@dataclass(frozen=True)
class Region:
    """Cells that one operator can replace; ``name`` is the name of the node that ends them.

    ``cell``: the name in refusals, for any number of steps. ``x``: the input of each step;
    ``whole``: what these were cut from, if that is one value. ``states``: the initial states.
    ``h``: the new state of each step; ``merged``: the values that hold all of them. ``c``: the last
    cell state of an LSTM. The cell of a loop has one ``x`` and one ``h``, the whole input and the
    last state.
    """

    name: str
    cell: str
    formula: Formula
    weights: tuple[Entry, ...]
    x: tuple[Entry, ...]
    whole: Entry | None
    states: tuple[Entry, ...]
    h: tuple[Entry, ...]
    merged: tuple[Entry, ...]
    c: Entry | None = None
    is_loop: bool = False


def find_regions(symbol: Symbol, shapes: Shapes) -> Iterator[Region | Refusal]:
    """Returns the cells of a symbol, in the order in which they run, or why some stay in MXNet.

    ``shapes``: known shapes of its variables.
    """
    view = _try("", _View, symbol, shapes)
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
        result = _try(cell, _find_unrolled, view, chain, name, cell)
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
            yield _try(node.name, _find_loop, symbol, at, shapes)


def _try(where: str, make: Callable[..., T], *arguments: Any) -> T | Refusal:
    """Returns what a function returns, or the reason why it raised: MXNet runs any symbol."""
    try:
        return make(*arguments)
    except OnernnError as refused:
        return Refusal(str(refused), where)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        return Refusal(f"malformed: {type(error).__name__} {error}", where)


class _Reads(NamedTuple):
    """The inputs of one step from outside, and the positions of its nodes."""

    x: Entry
    states: tuple[Entry, ...]
    nodes: set[int]


class _View:
    """A symbol and its graph: maps outputs of nodes to values."""

    def __init__(self, symbol: Symbol, shapes: Shapes) -> None:
        self.symbol = symbol
        self.weights = _placeholders(symbol, shapes)
        self.graph, self.values = trace(_declare(symbol, shapes), self.weights)
        self._entries: dict[str, Entry] = {}
        for entry, value in self.values.items():
            self._entries.setdefault(value, entry)

    def entry(self, value: str) -> Entry | None:
        """Returns the first output of a node that is this value, None if there is none."""
        return self._entries.get(value)

    def source(self, read: Entry) -> Entry:
        """Returns what is read, through copies."""
        while known_name(self.symbol.nodes[read.node].op) == "_copy":
            read = self.symbol.nodes[read.node].inputs[0]
        return Entry(*read[:2])

    def states(self, step: Step) -> tuple[Entry, ...]:
        """Returns the new states of a step."""
        result = [self.entry(name) for name in (step.h, step.c) if name]
        if None in result:
            raise UnsupportedError("its state is not an output of an operator")
        return tuple(entry for entry in result if entry)

    def reads(self, step: Step, reading: Reading) -> _Reads:
        """Returns what a step reads; everything between must be an operator of the cell."""
        nodes = {op.position for node in step.nodes for op in node.origin}
        names = [reading.x, reading.h, *([step.c_before] if step.c else [])]
        values = [{name, self._unflatten(name)} for name in names]
        found: list[set[Entry]] = [set() for _ in names]
        for at in sorted(nodes, reverse=True):
            for entry in map(self.source, self.symbol.nodes[at].inputs):
                value = self.values[entry]
                kinds = [kind for kind, known in zip(found, values, strict=True) if value in known]
                for kind in kinds:
                    kind.add(entry)
                if not kinds and entry.node not in nodes and value not in self.weights:
                    node = self.symbol.nodes[entry.node]
                    raise UnsupportedError(f"{node.op} {node.name!r} stands inside of it")
        if any(len(entries) != 1 for entries in found):
            raise UnsupportedError("its gates read different copies of its input or state")
        x, *states = (entries.pop() for entries in found)
        return _Reads(x, tuple(states), nodes)

    def _unflatten(self, value: str) -> str:
        node = self.graph.producer(value, "Flatten")
        return node.inputs[0] if node else value

    def check_readers(self, inside: set[int], shown: Sequence[Entry | None]) -> None:
        """Refuses a region of which an operator outside reads an inner value."""
        nodes = self.symbol.nodes
        names = [entry.name for entry in shown if entry]
        for at, value in self.symbol.native.outside_reads(inside, names):
            reader = "the caller" if at is None else nodes[at].name
            node = nodes[int(value.partition(":")[0])]
            raise UnsupportedError(f"{reader} reads {node.name!r}, a value inside of it")

    def formula(self, cell: Cell, reading: Reading) -> tuple[Formula, tuple[Entry, ...]]:
        """Returns the formula of a cell, and the variables that are its weights."""
        entries: dict[Entry, int] = {}

        def rows(columns: Columns, matrix: bool) -> Rows:
            name, entry = columns.constant, self.entry(columns.constant)
            if columns.transposed != matrix:
                raise UnsupportedError(f"its weight {name!r} is not one of FullyConnected")
            if entry is None or self.symbol.nodes[entry.node].op != VARIABLE:
                raise UnsupportedError(f"its weight {name!r} is computed")
            return entries.setdefault(entry, len(entries)), columns.start, columns.stop

        layer, recurrent = (
            tuple(rows(columns, True) for columns in gates)
            for gates in (reading.layer, reading.iter)
        )
        biases = tuple(tuple(rows(columns, False) for columns in row) for row in reading.biases)
        projection = reading.projection and rows(reading.projection, True)
        if len({stop - start for _, start, stop in (*layer, *recurrent)}) > 1:
            raise UnsupportedError("its gates are of different sizes")
        count = tuple(len(self.weights[self.symbol.nodes[entry.node].name]) for entry in entries)
        formula = Formula(cell.value, count, layer, recurrent, biases, reading.signs, projection)
        return formula, tuple(entries)


def _find_unrolled(view: _View, chain: Chain, name: str, cell: str) -> Region:
    if len(chain.steps) < 2:
        raise UnsupportedError(_explain_single(view, chain))
    if reason := obstacle(view.graph, chain):
        raise UnsupportedError(reason)
    formula, weights = view.formula(chain.steps[0].cell, chain.readings[0])
    reads = [*map(view.reads, chain.steps, chain.readings)]
    ends = [*map(view.states, chain.steps)]
    for before, after in zip(ends, reads[1:], strict=False):
        for state, read in zip(before, after.states, strict=True):
            if state != read:
                raise UnsupportedError(_name_between(view.symbol, read.node))
    h, c = tuple(states[0] for states in ends), (*ends[-1], None)[1]
    view.check_readers(set().union(*(step.nodes for step in reads)), [*h, c])
    xs = tuple(step.x for step in reads)
    whole, x_axis, backwards = _find_whole(view.symbol, xs)
    merges = _find_merges(view.symbol, h[::-1] if backwards else h)
    y_axis = next(iter(merges.values()), x_axis)
    formula = replace(formula, x_axis=x_axis, y_axis=y_axis, backwards=backwards)
    merged = tuple(entry for entry, axis in merges.items() if axis == y_axis)
    return Region(name, cell, formula, weights, xs, whole, reads[0].states, h, merged, c)


def _find_whole(symbol: Symbol, pieces: Sequence[Entry]) -> tuple[Entry | None, int, bool]:
    """Returns the value that was cut into these pieces, its axis of time, and if they go back."""
    node, places = symbol.nodes[pieces[0].node], [entry.output for entry in pieces]
    if node.op == "SliceChannel" and len({entry.node for entry in pieces}) == 1:
        axis = parse.integer(node.attributes.get("axis", "1"))
        count = parse.integer(node.attributes["num_outputs"])
        if axis in (0, 1) and parse.is_set(node.attributes, "squeeze_axis"):
            for order in (range(count), range(count)[::-1]):
                if places == [*order]:
                    return Entry(*node.inputs[0][:2]), axis, order[0] > 0
    return None, 0, False


def _find_merges(symbol: Symbol, steps: Sequence[Entry]) -> dict[Entry, int]:
    """Returns the outputs that hold these values, and their axis of time."""
    result = {}
    for at, node in enumerate(symbol.nodes):
        reads, axis = node.inputs, node.attributes.get("axis", "0")
        if node.op == "Concat":  # of steps with a new axis each
            before, axis = (
                [symbol.nodes[read.node] for read in reads],
                node.attributes.get("dim", "1"),
            )
            if {(each.op, each.attributes.get("axis")) for each in before} != {
                ("expand_dims", axis)
            }:
                continue
            reads = tuple(each.inputs[0] for each in before)
        elif node.op != "stack":
            continue
        if axis in ("0", "1") and [Entry(*read[:2]) for read in reads] == [*steps]:
            result[Entry(at)] = int(axis)
    return result


def _explain_single(view: _View, chain: Chain) -> str:
    """Returns why no step follows this one: which operator reads its states instead."""
    step, symbol = chain.steps[0], view.symbol
    states, own = view.states(step), view.reads(step, chain.readings[0]).nodes
    for at, node in enumerate(symbol.nodes):
        if at not in own and known_name(node.op) not in _NO_STATES:
            if any(view.source(read) in states for read in node.inputs):
                return _name_between(symbol, at)
    return UNFOUND


def _name_between(symbol: Symbol, at: int) -> str:
    node = symbol.nodes[at]
    drops = "Dropout" in (node.op, *(symbol.nodes[read.node].op for read in node.inputs))
    hint = "; it drops in training: only a hybridized block's prediction runs here" if drops else ""
    return f"{node.op} {node.name!r} stands between its steps{hint}"


def _find_loop(symbol: Symbol, at: int, shapes: Shapes) -> Region:
    """Returns the cell in the body of a `_foreach`."""
    node = symbol.nodes[at]
    (body,) = node.subgraphs
    body = replace(body, attributes=symbol.attributes)
    data, state, rest = loop_places(node, body)
    variables = [k for k, each in enumerate(body.nodes) if each.op == VARIABLE]
    outer = {
        variables[place]: Entry(*entry[:2])
        for place, entry in zip((*data, *state, *rest), node.inputs, strict=True)
    }
    names = {k: symbol.nodes[entry.node] for k, entry in outer.items()}
    steps, carried = ([variables[place] for place in places] for places in (data, state))
    inner_shapes = {  # each turn reads one step of a sequence
        body.nodes[k].name: shapes[each.name][k in steps :]
        for k, each in names.items()
        if each.name in shapes
    }
    unknown = -1 if symbol.np_shape else 0
    for k in carried:  # a cell returns (N, O), and a state keeps its shape
        inner_shapes.setdefault(body.nodes[k].name, (unknown, unknown))
    view = _View(body, inner_shapes)
    heads = [view.source(head) for head in body.heads]
    outputs = len(heads) - len(state)
    if len(data) != 1:
        raise UnsupportedError(f"it runs over {len(data)} sequences, a layer over one")
    for step in filter(None, (step_of(view.graph, each) for each in view.graph.nodes)):
        new_states = view.states(step)
        if sorted(heads[outputs:]) != sorted(new_states):
            continue
        order = [heads[outputs:].index(entry) for entry in new_states]
        begin = [carried[k] for k in order]
        for reading in step.readings:
            reads = view.reads(step, reading)
            if (reads.x, *reads.states) != (*map(Entry, (*steps, *begin)),):
                continue
            if any(head != new_states[0] for head in heads[:outputs]):
                raise UnsupportedError("it collects something else than the state")
            view.check_readers(reads.nodes, new_states)
            formula, weights = view.formula(step.cell, reading)
            if any(names[entry.node].op != VARIABLE for entry in weights):
                raise UnsupportedError("its weights are computed")
            x, h, *c = outer[steps[0]], *(Entry(at, outputs + k) for k in order)
            return Region(
                node.name,
                node.name,
                formula,
                tuple(outer[entry.node] for entry in weights),
                (x,),
                x,
                tuple(outer[k] for k in begin),
                (h,),
                tuple(Entry(at, k) for k in range(outputs)) or (h,),
                (*c, None)[0],
                is_loop=True,
            )
    raise UnsupportedError("its body is not one recurrent cell")


def _placeholders(symbol: Symbol, shapes: Shapes) -> dict[str, Array]:
    """Returns an array in the shape of each weight and bias of a FullyConnected, never 0 or 1.

    Only for operators before gates: a weight after them may be of a whole vocabulary.
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
                shape = (rows, rows // _count_gates(symbol, at))[:rank]
            result[read.name] = seal(np.full(shape, 0.5, np.float32))
    return result


def _count_gates(symbol: Symbol, at: int) -> int:
    """Returns how many gates a projection is cut into, after sums: a state is as wide as a gate."""
    after = {at}
    for k, node in enumerate(symbol.nodes):
        if any(entry.node in after for entry in node.inputs):
            if known_name(node.op) == "SliceChannel":
                return max(1, parse.integer(node.attributes["num_outputs"]))
            if known_name(node.op) in _ADDS:
                after.add(k)
    return 1


def _declare(symbol: Symbol, shapes: Shapes) -> Symbol:
    """Returns the symbol with the shapes of its variables declared."""

    def declare(node: SymbolNode) -> SymbolNode:
        if node.op != VARIABLE or not shapes.get(node.name):
            return node
        return replace(node, attributes={**node.attributes, "__shape__": str(shapes[node.name])})

    return replace(symbol, nodes=tuple(map(declare, symbol.nodes)))
