"""Views and joins that are made twice are made once: so that two rnns read the same value."""

from __future__ import annotations

from collections.abc import Hashable

from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass

_SMALL = 16  # elements of constants that are compared by their numbers: axes and shapes


@dataclass(frozen=True, eq=False)
class Same:
    first: Node
    second: Node


class ShareValues:
    """Two nodes that move the same elements alike become one."""

    name = "common_values"

    def match(self, graph: Graph, node: Node) -> Same | Refusal | None:
        key = _key(graph, node)
        if key is None:
            return None
        for other in graph.users(node.inputs[0]):
            if other is node:
                return None
            if other.op == node.op and _key(graph, other) == key:
                return Same(other, node)
        return None

    def rewrite(self, graph: Graph, match: Same) -> Graph:
        again = match.second
        shared = Node("Identity", match.first.outputs, again.outputs, {}, again.origin)
        return graph.splice((again,), (shared,)).bypass((shared,))


def _key(graph: Graph, node: Node) -> Hashable:
    """What two nodes that compute the same have in common; None where that is not told."""
    operator = OPERATORS.get(node.op)
    if operator is None or not operator.since or len(node.outputs) > 1:
        return None
    if node.op != "Einsum" and operator.kind not in ("view", "moves"):
        return None
    attributes = tuple(sorted((name, str(value)) for name, value in node.attributes.items()))
    return node.op, tuple(_named(graph, name) for name in node.inputs), attributes


def _named(graph: Graph, name: str) -> Hashable:
    """A value by its name, a small constant by its numbers."""
    array = graph.constants.get(name)
    if array is None or array.size > _SMALL:
        return name
    return array.shape, str(array.dtype), array.tobytes()
