"""Layers become one: two opposite directions a bidirectional one, consecutive ones a stack."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.fuse_passes.rewriting import concatenated, depends_on, exchanged, fresh
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import OWN, RnnWeights, joined

# Two opposite directions over one input, concatenated, become one bidirectional layer.


class Pair(NamedTuple):
    forward: Recurrent
    backward: Recurrent
    nodes: tuple[Node, Node]
    concat: Node


class PairDirections:
    """``Concat(Rnn(x), Rnn reversed(x))`` -> one bidirectional_concat rnn.

    Each direction still runs on its own, over one packed copy of x. Final states that are
    read are split from those of the pair.
    """

    name = "bidirectional"

    def match(self, graph: Graph, node: Node) -> Pair | Refusal | None:
        if node.op != "Concat" or len(node.inputs) != 2:
            return None
        one, other = (graph.producer(name, "Rnn") for name in node.inputs)
        if one is None or other is None or one is other:
            return None
        both = forward, backward = Recurrent.of(one), Recurrent.of(other)
        where = node.outputs[0]
        if [rnn.spec.direction for rnn in both] != ["left2right", "right2left"]:
            return Refusal("the halves do not run left to right, then right to left", where)
        if forward.x != backward.x:
            return Refusal("the directions read different inputs", where)
        spec = replace(backward.spec, direction="left2right")
        if spec != forward.spec or spec.layers > 1:
            return Refusal("the directions compute different cells", where)
        if reason := _apart(forward, backward, "direction"):
            return Refusal(reason, where)
        if len({rnn.layers[0].layer is None for rnn in both}) > 1:
            return Refusal("only one direction has input weights", where)
        if node.attributes["axis"] not in (-1, (graph.types[forward.y].rank or 0) - 1):
            return Refusal("the directions are not concatenated along the channels", where)
        for rnn in both:
            if not graph.used_only_by(rnn.y, node):
                return Refusal(f"{rnn.y!r} has another user", where)
            if graph.is_read(rnn.cells):
                return Refusal("the cell of every word of one direction is used", where)
        if depends_on(graph, forward.states, other.outputs) or depends_on(
            graph, backward.states, one.outputs
        ):
            return Refusal("one direction starts from what the other one gives", where)
        return Pair(forward, backward, (one, other), node)

    def rewrite(self, graph: Graph, match: Pair) -> Graph:
        forward, backward, old, concat = match
        y = concat.outputs[0]
        begin = zip(forward.states, backward.states, strict=True)
        states, joins = concatenated(graph, f"{y}/start", begin, axis=1)
        finals: list[str] = []
        parted: list[Node] = []
        for index, pair in enumerate(zip(forward.finals, backward.finals, strict=True)):
            finals.append(
                fresh(graph, f"{y}/final{index}") if any(map(graph.is_read, pair)) else ""
            )
            if finals[-1]:
                parted.append(Node("Split", (finals[-1],), pair, {"axis": 1}))
        new = Recurrent(
            replace(forward.spec, direction="bidirectional_concat"),
            _stacked(forward.layers[0], backward.layers[0]),
            forward.x,
            y,
            attention=forward.attention,
            origin=(*forward.origin, *backward.origin, *concat.origin),
            precision=joined(forward.precision, backward.precision) or OWN,
        ).with_states(states, tuple(finals))
        # A reader of a final state may stand before the concat.
        return exchanged(graph, (*old, concat), (*joins, new.node(), *parted))


def _apart(one: Recurrent, other: Recurrent, kind: str) -> str:
    """Why two layers that follow each other, or two directions, stay two; "" where they need not.

    ``kind``: "layer" or "direction".
    """
    if one.attention != other.attention:
        return f"each {kind} has an attention of its own"
    if one.layers[0].iter.dtype != other.layers[0].iter.dtype:
        return f"the {kind}s compute in different dtypes"
    if joined(one.precision, other.precision) is None:
        return f"the {kind}s have precisions of their own"
    if [*map(bool, one.states)] != [*map(bool, other.states)]:
        return f"only one {kind} has an initial state"
    return ""


def _stacked(*sides: RnnWeights) -> RnnWeights:
    """The weights of both directions; a bias that only one has is zero in the other one."""
    bias = next((weights.bias for weights in sides if weights.bias is not None), None)
    zeros = None if bias is None else np.zeros_like(bias)
    whole = [replace(w, bias=zeros if w.bias is None else w.bias) for w in sides]
    return RnnWeights.joined(whole, 1)


# Consecutive layers become one stack, which stays packed from the first to the last.


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
        if upper.layers[0].layer is None:
            return Refusal("the upper layer has no input weights", upper.y)
        if reason := _apart(lower, upper, "layer"):
            return Refusal(reason, upper.y)
        if not graph.used_only_by(lower.y, node):
            return Refusal(f"{lower.y!r} has another user", upper.y)
        if any(map(graph.is_read, (*below.outputs[1:], *node.outputs[1:]))):
            return Refusal("a final state of one layer is used", upper.y)
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
