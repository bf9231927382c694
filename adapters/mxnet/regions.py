"""Finds the cells that a live symbol builds from simple operators, unrolled or in the body of a
`_foreach`.

The fusion passes recognize the cells in the lowered graph (design/0011). The passes need constant
weights, but a symbol has only names of weights. So placeholders of the same shapes replace the
weights; no result depends on their elements. The operators of the cell are then compared with the
symbol. An operator that does nothing in inference (dropout, BlockGrad) may do something in
training. A cell with such an operator stays in MXNet.
"""

from __future__ import annotations

import math
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
from onernn.adapters.mxnet.table import resolve_name
from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.unrolled_cells import Chain, chains, obstacle
from onernn.ir.arrays import Array, seal
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.records import dataclass

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T")
_ADDS = frozenset("elemwise_add broadcast_add _npi_add".split())
_MOST = 2**26  # elements of the placeholder of a weight
_NO_STATES = _ADDS | frozenset(
    "FullyConnected Concat stack expand_dims ones_like zeros_like _copy".split()
)
"""Operators that read a state without computing another state."""


@dataclass(frozen=True)
class Region:
    """The steps of a cell that one operator of onernn can replace.

    ``name``: the name of the last node. ``cell``: the name in refusals, the same for any number of
    steps. ``x``: the input of each step. ``whole``: the value from which all these inputs were cut,
    if it is one value. ``states``: the initial states. ``h``: the new state of each step.
    ``merged``: the values in which all new states are stacked. ``c``: the last cell state of an
    LSTM. The cell of a loop has one ``x``, the whole input, and one ``h``, the last state.
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
    """Yields the cells of a symbol in the order in which they run, or reasons why cells stay in
    MXNet.

    ``shapes``: the known shapes of the symbol's variables.
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
    """Returns the result of ``make``, or its error as a refusal, because MXNet can run any
    symbol.
    """
    try:
        return make(*arguments)
    except OnernnError as refused:
        return Refusal(str(refused), where)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        return Refusal(f"malformed: {type(error).__name__} {error}", where)


class _Reads(NamedTuple):
    """The input, the states and the positions of the nodes of one step."""

    x: Entry
    states: tuple[Entry, ...]
    nodes: set[int]


