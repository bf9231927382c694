"""The rules of MXNet's control flow: loops over steps and while a condition holds, and branches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onernn.adapters.common.lowering import GraphBuilder
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import VARIABLE, Symbol, SymbolNode
from onernn.adapters.mxnet.table import FIRST, LAST, MxnetOperator, MxnetTensor, lower_nodes, mxnet
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.ir.types import Type, dense
from onernn.ops.control import scan_attributes

Pairs = Sequence[tuple[str, str]]
"""Variables of a subgraph, and the values outside that they stand for."""


@mxnet("_foreach", inferred="none")
def run_foreach(*data: MxnetTensor, op: MxnetOperator) -> tuple[str, ...]:
    """ONNX's Scan over axis 0: the subgraph runs once a step, states go from step to step.

    Inputs are sequences, states, and whatever else the subgraph reads; locations say which
    variable of the subgraph each of them is.
    """
    (body,) = _subgraphs(op, 1)
    op.ignore("num_out_data", "num_outputs", *_LOCATIONS)
    scanned, states, rest = loop_places(op.node, body)
    inputs = [each.name for each in data]
    names = _variables(body)
    count, outputs = len(body.heads), len(body.heads) - len(states)
    pairs = [(names[k], value) for k, value in zip((*scanned, *states, *rest), inputs, strict=True)]
    sequences, pairs = pairs[: len(scanned)], pairs[len(scanned) :]
    carried, others = pairs[: len(states)], pairs[len(states) :]
    if unsized := [value for _, value in sequences if op.is_inferred(value)]:
        raise UnsupportedError(f"sequence {unsized[0]!r}: its size is inferred")
    steps = {name: _element(op.builder.type_of(value)) for name, value in sequences}
    builder, heads = _loop_body(op, body, {}, carried, steps, others)
    graph = _graph(builder, [*heads[outputs:], *heads[:outputs]])
    outs = op.emit_many(
        "Scan",
        count,
        *(value for _, value in (*carried, *sequences)),
        *builder.taken.values(),
        **scan_attributes(graph, len(carried), len(sequences)),
    )
    return outs[len(carried) :] + outs[: len(carried)]


@mxnet("_while_loop", inferred="none")
def run_while_loop(*data: MxnetTensor, op: MxnetOperator) -> tuple[str, ...]:
    """ONNX's Loop. Collected outputs have ``max_iterations`` rows, zeros after the last turn."""
    condition, body = _subgraphs(op, 2)
    inputs = [each.name for each in data]
    most, outputs = op.integer("max_iterations"), op.integer("num_out_data")
    inside, tests = _bindings(op, body, "func", inputs), _bindings(op, condition, "cond", inputs)
    states = op.sizes("func_var_locs")
    if most < 0:
        raise UnsupportedError(f"attribute max_iterations={most}")
    if len(set(states)) != len(states) or not set(states) <= set(range(len(inside))):
        raise UnsupportedError(f"attribute func_var_locs={states} of {len(inside)} variables")
    carried = [inside[at] for at in states]
    others = [pair for at, pair in enumerate(inside) if at not in states]
    op.ignore("num_outputs")
    count, turn, going = _checked_count(op.node, body, outputs, len(carried)), "turn", "going"
    while {turn, going} & {*_variables(body), *_variables(condition)}:
        turn, going = f"{turn}#", f"{going}#"
    own = {turn: dense("int64", ()), going: dense("bool", ())}
    builder, heads = _loop_body(op, body, own, carried, {}, others)
    # The condition, too, names a state by its value outside.
    now = dict(zip((value for _, value in carried), heads[outputs:], strict=True))
    graph, values = _condition_graph(op, condition, tests, now)
    missing = [pair for pair in tests if pair[1] in set(values) - {v for _, v in inside}]
    for name, value in missing:
        builder.take(op.builder, value, name)
    now = {value: name for name, value in (*others, *missing)} | now
    again = _truth(op, builder, graph, [now[value] for value in values])
    first = _truth(op, op.builder, graph, values)
    graph = _graph(builder, [again, *heads[outputs:], *heads[:outputs]])
    outs = op.emit_many(
        "Loop",
        count,
        most,
        first,
        *(value for _, value in carried),
        *builder.taken.values(),
        body=graph,
        carried=len(carried),
    )
    if outputs:
        op.note("rows behind a loop's last turn are zeros; MXNet leaves there what memory held")
    rows = [_filled(op, value, most) for value in outs[len(carried) :]]
    return *rows, *outs[: len(carried)]


@mxnet("_cond", inferred="none")
def run_cond(*data: MxnetTensor, op: MxnetOperator) -> tuple[str, ...]:
    """ONNX's If; a number that is not 0 is true."""
    condition, *branches = _subgraphs(op, 3)
    inputs = [each.name for each in data]
    tests = _bindings(op, condition, "cond", inputs)
    choice = _truth(op, op.builder, *_condition_graph(op, condition, tests, ()))
    bodies, count = [], op.integer("num_outputs")
    for kind, branch in zip(("then", "else"), branches, strict=True):
        pairs = _bindings(op, branch, kind, inputs)
        builder, heads = _body(op, branch, {}, pairs)
        if len(heads) != count:
            raise UnsupportedError(f"its branches do not give {count} outputs")
        bodies.append((_graph(builder, heads), [*builder.taken.values()]))
    return op.builder.branches(choice, *bodies)


def _subgraphs(op: MxnetOperator, count: int) -> tuple[Symbol, ...]:
    op.ignore("num_args")
    result = op.node.subgraphs
    if len(result) != count:
        expected = "one" if count == 1 else count
        raise UnsupportedError(f"{len(result)} subgraphs, expected {expected}")
    return tuple(replace(subgraph, attributes=op.context.symbol.attributes) for subgraph in result)


