"""Which known faults explain a difference: each is tried until one makes it vanish, then pairs."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.fuse_passes import fuse
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Value
from onernn.ir.guard import guarded
from onernn.ir.ragged import Batch, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Cell
from onernn.verification.comparing import (
    Tolerance,
    all_pass,
    differences,
    feed_for,
    in_one_form,
    largest_difference,
)
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.faults import clip_fault, layer_faults, rare_faults
from onernn.verification.diagnosis.fitting import Structure, fitted, fitted_outputs
from onernn.verification.diagnosis.graph_faults import (
    GraphFault,
    Site,
    graph_faults,
    in_cells,
    in_graph,
    operator_faults,
    unfused_faults,
)
from onernn.verification.diagnosis.model_diff import read_causes, tested
from onernn.verification.tracing import (
    Traced,
    Values,
    expanded,
    fast_backend,
    in_words,
    matched,
    recurrent_layers,
    rerun,
    trace,
    traced,
)
from onernn.verification.verifying import Evidence, Report

_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""
_PROMISING = 0.7
"""Of the difference without a clip, at the best of the bounds that are tried first."""
_NEAREST = 1500
"""Pairs that are tried before rare faults."""

Causes = tuple[Cause, ...]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Side:
    """A model that may be at fault: its trace, what it gives, and what it should give.

    ``whole``: before fusion; ``feed``: its own inputs; ``given``: all inputs there are, also those
    nobody takes; ``prefix``: how a cause found here begins; ``is_model``: whether it is what is
    verified, not the reference. ``first``: the y of the first layer that departs, "" where that is
    not known; ``local``: what this layer should make, by name. ``few``: the same on few of the
    sentences; ``proves``: what is found there holds on the rest of them, too, where it explains all
    outputs.
    """

    whole: Graph
    traced: Traced
    feed: Mapping[str, Batch]
    given: Mapping[str, Batch]
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    prefix: str
    is_model: bool = True
    first: str = ""
    local: Mapping[str, Any] = field(default_factory=dict)
    few: Side | None = None
    proves: bool = False

    def site(self, group: tuple[str, ...], graph: Graph | None = None) -> Site:
        """Where faults of a group of layers are made: in its graph, or one made of it."""
        found = self.traced
        return Site(graph or found.graph, group, found.parts, found.values, self.given)


class Candidate(NamedTuple):
    """A known fault in these layers; without layers one of `operator_faults`.

    ``ways``: the faults that a reader calls the same. ``where``: the operator. ``numbers``: it is
    of the layers' own numbers and settings, and leaves the nodes around them.
    """

    group: tuple[str, ...]
    fault: GraphFault
    ways: Sequence[GraphFault]
    where: str = ""
    numbers: bool = False

    def made(self, side: Side, graph: Graph, way: GraphFault | None = None) -> Graph | None:
        """The fault in a graph of this side; None where the graph cannot have it."""
        try:
            changed: Graph | None = (way or self.fault).apply(side.site(self.group, graph))
        except OnernnError:  # of values that another fault made otherwise
            return None
        return changed


def candidates(
    side: Side, refined: bool, *, rare: bool = False, only: set[tuple[str, str]] | None = None
) -> Iterator[Candidate]:
    """Each fault in each group of layers; ``only`` some, and there with the first layer apart.

    The frequent ones first, in every group. Without ``refined`` of all layers together, and then
    those of other operators. ``rare``: those that hardly anybody makes instead.
    """
    groups = [
        _of_group(side, group, rare, only)
        for group in groups_of(side, refined)
        if only is None or side.first in group
    ]
    for turn in itertools.zip_longest(*groups):
        yield from filter(None, turn)
    if not refined and only is None and not rare:
        for where, fault in operator_faults(side.traced.graph):
            yield Candidate((), (wrapped := in_graph(fault)), (wrapped,), where)


def _of_group(
    side: Side, group: tuple[str, ...], rare: bool, only: set[tuple[str, str]] | None
) -> Iterator[Candidate]:
    site = side.site(group)
    faults = [] if rare else list(graph_faults(site))
    around = len(faults)
    for spec in {rnn.spec.cell: rnn.spec for rnn in site.layers.values()}.values():
        every = rare_faults(spec) if rare else layer_faults(spec)
        faults += [in_cells(fault, spec.cell) for fault in every]
    ways: dict[tuple[str, str], list[GraphFault]] = {}
    for fault in faults:
        ways.setdefault((fault.id, fault.text), []).append(fault)
    for at, fault in enumerate(faults):
        key = fault.id, fault.text
        if only is None or key in only:
            yield Candidate(group, fault, ways[key], numbers=at >= around)


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


class Search(NamedTuple):
    """The causes that a search found, and how it ended where time ran out."""

    causes: Causes = ()
    stopped: str = ""


class _Step(NamedTuple):
    """A fault, where it is, and the graph without and with it.

    ``stated``: the text says what the model has, not when it matches. ``operator``: it is of no
    recurrent layer. ``whole``: the graphs are the model before fusion.
    """

    fault: Fault[Any]
    where: str
    before: Graph
    after: Graph
    stated: bool = False
    operator: bool = False
    whole: bool = False


def find_causes(
    sides: Sequence[Side], ends: float, seconds: float, progress: Progress = lambda *_: None
) -> Search:
    """The faults that explain why a model's outputs are not the expected ones: one, or two.

    They are looked for on few sentences, where a side has them, and then tried on all. Where the
    first layer that departs is known, faults of that layer come first. ``ends``: the moment, by
    `time.monotonic`, after which nothing further is tried; ``seconds``: what to call that.
    """
    searches = [_Searching(side, ends, progress) for side in sides]
    for stage in _stages(searches):
        for causes in stage:
            if causes:
                return Search(causes)
            if time.monotonic() > ends:
                return Search((), _stopped(searches, seconds))
    return Search()


def _stages(searches: Sequence[_Searching]) -> Iterator[Iterator[Causes]]:
    """What explains the first layer apart; then simple faults, refined ones, pairs, and the rest.

    Simple: of all layers alike. Refined: of some of them.
    """
    pairs = [each.pairs() for each in searches]
    yield from (each.local() for each in searches if each.side.local)
    for refined in (False, True):
        yield from (each.single(candidates(each.few, refined)) for each in searches)
    for each in searches:
        yield each.sources()
        yield each.clips()
    yield from (each.outputs() for each in searches[:1])
    hidden: tuple[Structure, ...] = ("", "reset_placement")
    yield from (searches[0].biases(r, each) for r in (False, True) for each in hidden)
    yield from (itertools.islice(each, _NEAREST) for each in pairs)
    for refined in (False, True):
        yield from (each.single(candidates(each.few, refined, rare=True)) for each in searches)
        yield searches[0].biases(refined, "gates_swapped")
    yield from pairs


def _stopped(searches: Sequence[_Searching], seconds: float) -> str:
    """How a search ended: after how many of the candidates, and of the pairs of them."""
    ways = list(itertools.product((False, True), repeat=2))
    every = [
        sum(1 for refined, rare in ways for _ in candidates(each.few, refined, rare=rare))
        for each in searches
    ]
    tried, paired = (sum(getattr(each, n) for each in searches) for n in ("tried", "paired"))
    text = f"{min(tried, sum(every))} of {sum(every)} candidates tried"
    if paired:
        text += f", and {paired} of {sum(n * (n - 1) // 2 for n in every)} pairs of them"
    return f"search stopped after {seconds:g} s; {text}; --seconds"


class _Searching:
    """A search on one side: how many candidates were tried, and how near each came.

    ``few``: the side on few sentences, where it can be cut.
    """

    def __init__(self, side: Side, ends: float, progress: Progress) -> None:
        self.side, self.few, self.ends, self._progress = side, side.few or side, ends, progress
        self.tried = self.paired = 0
        self._apart: dict[tuple[float, float], Candidate] = {}
        self._still = _distance(self.few, self.few.traced.values)

    def local(self) -> Iterator[Causes]:
        """The faults that explain the first layer apart, in that layer and in others with it."""
        small = alone(self.few)
        likely = set[tuple[str, str]]()
        for each in candidates(small, False):
            made = each.made(small, small.traced.graph)
            if made and _explains(small, made):
                likely.add((each.fault.id, each.fault.text))
            yield ()
        for refined in (False, True):
            yield from self.single(candidates(self.few, refined, only=likely))

    def single(self, every: Iterable[Candidate]) -> Iterator[Causes]:
        """Each candidate alone; how near it comes is kept."""
        for each in every:
            yield self._tried((each,))

    def sources(self) -> Iterator[Causes]:
        """Faults of what fusing makes one with something else."""
        model = self.side.whole
        for place, fault in unfused_faults(model):
            step = _Step(fault, place, model, fault.apply(model), whole=True)
            explains = _explains(self.few, step.after, whole=True)
            yield self._confirmed([(step,)]) if explains else ()

    def clips(self) -> Iterator[Causes]:
        """A clip that the model lacks and the reference had: its bound is looked for."""
        groups = [g for refined in (False, True) for g in groups_of(self.few, refined)]
        for group, name in itertools.product(groups, ("cell_clip", "gate_clip")):
            yield ()
            layers = recurrent_layers(self.few.traced.graph, group).values()
            cells = {rnn.spec.cell for rnn in layers if getattr(rnn.spec, name) is None}
            if name == "cell_clip":
                cells &= {Cell.LSTM}
            for cell in cells:
                bound = self._bound(group, name, cell)
                if bound is not None:
                    fault = in_cells(clip_fault(name, bound), cell)
                    yield self._tried((Candidate(group, fault, (fault,), numbers=True),))

    def biases(self, refined: bool, structure: Structure) -> Iterator[Causes]:
        """Biases of layers that the outputs tell: of few sentences, or of all."""
        for group, at in itertools.product(groups_of(self.few, refined), self._batches()):
            yield ()
            for layers, fault in fitted(at.traced, group, at.expected, self.ends, structure):
                graph = at.traced.graph
                made = fault.apply(graph)
                place = where(at, layers, graph, made)
                step = _Step(fault, place, graph, made, stated=not structure)
                yield self._confirmed([(step,)], at is self.few) if _explains(at, made) else ()

    def outputs(self) -> Iterator[Causes]:
        """Biases of products that the outputs tell."""
        for at in self._batches():
            yield ()
            for place, fault in fitted_outputs(at.traced, at.expected, self.ends):
                graph = at.traced.graph
                step = _Step(fault, place, graph, fault.apply(graph), operator=True)
                explains = _explains(at, step.after)
                yield self._confirmed([(step,)], at is self.few) if explains else ()

    def _batches(self) -> Iterable[Side]:
        return dict.fromkeys((self.few, self.side))

    def pairs(self) -> Iterator[Causes]:
        """Two faults, those first of which each alone comes near to what is expected."""
        near = self._nearest()
        waiting = [(_order(at, at + 1), at, at + 1) for at in range(len(near) - 1)]
        while waiting:
            _, one, other = heapq.heappop(waiting)
            if other + 1 < len(near):
                heapq.heappush(waiting, (_order(one, other + 1), one, other + 1))
            self.paired += 1
            yield self._tried((near[one], near[other]))

    def _nearest(self) -> list[Candidate]:
        """The candidates that change something, by the better of two ranks.

        Candidates that are equally far in both are the same function.
        """
        every = [(apart, c) for apart, c in self._apart.items() if apart != self._still]
        ranks = [
            {id(c): at for at, (_, c) in enumerate(sorted(every, key=lambda e: e[0][measure]))}
            for measure in (0, 1)
        ]
        return sorted((c for _, c in every), key=lambda c: min(rank[id(c)] for rank in ranks))

    def _tried(self, chosen: tuple[Candidate, ...]) -> Causes:
        """The causes, where these faults together explain all outputs."""
        chosen = tuple(sorted(chosen, key=lambda each: not each.numbers))
        self._progress("looking for the cause", self.tried + self.paired, 0)
        self.tried += len(chosen) == 1
        graph: Graph | None = self.few.traced.graph
        for each in chosen:
            graph = graph and each.made(self.few, graph)
        outputs = None if graph is None else _outputs(self.few, graph)
        if outputs is None:
            return ()
        if _passes(self.few, outputs):
            return self._confirmed(_chains(self.side, chosen, self.side.traced.graph))
        if len(chosen) == 1:
            self._apart.setdefault(_distance(self.few, outputs), chosen[0])
        return ()

    def _confirmed(self, chains: Iterable[tuple[_Step, ...]], proves: bool = True) -> Causes:
        """The causes, in the first of these ways that explains the whole batch."""
        side = self.side
        for steps in chains:
            outputs = _outputs(side, steps[-1].after, steps[-1].whole)
            if outputs is not None and _passes(side, outputs):
                before = largest_difference(side.traced.values, side.expected)
                after = largest_difference(outputs, side.expected)
                sure = proves and side.proves
                found = (_cause(side, step, sure) for step in steps)
                return tuple(replace(each, before=before, after=after) for each in found)
        return ()

    def _bound(self, group: tuple[str, ...], name: str, cell: Cell) -> float | None:
        """Of a clip that comes nearest to what is expected; None where none comes near."""
        side = self.few

        def apart(bound: float) -> float:
            graph = in_cells(clip_fault(name, bound), cell).apply(side.site(group))
            if graph is None or time.monotonic() > self.ends:
                return np.inf
            outputs = _outputs(side, graph)
            return np.inf if outputs is None else largest_difference(outputs, side.expected)

        bounds = np.geomspace(0.01, 30, 17)
        found = [apart(float(b)) for b in bounds]
        best = int(np.argmin(found))
        if not found[best] < _PROMISING * largest_difference(side.traced.values, side.expected):
            return None
        low, high = bounds[max(0, best - 1)], bounds[min(len(bounds) - 1, best + 1)]
        for _ in range(40):  # golden section: the difference falls towards the bound
            left, right = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
            low, high = (low, right) if apart(float(left)) < apart(float(right)) else (left, high)
        return float(np.float32((low + high) / 2))


def _order(one: int, other: int) -> float:
    """When two ranks have their turn: the nearest of all with far more others than the tenth."""
    return float((one + 1) ** 1.5 * (other + 1))


def _chains(side: Side, chosen: Sequence[Candidate], graph: Graph) -> Iterator[tuple[_Step, ...]]:
    """The faults one behind the other, in each way that they can be made."""
    if not chosen:
        yield ()
        return
    first = chosen[0]
    for way in first.ways:
        if (made := first.made(side, graph, way)) is not None:
            place = first.where or where(side, first.group, graph, made)
            step = _Step(way, place, graph, made, operator=bool(first.where))
            for rest in _chains(side, chosen[1:], made):
                yield (step, *rest)


def _cause(side: Side, step: _Step, proved: bool) -> Cause:
    """``proved``: on sentences of a batch, so that edits that hold a batch's numbers are none."""
    edit = Edit.between(step.before, step.after)
    bound = proved and edit.constants and not step.whole and not step.operator
    prefix = "" if step.stated else f"{side.prefix} "
    return Cause(
        step.fault.id,
        f"{prefix}{step.fault.text} in {step.where}",
        step.where,
        edit.old[0] if edit.old and side.is_model else "",
        "proved" if proved else "candidate",
        (edit,) if side.is_model and not bound else (),
        "read" if step.whole else "taken apart",
    )


