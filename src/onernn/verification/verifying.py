"""Compares a model's outputs with a recording, another model, or a framework's own run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import Pass
from onernn.fuse_passes.ragged_inputs import LENGTHS
from onernn.ir.arrays import Array
from onernn.ir.budget import STEPS, TimeLimit, limited_to
from onernn.ir.errors import (
    BudgetError,
    ModelFormatError,
    OnernnError,
    UnsupportedError,
    guard,
    message_of,
)
from onernn.ir.graph import Graph, defaults_of, feed_defaults, graph_of
from onernn.ir.ragged import Batch, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.verification.comparing import (
    GIVEN,
    MAP,
    Batches,
    OutputComparison,
    Tolerance,
    compare_all,
    differences,
    feed_for,
    in_one_form,
    json_text,
    map_data,
    outputs_for,
    tolerance_of,
)
from onernn.verification.diagnosis.cause import PROOFS, Cause
from onernn.verification.diagnosis.matching import NodeComparison, compare_nodes
from onernn.verification.input_generation import make_inputs, unite_inputs
from onernn.verification.profiles import Errors, Profile, axes_of, errors, profile
from onernn.verification.recording import (
    Recording,
    input_names,
    open_recording,
    read_given,
    read_inputs,
    read_outputs,
    rename_recording,
)
from onernn.verification.references import Against, Reference, live_against, open_against
from onernn.verification.tracing import (
    StepCounter,
    Steps,
    Traced,
    fast_backend,
    map_arrays,
    trace_layers,
)

SECONDS = 14.0
"""The default time limit in seconds for the search for faults."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The data of a verdict: both models, all inputs and outputs, and the tolerances.

    ``all_inputs``: the batches from which both models take their inputs. ``names``: the names of
    the reference's outputs by the model's names. ``narrow``: the layers that did not compute in
    float32.
    """

    model: Graph
    reference: Reference
    all_inputs: Batches
    inputs: Batches
    actual: Batches
    expected: Batches
    tolerances: Mapping[str, Tolerance]
    names: Mapping[str, str]
    narrow: tuple[str, ...] = ()

    @cached_property
    def mine(self) -> Traced:
        """All values of the model's run on the reference backend."""
        return trace_layers(self.model, self.inputs)

    @cached_property
    def theirs(self) -> Traced | None:
        """All values of a run of the reference; None if onernn cannot run it, for example a
        recording.
        """
        graph, feed = self.reference.graph, self.reference.feed
        return None if graph is None else trace_layers(graph, feed)

    def feeds(self, all_inputs: Batches) -> tuple[dict[str, Batch], dict[str, Batch]]:
        """Returns the inputs of both models, taken from ``all_inputs``."""
        assert self.reference.graph is not None
        mine, _ = feed_for(self.model.inputs, all_inputs, "the model")
        theirs, _ = feed_for(self.reference.graph.inputs, all_inputs, "the reference")
        return mine, theirs

    @cached_property
    def layers(self) -> tuple[NodeComparison, ...]:
        """The comparison of each pair of matched nodes, in the model's order."""
        if self.theirs is None:
            return ()
        asked = min(self.tolerances.values(), key=lambda t: t.atol)
        return compare_nodes(self.mine, self.theirs, asked)

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The errors of each output by step, length and direction."""
        result = axes_of(self.mine.graph, self.mine.values)
        there = self.theirs and axes_of(self.theirs.graph, self.theirs.values)
        profiles = []
        for name, want in self.expected.items():
            axes, counterpart = result.get(name), (there or {}).get(self.names[name])
            if axes is not None and axes.lengths is None and counterpart is not None:
                axes = replace(axes, lengths=counterpart.lengths)  # the reference has lengths
            profiles.append(profile(name, *in_one_form(self.actual[name], want), axes))
        return tuple(filter(None, profiles))


@dataclass(frozen=True)
class Report:
    """The verdict on each output, and the kernels that ran.

    ``errors``: the `Errors` of each output. ``causes``: the faults that together explain a
    difference. ``stopped``: why a search ended before it found all causes. ``notes``: the
    assumptions. ``steps``: the number of steps that each recurrent layer ran. The report does not
    pass if a layer ran one step, although its shape allows more.

    A report is the result of `verify`, whose docstring has an example.
    """

    outputs: tuple[OutputComparison, ...]
    kernels: str
    errors: Mapping[str, Errors] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    stopped: str = ""
    notes: tuple[str, ...] = ()
    steps: tuple[Steps, ...] = ()
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def matches(self) -> bool:
        """Whether all outputs match."""
        return all(output.passed for output in self.outputs)

    @property
    def unseen(self) -> tuple[str, ...]:
        """A message for each layer that ran one step although its shape allows more: then a match
        proves too little.
        """
        return tuple(
            f"{each}, too few to compare: it needs a sequence of 2 steps or more"
            for each in self.steps
            if each.unseen
        )

    @property
    def passed(self) -> bool:
        """Whether all outputs match, and no layer ran too few steps to compare."""
        return self.matches and not self.unseen

    @property
    def is_repairable(self) -> bool:
        """Whether `onernn.repair` can undo the causes: they are proved, or the reference is a
        recording.
        """
        recorded = self.evidence is not None and self.evidence.reference.against is None
        return len({cause.form for cause in self.causes}) == 1 and all(
            cause.edits
            and not any(edit.holds_batch for edit in cause.edits)
            and (recorded or cause.evidence == "proved")
            for cause in self.causes
        )

    def __bool__(self) -> bool:
        return self.passed

    @property
    def cause(self) -> Cause | None:
        """The first cause."""
        return next(iter(self.causes), None)

    @property
    def layers(self) -> tuple[NodeComparison, ...]:
        """The comparison of each pair of matched nodes; if the outputs match, the first access runs
        both models.
        """
        return self._show("layers")

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The errors of each output by step, length and direction; if the outputs match, the first
        access runs both models.
        """
        return self._show("profiles")

    def _show(self, part: str) -> tuple[Any, ...]:
        try:
            result: tuple[Any, ...] = getattr(self.evidence, part) if self.evidence else ()
        except OnernnError:  # a verdict is valid without its explanation
            return ()
        return result

    @property
    def first(self) -> NodeComparison | None:
        """The first node whose values differ from the reference's values."""
        return next((each for each in self.layers if not each.comparison.passed), None)

    def cause_json(self) -> dict[str, str] | None:
        """Returns ``{"id", "text", "evidence"}``, or None without a cause.

        The id is the first cause's, the text joins all causes, and the evidence is "proved" if all
        causes are proved, otherwise "candidate".
        """
        if self.cause is None:
            return None
        texts = "; ".join(each.text for each in self.causes)
        evidence = max((each.evidence for each in self.causes), key=PROOFS.index)
        return {"id": self.cause.id, "text": texts, "evidence": evidence}

    def to_json(self, repair: str = "") -> str:
        """Returns ``{"status", "outputs": [...], "cause", "details"}``. ``cause``: see
        `cause_json`; ``details`` lists every cause. ``repair``: the command that repairs the model.
        """
        details = {
            "errors": self.errors,
            "profiles": () if self.matches else self.profiles,
            "first_apart": None if self.matches else self.first,
            "causes": self.causes,
            "search": self.stopped,
            "notes": self.notes,
            "steps": self.steps,
            "repair": repair or None,
        }
        return json_text(
            self.passed, outputs=self.outputs, cause=self.cause_json(), details=details
        )


