"""Branches have the constants that they take from outside as their own: passes see them there."""

from __future__ import annotations

from dataclasses import replace

from onernn.fuse_passes.bodies import numbers
from onernn.ir.graph import Graph, Node


class TakeConstants:
    """``If(condition, constant...)`` -> ``If(condition)``, with the constant in the branch.

    So are integers that are known before a run.
    """

    name = "taken_constants"

    def match(self, graph: Graph, node: Node) -> Node | None:
        if node.op != "If" or all(numbers(graph, name) is None for name in node.inputs[1:]):
            return None
        return node

    def rewrite(self, graph: Graph, match: Node) -> Graph:
        count, names = match.attributes["then_taken"], match.inputs[1:]
        attributes, left = dict(match.attributes), list[str]()
        for branch, taken in (("then_branch", names[:count]), ("else_branch", names[count:])):
            body: Graph = attributes[branch]
            known = [numbers(graph, name) for name in taken]
            own = {v.name: k for v, k in zip(body.inputs, known, strict=True) if k is not None}
            rest = tuple(value for value in body.inputs if value.name not in own)
            attributes[branch] = replace(body, inputs=rest, constants={**body.constants, **own})
            left += [name for name, k in zip(taken, known, strict=True) if k is None]
            if branch == "then_branch":
                attributes["then_taken"] = len(left)
        inputs = (match.inputs[0], *left)
        return graph.splice((match,), (replace(match, inputs=inputs, attributes=attributes),))
