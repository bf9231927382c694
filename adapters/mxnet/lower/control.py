"""The rule of MXNet's loop over the steps of a sequence."""

from __future__ import annotations

from dataclasses import replace

from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.mxnet.lower.nodes import lower_nodes
from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.adapters.mxnet.read import VARIABLE, Symbol
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Value
from onernn.core.types import dense


@rule("_foreach", "*data", inferred="none")
def _foreach(op: MxnetOperator, *given: str) -> tuple[str, ...]:
    """ONNX's Scan over axis 0: the subgraph runs once a step, states go from step to step.

    Inputs are sequences, states, and whatever else the subgraph reads; locations tell which
    variable of the subgraph each of them is.
    """
    if len(op.node.subgraphs) != 1:
        raise UnsupportedError(f"{len(op.node.subgraphs)} subgraphs, expected one")
    (subgraph,) = op.node.subgraphs
    data, states, rest = (op.sizes(f"{kind}_locs") for kind in ("in_data", "in_state", "remain"))
    outputs, count = op.integer("num_out_data"), op.integer("num_outputs")
    variables = [node.name for node in subgraph.nodes if node.op == VARIABLE]
    places = (*data, *states, *rest)
    if sorted(places) != list(range(len(variables))) or len(places) != len(given):
        raise UnsupportedError(f"{len(given)} inputs for the variables {places} of its subgraph")
    if len(subgraph.heads) != count or count != outputs + len(states):
        raise UnsupportedError(f"{len(subgraph.heads)} outputs of its subgraph, expected {count}")

    sequences, initial = given[: len(data)], given[len(data) : len(data) + len(states)]
    pairs = [(variables[place], value) for place, value in zip(states, initial, strict=True)]
    pairs += [(variables[place], value) for place, value in zip(data, sequences, strict=True)]
    others = [
        (variables[place], value)
        for place, value in zip(rest, given[len(data) + len(states) :], strict=True)
    ]
    if unsized := [value for value in sequences if op.is_inferred(value)]:
        raise UnsupportedError(f"sequence {unsized[0]!r}: its size is inferred")

    inner, heads = _body(op, subgraph, pairs, others, len(states))
    # A state keeps its shape: what the body makes of it tells that of the one before.
    told = [inner.type_of(head).rank for head in heads[outputs:]]
    open_states = [
        (value, rank)
        for (_, value), rank in zip(pairs, told, strict=False)
        if rank is not None and op.rank(value) is None
    ]
    for value, rank in open_states:
        op.declare_rank(value, rank)
    if open_states:
        inner, heads = _body(op, subgraph, pairs, others, len(states))
    heads = heads[outputs:] + heads[:outputs]
    taken = [value for name, value in others if name not in inner.constants]
    body = inner.graph([Value(head) for head in heads])
    for node in body.nodes:
        if node.op == UNSUPPORTED:
            raise UnsupportedError(f"in its subgraph, {node.label}: {node.attributes['reason']}")
    outs = op.emit_many(
        "Scan",
        count,
        *(value for _, value in pairs),
        *taken,
        body=body,
        states=len(states),
        scanned=len(data),
        input_axes=(0,) * len(data),
        input_directions=(0,) * len(data),
        output_axes=(0,) * outputs,
        output_directions=(0,) * outputs,
    )
    return outs[len(states) :] + outs[: len(states)]


def _body(
    op: MxnetOperator,
    subgraph: Symbol,
    pairs: list[tuple[str, str]],
    others: list[tuple[str, str]],
    states: int,
) -> tuple[GraphBuilder, list[str]]:
    """The subgraph lowered, and the values of its heads.

    Inputs are the states and one step of each sequence, ``pairs``, and ``others`` as they are;
    constants of outside are its own.
    """
    outer, constants = op.context, op.builder.constants
    builder = GraphBuilder(op.node.name, op.builder.budget)
    for name, value in others:
        if value in constants:
            builder.constant(constants[value], name)
    for at, (name, value) in enumerate(pairs + others):
        if name in builder.constants:
            continue
        found = op.builder.type_of(value)
        if len(pairs) > at >= states:
            found = dense(found.dtype, found.shape and found.shape[1:])
        builder.input(Value(name))
        builder.declare(name, found)
    mode = replace(subgraph, attributes=outer.symbol.attributes)
    inner = replace(outer, builder=builder, symbol=mode, inferred=set())
    return builder, lower_nodes(inner)
