"""Finds the fewest differences between two models that explain why their outputs differ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from onernn.fuse_passes.normal_forms import constants_last
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Ragged
from onernn.ir.records import dataclass
from onernn.verification.comparing import Batches, map_data
from onernn.verification.diagnosis.cause import Cause, Edit, Proof, apply_edits
from onernn.verification.diagnosis.differences import (
    Difference,
    Named,
    Names,
    differences_in,
    patch,
    smallest,
)
from onernn.verification.diagnosis.faults import Relation
from onernn.verification.diagnosis.matching import Matching, match
from onernn.verification.tracing import LayerName, Trial, Values, fast_backend, in_words, trace
from onernn.verification.verifying import Evidence

_BATCHES = 3
"""Maximum number of batches in a search. If the found causes do not explain a new batch, the search
continues with this batch in addition.
"""
_SHARED = ("weights_rounded", "states_exchanged", "layers_exchanged")
"""Ids of faults that usually affect several nodes."""
_MASK = 8
"""A float array with at most this many different values is a mask or lengths, not sequences."""


def read_causes(evidence: Evidence, ends: float) -> tuple[Cause, ...]:
    """Returns as causes the differences between both models that together explain why the outputs
    differ. Returns () if no differences explain it, or without a second model.

    If the search reaches the time ``ends``, the causes are candidates, because fewer differences
    may explain the outputs. The search first compares the operators of the files. If these do not
    explain it, or if a cause is an operator that only one file has, the search compares the layers
    of the fused and expanded graphs.
    """
    best: tuple[Cause, ...] = ()
    if evidence.theirs is None:
        return best
    for whole in (True, False):
        reading = _Reading.of(evidence, whole)
        causes = reading.causes(ends) if reading is not None else ()
        if causes and (not best or _count_unmatched(causes) < _count_unmatched(best)):
            best = causes
        if best and not _count_unmatched(best):
            break
    return best


def _count_unmatched(causes: Sequence[Cause]) -> int:
    """Returns how many operators among the causes only one file has; a changed operator counts as
    two.
    """
    weights = {"operator_changed": 2, "operator_missing": 1, "operator_added": 1}
    return sum(weights.get(each.id, 0) for each in causes)


@dataclass(frozen=True, eq=False)
class _Reading:
    """Both models as matched graphs, and a batch on which changes are tried.

    ``whole``: whether the graphs are the files' graphs; otherwise they are fused and expanded.
    """

    evidence: Evidence
    whole: bool
    graph: Graph
    matching: Matching
    names: Names
    trial: Trial

    @classmethod
    def of(cls, evidence: Evidence, whole: bool) -> _Reading | None:
        reference, run = evidence.reference.graph, evidence.theirs
        assert reference is not None and run is not None
        graph, other = evidence.mine.graph, run.graph
        parts: Mapping[str, LayerName] = {**run.parts, **evidence.mine.parts}
        if whole:
            graph, other, parts = constants_last(evidence.model), constants_last(reference), {}
        trial = _trial(evidence, graph, evidence.all_inputs, evidence.expected)
        if trial is None:
            return None
        values = (
            trace(other, evidence.feeds(evidence.all_inputs)[1], fast_backend())
            if whole
            else run.values
        )
        matching = match(graph, other, (trial.values, values))
        layers = (*run.parts.values(), *evidence.mine.parts.values())
        stacked = {(each.own, each.direction): each for each in layers if each.own}
        names = Names(matching, parts, stacked, (_list_ragged(trial.values), _list_ragged(values)))
        return cls(evidence, whole, graph, matching, names, trial)

    def causes(self, ends: float) -> tuple[Cause, ...]:
        every = differences_in(self.matching, self.evidence.names)
        if not every or self._copies_layers() or not self._passes(every, [self.trial]):
            return ()
        groups, batches = self._groups(every), [self.trial]
        evidence: Proof = "candidate"
        needed = every
        for seed in range(1, _BATCHES + 1):
            kept = smallest(groups, lambda chosen: self._passes(chosen, batches), ends)
            kept = smallest(self._split(kept), lambda chosen: self._passes(chosen, batches), ends)
            needed = self._harmful([each for group in kept for each in group], batches)
            if time.monotonic() > ends:  # no time to prove that all differences are needed
                break
            fresh = _fresh(self.evidence, self.graph, seed)
            if fresh is None:
                break
            if self._passes(needed, [fresh]):
                evidence = "proved"
                break
            if not self._passes(every, [fresh]):
                break
            batches.append(fresh)
        return tuple(self._causes_of(needed, evidence))

    def _patch(self, chosen: Sequence[Difference]) -> Graph | None:
        try:
            return patch(self.matching, chosen)
        except OnernnError:  # the graph would have a cycle
            return None

    def _passes(self, chosen: Sequence[Difference], batches: Sequence[Trial]) -> bool:
        changed = self._patch(chosen)
        return changed is not None and all(each.passes(changed) for each in batches)

    def _copies_layers(self) -> bool:
        """Returns whether some layers have no counterpart, although both models have the same
        number of layers.
        """
        paired = {id(op.node) for pair in self.matching.pairs for op in pair}
        every = (*self.matching.graph.nodes, *self.matching.other.nodes)
        single = any(node.op == "Rnn" and id(node) not in paired for node in every)
        theirs = self.evidence.theirs
        return single and theirs is not None and len(self.evidence.mine.parts) == len(theirs.parts)

    def _groups(self, every: Sequence[Difference]) -> list[list[Difference]]:
        """Returns the differences in groups, one group per fault, in the order in which the search
        tries to omit them.

        Wiring comes first, because different wiring often does not change the outputs.
        """
        groups: dict[Any, list[Difference]] = {}
        for named in self.names.of(every):
            shared = named.relation.id in _SHARED
            key = named.shared if shared else named.differences
            groups.setdefault(key, []).extend(named.differences)
        seen: set[Difference] = set()
        unique = []
        for group in groups.values():
            fresh = [each for each in dict.fromkeys(group) if each not in seen]
            seen.update(fresh)
            unique += [fresh] if fresh else []
        unique += [[each] for each in every if each not in seen]
        return sorted(unique, key=lambda group: not group[0].is_wiring)

    def _split(self, kept: Sequence[Sequence[Difference]]) -> list[Sequence[Difference]]:
        """Returns one group per difference for a node with several faults, because some differences
        may not change the outputs.
        """
        result: list[Sequence[Difference]] = []
        for group in kept:
            several = len({each.shared for each in self.names.of(group)}) > 1
            single = len({*map(id, (each.model for each in group))}) == 1
            result += [[each] for each in group] if several and single else [group]
        return result

    def _harmful(self, needed: list[Difference], batches: Sequence[Trial]) -> list[Difference]:
        """Returns the differences without superfluous causes: if a further cause is left out, the
        outputs do not pass.
        """
        for together in _together(self.names.of(needed)):
            cause = {each for named in together for each in named.differences}
            rest = [each for each in needed if each not in cause]
            if rest and self._passes(rest, batches):
                return self._harmful(rest, batches)
        return needed

    def _causes_of(self, needed: Sequence[Difference], evidence: Proof) -> Iterator[Cause]:
        whole = self._patch(needed)
        assert whole is not None
        after = self.trial.distance(whole)
        causes = list(_together(self.names.of(needed)))
        units = [[each for named in names for each in named.differences] for names in causes]
        edits = self._edits(units, Edit.between(self.graph, whole))
        for together, edit in zip(causes, edits, strict=True):
            result = together[0].relation
            where = in_place([each.where for each in together], len(self.evidence.mine.parts))
            said = result.text
            bare = not where or said.endswith(("before", "exchanges", " of", ":", ", as"))
            apart = max(each.relation.apart for each in together)
            most = f", by up to {apart:.3g}" if apart else ""
            yield Cause(
                result.id,
                f"{said} {'' if bare else 'in '}{where}{most}".rstrip(),
                where,
                together[0].node,
                evidence,
                (edit,),
                "read" if self.whole else "taken apart",
                self.trial.before,
                after,
            )

    def _edits(self, causes: Sequence[Sequence[Difference]], whole: Edit) -> list[Edit]:
        """Returns the edit that undoes each cause; causes that change the same nodes have the same
        edit.
        """
        groups = [{index} for index in range(len(causes))]
        while True:
            chosen = [
                [each for index in sorted(group) for each in causes[index]] for group in groups
            ]
            graphs = map(self._patch, chosen)
            edits = [Edit.between(self.graph, graph) if graph else whole for graph in graphs]
            pairs = combinations(range(len(groups)), 2)
            shared = [(a, b) for a, b in pairs if not {*edits[a].old}.isdisjoint(edits[b].old)]
            if not shared:
                by_cause = {
                    index: e for group, e in zip(groups, edits, strict=True) for index in group
                }
                return [by_cause[index] for index in range(len(causes))]
            groups[shared[0][0]] |= groups.pop(shared[0][1])


def prove(evidence: Evidence, cause: Cause) -> Cause:
    """Returns a cause with the evidence "proved" if its edits also make the outputs match on a
    second batch.
    """
    if cause.evidence == "proved" or not cause.edits or evidence.theirs is None:
        return cause
    graph = evidence.model if cause.form == "read" else evidence.mine.graph
    fresh = _fresh(evidence, graph, 1)
    if fresh is None or not fresh.passes(apply_edits(graph, cause.edits)):
        return cause
    return replace(cause, evidence="proved")


def _fresh(evidence: Evidence, graph: Graph, seed: int) -> Trial | None:
    """Returns a trial on shuffled inputs of the same sizes; None if a model cannot run on them."""
    reference = evidence.reference.graph
    assert reference is not None
    for lengths in (True, False):
        all_inputs = shuffle(evidence.all_inputs, seed, lengths)
        try:
            _, theirs = evidence.feeds(all_inputs)
            with np.errstate(all="ignore"):
                values = trace(reference, theirs, fast_backend())
        except OnernnError:
            continue
        expected = {mine: values[name] for mine, name in evidence.names.items()}
        if (trial := _trial(evidence, graph, all_inputs, expected)) is not None:
            return trial
    return None


def _list_ragged(values: Values) -> set[str]:
    return {name for name, value in values.items() if isinstance(value, Ragged)}


def _trial(
    evidence: Evidence, graph: Graph, all_inputs: Batches, expected: Batches
) -> Trial | None:
    try:
        mine, theirs = evidence.feeds(all_inputs)
        with np.errstate(all="ignore"):
            values = trace(graph, mine, fast_backend())
    except OnernnError:
        return None
    return Trial(graph, {}, {**theirs, **values}, expected, evidence.tolerances)


def shuffle(inputs: Batches, seed: int, lengths: bool) -> Batches:
    """Returns batches of the same shapes with elements in random order and with random signs.

    Masks do not change. ``lengths``: also shuffle vectors of integers.
    """
    rng = np.random.default_rng(seed)

    def move(array: Array) -> Array:
        few = array.dtype.kind == "f" and len(np.unique(array)) <= _MASK
        if array.ndim == 0 or few or array.dtype.kind == "b":
            return array
        if array.ndim == 1 and array.dtype.kind in "iu":
            return rng.permutation(array) if lengths else array
        signs = rng.choice([-1, 1], array.shape) if array.dtype.kind == "f" else 1
        signs = 1 if array.size and array.min() >= 0 else signs
        return (rng.permutation(array.reshape(-1)).reshape(array.shape) * signs).astype(array.dtype)

    return {name: map_data(value, move) for name, value in inputs.items()}


def _together(every: Sequence[Named]) -> Iterator[list[Named]]:
    groups: dict[Relation, list[Named]] = {}
    for each in every:
        groups.setdefault(each.shared, []).append(each)
    yield from groups.values()


def in_place(places: Sequence[LayerName | str], layers: int) -> str:
    """Returns a text that names the layers and operators in ``places``. ``layers``: the number of
    all layers of the model, in which each direction counts as a layer.
    """
    distinct = list(dict.fromkeys(places))
    named = [place for place in distinct if isinstance(place, LayerName)]
    others = [place for place in distinct if isinstance(place, str)]
    nodes = {place.own or place.node for place in named}
    if named and len(named) == layers and len(nodes) > 1:
        words = ["every recurrent layer"]
    else:
        words = [in_words(named)] if named else []
    return " and ".join([*words, *others])
