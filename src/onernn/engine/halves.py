"""Operators on float16 compute in float32, and round their results: as `Operator.run` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onernn.ir.graph import Graph, Node
from onernn.ir.types import Type
from onernn.ops import OPERATORS

_MOVE = ("view", "moves", "sizes", "control", "layer")


def widened(graph: Graph) -> Graph:
    """The graph with casts around operators that compute; those that move numbers stay."""
    types = graph.types
    if all(found.dtype != "float16" for found in types.values()):
        return graph
    taken, nodes = set(types), list[Node]()

    def new(name: str) -> str:
        name = f"{name}.float32"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for node in graph.nodes:
        if not _computes(node, types):
            nodes.append(node)
            continue
        halves = [name for name in node.inputs if name and types[name].dtype == "float16"]
        wide = {name: new(name) for name in dict.fromkeys(halves)}
        made = {name: new(name) for name in node.outputs if name and types[name].dtype == "float16"}
        nodes += [Node("Cast", (name,), (to,), {"to": "float32"}) for name, to in wide.items()]
        inputs = tuple(wide.get(name, name) for name in node.inputs)
        outputs = tuple(made.get(name, name) for name in node.outputs)
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
        nodes += [Node("Cast", (name,), (to,), {"to": "float16"}) for to, name in made.items()]
    return replace(graph, nodes=tuple(nodes))


def _computes(node: Node, types: Mapping[str, Type]) -> bool:
    """Whether a node makes new numbers of halves and of no wider ones."""
    record = OPERATORS.get(node.op)
    if record is None or record.kind in _MOVE or node.op in ("Cast", "CastLike"):
        return False
    dtypes = {types[name].dtype or "" for name in node.inputs if name}
    return {dtype for dtype in dtypes if dtype[:5] in ("", "float")} == {"float16"}
