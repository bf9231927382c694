"""Other frameworks' files from a model, and whether these give the recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.converting import write_model
from onernn.adapters.loading import load
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph
from onernn.core.ragged import Ragged
from onernn.runtime.session import checked_feed
from onernn.verification.comparing import OutputComparison, Tolerance, compare, tolerance_of
from onernn.verification.recording import Batch, read_arrays, read_inputs, read_outputs
from onernn.verification.verifying import Report, verify

_TOLERANCES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def convert(
    model: Graph,
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

    ``.pdmodel``: Paddle's program, the parameters beside it; ``check``, a recording, is run by
    ours on what was written. ``.onnx``: a ragged input NAME becomes NAME, padded (batch, time, ...), and NAME_lengths (batch,) int32;
    ragged outputs come padded, zeros behind the sentences. ``check``: a recording; plain ONNX
    Runtime runs it on the file, and the report tells whether the recorded outputs come. Further
    options: `adapters.converting.write_model`.

    Raises `UnsupportedError` naming what the target cannot say, or where ONNX Runtime does not run
    the file, `MissingDependencyError` where a check lacks onnxruntime.
    """
    options = {"names": names, "output_dtype": output_dtype, **options}
    if check is None:
        write_model(model, path, **options)
        return None
    arrays = read_arrays(check) if isinstance(check, str | Path) else check
    where = str(check) if isinstance(check, str | Path) else "recording"
    inputs = checked_feed(model.inputs, read_inputs(arrays, model.inputs, where))
    if Path(path).suffix == ".pdmodel":
        write_model(model, path, inputs=inputs, **options)
        return verify(load(path), arrays, atol=atol, rtol=rtol, diagnose=False, backend="reference")
    expected = read_outputs(arrays, model.outputs, where)
    runtime = require("onnxruntime", "onnx")
    write_model(model, path, inputs=inputs, **options)
    outputs = _run(runtime, Path(path), inputs, names or {})
    tolerance = tolerance_of(_TOLERANCES[output_dtype], atol, rtol)
    compared = (
        _compared(name, outputs[(names or {}).get(name, name)], expected[name], tolerance)
        for name in expected
    )
    return Report(tuple(compared), f"ONNX Runtime {runtime.__version__}")


def _run(
    runtime: Any, path: Path, inputs: Mapping[str, Batch], names: Mapping[str, str]
) -> dict[str, Array]:
    """What plain ONNX Runtime gives for recorded inputs, ragged ones padded."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, derived from nothing narrower
        raise UnsupportedError(f"{path}: ONNX Runtime does not load it: {error}") from error
    feed: dict[str, Array] = {}
    for name, value in inputs.items():
        if isinstance(value, Ragged):
            time = max(1, int(value.lengths.max(initial=0)))
            feed[name] = value.to_padded(time=time)
            feed[f"{name}_lengths"] = value.lengths.astype(np.int32)
        else:
            feed[name] = value
    renamed = {names.get(name, name): array for name, array in feed.items()}
    try:
        given = session.run(None, renamed)
    except Exception as error:
        raise UnsupportedError(f"{path}: ONNX Runtime does not run it: {error}") from error
    return dict(zip((each.name for each in session.get_outputs()), given, strict=True))


def _compared(name: str, padded: Array, reference: Batch, tolerance: Tolerance) -> OutputComparison:
    """As `compare`; what is ragged must be zero behind the sentences."""
    if not isinstance(reference, Ragged):
        return compare(name, padded, reference, tolerance)
    words = None
    if padded.ndim >= 2 and len(padded) == len(reference):
        if padded.shape[1] >= reference.lengths.max(initial=0):
            words = Ragged.from_padded(padded, reference.lengths)
    if words is None:
        reason = f"shape: expected {len(reference)} padded sentences, got {padded.shape}"
        return OutputComparison(name, False, np.nan, np.nan, reason)
    if not np.array_equal(words.to_padded(time=padded.shape[1]), padded, equal_nan=True):
        return OutputComparison(name, False, np.nan, np.nan, "not zero behind the sentences")
    return compare(name, reference.with_data(words.data), reference, tolerance)
