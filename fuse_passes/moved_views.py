"""Transposed and reversed views meet, cancel, and leave the way free for other passes."""

from __future__ import annotations

from typing import Any

from onernn.fuse_passes.rewriting import fresh
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass

SWAP = "ab...->ba..."
"""The einsum that exchanges time and batch."""


@dataclass(frozen=True, eq=False)
class Cancelling:
    """The second view undoes the first."""

    first: Node
    second: Node


@dataclass(frozen=True, eq=False)
class Sinking:
    """All inputs of a Concat are the same view."""

    concat: Node
    views: tuple[Node, ...]


class MoveViews:
    """``view(view(x))`` -> x; ``Concat(view(x), view(y))`` -> ``view(Concat(x, y))``.

    Views are the exchange of the first two axes and the reversal of one.
    """

    name = "moved_views"

    def match(self, graph: Graph, node: Node) -> Cancelling | Sinking | Refusal | None:
        if node.op == "Concat":
            return self._sinking(graph, node)
        second = _view(graph, node)
        first = graph.producer(node.inputs[0]) if second else None
        if first is None or _view(graph, first) != second:
            return None
        return Cancelling(first, node)

    def _sinking(self, graph: Graph, node: Node) -> Sinking | None:
        views = [view for name in node.inputs if (view := graph.producer(name))]
        if len(views) < len(node.inputs) or _view(graph, views[0]) != SWAP:
            return None
        axis, rank = node.attributes["axis"], graph.types[node.outputs[0]].rank
        if axis < 0:
            axis = 0 if rank is None else axis + rank  # not known: as one that is exchanged
        if axis < 2 or any(_view(graph, view) != SWAP for view in views):
            return None
        if any(not graph.used_only_by(view.outputs[0], node) for view in views):
            return None
        return Sinking(node, tuple(views))

    def rewrite(self, graph: Graph, match: Any) -> Graph:
        if isinstance(match, Cancelling):
            source = match.first.inputs[0]
            undone = Node("Identity", (source,), match.second.outputs, {}, match.second.origin)
            return graph.splice((match.second,), (undone,)).bypass((undone,))
        concat, views = match.concat, match.views
        name = fresh(graph, f"{concat.outputs[0]}/Concat")
        joined = Node(
            "Concat",
            tuple(view.inputs[0] for view in views),
            (name,),
            concat.attributes,
            concat.origin,
        )
        first = views[0]
        moved = Node(
            first.op, (name, *first.inputs[1:]), concat.outputs, first.attributes, first.origin
        )
        return graph.splice((concat, *views), (joined, moved))


def _view(graph: Graph, node: Node) -> str | tuple[int, ...] | None:
    """What view of its first input a node is: `SWAP`, the reversed axis, or none of these."""
    if node.op == "Einsum" and node.attributes["equation"] == SWAP:
        return SWAP
    perm = tuple(node.attributes.get("perm", ()))
    if node.op == "Transpose" and perm == (1, 0, *range(2, len(perm))) and len(perm) > 1:
        return SWAP
    if node.op != "Slice" or len(node.inputs) < 5:
        return None
    cuts = [graph.constants.get(name) for name in node.inputs[1:5]]
    if any(cut is None or cut.size != 1 for cut in cuts):
        return None
    start, end, axis, step = (int(cut.reshape(())) for cut in cuts if cut is not None)
    return (axis,) if (start, step) == (-1, -1) and end < -(2**31) else None
