"""What plain ONNX Runtime makes of a graph that was written as ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

from onernn import Graph, Ragged
from onernn.adapters.common.writing import declared
from onernn.adapters.onnx.write import to_onnx


def padded_feed(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    feed: dict[str, np.ndarray] = {}
    for name, value in inputs.items():
        if isinstance(value, Ragged):
            feed[name] = value.to_padded(time=max(1, int(value.lengths.max(initial=0))))
            feed[f"{name}_lengths"] = value.lengths.astype(np.int32)
        else:
            feed[name] = value
    return feed


def written(graph: Graph, inputs: dict[str, Any] | None = None, **options: Any) -> onnx.ModelProto:
    """The model, which onnx's checker accepts with its types."""
    data = to_onnx(declared(graph, inputs), **options).SerializeToString()
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, padded_feed(inputs)), strict=True))


def assert_same(got: np.ndarray, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal, ragged values padded with zeros; the default tolerance of all comparisons."""
    expected = want.to_padded(time=got.shape[1]) if isinstance(want, Ragged) else want
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if expected.dtype.kind != "f":
        return np.testing.assert_array_equal(got, expected)
    largest = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol + rtol * largest)
