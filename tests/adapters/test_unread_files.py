"""What ours cannot run alone: paths for models, files of other kinds, unknown operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_models import model, theirs

import onernn
import onernn.adapters.onnx
from onernn import UnsupportedError
from onernn.adapters.loading import find_faults, plugin_for
from onernn.cli import main

X = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)


@pytest.fixture
def half_known(tmp_path: Path) -> Path:
    """Relu and GRU in front of an operator that ONNX Runtime knows and ours does not."""
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=(1, 12, n)).astype(np.float32) for k, n in (("W", 3), ("R", 4))}
    nodes = "r = Relu (x) h = GRU <hidden_size = 4> (r, W, R) y = Hardmax (h)"
    onnx.save(model(nodes, {"x": X}, ["y"], constants=weights), tmp_path / "half.onnx")
    return tmp_path / "half.onnx"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_taken_where_a_model_is(
    kind: Callable[[Path], str | Path], data: Path, tmp_path: Path
) -> None:
    folder = data / "paddle" / "fc_gru_h0_rev0"
    path, graph = kind(folder), onernn.load(folder)
    assert [n.op for n in onernn.fuse(path).model.nodes] == [
        n.op for n in onernn.fuse(graph).model.nodes
    ]
    assert onernn.Session(path).explain() == onernn.Session(graph).explain()
    assert onernn.verify(path, folder / "io.npz").passed
    assert onernn.verify(path, folder / "io.npz", against=path).passed
    onernn.convert(path, tmp_path / "path.pdmodel")
    onernn.convert(graph, tmp_path / "graph.pdmodel")
    assert (tmp_path / "path.pdmodel").read_bytes() == (tmp_path / "graph.pdmodel").read_bytes()


@pytest.mark.parametrize("take", [onernn.Session, onernn.fuse, onernn.verify])
def test_what_is_neither_is_refused_by_its_type(take: Callable[[object], object]) -> None:
    with pytest.raises(UnsupportedError, match=r"expected a model .*, got builtins\.dict"):
        take({})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.pt", r"onernn weights .* torch\.export\.save"),
        ("m.PTH", r"onernn weights .* torch\.export\.save"),
        ("a b.tflite", r"tf2onnx\.convert --tflite '.*a b\.tflite'"),
        ("saved/saved_model.pb", "tf2onnx.convert --saved-model .*saved --output"),
        ("m-0001.params", "-symbol.json"),
        ("m.pdiparams", r"\.pdmodel"),
        ("m.pdparams", r"paddle\.jit\.save"),
        ("m.safetensors", "onernn weights"),
        ("m.pkl", "could run anything"),
        ("m.ort", "ONNX file"),
    ],
)
def test_a_file_of_another_kind_is_told_what_to_do(name: str, advice: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"PK\x03\x04")
    path = file.parent if file.parent != tmp_path else file
    for read in (onernn.load, onernn.Session, find_faults):
        with pytest.raises(UnsupportedError, match=advice):
            read(path)


def test_a_file_that_is_not_there_is_told_first(tmp_path: Path) -> None:
    with pytest.raises(onernn.ModelFormatError, match="no such file"):
        onernn.load(tmp_path / "m.pt")


def test_what_stands_before_an_unknown_operator_is_shown(
    half_known: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [node.op for node in onernn.load(half_known).nodes]
    assert kinds == ["Relu", "Rnn", "Unsqueeze", "Unsupported"]
    monkeypatch.setattr("sys.argv", ["onernn", "inspect", str(half_known)])
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    assert "(Hardmax): this operator is not known" in shown and "Relu" in shown
    advice = re.search(r"runs anyway\n  (onernn\.adapters\..*): ONNX Runtime runs the rest", shown)
    assert advice is not None
    session = eval(advice[1], {"onernn": onernn})  # what it says is what works
    assert len(session.replaced) == 1
    np.testing.assert_array_equal(
        session.run(None, {"x": X})[0], theirs(onnx.load(half_known), {"x": X})[0]
    )


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("paddle/fc_gru_h0_rev0", "onernn.adapters.paddle.optimize(paddle.inference.Config("),
        ("paddle/pir_recurrent", "onernn.adapters.paddle.optimize(paddle.inference.Config("),
        ("mxnet/gluon_bidirectional_ntc", "onernn.adapters.mxnet.optimize(mx.sym.load("),
        ("mxnet/gluon_unrolled_stack", ""),
    ],
)
def test_each_framework_has_its_plug_in(name: str, call: str, data: Path) -> None:
    advice = plugin_for(onernn.load(data / name))
    assert advice.startswith(call) and bool(advice) == bool(call)
