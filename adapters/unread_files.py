"""Files of models that are not read here, and what their owner can do."""

from __future__ import annotations

import os
from pathlib import Path

from onernn.adapters.registry import ADAPTERS
from onernn.core.errors import UnsupportedError


def refuse_unread(path: str | Path) -> None:
    """Raises `UnsupportedError` for a file or folder of a known kind that is not read."""
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        advice = _tensorflow("saved-model", path)
    else:
        advice = _advice(path) if os.path.isfile(path) else ""
    if advice:
        raise UnsupportedError(f"{path}: {advice}")


def _advice(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    known = {suffix: text for each in ADAPTERS for suffix, text in each.no_models.items()}
    if suffix in known:
        return known[suffix]
    match suffix:
        case ".tflite":
            return _tensorflow("tflite", path)
        case ".pb":
            return _tensorflow("graphdef", path)
        case ".npz" | ".npy":
            return "arrays, no model; onernn.convert_weights takes a layer's arrays by name"
        case ".pkl" | ".pickle" | ".joblib":
            return "reading a pickle could run anything; write the model as ONNX where it was made"
        case ".ort" | ".engine" | ".plan" | ".trt" | ".mlmodel":
            return "made for one runtime alone; load the ONNX file that it was made from"
    return ""


def _tensorflow(kind: str, path: str | Path) -> str:
    import shlex

    return (
        "TensorFlow's files are not read; where TensorFlow is, write the model as ONNX:"
        f" python -m tf2onnx.convert --{kind} {shlex.quote(str(path))} --output model.onnx"
    )
