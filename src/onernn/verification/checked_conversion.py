"""Other frameworks' files from a model, and whether these give the recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.engine.session import checked_feed
from onernn.ir.arrays import Array
from onernn.ir.errors import MissingDependencyError
from onernn.ir.graph import Graph, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.verification.comparing import OutputComparison, Tolerance, compare, tolerance_of
from onernn.verification.frameworks import run_framework
from onernn.verification.recording import opened, read_inputs, read_outputs
from onernn.verification.verifying import Report, verify

_TOLERANCES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


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
    ``check``: a recording; the report tells whether what was written gives the recorded outputs,
    a ``.pdmodel`` run by ours, an ``.onnx`` by plain ONNX Runtime. Further options:
    `adapters.converting.write_model`.

    ONNX Runtime runs in a process of its own. Raises `UnsupportedError` naming what the target
    cannot say, or where ONNX Runtime does not run the file or crashes, `MissingDependencyError`
    where a check lacks onnxruntime.
    """
    model, writer = graph_of(model), writer_for(Path(path))
    options = {"names": names or None, "output_dtype": output_dtype, **options}
    if check is None:
        write_model(model, path, **options)
        return None
    arrays, where = opened(check)
    inputs = checked_feed(model.inputs, read_inputs(arrays, model.inputs, where))
    runtime = writer.runtime
    if runtime is None or writer.pads is None:
        write_model(model, path, inputs=inputs, **options)
        return verify(load(path), arrays, atol=atol, rtol=rtol, diagnose=False, backend="reference")
    expected = read_outputs(arrays, model.outputs, where)
    if not runtime.version:  # told before anything is written
        raise MissingDependencyError(
            f"a check needs {runtime.name!r}; run: pip install 'onernn[{runtime.extra}]'"
        )
    write_model(model, path, inputs=inputs, **options)
    feed = {(names or {}).get(name, name): each for name, each in writer.pads(inputs).items()}
    given = run_framework(runtime.name, str(path), None, feed, [v.name for v in model.outputs])
    dtype = _TOLERANCES[output_dtype]
    compared = (
        _compared(name, array, want, tolerance_of(dtype, atol, rtol, want, array))
        for name, want in expected.items()
        for array in [data_of(given[name])]
    )
    return Report(tuple(compared), f"{runtime.name} {runtime.version}")


def _compared(name: str, given: Array, reference: Batch, tolerance: Tolerance) -> OutputComparison:
    """As `compare`; what is ragged must be zero behind the sentences."""
    if not isinstance(reference, Ragged):
        return compare(name, given, reference, tolerance)
    words = None
    if given.ndim >= 2 and len(given) == len(reference):
        if given.shape[1] >= reference.lengths.max(initial=0):
            words = Ragged.from_padded(given, reference.lengths)
    if words is None:
        reason = f"shape: expected {len(reference)} padded sequences, got {given.shape}"
        return OutputComparison.incomparable(name, reason)
    if not np.array_equal(words.to_padded(time=given.shape[1]), given, equal_nan=True):
        return OutputComparison.incomparable(name, "not zero behind the sequences")
    return compare(name, reference.with_data(words.data), reference, tolerance)
