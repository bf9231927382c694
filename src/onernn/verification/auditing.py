"""Known faults of its own framework that hit a model, and the error that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault
from onernn.adapters.loading import find_faults
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Graph, describe_operators
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.comparing import TOLERANCES, OutputComparison, compare, json_text
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import INPUTS, open_recording, read_inputs
from onernn.verification.tracing import trace


@dataclass(frozen=True)
class Finding:
    """A fault and where it is. ``outputs``: those with the fault beside those without it.

    ``counts``: whether a run on one of the framework's paths gives other numbers, or fails. A cost,
    an exporter's fault, and one that this batch does not bring out are listed, and do not count.
    """

    fault: str
    effect: Effect
    paths: tuple[str, ...]
    operator: str
    value: str
    text: str
    outputs: tuple[OutputComparison, ...]
    counts: bool

    @property
    def max_abs(self) -> float | None:
        """The largest difference in any output; None: none was computed, NaN: not comparable."""
        return _worst(self.outputs)


@dataclass(frozen=True)
class AuditReport:
    """The findings, and for each path the outputs under all of its faults together.

    ``batch``: on what inputs. ``ways``: what each path is. True if no fault counts.
    """

    model: str
    framework: str
    batch: str
    findings: tuple[Finding, ...]
    paths: Mapping[str, tuple[OutputComparison, ...]]
    ways: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return not any(finding.counts for finding in self.findings)

    def __bool__(self) -> bool:
        return self.passed

    def to_json(self) -> str:
        """``{"status", "outputs", "framework", "batch", "findings", "paths", "cause": null}``."""
        findings = []
        for each in self.findings:
            outputs = [output.as_json() for output in each.outputs]
            findings.append({**vars(each), "max_abs": each.max_abs, "outputs": outputs})
        paths = {path: [each.as_json() for each in results] for path, results in self.paths.items()}
        return json_text(
            self.passed,
            framework=self.framework,
            batch=self.batch,
            findings=findings,
            paths=paths,
        )


def audit(
    model: str | Path | Graph,
    data: str | Path | Mapping[str, Array] | None = None,
    *,
    params: str | Path | None = None,
) -> AuditReport:
    """Known faults of stock Paddle or MXNet that hit a saved model, and of ONNX files.

    No framework has to be installed.

    ``model``: its file, as for `load`, or what `load` gave, whose file is read again. ``data``: a
    recording, of which the inputs are used; ragged inputs with an empty sentence are made where
    there is none. Each fault is repeated on the reference, by itself, then all of a path together.

    Raises `ModelFormatError` for a file that is no model and for a recording that does not fit,
    `UnsupportedError` for operators that cannot run, and if no inputs can be made.
    """
    path = model.name if isinstance(model, Graph) else model
    run = AuditRun(find_faults(path, params), data)
    findings = tuple(run.finding(fault) for fault in run.model.faults)
    together = {way: run.compared(run.faults_on(way)) for way in run.model.paths}
    framework, ways = run.model.framework, run.model.paths
    return AuditReport(str(path), framework, run.batch, findings, together, ways)


class AuditRun:
    """A model on one batch, as documented; and what it gives under its faults beside that."""

    def __init__(
        self, model: FaultyModel[Any], data: str | Path | Mapping[str, Array] | None = None
    ) -> None:
        self.model = model
        self.feed: Mapping[str, Batch] = {}
        self.values: dict[str, Any] = {}
        if data is not None:
            graph = model.model
            arrays, self.batch = open_recording(data, INPUTS)
            self.feed = read_inputs(arrays, graph.inputs, self.batch)
            self.values = _values(graph, self.feed)
        elif any(fault.repeats or fault.measure for fault in model.faults):
            self.batch = "made inputs, sentences of length zero among them"
            graph = model.model
            self.feed = make_inputs(graph)
            try:
                self.values = _values(graph, self.feed)
            except ShapeError as error:
                raise UnsupportedError(
                    f"{graph.name}: made inputs do not fit: {error}; give a recording"
                ) from error
        else:
            self.batch = "none: nothing had to be computed"

    def faults_on(self, path: str) -> list[FrameworkFault[Any]]:
        """Returns the faults that change numbers on one of the framework's paths."""
        return [f for f in self.model.faults if path in f.paths and f.effect == "wrong"]

    def outputs(self, faults: Sequence[FrameworkFault[Any]]) -> dict[str, Batch]:
        """Returns the outputs that the framework gives under some of its faults."""
        graph = self.model.with_faults(faults, self.values)
        values = _values(graph, {value.name: self.feed[value.name] for value in graph.inputs})
        return {output.name: values[output.name] for output in graph.outputs}

    def compared(self, faults: Sequence[FrameworkFault[Any]]) -> tuple[OutputComparison, ...]:
        if not any(fault.repeats for fault in faults):
            return ()
        return tuple(
            compare(name, wrong, self.values[name], TOLERANCES["f32"])
            for name, wrong in self.outputs(faults).items()
        )

    def finding(self, fault: FrameworkFault[Any]) -> Finding:
        outputs = self.compared([fault]) if fault.repeats else ()
        happens = fault.effect in ("crashes", "refuses")
        if fault.effect == "wrong":
            happens = not all(output.passed for output in outputs)
            happens |= fault.occurs is not None and fault.occurs(self.values)
        return Finding(
            fault.id,
            fault.effect,
            fault.paths,
            describe_operators((fault.at,)),
            fault.value,
            f"{fault.text}: {fault.measure(self.values)}" if fault.measure else fault.text,
            outputs,
            happens and not set(fault.paths).isdisjoint(self.model.paths),
        )


def _values(graph: Graph, feed: Mapping[str, Batch]) -> dict[str, Any]:
    return {**graph.constants, **trace(graph, feed)}


def _worst(outputs: tuple[OutputComparison, ...]) -> float | None:
    errors = [output.max_abs for output in outputs]
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=None)
