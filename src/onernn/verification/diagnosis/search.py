"""A search for known faults that explain a difference: each is tried, then pairs of them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from onernn.ir.errors import OnernnError, guarded
from onernn.ir.graph import Graph
from onernn.ir.ragged import data_of
from onernn.ir.spec import Cell
from onernn.verification.comparing import (
    all_pass,
    differences,
    in_one_form,
    largest_difference,
)
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.constant_faults import constant_faults
from onernn.verification.diagnosis.faults import (
    Relation,
    between,
    clip_fault,
    layer_faults,
    rare_faults,
)
from onernn.verification.diagnosis.fitting import fitted_faults, fitted_outputs
from onernn.verification.diagnosis.graph_faults import (
    GraphFault,
    Site,
    graph_faults,
    in_cells,
    in_graph,
    operator_faults,
)
from onernn.verification.diagnosis.model_diff import in_place, read_causes, tested
from onernn.verification.tracing import Trial, Values, recurrent_layers
from onernn.verification.verifying import Report

_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""
_PROMISING = 0.7
"""The difference at the best bound must fall to this part of that without a clip."""
_NEAREST = 1500
"""Pairs that are tried before rare faults."""

Causes = tuple[Cause, ...]
Progress = Callable[[str, int, int], None]


class Candidate(NamedTuple):
    """A known fault in these layers; without layers in the operator ``where``.

    ``numbers``: it is of the layers' own numbers and settings, and leaves the nodes around them.
    """

    group: tuple[str, ...]
    fault: GraphFault
    where: str = ""
    numbers: bool = False

    def applied_to(self, trial: Trial, graph: Graph) -> Graph | None:
        """The fault in a graph derived from the trial's; None if the graph cannot have it."""
        try:
            changed: Graph | None = self.fault.apply(Site(trial, graph, self.group))
        except OnernnError:  # of values that another fault made otherwise
            return None
        return changed

    def cause(self, trial: Trial, before: Graph, after: Graph, proved: bool) -> Cause:
        """The fault as a cause. ``proved``: on sentences of a batch, so that an edit that holds a
        batch's numbers is none.
        """
        edit = Edit.between(before, after)
        changed = [name for name in self.group if name in edit.old] or self.group
        where = self.where or in_place([trial.parts[name] for name in changed], len(trial.parts))
        name = Relation(self.fault.id, f"matches when {self.fault.text}")
        if name.id == "bias_changed":  # by the first rule that the new biases follow
            layers = [recurrent_layers(graph, self.group).values() for graph in (before, after)]
            pairs = zip(*layers, strict=True)
            name = next((each for pair in pairs for each in between(*pair)), name)
        return Cause(
            name.id,
            f"{name.text} in {where}",
            where,
            edit.old[0] if edit.old else "",
            "proved" if proved else "candidate",
            () if proved and edit.constants and self.group else (edit,),
        )


def candidates(trial: Trial, refined: bool, *, rare: bool = False) -> Iterator[Candidate]:
    """Each fault in each group of layers, the frequent ones first in every group.

    Without ``refined`` of all layers together, and then those of other operators. ``rare``: the
    least frequent ones instead.
    """
    groups = [_of_group(trial, group, rare) for group in groups_of(trial, refined)]
    for turn in itertools.zip_longest(*groups):
        yield from filter(None, turn)
    if not refined and not rare:
        for where, fault in operator_faults(trial.graph):
            yield Candidate((), in_graph(fault), where)


def _of_group(trial: Trial, group: tuple[str, ...], rare: bool) -> Iterator[Candidate]:
    site = Site(trial, trial.graph, group)
    for fault in () if rare else graph_faults(site):
        yield Candidate(group, fault)
    for spec in {rnn.spec.cell: rnn.spec for rnn in site.layers.values()}.values():
        for each in rare_faults(spec) if rare else layer_faults(spec):
            yield Candidate(group, in_cells(each, spec.cell), numbers=True)


def groups_of(trial: Trial, refined: bool) -> Iterator[tuple[str, ...]]:
    """Layers that may share a fault: all; then each layer, direction and part of its own."""
    names = tuple(trial.parts)
    if not refined:
        if names:
            yield names
        return
    seen = {frozenset(names)}
    keys: tuple[Callable[[Any], Any], ...] = (
        lambda p: (p.node, p.layer),
        lambda p: p.direction,
        lambda p: (p.node, p.direction),
        lambda p: p.node,
        lambda p: (p.node, p.layer, p.direction),
    )
    for key in keys:
        kinds: dict[Any, list[str]] = {}
        for name, part in trial.parts.items():
            kinds.setdefault(key(part), []).append(name)
        for group in map(tuple, kinds.values()):
            if frozenset(group) not in seen:
                seen.add(frozenset(group))
                yield group


