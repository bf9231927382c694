"""Writes converted models, models of sequences and repaired models to files, and verifies them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.adapters.registry import SEMANTICS
from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes import over_time as forms
from onernn.fuse_passes.bodies import every_node
from onernn.ir.arrays import Array, bfloat16_bits, widen_bfloat16
from onernn.ir.budget import TimeLimit, limited_to
from onernn.ir.errors import (
    BudgetError,
    MissingDependencyError,
    OnernnError,
    Refusal,
    UnsupportedError,
)
from onernn.ir.feeds import check_feed, check_given
from onernn.ir.files import staging
from onernn.ir.graph import Graph, Node, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.rnn import Recurrent
from onernn.verification.comparing import (
    TOLERANCES,
    Batches,
    OutputComparison,
    Tolerance,
    all_pass,
    compare,
    feed_for,
    tolerance_of,
)
from onernn.verification.diagnosis.cause import Edit, apply_edits, undo_causes
from onernn.verification.diagnosis.matching import Operation
from onernn.verification.diagnosis.model_diff import shuffle
from onernn.verification.diagnosis.search import explanations, trial_of
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import (
    INPUTS,
    OUTPUTS,
    Recording,
    key_arrays,
    open_recording,
    read_inputs,
    read_outputs,
)
from onernn.verification.references import Against, run_framework
from onernn.verification.tracing import expand, fast_backend, map_arrays, rename_values
from onernn.verification.verifying import (
    SECONDS,
    Progress,
    Report,
    against_of,
    compare_outputs,
    either,
    verify,
)

_log = logging.getLogger("onernn")
_TOLERANCES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_PARAMETERS = 10**9
"""A written file with more bytes of parameters is not run, because a run needs as many bytes again.
"""


class WrongFileError(UnsupportedError):
    """A written file's outputs differ from its model's outputs; the file is deleted.

    ``report``: the comparison of the outputs.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> Any:
        return type(self), (*self.args, self.report)


