"""Consecutive layers become one stack, which stays packed from the first to the last."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from onernn.fuse_passes.rewriting import concatenated
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import OWN, joined


class Consecutive(NamedTuple):
    lower: Recurrent
    upper: Recurrent
    nodes: tuple[Node, Node]


class StackLayers:
    """``Rnn(Rnn(x))`` -> one rnn of both layers: words are sorted and unsorted once, not twice."""

    name = "stack_layers"

    def match(self, graph: Graph, node: Node) -> Consecutive | Refusal | None:
        below = graph.producer(node.inputs[0], "Rnn") if node.op == "Rnn" else None
        if below is None or below.outputs[0] != node.inputs[0]:
            return None
        lower, upper = Recurrent.of(below), Recurrent.of(node)
        cells = [replace(rnn.spec, input_size=1, layers=1) for rnn in (lower, upper)]
        if cells[0] != cells[1]:
            return Refusal("the layers compute different cells", upper.y)
        if upper.spec.stacking != "framework":
            return Refusal("oneDNN's own stacking joins layers in another way", upper.y)
        if lower.attention != upper.attention:
            return Refusal("each layer has an attention of its own", upper.y)
        first = upper.layers[0]
        if first.layer is None:
            return Refusal("the upper layer has no input weights", upper.y)
        if lower.layers[0].iter.dtype != first.iter.dtype:
            return Refusal("the layers compute in different dtypes", upper.y)
        if joined(lower.precision, upper.precision) is None:
            return Refusal("the layers have precisions of their own", upper.y)
        if not graph.used_only_by(lower.y, node):
            return Refusal(f"{lower.y!r} has another user", upper.y)
        if any(map(graph.is_read, (*below.outputs[1:], *node.outputs[1:]))):
            return Refusal("a final state of one layer is used", upper.y)
        if [*map(bool, lower.states)] != [*map(bool, upper.states)]:
            return Refusal("only one layer has an initial state", upper.y)
        return Consecutive(lower, upper, (below, node))

    def rewrite(self, graph: Graph, match: Consecutive) -> Graph:
        lower, upper, old = match
        pairs = zip(lower.states, upper.states, strict=True)
        states, joins = concatenated(graph, f"{upper.y}/state", pairs, axis=0)
        layers = (*lower.layers, *upper.layers)
        spec, origin = replace(lower.spec, layers=len(layers)), (*lower.origin, *upper.origin)
        new = Recurrent(
            spec,
            layers,
            lower.x,
            upper.y,
            attention=upper.attention,
            origin=origin,
            precision=joined(lower.precision, upper.precision) or OWN,
        )
        return graph.splice(old, (*joins, new.with_states(states).node()))
