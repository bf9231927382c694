"""Integers that are known before a run are constants: exporters compute sizes where they cut."""

from __future__ import annotations

from onernn.fuse_passes.bodies import numbers
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node


class TakeKnownNumbers:
    """``Slice(x, 0, Shape(x)[1] / 4)`` -> ``Slice(x, 0, 5)`` where x has 20 columns.

    All in one go. What a name's size tells stays, and so does what is an output of the graph.
    """

    name = "known_numbers"

    def match(self, graph: Graph, node: Node) -> dict[str, Array] | None:
        if not _known(graph, node):
            return None
        return {k: v for each in graph.nodes for k, v in _known(graph, each).items()}

    def rewrite(self, graph: Graph, match: dict[str, Array]) -> Graph:
        gone = [node for node in graph.nodes if node.outputs[0] in match]
        return graph.splice(gone, (), match)


def _known(graph: Graph, node: Node) -> dict[str, Array]:
    """The outputs of a node that computes nothing but such integers; none of another one."""
    if graph.is_output(node.outputs[0]) or len(node.outputs) > 1 or not node.inputs:
        return {}
    known = numbers(graph, node.outputs[0])
    return {} if known is None else {node.outputs[0]: known}
