"""The rule of MXNet's loop over the steps of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.mxnet.lower.nodes import lower_nodes
from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.adapters.mxnet.read import VARIABLE, Symbol
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Value
from onernn.core.types import dense


class Loop(NamedTuple):
    """A loop's subgraph, and its variables with the values outside that they stand for."""

    body: Symbol
    states: list[tuple[str, str]]
    sequences: list[tuple[str, str]]
    others: list[tuple[str, str]]


@rule("_foreach", "*data", inferred="none")
def _foreach(op: MxnetOperator, *given: str) -> tuple[str, ...]:
    """ONNX's Scan over axis 0: the subgraph runs once a step, states go from step to step."""
    loop, outputs = _loop(op, given), op.integer("num_out_data")
    count, states, scanned = len(loop.body.heads), len(loop.states), len(loop.sequences)
    if op.integer("num_outputs") != count or count != outputs + states:
        raise UnsupportedError(f"{count} outputs of its subgraph, expected {outputs + states}")
    builder, heads = _body(op, loop)
    if _declared_states(op, loop, builder, heads[outputs:]):
        builder, heads = _body(op, loop)
    body = builder.graph([Value(head) for head in heads[outputs:] + heads[:outputs]])
    for node in body.nodes:
        if node.op == UNSUPPORTED:
            raise UnsupportedError(f"in its subgraph, {node.label}: {node.attributes['reason']}")
    taken = [pair for pair in loop.others if pair[0] not in builder.constants]
    outs = op.emit_many(
        "Scan",
        count,
        *(value for _, value in (*loop.states, *loop.sequences, *taken)),
        body=body,
        states=states,
        scanned=scanned,
        input_axes=(0,) * scanned,
        input_directions=(0,) * scanned,
        output_axes=(0,) * outputs,
        output_directions=(0,) * outputs,
    )
    return outs[states:] + outs[:states]


def _loop(op: MxnetOperator, given: Sequence[str]) -> Loop:
    """Inputs are sequences, states, and whatever else the subgraph reads.

    Locations tell which variable of the subgraph each of them is.
    """
    if len(op.node.subgraphs) != 1:
        raise UnsupportedError(f"{len(op.node.subgraphs)} subgraphs, expected one")
    (body,) = op.node.subgraphs
    data, states, rest = (op.sizes(f"{kind}_locs") for kind in ("in_data", "in_state", "remain"))
    variables = [node.name for node in body.nodes if node.op == VARIABLE]
    places = (*data, *states, *rest)
    if sorted(places) != list(range(len(variables))) or len(places) != len(given):
        raise UnsupportedError(f"{len(given)} inputs for the variables {places} of its subgraph")
    pairs = [(variables[place], value) for place, value in zip(places, given, strict=True)]
    sequences, pairs = pairs[: len(data)], pairs[len(data) :]
    if unsized := [value for _, value in sequences if op.is_inferred(value)]:
        raise UnsupportedError(f"sequence {unsized[0]!r}: its size is inferred")
    return Loop(body, pairs[: len(states)], sequences, pairs[len(states) :])


def _body(op: MxnetOperator, loop: Loop) -> tuple[GraphBuilder, list[str]]:
    """The subgraph lowered, and the values of its heads; constants of outside are its own."""
    outer, constants = op.context, op.builder.constants
    builder = GraphBuilder(op.node.name, op.builder.budget)
    for name, value in loop.others:
        if value in constants:
            builder.constant(constants[value], name)
    types = {name: op.builder.type_of(value) for name, value in (*loop.states, *loop.others)}
    for name, value in loop.sequences:
        whole = op.builder.type_of(value)
        types[name] = dense(whole.dtype, whole.shape and whole.shape[1:])
    for name, _ in (*loop.states, *loop.sequences, *loop.others):
        if name not in builder.constants:
            builder.input(Value(name))
            builder.declare(name, types[name])
    body = replace(loop.body, attributes=outer.symbol.attributes)
    return builder, lower_nodes(replace(outer, builder=builder, symbol=body, inferred=set()))


def _declared_states(
    op: MxnetOperator, loop: Loop, body: GraphBuilder, heads: Sequence[str]
) -> bool:
    """Whether the body tells ranks of states that the symbol does not: a state keeps its shape."""
    found = False
    for (_, value), head in zip(loop.states, heads, strict=True):
        rank = body.type_of(head).rank
        if rank is not None and op.rank(value) is None:
            op.declare_rank(value, rank)
            found = True
    return found
