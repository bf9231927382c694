"""Helpers of passes that rewrite a graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import spend
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.records import dataclass


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


def exchanged(
    graph: Graph,
    old: Iterable[Node],
    new: Iterable[Node],
    constants: Mapping[str, Array] = MappingProxyType({}),
) -> Graph:
    """The graph with new nodes for old ones, where they can run, and constants added."""
    gone = set(map(id, old))
    kept = [node for node in graph.nodes if id(node) not in gone]
    constants = {**graph.constants, **constants}
    return replace(graph, nodes=ordered([*kept, *new]), constants=constants).pruned()


def handed_on(graph: Graph, node: Node, source: str) -> Graph:
    """The graph in which the users of a node read another value instead."""
    same = Node("Identity", (source,), node.outputs, {}, node.origin)
    return graph.splice((node,), (same,)).bypass((same,))


def fresh(graph: Graph, name: str) -> str:
    """The name, with marks behind it where the graph has a value of this name."""
    taken = {value.name for value in graph.inputs}.union(graph.constants)
    while name in taken or graph.producer(name):
        name += "'"
    return name


@dataclass
class Tape:
    """New nodes and constants for a graph; their values are named after ``stem``.

    ``origin``: the native operators that the nodes stand for.
    """

    graph: Graph
    stem: str = ""
    origin: tuple[NativeOp, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """The name of a new value."""
        return fresh(self.graph, f"{self.stem}/{what}{len(self.nodes) + len(self.constants)}")

    def emit(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The output of a new node."""
        name = self.name(op)
        self.nodes.append(Node(op, tuple(inputs), (name,), attributes, self.origin))
        return name

    def constant(self, numbers: Any) -> str:
        """Integers."""
        name = self.name("ints")
        self.constants[name] = np.array(numbers, np.int64)
        return name


def orders(node: Node | None) -> Iterator[tuple[str, str]]:
    """The two factors or terms of a node, both ways round."""
    if node is not None and len(node.inputs) == 2:
        one, other = node.inputs
        yield one, other
        if one != other:
            yield other, one


def depends_on(graph: Graph, names: Iterable[str], goals: Container[str]) -> bool:
    """Whether any of the values is, or is made of, over however many nodes, one of the goals."""
    waiting, seen = [name for name in names if name], set[str]()
    while waiting:
        spend(1)
        name = waiting.pop()
        if name in goals:
            return True
        node = graph.producer(name)
        if node is not None and name not in seen:
            seen.add(name)
            waiting += filter(None, node.inputs)
    return False


def concatenated(
    graph: Graph, stem: str, pairs: Iterable[tuple[str, str]], axis: int
) -> tuple[tuple[str, ...], list[Node]]:
    """Pairs of values as one each, "" where they are absent, and the nodes that join them."""
    names, nodes = [], []
    for index, pair in enumerate(pairs):
        names.append(fresh(graph, f"{stem}{index}") if pair[0] else "")
        if pair[0]:
            nodes.append(Node("Concat", pair, (names[-1],), {"axis": axis}))
    return tuple(names), nodes
