"""Trained models as ONNX files, and what a caller may ask of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.graphs import new_node
from support.onnx_written import converted, graph_over
from support.recordings import off

import onernn
from onernn import ModelFormatError, UnsupportedError
from onernn.adapters.onnx.write import save
from onernn.ir.graph import Value
from onernn.verification.references import run_framework

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def folder() -> Path:
    return DATA / "paddle" / "fc_gru_h0_rev0"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_make_a_small_file_that_is_still_right(
    folder: Path, tmp_path: Path, dtype: str
) -> None:
    model, recording = onernn.load(folder), folder / "io.npz"
    onernn.convert(model, tmp_path / "wide.onnx")
    converted(model, tmp_path / "small.onnx", recording, output_dtype=dtype)
    sizes = [(tmp_path / name).stat().st_size for name in ("small.onnx", "wide.onnx")]
    assert sizes[0] < 0.65 * sizes[1]
    stored = {each.data_type for each in onnx.load(tmp_path / "small.onnx").graph.initializer}
    assert {"float16": 10, "bfloat16": 16}[dtype] in stored


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    product, big = new_node("y = MatMul x w"), np.full((2, 2), 1e5, np.float32)
    graph = graph_over(Value("x", "float32", (None, 2)), product, w=big)
    with pytest.raises(UnsupportedError, match="'w'.*float16"):
        onernn.convert(graph, tmp_path / "m.onnx", output_dtype="float16")
    onernn.convert(graph, tmp_path / "m.onnx", output_dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="dtype 'int8': expected one of"):
        onernn.convert(graph, tmp_path / "m.onnx", output_dtype="int8")


def test_inputs_and_outputs_get_new_names(folder: Path, tmp_path: Path) -> None:
    model = onernn.load(folder)
    (out,) = (value.name for value in model.outputs)
    names = {"x": "words", "x_lengths": "n", out: "hidden"}
    converted(model, tmp_path / "m.onnx", folder / "io.npz", names=names)
    graph = onernn.load(tmp_path / "m.onnx")
    assert {"words", "n"} < {value.name for value in graph.inputs}
    assert [value.name for value in graph.outputs] == ["hidden"]


@pytest.mark.parametrize(
    "names, reason",
    [
        ({"nothing": "a"}, r"expected inputs or outputs, .* got \['nothing'\]"),
        ({"x": "x_lengths"}, "x_lengths"),
        ({"x": ""}, r"\['']"),
        ({"x": "a", "x_lengths": "a"}, r"\['a'\]"),
    ],
)
def test_names_that_cannot_be_are_refused(folder: Path, tmp_path: Path, names, reason) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        onernn.convert(onernn.load(folder), tmp_path / "m.onnx", names=names)
    assert not list(tmp_path.iterdir())


def test_names_inside_a_body_are_taken_and_progress_is_told(tmp_path: Path) -> None:
    model, seen = onernn.load(DATA / "onnx" / "tensorflow_scan" / "model.onnx"), list[tuple]()
    onernn.convert(model, tmp_path / "m.onnx", progress=lambda *each: seen.append(each))
    assert seen[-1][1] < seen[-1][2]
    (body,) = (
        attribute.g
        for node in onnx.load(tmp_path / "m.onnx").graph.node
        for attribute in node.attribute
        if attribute.name == "body"
    )
    for name in (body.input[0].name, body.initializer[0].name, body.node[0].output[0]):
        with pytest.raises(UnsupportedError, match=name):
            onernn.convert(model, tmp_path / "m.onnx", names={"x": name})


def test_what_cannot_be_written_names_the_suffix_the_recording_or_the_input(
    folder: Path, tmp_path: Path
) -> None:
    model = onernn.load(folder)
    with pytest.raises(UnsupportedError, match="cannot write .txt"):
        onernn.convert(model, tmp_path / "m.txt")
    with pytest.raises(ModelFormatError, match="in__x is missing"):
        onernn.convert(model, tmp_path / "m.onnx", check={})
    graph = graph_over(Value("x"), new_node("y = Relu x"))
    with pytest.raises(UnsupportedError, match="ranks of x"):
        onernn.convert(graph, "never.onnx")


def test_large_models_keep_their_tensors_beside_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(save, "__kwdefaults__", {"most": 2000})
    model = onernn.load(folder)
    converted(model, tmp_path / "m.onnx", folder / "io.npz")
    assert (tmp_path / "m.onnx.data").stat().st_size > 2000


def test_a_check_fails_where_the_recording_says_otherwise(folder: Path, tmp_path: Path) -> None:
    arrays = off(folder)
    name = next(key for key in arrays if key.startswith("out__"))
    report = onernn.convert(onernn.load(folder), tmp_path / "m.onnx", check=arrays)
    assert not report and "apart" in report.outputs[0].reason
    assert onernn.convert(onernn.load(folder), tmp_path / "m.onnx", check=arrays, atol=0.1)
    shorter = {**arrays, name: arrays[name][:-1]}
    lod = name.replace("out__", "outlod__")
    shorter[lod] = np.append(arrays[lod][:-1], len(arrays[name]) - 1)
    report = onernn.convert(onernn.load(folder), tmp_path / "m.onnx", check=shorter)
    assert not report and "not zero" in report.outputs[0].reason


def test_a_recording_that_onnx_runtime_does_not_run_is_told(tmp_path: Path) -> None:
    """Its Gather refuses an index beyond the table, as ours does."""
    table = np.eye(3, dtype=np.float32)
    graph = graph_over(Value("i", "int64", (None,)), new_node("y = Gather t i"), t=table)
    good = {"in__i": np.array([0]), "out__y": table[:1]}
    assert onernn.convert(graph, tmp_path / "m.onnx", check=good)
    for data, index in ((None, 7), (b"nothing", 0)):
        if data is not None:
            (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(UnsupportedError, match=r"onnxruntime .*m\.onnx.*: [A-Za-z]+:"):
            path, feed = str(tmp_path / "m.onnx"), {"i": np.array([index])}
            run_framework("onnxruntime", path, None, feed, ["y"])
