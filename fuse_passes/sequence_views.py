"""Offsets that are dropped and put back around row-wise operators never leave."""

from __future__ import annotations

from dataclasses import dataclass

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node

ROW_WISE = frozenset({"MatMul", "Gemm", "Add", "Mul", "Identity", "Relu", "Tanh", "Sigmoid"})
"""Operators whose output row t depends on row t of their first input (the others constant)."""


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
            elif maker.op not in ROW_WISE or any(
                i not in graph.constants for i in maker.inputs[1:]
            ):
                return Refusal(f"{maker.label} is not row-wise", node.outputs[0])
            name, user = maker.inputs[0], maker
        return Views(node, tuple(drops))

    def rewrite(self, graph: Graph, match: Views) -> Graph:
        return graph.bypass((match.like, *match.drops))
