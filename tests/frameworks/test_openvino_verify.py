"""OpenVINO's own run as the reference of what we run: verify --against openvino:PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper

import onernn

CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}


def saved(folder: Path, cell: str, directions: int = 2) -> Path:
    """m.onnx, and what OpenVINO makes of it."""
    rng = np.random.default_rng(0)
    rows = CELLS[cell] * 4
    shapes = {"W": (directions, rows, 3), "R": (directions, rows, 4), "B": (directions, 2 * rows)}
    held = [
        numpy_helper.from_array(rng.uniform(-0.5, 0.5, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    way = "bidirectional" if directions == 2 else "forward"
    made = ["Y", "Y_h", "Y_c"][: 2 + (cell == "LSTM")]
    node = helper.make_node(cell, ["x", "W", "R", "B"], made, hidden_size=4, direction=way)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", 3])
    graph = helper.make_graph([node], "g", [x], outputs, held)
    opsets = [helper.make_opsetid("", 15)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")
    model = openvino.Core().read_model(folder / "m.onnx")
    openvino.save_model(model, folder / "m.xml", compress_to_fp16=False)
    return folder / "m.onnx"


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_a_model_agrees_with_openvino_on_both_kinds_of_files(
    tmp_path: Path, cell: str, suffix: str
) -> None:
    path = saved(tmp_path, cell)
    report = onernn.verify(path, against=f"openvino:{path.with_suffix(suffix)}")
    assert report, report.outputs
    assert [each.name for each in report.outputs] == ["Y", "Y_h", "Y_c"][: 2 + (cell == "LSTM")]


def test_changed_weights_differ_from_openvino_and_the_command_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, "GRU")
    model = onnx.load(path)
    w = next(each for each in model.graph.initializer if each.name == "W")
    gates = numpy_helper.to_array(w).reshape(2, 3, 4, 3)[:, [1, 0, 2]].reshape(2, 12, 3)
    w.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(gates), "W"))
    onnx.save(model, tmp_path / "wrong.onnx")
    command = [sys.executable, "-m", "onernn.cli", "verify", str(tmp_path / "wrong.onnx")]
    done = subprocess.run(
        [*command, "--against", f"openvino:{tmp_path / 'm.xml'}"], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "FAIL" in done.stdout
