"""What messages and reports call a node is what a viewer of the file shows."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from support.graphs import new_node
from support.planted import read, tagger

import onernn
from onernn.ir.graph import NativeOp, Node
from onernn.verification.references import Against
from onernn.verification.verifying import verify

NAMES = {"GRU": "/encoder/GRU", "MatMul": "/head/MatMul"}


def named(data: bytes) -> bytes:
    """The same file whose nodes have names, as exporters give them."""
    model = onnx.load_from_string(data)
    for at, node in enumerate(model.graph.node):
        node.name = f"{NAMES.get(node.op_type, '/' + node.op_type)}_{at}"
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("layer, node", [(0, "/encoder/GRU_0"), (1, "/encoder/GRU_3")])
def test_verify_names_the_layer_of_a_stack_as_the_file_does(layer: int, node: str) -> None:
    sound, wrong = read(named(tagger())), read(named(tagger(layer=layer)))
    report = verify(wrong, against=Against(sound))
    assert report.cause is not None and f"GRU '{node}', layer {layer + 1} of 2" in report.cause.text
    assert f"GRU '{node}'" in str(report.first)


def test_verify_names_other_nodes_as_the_file_does() -> None:
    report = verify(read(named(tagger(dense=1.5))), against=Against(read(named(tagger()))))
    assert str(report.first) == "MatMul '/head/MatMul_6'"


def test_nodes_without_names_are_found_by_the_values_of_the_file() -> None:
    report = verify(read(tagger(layer=1)), against=Against(read(tagger())))
    assert "GRU that makes 'Y1', layer 2 of 2" in str(report.first)


def test_inspect_and_errors_name_a_node_as_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(named(tagger()))
    assert "node '/encoder/GRU_0', '/encoder/GRU_3' (GRU)" in onernn.Session(path).explain()
    model = onnx.load(path)
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("layout", 7))
    onnx.save(model, path)
    with pytest.raises(onernn.UnsupportedError, match=r"node '/encoder/GRU_3' \(GRU\)"):
        onernn.Session(path)


@pytest.mark.parametrize(
    ("model", "label", "native"),
    [
        ("keras/text_classifier/model.keras", "node 'bidirectional' (B", "Bidirectional 'bidir"),
        ("paddle/shared_bias", "node 'gru_10' (mul+", "gru that makes 'gru_10'"),
        ("paddle/rnn_simple", "node 'rnn_11' (rnn)", "rnn that makes 'rnn_11'"),
        ("torch/tagger/model.pt2", "node 'getitem' (lstm", "lstm.input that makes 'getitem'"),
        ("mxnet/legacy_fused_checkpoint", "node 'lstm_rnn' (RNN)", "RNN 'lstm_rnn'"),
    ],
)
def test_every_framework_s_layers_have_the_names_of_their_files(
    model: str, label: str, native: str
) -> None:
    nodes = onernn.fuse(onernn.load(Path(__file__).parents[1] / "data" / model)).model.nodes
    first = next(node for node in nodes if node.op == "Rnn")
    assert first.label.startswith(label) and first.native.startswith(native)


def test_a_name_from_a_file_cannot_steer_a_terminal() -> None:
    node = Node("Tanh", ("x",), ("y",), {}, (NativeOp(0, "Tanh\x1b[2J", "a\x1b[2J\u202e\n"),))
    assert node.label.isprintable() and node.native.isprintable()


def test_what_many_operators_became_names_the_first_and_layers_alone() -> None:
    steps = [NativeOp(k, "MatMul", f"step{k}") for k in range(9)]
    assert Node("Rnn", ("x",), ("y",), {}, tuple(steps)).native == (
        "MatMul 'step0', 'step1', 'step2', ..."
    )
    layer = (NativeOp(0, "Transpose", "t"), NativeOp(1, "LSTM", "l"), NativeOp(2, "Squeeze", ""))
    assert Node("Rnn", ("x",), ("y",), {}, layer).native == "LSTM 'l'"
    assert new_node("y = Add x x").native == "node 'y' (Add)"
