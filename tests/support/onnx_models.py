"""Small ONNX models, run by ours and by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from onernn import Graph, Session
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model


def info(name: str, array: np.ndarray | None = None) -> onnx.ValueInfoProto:
    if array is None:
        return helper.make_value_info(name, onnx.TypeProto())
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def model(
    nodes: list[Any],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    opset: int = 17,
    constants: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, a) for n, a in inputs.items()],
        [info(n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    version = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, ir_version=8, opset_imports=version, **more)


def read(proto: onnx.ModelProto) -> Graph:
    return lower(parse_model(proto.SerializeToString(), Path("model.onnx")))


def ours(proto: onnx.ModelProto, inputs: dict[str, np.ndarray], **session: Any) -> list[Any]:
    return list(Session(read(proto), **session).run(inputs).values())


def theirs(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, inputs)


def check(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    for mine, want in zip(ours(proto, inputs), theirs(proto, inputs), strict=True):
        assert mine.shape == want.shape and mine.dtype == want.dtype
        np.testing.assert_allclose(mine, want, rtol=5e-6, atol=5e-6)
