"""A search for known faults that explain a difference: each is tried, then pairs of them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.fuse_passes import fuse
from onernn.ir.errors import OnernnError, guarded
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell
from onernn.verification.comparing import (
    all_pass,
    differences,
    in_one_form,
    largest_difference,
)
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.differences import Trial
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
    Values,
    expanded,
    fast_backend,
    in_words,
    recurrent_layers,
    trace,
)
from onernn.verification.verifying import Evidence, Report

_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""
_PROMISING = 0.7
"""The difference at the best bound must fall to this part of that without a clip."""
_NEAREST = 1500
"""Pairs that are tried before rare faults."""

Causes = tuple[Cause, ...]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Side(Trial):
    """The model that is at fault.

    ``whole``: before fusion; ``feed``: its own inputs; ``all_inputs``: also those that it does not
    take. ``few``: the same on few of the sequences; ``proves``: causes that are
    found there and explain all outputs hold on the other sequences, too.
    """

    whole: Graph
    feed: Mapping[str, Batch]
    all_inputs: Mapping[str, Batch]
    few: Side | None = None
    proves: bool = False

    def site(self, group: tuple[str, ...], graph: Graph | None = None) -> Site:
        """The place for faults of a group of layers: in its graph, or one derived from it."""
        return Site(graph or self.graph, group, self.parts, self.values, self.all_inputs)

    def outputs_of_whole(self, graph: Graph) -> Values | None:
        """The outputs of a changed ``whole``; None if it cannot run."""
        try:
            with np.errstate(all="ignore"):
                return trace(expanded(fuse(graph).model)[0], self.feed, fast_backend())
        except OnernnError:
            return None

    def explained_by(self, outputs: Values | None) -> bool:
        """Whether every output passes, and was much farther apart before."""
        if outputs is None or not all_pass(outputs, self.expected, self.tolerances):
            return False
        return largest_difference(outputs, self.expected) * _BETTER < self.before

    def apart(self, outputs: Values) -> tuple[float, float]:
        """From what is expected: the mean logarithm, small where many numbers match, and square."""
        logarithm = square = 0.0
        for name, want in self.expected.items():
            one, other = (data_of(v) for v in in_one_form(outputs[name], want))
            if one.shape != other.shape or not one.size:
                return np.inf, np.inf
            far = np.minimum(differences(one, other), 1e30) / (self.tolerances[name].atol or 1.0)
            logarithm += float(np.log1p(far).mean())
            square += float(np.square(far).mean())
        return logarithm, square


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

    def applied_to(self, side: Side, graph: Graph, way: GraphFault | None = None) -> Graph | None:
        """The fault in a graph of this side; None if the graph cannot have it."""
        try:
            changed: Graph | None = (way or self.fault).apply(side.site(self.group, graph))
        except OnernnError:  # of values that another fault made otherwise
            return None
        return changed


def candidates(side: Side, refined: bool, *, rare: bool = False) -> Iterator[Candidate]:
    """Each fault in each group of layers, the frequent ones first in every group.

    Without ``refined`` of all layers together, and then those of other operators. ``rare``: the
    least frequent ones instead.
    """
    groups = [_of_group(side, group, rare) for group in groups_of(side, refined)]
    for turn in itertools.zip_longest(*groups):
        yield from filter(None, turn)
    if not refined and not rare:
        for where, fault in operator_faults(side.graph):
            yield Candidate((), (wrapped := in_graph(fault)), (wrapped,), where)


def _of_group(side: Side, group: tuple[str, ...], rare: bool) -> Iterator[Candidate]:
    site = side.site(group)
    faults = [] if rare else list(graph_faults(site))
    around = len(faults)
    for spec in {rnn.spec.cell: rnn.spec for rnn in site.layers.values()}.values():
        every = rare_faults(spec) if rare else layer_faults(spec)
        faults += [in_cells(fault, spec.cell) for fault in every]
    ways: dict[tuple[str, str], list[GraphFault]] = {}
    for fault in faults:
        ways.setdefault((fault.id, fault.text), []).append(fault)
    for index, fault in enumerate(faults):
        yield Candidate(group, fault, ways[fault.id, fault.text], numbers=index >= around)


def where(side: Side, group: tuple[str, ...], before: Graph, after: Graph) -> str:
    """The layers of a group that a change touches, in words."""
    kept = {id(node) for node in before.nodes}
    nodes = [(node.outputs[0], id(node) in kept) for node in after.nodes]
    changed = tuple(name for name in group if (name, False) in nodes) or group
    places = {part.node for part in side.parts.values()}
    whole = len(changed) == len(side.parts) and len(places) > 1
    return "every recurrent layer" if whole else in_words(side.parts[name] for name in changed)


def groups_of(side: Side, refined: bool) -> Iterator[tuple[str, ...]]:
    """Layers that may share a fault: all; then each layer, direction and part of its own."""
    names = tuple(side.parts)
    if not refined:
        if names:
            yield names
        return
    seen = {frozenset(names)}
    groups: list[tuple[str, ...]] = []
    keys: tuple[Callable[[Any], Any], ...] = (
        lambda p: (p.node, p.layer),
        lambda p: p.direction,
        lambda p: (p.node, p.direction),
        lambda p: p.node,
        lambda p: (p.node, p.layer, p.direction),
    )
    for key in keys:
        kinds: dict[Any, list[str]] = {}
        for name, part in side.parts.items():
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

    def outputs(self, side: Side) -> Values | None:
        """The side's outputs with the fault; None if it cannot run."""
        return side.outputs_of_whole(self.after) if self.whole else side.outputs(self.after)


