"""Which parts of a symbol onernn runs: cells and layers are found, and cut out."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.live import Explained, Slower, warn_of_left
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.custom_operator import (
    CELLS,
    HOST,
    INPUTS,
    OPERATOR,
    custom_attributes,
    live_mxnet,
    loaded,
    original_attributes,
    register,
    slower_cells,
    slower_operator,
    view,
)
from onernn.adapters.mxnet.live_layer import LINEAR, Formula, LiveRnn, Options, Rows
from onernn.adapters.mxnet.lower import traced
from onernn.adapters.mxnet.originals import ORIGINAL, original
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode, parse_symbol
from onernn.adapters.mxnet.table import known_name
from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.unrolled_cells import Chain, chains, obstacle
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell

# Finds the cells that a live symbol writes out: unrolled, or in the body of a `_foreach`.
#
# The passes' own recognition decides (design/0011). It reads weights as constants; a symbol has
# only their names, so numbers of their shape stand for them, and nothing here looks at the
# numbers. A region is then followed from output to output: what does nothing in inference
# (dropout, BlockGrad) may do something in training, and keeps MXNet's operators.

Shapes = Mapping[str, tuple[int, ...]]
_NO_STATES = frozenset("FullyConnected Concat stack expand_dims ones_like _copy".split())
"""Operators that read a state without making another state."""
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


def find_regions(symbol: Symbol, shapes: Shapes) -> Iterator[Region | Refusal]:
    """The cells of a symbol, in the order in which they run, or why some stay MXNet's.

    ``shapes``: known shapes of its variables.
    """
    try:
        view = _View(symbol, shapes)
        result = list(chains(view.graph))
    except OnernnError as error:  # an unreadable symbol stays as it is
        yield Refusal(f"the symbol cannot be read: {error}")
        return
    for chain in result:
        ends = view.entry(chain.steps[-1].h)
        name = symbol.nodes[ends.node].name if ends else chain.steps[-1].h
        try:
            yield _unrolled(view, chain, name)
        except UnsupportedError as refused:
            yield Refusal(str(refused), name)
    for at, node in enumerate(symbol.nodes):
        if node.op == "_foreach" and len(node.subgraphs) == 1:
            try:
                yield _loop(symbol, at, shapes)
            except OnernnError as refused:
                yield Refusal(str(refused), node.name)


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


def _unrolled(view: _View, chain: Chain, name: str) -> Region:
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
                between = view.symbol.nodes[read.node]
                raise UnsupportedError(f"{between.op} {between.name!r} stands between its steps")
    h, c = tuple(states[0] for states in ends), (*ends[-1], None)[1]
    inside = set().union(*(step.nodes for step in reads))
    _check_readers(view.symbol, inside, {*h, c})
    xs = tuple(step.x for step in reads)
    return Region(name, formula, weights, xs, reads[0].states, h, c)


def _why_single(view: _View, chain: Chain) -> str:
    """Why no step follows this one: which operator reads its states instead."""
    step, symbol = chain.steps[0], view.symbol
    states, own = _new_states(view, step), _reads(view, step, chain.readings[0]).nodes
    for at, node in enumerate(symbol.nodes):
        reads = any(view.behind(read) in states for read in node.inputs)
        if reads and at not in own and known_name(node.op) not in _NO_STATES:
            return f"{node.op} {node.name!r} stands between its steps"
    return "it is one step of a cell: there is nothing to put together"


def _loop(symbol: Symbol, at: int, shapes: Shapes) -> Region:
    """The cell in the body of a `_foreach`."""
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
    """Numbers in the shape of each weight and bias of a FullyConnected, never 0 or 1."""
    result: dict[str, Array] = {}
    for at, node in enumerate(symbol.nodes):
        if known_name(node.op) != "FullyConnected":
            continue
        rows = parse.integer(node.attributes["num_hidden"])
        for entry, rank in zip(node.inputs[1:], (2, 1), strict=False):
            read = symbol.nodes[entry.node]
            if read.op != VARIABLE or read.name in result:
                continue
            shape = shapes.get(read.name, ())
            if len(shape) != rank or min(shape) < 1:
                shape = (rows, rows // _gates(symbol, at))[:rank]
            result[read.name] = np.full(shape, 0.5, np.float32)
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


# Puts onernn's operators into a live symbol: one for each RNN operator, and one for each region.

RNN = ("RNN", "_npx_rnn")
_log = logging.getLogger("onernn")


def explain(symbol: Any, **options: Any) -> Explained:
    """What `optimize` has replaced in an MXNet symbol, and which layers stay MXNet's.

    ``options``: those of `optimize`.
    """
    graph, chosen = json.loads(symbol.tojson()), Options(**options)
    nodes = [node for node in graph["nodes"] if _operator(node) in (OPERATOR, CELLS)]
    replaced = tuple(original_attributes(node["attrs"])[1] for node in nodes)
    return Explained(replaced, tuple(_layers(symbol, graph, {}, chosen).refusals))


def optimized_symbol(symbol: Any, params: Mapping[str, Any], options: Options) -> Any:
    """The symbol with onernn's operators; itself if there is nothing to replace.

    ``params``: arrays by name. Raises `UnsupportedError`, with its name, for an RNN operator that
    cannot run.
    """
    register()
    graph = json.loads(symbol.tojson())
    layers = _layers(symbol, graph, params, options)
    sizes = _variables(symbol, params)
    result = [_replace_rnn(graph, node, params, options, sizes) for node in layers.operators]
    cutter = _Cutter(graph, options)
    for region in layers.regions:
        cutter.cut(region)
        result.append(region.name)
    warn_of_left(HOST, layers.refusals)
    if not result:
        return symbol
    _log.info("replaced in MXNet's symbol: %s", ", ".join(result))
    graph.pop("node_row_ptr", None)  # a Custom operator shows all of its outputs
    return loaded(graph, symbol)


def _operator(node: Mapping[str, Any]) -> str:
    """The op_type of a Custom operator; else ""."""
    return str(node.get("attrs", {}).get("op_type", ""))


class _Layers(NamedTuple):
    """The recurrent layers of a symbol: nodes and regions to replace, and what stays."""

    operators: list[Any]
    regions: list[Region]
    refusals: list[Refusal]


def _layers(symbol: Any, graph: Any, params: Mapping[str, Any], options: Options) -> _Layers:
    result, variables = _Layers([], [], []), _variables(symbol, params)
    for node in graph["nodes"]:
        operator, attributes = _operator(node), node.get("attrs", {})
        if node["op"] not in RNN and operator not in (OPERATOR, CELLS):
            continue
        if node["op"] in RNN:
            live = checked(node["name"], attributes, options)
            folds = _linear(graph, node, live, variables) is not None
            data = _data_of(symbol, node, params)
            if why := slower_operator(options, live, *data, folds=folds):
                result.refusals.append(Slower(why, node["name"]))
                continue
        result.operators.append(node)
    for region in find_regions(parse_symbol(json.dumps(graph)), variables):
        if isinstance(region, Refusal):
            result.refusals.append(region)
            continue
        cell, steps = Cell(region.formula.cell), len(region.h)
        why = slower_cells(options, cell, region.formula.hidden, steps)
        if why and region.loop is None:  # MXNet's loop costs more a step
            result.refusals.append(Slower(why, region.name))
        elif name := _late_variable(graph["nodes"], region):
            why = f"only some of its steps read {name!r}: the order of arguments would change"
            result.refusals.append(Refusal(why, region.name))
        else:
            result.regions.append(region)
    return result


def _replace_rnn(
    graph: Any, node: Any, params: Mapping[str, Any], options: Options, sizes: Shapes
) -> str:
    """Replaces an RNN operator, or the options of a replaced one; returns its name."""
    operator = _operator(node)
    _, _, attributes = original_attributes(node.get("attrs", {}))
    region_text = node.get("attrs", {}).get(ORIGINAL, "")
    if operator != CELLS:
        live = checked(node["name"], attributes, options)
        slots = [slot for slot in live.arguments if slot != "seed"]
        del node["inputs"][len(slots) :]
        at, before = graph["nodes"].index(node), {**node, "inputs": [*node["inputs"]]}
        if node["op"] in RNN and (linear := _linear(graph, node, live, sizes)):
            linear_attributes = linear["attrs"]
            node["inputs"][0] = linear["inputs"][0]
            node["inputs"] += linear["inputs"][1:]
            for name in ("num_hidden", "no_bias"):
                attributes[f"{LINEAR}{name}"] = linear_attributes.get(name, "False")
            live = checked(node["name"], attributes, options)
            slots = [slot for slot in live.arguments if slot != "seed"]
            came = [entry[0] for entry in node["inputs"]]
            node["inputs"], attributes[INPUTS] = _in_order(came, node["inputs"], slots)
        if not operator:
            heads = [Entry(at, k) for k in range(len(live.outputs))]
            nodes = [*graph["nodes"][:at], before]
            region_text = original(nodes, heads, _as_inputs(node["inputs"]))
        if live.dropout:
            node["inputs"].append([len(graph["nodes"]), 0, 0])
            drawn = {"low": "0", "high": "1", "shape": "(2,)"}
            name = f"{node['name']}_seed"
            graph["nodes"].append(
                {"op": "_random_uniform", "name": name, "attrs": drawn, "inputs": []}
            )
        vector = params.get(graph["nodes"][node["inputs"][1][0]]["name"])
        if vector is not None and not live.linear:
            live.layer.stacks([view(vector, "parameters")])  # raises now, not at the first run
    node["op"] = "Custom"
    node["attrs"] = custom_attributes(attributes, node["name"], options, operator or OPERATOR)
    node["attrs"][ORIGINAL] = region_text
    return str(node["name"])


def _as_inputs(reads: Iterable[Sequence[int]]) -> dict[Entry, list[int]]:
    """The inputs of onernn's operator, as `original` names them."""
    return {Entry(*read[:2]): [-1 - k, 0, 0] for k, read in enumerate(reads)}


