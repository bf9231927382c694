"""Layers become one: two opposite directions a bidirectional one, consecutive ones a stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.fuse_passes.rewriting import concatenate, depends_on, exchange, fresh, rewrite
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import OWN, RnnWeights, join


@rewrite("bidirectional")
def pair_directions(graph: Graph, node: Node) -> Graph | Refusal | None:
    """``Concat(Rnn(x), Rnn reversed(x))`` -> one bidirectional_concat rnn.

    Each direction still runs on its own, over one packed copy of x. Final states that are
    read are split from those of the pair.
    """
    if node.op != "Concat" or len(node.inputs) != 2:
        return None
    one, other = (graph.producer(name, "Rnn") for name in node.inputs)
    if one is None or other is None or one is other:
        return None
    both = forward, backward = Recurrent.of(one), Recurrent.of(other)
    y = node.outputs[0]
    if [rnn.spec.direction for rnn in both] != ["left2right", "right2left"]:
        return Refusal("the halves do not run left to right, then right to left", y)
    if forward.x != backward.x:
        return Refusal("the directions read different inputs", y)
    spec = replace(backward.spec, direction="left2right")
    if spec != forward.spec or spec.layers > 1:
        return Refusal("the directions compute different cells", y)
    if reason := _difference(forward, backward, "direction"):
        return Refusal(reason, y)
    if len({rnn.layers[0].layer is None for rnn in both}) > 1:
        return Refusal("only one direction has input weights", y)
    if node.attributes["axis"] not in (-1, (graph.types[forward.y].rank or 0) - 1):
        return Refusal("the directions are not concatenated along the channels", y)
    for rnn in both:
        if not graph.used_only_by(rnn.y, node):
            return Refusal(f"{rnn.y!r} has another user", y)
        if graph.is_read(rnn.cells):
            return Refusal("the cell of every word of one direction is used", y)
    if depends_on(graph, forward.states, other.outputs) or depends_on(
        graph, backward.states, one.outputs
    ):
        return Refusal("one direction starts from what the other one gives", y)
    pairs = zip(forward.states, backward.states, strict=True)
    states, joins = concatenate(graph, f"{y}/start", pairs, axis=1)
    finals, parted = [], list[Node]()
    for index, pair in enumerate(zip(forward.finals, backward.finals, strict=True)):
        finals.append(fresh(graph, f"{y}/final{index}") if any(map(graph.is_read, pair)) else "")
        if finals[-1]:
            parted.append(Node("Split", (finals[-1],), pair, {"axis": 1}))
    new = replace(
        forward,
        spec=replace(forward.spec, direction="bidirectional_concat"),
        weights=_join_sides(forward.layers[0], backward.layers[0]),
        y=y,
        cells="",
        origin=(*forward.origin, *backward.origin, *node.origin),
        precision=join(forward.precision, backward.precision) or OWN,
    ).with_states(states, tuple(finals))
    # A reader of a final state may come before the concat.
    return exchange(graph, (one, other, node), (*joins, new.node(), *parted))


def _difference(one: Recurrent, other: Recurrent, kind: str) -> str:
    """Returns why two layers that follow each other, or two directions, stay two; "" if nothing.

    ``kind``: "layer" or "direction".
    """
    if one.attention != other.attention:
        return f"each {kind} has an attention of its own"
    if one.layers[0].iter.dtype != other.layers[0].iter.dtype:
        return f"the {kind}s compute in different dtypes"
    if join(one.precision, other.precision) is None:
        return f"the {kind}s have precisions of their own"
    if [*map(bool, one.states)] != [*map(bool, other.states)]:
        return f"only one {kind} has an initial state"
    return ""


def _join_sides(*sides: RnnWeights) -> RnnWeights:
    """Joins the weights of both directions; a bias that only one has is zero in the other one."""
    bias = next((weights.bias for weights in sides if weights.bias is not None), None)
    zeros = None if bias is None else np.zeros_like(bias)
    whole = [replace(w, bias=zeros if w.bias is None else w.bias) for w in sides]
    return RnnWeights.joined(whole, 1)


@rewrite("stack_layers")
def stack_layers(graph: Graph, node: Node) -> Graph | Refusal | None:
    """``Rnn(Rnn(x))`` -> one rnn of both layers: steps are sorted and unsorted once, not twice."""
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
    if reason := _difference(lower, upper, "layer"):
        return Refusal(reason, upper.y)
    if not graph.used_only_by(lower.y, node):
        return Refusal(f"{lower.y!r} has another user", upper.y)
    if any(map(graph.is_read, (*below.outputs[1:], *node.outputs[1:]))):
        return Refusal("a final state of one layer is used", upper.y)
    pairs = zip(lower.states, upper.states, strict=True)
    states, joins = concatenate(graph, f"{upper.y}/state", pairs, axis=0)
    layers = (*lower.layers, *upper.layers)
    new = replace(
        lower,
        spec=replace(lower.spec, layers=len(layers)),
        weights=layers,
        y=upper.y,
        cells="",
        origin=(*lower.origin, *upper.origin),
        precision=join(lower.precision, upper.precision) or OWN,
    )
    return graph.splice((below, node), (*joins, new.with_states(states).node()))
