"""Which known faults explain a difference: each is tried until one makes it vanish, then pairs."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.core.errors import OnernnError
from onernn.core.graph import Graph
from onernn.core.ragged import data_of
from onernn.fuse_passes import fuse
from onernn.verification.aligning import in_one_form
from onernn.verification.comparing import all_pass, differences, largest_difference
from onernn.verification.diagnosis.bias_faults import bias_sources
from onernn.verification.diagnosis.candidates import (
    Candidate,
    Side,
    alone,
    candidates,
    groups_of,
    where,
)
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.fitting import Structure, fitted, unknowns
from onernn.verification.diagnosis.graph_faults import Hypothesis, with_change
from onernn.verification.diagnosis.weight_faults import clipped
from onernn.verification.layer_names import expanded
from onernn.verification.tracing import Values, fast_backend, rerun, trace

SECONDS = 14.0
"""How long to look for causes: a verdict with all else takes less than 20."""
_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""
_PROMISING = 0.7
"""Of the difference without a clip, at the best of the bounds that are tried first."""
_NEAREST = 1500
"""Pairs that are tried before rare faults."""
_OUTPUTS = 3
"""For each bias that is solved for, at least; some stand behind a sentence's end."""

Causes = tuple[Cause, ...]
Progress = Callable[[str, int, int], None]


class Search(NamedTuple):
    """The causes that a search found, and how it ended where time ran out."""

    causes: Causes = ()
    stopped: str = ""


class _Step(NamedTuple):
    """A fault, the layers that have it, and the graph without it."""

    hypothesis: Hypothesis
    where: str
    before: Graph


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
        yield from (each.single(_every(each.few, refined, False)) for each in searches)
    for each in searches:
        yield each.sources()
        yield each.clips()
    hidden: tuple[Structure, ...] = ("", "reset_placement")
    yield from (searches[0].biases(r, each) for r in (False, True) for each in hidden)
    yield from (itertools.islice(each, _NEAREST) for each in pairs)
    for refined in (False, True):
        yield from (each.single(_every(each.few, refined, True)) for each in searches)
        yield searches[0].biases(refined, "gates_swapped")
    yield from pairs


def _every(side: Side, refined: bool, rare: bool) -> Iterator[Candidate]:
    return (each for each in candidates(side, refined) if each.rare == rare)


