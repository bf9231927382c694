"""Searches for the known fault that explains a difference, by trying one fault after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from onernn.ir.budget import TimeLimit, time_limit
from onernn.ir.errors import OnernnError, guard
from onernn.verification.comparing import all_pass, largest_difference
from onernn.verification.diagnosis.cause import Cause, Edit
from onernn.verification.diagnosis.faults import layer_faults
from onernn.verification.diagnosis.graph_faults import (
    GraphFault,
    Site,
    epsilon_faults,
    graph_faults,
    in_cells,
)
from onernn.verification.diagnosis.model_diff import in_place, prove, read_causes
from onernn.verification.tracing import Trial
from onernn.verification.verifying import Evidence, Progress, Report

_BETTER = 10
"""A fault explains a difference if it makes the difference this many times smaller, and the outputs
pass.
"""


class Candidate(NamedTuple):
    """A known fault in a group of layers; for other operators ``group`` is empty and ``where``
    names the operator.
    """

    group: tuple[str, ...]
    fault: GraphFault
    where: str = ""

    def explains(self, trial: Trial) -> Cause | None:
        """Returns the fault as a cause if with it every output passes and is much closer to the
        reference; otherwise None.
        """
        try:
            graph = self.fault.apply(Site(trial, self.group))
        except OnernnError:  # for example, the new graph has a cycle
            return None
        outputs = graph and trial.outputs(graph)
        if not outputs or not all_pass(outputs, trial.expected, trial.tolerances):
            return None
        after = largest_difference(outputs, trial.expected)
        if after * _BETTER >= trial.before:
            return None
        edit = Edit.between(trial.graph, graph)
        changed = [name for name in self.group if name in edit.old] or self.group
        where = self.where or in_place([trial.parts[name] for name in changed], len(trial.parts))
        return Cause(
            self.fault.id,
            f"matches when {self.fault.text} in {where}",
            where,
            edit.old[0] if edit.old else "",
            edits=(edit,),
            before=trial.before,
            after=after,
        )


def candidates(trial: Trial) -> Iterator[Candidate]:
    """Yields the faults to try, frequent ones first.

    Faults of all layers come first, then faults of smaller groups of layers, then faults of other
    operators.
    """
    for group in _groups(trial):
        site = Site(trial, group)
        for fault in graph_faults(site):
            yield Candidate(group, fault)
        for spec in {rnn.spec.cell: rnn.spec for rnn in site.layers.values()}.values():
            for each in layer_faults(spec):
                yield Candidate(group, in_cells(each, spec.cell))
    for where, fault in epsilon_faults(trial.graph):
        yield Candidate((), fault, where)


def _groups(trial: Trial) -> list[tuple[str, ...]]:
    """Returns groups of layers that may have the same fault: all layers, then groups by node, layer
    and direction.
    """
    groups: dict[tuple[str, ...], None] = {}
    for keys in ("", "node layer", "direction", "node direction", "node", "node layer direction"):
        kinds: dict[Any, list[str]] = {}
        for name, part in trial.parts.items():
            key = tuple(getattr(part, each) for each in keys.split())
            kinds.setdefault(key, []).append(name)
        groups |= dict.fromkeys(map(tuple, kinds.values()))
    return list(groups)


def explanations(trial: Trial, limit: TimeLimit, progress: Progress) -> Iterator[Cause | str]:
    """Yields each fault that explains the difference of all outputs. Then yields why the search
    stopped early, or "" if it tried all faults.
    """
    every = list(candidates(trial))
    for tried, candidate in enumerate(every):
        if limit.left < 0:
            yield _stopped(limit, f"; {tried} of {len(every)} candidates tried")
            return
        progress("looking for the cause", tried, len(every))
        if cause := candidate.explains(trial):
            yield cause
    yield ""


# --- the causes of a report


def trial_of(evidence: Evidence) -> Trial:
    """Returns the traced model on which faults are tried."""
    mine = evidence.mine
    return Trial(
        mine.graph,
        mine.parts,
        mine.values,
        evidence.expected,
        evidence.tolerances,
        {**evidence.all_inputs, **evidence.reference.feed, **evidence.inputs},
    )


def _stopped(limit: TimeLimit, how_far: str = "") -> str:
    return f"search stopped after {limit.seconds:g} s{how_far}; --seconds"


def explain(report: Report, search: bool, progress: Progress) -> Report:
    """Returns a failed report with the causes that are found before the time limit; none if
    ``search`` is False.
    """
    evidence, limit = report.evidence, time_limit()
    assert evidence is not None and limit is not None  # `verify` sets both
    progress("tracing the model", 0, 1)
    try:
        trial = trial_of(evidence)
        same = all_pass(trial.values, trial.expected, trial.tolerances)
    except OnernnError as error:  # the verdict is valid without causes
        if limit.left < 0:
            return replace(report, stopped=_stopped(limit))
        return replace(report, notes=(*report.notes, f"not explained: {error}"))
    if not search:
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
        with guard(lambda: "the search for a cause"):
            progress("comparing both models", 0, 1)
            if causes := read_causes(evidence, limit.ends):
                late = limit.left < 0 and any(c.evidence == "candidate" for c in causes)
                few = _stopped(limit, ": fewer of these may be the causes")
                return replace(report, causes=causes, stopped=late * few)
            result = next(explanations(trial, limit, progress))
            if isinstance(result, str):
                return replace(report, stopped=result)
            return replace(report, causes=(prove(evidence, result),))
    except OnernnError as error:
        late = limit.left < 0
        return replace(report, stopped=_stopped(limit) if late else f"not explained: {error}")
