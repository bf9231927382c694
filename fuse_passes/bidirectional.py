"""Two opposite directions over one input, concatenated, become one bidirectional rnn."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.weights import RnnWeights
from onernn.fuse_passes.raggedness import is_ragged


@dataclass(frozen=True, eq=False)
class Pair:
    forward: Node
    backward: Node
    concat: Node


class PairDirections:
    """``Concat(Rnn(x), Rnn reversed(x))`` -> one bidirectional_concat rnn.

    Each direction still runs on its own, over one packed copy of x.
    """

    name = "bidirectional"

    def match(self, graph: Graph, node: Node) -> Pair | Refusal | None:
        if node.op != "Concat" or len(node.inputs) != 2:
            return None
        forward, backward = (graph.producer(name) for name in node.inputs)
        if forward is None or backward is None or forward is backward:
            return None
        if {forward.op, backward.op} != {"Rnn"}:
            return None
        specs = [rnn.attributes["spec"] for rnn in (forward, backward)]
        where = node.outputs[0]
        if [spec.direction for spec in specs] != ["left2right", "right2left"]:
            return Refusal("the halves do not run left to right, then right to left", where)
        if forward.inputs[0] != backward.inputs[0]:
            return Refusal("the directions read different inputs", where)
        if replace(specs[1], direction="left2right") != specs[0] or specs[0].layers > 1:
            return Refusal("the directions compute different cells", where)
        if any(_lacks(a, b) for a, b in zip(*map(_weights, (forward, backward)), strict=True)):
            return Refusal("only one direction has input weights", where)
        channels = 1 if is_ragged(graph, forward.inputs[0]) else 2
        if node.attributes["axis"] not in (-1, channels):
            return Refusal("the directions are not concatenated along the channels", where)
        for rnn in (forward, backward):
            if not graph.used_only_by(rnn.outputs[0], node):
                return Refusal(f"{rnn.outputs[0]!r} has another user", where)
            if any(graph.users(name) or graph.is_output(name) for name in rnn.outputs[1:]):
                return Refusal("a final state of one direction is used", where)
        states = [[name != "" for name in rnn.inputs[1:]] for rnn in (forward, backward)]
        if states[0] != states[1]:
            return Refusal("only one direction has an initial state", where)
        return Pair(forward, backward, node)

    def rewrite(self, graph: Graph, match: Pair) -> Graph:
        forward, backward, concat = match.forward, match.backward, match.concat
        name = concat.outputs[0]
        joined: list[Node] = []
        states: list[str] = []
        for k, pair in enumerate(zip(forward.inputs[1:], backward.inputs[1:], strict=True)):
            states.append(f"{name}/state{k}" if pair[0] else "")
            if pair[0]:
                joined.append(Node("Concat", pair, (states[-1],), {"axis": 1}))
        spec = replace(forward.attributes["spec"], direction="bidirectional_concat")
        new = Node(
            "Rnn",
            (forward.inputs[0], *states),
            (name, *("" for _ in forward.outputs[1:])),
            {"spec": spec, "weights": _stacked(forward, backward)},
            (*forward.origin, *backward.origin, *concat.origin),
        )
        return graph.splice((forward, backward, concat), (*joined, new))


def _weights(rnn: Node) -> list[object]:
    weights: RnnWeights = rnn.attributes["weights"]
    return [getattr(weights, field.name) for field in fields(weights) if field.name != "bias"]


def _lacks(a: object, b: object) -> bool:
    return (a is None) != (b is None)


def _stacked(forward: Node, backward: Node) -> RnnWeights:
    spec = forward.attributes["spec"]
    pair: list[RnnWeights] = [rnn.attributes["weights"] for rnn in (forward, backward)]
    arrays: dict[str, Any] = {}
    for field in fields(RnnWeights):
        halves = [getattr(weights, field.name) for weights in pair]
        if field.name == "bias" and any(_lacks(halves[0], half) for half in halves):
            zeros = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), pair[0].iter.dtype)
            halves = [zeros if half is None else half for half in halves]
        arrays[field.name] = None if halves[0] is None else np.concatenate(halves, axis=1)
    return RnnWeights(**arrays)