def find_causes(
    side: Side, ends: float, seconds: float, progress: Progress = lambda *_: None
) -> Search:
    """The faults that explain why a model's outputs are not the expected ones: one, or two.

    They are looked for on few sequences, where the side has them, and then tried on all. ``ends``:
    the moment, by `time.monotonic`, after which nothing further is tried; ``seconds``: what to
    call that.
    """
    search = _Searching(side, ends, progress)
    for stage in _stages(search):
        for causes in stage:
            if causes:
                return Search(causes)
            if time.monotonic() > ends:
                return Search((), _stopped(search, seconds))
    return Search()


def _stages(search: _Searching) -> Iterator[Iterator[Causes]]:
    """Simple faults of all layers alike, refined ones of some of them, pairs, and the rest."""
    pairs = search.pairs()
    for refined in (False, True):
        yield search.single(candidates(search.few, refined))
    yield search.sources()
    yield search.clips()
    yield search.outputs()
    hidden: tuple[Structure, ...] = ("", "reset_placement")
    yield from (search.biases(refined, each) for refined in (False, True) for each in hidden)
    yield itertools.islice(pairs, _NEAREST)
    for refined in (False, True):
        yield search.single(candidates(search.few, refined, rare=True))
        yield search.biases(refined, "gates_swapped")
    yield pairs


def _stopped(search: _Searching, seconds: float) -> str:
    """The end of a search: how many candidates and pairs of them were tried."""
    ways = itertools.product((False, True), repeat=2)
    every = sum(1 for way, rare in ways for _ in candidates(search.few, way, rare=rare))
    text = f"{min(search.tried, every)} of {every} candidates tried"
    if search.paired:
        text += f", and {search.paired} of {every * (every - 1) // 2} pairs of them"
    return f"search stopped after {seconds:g} s; {text}; --seconds"


