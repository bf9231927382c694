"""Two opposite directions over one input, concatenated, become one bidirectional rnn."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.weights import RnnWeights, layers_of
from onernn.fuse_passes.ordering import fresh, ordered


@dataclass(frozen=True, eq=False)
class Pair:
    forward: Node
    backward: Node
    concat: Node


class PairDirections:
    """``Concat(Rnn(x), Rnn reversed(x))`` -> one bidirectional_concat rnn.

    Each direction still runs on its own, over one packed copy of x. Final states that somebody
    reads are split from those of the pair.
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
        if specs[0].cell.has_attention:
            return Refusal("each direction has an attention of its own", where)
        one, other = map(_weights, (forward, backward))
        if one.iter.dtype != other.iter.dtype:
            return Refusal("the directions compute in different dtypes", where)
        if _lacks(one.layer, other.layer):
            return Refusal("only one direction has input weights", where)
        rank = graph.types[forward.outputs[0]].rank
        if node.attributes["axis"] != -1 and node.attributes["axis"] + 1 != rank:
            return Refusal("the directions are not concatenated along the channels", where)
        for rnn in (forward, backward):
            if not graph.used_only_by(rnn.outputs[0], node):
                return Refusal(f"{rnn.outputs[0]!r} has another user", where)
            if any(graph.is_read(name) for name in rnn.outputs[3:]):
                return Refusal("the cell of every word of one direction is used", where)
        states = [[*map(bool, _states(rnn))] for rnn in (forward, backward)]
        if states[0] != states[1]:
            return Refusal("only one direction has an initial state", where)
        if _reads(graph, forward, backward) or _reads(graph, backward, forward):
            return Refusal("one direction starts from what the other one gives", where)
        return Pair(forward, backward, node)

    def rewrite(self, graph: Graph, match: Pair) -> Graph:
        forward, backward, concat = match.forward, match.backward, match.concat
        name = concat.outputs[0]
        joined: list[Node] = []
        states: list[str] = []
        for k, pair in enumerate(zip(_states(forward), _states(backward), strict=True)):
            states.append(fresh(graph, f"{name}/start{k}") if pair[0] else "")
            if pair[0]:
                joined.append(Node("Concat", pair, (states[-1],), {"axis": 1}))
        spec = replace(forward.attributes["spec"], direction="bidirectional_concat")
        finals: list[str] = []
        parted: list[Node] = []
        for k, pair in enumerate(_finals(forward, backward)):
            read = any(graph.is_read(end) for end in pair)
            finals.append(fresh(graph, f"{name}/final{k}") if read else "")
            if finals[-1]:
                parted.append(Node("Split", (finals[-1],), pair, {"axis": 1}))
        new = Node(
            "Rnn",
            (forward.inputs[0], *states),
            (name, *finals),
            {"spec": spec, "weights": _stacked(forward, backward)},
            (*forward.origin, *backward.origin, *concat.origin),
        )
        gone = {id(node) for node in (forward, backward, concat)}
        kept = [node for node in graph.nodes if id(node) not in gone]
        # Who reads a final state may stand before the concat.
        return replace(graph, nodes=ordered([*kept, *joined, new, *parted])).pruned()


def _states(rnn: Node) -> tuple[str, str]:
    return rnn.input(1), rnn.input(2)


def _finals(forward: Node, backward: Node) -> list[tuple[str, str]]:
    """The names of h and c behind the last step, by state; "" where a direction has none."""
    ends = [(*rnn.outputs[1:3], "", "")[:2] for rnn in (forward, backward)]
    count = max(len(rnn.outputs[1:3]) for rnn in (forward, backward))
    return list(zip(*ends, strict=True))[:count]


def _reads(graph: Graph, node: Node, other: Node) -> bool:
    """Whether a state of ``node`` is made, over however many nodes, from what ``other`` gives."""
    waiting, seen = [name for name in node.inputs[1:] if name], set[str]()
    while waiting:
        name = waiting.pop()
        maker = graph.producer(name)
        if maker is other:
            return True
        if maker is not None and name not in seen:
            waiting += maker.inputs
        seen.add(name)
    return False


def _weights(rnn: Node) -> RnnWeights:
    (weights,) = layers_of(rnn.attributes["spec"], rnn.attributes["weights"])
    return weights


def _lacks(a: object, b: object) -> bool:
    return (a is None) != (b is None)


def _stacked(forward: Node, backward: Node) -> RnnWeights:
    spec = forward.attributes["spec"]
    pair = [_weights(forward), _weights(backward)]
    arrays: dict[str, Any] = {}
    for field in fields(RnnWeights):
        halves = [getattr(weights, field.name) for weights in pair]
        if field.name == "bias" and any(_lacks(halves[0], half) for half in halves):
            zeros = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), pair[0].iter.dtype)
            halves = [zeros if half is None else half for half in halves]
        arrays[field.name] = None if halves[0] is None else np.concatenate(halves, axis=1)
    return RnnWeights(**arrays)
