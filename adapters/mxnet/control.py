"""Rules for MXNet's control flow: _foreach (a loop over steps), _while_loop and _cond (a
branch).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onernn.adapters.common.lowering import GraphBuilder
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.table import (
    FIRST,
    LAST,
    UNSIZED,
    Context,
    MxnetOperator,
    MxnetTensor,
    lower_nodes,
    mxnet,
)
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.ir.types import Type, dense
from onernn.ops.control import scan_attributes

Pairs = Sequence[tuple[str, MxnetTensor]]
"""Variables of a subgraph, each with the outer value that it represents."""


@mxnet("_foreach", inferred="none")
def run_foreach(*data: MxnetTensor, op: MxnetOperator) -> tuple[str, ...]:
    """Lowers a loop over steps to ONNX's Scan over axis 0. Each step reads the states of the
    previous step.

    The inputs are sequences, states, and all remaining values that the subgraph reads. The
    attributes in `_LOCATIONS` name the subgraph's variable for each input.
    """
    (body,) = _subgraphs(op, 1)
    op.ignore("num_out_data", *_LOCATIONS)
    scanned, states, rest = loop_places(op.node, body)
    names = _variables(body)
    pairs = [(names[k], value) for k, value in zip((*scanned, *states, *rest), data, strict=True)]
    sequences, pairs = pairs[: len(scanned)], pairs[len(scanned) :]
    carried, others = pairs[: len(states)], pairs[len(states) :]
    if unsized := [value.name for _, value in sequences if value.inferred]:
        raise UnsupportedError(f"sequence {unsized[0]!r}: {UNSIZED}")
    steps = {
        name: dense(value.type.dtype, value.type.shape and value.type.shape[1:])
        for name, value in sequences
    }
    entries = zip((*scanned, *states, *rest), op.node.inputs, strict=True)
    _share_sizes(op, body, {names[k]: entry.name for k, entry in entries}, steps, carried, others)
    builder, heads = _lower_loop(op, body, {}, carried, steps, others)
    outputs = len(heads) - len(states)
    graph = _close(builder, [*heads[outputs:], *heads[:outputs]])
    outs = op.emit_many(
        "Scan",
        len(heads),
        *(value.name for _, value in (*carried, *sequences)),
        *builder.taken.values(),
        **scan_attributes(graph, len(carried), len(sequences)),
    )
    return outs[len(carried) :] + outs[: len(carried)]


@mxnet("_while_loop", inferred="none")
def run_while_loop(
    *data: MxnetTensor,
    max_iterations: int,
    num_out_data: int,
    func_var_locs: tuple[int, ...] = (),
    op: MxnetOperator,
) -> tuple[str, ...]:
    """Lowers a while loop to ONNX's Loop. Outputs have ``max_iterations`` rows; the rows after the
    last iteration are zeros.
    """
    condition, body = _subgraphs(op, 2)
    inside, tests = _bind(op, body, "func", data), _bind(op, condition, "cond", data)
    if max_iterations < 0:
        raise UnsupportedError(f"attribute max_iterations={max_iterations}: expected 0 or more")
    if len({*func_var_locs} & {*range(len(inside))}) != len(func_var_locs):
        raise UnsupportedError(
            f"attribute func_var_locs={func_var_locs}: expected different indices below"
            f" {len(inside)}, the number of the body's variables"
        )
    carried = [inside[at] for at in func_var_locs]
    others = [pair for at, pair in enumerate(inside) if at not in func_var_locs]
    count, turn, going = _check_count(op.node, body, num_out_data, len(carried)), "turn", "going"
    while {turn, going} & {*_variables(body), *_variables(condition)}:
        turn, going = f"{turn}#", f"{going}#"
    own = {turn: dense("int64", ()), going: dense("bool", ())}
    builder, heads = _lower_loop(op, body, own, carried, {}, others)
    # In the condition, the name of a state's initial value denotes the current state.
    names = [value.name for _, value in carried]
    now = dict(zip(names, heads[num_out_data:], strict=True))
    graph, values = _lower_condition(op, condition, tests, now)
    known = {value.name for _, value in inside}
    missing = {value.name: name for name, value in tests if value.name in {*values} - known}
    for value, name in missing.items():
        builder.take(op.builder, value, name)
    now = {value.name: name for name, value in others} | missing | now
    again = _add_condition(op, builder, graph, [now[value] for value in values])
    first = _add_condition(op, op.builder, graph, values)
    graph = _close(builder, [again, *heads[num_out_data:], *heads[:num_out_data]])
    outs = op.emit_many(
        "Loop",
        count,
        max_iterations,
        first,
        *names,
        *builder.taken.values(),
        body=graph,
        carried=len(carried),
    )
    if num_out_data:
        op.note("rows after a loop's last iteration are zeros; MXNet leaves them uninitialized")
    rows = (_fill_rows(MxnetTensor(op, out), max_iterations) for out in outs[len(carried) :])
    return *(each.name for each in rows), *outs[: len(carried)]


@mxnet("_cond", inferred="none")
def run_cond(*data: MxnetTensor, num_outputs: int, op: MxnetOperator) -> tuple[str, ...]:
    """Lowers a branch to ONNX's If. A condition is true if it is not 0."""
    condition, *branches = _subgraphs(op, 3)
    tests = _bind(op, condition, "cond", data)
    choice = _add_condition(op, op.builder, *_lower_condition(op, condition, tests, ()))
    bodies = []
    for kind, branch in zip(("then", "else"), branches, strict=True):
        builder, heads = _lower(op, branch, {}, _bind(op, branch, kind, data))
        if len(heads) != num_outputs:
            raise UnsupportedError(
                f"branch {kind!r}: expected {num_outputs} outputs, got {len(heads)}"
            )
        bodies.append((_close(builder, heads), [*builder.taken.values()]))
    return op.builder.branches(choice, *bodies)


