"""Files that are written and verified: conversions, models over time, repaired models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.adapters.registry import SEMANTICS
from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes import over_time as forms
from onernn.fuse_passes.bodies import every_node
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import BudgetError, MissingDependencyError, OnernnError, UnsupportedError
from onernn.ir.feeds import checked_feed, checked_given
from onernn.ir.files import staging
from onernn.ir.graph import Graph, Node, Value, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.verification.comparing import (
    TOLERANCES,
    OutputComparison,
    Tolerance,
    compare,
    compare_all,
    feed_for,
    outputs_for,
    tolerance_of,
)
from onernn.verification.diagnosis.cause import undo_causes
from onernn.verification.diagnosis.matching import Operation
from onernn.verification.diagnosis.model_diff import shuffle
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import keyed_inputs, open_recording, read_inputs, read_outputs
from onernn.verification.references import Against, run_framework
from onernn.verification.tracing import expand, with_layers
from onernn.verification.verifying import Progress, Report, either, rounding, verify

_log = logging.getLogger("onernn")
_TOLERANCES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_PARAMETERS = 10**9
"""Bytes of parameters up to which a written file is run: it needs as many again."""


class WrongFileError(UnsupportedError):
    """A new file differs from its model, and is deleted; ``report``: the comparison."""

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
    **options: Any,
) -> Report | None:
    """Writes a model as another framework's file, chosen by the suffix of ``path``.

    ``model``: as `onernn.load` gives it, or its path. ``.pdmodel``: Paddle's program, its
    parameters beside it. ``.onnx``: a ragged input NAME becomes NAME, padded (batch, time, ...),
    and NAME_lengths (batch,) int32; ragged outputs come padded, zeros behind the sentences.
    ``check``: a recording; the report says whether the file gives the recorded outputs, a
    ``.pdmodel`` in onernn, an ``.onnx`` by plain ONNX Runtime. Further options:
    `adapters.converting.write_model`.

    The file gets its name only if it passes; until then an older file stays. Without ``check``,
    onernn runs it and the model on ``inputs``, or on generated inputs, and compares their outputs
    under ``atol`` and ``rtol`` or the default tolerance. If that is not possible, because no
    inputs fit within 5 CPU seconds and 1 GB of values, or the parameters take more than 1 GB, the
    file is kept, and ``note`` or the logger "onernn" gets the reason.

    ONNX Runtime runs in a process of its own. Raises `WrongFileError` if the file differs from the
    model, `UnsupportedError` naming what the target cannot say, or if ONNX Runtime does not run the
    file or crashes, `MissingDependencyError` where a check lacks onnxruntime.
    """
    path, model = Path(path), graph_of(model)
    writer_for(path)  # refuse before all else
    options = {"names": names or None, "output_dtype": output_dtype, **options}
    with staging(path) as (written, keep), _name_file(written, path):
        if check is not None:
            report = _check_recording(model, written, check, atol, rtol, options)
            if report.passed:
                keep()
            return report
        write_model(model, written, **options)
        reason = ""
        try:
            report = _beside_its_model(model, written, atol, rtol, options)
        except OnernnError as error:
            reason = str(error)
        else:
            if not report.passed:
                apart = "; ".join(
                    f"output {each.name!r}: {each.reason}"
                    for each in report.outputs
                    if not each.passed
                )
                raise WrongFileError(f"{path} is not written, it would be wrong: {apart}", report)
            reason = "".join(report.notes)
        keep()
    if reason:
        text = f"{path} is not verified: {reason}"
        (options.get("note") or _log.warning)(text)
    return None


@contextmanager
def _name_file(written: Path, path: Path) -> Iterator[None]:
    """Errors name the file, not the trial that gets its name later; no warning names the trial."""

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
    """Returns a file compared with its model. Raises an `OnernnError` that says why it cannot
    be.
    """
    layers = (Recurrent.of(node).layers for node in every_node(model) if node.op == "Rnn")
    held = [model.constants, *(each.arrays for stack in layers for each in stack)]
    if sum(array.nbytes for arrays in held for array in arrays.values()) > _PARAMETERS:
        raise UnsupportedError("its parameters take more than 1 GB; check it with a recording")
    if any(node.op == "Sample" for node in every_node(model)):
        raise UnsupportedError("it draws random numbers, which each framework draws in its own way")
    dtype, inputs = options["output_dtype"], options.get("inputs")
    if dtype != "float32":
        model = _round_weights(fuse(model).model, dtype)
        rtol = TOLERANCES[_TOLERANCES[dtype]].rtol if rtol is None else rtol
    old = {new: name for name, new in (options["names"] or {}).items()}
    report: Report | None = None
    for semantics in SEMANTICS:  # a quantized layer of ONNX Runtime may be read in two ways
        read = _rename(load(written, None, semantics), old)
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
    inputs: Mapping[str, Batch],
    atol: float | None,
    rtol: float | None,
) -> Report:
    """Returns two models on the same inputs and kernels: layers keep the precision that they ask
    for.
    """
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
    pairs, _ = outputs_for([v.name for v in read.outputs], reference)
    expected = {name: value for name, (_, value) in pairs.items()}
    asked = {name: tolerance_of("f32", atol, rtol, actual[name], w) for name, w in expected.items()}
    outputs = compare_all(actual, expected, asked)
    if atol is rtol is None and not all(each.passed for each in outputs):
        outputs = compare_all(actual, expected, rounding(read, mine, expected, asked))
    empty = not any(data_of(value).size for value in expected.values())
    return Report(outputs, runner.explain(), notes=("all outputs are empty",) * empty)


def _round_weights(model: Graph, dtype: str) -> Graph:
    """Returns the model with the weights that a file of narrow weights holds."""

    def round_to(array: Array) -> Array:
        if array.ndim < 2 or array.dtype != np.float32:
            return array
        if dtype == "float16":
            return array.astype(np.float16).astype(np.float32)
        return (bfloat16_bits(array).astype(np.uint32) << 16).view(np.float32)

    def layer(rnn: Recurrent) -> Recurrent:
        return replace(rnn, weights=[each.mapped(round_to) for each in rnn.layers])

    constants = {name: round_to(array) for name, array in model.constants.items()}
    return replace(with_layers(model, layer) or model, constants=constants)


def _rename(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Returns the graph with other names of its inputs and outputs."""

    def values(of: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(value, name=names.get(value.name, value.name)) for value in of)

    nodes = tuple(node.renamed(names) for node in graph.nodes)
    return replace(graph, inputs=values(graph.inputs), outputs=values(graph.outputs), nodes=nodes)


