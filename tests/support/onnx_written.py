"""What plain ONNX Runtime makes of a graph that was written as ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onernn import Graph, Ragged, Session, load
from onernn.adapters.common.writing import declare
from onernn.adapters.converting import write_model
from onernn.adapters.onnx.write import to_onnx
from onernn.ir.graph import Node, Value
from onernn.verification.recording import read_arrays, read_inputs, read_outputs
from support.onnx_models import session_of


def graph_over(inputs: Value | Sequence[Value], *nodes: Node, **constants: Any) -> Graph:
    """A graph of one output, which is that of the last node."""
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    values = (inputs,) if isinstance(inputs, Value) else tuple(inputs)
    return Graph("g", values, (Value(nodes[-1].outputs[0]),), nodes, arrays)


def padded_feed(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    feed: dict[str, np.ndarray] = {**inputs}
    for name, value in inputs.items():
        if isinstance(value, Ragged):
            feed[name] = value.to_padded(time=max(1, int(value.lengths.max(initial=0))))
            feed[f"{name}_lengths"] = value.lengths.astype(np.int32)
    return feed


def written(graph: Graph, inputs: dict[str, Any] | None = None, **options: Any) -> onnx.ModelProto:
    """The model, which onnx's checker accepts with its types."""
    data = to_onnx(declare(graph, inputs), **options).SerializeToString()
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    session = session_of(model)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, padded_feed(inputs)), strict=True))


# A model of Keras 2 takes words as int32, ONNX's Cast in front of its table as floats.
TAKES = {"tensor(float)": np.float32}
RTOL = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}


def converted(model: Graph, file: Path, recording: Path, **options: Any) -> Graph:
    """Written as `onernn.convert` writes it, and read back.

    onnx's checker accepts the file, and ONNX Runtime and we give what is recorded.
    """
    arrays, names = read_arrays(recording), options.get("names", {})
    inputs = read_inputs(arrays, model.inputs)
    write_model(model, file, inputs=inputs, **options)
    onnx.checker.check_model(str(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    feed = {names.get(name, name): array for name, array in padded_feed(inputs).items()}
    for each in session.get_inputs():
        feed[each.name] = feed[each.name].astype(TAKES.get(each.type, feed[each.name].dtype))
    outputs = [each.name for each in session.get_outputs()]
    theirs = dict(zip(outputs, session.run(None, feed), strict=True))
    graph = load(file)
    ours = Session(graph).run(feed)
    rtol = RTOL[options.get("output_dtype", "float32")]
    for name, want in read_outputs(arrays, model.outputs).items():
        for got in (theirs, ours):
            assert_same(got[names.get(name, name)], want, rtol=rtol)
    return graph


def assert_same(got: np.ndarray, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal, ragged values padded with zeros; the default tolerance of all comparisons."""
    expected = want.to_padded(time=got.shape[1]) if isinstance(want, Ragged) else want
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if expected.dtype.kind != "f":
        return np.testing.assert_array_equal(got, expected)
    largest = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol + rtol * largest)
