"""An ``.onnx`` file of a graph: written, checked, and then put in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from onernn.adapters.declaring import declared
from onernn.adapters.onnx.checking import check_written
from onernn.adapters.onnx.files import narrow_weights, rename, save
from onernn.adapters.onnx.write import Progress, to_onnx
from onernn.core.graph import Graph
from onernn.core.ragged import Batch


def write_onnx(
    graph: Graph,
    path: Path,
    *,
    opset: int,
    output_dtype: str,
    names: Mapping[str, str] | None,
    allow_functions: bool,
    inputs: Mapping[str, Batch] | None,
    progress: Progress | None,
    note: Callable[[str], None],
) -> None:
    """Writes a graph that is fused already.

    ``opset``: that of ONNX's operators. ``output_dtype``: in what weights of two axes or more are
    stored, float32, float16 or bfloat16; they are computed with in float32. ``names``: new names
    of inputs and outputs. ``allow_functions``: what ONNX's operators cannot say may become a
    function of the model's own. ``inputs``: a batch that the graph runs on.

    The model is checked before there is a file, see `adapters.onnx.checking`. Raises
    `UnsupportedError` naming what ONNX cannot say.
    """
    graph = declared(graph, inputs)
    written = to_onnx(graph, opset=opset, allow_functions=allow_functions, progress=progress)
    narrow_weights(written, output_dtype)
    rename(written, names or {})
    check_written(written, path, [graph.types[value.name] for value in graph.outputs], note)
    save(written, path)