def error_json(error: Exception) -> str:
    """Returns the output of ``--json`` for an error."""
    return json_text("error", cause={"id": type(error).__name__, "text": message_of(error)})


def verify(
    model: Graph | str | Path,
    recording: str | Path | Mapping[str, Array] | None = None,
    *,
    against: Against | Graph | str | Path | object | None = None,
    dtype: str = "f32",
    atol: float | None = None,
    rtol: float | None = None,
    names: Mapping[str, str] | None = None,
    diagnose: bool = True,
    seconds: float | None = None,
    progress: Progress = lambda *_: None,
    threads: int | None = None,
    backend: str = "auto",
    strict: bool = False,
    passes: tuple[Pass, ...] | None = None,
    max_bytes: int | None = None,
    max_steps: int = STEPS,
) -> Report:
    """Runs a model, compares its outputs with a reference, and looks for the causes of differences.

    ``model``: a result of `onernn.load`, or a path. ``recording``: an ``.npz`` or its arrays by
    key. ``against``: a model, the path of one, "paddle:PATH", "mxnet:PATH", "onnxruntime:PATH" or
    "torch:PATH" for a framework's own run, or a torch.nn.Module in eval mode. ``against`` is the
    reference; without it the recorded outputs are. The model runs on the recorded inputs; without a
    recording it runs on inputs that reveal known faults. ``atol`` and ``rtol`` replace the dtype's
    default tolerance. The default is wider for outputs that amplify rounding errors of inputs and
    weights. ``names``: the names of the reference or recording by the model's names, if they
    differ. Further inputs and outputs whose names differ are matched in order, and the report says
    so.

    If outputs differ, ``diagnose`` searches for the faults that explain the difference: it compares
    both models, and tries known faults. ``seconds`` limits everything except the model's own runs;
    by default only the search has a limit, `SECONDS`. 0 compares without a search. `Session`
    describes ``dtype`` and the arguments from ``threads`` on.

    Raises `ModelFormatError` if the recording does not fit, `BudgetError` if ``seconds`` are over
    before the verdict, `UnsupportedError` if the model or the reference cannot run, and the errors
    of `Session`.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.onnx")
    >>> report = onernn.verify("relu.onnx", against=model)
    >>> report.passed, [output.name for output in report.outputs]
    (True, ['y'])
    """
    limit = TimeLimit.after(seconds or None)
    graph = graph_of(model)
    against = against_of(against, graph)
    if against is not None:
        against = against.rename(names or {}, graph)
    if recording is not None:
        recording = rename_recording(recording, *_names_in(names or {}, graph, against))
        if defaults_of(graph):
            graph = feed_defaults(graph, input_names(open_recording(recording)[0]))
    runner = Session(
        graph,
        dtype,
        threads,
        backend,
        strict,
        passes=passes,
        max_bytes=max_bytes,
        max_steps=max_steps,
    )
    report_on = partial(_report_on, graph, runner, dtype, atol, rtol)
    with guard(lambda: graph.name):
        cases = _cases(graph, recording, against, progress)
        with limited_to(limit):
            case = next(cases)
        progress("running the model", 0, 1)
        with limited_to(None):  # without a limit: the verdict needs this run
            report = report_on(case)
        if report.passed:
            report = _add_short_batch(report, cases, report_on, limit)
        if report.matches:
            return report
        from onernn.verification.diagnosis.search import explain  # not needed if the outputs match

        with limited_to(limit or TimeLimit.after(SECONDS)):
            return explain(report, diagnose and seconds != 0, progress)