def _late_variable(nodes: Sequence[Any], region: Region) -> str:
    """A variable that inputs of later steps read, but not that of the first step."""
    waiting, seen = [entry.node for entry in region.x], set[int]()
    first = min(waiting)
    while waiting:
        at = waiting.pop()
        if at <= first or at in seen:
            continue
        seen.add(at)
        if nodes[at]["op"] == VARIABLE:
            return str(nodes[at]["name"])
        waiting += [entry[0] for entry in nodes[at]["inputs"]]
    return ""


def _in_order(
    came: Sequence[int], reads: Sequence[Any], names: Sequence[str]
) -> tuple[list[Any], str]:
    """An operator's inputs in the order of the nodes ``came``, and the names for `INPUTS`.

    MXNet lists arguments as a walk from the outputs meets them, which is the order of the nodes in
    JSON. Modules and their buckets keep the state of an optimizer by the position of its argument.
    """
    order = sorted(range(len(came)), key=came.__getitem__)
    return [reads[at] for at in order], " ".join(names[at] for at in order)


def _linear(graph: Any, node: Any, live: LiveRnn, sizes: Shapes) -> Any:
    """The FullyConnected in front of an RNN operator that becomes part of it; None if none does.

    One product takes the place of two where it costs less, as in files.
    """
    nodes, (at, *_) = graph["nodes"], node["inputs"][0]
    result = nodes[at]
    readers = [read for reader in nodes for read in reader["inputs"] if read[0] == at]
    attrs = result.get("attrs", {})
    if known_name(result["op"]) != "FullyConnected" or len(readers) > 1:
        return None
    if any(head[0] == at for head in graph["heads"]) or parse.flag(attrs.get("flatten", "True")):
        return None
    weight = sizes.get(nodes[result["inputs"][1][0]]["name"], ())
    if len(weight) != 2 or min(weight) < 1:
        return None
    outer, inner = weight
    columns = live.stack.directions * live.stack.gates * live.stack.hidden
    return result if inner * columns < inner * outer + outer * columns else None


