"""A search for the known fault that explains a difference: each is tried in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

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
from onernn.verification.verifying import Report

_BETTER = 10
"""An explanation makes the difference that many times smaller, and small enough to pass."""

Progress = Callable[[str, int, int], None]


class Candidate(NamedTuple):
    """A known fault in these layers; without layers in the operator ``where``."""

    group: tuple[str, ...]
    fault: GraphFault
    where: str = ""

    def explains(self, trial: Trial) -> Cause | None:
        """Returns the fault as a cause if every output passes with it, and was much farther apart
        before.
        """
        try:
            graph = self.fault.apply(Site(trial, self.group))
        except OnernnError:  # of values that would be made of each other
            return None
        outputs = None if graph is None else trial.outputs(graph)
        if outputs is None or not all_pass(outputs, trial.expected, trial.tolerances):
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
    """Yields each fault in all layers, the frequent ones first, then in each group of layers, and
    the faults of other operators.
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
    """Returns layers that may share a fault: all; then each layer, direction and part alone."""
    keys: tuple[Callable[[Any], Any], ...] = (
        lambda p: None,
        lambda p: (p.node, p.layer),
        lambda p: p.direction,
        lambda p: (p.node, p.direction),
        lambda p: p.node,
        lambda p: (p.node, p.layer, p.direction),
    )
    groups: dict[tuple[str, ...], None] = {}
    for key in keys:
        kinds: dict[Any, list[str]] = {}
        for name, part in trial.parts.items():
            kinds.setdefault(key(part), []).append(name)
        groups |= dict.fromkeys(map(tuple, kinds.values()))
    return list(groups)


def _search(trial: Trial, ends: float, seconds: float, progress: Progress) -> Cause | str:
    """Returns the first fault that explains all outputs, or how the search ended."""
    every = list(candidates(trial))
    for tried, candidate in enumerate(every):
        if time.monotonic() > ends:
            counted = f"{tried} of {len(every)} candidates tried"
            return f"search stopped after {seconds:g} s; {counted}; --seconds"
        progress("looking for the cause", tried, len(every))
        if cause := candidate.explains(trial):
            return cause
    return ""


# --- why a model's outputs are not the reference's: the causes that a report gives


def explain(report: Report, seconds: float, progress: Progress) -> Report:
    """Returns a failed report with the causes, as far as ``seconds`` allow, and what stopped the
    search.
    """
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
        with guard(lambda: "the search for a cause"):
            progress("comparing both models", 0, 1)
            ends = time.monotonic() + seconds
            if causes := read_causes(evidence, ends):
                late = time.monotonic() > ends and any(c.evidence == "candidate" for c in causes)
                few = f"after {seconds:g} s: fewer of these may be the causes; --seconds"
                return replace(report, causes=causes, stopped=late * f"search stopped {few}")
            result = _search(trial, ends, seconds, progress)
            if isinstance(result, str):
                return replace(report, stopped=result)
            return replace(report, causes=(prove(evidence, result),))
    except OnernnError as error:
        return replace(report, stopped=f"not explained: {error}")
