"""The rule of MXNet's loop over the steps of a sequence."""

from __future__ import annotations

from dataclasses import replace

from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.mxnet.lower.nodes import lower_nodes
from onernn.adapters.mxnet.lower.operator import Context, Facts, MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.adapters.mxnet.read import VARIABLE, Symbol
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Value


@rule("_foreach", "*data", inferred="none")
def _foreach(op: MxnetOperator) -> tuple[str, ...]:
    """ONNX's Scan over axis 0: the subgraph runs once a step, states go from step to step.

    Inputs are sequences, states, and whatever else the subgraph reads; locations tell which
    variable of the subgraph each of them is.
    """
    if len(op.node.subgraphs) != 1:
        raise UnsupportedError(f"{len(op.node.subgraphs)} subgraphs, expected one")
    (subgraph,) = op.node.subgraphs
    data, states, rest = (op.sizes(f"{kind}_locs") for kind in ("in_data", "in_state", "remain"))
    outputs, count = op.integer("num_out_data"), op.integer("num_outputs")
    given = op.values("data")
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

    facts = {name: op.facts(value) for name, value in pairs + others}
    facts |= {name: _more(facts[name], -1) for name, _ in pairs[len(states) :]}
    inner, heads = _body(op, subgraph, others, facts)
    # What its operators said of the states: a second time, it is known from the start.
    learned = {name: inner.of(name) for name, _ in pairs}
    for (name, _), head in zip(pairs, heads[outputs:], strict=False):
        learned[name] = learned[name]._replace(rank=learned[name].rank or inner.of(head).rank)
    if learned != {name: facts[name] for name in learned}:
        inner, heads = _body(op, subgraph, others, facts | learned)
    for name, value in pairs[: len(states)]:
        op.context.facts[value] = learned[name]

    heads = heads[outputs:] + heads[:outputs]
    taken = [value for name, value in others if name not in inner.builder.constants]
    body = inner.builder.graph([Value(head) for head in heads])
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
    for at, (out, head) in enumerate(zip(outs, heads, strict=True)):
        op.context.facts[out] = _more(inner.of(head), int(at >= len(states)))
    return outs[len(states) :] + outs[: len(states)]


def _body(
    op: MxnetOperator,
    subgraph: Symbol,
    others: list[tuple[str, str]],
    facts: dict[str, Facts],
) -> tuple[Context, list[str]]:
    """The subgraph lowered, and the values of its heads; constants of outside are its own."""
    builder = GraphBuilder(op.node.name, op.builder.budget)
    mode = replace(subgraph, attributes=op.context.symbol.attributes)
    outer = op.context
    inner = Context(builder, outer.semantics, mode, notes=outer.notes, differing=outer.differing)
    constants = op.builder.constants
    outside = dict(others)
    for name, value in others:
        if value in constants:
            inner.constant(constants[value], name)
    for name, known in facts.items():
        if outside.get(name) not in constants:
            builder.input(Value(name))
            inner.facts[name] = known
    return inner, lower_nodes(inner)


def _more(facts: Facts, axes: int) -> Facts:
    return Facts(facts.dtype, None if facts.rank is None else facts.rank + axes)
