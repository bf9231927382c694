"""Graphs inside loops and branches (bodies), and what is known about their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onernn.fuse_passes.rewriting import fresh
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph, Node, input_types
from onernn.ir.records import replace
from onernn.ir.types import UNKNOWN, Type
from onernn.ops.control import types_inside


def bodies(node: Node) -> dict[str, Graph]:
    """Returns the graphs among a node's attributes."""
    return {name: each for name, each in node.attributes.items() if isinstance(each, Graph)}


def every_node(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of a graph, and after each loop or branch the nodes inside it."""
    for node in graph.nodes:
        yield node
        for body in bodies(node).values():
            yield from every_node(body)


def numbers(graph: Graph, name: str) -> Array | None:
    """Returns the array of a value that is known before a run: a constant, or integers computed
    from sizes.
    """
    if name in graph.constants:
        return graph.constants[name]
    result = graph.types[name]
    known = result.numbers
    return None if known is None else known.astype(result.dtype)


def source_of(body: Graph, name: str) -> str:
    """Returns the input of the chain of Identity operators that computes ``name``."""
    while node := body.producer(name, "Identity"):
        name = node.inputs[0]
    return name


def inside(graph: Graph, node: Node, name: str) -> list[Type]:
    """Returns the types of the inputs of a node's body."""
    return types_inside(node, name, input_types(graph.types, node))


def declare_sizes(graph: Graph, node: Node, name: str) -> Graph:
    """Returns a node's body, whose inputs declare the sizes that the outer graph knows.

    A state may have one row at first and more rows in later iterations. Such a state is declared
    with one row, so that no pass replaces its cell by a layer. A layer would not repeat this row
    for each sequence.
    """
    body: Graph = node.attributes[name]
    inputs = []
    for index, (value, result) in enumerate(
        zip(body.inputs, inside(graph, node, name), strict=True)
    ):
        shape = result.counts or value.shape or ()
        began = graph.types.get(node.input(index), UNKNOWN).counts
        if node.op != "If" and len(shape) == len(began):
            shape = tuple(
                1 if a is None and b == 1 else a for a, b in zip(shape, began, strict=True)
            )
        inputs.append(replace(value, shape=shape or value.shape))
    return replace(body, inputs=tuple(inputs))


def inline(graph: Graph, node: Node, name: str, arguments: Sequence[str]) -> Graph:
    """Returns the graph with a node's body in place of the node."""
    body: Graph = node.attributes[name]
    names = {value.name: each for value, each in zip(body.inputs, arguments, strict=True)}
    result = [*body.constants, *(each for inner in body.nodes for each in inner.outputs if each)]
    names |= {each: fresh(graph, f"{node.outputs[0]}/{each}") for each in result}
    moved = (replace(inner.rename(names), origin=node.origin) for inner in body.nodes)
    ends = zip(body.outputs, node.outputs, strict=True)
    same = [Node("Identity", (names[v.name],), (to,), {}, node.origin) for v, to in ends if to]
    constants = {names[each]: array for each, array in body.constants.items()}
    return graph.splice((node,), (*moved, *same), constants)
