"""Where new nodes go, and what their values are called."""

from __future__ import annotations

from collections.abc import Iterable

from onernn.core.graph import Graph, Node


def ordered(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes, each behind those whose values it reads. A cycle is left for `Graph` to find."""
    whole = list(nodes)
    makers = {name: node for node in whole for name in node.outputs if name}
    opened: set[int] = set()
    done: dict[int, Node] = {}
    for root in whole:
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if id(node) in opened:
                done.setdefault(id(node), waiting.pop())
                continue
            opened.add(id(node))
            before = (makers[name] for name in node.inputs if name in makers)
            waiting += [maker for maker in before if id(maker) not in opened]
    return tuple(done.values())


def fresh(graph: Graph, name: str) -> str:
    """The name, with marks behind it where the graph has a value of this name."""
    taken = {value.name for value in graph.inputs}.union(graph.constants)
    while name in taken or graph.producer(name):
        name += "'"
    return name
