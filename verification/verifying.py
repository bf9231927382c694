"""A model against a recording, another model, or a framework's own run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from onernn.core import html
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, UnsupportedError, told
from onernn.core.graph import Graph, graph_of
from onernn.core.guard import guarded
from onernn.core.ragged import Batch, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent
from onernn.runtime.session import Session
from onernn.verification.aligning import LENGTHS, feed_for, in_one_form, outputs_for
from onernn.verification.comparing import OutputComparison, Tolerance, compare, tolerance_of
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.diagnosis.candidates import Side, traced
from onernn.verification.diagnosis.cause import Cause
from onernn.verification.diagnosis.causes import SECONDS, find_causes
from onernn.verification.diagnosis.model_diff import Compared, read_causes, tested
from onernn.verification.error_profiles import Errors, Profile, errors, profile
from onernn.verification.input_generation import make_inputs
from onernn.verification.json_text import json_text
from onernn.verification.layerwise import NodeComparison, Traced, first_apart, layers, matched
from onernn.verification.output_axes import Axes, axes_of
from onernn.verification.recording import opened, read_given, read_inputs, read_outputs
from onernn.verification.references import Against, Reference, live_against, open_against
from onernn.verification.rounding import rounding
from onernn.verification.tracing import Values, fast_backend

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a verdict rests on: both models, all inputs and outputs, and the tolerances.

    ``given``: the batches that both sides' inputs were made of.
    """

    model: Graph
    reference: Reference
    given: Mapping[str, Batch]
    inputs: Mapping[str, Batch]
    actual: Mapping[str, Batch]
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]


