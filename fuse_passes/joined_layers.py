"""Joins opposite directions into a bidirectional layer, and consecutive layers into a stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.fuse_passes.rewriting import concatenate, depends_on, exchange, fresh, rewrite
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import OWN, RnnWeights, join


@rewrite("bidirectional", "Concat")
def pair_directions(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Concat(Rnn(x), Rnn reversed(x))`` into one bidirectional_concat rnn.

    The directions still run separately, but read one packed copy of x. A Split of the new final
    states replaces the final states that other nodes read.
    """
    if len(node.inputs) != 2:
        return None
    one, other = (graph.producer(name, "Rnn") for name in node.inputs)
    if one is None or other is None or one is other:
        return None
    both = forward, backward = Recurrent.of(one), Recurrent.of(other)
    y = node.outputs[0]
    if [rnn.spec.direction for rnn in both] != ["left2right", "right2left"]:
        return "the halves do not run left to right, then right to left"
    if forward.x != backward.x:
        return "the directions read different inputs"
    spec = replace(backward.spec, direction="left2right")
    if spec != forward.spec or spec.layers > 1:
        return "the directions compute different cells"
    if reason := _difference(forward, backward, "direction"):
        return reason
    if len({rnn.layers[0].layer is None for rnn in both}) > 1:
        return "only one direction has input weights"
    if node.attributes["axis"] not in (-1, (graph.types[forward.y].rank or 0) - 1):
        return "the directions are not concatenated along the channels"
    for rnn in both:
        if not graph.is_used_only_by(rnn.y, node):
            return f"{rnn.y!r} has another user"
        if graph.is_read(rnn.cells):
            return "the cell state of every step of one direction is read"
    if depends_on(graph, forward.states, other.outputs) or depends_on(
        graph, backward.states, one.outputs
    ):
        return "one direction starts from the result of the other"
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
    # Sorted, because a node that reads a final state may precede the Concat.
    return exchange(graph, (one, other, node), (*joins, new.node(), *parted))


def _difference(one: Recurrent, other: Recurrent, kind: str) -> str:
    """Returns why two consecutive layers, or two directions, cannot become one; "" if they can.

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
    bias = next((weights.bias for weights in sides if weights.bias is not None), None)
    zeros = None if bias is None else np.zeros_like(bias)
    whole = [replace(w, bias=zeros if w.bias is None else w.bias) for w in sides]
    return RnnWeights.join(whole, 1)


@rewrite("stack_layers", "Rnn")
def stack_layers(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Rnn(Rnn(x))`` into one rnn, which sorts and restores the order of sequences only
    once.
    """
    below = graph.producer(node.inputs[0], "Rnn")
    if below is None or below.outputs[0] != node.inputs[0]:
        return None
    lower, upper = Recurrent.of(below), Recurrent.of(node)
    cells = [replace(rnn.spec, input_size=1, layers=1) for rnn in (lower, upper)]
    if cells[0] != cells[1]:
        return "the layers compute different cells"
    if upper.spec.stacking != "framework":
        return "oneDNN's own stacking joins layers in a different way"
    if upper.layers[0].layer is None:
        return "the upper layer has no input weights"
    if reason := _difference(lower, upper, "layer"):
        return reason
    if not graph.is_used_only_by(lower.y, node):
        return f"{lower.y!r} has another user"
    if any(map(graph.is_read, (*below.outputs[1:], *node.outputs[1:]))):
        return "a final state of one layer is used"
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
