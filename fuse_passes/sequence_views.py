"""Offsets that are dropped and put back around row-wise operators never leave."""

from __future__ import annotations

from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass
from onernn.ir.types import UNKNOWN


@dataclass(frozen=True, eq=False)
class Views:
    like: Node
    drops: tuple[Node, ...]


class DropSequenceViews:
    """``SequenceLike(f(SequenceData(g(x))), x)`` -> ``f(g(x))`` for row-wise f and g.

    Paddle's matmul_v2 loses the LoD and lod_reset gives it back; nothing in between minds. They are
    row-wise where types tell that the result has x's offsets without these nodes, too.
    """

    name = "sequence_views"

    def match(self, graph: Graph, node: Node) -> Views | Refusal | None:
        if node.op != "SequenceLike":
            return None
        drops: list[Node] = []
        (name, source), user, where = node.inputs, node, node.outputs[0]
        while name != source:
            maker = graph.producer(name)
            if maker is None:
                return Refusal(f"{node.inputs[0]!r} does not come from {source!r}", where)
            if not graph.used_only_by(name, user):
                return Refusal(f"{name!r} has another user", where)
            if maker.op == "SequenceData":
                drops.append(maker)
            elif maker.op not in OPERATORS or OPERATORS[maker.op].offsets:
                return Refusal(f"{maker.label} is not row-wise", where)
            name, user = maker.inputs[0], maker
        made = node.inputs[0]
        while (maker := graph.producer(made)) in drops and maker is not None:
            made = maker.inputs[0]
        views = Views(node, tuple(drops))
        lod = self.rewrite(graph, views).types.get(made, UNKNOWN).lod
        if not lod or lod != graph.types[source].lod:
            return Refusal(f"what makes {made!r} is not row-wise", where)
        return views

    def rewrite(self, graph: Graph, match: Views) -> Graph:
        return graph.bypass((match.like, *match.drops))
