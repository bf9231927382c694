"""OpenVINO's own run as the reference of what we run: verify --against openvino:PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import helper, numpy_helper, parser
from support.arrays import uniform

import onernn

OUTPUTS = {"LSTM": ["Y", "Y_h", "Y_c"], "GRU": ["Y", "Y_h"], "RNN": ["Y", "Y_h"]}


def saved(folder: Path, cell: str) -> Path:
    """m.onnx, and what OpenVINO makes of it."""
    made, rows = ", ".join(OUTPUTS[cell]), {"LSTM": 16, "GRU": 12, "RNN": 4}[cell]
    node = f'{made} = {cell} <hidden_size = 4, direction = "bidirectional"> (x, W, R, B)'
    outputs = ", ".join(f"float[] {name}" for name in OUTPUTS[cell])
    graph = parser.parse_graph(f"g (float[T, N, 3] x) => ({outputs}) {{ {node} }}")
    for name, shape in {"W": (rows, 3), "R": (rows, 4), "B": (2 * rows,)}.items():
        array = uniform(2, *shape, seed=len(shape), bound=0.5)
        graph.initializer.append(numpy_helper.from_array(array, name))
    opsets = [helper.make_opsetid("", 15)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, folder / "m.onnx")
    read = openvino.Core().read_model(folder / "m.onnx")
    openvino.save_model(read, folder / "m.xml", compress_to_fp16=False)
    return folder / "m.onnx"


@pytest.mark.parametrize("cell", OUTPUTS)
@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_a_model_agrees_with_openvino_on_both_kinds_of_files(
    tmp_path: Path, cell: str, suffix: str
) -> None:
    path = saved(tmp_path, cell)
    report = onernn.verify(path, against=f"openvino:{path.with_suffix(suffix)}")
    assert report, report.outputs
    assert [each.name for each in report.outputs] == OUTPUTS[cell]


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
