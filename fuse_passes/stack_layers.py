"""Consecutive layers become one stack, which stays packed from the first to the last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.weights import RnnWeights, layers_of
from onernn.fuse_passes.ordering import fresh


@dataclass(frozen=True, eq=False)
class Consecutive:
    lower: Node
    upper: Node


class StackLayers:
    """``Rnn(Rnn(x))`` -> one rnn of both layers: words are sorted and unsorted once, not twice."""

    name = "stack_layers"

    def match(self, graph: Graph, node: Node) -> Consecutive | Refusal | None:
        if node.op != "Rnn":
            return None
        lower = graph.producer(node.inputs[0])
        if lower is None or lower.op != "Rnn" or lower.outputs[0] != node.inputs[0]:
            return None
        where, name = node.outputs[0], lower.outputs[0]
        below, above = (rnn.attributes["spec"] for rnn in (lower, node))
        if replace(below, input_size=1, layers=1) != replace(above, input_size=1, layers=1):
            return Refusal("the layers compute different cells", where)
        if above.stacking != "framework":
            return Refusal("oneDNN's own stacking joins layers in another way", where)
        if above.cell.has_attention:
            return Refusal("each layer has an attention of its own", where)
        if _layers(node)[0].layer is None:
            return Refusal("the upper layer has no input weights", where)
        if _layers(lower)[0].iter.dtype != _layers(node)[0].iter.dtype:
            return Refusal("the layers compute in different dtypes", where)
        if not graph.used_only_by(name, node):
            return Refusal(f"{name!r} has another user", where)
        finals = (*lower.outputs[1:], *node.outputs[1:])
        if any(value and (graph.users(value) or graph.is_output(value)) for value in finals):
            return Refusal("a final state of one layer is used", where)
        if [*map(bool, _states(lower))] != [*map(bool, _states(node))]:
            return Refusal("only one layer has an initial state", where)
        return Consecutive(lower, node)

    def rewrite(self, graph: Graph, match: Consecutive) -> Graph:
        lower, upper = match.lower, match.upper
        name = upper.outputs[0]
        joined: list[Node] = []
        states: list[str] = []
        for k, pair in enumerate(zip(_states(lower), _states(upper), strict=True)):
            states.append(fresh(graph, f"{name}/state{k}") if pair[0] else "")
            if pair[0]:
                joined.append(Node("Concat", pair, (states[-1],), {"axis": 0}))
        spec = lower.attributes["spec"]
        layers = [*_layers(lower), *_layers(upper)]
        new = Node(
            "Rnn",
            (lower.inputs[0], *states),
            (name, *("" for _ in upper.outputs[1:])),
            {"spec": replace(spec, layers=len(layers)), "weights": layers},
            (*lower.origin, *upper.origin),
        )
        return graph.splice((lower, upper), (*joined, new))


def _states(rnn: Node) -> tuple[str, str]:
    return rnn.input(1), rnn.input(2)


def _layers(rnn: Node) -> tuple[RnnWeights, ...]:
    return layers_of(rnn.attributes["spec"], rnn.attributes["weights"])