def _variables(body: Symbol) -> list[str]:
    return [node.name for node in body.nodes if node.op == VARIABLE]


def _bindings(op: MxnetOperator, body: Symbol, kind: str, inputs: Sequence[str]) -> Pairs:
    """The variables of a subgraph with the inputs that they stand for."""
    names, places = _variables(body), op.sizes(f"{kind}_input_locs")
    if len(places) != len(names) or not set(places) <= set(range(len(inputs))):
        raise UnsupportedError(
            f"attribute {kind}_input_locs={places}: {len(inputs)} inputs, {len(names)} variables"
        )
    return [(name, inputs[place]) for name, place in zip(names, places, strict=True)]


_LOCATIONS = ("in_data_locs", "in_state_locs", "remain_locs")


def loop_places(node: SymbolNode, body: Symbol) -> list[tuple[int, ...]]:
    """Which variables of a `_foreach`'s body are its sequences, its states and its other inputs.

    Raises `UnsupportedError` where they, or the outputs, are not those of its body.
    """
    result = [parse.sizes(node.attributes[name]) for name in _LOCATIONS]
    places = [place for kind in result for place in kind]
    if sorted(places) != [*range(len(_variables(body)))] or len(places) != len(node.inputs):
        raise UnsupportedError(
            f"{len(node.inputs)} inputs for the variables {places} of its subgraph"
        )
    _checked_count(node, body, parse.integer(node.attributes["num_out_data"]), len(result[1]))
    return result


def _checked_count(node: SymbolNode, body: Symbol, outputs: int, states: int) -> int:
    """The number of outputs: collected ones, then the states."""
    count, told = len(body.heads), parse.integer(node.attributes["num_outputs"])
    if told != count or count != outputs + states or outputs < 0:
        raise UnsupportedError(f"{count} outputs of its subgraph, expected {outputs + states}")
    return count


def _element(whole: Type) -> Type:
    return dense(whole.dtype, whole.shape and whole.shape[1:])


def _loop_body(
    op: MxnetOperator,
    body: Symbol,
    front: Mapping[str, Type],
    carried: Pairs,
    steps: Mapping[str, Type],
    others: Pairs,
) -> tuple[GraphBuilder, list[str]]:
    """A loop's body, lowered twice if it gives ranks of states that the symbol lacks.

    A state keeps its shape.
    """

    def lowered() -> tuple[GraphBuilder, list[str]]:
        states = {name: replace(op.builder.type_of(v), value=None) for name, v in carried}
        return _body(op, body, {**front, **states, **steps}, others)

    builder, heads = lowered()
    ranks = [builder.type_of(head).rank for head in heads[len(heads) - len(carried) :]]
    new_ranks = [
        (value, rank)
        for (_, value), rank in zip(carried, ranks, strict=True)
        if rank is not None and op.rank(value) is None
    ]
    for value, rank in new_ranks:
        op.declare_rank(value, rank)
    return lowered() if new_ranks else (builder, heads)


class _Body(GraphBuilder):
    def enter(self, name: str, known: Type) -> None:
        """Adds an input without a shape: a carried value may grow from a size of 1."""
        self.input(Value(name, known.dtype))
        self.declare(name, known)


def _body(
    op: MxnetOperator, body: Symbol, own: Mapping[str, Type], others: Pairs
) -> tuple[GraphBuilder, list[str]]:
    """A lowered subgraph, and the values of its heads; it copies constants from outside.

    ``own``: inputs that each turn sets, in this order; ``others``: values from outside.
    """
    builder = _Body(op.node.name, op.builder.budget)
    builder.origin = op.builder.origin
    for name, known in own.items():
        builder.enter(name, known)
    for name, value in others:
        builder.take(op.builder, value, name)
    context = replace(op.context, builder=builder, symbol=body, inferred=set(), is_body=True)
    return builder, lower_nodes(context)


def _graph(builder: GraphBuilder, outputs: Iterable[str]) -> Graph:
    return builder.body([*map(Value, outputs)], "in its subgraph,")


def _condition_graph(
    op: MxnetOperator, condition: Symbol, tests: Pairs, changing: Collection[str]
) -> tuple[Graph, list[str]]:
    """A condition as a graph, and the values outside that it takes.

    ``changing``: values that each turn replaces.
    """
    own = [pair for pair in tests if pair[1] in changing]
    others = [pair for pair in tests if pair[1] not in changing]
    types = {name: replace(op.builder.type_of(value), value=None) for name, value in own}
    builder, heads = _body(op, condition, types, others)
    if len(heads) != 1:
        raise UnsupportedError(f"its condition gives {len(heads)} values, expected one")
    return _graph(builder, heads), [*(value for _, value in own), *builder.taken.values()]


def _truth(op: MxnetOperator, into: GraphBuilder, graph: Graph, values: Sequence[str]) -> str:
    """Puts a condition's graph into another one, and gives its value, a boolean scalar.

    It becomes both branches of an If, of which a pass takes one.
    """
    always = into.constant(np.True_, f"{op.node.name}/always")
    (out,) = into.branches(always, (graph, values), (graph, values))
    scalar = into.constant(np.empty(0, np.int64), f"{op.node.name}/scalar")
    return into.emit("Reshape", [into.emit("Cast", [out], {"to": "bool"}), scalar])


def _filled(op: MxnetOperator, value: str, rows: int) -> str:
    """A value with zeros behind its rows."""
    sizes = op.sizes_of(value)
    more = op.emit("Sub", [rows], op.part(sizes, FIRST, 1))
    shape = op.joined(more, op.part(sizes, 1, LAST))
    zeros = op.emit("ConstantOfShape", shape, value=np.zeros(1, op.dtype_of(value)))
    return op.joined(value, zeros)