def _check_recording(
    model: Graph,
    path: Path,
    check: str | Path | Mapping[str, Array],
    atol: float | None,
    rtol: float | None,
    options: Mapping[str, Any],
) -> Report:
    """Writes a file, and compares its outputs with those of a recording."""
    writer, names, output_dtype = writer_for(path), options["names"], options["output_dtype"]
    arrays, where = open_recording(check)
    inputs = checked_feed(model.inputs, read_inputs(arrays, model.inputs, where))
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
    """As `compare`; what is ragged must be zero behind the sentences."""
    if not isinstance(reference, Ragged):
        return compare(name, array, reference, tolerance)
    words = None
    if array.ndim >= 2 and len(array) == len(reference):
        if array.shape[1] >= reference.lengths.max(initial=0):
            words = Ragged.from_padded(array, reference.lengths)
    if words is None:
        reason = f"shape: expected {len(reference)} padded sequences, got {array.shape}"
        return OutputComparison.incomparable(name, reason)
    if not np.array_equal(words.to_padded(time=array.shape[1]), array, equal_nan=True):
        return OutputComparison.incomparable(name, "not zero behind the sequences")
    return compare(name, reference.with_data(words.data), reference, tolerance)


# --- models of one frame as models of sequences, compared before they are returned


_FRAMES = 7
_NOTHING: Mapping[str, Array] = MappingProxyType({})