class Search:
    """A search for the faults that explain why outputs are not the expected ones: one, or two.

    ``model``: as it was read. ``few``: the trial on few sequences, on which faults are tried first;
    ``proves``: those that also explain the others are proved. ``ends``: the moment, by
    `time.monotonic`, after which nothing further is tried.
    """

    def __init__(
        self, model: Graph, trial: Trial, few: Trial, proves: bool, ends: float, progress: Progress
    ) -> None:
        self._model = model
        self.trial, self.few, self.proves = trial, few, proves
        self.ends, self._progress = ends, progress
        self.tried = self.paired = 0
        self._near: dict[tuple[float, float], list[Candidate]] = {}

    def causes(self) -> Causes:
        """The first causes that explain all outputs; none if there are none, or time ran out."""
        for causes in self._steps():
            if causes or time.monotonic() > self.ends:
                return causes
        return ()

    def _steps(self) -> Iterator[Causes]:
        """Faults of all layers alike, then of some of them, clips, biases, pairs, and the rest."""
        pairs = self._pairs()
        yield from self._single(rare=False)
        for where, fault in constant_faults(self._model):
            yield self._tried(Candidate((), fault, where, numbers=True))
        yield from self._clips()
        yield from self._biases()
        yield from itertools.islice(pairs, _NEAREST)
        yield from self._single(rare=True)
        yield from pairs

    def stopped(self, seconds: float) -> str:
        """How many candidates and pairs of them were tried in this time."""
        ways = itertools.product((False, True), repeat=2)
        every = sum(1 for way, rare in ways for _ in candidates(self.few, way, rare=rare))
        text = f"{min(self.tried, every)} of {every} candidates tried"
        if self.paired:
            text += f", and {self.paired} of {every * (every - 1) // 2} pairs of them"
        return f"search stopped after {seconds:g} s; {text}; --seconds"

    def _single(self, rare: bool) -> Iterator[Causes]:
        for refined in (False, True):
            for each in candidates(self.few, refined, rare=rare):
                self.tried += 1
                yield self._tried(each)

    def _clips(self) -> Iterator[Causes]:
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
                    yield self._tried(Candidate(group, fault, numbers=True))

    def _bound(self, group: tuple[str, ...], name: str, cell: Cell) -> float | None:
        """The bound of the clip that comes nearest to the expected outputs, if one is near."""

        def apart(bound: float) -> float:
            fault = in_cells(clip_fault(name, bound), cell)
            graph = Candidate(group, fault).applied_to(self.few, self.few.graph)
            if graph is None or time.monotonic() > self.ends:
                return np.inf
            return self.few.distance(graph)

        bounds = np.geomspace(0.01, 30, 17)
        result = [apart(float(b)) for b in bounds]
        best = int(np.argmin(result))
        if not result[best] < _PROMISING * self.few.before:
            return None
        low, high = bounds[max(0, best - 1)], bounds[min(len(bounds) - 1, best + 1)]
        for _ in range(40):  # golden section: the difference falls towards the bound
            left, right = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
            low, high = (low, right) if apart(float(left)) < apart(float(right)) else (left, high)
        return float(np.float32((low + high) / 2))

    def _biases(self) -> Iterator[Causes]:
        for refined in (False, True):
            for group in groups_of(self.few, refined):
                for fault in fitted_faults(Site(self.few, self.few.graph, group), self.ends):
                    yield self._tried(Candidate(group, fault, numbers=True))
        for where, fault in fitted_outputs(self.few.graph, self.ends):
            yield self._tried(Candidate((), fault, where))

    def _pairs(self) -> Iterator[Causes]:
        """Two faults, those first of which each by itself comes near to what is expected."""
        near = self._nearest()
        waiting = [(_turn(index, index + 1), index, index + 1) for index in range(len(near) - 1)]
        while waiting:
            _, one, other = heapq.heappop(waiting)
            if other + 1 < len(near):
                heapq.heappush(waiting, (_turn(one, other + 1), one, other + 1))
            self.paired += 1
            yield self._tried(near[one], near[other])

    def _nearest(self) -> list[Candidate]:
        """The candidates that change something, by the better of two ranks."""
        still = _apart(self.few, self.few.values)
        every = [apart for apart in self._near if apart != still]
        ranks = [
            {apart: rank for rank, apart in enumerate(sorted(every, key=itemgetter(measure)))}
            for measure in (0, 1)
        ]
        every.sort(key=lambda apart: min(rank[apart] for rank in ranks))
        return [candidate for apart in every for candidate in self._near[apart]]

    def _tried(self, *chosen: Candidate) -> Causes:
        """The causes, where these faults together explain all outputs; else how near they come."""
        self._progress("looking for the cause", self.tried + self.paired, 0)
        chosen = tuple(sorted(chosen, key=lambda each: not each.numbers))
        graph = _changed(self.few, chosen)[-1]
        outputs = None if graph is None else self.few.outputs(graph)
        if outputs is None:
            return ()
        if _explains(self.few, outputs):
            return self._confirmed(chosen)
        if len(chosen) == 1:
            # Candidates that are equally far are the same function; those of one text are one
            # fault that is made in several ways, which differ elsewhere.
            same = self._near.setdefault(_apart(self.few, outputs), [*chosen])
            if same[0] is not chosen[0] and same[0].fault.text == chosen[0].fault.text:
                same += chosen
        return ()

    def _confirmed(self, chosen: tuple[Candidate, ...]) -> Causes:
        """The causes, where these faults explain the whole batch, too."""
        graphs = _changed(self.trial, chosen)
        outputs = None if graphs[-1] is None else self.trial.outputs(graphs[-1])
        if outputs is None or not _explains(self.trial, outputs):
            return ()
        after = largest_difference(outputs, self.trial.expected)
        steps = zip(chosen, itertools.pairwise(filter(None, graphs)), strict=True)
        causes = (each.cause(self.trial, *step, self.proves) for each, step in steps)
        return tuple(replace(each, before=self.trial.before, after=after) for each in causes)


