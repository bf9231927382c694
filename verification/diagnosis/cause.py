"""What a diagnosis gives: causes with their evidence, and the edits of a graph that undo them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.records import dataclass
from onernn.fuse_passes import fuse
from onernn.verification.diagnosis.advice import ADVICE
from onernn.verification.layer_names import expanded

Form = Literal["read", "taken apart"]
"""The graph that edits change: the model as it was read, or fused and one direction a node."""


@dataclass(frozen=True, eq=False)
class Edit:
    """Some nodes of a graph, by their first outputs, and what stands in their place.

    ``inputs``: those that the graph takes besides.
    """

    old: tuple[str, ...]
    new: tuple[Node, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[Value, ...] = ()

    @classmethod
    def between(cls, graph: Graph, other: Graph) -> Edit:
        """What makes ``other`` of a graph that shares the nodes that stay with it."""
        kept = {id(node) for node in graph.nodes} & {id(node) for node in other.nodes}
        names = {value.name for value in graph.inputs}
        return cls(
            tuple(n.outputs[0] for n in graph.nodes if id(n) not in kept),
            tuple(n for n in other.nodes if id(n) not in kept),
            {k: a for k, a in other.constants.items() if graph.constants.get(k) is not a},
            tuple(value for value in other.inputs if value.name not in names),
        )

    def meets(self, other: Edit) -> bool:
        """Whether both change the same node."""
        return not set(self.old).isdisjoint(other.old)


def edited(graph: Graph, edits: Iterable[Edit]) -> Graph:
    """The graph with all edits, its nodes in an order in which they can run.

    Raises `ModelFormatError` where edits contradict each other.
    """
    chosen = list(dict.fromkeys(edits))
    gone = {name for edit in chosen for name in edit.old}
    nodes = {node.outputs[0]: node for node in graph.nodes if node.outputs[0] not in gone}
    inputs = {value.name: value for value in graph.inputs}
    constants = dict(graph.constants)
    for edit in chosen:
        nodes |= {node.outputs[0]: node for node in edit.new}
        inputs |= {value.name: value for value in edit.inputs}
        constants |= edit.constants
    return in_order(graph, nodes.values(), inputs.values(), constants)


def in_order(
    graph: Graph, nodes: Iterable[Node], inputs: Iterable[Value], constants: Mapping[str, Array]
) -> Graph:
    """The graph with these nodes, in an order in which they can run, and only what outputs need.

    Raises `ModelFormatError` where there is no such order.
    """
    values, waiting, ordered = tuple(inputs), list(nodes), list[Node]()
    known = {"", *constants, *(value.name for value in values)}
    while waiting:
        later = []
        for node in waiting:
            if known.issuperset(node.inputs):
                ordered.append(node)
                known.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            ordered += later  # Graph tells what is missing
            break
        waiting = later
    return replace(graph, nodes=tuple(ordered), inputs=values, constants=constants).pruned()


@dataclass(frozen=True, eq=False)
class Cause:
    """A fault that explains why outputs differ.

    ``id``: one of `ADVICE`. ``text``: what is so, after "the model". ``where``: the layer or
    operator. ``node``: the first output of the node in the model, "" where there is none.
    ``evidence``: "proved" where with the edits of all causes of a report the outputs match, also on
    batches that were not used to find them; else "candidate". ``edits``: of the model in the
    ``form``; none where a fault can be shown in the reference only. ``before``, ``after``: the
    largest difference, as a part of the largest value.
    """

    id: str
    text: str
    where: str = ""
    node: str = ""
    evidence: Literal["proved", "candidate"] = "candidate"
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    form: Form = "taken apart"
    before: float = np.nan
    after: float = np.nan

    @property
    def advice(self) -> str:
        return ADVICE.get(self.id, "")

    def as_json(self) -> dict[str, Any]:
        """``{"id", "text", "evidence", "where", "node", "advice"}``."""
        keys = ("id", "text", "evidence", "where", "node", "advice")
        return {key: getattr(self, key) for key in keys}


def repaired(model: Graph, causes: Iterable[Cause]) -> Graph:
    """The model without these faults: an edit of the graph as it was read, or of its fused form.

    Raises `UnsupportedError` where one is only a candidate or cannot be undone in the model.
    """
    found = list(causes)
    for cause in found:
        if cause.evidence != "proved":
            raise UnsupportedError(f"only a candidate: {cause.text}")
        if not cause.edits:
            raise UnsupportedError(f"it cannot be undone in the model: {cause.text}")
    if all(cause.form == "read" for cause in found):
        graph = model
    elif all(cause.form == "taken apart" for cause in found):
        graph = expanded(fuse(model).model)[0]
    else:
        raise UnsupportedError("the causes are of different forms of the model")
    return edited(graph, (edit for cause in found for edit in cause.edits))