def over_time(
    model: Graph | str | Path,
    states: Mapping[str, str],
    *,
    given: Mapping[str, Array] = _NOTHING,
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> Graph:
    """Returns a model of one frame, over sequences: its inputs and outputs get an axis T in front.

    ``states``: the output that is the state of the next frame, by the input that takes it; they
    stay as they are, before the first frame and behind the last one. ``given``: arrays for inputs
    that the model shall no longer have, such as a sample rate. ``inputs``: an array, a dtype or a
    shape for others that the model leaves open.

    Both forms run on made inputs, all frames at once, frame by frame, and in two parts. Raises
    `UnsupportedError` where they differ, or naming the operator that stands in the way.
    """
    graph = graph_of(model)
    step = forms.bind(graph, checked_given(graph, given), inputs)
    whole = _fix_sizes(forms.over_time(step, states), None)
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
    """Returns two of each size that is open; where the model does not run on these, sizes that
    fit.
    """
    try:
        sized = _fix_sizes(step, 2)
        return [make_inputs(sized, empty=False, seed=seed) for seed in range(_FRAMES)]
    except OnernnError:
        sized = _fix_sizes(step, None)
        return [make_inputs(sized, empty=False, seed=seed) for seed in range(_FRAMES)]


def _fix_sizes(model: Graph, size: int | None) -> Graph:
    """Returns the model with this size in the place of every one that is open or has a name."""

    def shape(value: Value) -> tuple[int | None, ...] | None:
        return value.shape and tuple(s if isinstance(s, int) else size for s in value.shape)

    return replace(model, inputs=tuple(replace(v, shape=shape(v)) for v in model.inputs))


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
        if not verdict.passed:
            raise UnsupportedError(
                f"{whole.name} over time: output {name!r} is {verdict.max_abs:.3g} from that of"
                f" frame after frame {verdict.reason}; nothing is written"
            )


# --- a model without the faults that `verify` proved: written, and verified on inputs of its own


SEEDS = (101, 102, 103)
"""Seeds of the inputs that verify a repaired file; the search for faults uses seed 0."""


@dataclass(frozen=True)
class Repair:
    """The changes of a model, and whether it is right now.

    ``changes``: lines, node by node. ``after``: the written file against the reference, on the
    first batch of `SEEDS` on which they differ, or on the last; None if nothing was written.
    ``refused``: why there is no file, "" where there is one.
    """

    changes: tuple[str, ...] = ()
    after: Report | None = None
    refused: str = ""

    def __bool__(self) -> bool:
        return not self.refused


def repair(
    report: Report,
    path: str | Path,
    against: Against,
    *,
    progress: Progress = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
    atol: float | None = None,
    rtol: float | None = None,
) -> Repair:
    """Undoes the causes of a report in its model, and writes that where it agrees with the
    reference on fresh inputs.

    ``report``: `verify`'s, of outputs that differ from those of ``against``. ``path``: of the file,
    of a kind that `onernn.convert` writes. Nothing is written, and what stands there stays, where a
    cause is only a candidate, cannot be undone in the model, or the file that is written differs.
    Raises `UnsupportedError` for what the file cannot say, and what `verify` raises.
    """
    path = Path(path)
    writer_for(path)  # refuse before all else
    evidence = report.evidence
    assert evidence is not None  # of a Report that `verify` made
    if not report.causes:
        unknown = "; ".join(report.unseen) or "no known fault explains the difference"
        return Repair(refused=report.stopped or unknown)
    try:
        fixed = undo_causes(evidence.model, report.causes)
    except UnsupportedError as error:
        return Repair(refused=str(error))
    read = all(cause.form == "read" for cause in report.causes)
    before = evidence.model if read else expand(fuse(evidence.model).model)[0]
    changes = tuple(differences(before, fixed))
    after: Report | None = None
    with staging(path) as (written, keep):
        write_model(fixed, written, inputs=evidence.inputs, note=note)
        for batches in _fresh(fixed, against, evidence.all_inputs, progress):
            after = verify(
                load(written),
                keyed_inputs(batches),
                against=against,
                diagnose=False,
                atol=atol,
                rtol=rtol,
                progress=progress,
            )
            if not after.passed:
                unseen = "; ".join(after.unseen) if after.matches else ""
                differs = "on fresh inputs the repaired file differs, too"
                return Repair(changes, after, unseen or differs)
        keep()
    return Repair(changes, after)


def _fresh(
    model: Graph, against: Against, known: Mapping[str, Batch], progress: Progress
) -> Iterator[Mapping[str, Batch]]:
    """Batches that no search has seen; of the same numbers as ``known`` where none can be made."""
    for seed in SEEDS:
        progress("making fresh inputs", 0, 1)
        try:
            yield make_inputs(*either(model, against), empty=not against.kind, seed=seed)
        except UnsupportedError:
            yield shuffle(known, seed, lengths=False)


# --- what was changed in a graph, in lines for a reader


def differences(before: Graph, after: Graph) -> Iterator[str]:
    """Yields a line for each node that came or went, and for each part of one that changed.

    Nodes are the same where their first outputs are.
    """
    old, new = ({node.outputs[0]: node for node in each.nodes} for each in (before, after))
    for value in after.inputs:
        if value.name not in {each.name for each in before.inputs}:
            yield f"+ input {value}"
    for name in old | new:
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            node = one or other
            assert node is not None
            yield f"{'-' if other is None else '+'} {node.label}: {_format_node(node)}"
        elif one.op != other.op:
            yield f"~ {one.label}: {_format_node(one)} -> {_format_node(other)}"
        else:
            mine, theirs = Operation(before, one).content, Operation(after, other).content
            for key in mine | theirs:
                if change := _change(mine.get(key), theirs.get(key)):
                    yield f"~ {one.label}: {key}{change}"


def _format_node(node: Node) -> str:
    return f"{', '.join(filter(None, node.outputs))} = {node.op}({', '.join(node.inputs)})"


def _change(one: Any, other: Any) -> str:
    arrays = [isinstance(each, np.ndarray) for each in (one, other)]
    if not any(arrays):
        return "" if one == other else f": {_short(one)} -> {_short(other)}"
    if not all(arrays) or one.shape != other.shape or one.dtype != other.dtype:
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
