"""Offsets that are dropped and put back around row-wise operators never leave."""

from __future__ import annotations

from dataclasses import dataclass

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.core.operator import OPERATORS


@dataclass(frozen=True, eq=False)
class Views:
    like: Node
    drops: tuple[Node, ...]


class DropSequenceViews:
    """``SequenceLike(f(SequenceData(g(x))), x)`` -> ``f(g(x))`` for row-wise f and g.

    Paddle's matmul_v2 loses the LoD and lod_reset gives it back; nothing in between minds.
    """

    name = "sequence_views"

    def match(self, graph: Graph, node: Node) -> Views | Refusal | None:
        if node.op != "SequenceLike":
            return None
        drops: list[Node] = []
        name, user = node.inputs[0], node
        while name != node.inputs[1]:
            maker = graph.producer(name)
            if maker is None:
                return Refusal(
                    f"{node.inputs[0]!r} does not come from {node.inputs[1]!r}", node.outputs[0]
                )
            if not graph.used_only_by(name, user):
                return Refusal(f"{name!r} has another user", node.outputs[0])
            if maker.op == "SequenceData":
                drops.append(maker)
            elif not _is_row_wise(graph, maker):
                return Refusal(f"{maker.label} is not row-wise", node.outputs[0])
            name, user = maker.inputs[0], maker
        return Views(node, tuple(drops))

    def rewrite(self, graph: Graph, match: Views) -> Graph:
        return graph.bypass((match.like, *match.drops))


def _is_row_wise(graph: Graph, node: Node) -> bool:
    """Whether row t of the output depends on row t of the first input, and on constants."""
    others = [graph.constants.get(name) for name in node.inputs[1:]]
    rank = graph.types[node.inputs[0]].rank
    if rank is None or any(other is None for other in others):
        return False
    if node.op in ("MatMul", "Gemm"):
        return rank > 1 and not node.attributes.get("transA")
    operator = OPERATORS.get(node.op)
    if operator is None or not (node.op == "Identity" or operator.kind == "elementwise"):
        return False
    one_row = all(a is None or a.ndim < rank or len(a) == 1 for a in others)
    return one_row and graph.types[node.outputs[0]].rank == rank
