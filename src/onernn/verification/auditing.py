"""Finds known faults of a model's own framework that affect the model, and measures the errors that
they cause.
"""

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
from onernn.verification.comparing import (
    TOLERANCES,
    Batches,
    OutputComparison,
    compare,
    json_text,
)
from onernn.verification.input_generation import make_inputs
from onernn.verification.recording import INPUTS, Recording, open_recording, read_inputs
from onernn.verification.tracing import trace


@dataclass(frozen=True)
class Finding:
    """A known fault, and the operator that has it.

    ``outputs``: the outputs with the fault, compared with the outputs without it. ``counts``:
    whether a run in one of the framework's modes (``paths``) returns wrong results or fails. A
    fault that only costs time, an exporter's fault and a fault without effect on these inputs do
    not count.
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
        """The largest difference in any output; None if no output was computed, NaN if one is not
        comparable.
        """
        errors = [output.max_abs for output in self.outputs]
        return math.nan if any(map(math.isnan, errors)) else max(errors, default=None)

    def as_json(self) -> dict[str, Any]:
        """Returns a dictionary of the fields and ``max_abs``, for JSON."""
        return {**vars(self), "max_abs": self.max_abs}


@dataclass(frozen=True)
class AuditReport:
    """The findings of an audit; `bool` of a report is True if no finding counts.

    ``batch``: a description of the inputs. ``paths``: for each of the framework's modes, such as
    with or without fusion passes, its outputs with all faults, compared with the outputs without
    faults. ``ways``: a description of each mode.

    A report is the result of `audit`, whose docstring has an example.
    """

    model: str
    framework: str
    batch: str
    findings: tuple[Finding, ...]
    paths: Mapping[str, tuple[OutputComparison, ...]]
    ways: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether no finding counts."""
        return not any(finding.counts for finding in self.findings)

    def __bool__(self) -> bool:
        return self.passed

    def to_json(self) -> str:
        """Returns ``{"status", "outputs", "framework", "batch", "findings", "paths", "cause":
        null}``.
        """
        keys = ("framework", "batch", "findings", "paths")
        return json_text(self.passed, **{key: getattr(self, key) for key in keys})


def audit(
    model: str | Path | Graph,
    data: str | Path | Mapping[str, Array] | None = None,
    *,
    params: str | Path | None = None,
    rules: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Finds known faults of stock Paddle or MXNet that affect a saved model, and faults of ONNX
    files.

    The framework need not be installed.

    ``model``: a file for `load`, or the result of `load`, whose file is read again; ``params`` and
    ``rules``: see `load`. ``data``: a recording, whose inputs are used; without it the audit
    generates ragged inputs with an empty sequence. The audit simulates each fault on the NumPy
    reference, first by itself, then all faults of a mode of the framework together.

    Raises `ModelFormatError` if the file is not a model or the recording does not fit. Raises
    `UnsupportedError` if an operator cannot run, or if no inputs can be generated.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.onnx")
    >>> report = onernn.audit("relu.onnx")
    >>> report.passed, report.findings
    (True, ())
    """
    path = model.name if isinstance(model, Graph) else model
    run = AuditRun(find_faults(path, params, rules), data)
    findings = tuple(map(run.finding, run.model.faults))
    together = {way: run.compare_outputs(run.faults_on(way)) for way in run.model.paths}
    framework, ways = run.model.framework, run.model.paths
    return AuditReport(str(path), framework, run.batch, findings, together, ways)


class AuditRun:
    """A model with one batch, whose outputs are computed as documented, and with known faults."""

    def __init__(self, model: FaultyModel[Any], data: Recording | None = None) -> None:
        self.model = model
        self.feed: Batches = {}
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
                    f"{graph.name}: generated inputs do not fit: {error}; pass a recording"
                ) from error
        else:
            self.batch = "none: nothing had to be computed"

    def faults_on(self, path: str) -> list[FrameworkFault[Any]]:
        """Returns the faults that change the results of one of the framework's modes."""
        return [f for f in self.model.faults if path in f.paths and f.effect == "wrong"]

    def outputs(self, faults: Sequence[FrameworkFault[Any]]) -> dict[str, Batch]:
        """Returns the outputs of the model with these faults."""
        graph = self.model.with_faults(faults, self.values)
        values = _values(graph, {value.name: self.feed[value.name] for value in graph.inputs})
        return {output.name: values[output.name] for output in graph.outputs}

    def compare_outputs(
        self, faults: Sequence[FrameworkFault[Any]]
    ) -> tuple[OutputComparison, ...]:
        if not any(fault.repeats for fault in faults):
            return ()
        return tuple(
            compare(name, wrong, self.values[name], TOLERANCES["f32"])
            for name, wrong in self.outputs(faults).items()
        )

    def finding(self, fault: FrameworkFault[Any]) -> Finding:
        outputs = self.compare_outputs([fault]) if fault.repeats else ()
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


def _values(graph: Graph, feed: Batches) -> dict[str, Any]:
    return {**graph.constants, **trace(graph, feed)}