class _Searching:
    """A search on one side: how many candidates were tried, and how near each came.

    ``few``: the side on few sentences, where it can be cut.
    """

    def __init__(self, side: Side, ends: float, progress: Progress) -> None:
        self.side, self.few, self.ends, self._progress = side, side.few or side, ends, progress
        self.tried = self.paired = 0
        self._apart: dict[tuple[float, float], Candidate] = {}
        self._still = self.few.apart(self.few.values)

    def single(self, every: Iterable[Candidate]) -> Iterator[Causes]:
        """Each candidate by itself; how near it comes is kept."""
        for each in every:
            yield self._tried((each,))

    def sources(self) -> Iterator[Causes]:
        """Faults of what fusing makes one with something else."""
        model = self.side.whole
        for place, fault in unfused_faults(model):
            step = _Step(fault, place, model, fault.apply(model), whole=True)
            yield self._if_explains(self.few, step)

    def clips(self) -> Iterator[Causes]:
        """A clip that the model lacks and the reference had: its bound is looked for."""
        groups = [g for refined in (False, True) for g in groups_of(self.few, refined)]
        for group, name in itertools.product(groups, ("cell_clip", "gate_clip")):
            yield ()
            layers = recurrent_layers(self.few.graph, group).values()
            cells = {rnn.spec.cell for rnn in layers if getattr(rnn.spec, name) is None}
            if name == "cell_clip":
                cells &= {Cell.LSTM}
            for cell in cells:
                bound = self._bound(group, name, cell)
                if bound is not None:
                    fault = in_cells(clip_fault(name, bound), cell)
                    yield self._tried((Candidate(group, fault, (fault,), numbers=True),))

    def biases(self, refined: bool, structure: Structure) -> Iterator[Causes]:
        """Biases of layers that follow from the outputs: of few sentences, or of all."""
        for group, side in itertools.product(groups_of(self.few, refined), self._batches()):
            yield ()
            for layers, fault in fitted(side, group, self.ends, structure):
                changed = fault.apply(side.graph)
                place = where(side, layers, side.graph, changed)
                step = _Step(fault, place, side.graph, changed, stated=not structure)
                yield self._if_explains(side, step)

    def outputs(self) -> Iterator[Causes]:
        """Biases of products that follow from the outputs."""
        for side in self._batches():
            yield ()
            for place, fault in fitted_outputs(side, self.ends):
                step = _Step(fault, place, side.graph, fault.apply(side.graph), operator=True)
                yield self._if_explains(side, step)

    def _batches(self) -> Iterable[Side]:
        return dict.fromkeys((self.few, self.side))

    def pairs(self) -> Iterator[Causes]:
        """Two faults, those first of which each by itself comes near to what is expected."""
        near = self._nearest()
        waiting = [(_order(index, index + 1), index, index + 1) for index in range(len(near) - 1)]
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
            {
                id(c): position
                for position, (_, c) in enumerate(sorted(every, key=lambda e: e[0][measure]))
            }
            for measure in (0, 1)
        ]
        return sorted((c for _, c in every), key=lambda c: min(rank[id(c)] for rank in ranks))

    def _tried(self, chosen: tuple[Candidate, ...]) -> Causes:
        """The causes, where these faults together explain all outputs."""
        chosen = tuple(sorted(chosen, key=lambda each: not each.numbers))
        self._progress("looking for the cause", self.tried + self.paired, 0)
        self.tried += len(chosen) == 1
        graph: Graph | None = self.few.graph
        for each in chosen:
            graph = graph and each.applied_to(self.few, graph)
        outputs = None if graph is None else self.few.outputs(graph)
        if self.few.explained_by(outputs):
            return self._confirmed(_chains(self.side, chosen, self.side.graph))
        if len(chosen) == 1 and outputs is not None:
            self._apart.setdefault(self.few.apart(outputs), chosen[0])
        return ()

    def _if_explains(self, side: Side, step: _Step) -> Causes:
        """The cause, where a step explains the outputs of this side, and of the whole batch."""
        explains = side.explained_by(step.outputs(side))
        return self._confirmed([(step,)], side is self.few) if explains else ()

    def _confirmed(self, chains: Iterable[tuple[_Step, ...]], proves: bool = True) -> Causes:
        """The causes, in the first of these ways that explains the whole batch."""
        side = self.side
        for steps in chains:
            outputs = steps[-1].outputs(side)
            if outputs is not None and side.explained_by(outputs):
                after = largest_difference(outputs, side.expected)
                causes = (_cause(step, proves and side.proves) for step in steps)
                return tuple(replace(each, before=side.before, after=after) for each in causes)
        return ()

    def _bound(self, group: tuple[str, ...], name: str, cell: Cell) -> float | None:
        """The bound of the clip that comes nearest to the expected outputs, if one is near."""
        side = self.few

        def apart(bound: float) -> float:
            graph = in_cells(clip_fault(name, bound), cell).apply(side.site(group))
            late = graph is None or time.monotonic() > self.ends
            return np.inf if late else side.distance(graph)

        bounds = np.geomspace(0.01, 30, 17)
        result = [apart(float(b)) for b in bounds]
        best = int(np.argmin(result))
        if not result[best] < _PROMISING * side.before:
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
        if (changed := first.applied_to(side, graph, way)) is not None:
            place = first.where or where(side, first.group, graph, changed)
            step = _Step(way, place, graph, changed, operator=bool(first.where))
            for rest in _chains(side, chosen[1:], changed):
                yield (step, *rest)