def checked(name: str, attributes: Mapping[str, Any], options: Options) -> LiveRnn:
    """Raises `UnsupportedError`, with the layer's name, for attributes that cannot run."""
    try:
        return LiveRnn({key: str(value) for key, value in attributes.items()}, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name} (RNN): {error}") from None


def _variables(symbol: Any, params: Mapping[str, Any]) -> Shapes:
    """The known shapes of the symbol's variables."""
    shapes = {name: tuple(params[name].shape) for name in symbol.list_inputs() if name in params}
    result = _inferred(symbol.infer_shape_partial, shapes)
    return {**dict(zip(symbol.list_arguments(), result[0] or (), strict=False)), **shapes}


def _data_of(symbol: Any, node: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """The shape and the type of an RNN operator's data, None where unknown."""
    rnn = symbol.get_internals()[f"{node['name']}_output"]
    x = rnn.get_children()[0]
    arrays = {name: params[name] for name in x.list_inputs() if name in params}
    _, shape, _ = _inferred(x.infer_shape_partial, {k: tuple(a.shape) for k, a in arrays.items()})
    _, dtype, _ = _inferred(x.infer_type_partial, {k: a.dtype for k, a in arrays.items()})
    return (shape or [None])[0], (dtype or [None])[0]


def _inferred(infer: Any, arguments: Mapping[str, Any]) -> Any:
    """Infers arguments, outputs and auxiliary states; None where MXNet finds a contradiction."""
    try:
        return infer(**arguments)
    except live_mxnet().MXNetError:  # it will say so again when it is bound
        return None, None, None


class _Cutter:
    """Puts operators in the place of regions, one after the other, into a symbol as JSON.

    The old nodes stay without readers: MXNet drops them. Entries of regions are those of the
    original symbol; ``_now`` maps them to their replacements.
    """

    def __init__(self, graph: Any, options: Options) -> None:
        self._graph, self._nodes, self._options = graph, graph["nodes"], options
        self._now: dict[Entry, Entry] = {}

    def cut(self, region: Region) -> None:
        formula = region.formula
        if region.loop is None:
            x, formula = self._joined(region)
            merges = self._merges(region, formula.backwards)
            axis = next(iter(merges.values()), formula.x_axis)
            formula = replace(formula, y_axis=axis)
        else:
            x = self._resolved(region.x[0])
        name = f"{region.name}_onernn"
        reads = [x, *region.weights, *map(self._resolved, region.states)]
        came = [min(region.x).node, *(e.node for e in (*region.weights, *region.states))]
        reads, inputs = _in_order(came, reads, formula.arguments)
        attributes = {"formula": formula.text, INPUTS: inputs}
        whole = next(iter(merges), None) if region.loop is None else region.h[0]
        attrs = custom_attributes(attributes, region.name, self._options, CELLS)
        attrs[ORIGINAL] = self._original(region, formula, whole, x, reads)
        operator = self._add(_node("Custom", name, reads, **attrs))
        instead = {region.h[-1]: operator._replace(output=1)}
        if region.c:
            instead[region.c] = operator._replace(output=2)
        if region.loop is not None:
            instead |= dict.fromkeys(region.h[:-1], operator)
        else:
            instead |= {entry: operator for entry, on in merges.items() if on == axis}
            self._steps(region, formula.backwards, axis, operator, instead)
        self._redirect(instead)

    def _original(
        self, region: Region, formula: Formula, whole: Entry | None, x: Entry, reads: Sequence[Any]
    ) -> str:
        """The region as it is. ``whole``: the states of all steps together, ``x`` the inputs."""
        nodes, leaves = [*self._nodes], _as_inputs(reads)
        if nodes[x.node]["name"] == f"{region.name}_input":  # of single steps: cut apart again
            pieces = {self._resolved(e): [len(nodes), k, 0] for k, e in enumerate(region.x)}
            nodes = [
                {**node, "inputs": [pieces.get(Entry(*e[:2]), e) for e in node["inputs"]]}
                for node in nodes
            ]
            nodes.append(_cut(f"{region.name}_inputs", x, len(region.x), axis=0))
        steps = [] if region.loop is not None else region.h[:: -1 if formula.backwards else 1]
        if whole is None:
            whole = Entry(len(nodes))
            nodes.append(_stack(f"{region.name}_outputs", steps, axis=formula.y_axis))
        heads = [whole, region.h[-1], *filter(None, [region.c])]
        return original(nodes, heads, leaves, steps)

    def _resolved(self, entry: Entry) -> Entry:
        return self._now.get(entry, entry)

    def _add(self, node: Any) -> Entry:
        self._nodes.append(node)
        return Entry(len(self._nodes) - 1)

    def _joined(self, region: Region) -> tuple[Entry, Any]:
        """The input of all steps, and the formula with the axis of time, and the direction."""
        pieces = [self._resolved(entry) for entry in region.x]
        count, formula = len(pieces), region.formula
        node = self._nodes[pieces[0].node]
        if known_name(node["op"]) == "SliceChannel" and len({e.node for e in pieces}) == 1:
            attributes = node["attrs"]
            axis = parse.integer(attributes.get("axis", "1"))
            places = [entry.output for entry in pieces]
            whole = parse.integer(attributes["num_outputs"]) == count and axis in (0, 1)
            if whole and parse.flag(attributes.get("squeeze_axis", "False")):
                for backwards in (False, True):
                    if places == list(range(count))[:: -1 if backwards else 1]:
                        x = Entry(*node["inputs"][0])
                        return x, replace(formula, x_axis=axis, backwards=backwards)
        return self._add(_stack(f"{region.name}_input", pieces, axis=0)), formula

    def _merges(self, region: Region, backwards: bool) -> dict[Entry, int]:
        """The operators that join the states of all steps, and their axis of time."""
        result = {}
        states = [list(entry[:2]) for entry in region.h[:: -1 if backwards else 1]]
        for at, node in enumerate(self._nodes):
            kind, inputs = known_name(node["op"]), [read[:2] for read in node["inputs"]]
            attributes = node.get("attrs", {})
            if kind == "Concat":  # of steps with a new axis each
                before = [self._nodes[read[0]] for read in inputs]
                axis = attributes.get("dim", "1")
                alike = {(each["op"], each.get("attrs", {}).get("axis")) for each in before}
                if alike != {("expand_dims", axis)}:
                    continue
                inputs = [each["inputs"][0][:2] for each in before]
            elif kind == "stack":
                axis = attributes.get("axis", "0")
            else:
                continue
            if inputs == states and axis in ("0", "1"):
                result[Entry(at)] = int(axis)
        return result

    def _steps(
        self,
        region: Region,
        backwards: bool,
        axis: int,
        operator: Entry,
        instead: dict[Entry, Entry],
    ) -> None:
        """Adds the new state of each step but the last, for readers of a single step."""
        count = len(region.h)
        cut = self._add(_cut(f"{region.name}_steps", operator, count, axis=axis))
        for step, entry in enumerate(region.h):
            place = count - 1 - step if backwards else step
            instead.setdefault(entry, cut._replace(output=place))

    def _redirect(self, instead: dict[Entry, Entry]) -> None:
        """Makes readers read other entries; outputs of the symbol keep their names."""
        self._now |= instead
        for node in self._nodes:
            node["inputs"] = [list(instead.get(Entry(*e[:2]), e)) for e in node["inputs"]]
        for head in self._graph["heads"]:
            entry = Entry(*head[:2])
            if entry in instead:
                name = self._nodes[entry.node]["name"]
                head[:] = self._add(_node("_copy", name, [instead[entry]]))


def _node(op: str, name: str, reads: Iterable[Entry], **attributes: Any) -> dict[str, Any]:
    attrs = {key: str(value) for key, value in attributes.items()}
    return {"op": op, "name": name, "attrs": attrs, "inputs": [*map(list, reads)]}


def _stack(name: str, steps: Sequence[Entry], axis: int) -> dict[str, Any]:
    return _node("stack", name, steps, axis=axis, num_args=len(steps))


def _cut(name: str, whole: Entry, steps: int, axis: int) -> dict[str, Any]:
    """The inverse of `_stack`."""
    return _node("SliceChannel", name, [whole], num_outputs=steps, axis=axis, squeeze_axis=True)
