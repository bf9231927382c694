"""A model against a recording, another model, or a framework's own run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, UnsupportedError, guard, message_of
from onernn.ir.graph import Graph, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.verification.comparing import (
    LENGTHS,
    OutputComparison,
    Tolerance,
    compare_all,
    differences,
    feed_for,
    in_one_form,
    json_text,
    outputs_for,
    tolerance_of,
)
from onernn.verification.diagnosis.cause import Cause
from onernn.verification.diagnosis.matching import NodeComparison, compare_nodes
from onernn.verification.input_generation import make_inputs, united_inputs
from onernn.verification.profiles import Errors, Profile, axes_of, errors, profile
from onernn.verification.recording import open_recording, read_given, read_inputs, read_outputs
from onernn.verification.references import Against, Reference, live_against, open_against
from onernn.verification.tracing import (
    StepCounter,
    Steps,
    Traced,
    fast_backend,
    trace_layers,
    with_layers,
)

SECONDS = 14.0
"""The limit for a search of causes; with all else a verdict takes less than 20."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The grounds of a verdict: both models, all inputs and outputs, and the tolerances.

    ``all_inputs``: those from which both sides take theirs; ``names``: the reference's outputs by
    the model's names; ``narrow``: the layers that computed in another dtype than float32.
    """

    model: Graph
    reference: Reference
    all_inputs: Mapping[str, Batch]
    inputs: Mapping[str, Batch]
    actual: Mapping[str, Batch]
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    names: Mapping[str, str]
    narrow: tuple[str, ...] = ()

    @cached_property
    def mine(self) -> Traced:
        """All values of the model's run, on the reference backend."""
        return trace_layers(self.model, self.inputs)

    @cached_property
    def theirs(self) -> Traced | None:
        """All values of the reference's run, where it is a model."""
        return self.reference.trace_layers()

    def feeds(self, all_inputs: Mapping[str, Batch]) -> tuple[dict[str, Batch], dict[str, Batch]]:
        """Returns the inputs of both models, taken from other batches."""
        assert self.reference.graph is not None
        mine, _ = feed_for(self.model.inputs, all_inputs, "the model")
        theirs, _ = feed_for(self.reference.graph.inputs, all_inputs, "the reference")
        return mine, theirs

    @cached_property
    def layers(self) -> tuple[NodeComparison, ...]:
        """Matched nodes of both models in order, compared."""
        if self.theirs is None:
            return ()
        asked = min(self.tolerances.values(), key=lambda t: t.atol)
        return compare_nodes(self.mine, self.theirs, asked)

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The errors of each output by place."""
        result = axes_of(self.mine.graph, self.mine.values)
        there = self.theirs and axes_of(self.theirs.graph, self.theirs.values)
        profiles = []
        for name, want in self.expected.items():
            axes, counterpart = result.get(name), (there or {}).get(self.names[name])
            if axes is not None and axes.lengths is None and counterpart is not None:
                axes = replace(axes, lengths=counterpart.lengths)  # only the reference knows them
            profiles.append(profile(name, *in_one_form(self.actual[name], want), axes))
        return tuple(filter(None, profiles))


@dataclass(frozen=True)
class Report:
    """The verdict on each output, and the kernels that ran.

    ``errors``: by output, how far they are apart; ``causes``: the faults that explain a difference
    together; ``stopped``: how a search ended that found no cause, or not all; ``notes``: what was
    assumed; ``steps``: of each recurrent layer. If one ran a single step, and could run more, the
    report does not pass.
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
        """Why matching outputs prove too little: layers that ran one step, and could run more."""
        return tuple(
            f"{each}, too few to compare: it needs a sequence of 2 steps or more"
            for each in self.steps
            if each.unseen
        )

    @property
    def passed(self) -> bool:
        return self.matches and not self.unseen

    def __bool__(self) -> bool:
        return self.passed

    @property
    def cause(self) -> Cause | None:
        """The first cause."""
        return next(iter(self.causes), None)

    @property
    def layers(self) -> tuple[NodeComparison, ...]:
        """Matched nodes of both models in order, compared; if outputs match, both run for it."""
        return self._show("layers")

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The errors of each output by place; if outputs match, both models run for it."""
        return self._show("profiles")

    def _show(self, part: str) -> tuple[Any, ...]:
        try:
            result: tuple[Any, ...] = getattr(self.evidence, part) if self.evidence else ()
        except OnernnError:  # a verdict stands without its explanation
            return ()
        return result

    @property
    def first(self) -> NodeComparison | None:
        """The first node that departs from the reference's."""
        return next((each for each in self.layers if not each.comparison.passed), None)

    def cause_json(self) -> dict[str, str] | None:
        """``{"id", "text", "evidence"}``: the first cause's id, the texts of all, and "proved"
        where all of them are, else "candidate"; None if there is no cause.
        """
        if self.cause is None:
            return None
        proved = all(each.evidence == "proved" for each in self.causes)
        texts = "; ".join(each.text for each in self.causes)
        evidence = "proved" if proved else "candidate"
        return {"id": self.cause.id, "text": texts, "evidence": evidence}

    def to_json(self) -> str:
        """``{"status", "outputs": [...], "cause", "details"}``; see `OutputComparison.as_json` and
        `cause_json`; ``details`` has each cause.
        """
        apart = None if self.matches else self.first
        first = apart and {
            "node": str(apart),
            "value": apart.value,
            "reason": apart.comparison.reason,
        }
        details = {
            "errors": {name: asdict(each) for name, each in self.errors.items()},
            "profiles": [] if self.matches else [each.as_json() for each in self.profiles],
            "first_apart": first,
            "causes": [each.as_json() for each in self.causes],
            "search": self.stopped,
            "notes": list(self.notes),
            "steps": [{**vars(each), "unseen": each.unseen} for each in self.steps],
        }
        outputs = [output.as_json() for output in self.outputs]
        return json_text(self.passed, outputs=outputs, cause=self.cause_json(), details=details)


