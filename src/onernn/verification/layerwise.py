"""Two models node by node: where the first difference appears."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from onernn.fuse_passes import fuse
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.verification.aligning import in_one_form
from onernn.verification.comparing import OutputComparison, Tolerance, compare
from onernn.verification.layer_names import LayerName, expanded
from onernn.verification.tracing import Values, trace

_MOST = 3000
"""Longer lists of nodes are not matched: it takes their product."""


@dataclass(frozen=True)
class NodeComparison:
    """A pair of matched nodes: what they are called in both models, and how they compare.

    ``reads``: whether what both read agrees, so that a difference is their own.
    """

    op: str
    native: str
    value: str
    reference: str
    part: LayerName | None
    comparison: OutputComparison
    reads: bool = True

    def __str__(self) -> str:
        return str(self.part) if self.part else self.native


@dataclass(frozen=True, eq=False)
class Traced:
    """A graph taken apart, what each of its Rnn nodes is, and all values of a run."""

    graph: Graph
    parts: dict[str, LayerName]
    values: Values


def traced(model: Graph, feed: Mapping[str, Batch], backend: str = "reference") -> Traced:
    """A model fused, taken apart and run."""
    graph, parts = expanded(fuse(model).model)
    return Traced(graph, parts, trace(graph, feed, backend))


def layers(model: Traced, reference: Traced, tolerance: Tolerance) -> tuple[NodeComparison, ...]:
    """All matched nodes in the model's order, compared; ones whose operators are alike.

    Recurrent nodes are matched with each other in order where there are equally many; the rest
    by the longest runs of equal operators between them.
    """
    return tuple(
        _compared(model, reference, one, other, tolerance)
        for one, other in matched(model, reference)
        if one.op == "Rnn" or "@" not in one.outputs[0]  # not what expanding added
    )


def matched(model: Traced, reference: Traced) -> list[tuple[Node, Node]]:
    """Nodes of both graphs that do the same, in order."""
    sides = [[n for n in t.graph.nodes if n.outputs[0] in t.values] for t in (model, reference)]
    rnns = [[n for n in nodes if n.op == "Rnn"] for nodes in sides]
    if len(rnns[0]) == len(rnns[1]) and all(
        _kind(a) == _kind(b) for a, b in zip(*rnns, strict=True)
    ):
        pairs: list[tuple[Node, Node]] = []
        pieces = [list(_between(nodes)) for nodes in sides]
        for k, (mine, theirs) in enumerate(zip(*pieces, strict=True)):
            pairs += _runs(mine, theirs)
            if k < len(rnns[0]):
                pairs.append((rnns[0][k], rnns[1][k]))
        return pairs
    return _runs(*sides)


def _kind(node: Node) -> tuple[Any, ...]:
    spec = node.attributes["spec"]
    family = "gru" if spec.cell.is_gru else spec.cell.name
    return (family, spec.hidden_size, spec.recurrent_size)


def _between(nodes: list[Node]) -> Iterator[list[Node]]:
    """What stands before, between and behind the recurrent nodes."""
    piece: list[Node] = []
    for node in nodes:
        if node.op == "Rnn":
            yield piece
            piece = []
        else:
            piece.append(node)
    yield piece


def _runs(mine: list[Node], theirs: list[Node]) -> list[tuple[Node, Node]]:
    if len(mine) > _MOST or len(theirs) > _MOST:
        return []
    blocks = SequenceMatcher(
        None, [n.op for n in mine], [n.op for n in theirs], autojunk=False
    ).get_matching_blocks()
    return [(mine[b.a + k], theirs[b.b + k]) for b in blocks for k in range(b.size)]


def _compared(
    model: Traced, reference: Traced, mine: Node, theirs: Node, tolerance: Tolerance
) -> NodeComparison:
    name, other = mine.outputs[0], theirs.outputs[0]
    verdict: OutputComparison | None = None
    for own, their in zip(mine.outputs, theirs.outputs, strict=False):
        if own not in model.values or their not in reference.values:
            continue
        one, two = in_one_form(model.values[own], reference.values[their])
        if isinstance(one, Ragged) and isinstance(two, Ragged) and one.lod != two.lod:
            pass  # told as it is
        elif data_of(one).shape != data_of(two).shape and data_of(one).size == data_of(two).size:
            two = np.reshape(data_of(two), data_of(one).shape) if _flat(one, two) else two
        each = compare(own, one, two, tolerance)
        if verdict is None or (verdict.passed and not each.passed):
            verdict = each
    assert verdict is not None  # every matched node has a first value
    return NodeComparison(mine.op, mine.native, name, other, model.parts.get(name), verdict)


def _flat(one: Any, two: Any) -> bool:
    """Whether shapes differ in axes of size 1 only."""
    sizes = [[s for s in data_of(v).shape if s != 1] for v in (one, two)]
    return sizes[0] == sizes[1] and not isinstance(two, Ragged)
