"""Helpers for passes, which rewrite a graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import wraps
from typing import Any, Protocol, cast

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import spend
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.records import NOTHING, dataclass


class Pass(Protocol):
    """A rewrite of a graph, tried at each node of certain operators."""

    name: str
    ops: frozenset[str]
    """The operators at whose nodes the pass is called; all nodes if this is empty."""

    def __call__(self, graph: Graph, node: Node, /) -> Graph | Refusal | None:
        """Returns a new graph, the reason for a refusal, or None if the pass does not apply.

        The old graph and its constants do not change.
        """


Rewrite = Callable[[Graph, Node], Graph | Refusal | str | None]


def rewrite(name: str, *ops: str) -> Callable[[Rewrite], Pass]:
    """Makes a function a `Pass` of this name, for nodes of these operators, or for all nodes.

    If the function does not rewrite a node, it may return the reason as text.
    """

    def make_pass(function: Rewrite) -> Pass:
        @wraps(function)
        def apply(graph: Graph, node: Node) -> Graph | Refusal | None:
            result = None if ops and node.op not in ops else function(graph, node)
            return Refusal(result, node.outputs[0]) if isinstance(result, str) else result

        named: Any = apply
        named.name, named.ops = name, frozenset(ops)
        return cast(Pass, named)

    return make_pass


def order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Returns the nodes in an order in which each node follows the nodes whose outputs it reads.
    `Graph` detects cycles, not this function.
    """
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


def exchange(
    graph: Graph,
    old: Iterable[Node],
    new: Iterable[Node],
    constants: Mapping[str, Array] = NOTHING,
) -> Graph:
    """Returns the graph with old nodes replaced by new ones, sorted so that it can run."""
    gone = set(map(id, old))
    kept = [node for node in graph.nodes if id(node) not in gone]
    constants = {**graph.constants, **constants}
    return replace(graph, nodes=order([*kept, *new]), constants=constants).prune()


def hand_on(graph: Graph, node: Node, source: str) -> Graph:
    """Returns the graph in which the readers of a node's output read ``source`` instead."""
    same = Node("Identity", (source,), node.outputs, {}, node.origin)
    return graph.splice((node,), (same,)).bypass((same,))


def fresh(graph: Graph, name: str) -> str:
    """Returns the name, with a suffix if the graph already has a value of this name."""
    taken = {value.name for value in graph.inputs}.union(graph.constants)
    while name in taken or graph.producer(name):
        name += "'"
    return name


@dataclass
class Tape:
    """Collects new nodes and constants for a graph; the names of their values begin with ``stem``.

    ``origin``: the native operators that the nodes replace.
    """

    graph: Graph
    stem: str = ""
    origin: tuple[NativeOp, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """Returns the name for a new value."""
        return fresh(self.graph, f"{self.stem}/{what}{len(self.nodes) + len(self.constants)}")

    def emit(self, op: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its output: ``output``, or a new name.

        ``inputs`` are names of values; integers become constants.
        """
        names = tuple(x if isinstance(x, str) else self.constant(x) for x in inputs)
        name = output or self.name(op)
        self.nodes.append(Node(op, names, (name,), attributes, self.origin))
        return name

    def constant(self, numbers: Any, dtype: Any = np.int64) -> str:
        """Adds a constant of ``dtype``; returns its name."""
        name = self.name("constant")
        self.constants[name] = np.array(numbers, dtype)
        return name

    def splice(self, old: Node) -> Graph:
        """Returns the graph with the new nodes at the position of an old node."""
        return self.graph.splice((old,), self.nodes, self.constants)

    def replace(self, *old: Node) -> Graph:
        """Returns the graph with old nodes replaced by the new nodes, sorted so that it can run."""
        return exchange(self.graph, old, self.nodes, self.constants)


def orders(node: Node | None) -> Iterator[tuple[str, str]]:
    """Yields both orders of the two inputs of a product or a sum."""
    if node is not None and len(node.inputs) == 2:
        one, other = node.inputs
        yield one, other
        if one != other:
            yield other, one


def depends_on(graph: Graph, names: Iterable[str], goals: Container[str]) -> bool:
    """Returns whether one of the values is a goal, or is computed from a goal."""
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


def concatenate(
    graph: Graph, stem: str, pairs: Iterable[tuple[str, str]], axis: int
) -> tuple[tuple[str, ...], list[Node]]:
    """Returns a Concat node for each pair of values, after the names of the outputs. The name is ""
    if the values of a pair are absent.
    """
    names, nodes = [], []
    for index, pair in enumerate(pairs):
        names.append(fresh(graph, f"{stem}{index}") if pair[0] else "")
        if pair[0]:
            nodes.append(Node("Concat", pair, (names[-1],), {"axis": axis}))
    return tuple(names), nodes