def _names_in(
    names: Mapping[str, str], graph: Graph, against: Against | None
) -> tuple[Mapping[str, str], Container[str]]:
    """Returns the names to change in a recording, and names that the recording may lack.

    With a second model, the recording has the names of one of both models.
    """
    if against is None:
        return names, ()
    mine = {value.name for value in graph.inputs}
    return {k: v for k, v in names.items() if v not in mine}, names.values()


def against_of(against: Any, graph: Graph) -> Against | None:
    """Returns the reference for `verify`.

    ``against``: a model, a path, or a framework's live model whose outputs have the names and order
    of ``graph``'s outputs.
    """
    if against is None or isinstance(against, Against):
        return against
    if isinstance(against, Graph):
        return Against(against)
    if isinstance(against, str | Path):
        return open_against(str(against))
    return live_against(against, graph)


def _add_short_batch(
    report: Report,
    cases: Iterator[_Case],
    report_on: Callable[[_Case], Report],
    limit: TimeLimit | None,
) -> Report:
    """Returns the report with a note that a short batch also matches; if it does not match, the
    short batch's report.
    """
    try:
        with limited_to(limit):
            case = next(cases, None)
    except BudgetError as error:
        return replace(report, notes=(*report.notes, f"no short batch was compared: {error}"))
    if case is None:
        return report
    short = report_on(case)
    shapes = (f"{name} {data_of(value).shape}" for name, value in case.inputs.items())
    note = f"a short batch matches: {', '.join(shapes)}"
    return replace(report, notes=(*report.notes, note)) if short.matches else short


@dataclass(frozen=True)
class _Case:
    """One comparison: the model's inputs, taken from ``all_inputs``, the reference's outputs, and
    notes.
    """

    inputs: dict[str, Batch]
    all_inputs: dict[str, Batch]
    reference: Reference
    notes: list[str]


