"""Small ONNX models, run by ours and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, parser

from onernn import Graph, Session
from onernn.adapters.onnx import optimize
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from support.checking import assert_close

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


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
    constants: Mapping[str, np.ndarray] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        parsed_nodes(nodes) if isinstance(nodes, str) else nodes,
        "g",
        [info(n, a) for n, a in inputs.items()],
        [info(n) for n in outputs],
    )
    return model_of(graph, constants, opset, **more)


def parsed(
    text: str, constants: Mapping[str, np.ndarray] | None = None, opset: int = 17, **more: Any
) -> onnx.ModelProto:
    """A model in ONNX's own words: ``(float[T, N] x) => (y) { y = Relu(x) }``."""
    return model_of(parser.parse_graph(f"g {text}"), constants, opset, **more)


def model_of(
    graph: onnx.GraphProto,
    constants: Mapping[str, np.ndarray] | None,
    opset: int,
    opsets: Sequence[Any] = (),
    **more: Any,
) -> onnx.ModelProto:
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (constants or {}).items())
    version = [helper.make_opsetid("", opset), *opsets]
    return helper.make_model(graph, ir_version=8, opset_imports=version, **more)


def parameters(
    kind: str, width: int, hidden: int, *, directions: int = 1, bound: float = 0.5, seed: int = 0
) -> dict[str, np.ndarray]:
    """W, R and B of a recurrent operator, uniform within the bound."""
    rng, rows = np.random.default_rng(seed), GATES[kind] * hidden
    shapes = {"W": (rows, width), "R": (rows, hidden), "B": (2 * rows,)}
    return {
        name: rng.uniform(-bound, bound, (directions, *shape)).astype("f4")
        for name, shape in shapes.items()
    }


def quiet(**given: Any) -> onnxruntime.SessionOptions:
    """One thread, no warnings, and these options."""
    options = onnxruntime.SessionOptions()
    for name, value in {"log_severity_level": 4, "intra_op_num_threads": 1, **given}.items():
        setattr(options, name, value)
    return options


def session_of(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime's own."""
    return onnxruntime.InferenceSession(proto.SerializeToString(), quiet())


def live(proto: onnx.ModelProto, *feeds: dict[str, np.ndarray], **options: Any) -> Any:
    """A session with our layers, which gives what ONNX Runtime gives of these feeds."""
    session, runtime = optimize(proto, backend="kernels", **options), session_of(proto)
    for feed in feeds:
        assert_equal(session.run(None, feed), runtime.run(None, feed))
    return session


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
    return parsed(
        f"(float[?, ?, 8] x) => (y) {{ [layer] y = GRU <hidden_size = {hidden}> (x, W, R) }}",
        small(parameters("GRU", 8, hidden, bound=0.1, seed=seed), "W", "R"),
    )


def small(arrays: Mapping[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in names}


def gru_batch(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 30)), int(rng.integers(1, 9)), 8)
    return {"x": rng.uniform(-1, 1, shape).astype("f4")}