def _subgraphs(op: MxnetOperator, count: int) -> tuple[Symbol, ...]:
    op.ignore("num_args", "num_outputs")
    result = op.node.subgraphs
    if len(result) != count:
        raise UnsupportedError(f"expected {count} subgraphs, got {len(result)}")
    return tuple(replace(subgraph, attributes=op.context.symbol.attributes) for subgraph in result)


def _variables(body: Symbol) -> list[str]:
    return [node.name for node in body.nodes if node.op == VARIABLE]


def _bind(op: MxnetOperator, body: Symbol, kind: str, inputs: Sequence[MxnetTensor]) -> Pairs:
    names, places = _variables(body), op.keyword(f"{kind}_input_locs", ())
    if len(places) != len(names) or not set(places) <= set(range(len(inputs))):
        raise UnsupportedError(
            f"attribute {kind}_input_locs={places}: expected an index below {len(inputs)} for each"
            f" of the subgraph's {len(names)} variables"
        )
    return [(name, inputs[place]) for name, place in zip(names, places, strict=True)]


_LOCATIONS = ("in_data_locs", "in_state_locs", "remain_locs")


def loop_places(node: SymbolNode, body: Symbol) -> list[tuple[int, ...]]:
    """Returns the indices of the variables of a `_foreach`'s body that are sequences, states and
    other inputs.

    Raises `UnsupportedError` if these indices, or the number of outputs, do not fit the body.
    """
    result = [parse.sizes(node.attributes[name]) for name in _LOCATIONS]
    places = [place for kind in result for place in kind]
    if sorted(places) != [*range(len(_variables(body)))] or len(places) != len(node.inputs):
        raise UnsupportedError(
            f"attributes {', '.join(_LOCATIONS)}: expected each variable of the subgraph once, and"
            f" one for each of the {len(node.inputs)} inputs, got {places}"
        )
    _check_count(node, body, parse.integer(node.attributes["num_out_data"]), len(result[1]))
    return result


def _share_sizes(
    op: MxnetOperator,
    body: Symbol,
    outer: Mapping[str, str],
    steps: Mapping[str, Type],
    carried: Pairs,
    others: Pairs,
) -> None:
    """Finds the sizes of zero initial states that MXNet infers from the loop's body. Records in the
    outer context the axes of the loop's inputs with the same sizes, and the zeros whose sizes the
    body needs.

    ``outer`` maps each variable of the body to the outer variable.
    """
    known = op.context.inferred
    if known.keys().isdisjoint(outer[name] for name, _ in carried):
        return
    states = {name: replace(value.type, value=None) for name, value in carried}
    context = _enter(op, body, {**states, **steps}, others)
    context.unranked, inside = set(), dict[str, str]()
    for at, node in enumerate(body.nodes):
        if node.op == VARIABLE:
            inside[Entry(at).name] = node.name
    context.inferred = {
        variable: known[outer[name]]
        for variable, name in inside.items()
        if name in states and outer[name] in known
    }
    lower_nodes(context)
    for origin, places in context.equal.items():
        for variable, axis in places:
            if name := inside.get(variable, ""):
                place = (outer[name], axis + (name in steps))
                op.context.equal.setdefault(origin, []).append(place)
                op.context.unsized |= context.unsized & {origin[0]}


