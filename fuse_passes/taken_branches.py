"""A branch that is always taken is part of the graph around it."""

from __future__ import annotations

from onernn.core.graph import Graph, Node
from onernn.fuse_passes.bodies import inlined


class TakeBranches:
    """``If(constant, then, else)`` -> the operators of the one that is taken."""

    name = "taken_branches"

    def match(self, graph: Graph, node: Node) -> Node | None:
        return node if node.op == "If" and node.inputs[0] in graph.constants else None

    def rewrite(self, graph: Graph, match: Node) -> Graph:
        count, taken = match.attributes["then_taken"], match.inputs[1:]
        if graph.constants[match.inputs[0]].all():
            return inlined(graph, match, "then_branch", taken[:count])
        return inlined(graph, match, "else_branch", taken[count:])