def _report_on(
    graph: Graph, runner: Session, dtype: str, atol: float | None, rtol: float | None, case: _Case
) -> Report:
    inputs, reference = case.inputs, case.reference
    actual = runner.run(inputs)
    compared = compare_outputs(graph, inputs, actual, reference.outputs, atol, rtol, dtype)
    expected, tolerances = compared.expected, compared.tolerances
    notes = [*case.notes, *(compared.notes if reference.complete else ())]
    notes += [
        f"output {name!r}: atol is {each.atol:.3g} in place of {compared.asked[name].atol:.3g},"
        " because this output amplifies rounding errors"
        for name, each in tolerances.items()
        if each.atol > compared.asked[name].atol
    ]
    differs = not all(each.passed for each in compared.outputs)
    if differs and any(GIVEN in note for note in case.notes):
        notes.append(f"inputs of other names are taken in order; {MAP} says which is which")
    if compared.empty:
        notes.append("nothing was compared: all outputs are empty")
    shown = {name: in_one_form(actual[name], expected[name]) for name in expected}
    evidence = Evidence(
        graph,
        reference,
        case.all_inputs,
        inputs,
        actual,
        expected,
        tolerances,
        compared.names,
        tuple(f"{e.node} in {e.dtype}" for e in runner.explained if e.dtype != "f32"),
    )
    return Report(
        compared.outputs,
        runner.explain(),
        {name: errors(data_of(a), data_of(b)) for name, (a, b) in shown.items()},
        notes=tuple(notes),
        steps=_steps(graph, inputs, reference),
        evidence=evidence,
    )


@dataclass(frozen=True, eq=False)
class Compared:
    """The outputs of a model, compared with the outputs of a reference.

    ``names``: the names of the reference's outputs by the model's names. ``asked``: the caller's
    tolerances, or the default ones. ``tolerances``: the tolerances of the verdict, which may be
    wider. ``notes``: the assumptions.
    """

    outputs: tuple[OutputComparison, ...]
    names: Mapping[str, str]
    expected: Batches
    asked: Mapping[str, Tolerance]
    tolerances: Mapping[str, Tolerance]
    notes: list[str]

    @property
    def empty(self) -> bool:
        """Whether all outputs are empty arrays."""
        return not any(data_of(value).size for value in self.expected.values())


def compare_outputs(
    graph: Graph,
    inputs: Batches,
    actual: Batches,
    reference: Batches,
    atol: float | None,
    rtol: float | None,
    dtype: str = "f32",
) -> Compared:
    """Compares a model's outputs with a reference's. If they differ under a default tolerance,
    `rounding` widens it.
    """
    pairs, notes = outputs_for([value.name for value in graph.outputs], reference)
    names = {name: theirs for name, (theirs, _) in pairs.items()}
    expected = {name: value for name, (_, value) in pairs.items()}
    asked = {
        name: tolerance_of(dtype, atol, rtol, actual[name], want) for name, want in expected.items()
    }
    tolerances, outputs = asked, compare_all(actual, expected, asked)
    if atol is rtol is None and dtype == "f32" and not all(each.passed for each in outputs):
        tolerances = rounding(graph, inputs, expected, asked)
        outputs = compare_all(actual, expected, tolerances)
    return Compared(outputs, names, expected, asked, tolerances, notes)


def _steps(graph: Graph, inputs: Batches, reference: Reference) -> tuple[Steps, ...]:
    """Returns the steps of the model's layers. If the reference's layers make different numbers of
    steps, the result has these steps in addition.
    """
    session = StepCounter(graph, backend=fast_backend())
    if not session.count_by_types(inputs):  # shapes do not determine all numbers of steps
        session.run(inputs)
    other = reference.session
    if other is None:
        return session.steps()
    mine = session.steps(unite_inputs(graph.inputs, other.graph.inputs))
    theirs = other.steps(unite_inputs(other.graph.inputs, graph.inputs))
    counts = [[(each.count, each.most) for each in steps] for steps in (mine, theirs)]
    named = (replace(each, layer=f"the reference's {each.layer}") for each in theirs)
    return mine if counts[0] == counts[1] else (*mine, *named)