def _outputs(side: Side, graph: Graph, whole: bool = False) -> Values | None:
    """What a side gives with a fault; None where it does not run. ``whole``: before fusion."""
    try:
        with np.errstate(all="ignore"):
            if whole:
                return trace(expanded(fuse(graph).model)[0], side.feed, fast_backend())
            return rerun(graph, side.traced.graph, side.traced.values, fast_backend())
    except OnernnError:
        return None


def _explains(side: Side, graph: Graph, whole: bool = False) -> bool:
    outputs = _outputs(side, graph, whole)
    return outputs is not None and _passes(side, outputs)


def _passes(side: Side, outputs: Values) -> bool:
    """Whether every output passes, and was much farther apart before."""
    if not all_pass(outputs, side.expected, side.tolerances):
        return False
    before = largest_difference(side.traced.values, side.expected)
    return largest_difference(outputs, side.expected) * _BETTER < before


def _distance(side: Side, outputs: Values) -> tuple[float, float]:
    """From what is expected: the mean logarithm, small where many numbers match, and square."""
    logarithm = square = 0.0
    for name, want in side.expected.items():
        one, other = (data_of(v) for v in in_one_form(outputs[name], want))
        if one.shape != other.shape or not one.size:
            return np.inf, np.inf
        apart = np.minimum(differences(one, other), 1e30) / (side.tolerances[name].atol or 1.0)
        logarithm += float(np.log1p(apart).mean())
        square += float(np.square(apart).mean())
    return logarithm, square