def _stopped(searches: Sequence[_Searching], seconds: float) -> str:
    """How a search ended: after how many of the candidates, and of the pairs of them."""
    every = [
        sum(1 for refined in (False, True) for _ in candidates(each.few, refined))
        for each in searches
    ]
    tried, paired = (sum(getattr(each, n) for each in searches) for n in ("tried", "paired"))
    told = f"{min(tried, sum(every))} of {sum(every)} candidates tried"
    if paired:
        told += f", and {paired} of {sum(n * (n - 1) // 2 for n in every)} pairs of them"
    return f"search stopped after {seconds:g} s; {told}; --seconds"


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
                likely.add((each.cause, each.text))
            yield ()
        for refined in (False, True):
            yield from self.single(candidates(self.few, refined, likely))

    def single(self, every: Iterable[Candidate]) -> Iterator[Causes]:
        """Each candidate alone; how near it comes is kept."""
        for each in every:
            yield self._tried((each,))

    def sources(self) -> Iterator[Causes]:
        """One bias of several, in the model before fusion."""
        for place, hypothesis in bias_sources(self.side.whole):
            step = _Step(hypothesis, place, self.side.whole)
            found = _explains(self.few, hypothesis)
            yield self._confirmed([(step,)]) if found else ()

    def clips(self) -> Iterator[Causes]:
        """A clip that the model lacks and the reference had: its bound is looked for."""
        groups = [g for refined in (False, True) for g in groups_of(self.few, refined)]
        ways = (("cell_clip", "the cell state is"), ("gate_clip", "gates are"))
        for group, (name, what) in itertools.product(groups, ways):
            yield ()
            bound = self._bound(group, name)
            if bound is not None:
                text = f"{what} clipped to [{-bound:.6g}, {bound:.6g}]"
                change = clipped(name, bound)
                yield self._tried((Candidate(group, "clip_ignored", text, 0, change),))

    def biases(self, refined: bool, structure: Structure) -> Iterator[Causes]:
        """Biases that the outputs tell: of few sentences where these are enough, else of all."""
        for group in groups_of(self.few, refined):
            few = sum(data_of(v).size for v in self.few.expected.values())
            enough = few >= _OUTPUTS * unknowns(self.few.traced, group)
            for at in (self.few, self.side) if enough else (self.side,):
                yield ()
                for layers, hypothesis in fitted(
                    at.traced, group, at.expected, self.ends, structure
                ):
                    graph = at.traced.graph
                    step = _Step(hypothesis, where(at, layers, graph, hypothesis.graph), graph)
                    proves = at is self.few
                    yield self._confirmed([(step,)], proves) if _explains(at, hypothesis) else ()

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
        chosen = tuple(sorted(chosen, key=lambda each: each.change is None))
        self._progress("looking for the cause", self.tried + self.paired, 0)
        self.tried += len(chosen) == 1
        graph: Graph | None = self.few.traced.graph
        made: Hypothesis | None = None
        for each in chosen:
            made = each.made(self.few, graph) if graph is not None else None
            graph = made and made.graph
        outputs = _outputs(self.few, made) if made else None
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
            outputs = _outputs(side, steps[-1].hypothesis)
            if outputs is not None and _passes(side, outputs):
                before = largest_difference(side.traced.values, side.expected)
                after = largest_difference(outputs, side.expected)
                sure = proves and side.proves
                found = (_cause(side, step, sure) for step in steps)
                return tuple(replace(each, before=before, after=after) for each in found)
        return ()

    def _bound(self, group: tuple[str, ...], name: str) -> float | None:
        """Of a clip that comes nearest to what is expected; None where none comes near."""
        side = self.few

        def apart(bound: float) -> float:
            graph = with_change(side.traced.graph, group, clipped(name, bound), {})
            if graph is None or time.monotonic() > self.ends:
                return np.inf
            outputs = _outputs(side, Hypothesis("", "", graph))
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
    for made in chosen[0].all_made(side, graph):
        place = made.place or where(side, chosen[0].group, graph, made.graph)
        step = _Step(made, place, graph)
        for rest in _chains(side, chosen[1:], made.graph):
            yield (step, *rest)


def _cause(side: Side, step: _Step, proved: bool) -> Cause:
    """``proved``: on sentences of a batch, so that edits that hold a batch's numbers are none."""
    hypothesis = step.hypothesis
    edit = Edit.between(step.before, hypothesis.graph)
    bound = proved and edit.constants and not hypothesis.whole and not hypothesis.place
    prefix = "" if hypothesis.stated else f"{side.prefix} "
    return Cause(
        hypothesis.cause,
        f"{prefix}{hypothesis.text} in {step.where}",
        step.where,
        edit.old[0] if edit.old and side.is_model else "",
        "proved" if proved else "candidate",
        (edit,) if side.is_model and not bound else (),
        "read" if hypothesis.whole else "taken apart",
    )


def _outputs(side: Side, hypothesis: Hypothesis) -> Values | None:
    """What a side gives with a fault; None where it does not run."""
    try:
        with np.errstate(all="ignore"):
            if hypothesis.whole:
                return trace(expanded(fuse(hypothesis.graph).model)[0], side.feed, fast_backend())
            known = side.traced
            return rerun(hypothesis.graph, known.graph, known.values, fast_backend())
    except OnernnError:
        return None


def _explains(side: Side, hypothesis: Hypothesis) -> bool:
    outputs = _outputs(side, hypothesis)
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
