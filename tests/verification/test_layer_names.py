"""What messages and reports call a node is what a viewer of the file shows."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from support.graphs import new_node
from support.planted import FAULTS, file, read, sound

import onernn
from onernn.ir.graph import NativeOp, Node
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify


def tagger(fault: str = "", layer: int = 0, *, named: bool = True) -> onnx.ModelProto:
    """Two GRU layers; ``named``: nodes have names, as exporters give them."""
    content = sound("GRU", 4, 2, 2)
    if fault:
        FAULTS[fault](content, layer)
    model = onnx.load_from_string(file(content))
    for node in model.graph.node if named else ():
        node.name = f"/{node.op_type}/{node.output[0]}"
    return model


def compared(*fault: object, **how: bool) -> Report:
    wrong, right = (read(tagger(*each, **how).SerializeToString()) for each in (fault, ()))
    return verify(wrong, against=Against(right))


@pytest.mark.parametrize("layer", [0, 1])
def test_verify_names_the_layer_of_a_stack_as_the_file_does(layer: int) -> None:
    report, node = compared("gates", layer), f"GRU '/GRU/Y{layer}'"
    assert f"{node}, layer {layer + 1} of 2" in report.cause.text
    assert node in str(report.first)


def test_verify_names_other_nodes_as_the_file_does() -> None:
    assert str(compared("dense_scaled").first) == "MatMul '/MatMul/product'"


def test_nodes_without_names_are_found_by_the_values_of_the_file() -> None:
    assert "GRU that makes 'Y1', layer 2 of 2" in str(compared("gates", 1, named=False).first)


def test_inspect_and_errors_name_a_node_as_the_file_does(tmp_path: Path) -> None:
    model, path = tagger(), tmp_path / "m.onnx"
    onnx.save(model, path)
    assert "node '/GRU/Y0', '/GRU/Y1' (GRU)" in onernn.Session(path).explain()
    (node,) = (each for each in model.graph.node if "Y1" in each.output)
    node.attribute.append(onnx.helper.make_attribute("layout", 7))
    onnx.save(model, path)
    with pytest.raises(onernn.UnsupportedError, match=r"node '/GRU/Y1' \(GRU\)"):
        onernn.Session(path)


@pytest.mark.parametrize(
    "model, label, native",
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
