"""Runs a model in ONNX Runtime itself, with the calls that onnxruntime.InferenceSession
documents.
"""

from __future__ import annotations

from collections.abc import Mapping

from onernn.adapters.common.adapter import require
from onernn.ir.ragged import Batch


def run_model(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs, in order. Raises ONNX Runtime's errors."""
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))
