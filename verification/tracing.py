"""Runs of a graph that keep every value, and runs again of what a change reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from onernn.backend import open_backend
from onernn.core.errors import LibraryError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Batch, Ragged
from onernn.runtime.session import Session

Values = Mapping[str, Any]


def trace(graph: Graph, feed: Mapping[str, Batch], backend: str = "reference") -> dict[str, Any]:
    """Every value of a run by name, inputs included; nothing is fused."""
    values: dict[str, Any] = dict(feed)

    def keep(node: Node, results: tuple[Any, ...], _: float) -> None:
        values.update((name, v) for name, v in zip(node.outputs, results, strict=False) if name)

    values.update(Session(graph, backend=backend, passes=()).run(feed, keep))
    return values


def rerun(graph: Graph, known: Graph, values: Values, backend: str = "reference") -> dict[str, Any]:
    """The outputs of a graph that differs from a ``known`` one with these values in some nodes.

    Only the nodes that are new, and those behind them, are run.
    """
    old = set(map(id, known.nodes))
    changed: set[str] = set()
    nodes = []
    for node in graph.nodes:
        if id(node) not in old or not changed.isdisjoint(node.inputs):
            nodes.append(node)
            changed.update(filter(None, node.outputs))
    return run_nodes(graph, nodes, values, backend)


def run_nodes(
    graph: Graph, nodes: list[Node], values: Values, backend: str = "reference"
) -> dict[str, Any]:
    """The outputs of a graph of which only these nodes are to be run; the rest is known."""
    made = {name for node in nodes for name in node.outputs if name}
    read = {name for node in nodes for name in node.inputs if name} - made
    taken = {name: values[name] for name in sorted(read - set(graph.constants))}
    wanted = tuple(value for value in graph.outputs if value.name in made)
    part = replace(
        graph,
        inputs=tuple(Value(name, lod_depth=_depth(value)) for name, value in taken.items()),
        outputs=wanted,
        nodes=tuple(nodes),
    ).pruned()
    found = Session(part, backend=backend, passes=()).run(taken) if wanted else {}
    return {
        each.name: found[each.name]
        if each.name in found
        else values.get(each.name, graph.constants.get(each.name))
        for each in graph.outputs
    }


@cache
def fast_backend() -> str:
    """What many runs for a search use: oneDNN where its library is, else the reference."""
    try:
        open_backend("onednn")
    except LibraryError:
        return "reference"
    return "onednn"


def _depth(value: Any) -> int:
    return len(value.outer) + 1 if isinstance(value, Ragged) else 0
