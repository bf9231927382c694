"""Small ONNX models, run by ours and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, parser

from onernn import Graph, Session
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from support.checking import assert_close


def info(name: str, array: np.ndarray | None = None) -> onnx.ValueInfoProto:
    if array is None:
        return helper.make_value_info(name, onnx.TypeProto())
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def parsed_nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes as ONNX writes them: ``y = Gemm <transB = 1> (x, W) z = Relu (y)``."""
    return list(parser.parse_graph(f"g () => () {{ {text} }}").node)


def model(
    nodes: list[Any] | str,
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    opset: int = 17,
    constants: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        parsed_nodes(nodes) if isinstance(nodes, str) else nodes,
        "g",
        [info(n, a) for n, a in inputs.items()],
        [info(n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    version = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, ir_version=8, opset_imports=version, **more)


def parsed(
    text: str, constants: Mapping[str, np.ndarray] | None = None, opset: int = 17, **more: Any
) -> onnx.ModelProto:
    """A model in ONNX's own words: ``(float[T, N] x) => (y) { y = Relu(x) }``."""
    graph = parser.parse_graph(f"g {text}")
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (constants or {}).items())
    version = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(graph, ir_version=8, opset_imports=version, **more)


def quiet() -> onnxruntime.SessionOptions:
    """One thread, no warnings."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def session_of(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime's own."""
    return onnxruntime.InferenceSession(proto.SerializeToString(), quiet())


def read(proto: onnx.ModelProto, semantics: str = "documented") -> Graph:
    return lower(parse_model(proto.SerializeToString(), Path("model.onnx")), semantics=semantics)


def ours(proto: onnx.ModelProto, inputs: dict[str, np.ndarray], **session: Any) -> list[Any]:
    return list(Session(read(proto), **session).run(inputs).values())


def theirs(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return session_of(proto).run(None, inputs)


def assert_equal(got: Iterable[Any], want: Iterable[Any]) -> None:
    """All outputs of two runs, under the default tolerance."""
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        assert_close(mine, theirs)


def check(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    for mine, want in zip(ours(proto, inputs), theirs(proto, inputs), strict=True):
        assert mine.shape == want.shape and mine.dtype == want.dtype
        np.testing.assert_allclose(mine, want, rtol=5e-6, atol=5e-6)


def gru_layer(hidden: int = 64, seed: int = 0) -> onnx.ModelProto:
    """One GRU over (T, N, 8)."""
    rng = np.random.default_rng(seed)
    shapes = {"W": (1, 3 * hidden, 8), "R": (1, 3 * hidden, hidden)}
    return parsed(
        f"(float[?, ?, 8] x) => (y) {{ [layer] y = GRU <hidden_size = {hidden}> (x, W, R) }}",
        {name: rng.uniform(-0.1, 0.1, shape).astype("f4") for name, shape in shapes.items()},
    )


def gru_batch(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 30)), int(rng.integers(1, 9)), 8)
    return {"x": rng.uniform(-1, 1, shape).astype("f4")}