def convert(
    model: Graph | str | Path,
    path: str | Path,
    *,
    check: str | Path | Mapping[str, Array] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    names: Mapping[str, str] | None = None,
    output_dtype: str = "float32",
    opset: int | None = None,
    allow_functions: bool = False,
    place: str = "cpu",
    fused: bool | None = None,
    inputs: Mapping[str, Batch] | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Report | None:
    """Writes a model as another framework's file, and verifies the file. The suffix of ``path``
    selects the format.

    ``model``: the result of `onernn.load`, or a path. ``.pdmodel``: Paddle's program, with its
    parameters in the same folder. ``.onnx``: a ragged input NAME becomes NAME, padded (batch, time,
    ...), and NAME_lengths (batch,) int32; ragged outputs are padded, with zeros after each
    sequence. ``check``: a recording; the report says whether the file returns the recorded outputs.
    A ``.pdmodel`` then runs in onernn, an ``.onnx`` in plain ONNX Runtime.

    For ONNX: ``opset`` is the version of the operators, by default the lowest version that has all
    of them; ``names`` are new names of inputs and outputs; ``output_dtype`` is the dtype of stored
    matrices, float32, float16 or bfloat16; ``allow_functions`` writes operators that ONNX lacks as
    functions. For Paddle: ``place`` "onednn" sets use_mkldnn on fused recurrent operators;
    ``fused`` writes fusion_gru and fusion_lstm. ``inputs``: a batch for the model.
    ``progress(stage, done, of)`` and ``note(text)`` are called while the file is written.

    An older file at ``path`` is replaced only if the new file passes. Without ``check``, onernn
    runs the file and the model on ``inputs``, or on generated inputs. It compares their outputs
    under ``atol`` and ``rtol`` or the default tolerance. Some files cannot be verified: no inputs
    fit within 5 CPU seconds and 1 GB of values, or the parameters take more than 1 GB. Such a file
    is kept, and ``note`` or the logger "onernn" gets the reason.

    ONNX Runtime runs in a process of its own. Raises `WrongFileError` if the file differs from the
    model. Raises `UnsupportedError` if the target cannot express an operator, or if ONNX Runtime
    rejects the file or crashes. Raises `MissingDependencyError` if a check lacks onnxruntime.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.pdmodel")
    >>> onernn.load("relu.pdmodel").outputs[0].name
    'y'
    """
    path, model = Path(path), graph_of(model)
    writer_for(path)
    if check is not None and inputs is not None:
        raise TypeError("expected check or inputs, got both: a recording has inputs of its own")
    options: dict[str, Any] = {
        "names": names or None,
        "output_dtype": output_dtype,
        "opset": opset,
        "allow_functions": allow_functions,
        "place": place,
        "fused": fused,
        "progress": progress,
        "note": note,
    }
    with staging(path) as (written, keep), _name_file(written, path):
        if check is not None:
            report = _check_recording(model, written, check, atol, rtol, options)
            if report.passed:
                keep()
            return report
        write_model(model, written, inputs=inputs, **options)
        try:
            report = _beside_its_model(model, written, atol, rtol, {**options, "inputs": inputs})
        except OnernnError as error:
            reason = str(error)
        else:
            if not report.passed:
                failed = (each for each in report.outputs if not each.passed)
                apart = "; ".join(f"output {each.name!r}: {each.reason}" for each in failed)
                raise WrongFileError(f"{path} is not written, it would be wrong: {apart}", report)
            reason = "".join(report.notes)
        keep()
    if reason:
        (note or _log.warning)(f"{path} is not verified: {reason}")
    return None


@contextmanager
def _name_file(written: Path, path: Path) -> Iterator[None]:
    """Makes errors name ``path`` in place of the temporary file ``written``, and drops warnings
    about that file.
    """

    def names_others(record: logging.LogRecord) -> bool:
        return str(written) not in record.getMessage()

    _log.addFilter(names_others)
    try:
        yield
    except OnernnError as error:
        whole, *others = error.args or ("",)
        error.args = (str(whole).replace(str(written), str(path)), *others)
        raise
    finally:
        _log.removeFilter(names_others)


def _beside_its_model(
    model: Graph,
    written: Path,
    atol: float | None,
    rtol: float | None,
    options: Mapping[str, Any],
) -> Report:
    """Compares a written file with its model. Raises an `OnernnError` if no comparison is
    possible.
    """
    layers = (Recurrent.of(node).layers for node in every_node(model) if node.op == "Rnn")
    held = [model.constants, *(each.arrays for stack in layers for each in stack)]
    if sum(array.nbytes for arrays in held for array in arrays.values()) > _PARAMETERS:
        raise UnsupportedError("its parameters take more than 1 GB; check it with a recording")
    if any(node.op == "Sample" for node in every_node(model)):
        raise UnsupportedError("it draws random numbers, which differ between frameworks")
    dtype, inputs = options["output_dtype"], options["inputs"]
    if dtype != "float32":
        model = map_arrays(fuse(model).model, partial(_round_matrix, dtype=dtype))
        rtol = TOLERANCES[_TOLERANCES[dtype]].rtol if rtol is None else rtol
    old = {new: name for name, new in (options["names"] or {}).items()}
    report: Report | None = None
    # A quantized layer may have the documented semantics, or ONNX Runtime's.
    for semantics in SEMANTICS:
        read = rename_values(load(written, None, semantics), old)
        if inputs is None:
            inputs = make_inputs(*either(read, Against(model)))
        report = _same_outputs(model, read, inputs, atol, rtol)
        if report.passed:
            break
    assert report is not None
    return report


def _same_outputs(
    model: Graph,
    read: Graph,
    inputs: Batches,
    atol: float | None,
    rtol: float | None,
) -> Report:
    """Compares two models on the same inputs and kernels; each layer keeps its dtype."""
    feed, _ = feed_for(model.inputs, inputs, "the model")
    mine, _ = feed_for(read.inputs, inputs, "the file")
    reference = Session(model).run(feed)
    try:
        runner = Session(read)
        actual = runner.run(mine)
    except BudgetError:
        raise
    except OnernnError as error:
        return Report(
            tuple(OutputComparison.incomparable(name, str(error)) for name in reference), ""
        )
    compared = compare_outputs(read, mine, actual, reference, atol, rtol)
    notes = ("all outputs are empty",) * compared.empty
    return Report(compared.outputs, runner.explain(), notes=notes)


def _round_matrix(array: Array, dtype: str) -> Array:
    if array.ndim < 2 or array.dtype != np.float32:
        return array
    if dtype == "float16":
        return array.astype(np.float16).astype(np.float32)
    return widen_bfloat16(bfloat16_bits(array))


def _check_recording(
    model: Graph,
    path: Path,
    check: Recording,
    atol: float | None,
    rtol: float | None,
    options: Mapping[str, Any],
) -> Report:
    writer, names, output_dtype = writer_for(path), options["names"], options["output_dtype"]
    arrays, where = open_recording(check)
    inputs = check_feed(model.inputs, read_inputs(arrays, model.inputs, where))
    runtime = writer.runtime
    if runtime is None or writer.pads is None:
        write_model(model, path, inputs=inputs, **options)
        return verify(load(path), arrays, atol=atol, rtol=rtol, diagnose=False, backend="reference")
    expected = read_outputs(arrays, model.outputs, where)
    if not runtime.version:  # refuse before anything is written
        raise MissingDependencyError(
            f"a check needs {runtime.name!r}; run: pip install 'onernn[{runtime.extra}]'"
        )
    write_model(model, path, inputs=inputs, **options)
    feed = {(names or {}).get(name, name): each for name, each in writer.pads(inputs).items()}
    outputs = run_framework(runtime.name, str(path), None, feed, [v.name for v in model.outputs])
    dtype = _TOLERANCES[output_dtype]
    compared = (
        _compare_padded(name, array, want, tolerance_of(dtype, atol, rtol, want, array))
        for name, want in expected.items()
        for array in [data_of(outputs[name])]
    )
    return Report(tuple(compared), f"{runtime.name} {runtime.version}")


def _compare_padded(
    name: str, array: Array, reference: Batch, tolerance: Tolerance
) -> OutputComparison:
    """Compares a padded output with a reference; it must be zero after the end of each sequence."""
    if not isinstance(reference, Ragged):
        return compare(name, array, reference, tolerance)
    fits = array.ndim >= 2 and len(array) == len(reference)
    if not fits or array.shape[1] < reference.lengths.max(initial=0):
        reason = f"shape: expected {len(reference)} padded sequences, got {array.shape}"
        return OutputComparison.incomparable(name, reason)
    words = Ragged.from_padded(array, reference.lengths)
    if not np.array_equal(words.to_padded(time=array.shape[1]), array, equal_nan=True):
        return OutputComparison.incomparable(name, "not zero behind the sequences")
    return compare(name, reference.with_data(words.data), reference, tolerance)


class UndecidedError(UnsupportedError):
    """An error for branches of a one-frame model whose conditions are not known. ``options``: the
    command line's options, with their values, that decide these conditions.
    """

    def __init__(
        self, error: UnsupportedError, options: list[tuple[str, str]], told: list[Refusal]
    ) -> None:
        super().__init__(str(error).partition("\n")[0], [*error.refusals, *told])
        self.options = options


# --- models of sequences, made from models of one frame, and compared with them


_FRAMES = 7


def over_time(
    model: Graph | str | Path,
    states: Mapping[str, str],
    *,
    given: Mapping[str, Array] = NOTHING,
    inputs: Mapping[str, Any] = NOTHING,
) -> Graph:
    """Returns a model of sequences made from a model of one frame (time step): inputs and outputs
    get a first axis T.

    ``states``: by the name of each state input, the output that is this input for the next frame.
    States keep their shapes: the model takes the states before the first frame, and returns those
    after the last one. ``given``: arrays for inputs to remove, such as a sample rate. ``inputs``:
    by name, an array, a dtype or a shape for inputs whose type the model leaves open.

    Both models run on generated inputs: ``model`` frame by frame, the new model on all frames at
    once and on one frame at a time. Raises `UnsupportedError` if their outputs differ, or if an
    operator prevents the conversion; the message names the operator.

    >>> x, s, after = (onernn.Value(name, "float32", (1,)) for name in ("x", "s", "after"))
    >>> add = onernn.Node("Add", ("x", "s"), ("after",))
    >>> model = onernn.Graph("sum", (x, s), (after,), (add,), {})
    >>> str(onernn.over_time(model, {"s": "after"}).inputs[0])
    'x: float32(?, 1)'
    """
    graph = graph_of(model)
    step = forms.bind(graph, check_given(graph, given), inputs)
    try:
        whole = _fix_sizes(forms.over_time(step, states), None)
    except forms.OpenBranchError as error:
        raise UndecidedError(error, *forms.find_missing(step, states, error)) from None
    frames = _frames(step)
    step = _fix_sizes(step, None)
    start = {name: frames[0][name] for name in states}
    once, walked = Session(whole), Session(step)
    for part in (_FRAMES, 1):
        state = dict(start)
        result, expected = [], []
        for first in range(0, _FRAMES, part):
            few = [{**each, **state} for each in frames[first : first + part]]
            result.append(once.run(_stack_frames(whole, few, states)))
            for each in few:
                outputs = walked.run({**each, **state})
                state = {name: outputs[after] for name, after in states.items()}
                expected.append(outputs)
        _check(whole, states, result, expected)
    return whole


def _frames(step: Graph) -> list[dict[str, Batch]]:
    """Returns inputs of `_FRAMES` frames; sizes that the model leaves open are 2, or if 2 does not
    fit, a size that fits.
    """

    def make(size: int | None) -> list[dict[str, Batch]]:
        sized = _fix_sizes(step, size)
        return [make_inputs(sized, empty=False, seed=seed) for seed in range(_FRAMES)]

    try:
        return make(2)
    except OnernnError:
        return make(None)


def _fix_sizes(model: Graph, size: int | None) -> Graph:
    """Returns the model with ``size`` in place of each size that is not fixed."""
    inputs = []
    for value in model.inputs:
        sizes = value.shape and tuple(s if isinstance(s, int) else size for s in value.shape)
        inputs.append(replace(value, shape=sizes))
    return replace(model, inputs=tuple(inputs))


def _stack_frames(
    whole: Graph, frames: list[dict[str, Batch]], states: Mapping[str, str]
) -> dict[str, Batch]:
    first = frames[0]
    framed = {v.name for v in whole.inputs if data_of(first[v.name]).ndim and v.name not in states}
    return {
        name: np.stack([data_of(each[name]) for each in frames]) if name in framed else value
        for name, value in first.items()
    }


def _check(
    whole: Graph,
    states: Mapping[str, str],
    results: list[dict[str, Batch]],
    expected: list[dict[str, Batch]],
) -> None:
    for value in whole.outputs:
        name = value.name
        if name in states.values():
            got, want = data_of(results[-1][name]), data_of(expected[-1][name])
        else:
            got = np.concatenate([data_of(each[name]) for each in results])
            want = np.stack([data_of(each[name]) for each in expected])
        dtype = "f32" if want.dtype.kind == "f" else "exact"
        verdict = compare(name, got, want, tolerance_of(dtype, None, None, want))
        if verdict.passed:
            continue
        if shared := [v.name for v in whole.inputs if v.shape == () and v.name not in states]:
            raise UnsupportedError(
                f"{whole.name} over time: output {name!r} depends on {', '.join(shared)}; an input"
                " without axes belongs to all frames: pass --given, or change its shape to (1,)"
            )
        raise UnsupportedError(
            f"{whole.name} over time: output {name!r}: expected the values of single frames,"
            f" got values {verdict.max_abs:.3g} apart {verdict.reason}; nothing is written"
        )


# --- repairs: a model without the faults that `verify` proved, verified on fresh inputs


SEEDS = (101, 102, 103)
"""Seeds of the inputs that verify a repaired file; the search for faults uses seed 0."""


@dataclass(frozen=True)
class Repair:
    """The changes of a model, and whether the repaired model's outputs match the reference.

    ``changes``: a line for each change of a node. ``after``: the comparison of the written file
    with the reference, on the first batch of `SEEDS` on which they differ, or on the last batch;
    None if no file was written. ``refused``: why no file was written, or "". ``found``: the report
    with the causes.

    A `Repair` is the result of `repair`, whose docstring has an example.
    """

    changes: tuple[str, ...] = ()
    after: Report | None = None
    refused: str = ""
    found: Report | None = None

    def __bool__(self) -> bool:
        return not self.refused


def repair(
    model: Report | Graph | str | Path,
    path: str | Path,
    against: Against | Graph | str | Path | object | None = None,
    *,
    recording: Recording | None = None,
    names: Mapping[str, str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    seconds: float | None = None,
    progress: Progress = lambda *_: None,
    note: Callable[[str], None] = _log.warning,
) -> Repair:
    """Undoes the faults that `verify` finds in a model, and writes the model if its outputs are
    then right.

    ``model``: a model, its path, or a report of `verify` on the model. ``path``: the file to write,
    in a format that `onernn.convert` writes. `verify` explains the other arguments; a report
    already contains them. ``note(text)`` is called with each remark of the writer about the written
    file; by default it logs a warning.

    With a second model, it undoes proved causes, and compares the written file with that model on
    fresh inputs. With only a recording, it undoes a cause if undoing any different known fault does
    not lead to the recorded outputs. It compares the written file with the recording. In all other
    cases it writes nothing, keeps an old file, and ``refused`` says why. Raises `UnsupportedError`
    if the format cannot express the model, `BudgetError` after ``seconds``, and the errors of
    `verify`.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> done = onernn.repair(model, "fixed.onnx", against=model)
    >>> bool(done), done.refused
    (False, 'nothing to repair: ...')
    """
    path = Path(path)
    writer_for(path)  # refuses an unknown suffix
    with limited_to(TimeLimit.after(seconds or None)):
        report = model
        if not isinstance(report, Report):
            report = verify(
                report,
                recording,
                against=against,
                names=names,
                atol=atol,
                rtol=rtol,
                seconds=seconds,
                progress=progress,
            )
        elif report.evidence is None:
            raise UnsupportedError("report: expected a result of onernn.verify with its evidence")
        assert report.evidence is not None
        known = report.evidence.reference.against
        if isinstance(model, Report) and against is not None:
            known = against_of(against, report.evidence.model)
        done = _repair(report, path, known, progress, note, atol, rtol)
    return replace(done, found=report)


def _repair(
    report: Report,
    path: Path,
    against: Against | None,
    progress: Progress,
    note: Callable[[str], None],
    atol: float | None,
    rtol: float | None,
) -> Repair:
    """Undoes the causes of a report. ``against``: the second model, None if the reference is a
    recording.
    """
    evidence, causes = report.evidence, report.causes
    assert evidence is not None
    if report.passed:
        return Repair(refused="nothing to repair: the outputs agree")
    if not causes:
        unknown = "; ".join(report.unseen) or "no known fault explains the difference"
        return Repair(refused=report.stopped or unknown)
    doubtful = [cause for cause in causes if cause.evidence != "proved"]
    if doubtful and against is not None:
        return Repair(refused=f"only a candidate: {doubtful[0].text}")
    try:
        fixed = undo_causes(evidence.model, causes)
    except UnsupportedError as error:
        return Repair(refused=str(error))
    if against is None and (doubt := _find_doubt(report, progress)):
        return Repair(refused=doubt)
    read = all(cause.form == "read" for cause in causes)
    before, parts = (evidence.model, {}) if read else expand(fuse(evidence.model).model)
    changes = tuple(differences(before, fixed, parts))
    after: Report | None = None
    with staging(path) as (written, keep):
        write_model(fixed, written, inputs=evidence.inputs, note=note)
        recorded = key_arrays(INPUTS, evidence.inputs) | key_arrays(OUTPUTS, evidence.expected)
        fresh = _fresh(fixed, against, evidence.all_inputs, progress) if against else ()
        for case in (key_arrays(INPUTS, each) for each in fresh) if against else [recorded]:
            after = verify(
                load(written),
                case,
                against=against,
                diagnose=False,
                atol=atol,
                rtol=rtol,
                progress=progress,
            )
            if not after.passed:
                unseen = "; ".join(after.unseen) if after.matches else ""
                where = "on fresh inputs" if against else "from the recording"
                return Repair(changes, after, unseen or f"{where} the repaired file differs, too")
        keep()
    return Repair(changes, after)


def _find_doubt(report: Report, progress: Progress) -> str:
    """Returns why a recording does not decide which fault to undo, or "". Undoing any of several
    faults may lead to the recorded outputs. The recording decides if the outputs on new inputs are
    also equal, whichever of these faults is undone.
    """
    evidence = report.evidence
    assert evidence is not None
    (cause,) = report.causes
    trial = trial_of(evidence)
    (feed,) = islice(_fresh(evidence.model, None, evidence.inputs, progress), 1)

    def outputs(edits: Sequence[Edit]) -> Batches:
        graph = apply_edits(trial.graph, edits)
        return Session(graph, passes=(), backend=fast_backend()).run(feed)

    known = outputs(cause.edits)
    limit = TimeLimit.after(SECONDS)
    assert limit is not None
    for other in explanations(trial, limit, progress):
        if isinstance(other, str):
            return other
        if not all_pass(outputs(other.edits), known, evidence.tolerances):
            return (
                f"the recording allows several causes: {cause.text}; {other.text}. Record longer"
                " sequences, more of them, or states that are not zero, or give --against"
            )
    return ""


def _fresh(
    model: Graph, against: Against | None, known: Batches, progress: Progress
) -> Iterator[Batches]:
    """Yields batches that no search has used: generated inputs, or if none can be generated,
    ``known`` with its elements shuffled.
    """
    for seed in SEEDS:
        progress("making fresh inputs", 0, 1)
        graphs = (model,) if against is None else either(model, against)
        try:
            yield make_inputs(*graphs, empty=against is None or not against.kind, seed=seed)
        except UnsupportedError:
            yield shuffle(known, seed, lengths=False)


# --- the changes in a graph, as lines of text


def differences(
    before: Graph, after: Graph, parts: Mapping[str, object] = NOTHING
) -> Iterator[str]:
    """Yields a line for each node that only one graph has, and for each change of a node's content.

    A node of one graph counts as the same as a node of the other graph if the first outputs of both
    have the same name. ``parts``: the layer and direction of recurrent nodes, by first outputs.
    """
    old, new = ({node.outputs[0]: node for node in each.nodes} for each in (before, after))
    for value in after.inputs:
        if value.name not in {each.name for each in before.inputs}:
            yield f"+ input {value}"
    for name in old | new:
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            for sign, node in (("-", one), ("+", other)):
                if node is not None:
                    yield f"{sign} {node.label}: {_format_node(node)}"
        elif one.op != other.op:
            yield f"~ {one.label}: {_format_node(one)} -> {_format_node(other)}"
        else:
            mine, theirs = Operation(before, one).content, Operation(after, other).content
            for key in mine | theirs:
                if change := _change(mine.get(key), theirs.get(key)):
                    yield f"~ {parts.get(name, one.label)}: {key}{change}"


def _format_node(node: Node) -> str:
    return f"{', '.join(filter(None, node.outputs))} = {node.op}({', '.join(node.inputs)})"


def _change(one: Any, other: Any) -> str:
    arrays = [each for each in (one, other) if isinstance(each, np.ndarray)]
    if not arrays and one == other:
        return ""
    if len(arrays) < 2 or one.shape != other.shape or one.dtype != other.dtype:
        return f": {_short(one)} -> {_short(other)}"
    floats = one.dtype.kind == "f"
    if np.array_equal(one, other, equal_nan=floats):
        return ""
    apart, most = one != other, ""
    if floats:
        far = np.abs(other.astype(np.float64) - one.astype(np.float64))[apart]
        most = f", by {far.max():.3g} at most"
    return f" {one.shape}: {np.count_nonzero(apart)} of {one.size} numbers{most}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
