"""Recurrent models that PyTorch exported, with the outputs that PyTorch computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn

DATA = Path(__file__).parents[1] / "data" / "onnx"
RECORDED = sorted(path.parent for path in DATA.glob("*/model.onnx"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_give_the_recorded_outputs(folder: Path) -> None:
    model = onernn.load(folder / "model.onnx")
    assert onernn.verify(model, folder / "io.npz")
    assert "Rnn" in {node.op for node in model.nodes}


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_exported_models_survive_being_written_again(
    folder: Path, opset: int, tmp_path: Path
) -> None:
    model = onernn.load(folder / "model.onnx")
    assert onernn.convert(model, tmp_path / "m.onnx", opset=opset, check=folder / "io.npz")


def test_a_scripted_loop_over_a_cell_becomes_one_layer() -> None:
    model = onernn.load(DATA / "torch_scripted_lstm" / "model.onnx")
    assert not {"Loop", "Scan"} & {node.op for node in model.nodes}
    (rnn,) = (node for node in model.nodes if node.op == "Rnn")
    assert rnn.attributes["spec"].cell is onernn.Cell.LSTM


def test_the_recordings_are_there() -> None:
    assert len(RECORDED) >= 6
    assert any((folder / "model.onnx.data").exists() for folder in RECORDED)