def _cases(
    model: Graph, recording: Recording | None, against: Against | None, progress: Progress
) -> Iterator[_Case]:
    """Yields the cases to compare: one case of a recording, or a long and a short generated
    batch.
    """
    if recording is not None:
        arrays, where = open_recording(recording)
        if against is not None:
            yield _both(model, against, read_given(arrays), progress)
            return
        try:
            inputs = read_inputs(arrays, model.inputs, where)
            expected = read_outputs(arrays, model.outputs, where)
        except ModelFormatError as misfit:
            misfit.args = (f"{misfit}; {MAP} names what has another name in the recording",)
            raise
        yield _Case(inputs, inputs, Reference(where, expected, complete=False), [])
        return
    if against is None:
        raise UnsupportedError(
            "nothing to compare with: pass a recording, --data io.npz, or a reference,"
            " --against MODEL"
        )
    error: OnernnError | None = None
    for empty in (True, False):
        progress("making inputs", 0, 1)
        all_inputs = make_inputs(*either(model, against), empty=empty)
        try:
            case = _both(model, against, all_inputs, progress)
            break
        except UnsupportedError as failed:
            if not (empty and against.kind):
                raise
            error = failed  # frameworks may have no sequences of length zero
    note = "inputs were made: no data was given"
    note += "" if error is None else f", none of length zero: {error}"
    single = [f"{k!r} is {v}" for k, v in all_inputs.items() if np.ndim(data_of(v)) == 0]
    note += "".join(f"; {each}" for each in single)  # branches may depend on scalars
    yield replace(case, notes=[note, *case.notes])
    try:
        few = make_inputs(*either(model, against), empty=empty, short=True, known=all_inputs)
        shapes = [[data_of(value).shape for value in each.values()] for each in (all_inputs, few)]
        if shapes[0] != shapes[1]:
            short = _both(model, against, few, progress)
            yield replace(short, notes=["inputs were made: a short batch", *short.notes])
    except UnsupportedError:  # for example a model of one length
        return


def either(model: Graph, against: Against) -> tuple[Graph, Graph]:
    """Returns both graphs. The first one declares more inputs (without lengths), or as many with a
    larger LoD depth. If onernn does not read the reference's graph, the model's graph is first.
    """

    def count_declared(graph: Graph) -> tuple[int, int]:
        names = [v.name for v in graph.inputs if not v.name.endswith(LENGTHS)]
        return len(names), max((v.lod_depth for v in graph.inputs), default=0)

    graphs = model, against.graph
    if against.is_read and count_declared(model) <= count_declared(against.graph):
        return graphs[::-1]
    return graphs


def _both(model: Graph, against: Against, all_inputs: Batches, progress: Progress) -> _Case:
    theirs, notes = feed_for(against.graph.inputs, all_inputs, "the reference")
    mine, more = feed_for(model.inputs, all_inputs, "the model")
    reference = against.run(theirs, progress)
    return _Case(mine, dict(all_inputs), reference, [*notes, *more])


# --- wider tolerances for outputs that amplify rounding errors


_DRAWS = 3
_MULTIPLE = 8
"""Factor from a measured effect to a tolerance: implementations round at many steps, a measurement
once.
"""
_MOST = 1e-3
"""The tolerance is at most this part of the largest output: a chaotic model cannot be compared, and
fails.
"""


def rounding(
    model: Graph,
    inputs: Batches,
    expected: Batches,
    asked: Mapping[str, Tolerance],
) -> dict[str, Tolerance]:
    """Returns the tolerance of each output, widened for rounding errors.

    It moves each float of inputs and weights by one unit in the last place of float32, up or down
    at random. The tolerance is `_MULTIPLE` times the largest change, but at most `_MOST` of the
    output's largest value.
    """
    out = dict(asked)
    rng = np.random.default_rng(0)
    try:
        still = _run(model, inputs)
        for _ in range(_DRAWS):
            move = partial(_move_floats, rng=rng)
            moved = {name: map_data(value, move) for name, value in inputs.items()}
            other = _run(map_arrays(model, move), moved)
            for name, want in expected.items():
                out[name] = _wider(out[name], still[name], other[name], want)
    except OnernnError:
        return dict(asked)
    return out


def _run(model: Graph, inputs: Batches) -> dict[str, Batch]:
    return Session(model, backend=fast_backend(), threads=1).run(inputs)


def _wider(tolerance: Tolerance, one: Batch, other: Batch, want: Batch) -> Tolerance:
    a, b = data_of(one), data_of(other)
    reference = data_of(in_one_form(one, want)[1])
    if a.dtype.kind != "f" or a.shape != b.shape or not reference.size:
        return tolerance
    apart = differences(a, b)
    largest = np.abs(reference[np.isfinite(reference)]).max(initial=0)
    allowed = _MULTIPLE * float(apart[np.isfinite(apart)].max(initial=0))
    return replace(tolerance, atol=max(tolerance.atol, min(allowed, _MOST * float(largest))))


def _move_floats(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    eps = np.finfo(np.float32).eps
    return (array * (1 + eps * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