def _cause(step: _Step, proved: bool) -> Cause:
    """``proved``: on sentences of a batch, so that edits that hold a batch's numbers are none."""
    edit = Edit.between(step.before, step.after)
    bound = proved and edit.constants and not step.whole and not step.operator
    prefix = "" if step.stated else "matches when "
    return Cause(
        step.fault.id,
        f"{prefix}{step.fault.text} in {step.where}",
        step.where,
        edit.old[0] if edit.old else "",
        "proved" if proved else "candidate",
        () if bound else (edit,),
        "read" if step.whole else "taken apart",
    )


# --- why a model's outputs are not the reference's: the causes that a report gives


def explained(report: Report, seconds: float, progress: Progress) -> Report:
    """A failed report with the causes, as far as ``seconds`` allow, and what stopped the search."""
    evidence = report.evidence
    assert evidence is not None  # of a Report that `verify` made
    progress("tracing the model", 0, 1)
    try:
        side = _side(evidence)
        same = all_pass(side.values, side.expected, side.tolerances)
    except OnernnError as error:  # a verdict stands without its explanation
        return replace(report, notes=(*report.notes, f"not explained: {error}"))
    if not seconds:
        return report
    if same:
        note = "the NumPy reference gives what is expected: the fault is in the kernel that ran"
        return replace(report, notes=(*report.notes, note))
    try:
        with guarded(lambda: "the search for a cause"):
            progress("comparing both models", 0, 1)
            ends = time.monotonic() + seconds
            if causes := read_causes(evidence, ends):
                late = time.monotonic() > ends and any(c.evidence == "candidate" for c in causes)
                few = f"after {seconds:g} s: fewer of these may be the causes; --seconds"
                return replace(report, causes=causes, stopped=late * f"search stopped {few}")
            result = find_causes(_with_few(side), ends, seconds, progress)
            causes = tuple(tested(evidence, cause) for cause in result.causes)
            return replace(report, causes=causes, stopped=result.stopped)
    except OnernnError as error:
        return replace(report, stopped=f"not explained: {error}")


def _side(evidence: Evidence) -> Side:
    mine = evidence.mine
    return Side(
        mine.graph,
        mine.parts,
        mine.values,
        evidence.expected,
        evidence.tolerances,
        evidence.model,
        evidence.inputs,
        {**evidence.all_inputs, **evidence.reference.feed, **evidence.inputs},
    )


def _with_few(side: Side) -> Side:
    """The side, with what it is on few sequences where the batch can be cut."""
    cut = cut_batch(side.graph, side.all_inputs, side.values, side.expected, side.tolerances)
    if cut is None:
        return side
    few = replace(
        side,
        values=cut.values,
        feed={name: cut.all_inputs[name] for name in side.feed},
        all_inputs=cut.all_inputs,
        expected=cut.expected,
        tolerances=cut.tolerances,
    )
    return replace(side, few=few, proves=cut.proves)
