"""The known faults of a model's layers, in groups of them, each to be made in a graph by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from onernn.core.graph import Graph, Value
from onernn.core.ragged import Batch
from onernn.core.records import dataclass
from onernn.core.spec import Cell
from onernn.fuse_passes import fuse
from onernn.verification.comparing import Tolerance
from onernn.verification.diagnosis.gate_faults import Change
from onernn.verification.diagnosis.graph_faults import Hypothesis, graph_faults, with_change
from onernn.verification.diagnosis.operator_faults import operator_faults
from onernn.verification.diagnosis.weight_faults import weight_faults
from onernn.verification.graph_changes import recurrent_layers
from onernn.verification.layer_names import expanded, in_words
from onernn.verification.layerwise import Traced
from onernn.verification.tracing import trace


@dataclass(frozen=True, eq=False)
class Side:
    """A model that may be at fault: its trace, what it gives, and what it should give.

    ``whole``: before fusion; ``feed``: its own inputs; ``given``: all inputs there are, also those
    nobody takes; ``other``: the weights of its layers' counterparts; ``prefix``: how a cause found
    here begins; ``is_model``: whether it is what is verified, not the reference. ``first``: the y
    of the first layer that departs, "" where that is not known; ``local``: what this layer should
    make, by name. ``few``: the same on few of the sentences; ``proves``: what is found there holds
    on the rest of them, too, where it explains all outputs.
    """

    whole: Graph
    traced: Traced
    feed: Mapping[str, Batch]
    given: Mapping[str, Batch]
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    other: Mapping[str, Any]
    prefix: str
    is_model: bool = True
    first: str = ""
    local: Mapping[str, Any] = field(default_factory=dict)
    few: Side | None = None
    proves: bool = False


def traced(model: Graph, feed: Mapping[str, Batch], backend: str = "reference") -> Traced:
    """A model fused, taken apart and run."""
    graph, parts = expanded(fuse(model).model)
    return Traced(graph, parts, trace(graph, feed, backend))


class Candidate(NamedTuple):
    """A known fault in these layers, by what it is called.

    Without layers it is one of `operator_faults`, and ``place`` the operator. ``change``: of each
    layer; None where it is one of `graph_faults`. ``turn``: which of those that are called alike.
    ``rare``: to be tried after all others.
    """

    group: tuple[str, ...]
    cause: str
    text: str
    turn: int = 0
    change: Change | None = None
    rare: bool = False
    place: str = ""

    def all_made(self, side: Side, graph: Graph) -> list[Hypothesis]:
        """The fault in a graph of this side that has the layers, in each way of that name."""
        if self.change is not None:
            cells = [_cells(each, self.group) for each in (graph, side.traced.graph)]
            if cells[0] != cells[1]:  # another fault made other layers of them
                return []
            made = with_change(graph, self.group, self.change, side.other)
            return [] if made is None else [Hypothesis(self.cause, self.text, made)]
        known = replace(side.traced, graph=graph)
        every = (
            graph_faults(known, self.group, side.given) if self.group else operator_faults(graph)
        )
        called = (self.cause, self.text, self.place)
        return [each for each in every if (each.cause, each.text, each.place) == called]

    def made(self, side: Side, graph: Graph) -> Hypothesis | None:
        """The fault in a graph of this side; None where the graph cannot have it."""
        every = self.all_made(side, graph)
        return every[self.turn] if self.turn < len(every) else None


def around(side: Side) -> Iterator[Candidate]:
    """The faults of operators that are no recurrent layers."""
    seen: dict[tuple[str, ...], int] = {}
    for fault in operator_faults(side.traced.graph):
        key = (fault.cause, fault.text, fault.place)
        seen[key] = seen.get(key, -1) + 1
        yield Candidate((), fault.cause, fault.text, seen[key], place=fault.place)


def candidates(
    side: Side, refined: bool, only: set[tuple[str, str]] | None = None
) -> Iterator[Candidate]:
    """Each fault in each group of layers; ``only`` some, and there with the first layer apart.

    The frequent ones first, in every group. Without ``refined`` of all layers together, and then
    those of other operators.
    """
    groups = [
        _of_group(side, group, only)
        for group in groups_of(side, refined)
        if only is None or side.first in group
    ]
    for turn in itertools.zip_longest(*groups):
        yield from filter(None, turn)
    if not refined and only is None:
        yield from around(side)


def _of_group(
    side: Side, group: tuple[str, ...], only: set[tuple[str, str]] | None
) -> Iterator[Candidate]:
    seen: dict[tuple[str, str], int] = {}
    for fault in graph_faults(side.traced, group, side.given):
        key = (fault.cause, fault.text)
        seen[key] = seen.get(key, -1) + 1
        if only is None or key in only:
            yield Candidate(group, *key, seen[key])
    layers = recurrent_layers(side.traced.graph, group)
    for spec in {rnn.spec.cell: rnn.spec for rnn in layers.values()}.values():
        chosen = tuple(name for name, rnn in layers.items() if rnn.spec.cell is spec.cell)
        for change in weight_faults(spec):
            if only is None or (change.cause, change.text) in only:
                yield Candidate(chosen, change.cause, change.text, 0, *change[2:])


def _cells(graph: Graph, group: tuple[str, ...]) -> dict[str, Cell]:
    return {name: rnn.spec.cell for name, rnn in recurrent_layers(graph, group).items()}


def alone(side: Side) -> Side:
    """The first layer apart, as if it were all of the model."""
    outputs = tuple(Value(name) for name in side.local)
    parts = {side.first: side.traced.parts[side.first]}
    graph = replace(side.traced.graph, outputs=outputs)
    loosest = max(side.tolerances.values(), key=lambda each: each.atol)
    return replace(
        side,
        traced=replace(side.traced, graph=graph, parts=parts),
        expected=side.local,
        tolerances=dict.fromkeys(side.local, loosest),
    )


def where(side: Side, group: tuple[str, ...], before: Graph, after: Graph) -> str:
    """Those layers of a group that a change is about, as a reader knows them."""
    kept = {id(node) for node in before.nodes}
    nodes = [(node.outputs[0], id(node) in kept) for node in after.nodes]
    changed = tuple(name for name in group if (name, False) in nodes) or group
    parts = side.traced.parts
    places = {part.node for part in parts.values()}
    whole = len(changed) == len(parts) and len(places) > 1
    return "every recurrent layer" if whole else in_words(parts[name] for name in changed)


def groups_of(side: Side, refined: bool) -> Iterator[tuple[str, ...]]:
    """Layers that may share a fault: all; then each layer, direction and part of its own."""
    found = side.traced
    names = tuple(found.parts)
    if not refined:
        if names:
            yield names
        return
    seen = {frozenset(names)}
    groups: list[tuple[str, ...]] = []
    if side.first in found.parts:
        groups.append((side.first,))
    keys: tuple[Callable[[Any], Any], ...] = (
        lambda p: (p.node, p.layer),
        lambda p: p.direction,
        lambda p: (p.node, p.direction),
        lambda p: p.node,
        lambda p: (p.node, p.layer, p.direction),
    )
    for key in keys:
        kinds: dict[Any, list[str]] = {}
        for name, part in found.parts.items():
            kinds.setdefault(key(part), []).append(name)
        groups += map(tuple, kinds.values())
    for group in groups:
        if frozenset(group) not in seen:
            seen.add(frozenset(group))
            yield group