# --- why a model's outputs are not the reference's: the causes that a report gives


def explained(report: Report, seconds: float, progress: Progress) -> Report:
    """A failed report with the causes, as far as ``seconds`` allow, and what stopped the search."""
    evidence = report.evidence
    assert evidence is not None  # of a Report that `verify` made
    progress("tracing the model", 0, 1)
    try:
        sides = _sides(evidence)
    except OnernnError as error:  # a verdict stands without its explanation
        return replace(report, notes=(*report.notes, f"not explained: {error}"))
    if not seconds:
        return report
    if not sides:
        note = "the NumPy reference gives what is expected: the fault is in the kernel that ran"
        return replace(report, notes=(*report.notes, note))
    try:
        with guarded(lambda: "the search for a cause"):
            return _with_causes(report, evidence, sides, seconds, progress)
    except OnernnError as error:
        return replace(report, stopped=f"not explained: {error}")


def _with_causes(
    report: Report, evidence: Evidence, sides: list[Side], seconds: float, progress: Progress
) -> Report:
    progress("comparing both models", 0, 1)
    ends = time.monotonic() + seconds
    if causes := read_causes(evidence, ends):
        late = time.monotonic() > ends and any(c.evidence == "candidate" for c in causes)
        few = f"search stopped after {seconds:g} s: fewer of these may be the causes; --seconds"
        return replace(report, causes=causes, stopped=few if late else "")
    found = find_causes(_cut(sides, evidence), ends, seconds, progress)
    causes = tuple(tested(evidence, cause) for cause in found.causes)
    return replace(report, causes=causes, stopped=found.stopped)


