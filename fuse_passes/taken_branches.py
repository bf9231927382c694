"""A branch that is always taken is part of the graph around it."""

from __future__ import annotations

from onernn.fuse_passes.bodies import inlined, numbers
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node


class TakeBranches:
    """``If(condition, then, else)`` -> the operators of the one that is taken.

    The condition is constant, or follows from sizes and numbers that are known.
    """

    name = "taken_branches"

    def match(self, graph: Graph, node: Node) -> tuple[Node, Array] | None:
        condition = numbers(graph, node.inputs[0]) if node.op == "If" else None
        return None if condition is None else (node, condition)

    def rewrite(self, graph: Graph, match: tuple[Node, Array]) -> Graph:
        node, condition = match
        count, taken = node.attributes["then_taken"], node.inputs[1:]
        if condition.all():
            return inlined(graph, node, "then_branch", taken[:count])
        return inlined(graph, node, "else_branch", taken[count:])