class _View:
    """A symbol, its lowered graph, and the graph's value for each output of the symbol's nodes."""

    def __init__(self, symbol: Symbol, shapes: Shapes) -> None:
        self.symbol = symbol
        while True:
            self.weights = _placeholders(symbol, shapes)
            self.graph, self.values = trace(_declare(symbol, shapes), self.weights)
            if not (known := self._find_widths(shapes)):
                break
            shapes = {**shapes, **known}
        self._entries: dict[str, Entry] = {}
        for entry, value in self.values.items():
            self._entries.setdefault(value, entry)

    def _find_widths(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of weights that are not in ``shapes``, if the width of their input is
        known. A reshape, a convolution or a dense layer before the input may determine this width.
        """
        result = dict[str, tuple[int, ...]]()
        for node in self.symbol.nodes:
            if resolve_name(node.op) != "FullyConnected":
                continue
            name = self.symbol.nodes[node.inputs[1].node].name
            known = shapes.get(name, ())
            if name not in self.weights or len(known) == 2 and min(known) > 0:
                continue
            value = self.values[Entry(*node.inputs[0][:2])]
            sizes = self.graph.types[value].counts if value in self.graph.types else ()
            if not parse.flag(node.attributes.get("flatten", "True")):
                sizes = sizes[:1] + sizes[-1:]
            width = math.prod(size or 0 for size in sizes[1:])
            if len(sizes) > 1 and 0 < width * len(self.weights[name]) <= _MOST:
                result[name] = len(self.weights[name]), width
        return result

    def entry(self, value: str) -> Entry | None:
        """Returns the first output of a node that has this value in the graph, None if there is
        none.
        """
        return self._entries.get(value)

    def source(self, read: Entry) -> Entry:
        """Returns the output of which ``read`` is a copy, directly or through several copies."""
        while resolve_name(self.symbol.nodes[read.node].op) == "_copy":
            read = self.symbol.nodes[read.node].inputs[0]
        return Entry(*read[:2])

    def states(self, step: Step) -> tuple[Entry, ...]:
        result = [self.entry(name) for name in (step.h, step.c) if name]
        if None in result:
            raise UnsupportedError("its state is not an output of an operator")
        return tuple(entry for entry in result if entry)

    def reads(self, step: Step, reading: Reading) -> _Reads:
        """Returns the inputs of a step. Raises `UnsupportedError` if an operator inside the step is
        not part of its formula.
        """
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
                    raise UnsupportedError(
                        f"{node.op} {node.name!r} is inside of it, but not part of its formula"
                    )
        if any(len(entries) != 1 for entries in found):
            raise UnsupportedError("its gates read different copies of its input or state")
        x, *states = (entries.pop() for entries in found)
        return _Reads(x, tuple(states), nodes)

    def _unflatten(self, value: str) -> str:
        node = self.graph.producer(value, "Flatten")
        return node.inputs[0] if node else value

    def check_readers(self, inside: set[int], shown: Sequence[Entry | None]) -> None:
        """Raises `UnsupportedError` if the caller or another node reads a result of the nodes
        ``inside``. Results in ``shown`` may be read.
        """
        nodes = self.symbol.nodes
        names = [entry.name for entry in shown if entry]
        for at, value in self.symbol.native.outside_reads(inside, names):
            reader = "the caller" if at is None else nodes[at].name
            node = nodes[int(value.partition(":")[0])]
            raise UnsupportedError(f"{reader} reads {node.name!r}, a value inside of it")

    def formula(self, step: Step, reading: Reading) -> tuple[Formula, tuple[Entry, ...]]:
        entries: dict[Entry, int] = {}
        own = step.activations == step.cell.activations and step.update == "keep"
        if not own or step.cell_clip or step.attention or reading.peephole:
            raise UnsupportedError(
                "its functions differ from an MXNet cell: expected the default activations,"
                " and no clip, attention or peepholes"
            )

        def rows(columns: Columns, matrix: bool) -> Rows:
            name, entry = columns.constant, self.entry(columns.constant)
            whole = len(self.weights.get(name, ())) >= columns.stop and columns.rows is None
            if columns.transposed != matrix or not whole:
                raise UnsupportedError(
                    f"its weight {name!r}: expected rows of the weight of a FullyConnected"
                )
            if entry is None or self.symbol.nodes[entry.node].op != VARIABLE:
                raise UnsupportedError(f"its weight {name!r} is computed: expected a variable")
            return entries.setdefault(entry, len(entries)), columns.start, columns.stop

        layer, recurrent = (
            tuple(rows(columns, True) for columns in gates)
            for gates in (reading.layer, reading.iter)
        )
        biases = tuple(tuple(rows(columns, False) for columns in row) for row in reading.biases)
        projection = reading.projection and rows(reading.projection, True)
        if len({stop - start for _, start, stop in (*layer, *recurrent)}) > 1:
            raise UnsupportedError("its gates have different sizes: expected one size")
        count = tuple(len(self.weights[self.symbol.nodes[entry.node].name]) for entry in entries)
        formula = Formula(
            step.cell.value, count, layer, recurrent, biases, reading.signs, projection
        )
        return formula, tuple(entries)


def _find_unrolled(view: _View, chain: Chain, name: str, cell: str) -> Region:
    if len(chain.steps) < 2:
        raise UnsupportedError(_explain_single(view, chain))
    if reason := obstacle(view.graph, chain):
        raise UnsupportedError(reason)
    formula, weights = view.formula(chain.steps[0], chain.readings[0])
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
    """Returns the value that was cut into these pieces, its time axis, and whether the pieces are
    in reverse order.
    """
    at, node = pieces[0].node, symbol.nodes[pieces[0].node]
    if node.op == "SliceChannel" and parse.is_set(node.attributes, "squeeze_axis"):
        axis = parse.integer(node.attributes.get("axis", "1"))
        steps = [Entry(at, k) for k in range(parse.integer(node.attributes["num_outputs"]))]
        if axis in (0, 1) and [*pieces] in (steps, steps[::-1]):
            return Entry(*node.inputs[0][:2]), axis, pieces[0] != steps[0]
    return None, 0, False


def _find_merges(symbol: Symbol, steps: Sequence[Entry]) -> dict[Entry, int]:
    """Returns the outputs of nodes that stack all these steps, each with its time axis."""
    result = {}
    for at, node in enumerate(symbol.nodes):
        reads, axis = node.inputs, node.attributes.get("axis", "0")
        if node.op == "Concat":  # joins steps to which expand_dims has added an axis
            before = [symbol.nodes[read.node] for read in reads]
            axis = node.attributes.get("dim", "1")
            if any(
                (each.op, each.attributes.get("axis")) != ("expand_dims", axis) for each in before
            ):
                continue
            reads = tuple(each.inputs[0] for each in before)
        elif node.op != "stack":
            continue
        if axis in ("0", "1") and [Entry(*read[:2]) for read in reads] == [*steps]:
            result[Entry(at)] = int(axis)
    return result


def _explain_single(view: _View, chain: Chain) -> str:
    """Returns the reason why onernn finds only one step of a cell: a different operator reads the
    states that the step computes.
    """
    step, symbol = chain.steps[0], view.symbol
    states, own = view.states(step), view.reads(step, chain.readings[0]).nodes
    for at, node in enumerate(symbol.nodes):
        if at not in own and resolve_name(node.op) not in _NO_STATES:
            if any(view.source(read) in states for read in node.inputs):
                return _name_between(symbol, at)
    return UNFOUND


def _name_between(symbol: Symbol, at: int) -> str:
    node = symbol.nodes[at]
    drops = "Dropout" in (node.op, *(symbol.nodes[read.node].op for read in node.inputs))
    hint = "; it drops values in training: hybridize the block and predict" if drops else ""
    return f"{node.op} {node.name!r} comes between its steps{hint}"


def _find_loop(symbol: Symbol, at: int, shapes: Shapes) -> Region:
    node = symbol.nodes[at]
    (body,) = node.subgraphs
    body = replace(body, attributes=symbol.attributes)
    data, state, rest = loop_places(node, body)
    if len(data) != 1:
        raise UnsupportedError(f"expected a loop over one sequence, got {len(data)}")
    variables = [k for k, each in enumerate(body.nodes) if each.op == VARIABLE]
    first, *others = (variables[place] for place in (*data, *state, *rest))
    outer = dict(zip((first, *others), node.inputs, strict=True))
    carried, unknown = others[: len(state)], -1 if symbol.np_shape else 0
    # A cell returns (N, O), and a state keeps its shape. Each iteration reads one step of a
    # sequence.
    known: dict[str, tuple[int, ...]]
    known = {body.nodes[k].name: (unknown, unknown) for k in carried}
    for k, entry in outer.items():
        if shape := shapes.get(symbol.nodes[entry.node].name):
            known[body.nodes[k].name] = shape[k == first :]
    view = _View(body, known)
    heads = [view.source(head) for head in body.heads]
    count = len(heads) - len(state)
    for step in filter(None, (step_of(view.graph, each) for each in view.graph.nodes)):
        ends = view.states(step)
        if sorted(heads[count:]) != sorted(ends):
            continue
        order = [heads[count:].index(entry) for entry in ends]
        begin = [carried[k] for k in order]
        for reading in step.readings:
            reads = view.reads(step, reading)
            if (reads.x, *reads.states) != (*map(Entry, (first, *begin)),):
                continue
            if any(head != ends[0] for head in heads[:count]):
                raise UnsupportedError("it also collects other values: expected its state only")
            view.check_readers(reads.nodes, ends)
            formula, weights = view.formula(step, reading)
            x, *states = (Entry(*outer[k][:2]) for k in (first, *begin))
            parameters = tuple(Entry(*outer[entry.node][:2]) for entry in weights)
            if any(symbol.nodes[entry.node].op != VARIABLE for entry in parameters):
                raise UnsupportedError("its weights are computed: expected variables")
            h, c, *_ = *(Entry(at, count + k) for k in order), None
            merged = tuple(Entry(at, k) for k in range(count)) or (h,)
            given = formula, parameters, (x,), x, tuple(states), (h,), merged, c
            return Region(node.name, node.name, *given, is_loop=True)
    raise UnsupportedError("its body is not a recurrent cell: expected one cell and nothing else")


def _placeholders(symbol: Symbol, shapes: Shapes) -> dict[str, Array]:
    """Returns a placeholder for each weight and bias of a FullyConnected; its elements are never 0
    or 1.

    Only the weights of layers before gates get a placeholder. A weight after the gates may be
    large, for example in an output layer over a vocabulary.
    """
    result, before = dict[str, Array](), set[int]()
    for at, node in reversed([*enumerate(symbol.nodes)]):
        if at in before or node.op in parse.GATES:
            before.update(entry.node for entry in node.inputs)
        if at not in before or resolve_name(node.op) != "FullyConnected":
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
    """Returns the number of gates into which a SliceChannel cuts a projection, directly or after
    additions.
    """
    after = {at}
    for k, node in enumerate(symbol.nodes):
        if any(entry.node in after for entry in node.inputs):
            if resolve_name(node.op) == "SliceChannel":
                return max(1, parse.integer(node.attributes["num_outputs"]))
            if resolve_name(node.op) in _ADDS:
                after.add(k)
    return 1


def _declare(symbol: Symbol, shapes: Shapes) -> Symbol:

    def declare(node: SymbolNode) -> SymbolNode:
        if node.op != VARIABLE or not shapes.get(node.name):
            return node
        return replace(node, attributes={**node.attributes, "__shape__": str(shapes[node.name])})

    return replace(symbol, nodes=tuple(map(declare, symbol.nodes)))