@dataclass(frozen=True)
class Report:
    """The verdict on each output, and the kernels that ran.

    ``errors`` and ``profiles``: by output, how far they are apart and where; ``causes``: the faults
    that explain a difference together; ``layers``: matched nodes of both models in order, compared;
    ``stopped``: how a search ended that took too long; ``notes``: what had to be assumed.
    """

    outputs: tuple[OutputComparison, ...]
    kernels: str
    errors: Mapping[str, Errors] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    causes: tuple[Cause, ...] = ()
    layers: tuple[NodeComparison, ...] = ()
    stopped: str = ""
    notes: tuple[str, ...] = ()
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def cause(self) -> Cause | None:
        """The first cause."""
        return next(iter(self.causes), None)

    @property
    def first(self) -> NodeComparison | None:
        """The first node that departs from the reference's."""
        return first_apart(self.layers)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict on each output, the cause, the first node apart."""
        rows = (
            (each.name, "pass" if each.passed else "FAIL", f"{each.max_abs:.3g}",
             f"{each.max_rel:.3g}", each.reason)
            for each in self.outputs
        )  # fmt: skip
        told = list(self.notes)
        if not self.passed:
            found = self.cause
            cause = found and f"{found.text} [{found.id}]"
            none = self.stopped or "none of the known faults explains it"
            told.insert(0, f"cause: {cause or none}")
        if self.first is not None:
            told.insert(1, f"first node apart: {self.first}")
        head = ("output", "verdict", "max abs", "max rel", "reason")
        title = "equal" if self.passed else "not equal"
        return html.block(title, html.table(head, rows), *map(html.paragraph, told))

    def to_json(self) -> str:
        """``{"status", "outputs": [...], "cause", "details"}``; see `OutputComparison.as_json`.

        ``cause`` has the id of the first cause and the texts of all; ``details`` has each.
        """
        texts = "; ".join(each.text for each in self.causes)
        cause = None if self.cause is None else {"id": self.cause.id, "text": texts}
        first = None
        if self.first is not None:
            reason = self.first.comparison.reason
            first = {"node": str(self.first), "value": self.first.value, "reason": reason}
        details = {
            "errors": {name: asdict(each) for name, each in self.errors.items()},
            "profiles": [each.as_json() for each in self.profiles],
            "first_apart": first,
            "causes": [each.as_json() for each in self.causes],
            "search": self.stopped,
            "notes": list(self.notes),
        }
        return json_text(
            {
                "status": "pass" if self.passed else "fail",
                "outputs": [output.as_json() for output in self.outputs],
                "cause": cause,
                "details": details,
            }
        )


def error_json(error: Exception) -> str:
    """What ``--json`` prints where nothing could be compared."""
    cause = {"id": type(error).__name__, "text": told(error)}
    return json_text({"status": "error", "outputs": [], "cause": cause})


def verify(
    model: Graph | str | Path,
    recording: str | Path | Mapping[str, Array] | None = None,
    *,
    against: Against | Graph | str | Path | object | None = None,
    dtype: str = "f32",
    atol: float | None = None,
    rtol: float | None = None,
    diagnose: bool = True,
    seconds: float = SECONDS,
    progress: Progress = lambda *_: None,
    **session: Any,
) -> Report:
    """Runs a model, as `onernn.load` gives it or by its path, and compares it with a reference.

    ``recording``: an ``.npz`` or its arrays by key; its outputs are the reference, unless
    ``against`` is one: a model, the path of one, "paddle:PATH", "mxnet:PATH", "onnxruntime:PATH" or
    "torch:PATH" for a framework's own run, or a torch.nn.Module in eval mode. It runs on the
    recorded inputs, or on inputs made to tell faults apart where there is no recording. ``atol``
    and ``rtol`` replace the dtype's default tolerance, which is otherwise widened by what one
    rounding error in all inputs and weights makes of the outputs. Where outputs differ,
    ``diagnose`` looks for the faults that explain it: both models are compared, and known faults
    tried for at most ``seconds``. Further arguments go to `Session`.

    Raises `ModelFormatError` where the recording does not fit, `UnsupportedError` and what
    `Session` raises where either side cannot be run.
    """
    if isinstance(against, Graph):
        against = Against(against)
    elif isinstance(against, str | Path):
        against = open_against(str(against))
    graph = graph_of(model)
    if against is not None and not isinstance(against, Against):
        against = live_against(against, graph)
    runner = Session(graph, dtype=dtype, **session)
    with guarded(lambda: graph.name):
        inputs, given, reference, notes = _reference(graph, recording, against, progress)
        progress("running the model", 0, 1)
        actual = runner.run(inputs)
        pairs, assumed = outputs_for([v.name for v in graph.outputs], reference.outputs)
        if against is None:  # a recording may leave outputs out
            assumed = []
        expected = {name: value for name, (_, value) in pairs.items()}
        asked = {n: tolerance_of(dtype, atol, rtol, actual[n], w) for n, w in expected.items()}
        tolerances = asked
        outputs = _compared(actual, expected, tolerances)
        exact = atol is not None or rtol is not None or dtype != "f32"
        if not exact and not all(each.passed for each in outputs):
            tolerances = rounding(graph, inputs, expected, asked)
            outputs = _compared(actual, expected, tolerances)
        notes += assumed
        notes += [
            f"output {name!r}: {each.atol:.3g} is allowed, what rounding errors make of it"
            for name, each in tolerances.items()
            if each.atol > asked[name].atol
        ]
        if not any(data_of(value).size for value in expected.values()):
            notes.append("nothing was compared: all outputs are empty")
        shown = {name: in_one_form(actual[name], expected[name]) for name in expected}
        evidence = Evidence(graph, reference, given, inputs, actual, expected, tolerances)
        report = Report(
            outputs,
            runner.explain(),
            {name: errors(data_of(a), data_of(b)) for name, (a, b) in shown.items()},
            notes=tuple(notes),
            evidence=evidence,
        )
        return _explained(report, pairs, seconds if diagnose else 0.0, progress)


def _compared(
    actual: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> tuple[OutputComparison, ...]:
    return tuple(
        compare(name, *in_one_form(actual[name], want), tolerances[name])
        for name, want in expected.items()
    )


def _reference(
    model: Graph,
    recording: str | Path | Mapping[str, Array] | None,
    against: Against | None,
    progress: Progress,
) -> tuple[dict[str, Batch], dict[str, Batch], Reference, list[str]]:
    """The model's inputs, what they were made of, the reference's run, and what was assumed."""
    if recording is not None:
        arrays, where = opened(recording)
        if against is not None:
            return _both(model, against, read_given(arrays), progress)
        inputs = read_inputs(arrays, model.inputs, where)
        expected = read_outputs(arrays, model.outputs, where)
        return inputs, inputs, Reference(where, expected), []
    if against is None:
        raise UnsupportedError("nothing to compare with: give a recording, or against")
    error: OnernnError | None = None
    for empty in (True, False):
        progress("making inputs", 0, 1)
        known = [against.graph, model] if against.is_read else [model]
        given = make_inputs(max(known, key=tells), *known, empty=empty)
        try:
            inputs, given, reference, notes = _both(model, against, given, progress)
        except UnsupportedError as failed:
            if error is not None or not against.kind:
                raise
            error = failed  # frameworks may have no sentences of length zero
            continue
        sentence = "" if error is None else f", none of length zero: {error}"
        return inputs, given, reference, [f"inputs were made: no data was given{sentence}", *notes]
    raise AssertionError("the loop returns or raises")


def tells(graph: Graph) -> tuple[int, int]:
    """How much a model says of its inputs: their number, lengths apart, and how deep they are."""
    names = [v.name for v in graph.inputs if not v.name.endswith(LENGTHS)]
    return len(names), max((v.lod_depth for v in graph.inputs), default=0)


def _both(
    model: Graph, against: Against, given: Mapping[str, Batch], progress: Progress
) -> tuple[dict[str, Batch], dict[str, Batch], Reference, list[str]]:
    """The model's inputs and the reference's run, on what is given."""
    theirs, notes = feed_for(against.graph.inputs, given, "the reference")
    mine, more = feed_for(model.inputs, given, "the model")
    reference = against.run(theirs, progress)
    return mine, dict(given), reference, [*notes, *more]


def _explained(
    report: Report,
    pairs: Mapping[str, tuple[str, Batch]],
    seconds: float,
    progress: Progress,
) -> Report:
    """With profiles, and where it failed with the first node apart and the cause."""
    evidence = report.evidence
    assert evidence is not None
    progress("tracing the model", 0, 1)
    try:
        mine = traced(evidence.model, evidence.inputs)
        other = evidence.reference.traced()
    except OnernnError as error:  # a verdict stands without its explanation
        return replace(report, notes=(*report.notes, f"not explained: {error}"))
    axes = _axes(mine, other, pairs)
    profiles = tuple(
        each
        for name, want in evidence.expected.items()
        if (each := profile(name, *in_one_form(evidence.actual[name], want), axes.get(name)))
    )
    report = replace(report, profiles=profiles)
    asked = min(evidence.tolerances.values(), key=lambda t: t.atol)
    if other is not None:
        report = replace(report, layers=layers(mine, other, asked))
    if report.passed or not seconds:
        return report
    sides = _sides(evidence, report.layers, mine, other, pairs)
    if not sides:
        note = "the NumPy reference gives what is expected: the fault is in the kernel that ran"
        return replace(report, notes=(*report.notes, note))
    progress("comparing both models", 0, 1)
    ends = time.monotonic() + seconds
    compared = _compared_models(evidence, mine, other, pairs)
    if compared is not None and (causes := read_causes(compared, ends)):
        late = time.monotonic() > ends and any(c.evidence == "candidate" for c in causes)
        few = f"search stopped after {seconds:g} s: fewer of these may be the causes; --seconds"
        return replace(report, causes=causes, stopped=few if late else "")
    found = find_causes(_cut(sides, evidence, mine, pairs), ends, seconds, progress)
    causes = found.causes
    if compared is not None:
        causes = tuple(c if c.evidence == "proved" else tested(compared, c) for c in causes)
    return replace(report, causes=causes, stopped=found.stopped)


def _compared_models(
    evidence: Evidence,
    mine: Traced,
    other: Traced | None,
    pairs: Mapping[str, tuple[str, Batch]],
) -> Compared | None:
    """Both models, where the reference is one, too."""
    graph = evidence.reference.graph
    if graph is None or other is None:
        return None
    return Compared(
        evidence.model,
        graph,
        mine,
        other,
        evidence.given,
        {name: theirs for name, (theirs, _) in pairs.items()},
        evidence.expected,
        evidence.tolerances,
    )


def _cut(
    sides: Sequence[Side],
    evidence: Evidence,
    mine: Traced,
    pairs: Mapping[str, tuple[str, Batch]],
) -> list[Side]:
    """The sides, with what they are on few sentences where the batch can be cut."""
    given = {**evidence.given, **evidence.inputs}
    cut = cut_batch(mine.graph, given, mine.values, evidence.expected, evidence.tolerances)
    if cut is None:
        return list(sides)
    reference = evidence.reference
    inputs = {name: cut.given[name] for name in evidence.inputs}
    kept = {name: batch for name, batch in cut.given.items() if name in evidence.given}
    there: Traced | None = None
    if reference.graph is not None:
        feed, _ = feed_for(reference.graph.inputs, kept, "the reference")
        there = traced(reference.graph, feed, fast_backend())
        reference = replace(reference, feed=feed)
    few = replace(
        evidence,
        reference=reference,
        given=kept,
        inputs=inputs,
        expected=cut.expected,
        tolerances=cut.tolerances,
    )
    here = replace(mine, values=cut.values)
    asked = min(cut.tolerances.values(), key=lambda t: t.atol)
    compared = layers(here, there, asked) if there is not None else ()
    named = {name: (theirs, cut.expected[name]) for name, (theirs, _) in pairs.items()}
    small = {side.is_model: side for side in _sides(few, compared, here, there, named)}
    return [replace(s, few=small.get(s.is_model), proves=cut.proves) for s in sides]


def _sides(
    evidence: Evidence,
    compared: Sequence[NodeComparison],
    mine: Traced,
    other: Traced | None,
    pairs: Mapping[str, tuple[str, Batch]],
) -> list[Side]:
    """Who may be at fault: the model, and what the reference would have to do to give the same.

    ``compared``: the layers of both.
    """
    verdicts = _compared(mine.values, evidence.expected, evidence.tolerances)
    if all(each.passed for each in verdicts):
        return []
    given = {**evidence.given, **evidence.reference.feed, **evidence.inputs}
    apart = (each for each in compared if each.part and not each.comparison.passed)
    first = next(((each.value, each.reference) for each in apart), ("", ""))
    pairs_of_layers = [
        (Recurrent.of(one), Recurrent.of(two))
        for one, two in (matched(mine, other) if other is not None else ())
        if one.op == two.op == "Rnn"
    ]
    there = {} if other is None else other.values
    sides = [
        Side(
            evidence.model,
            mine,
            evidence.inputs,
            given,
            evidence.expected,
            evidence.tolerances,
            {one.y: two.layers[0] for one, two in pairs_of_layers},
            "matches when",
            True,
            first[0],
            _counterpart(pairs_of_layers, first[0], there),
        )
    ]
    graph = evidence.reference.graph
    wanted = {theirs: mine.values[name] for name, (theirs, _) in pairs.items()}
    if other is None or graph is None or not set(wanted) <= set(there):
        return sides
    tolerances = {theirs: evidence.tolerances[name] for name, (theirs, _) in pairs.items()}
    if not all(each.passed for each in _compared(there, wanted, tolerances)):
        turned = [(two, one) for one, two in pairs_of_layers]
        sides.append(
            Side(
                graph,
                other,
                evidence.reference.feed,
                given,
                wanted,
                tolerances,
                {two.y: one.layers[0] for two, one in turned},
                "the reference gives what the model gives when, in it,",
                False,
                first[1],
                _counterpart(turned, first[1], mine.values),
            )
        )
    return sides


def _counterpart(
    pairs: Sequence[tuple[Recurrent, Recurrent]], name: str, values: Values
) -> dict[str, Any]:
    """What the layer of this name should make: what its counterpart makes, by its own names."""
    return {
        own: values[their]
        for one, two in pairs
        if one.y == name
        for own, their in zip((one.y, *one.finals), (two.y, *two.finals), strict=False)
        if own and their
    }


def _axes(
    mine: Traced, other: Traced | None, pairs: Mapping[str, tuple[str, Batch]]
) -> dict[str, Axes]:
    """Axes of the model's outputs; sentence lengths also where only the reference knows them."""
    found = axes_of(mine.graph, mine.values)
    theirs = axes_of(other.graph, other.values) if other is not None else {}
    for name, axes in found.items():
        counterpart = theirs.get(pairs[name][0]) if name in pairs else None
        if axes.lengths is None and counterpart is not None:
            found[name] = replace(axes, lengths=counterpart.lengths)
    return found
