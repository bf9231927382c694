"""onernn's own adapters under the kit that others use: the backend, and the writer of ONNX.

ONNX nodes: test_node_suite.py. Paddle, MXNet, PyTorch and Keras: tests/frameworks/test_*_suite.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.onnx_models import quiet

from onernn import Ragged, convert
from onernn.backend import Stack, open_backend
from onernn.ir.graph import Graph, Node, Value
from onernn.verification.suite import CELLS, Case, Conformance


class TestOneDnn(Conformance):
    sizes, lengths = ("odd",), ("ragged", "long")

    def layer(self, case: Case) -> Stack:
        return open_backend("onednn", threads=1).prepare(case.spec, case.weights)

    def outputs(self, layer: Stack, case: Case) -> tuple[Ragged, tuple[np.ndarray, ...]]:
        return layer.run(case.x, case.state, case.attention)


class TestOnnxWriter(Conformance):
    """A graph of one layer, written as ONNX, against the case: ONNX Runtime runs the file."""

    cells = tuple(cell for cell in CELLS if not cell.endswith("augru"))  # ONNX has no attention
    sizes, layers, lengths = ("odd",), (1,), ("filled", "long")

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def layer(self, case: Case) -> onnxruntime.InferenceSession:
        spec, parts = case.spec, case.spec.cell.states
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        states = [Value(p, "float32", (1, spec.directions, None, widths[p])) for p in parts]
        x = Value("x", "float32", (None, spec.input_size), 1)
        outputs = (Value("y", "float32", (None, spec.output_size), 1),)
        outputs += tuple(Value(f"{p}_out", "float32", None) for p in parts)
        names = tuple(value.name for value in outputs)
        attributes = {"spec": spec, "weights": case.weights[0]}
        node = Node("Rnn", ("x", *parts), names, attributes)
        graph = Graph("written", (x, *states), outputs, (node,), {})
        convert(graph, self.folder / "written.onnx")
        return onnxruntime.InferenceSession(self.folder / "written.onnx", quiet())

    def outputs(self, session: onnxruntime.InferenceSession, case: Case) -> tuple[Any, Any]:
        spec, parts = case.spec, case.spec.cell.states
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        zeros = [np.zeros((1, spec.directions, len(case.x), widths[p]), np.float32) for p in parts]
        feed = {"x": case.pad(), "x_lengths": case.lengths.astype(np.int32)}
        feed |= dict(zip(parts, case.state or zeros, strict=True))
        y, *final = session.run(["y", *(f"{p}_out" for p in parts)], feed)
        return case.cut(y), tuple(final)
