"""ONNX: models read and written, an onnx.backend.base.Backend, and a part inside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Plugin, Runtime, StrPath, Writer
from onernn.ir.errors import UnsupportedError

if TYPE_CHECKING:
    from onernn.adapters.common.fault import FaultyModel
    from onernn.ir.graph import Graph
    from onernn.ir.ragged import Batch


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for: the reader does not need what it needs."""
    if name == "optimize":
        from onernn.adapters.onnx.plugin import optimize

        return optimize
    if name == "InferenceSession":
        from onernn.adapters.onnx.plugin import inference_session

        return inference_session()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load(path: StrPath, params: StrPath | None, _: str) -> Graph:
    from onernn.adapters.onnx.lower import load_onnx

    if params is not None:
        raise UnsupportedError("params: the parameters of an ONNX model are named in the model")
    return load_onnx(path)


def _write(model: Graph, path: Path, **options: Any) -> None:
    from onernn.adapters.onnx.write import write_onnx

    write_onnx(model, path, **options)


def _padded(inputs: Mapping[str, Batch]) -> Mapping[str, Batch]:
    from onernn.adapters.onnx.write import padded

    return padded(inputs)


def _run(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    from onernn.adapters.onnx.run_model import run_model

    return run_model(path, params, feed)


def _plugin(path: str) -> Plugin:
    from onernn.adapters.onnx.plugin import RECURRENT

    return Plugin(call=f"onnx.optimize({path!r})", host="ONNX Runtime", replaces=RECURRENT)


def _find_faults(path: StrPath, params: StrPath | None) -> FaultyModel[Any]:
    from onernn.adapters.onnx.faults import find_faults

    return find_faults(path, params)


RUNTIME = Runtime(name="onnxruntime", packages=("onnxruntime",), extra="onnx", run=_run)

ADAPTER = Adapter(
    name="ONNX",
    files="an .onnx",
    reads=lambda path: str(path).endswith(".onnx"),
    load=_load,
    find_faults=_find_faults,
    writer=Writer(
        suffix=".onnx",
        write=_write,
        options={"opset": 18, "output_dtype": "float32", "names": None, "allow_functions": False},
        pads=_padded,
        runtime=RUNTIME,
    ),
    runtime=RUNTIME,
    plugin=_plugin,
)
