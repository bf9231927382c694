"""Recurrent models that PyTorch, TensorFlow and Keras exported, or ONNX Runtime quantized, with the
outputs that these computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import SATURATES, cut_off_by_onnx_runtime

import onernn

DATA = Path(__file__).parents[2] / "data" / "onnx"
RECORDED = sorted(path.parent for path in DATA.glob("*/model.onnx"))
STAY = {
    "keras_stacked_cells": {"Scan"},  # two cells in one step
    **dict.fromkeys(
        ("onnxruntime_quantized_signed", "onnxruntime_quantized_unsigned"), {"DynamicQuantizeLSTM"}
    ),
    "tensorflow_cond": {"If"},
    "tensorflow_while_lengths": {"Loop"},
}
"""What does not become an Rnn: it runs step by step, inside a branch, or is a layer on bytes."""
LAYERS = {
    **{"torch_unsorted_lstm": 1, "torch_custom_lstm": 1, "torch_collected_cells": 1},
    **{"keras_masked": 1, "keras3_masked_stack": 2, "keras3_masked_gru_both": 2},
    **{"keras3_masked_stack_both": 4},
    **{"keras3_masking": 1, "keras3_unrolled_gru": 1, "keras3_unrolled_lstm_both": 2},
}
"""How many layers there are, counting directions that are not paired."""


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_give_the_recorded_outputs(folder: Path) -> None:
    model = onernn.load(folder / "model.onnx")
    assert onernn.verify(model, folder / "io.npz")
    kinds = {node.op for node in onernn.fuse(model).model.nodes}
    runs = {"Rnn", "DynamicQuantizeLSTM", "If", "Loop", "Scan"}
    assert kinds & runs == STAY.get(folder.name, {"Rnn"})


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_survive_being_written_again(
    folder: Path, opset: int, tmp_path: Path
) -> None:
    if SATURATES and folder.name.startswith("onnxruntime_quantized"):
        pytest.skip(cut_off_by_onnx_runtime)
    model = onernn.load(folder / "model.onnx")
    if folder.name == "torch_gru_dynamic" and opset == 13:
        with pytest.raises(onernn.UnsupportedError, match="attribute start needs opset 15"):
            onernn.convert(model, tmp_path / "m.onnx", opset=opset)
        return
    assert onernn.convert(model, tmp_path / "m.onnx", opset=opset, check=folder / "io.npz")


@pytest.mark.parametrize("name", LAYERS)
def test_loops_and_steps_written_out_become_their_layers(name: str) -> None:
    model = onernn.fuse(DATA / name / "model.onnx").model
    assert sum(node.op == "Rnn" for node in model.nodes) == LAYERS[name]


def test_a_scripted_loop_over_a_cell_becomes_one_layer() -> None:
    model = onernn.fuse(DATA / "torch_scripted_lstm" / "model.onnx").model
    assert not {"Loop", "Scan"} & {node.op for node in model.nodes}
    (rnn,) = (node for node in model.nodes if node.op == "Rnn")
    assert rnn.attributes["spec"].cell is onernn.Cell.LSTM


def test_layers_in_the_branches_of_a_condition_are_fused() -> None:
    model = onernn.load(DATA / "tensorflow_cond" / "model.onnx")
    cells = {each.cell for each in onernn.Session(model).explained}
    assert cells == {"LBR_GRU", "LSTM"}


def test_the_recordings_are_there() -> None:
    assert len(RECORDED) >= 26
    assert any((folder / "model.onnx.data").exists() for folder in RECORDED)
