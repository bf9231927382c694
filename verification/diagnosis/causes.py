"""Which known fault explains a difference: each is tried until one makes it vanish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.core.errors import OnernnError
from onernn.core.graph import Graph, Value
from onernn.core.ragged import Batch
from onernn.core.records import dataclass
from onernn.fuse_passes import fuse
from onernn.verification.comparing import Tolerance, all_pass, largest_difference
from onernn.verification.diagnosis.bias_faults import bias_sources
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.fitting import fitted
from onernn.verification.diagnosis.graph_faults import Hypothesis, graph_faults, with_change
from onernn.verification.diagnosis.weight_faults import clipped, weight_faults
from onernn.verification.graph_changes import recurrent_layers
from onernn.verification.layer_names import expanded, in_words
from onernn.verification.layerwise import Traced
from onernn.verification.tracing import fast_backend, rerun, trace

SECONDS = 60.0
_COUNTING = 2.0
_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""


@dataclass(frozen=True, eq=False)
class Side:
    """A model that may be at fault: its trace, what it gives, and what it should give.

    ``whole``: before fusion; ``feed``: its own inputs; ``other``: the weights of its layers'
    counterparts; ``prefix``: how a cause found here begins; ``is_model``: whether it is what is
    verified, not the reference. ``first``: the y of the first layer that departs, "" where that is
    not known; ``local``: what this layer should make, by name.
    """

    whole: Graph
    traced: Traced
    feed: Mapping[str, Batch]
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    other: Mapping[str, Any]
    prefix: str
    is_model: bool = True
    first: str = ""
    local: Mapping[str, Any] = field(default_factory=dict)


def traced(model: Graph, feed: Mapping[str, Batch]) -> Traced:
    """A model fused, taken apart and run on the NumPy reference."""
    graph, parts = expanded(fuse(model).model)
    return Traced(graph, parts, trace(graph, feed))


@dataclass(frozen=True)
class Search:
    """What a search found, and where it ended without: after how many of the candidates."""

    cause: Cause | None = None
    stopped: str = ""


def find_cause(
    sides: list[Side],
    given: Mapping[str, Batch],
    seconds: float = SECONDS,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Search:
    """The fault that explains why a model's outputs are not the expected ones, if one does.

    Where the first layer that departs is known, faults are looked for in that layer alone, and
    then tried on the whole model. After ``seconds`` nothing further is tried.
    """
    ends = time.monotonic() + seconds
    tried = 0
    candidates = (each for hypotheses in _rounds(sides, given) for each in hypotheses)
    for side, where, hypothesis in candidates:
        if time.monotonic() > ends:
            return Search(None, _stopped(seconds, tried, candidates))
        tried += 1
        progress("looking for the cause", tried, 0)
        if (found := _explained(side, where, hypothesis)) is not None:
            return Search(found)
    for side in sides:
        if (found := _found_clip(side, ends)) is not None:
            return Search(found)
    for refined in (False, True):
        for group in _groups(sides[0], refined):
            for layers, hypothesis in fitted(sides[0].traced, group, sides[0].expected, ends):
                tried += 1
                if found := _explained(sides[0], _where(sides[0], layers), hypothesis):
                    return Search(found)
    return Search(None, _stopped(seconds, tried, iter(())) if time.monotonic() > ends else "")


def _stopped(seconds: float, tried: int, rest: Iterator[Any]) -> str:
    """How a search ended; what is left is counted, for a moment."""
    ends, count, complete = time.monotonic() + _COUNTING, tried + 1, True
    for _ in rest:
        count += 1
        if time.monotonic() > ends:
            complete = False
            break
    of = f"{tried} of {'' if complete else 'more than '}{max(count, tried)} candidates tried"
    return f"search stopped after {seconds:g} s; {of}; --seconds"


def _rounds(
    sides: list[Side], given: Mapping[str, Batch]
) -> Iterator[Iterator[tuple[Side, str, Hypothesis]]]:
    """What explains the first layer apart; then simple explanations, refined ones, biases alone.

    Simple: all layers alike. Refined: some of them.
    """
    for side in sides:
        if side.local:
            yield _localized(side, given)
    for refined in (False, True):
        for side in sides:
            yield _hypotheses(side, given, refined)
    for side in sides:
        yield ((side, where, hypothesis) for where, hypothesis in bias_sources(side.whole))


def _localized(side: Side, given: Mapping[str, Batch]) -> Iterator[tuple[Side, str, Hypothesis]]:
    """The faults that explain the first layer apart, in that layer and in others with it."""
    outputs = tuple(Value(name) for name in side.local)
    parts = {side.first: side.traced.parts[side.first]}
    alone = replace(side.traced, graph=replace(side.traced.graph, outputs=outputs), parts=parts)
    loosest = max(side.tolerances.values(), key=lambda each: each.atol)
    tolerances = dict.fromkeys(side.local, loosest)
    small = replace(side, traced=alone, expected=side.local, tolerances=tolerances)
    likely = {
        (hypothesis.cause, hypothesis.text)
        for _, where, hypothesis in _hypotheses(small, given, False)
        if _explained(small, where, hypothesis) is not None
    }
    for refined in (False, True):
        yield from _hypotheses(side, given, refined, likely)


def _hypotheses(
    side: Side,
    given: Mapping[str, Batch],
    refined: bool,
    only: set[tuple[str, str]] | None = None,
) -> Iterator[tuple[Side, str, Hypothesis]]:
    """Each fault in each group of layers; ``only`` some, and there with the first layer apart."""
    for group in _groups(side, refined):
        if only is not None and side.first not in group:
            continue
        where = _where(side, group)
        for hypothesis in graph_faults(side.traced, group, given):
            if only is None or (hypothesis.cause, hypothesis.text) in only:
                yield side, where, hypothesis
        layers = recurrent_layers(side.traced.graph, group)
        for spec in {rnn.spec.cell: rnn.spec for rnn in layers.values()}.values():
            chosen = [name for name, rnn in layers.items() if rnn.spec.cell is spec.cell]
            for fault in weight_faults(spec):
                if only is not None and (fault.cause, fault.text) not in only:
                    continue
                graph = with_change(side.traced.graph, chosen, fault.change, side.other)
                if graph is not None:
                    yield side, where, Hypothesis(fault.cause, fault.text, graph)


def _where(side: Side, group: tuple[str, ...]) -> str:
    parts = side.traced.parts
    nodes = {part.node for part in parts.values()}
    whole = len(group) == len(parts) and len(nodes) > 1
    return "every recurrent layer" if whole else in_words(parts[name] for name in group)


def _groups(side: Side, refined: bool) -> Iterator[tuple[str, ...]]:
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
    for key in (
        lambda p: (p.node, p.layer),
        lambda p: p.direction,
        lambda p: (p.node, p.direction),
        lambda p: p.node,
        lambda p: (p.node, p.layer, p.direction),
    ):
        kinds: dict[Any, list[str]] = {}
        for name, part in found.parts.items():
            kinds.setdefault(key(part), []).append(name)
        groups += map(tuple, kinds.values())
    for group in groups:
        if frozenset(group) not in seen:
            seen.add(frozenset(group))
            yield group


def _explained(side: Side, where: str, hypothesis: Hypothesis) -> Cause | None:
    worst = _apart(side, hypothesis)
    if worst is None:
        return None
    before = largest_difference(side.traced.values, side.expected)
    if not worst * _BETTER < before:
        return None
    prefix = "" if hypothesis.stated else f"{side.prefix} "
    text = f"{prefix}{hypothesis.text} in {where}"
    known = side.whole if hypothesis.whole else side.traced.graph
    edit = Edit.between(known, hypothesis.graph)
    return Cause(
        hypothesis.cause,
        text,
        where,
        edit.old[0] if edit.old and side.is_model else "",
        edits=(edit,) if side.is_model else (),
        form="read" if hypothesis.whole else "taken apart",
        before=before,
        after=worst,
    )


def _apart(side: Side, hypothesis: Hypothesis) -> float | None:
    """The largest difference from what is expected, where every output passes."""
    try:
        with np.errstate(all="ignore"):
            if hypothesis.whole:
                outputs = trace(expanded(fuse(hypothesis.graph).model)[0], side.feed)
            else:
                outputs = rerun(
                    hypothesis.graph, side.traced.graph, side.traced.values, fast_backend()
                )
    except OnernnError:
        return None
    if not all_pass(outputs, side.expected, side.tolerances):
        return None
    return largest_difference(outputs, side.expected)


def _found_clip(side: Side, ends: float) -> Cause | None:
    """A clip that the model lacks and the reference had: its bound is looked for."""
    for name, what in (
        ("cell_clip", "the cell state is clipped to"),
        ("gate_clip", "gates are clipped to"),
    ):

        def apart(bound: float, name: str = name) -> float:
            graph = with_change(side.traced.graph, side.traced.parts, clipped(name, bound), {})
            if graph is None or time.monotonic() > ends:
                return np.inf
            try:
                outputs = rerun(graph, side.traced.graph, side.traced.values, fast_backend())
            except OnernnError:
                return np.inf
            return largest_difference(outputs, side.expected)

        bounds = np.geomspace(0.01, 30, 33)
        found = [apart(float(b)) for b in bounds]
        best = int(np.argmin(found))
        if not np.isfinite(found[best]):
            continue
        low, high = bounds[max(0, best - 1)], bounds[min(len(bounds) - 1, best + 1)]
        for _ in range(40):  # golden section: the difference falls towards the bound
            left, right = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
            low, high = (low, right) if apart(float(left)) < apart(float(right)) else (left, high)
        bound = float(np.float32((low + high) / 2))
        graph = with_change(side.traced.graph, side.traced.parts, clipped(name, bound), {})
        if graph is not None:
            text = f"{what} [{-bound:.6g}, {bound:.6g}]"
            cause = _explained(
                side,
                _where(side, tuple(side.traced.parts)),
                Hypothesis("clip_ignored", text, graph),
            )
            if cause is not None:
                return cause
    return None
