"""The rule of MXNet's loop over the steps of a sequence."""

from __future__ import annotations

from dataclasses import replace

from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.mxnet.native import Facts, MxnetOperator, rule
from onernn.adapters.mxnet.read import VARIABLE, Symbol
from onernn.adapters.mxnet.walk import lower_nodes
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

    body = GraphBuilder(op.node.name)
    inner = replace(
        op.context, builder=body, symbol=_of_same_mode(op, subgraph), facts={}, inferred=set()
    )
    sequences = given[: len(data)]
    initial = given[len(data) : len(data) + len(states)]
    taken: list[tuple[str, str]] = []  # the name inside, the value outside
    for place, value in zip(rest, given[len(data) + len(states) :], strict=True):
        if value in op.builder.constants:
            inner.constant(op.builder.constants[value], variables[place])
        else:
            taken.append((variables[place], value))
    pairs = [(variables[place], value) for place, value in zip(states, initial, strict=True)]
    pairs += [(variables[place], value) for place, value in zip(data, sequences, strict=True)]
    for name, value in pairs + taken:
        body.input(Value(name))
        inner.facts[name] = op.facts(value)
    for place, value in zip(data, sequences, strict=True):
        inner.facts[variables[place]] = _more(op.facts(value), -1)
    if unsized := [value for value in sequences if op.is_inferred(value)]:
        raise UnsupportedError(f"sequence {unsized[0]!r}: its size is inferred")

    heads = lower_nodes(inner)
    heads = heads[outputs:] + heads[:outputs]
    graph = body.graph([Value(head) for head in heads])
    for node in graph.nodes:
        if node.op == UNSUPPORTED:
            raise UnsupportedError(f"in its subgraph, {node.label}: {node.attributes['reason']}")
    op.builder.notes.update(body.notes)
    outs = op.emit_many(
        "Scan",
        count,
        *(value for _, value in pairs + taken),
        body=graph,
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


def _of_same_mode(op: MxnetOperator, subgraph: Symbol) -> Symbol:
    return replace(subgraph, attributes=op.context.symbol.attributes)


def _more(facts: Facts, axes: int) -> Facts:
    return Facts(facts.dtype, None if facts.rank is None else facts.rank + axes)
