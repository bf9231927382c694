"""A model against a recording."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onernn.core.arrays import Array
from onernn.core.graph import Graph
from onernn.runtime.session import Session
from onernn.verification.comparing import OutputComparison, compare, tolerance_of
from onernn.verification.recording import read_arrays, read_inputs, read_outputs


@dataclass(frozen=True)
class Report:
    """The verdict on each output, and the kernels that ran."""

    outputs: tuple[OutputComparison, ...]
    kernels: str

    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)

    def __bool__(self) -> bool:
        return self.passed

    def to_json(self) -> str:
        """``{"status", "outputs": [{"name", "pass", "max_abs", "max_rel"}], "cause"}``."""
        outputs = [
            {
                "name": output.name,
                "pass": output.passed,
                "max_abs": _number(output.max_abs),
                "max_rel": _number(output.max_rel),
            }
            for output in self.outputs
        ]
        status = "pass" if self.passed else "fail"
        return json.dumps({"status": status, "outputs": outputs, "cause": None})


def error_json(error: Exception) -> str:
    """What ``--json`` prints where nothing could be compared."""
    cause = {"id": type(error).__name__, "text": str(error)}
    return json.dumps({"status": "error", "outputs": [], "cause": cause})


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has neither NaN nor infinity


def verify(
    model: Graph,
    recording: str | Path | Mapping[str, Array],
    *,
    dtype: str = "f32",
    atol: float | None = None,
    rtol: float | None = None,
    **session: Any,
) -> Report:
    """Runs the recorded inputs and compares with the recorded outputs.

    ``recording``: an ``.npz`` or its arrays by key. ``atol`` and ``rtol`` replace the dtype's
    default tolerance; further arguments go to `Session`. Raises `ModelFormatError` where the
    recording does not fit the model, and what `Session` raises.
    """
    from_file = isinstance(recording, str | Path)
    arrays = read_arrays(recording) if isinstance(recording, str | Path) else recording
    where = str(recording) if from_file else "recording"
    inputs = read_inputs(arrays, model.inputs, where)
    expected = read_outputs(arrays, model.outputs, where)
    tolerance = tolerance_of(dtype, atol, rtol)
    runner = Session(model, dtype=dtype, **session)
    actual = runner.run(inputs)
    outputs = (compare(name, actual[name], expected[name], tolerance) for name in expected)
    return Report(tuple(outputs), runner.explain())