def _check_count(node: SymbolNode, body: Symbol, outputs: int, states: int) -> int:
    count, told = len(body.heads), parse.integer(node.attributes["num_outputs"])
    if told != count or count != outputs + states or outputs < 0:
        raise UnsupportedError(
            f"attributes num_outputs={told}, num_out_data={outputs}: expected {count} outputs of"
            f" the subgraph, {states} of them states"
        )
    return count


def _lower_loop(
    op: MxnetOperator,
    body: Symbol,
    front: Mapping[str, Type],
    carried: Pairs,
    steps: Mapping[str, Type],
    others: Pairs,
) -> tuple[GraphBuilder, list[str]]:
    """Lowers a loop's body. If the rank of an initial state is unknown, this may find the rank of
    the new state. The body is then lowered again with this rank, because a state keeps its shape.
    """
    states = {name: replace(value.type, value=None) for name, value in carried}
    builder, heads = _lower(op, body, {**front, **states, **steps}, others)
    ranks = [builder.type_of(head).rank for head in heads[len(heads) - len(carried) :]]
    found = False
    for (_, value), rank in zip(carried, ranks, strict=True):
        if rank is not None and value.rank is None:
            op.declare_rank(value.name, rank)
            found = True
    return _lower_loop(op, body, front, carried, steps, others) if found else (builder, heads)


class _Body(GraphBuilder):
    def enter(self, name: str, known: Type) -> None:
        """Adds an input. The graph declares no shape for it, because broadcasting may enlarge a
        state's axis of size 1.
        """
        self.input(Value(name, known.dtype))
        self.declare(name, known)


def _lower(
    op: MxnetOperator, body: Symbol, own: Mapping[str, Type], others: Pairs
) -> tuple[GraphBuilder, list[str]]:
    """Returns a lowered subgraph and the names of its outputs; outer constants are copied into it.

    ``own``: the types of the inputs that each iteration sets, in this order. ``others``: the outer
    values that the subgraph reads.
    """
    context = _enter(op, body, own, others)
    return context.builder, lower_nodes(context)


def _enter(op: MxnetOperator, body: Symbol, own: Mapping[str, Type], others: Pairs) -> Context:
    builder = _Body(op.node.name, op.builder.budget)
    builder.origin, builder.rules = op.builder.origin, op.builder.rules
    for name, known in own.items():
        builder.enter(name, known)
    for name, value in others:
        builder.take(op.builder, value.name, name)
    outer = op.context
    return Context(
        builder,
        outer.semantics,
        body,
        unranked=outer.unranked,
        notes=outer.notes,
        differing=outer.differing,
        seed=outer.seed,
        is_body=True,
    )


def _close(builder: GraphBuilder, outputs: Iterable[str]) -> Graph:
    return builder.body([*map(Value, outputs)], "in its subgraph,")


def _lower_condition(
    op: MxnetOperator, condition: Symbol, tests: Pairs, changing: Collection[str]
) -> tuple[Graph, list[str]]:
    """Returns a condition as a graph, and the names of the outer values that it reads.

    ``changing``: the names of the values that each iteration replaces.
    """
    own = {name: value for name, value in tests if value.name in changing}
    types = {name: replace(value.type, value=None) for name, value in own.items()}
    others = [pair for pair in tests if pair[0] not in own]
    builder, heads = _lower(op, condition, types, others)
    if len(heads) != 1:
        raise UnsupportedError(f"its condition: expected one output, got {len(heads)}")
    values = [*(value.name for value in own.values()), *builder.taken.values()]
    return _close(builder, heads), values


def _add_condition(
    op: MxnetOperator, into: GraphBuilder, graph: Graph, values: Sequence[str]
) -> str:
    """Adds a condition's graph to the graph ``into``, and returns the name of its result, a boolean
    scalar.

    The condition is nested as both branches of an If, which a later pass replaces by one branch.
    """
    always = into.constant(np.True_, f"{op.node.name}/always")
    (out,) = into.branches(always, (graph, values), (graph, values))
    scalar = into.constant(np.empty(0, np.int64), f"{op.node.name}/scalar")
    return into.emit("Reshape", [into.emit("Cast", [out], {"to": "bool"}), scalar])


def _fill_rows(value: MxnetTensor, rows: int) -> MxnetTensor:
    sizes = value.sizes
    more = value.new(value.op.emit("Sub", [rows], sizes.part(FIRST, 1).name))
    shape = more.join(sizes.part(1, LAST))
    return value.join(shape.ConstantOfShape(value=np.zeros(1, value.dtype)))
