"""onernn's own adapters under the kit that others use: the backend, and ONNX beside ONNX Runtime.

Paddle, MXNet, PyTorch and Keras: tests/frameworks/test_*_suite.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onernn import Ragged, RnnSpec, RnnWeights, convert, fuse, load
from onernn.backend import Stack, open_backend
from onernn.ir.graph import Graph, Node, Value
from onernn.verification.suite import CELLS, Case, Conformance


class TestOneDnn(Conformance):
    sizes, lengths = ("odd",), ("ragged", "long")

    def layer(self, case: Case) -> Stack:
        return open_backend("onednn", threads=1).prepare(case.spec, case.weights)

    def outputs(self, layer: Stack, case: Case) -> tuple[Ragged, tuple[np.ndarray, ...]]:
        return layer.run(case.x, case.state, case.attention)


# ONNX's operator and its attributes.
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn_tanh": ("RNN", {}),
    "rnn_relu": ("RNN", {"activations": ["Relu"]}),
    "rnn_sigmoid": ("RNN", {"activations": ["Sigmoid"]}),
    "lstm": ("LSTM", {}),
    "lstm_peephole": ("LSTM", {}),
    "lstm_gate_clip": ("LSTM", {"clip": 0.375}),
    "gru": ("GRU", {"linear_before_reset": 0}),
    "gru_gate_clip": ("GRU", {"linear_before_reset": 0, "clip": 0.375}),
    "lbr_gru": ("GRU", {"linear_before_reset": 1}),
}
DIRECTIONS = {
    "left2right": "forward",
    "right2left": "reverse",
    "bidirectional_concat": "bidirectional",
}


def onnx_model(case: Case) -> onnx.ModelProto:
    """A stack of operators with numbers of its own, over x (T, N, I), lengths and states."""
    op, attributes = OPERATORS[case.cell]
    spec, sides = case.spec, case.spec.directions
    rows, units, width = spec.gates * spec.hidden_size, spec.hidden_size, spec.input_size
    attributes = {**attributes, "hidden_size": units, "direction": DIRECTIONS[spec.direction]}
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * sides
    kept, nodes, x, parts = [], [], "x", spec.cell.states
    for k in range(spec.layers):
        shapes = {"W": (rows, width), "R": (rows, units), "B": (2 * rows,)}
        shapes |= {"P": (3 * units,)} if spec.peephole else {}
        for name, shape in shapes.items():
            kept.append(numpy_helper.from_array(case.contractive(sides, *shape), f"{name}{k}"))
        inputs = [x, f"W{k}", f"R{k}", f"B{k}", "lengths", *(f"{part}{k}" for part in parts)]
        inputs += [f"P{k}"] if spec.peephole else []
        outputs = [f"y{k}", *(f"{part}{k}_out" for part in parts)]
        nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        nodes.append(helper.make_node("Transpose", [f"y{k}"], [f"t{k}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{k}", "flat"], [f"x{k}"]))
        x, width = f"x{k}", spec.output_size
    kept.append(numpy_helper.from_array(np.array([0, 0, -1]), "flat"))

    def value(name: str, *shape: Any, dtype: int = onnx.TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, dtype, shape)

    names = [f"{part}{k}" for k in range(spec.layers) for part in parts]
    states = [value(name, sides, "N", units) for name in names]
    lengths = value("lengths", "N", dtype=onnx.TensorProto.INT32)
    graph = helper.make_graph(
        nodes,
        case.cell,
        [value("x", "T", "N", spec.input_size), lengths, *states],
        [value(x, "T", "N", None), *(value(f"{name}_out", sides, "N", units) for name in names)],
        kept,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 14)])


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options)


class TestOnnxReader(Conformance):
    """What is read from a file, against ONNX Runtime on that file."""

    cells, directions = tuple(OPERATORS), tuple(DIRECTIONS)
    sizes = ("odd",)
    lengths = ("filled", "long", "word")  # ONNX gives zeros for a sentence without words

    def layer(self, case: Case) -> onnx.ModelProto:
        return onnx_model(case)

    def outputs(self, model: onnx.ModelProto, case: Case) -> tuple[Any, Any]:
        session = session_of(model.SerializeToString())
        spec, parts = case.spec, case.spec.cell.states
        shape = (spec.layers, spec.directions, len(case.x), spec.hidden_size)
        states = case.state or [np.zeros(shape, np.float32)] * len(parts)
        feed = {"x": case.padded(time_major=True), "lengths": case.lengths.astype(np.int32)}
        feed |= {
            f"{p}{k}": s[k] for p, s in zip(parts, states, strict=True) for k in range(spec.layers)
        }
        y, *after = session.run(None, feed)
        final = [np.stack(after[at :: len(parts)]) for at in range(len(parts))]
        return case.cut(y, time_major=True), tuple(final)

    def weights(self, model: onnx.ModelProto, case: Case) -> tuple[RnnSpec, list[RnnWeights]]:
        file = self.folder / "model.onnx"
        onnx.save(model, file)
        return rnns(load(file))

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path


def rnns(graph: Graph) -> tuple[RnnSpec, list[RnnWeights]]:
    """The recurrent layers of a graph as one stack."""
    found = [node.attributes for node in fuse(graph).model.nodes if node.op == "Rnn"]
    weights: list[RnnWeights] = []
    for each in found:
        given = each["weights"]
        weights += [given] if isinstance(given, RnnWeights) else given
    return replace(found[0]["spec"], layers=len(weights)), weights


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
        inputs = ("x", *parts, "") if len(parts) == 2 else ("x", "h", "", "")
        names = ["y", *(f"{p}_out" for p in parts)]
        attributes = {"spec": spec, "weights": case.weights[0]}
        node = Node("Rnn", inputs, tuple(names), attributes)
        graph = Graph("written", (x, *states), outputs, (node,), {})
        convert(graph, self.folder / "written.onnx")
        return session_of((self.folder / "written.onnx").read_bytes())

    def outputs(self, session: onnxruntime.InferenceSession, case: Case) -> tuple[Any, Any]:
        spec, parts = case.spec, case.spec.cell.states
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        zeros = [np.zeros((1, spec.directions, len(case.x), widths[p]), np.float32) for p in parts]
        feed = {"x": case.padded(), "x_lengths": case.lengths.astype(np.int32)}
        feed |= dict(zip(parts, case.state or zeros, strict=True))
        y, *final = session.run(["y", *(f"{p}_out" for p in parts)], feed)
        return case.cut(y), tuple(final)