def error_json(error: Exception) -> str:
    """Returns the text of ``--json`` if nothing could be compared."""
    cause = {"id": type(error).__name__, "text": message_of(error)}
    return json_text("error", cause=cause)


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

    Raises `ModelFormatError` if the recording does not fit, `UnsupportedError` and what
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
    comparison = _Comparison(graph, runner, against is None, dtype, atol, rtol)
    with guard(lambda: graph.name):
        cases = _cases(graph, recording, against, progress)
        case = next(cases)
        progress("running the model", 0, 1)
        report = comparison.on(case)
        for case in cases if report.passed else ():  # a short batch
            short = comparison.on(case)
            note = f"a short batch matches: {_list_shapes(case.inputs)}"
            report = replace(report, notes=(*report.notes, note)) if short.matches else short
        if report.matches:
            return report
        from onernn.verification.diagnosis.search import explain  # an equal pair needs none

        return explain(report, seconds if diagnose else 0.0, progress)


@dataclass(frozen=True)
class _Case:
    """The model's inputs, what they were made of, the reference's run, and what was assumed."""

    inputs: dict[str, Batch]
    all_inputs: dict[str, Batch]
    reference: Reference
    notes: list[str]


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A model with the session that runs it, and the tolerances that a caller asked for.

    ``recorded``: the reference is a recording, which may leave outputs out.
    """

    graph: Graph
    runner: Session
    recorded: bool
    dtype: str
    atol: float | None
    rtol: float | None

    def on(self, case: _Case) -> Report:
        """Returns the verdict on one batch, without causes."""
        inputs, reference, notes = case.inputs, case.reference, case.notes
        actual = self.runner.run(inputs)
        pairs, assumed = outputs_for([v.name for v in self.graph.outputs], reference.outputs)
        expected = {name: value for name, (_, value) in pairs.items()}
        asked = {
            name: tolerance_of(self.dtype, self.atol, self.rtol, actual[name], want)
            for name, want in expected.items()
        }
        tolerances = asked
        outputs = compare_all(actual, expected, tolerances)
        exact = self.atol is not None or self.rtol is not None or self.dtype != "f32"
        if not exact and not all(each.passed for each in outputs):
            tolerances = rounding(self.graph, inputs, expected, asked)
            outputs = compare_all(actual, expected, tolerances)
        notes += [] if self.recorded else assumed
        notes += [
            f"output {name!r}: {each.atol:.3g} is allowed, what rounding errors make of it"
            for name, each in tolerances.items()
            if each.atol > asked[name].atol
        ]
        if not any(data_of(value).size for value in expected.values()):
            notes.append("nothing was compared: all outputs are empty")
        shown = {name: in_one_form(actual[name], expected[name]) for name in expected}
        evidence = Evidence(
            self.graph,
            reference,
            case.all_inputs,
            inputs,
            actual,
            expected,
            tolerances,
            {name: theirs for name, (theirs, _) in pairs.items()},
            tuple(f"{e.node} in {e.dtype}" for e in self.runner.explained if e.dtype != "f32"),
        )
        return Report(
            outputs,
            self.runner.explain(),
            {name: errors(data_of(a), data_of(b)) for name, (a, b) in shown.items()},
            notes=tuple(notes),
            steps=_steps(self.graph, inputs, reference),
            evidence=evidence,
        )


def _steps(graph: Graph, inputs: Mapping[str, Batch], reference: Reference) -> tuple[Steps, ...]:
    """Returns the steps of the model's layers; of the reference's as well, if they are not the
    same.
    """
    session = StepCounter(graph, backend=fast_backend())
    session.run(inputs)
    other = reference.session
    if other is None:
        return session.steps()
    mine = session.steps(united_inputs(graph, other.graph))
    theirs = other.steps(united_inputs(other.graph, graph))
    counts = [[(each.count, each.most) for each in steps] for steps in (mine, theirs)]
    named = (replace(each, layer=f"the reference's {each.layer}") for each in theirs)
    return mine if counts[0] == counts[1] else (*mine, *named)


def _list_shapes(inputs: Mapping[str, Batch]) -> str:
    return ", ".join(f"{name} {data_of(value).shape}" for name, value in inputs.items())


def _cases(
    model: Graph,
    recording: str | Path | Mapping[str, Array] | None,
    against: Against | None,
    progress: Progress,
) -> Iterator[_Case]:
    """Yields what is compared: a recording, or a long and a short made batch."""
    if recording is not None:
        arrays, where = open_recording(recording)
        if against is not None:
            yield _both(model, against, read_given(arrays), progress)
            return
        inputs = read_inputs(arrays, model.inputs, where)
        expected = read_outputs(arrays, model.outputs, where)
        yield _Case(inputs, inputs, Reference(where, expected), [])
        return
    if against is None:
        raise UnsupportedError(
            "nothing to compare with: give a recording, --data io.npz, or a reference,"
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
            if error is not None or not against.kind:
                raise
            error = failed  # frameworks may have no sequences of length zero
    note = "inputs were made: no data was given"
    note += "" if error is None else f", none of length zero: {error}"
    single = [f"{k!r} is {v}" for k, v in all_inputs.items() if np.ndim(data_of(v)) == 0]
    note += "".join(f"; {each}" for each in single)  # a branch may depend on it
    yield replace(case, notes=[note, *case.notes])
    try:
        few = make_inputs(*either(model, against), empty=empty, short=True)
        shapes = [[data_of(value).shape for value in each.values()] for each in (all_inputs, few)]
        if shapes[0] != shapes[1]:
            short = _both(model, against, few, progress)
            yield replace(short, notes=["inputs were made: a short batch", *short.notes])
    except UnsupportedError:  # such as a model of one length
        return


def either(model: Graph, against: Against) -> tuple[Graph, Graph]:
    """Returns both graphs, first the one that says more of its inputs: their number, lengths apart,
    and how deep they are.
    """

    def find_known(graph: Graph) -> tuple[int, int]:
        names = [v.name for v in graph.inputs if not v.name.endswith(LENGTHS)]
        return len(names), max((v.lod_depth for v in graph.inputs), default=0)

    other = against.graph
    return (
        (model, other)
        if find_known(model) > find_known(other) or not against.is_read
        else (other, model)
    )


def _both(
    model: Graph, against: Against, all_inputs: Mapping[str, Batch], progress: Progress
) -> _Case:
    """Returns the model's inputs and the reference's run, on what is given."""
    theirs, notes = feed_for(against.graph.inputs, all_inputs, "the reference")
    mine, more = feed_for(model.inputs, all_inputs, "the model")
    reference = against.run(theirs, progress)
    return _Case(mine, dict(all_inputs), reference, [*notes, *more])


# --- what rounding errors make of a model's outputs: the reason for a wider tolerance


_DRAWS = 3
_MULTIPLE = 8
"""Two right implementations round at some steps each, a draw rounds once: a small multiple."""
_MOST = 1e-3
"""Part of the largest value: outputs of a chaotic model cannot be compared, and fail."""


def rounding(
    model: Graph,
    inputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    asked: Mapping[str, Tolerance],
) -> dict[str, Tolerance]:
    """For each output its tolerance asked for, widened by what moves it when all numbers round.

    All floats of inputs and weights are moved by one unit in the last place of float32, up or
    down at random; a small multiple of the largest change is allowed, at most a thousandth of the
    output's largest value.
    """
    out = dict(asked)
    rng = np.random.default_rng(0)
    try:
        still = _run(model, inputs)
        for _ in range(_DRAWS):
            moved = {name: _move_floats(value, rng) for name, value in inputs.items()}
            other = _run(_moved_graph(model, rng), moved)
            for name, want in expected.items():
                out[name] = _wider(out[name], still[name], other[name], want)
    except OnernnError:
        return dict(asked)
    return out


def _run(model: Graph, inputs: Mapping[str, Batch]) -> dict[str, Batch]:
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


def _move_floats(value: Any, rng: np.random.Generator) -> Any:
    """Floats one unit in the last place up or down; everything else as it is."""
    if isinstance(value, Ragged):
        return value.with_data(_move_floats(value.data, rng))
    array: Array = np.asarray(value)
    if array.dtype.kind != "f":
        return value
    eps = np.finfo(np.float32).eps
    return (array * (1 + eps * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)


def _moved_graph(model: Graph, rng: np.random.Generator) -> Graph:
    def move(rnn: Recurrent) -> Recurrent:
        layers = [each.mapped(lambda array: _move_floats(array, rng)) for each in rnn.layers]
        return replace(rnn, weights=layers)

    constants = {name: _move_floats(array, rng) for name, array in model.constants.items()}
    return replace(with_layers(model, move) or model, constants=constants)
