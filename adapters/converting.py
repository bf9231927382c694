"""Finds the writer for a file: another framework's, from any loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onernn.adapters.onnx.files import narrow_weights, rename, save
from onernn.adapters.onnx.write import OPSET, to_onnx
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph
from onernn.fuse_passes import fuse

Progress = Callable[[str, int, int], None]


def write_model(
    model: Graph,
    path: str | Path,
    *,
    opset: int = OPSET,
    output_dtype: str = "float32",
    names: Mapping[str, str] | None = None,
    allow_functions: bool = False,
    inputs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Writes a model as the kind of file that the suffix of ``path`` names: ``.onnx``.

    The model is fused before. ``opset``: that of ONNX's operators. ``output_dtype``: in what
    weights of two axes or more are stored, float32, float16 or bfloat16; they are computed with in
    float32. ``names``: new names of inputs and outputs. ``allow_functions``: what ONNX's operators
    cannot say may become a function of the model's own. ``inputs``: a batch that the model runs
    on, where it declares no shapes. ``progress(stage, done, of)`` is called now and then.

    Raises `UnsupportedError` naming what the target cannot say, and for other suffixes.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UnsupportedError(
            f"{path}: cannot write {path.suffix or 'a file of no suffix'}; .onnx can be"
        )
    fused = fuse(model).model
    written = to_onnx(
        fused, opset=opset, allow_functions=allow_functions, inputs=inputs, progress=progress
    )
    narrow_weights(written, output_dtype)
    rename(written, names or {})
    save(written, path)