def _cut(sides: list[Side], evidence: Evidence) -> list[Side]:
    """The sides, with what they are on few sentences where the batch can be cut."""
    given, mine = {**evidence.given, **evidence.inputs}, evidence.mine
    cut = cut_batch(mine.graph, given, mine.values, evidence.expected, evidence.tolerances)
    if cut is None:
        return sides
    reference, there = evidence.reference, None
    kept = {name: batch for name, batch in cut.given.items() if name in evidence.given}
    if reference.graph is not None:
        feed, _ = feed_for(reference.graph.inputs, kept, "the reference")
        there = traced(reference.graph, feed, fast_backend())
        reference = replace(reference, feed=feed)
    few = replace(
        evidence,
        reference=reference,
        given=kept,
        inputs={name: cut.given[name] for name in evidence.inputs},
        expected=cut.expected,
        tolerances=cut.tolerances,
        runs=(replace(mine, values=cut.values), there),
    )
    small = {side.is_model: side for side in _sides(few)}
    return [replace(s, few=small.get(s.is_model), proves=cut.proves) for s in sides]


def _sides(evidence: Evidence) -> list[Side]:
    """The model, and the reference, which may have a fault that makes it give what the model gives.

    None where all values of the model's run are as expected.
    """
    mine, other = evidence.mine, evidence.theirs
    if all_pass(mine.values, evidence.expected, evidence.tolerances):
        return []
    given = {**evidence.given, **evidence.reference.feed, **evidence.inputs}
    apart = (each for each in evidence.layers if each.part and not each.comparison.passed)
    first = next(((each.value, each.reference) for each in apart), ("", ""))
    pairs = [
        (Recurrent.of(one), Recurrent.of(two))
        for one, two in (matched(mine, other) if other is not None else ())
        if one.op == two.op == "Rnn"
    ]
    model = Side(
        evidence.model,
        mine,
        evidence.inputs,
        given,
        evidence.expected,
        evidence.tolerances,
        "matches when",
        True,
        first[0],
        _counterpart(pairs, first[0], other),
    )
    graph = evidence.reference.graph
    if other is None or graph is None or not other.values.keys() >= set(evidence.names.values()):
        return [model]
    reference = Side(
        graph,
        other,
        evidence.reference.feed,
        given,
        {theirs: mine.values[name] for name, theirs in evidence.names.items()},
        {theirs: evidence.tolerances[name] for name, theirs in evidence.names.items()},
        "the reference gives what the model gives when, in it,",
        False,
        first[1],
        _counterpart([(two, one) for one, two in pairs], first[1], mine),
    )
    passes = all_pass(other.values, reference.expected, reference.tolerances)
    return [model] if passes else [model, reference]


def _counterpart(
    pairs: Sequence[tuple[Recurrent, Recurrent]], name: str, other: Traced | None
) -> dict[str, Any]:
    """What the layer of this name should make: what its counterpart makes, by its own names."""
    return {
        own: other.values[their]
        for one, two in pairs
        if other is not None and one.y == name
        for own, their in zip((one.y, *one.finals), (two.y, *two.finals), strict=False)
        if own and their
    }
