"""Graphs in which some nodes are others."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent


def with_nodes(
    graph: Graph, new: Mapping[str, Sequence[Node]], constants: Mapping[str, Array] | None = None
) -> Graph:
    """The graph with others in the place of the nodes whose first outputs these are."""
    nodes = [each for node in graph.nodes for each in new.get(node.outputs[0], [node])]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **(constants or {})})


def recurrent_layers(graph: Graph, names: Container[str] | None = None) -> dict[str, Recurrent]:
    """The recurrent layers by their y: all, or those of these names."""
    found = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
    return {rnn.y: rnn for rnn in found if names is None or rnn.y in names}


def with_layers(graph: Graph, change: Callable[[Recurrent], Recurrent | None]) -> Graph | None:
    """The graph with each recurrent layer changed; None where ``change`` gives None for all."""
    new = {}
    for name, rnn in recurrent_layers(graph).items():
        changed = change(rnn)
        if changed is not None:
            new[name] = [changed.node()]
    return with_nodes(graph, new) if new else None
