"""Recurrent models that PyTorch and TensorFlow exported, with the outputs that these computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn

DATA = Path(__file__).parents[2] / "data" / "onnx"
RECORDED = sorted(path.parent for path in DATA.glob("*/model.onnx"))
STAY = {
    # A mask that is fed: any step of a sentence may be left out. A step before the loop is a layer.
    "keras_masked": {"Scan", "Rnn"},
    "keras_stacked_cells": {"Scan"},  # two cells in one step
    "tensorflow_cond": {"If"},
    "tensorflow_scan": {"Scan"},  # collects the cell state of every step
    "tensorflow_while_lengths": {"Loop"},
}
"""What does not become a layer, and runs step by step or inside a branch."""


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_give_the_recorded_outputs(folder: Path) -> None:
    model = onernn.load(folder / "model.onnx")
    assert onernn.verify(model, folder / "io.npz")
    kinds = {node.op for node in onernn.fuse(model).model.nodes}
    assert kinds & {"Rnn", "If", "Loop", "Scan"} == STAY.get(folder.name, {"Rnn"})


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_survive_being_written_again(
    folder: Path, opset: int, tmp_path: Path
) -> None:
    model = onernn.load(folder / "model.onnx")
    if folder.name == "torch_gru_dynamic" and opset == 13:
        with pytest.raises(onernn.UnsupportedError, match="attribute start needs opset 15"):
            onernn.convert(model, tmp_path / "m.onnx", opset=opset)
        return
    assert onernn.convert(model, tmp_path / "m.onnx", opset=opset, check=folder / "io.npz")


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
    assert len(RECORDED) >= 18
    assert any((folder / "model.onnx.data").exists() for folder in RECORDED)