def _changed(trial: Trial, chosen: Iterable[Candidate]) -> list[Graph | None]:
    """The trial's graph, and that with each further fault; None where it cannot have it."""
    graphs: list[Graph | None] = [trial.graph]
    for each in chosen:
        graphs.append(graphs[-1] and each.applied_to(trial, graphs[-1]))
    return graphs


def _explains(trial: Trial, outputs: Values) -> bool:
    """Whether every output passes, and was much farther apart before."""
    if not all_pass(outputs, trial.expected, trial.tolerances):
        return False
    return largest_difference(outputs, trial.expected) * _BETTER < trial.before


def _apart(trial: Trial, outputs: Values) -> tuple[float, float]:
    """From what is expected: the mean logarithm, small where many numbers match, and square."""
    logarithm = square = 0.0
    for name, want in trial.expected.items():
        one, other = (data_of(v) for v in in_one_form(outputs[name], want))
        if one.shape != other.shape or not one.size:
            return np.inf, np.inf
        far = np.minimum(differences(one, other), 1e30) / (trial.tolerances[name].atol or 1.0)
        logarithm += float(np.log1p(far).mean())
        square += float(np.square(far).mean())
    return logarithm, square


def _turn(one: int, other: int) -> float:
    """When two ranks have their turn: the nearest of all with far more others than the tenth."""
    return float((one + 1) ** 1.5 * (other + 1))


# --- why a model's outputs are not the reference's: the causes that a report gives


def explained(report: Report, seconds: float, progress: Progress) -> Report:
    """A failed report with the causes, as far as ``seconds`` allow, and what stopped the search."""
    evidence = report.evidence
    assert evidence is not None  # of a Report that `verify` made
    progress("tracing the model", 0, 1)
    try:
        mine = evidence.mine
        trial = Trial(
            mine.graph,
            mine.parts,
            mine.values,
            evidence.expected,
            evidence.tolerances,
            {**evidence.all_inputs, **evidence.reference.feed, **evidence.inputs},
        )
        same = all_pass(trial.values, trial.expected, trial.tolerances)
    except OnernnError as error:  # a verdict stands without its explanation
        return replace(report, notes=(*report.notes, f"not explained: {error}"))
    if not seconds:
        return report
    if same:
        note = "the NumPy reference gives what is expected: the fault is in the kernel that ran"
        if evidence.narrow:
            note = (
                "in float32 the outputs match: they differ because layers compute in the dtype"
                f" that was asked for: {'; '.join(evidence.narrow)}; --atol and --rtol allow it"
            )
        return replace(report, notes=(*report.notes, note))
    try:
        with guarded(lambda: "the search for a cause"):
            progress("comparing both models", 0, 1)
            ends = time.monotonic() + seconds
            if causes := read_causes(evidence, ends):
                late = time.monotonic() > ends and any(c.evidence == "candidate" for c in causes)
                few = f"after {seconds:g} s: fewer of these may be the causes; --seconds"
                return replace(report, causes=causes, stopped=late * f"search stopped {few}")
            cut = cut_batch(trial) or (trial, False)
            search = Search(evidence.model, trial, *cut, ends, progress)
            causes = tuple(tested(evidence, cause) for cause in search.causes())
            stopped = "" if causes or time.monotonic() < ends else search.stopped(seconds)
            return replace(report, causes=causes, stopped=stopped)
    except OnernnError as error:
        return replace(report, stopped=f"not explained: {error}")
