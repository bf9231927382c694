"""Why a model's outputs are not the reference's: the causes that a report gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onernn.ir.errors import OnernnError, guarded
from onernn.ir.rnn import Recurrent
from onernn.verification.aligning import feed_for
from onernn.verification.comparing import all_pass
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.diagnosis.model_diff import read_causes, tested
from onernn.verification.diagnosis.search import Side, find_causes
from onernn.verification.layerwise import Traced, matched, traced
from onernn.verification.tracing import fast_backend
from onernn.verification.verifying import Evidence, Report

Progress = Callable[[str, int, int], None]


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
