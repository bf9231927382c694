"""Whether what was written is a model: read by ours again, and asked of onnx's own checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onernn.adapters.checking import check_again
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.messages import MESSAGES
from onernn.adapters.onnx.read import model_of
from onernn.core.errors import UnsupportedError
from onernn.core.types import Type

_LARGE = 1024  # bytes of a constant whose numbers say nothing about types


def check_written(
    model: Any,
    path: Path,
    outputs: Sequence[Type],
    note: Callable[[str], None],
) -> None:
    """Raises `UnsupportedError` where a ModelProto is not what ``path`` may hold.

    It is read again, see `check_again`, and examined by onnx's checker with its type
    inference. Without the onnx package, or with one that is older than the opset, ``note`` tells
    that it was not.
    """
    check_again(lambda: lower(model_of(model, path)), path, outputs)
    try:
        import onnx
    except ImportError:
        return note(f"{path} was checked by onernn alone; for onnx's checker: pip install onnx")
    (opset,) = (each.version for each in model.opset_import if not each.domain)
    if opset > onnx.defs.onnx_opset_version():
        return note(f"{path} was checked by onernn alone: onnx {onnx.__version__} is older")
    try:
        onnx.checker.check_model(_without_numbers(model).SerializeToString(), full_check=True)
    except Exception as error:  # its own kinds, derived from nothing narrower
        said = " ".join(str(error).split())[:1000]
        raise UnsupportedError(f"{path} is not written, onnx's checker says: {said}") from error


def _without_numbers(model: Any) -> Any:
    """The model with large constants as inputs: all types, and little to copy."""
    out = MESSAGES.message("ModelProto")(ir_version=model.ir_version)
    out.opset_import.extend(model.opset_import)
    out.functions.extend(model.functions)
    graph = out.graph
    graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(model.graph, field))
    for each in model.graph.initializer:
        if len(each.raw_data) < _LARGE:
            graph.initializer.append(each)
            continue
        info = graph.input.add(name=each.name)
        info.type.tensor_type.elem_type = each.data_type
        for size in each.dims:
            info.type.tensor_type.shape.dim.add(dim_value=size)
    return out
