"""Converted files are run beside their models before they get their names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import onernn as command
from support.graphs import new_node

import onernn
from onernn import Graph
from onernn.adapters.converting import write_model
from onernn.ir.graph import Node, Value
from onernn.verification import conversion
from onernn.verification.conversion import WrongFileError

SUFFIXES = [".onnx", ".pdmodel"]


def _model(op: str = "Tanh") -> Graph:
    value = Value("x", "float32", (None, 3))
    return Graph("model", (value,), (Value("y"),), (new_node(f"y = {op} x"),), {})


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that writes Sigmoid for Tanh."""

    def write(model: Graph, path: Path, **options: Any) -> None:
        nodes = [
            Node("Sigmoid" if n.op == "Tanh" else n.op, n.inputs, n.outputs) for n in model.nodes
        ]
        write_model(replace(model, nodes=tuple(nodes)), path, **options)

    monkeypatch.setattr(conversion, "write_model", write)


def _content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.usefixtures("wrong")
def test_a_file_that_differs_from_its_model_is_not_written_and_an_older_one_stays(
    suffix: str, older: bool, tmp_path: Path
) -> None:
    file = tmp_path / f"out{suffix}"
    if older:
        onernn.convert(_model("Relu"), file)
    before = _content(tmp_path)
    assert len(before) == older * (1 + (suffix == ".pdmodel"))
    for inputs in (None, {"x": np.ones((2, 3), np.float32)}):
        with pytest.raises(WrongFileError, match=f"{file}.* output 'y'") as raised:
            onernn.convert(_model(), file, **({} if inputs is None else {"inputs": inputs}))
        assert not raised.value.report.passed
    assert _content(tmp_path) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_commands_exit_with_1_where_a_file_differs(
    suffix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, file = tmp_path / "source.onnx", tmp_path / f"out{suffix}"
    onernn.convert(_model(), source)
    value = Value("y", "float32", (None, 3))
    second = Graph("second", (value,), (Value("z"),), (new_node("z = Neg y"),), {})
    onernn.convert(second, tmp_path / "second.onnx")
    run = command("convert", source, file, "--quiet")
    assert (run.returncode, run.stderr) == (0, "")
    before = _content(tmp_path)
    request.getfixturevalue("wrong")
    joined = ("join", source, tmp_path / "second.onnx", "-o", file)
    for words in (("convert", source, file), joined):
        run = command(*words, "--json")
        assert run.returncode == 1 and '"fail"' in run.stdout, run.stderr
        assert f"{file} is not written" in run.stderr
    assert _content(tmp_path) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_check_leaves_no_new_file(suffix: str, tmp_path: Path) -> None:
    source, file = tmp_path / "source.onnx", tmp_path / f"out{suffix}"
    onernn.convert(_model(), source)
    x = np.ones((2, 3), np.float32)
    recording = {"in__x": x, "out__y": x + 1}
    np.savez(tmp_path / "io.npz", **recording)
    before = _content(tmp_path)
    assert not onernn.convert(_model(), file, check=recording)
    run = command("convert", source, file, "--check", tmp_path / "io.npz")
    assert run.returncode == 1 and str(file) in run.stderr
    assert _content(tmp_path) == before
    assert onernn.convert(_model(), file, check={**recording, "out__y": np.tanh(x)})
    assert file.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_cannot_be_verified_is_written_with_the_reason(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No input has as many rows as the constant, whose size the model does not declare."""
    nodes = (new_node("i = Cast x", to="int64"), new_node("y = Gather t i", axis=0))
    table = np.zeros((0, 3), np.float32)
    graph = Graph("m", (Value("x", "float32", (None,)),), (Value("y"),), nodes, {"t": table})
    notes: list[str] = []
    onernn.convert(graph, tmp_path / f"a{suffix}", note=notes.append)
    onernn.convert(graph, tmp_path / f"b{suffix}")
    assert (tmp_path / f"a{suffix}").exists() and (tmp_path / f"b{suffix}").exists()
    (note,) = (each for each in notes if "is not verified" in each)
    assert f"a{suffix}" in note and "b{}" in caplog.text.replace(suffix, "{}")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_inputs_and_outputs_with_exchanged_names_are_compared_by_their_old_names(
    tmp_path: Path,
) -> None:
    inputs = tuple(Value(name, "float32", (None, 3)) for name in "ab")
    graph = Graph("m", inputs, (Value("y"),), (new_node("y = Sub a b"),), {})
    notes: list[str] = []
    names = {"a": "b", "b": "a"}
    onernn.convert(graph, tmp_path / "m.onnx", names=names, note=notes.append)
    assert notes == []
    x = {"a": np.zeros((1, 3), np.float32), "b": np.ones((1, 3), np.float32)}
    assert onernn.Session(tmp_path / "m.onnx").run(x)["y"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_are_compared_with_narrow_weights(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.normal(size=(64, 64)).astype("float32") / 4 for k in range(6)}
    nodes = [new_node(f"v{k + 1} = MatMul v{k} w{k}") for k in range(6)]
    value = Value("v0", "float32", (None, 64))
    graph = Graph("m", (value,), (Value("v6"),), tuple(nodes), weights)
    notes: list[str] = []
    onernn.convert(graph, tmp_path / "m.onnx", output_dtype=dtype, note=notes.append)
    assert notes == []
