"""What ours cannot run alone: paths for models, files of other kinds, unknown operators."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_models import model, parameters, small, theirs

import onernn
import onernn.adapters.onnx
from onernn import UnsupportedError
from onernn.adapters.loading import find_faults, plugin_for
from onernn.cli import main

X = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)


@pytest.fixture
def half_known(tmp_path: Path) -> Path:
    """Relu and GRU in front of an operator that ONNX Runtime knows and ours does not."""
    arrays = small(parameters("GRU", 3, 4), "W", "R")
    nodes = "r = Relu (x) h = GRU <hidden_size = 4> (r, W, R) y = Hardmax (h)"
    onnx.save(model(nodes, {"x": X}, ["y"], constants=arrays), tmp_path / "half.onnx")
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
    with pytest.raises(UnsupportedError, match=r"model: expected .*, got builtins\.dict"):
        take({})


@pytest.mark.parametrize(
    "name, advice",
    [
        ("a b.tflite", r"tf2onnx\.convert --tflite '.*a b\.tflite'"),
        ("saved/saved_model.pb", "tf2onnx.convert --saved-model .*saved --output"),
        ("m-0001.params", "-symbol.json"),
        ("m.pdiparams", r"\.pdmodel"),
        ("m.pdparams", r"paddle\.jit\.save"),
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


TENSORFLOW = ["pip", "install", "tensorflow-cpu", "tf2onnx", "&&"]
TENSORFLOW += ["python", "-m", "tf2onnx.convert"]
TO_ONNX = ["--output", "model.onnx"]
CORE_ML = ["pip", "install", "coremltools", "&&", "python", "-c"]
UNREAD = [
    ("saved", "SavedModel", lambda path: [*TENSORFLOW, "--saved-model", path, *TO_ONNX]),
    (
        "frozen.pb",
        "GraphDef",
        lambda path: [
            *(*TENSORFLOW, "--graphdef", path, "--inputs", "x:0", "--outputs", "Identity:0"),
            *TO_ONNX,
        ],
    ),
    ("m.tflite", "TensorFlow Lite", lambda path: [*TENSORFLOW, "--tflite", path, *TO_ONNX]),
    ("m.mlmodel", "CoreML", lambda path: [*CORE_ML, path]),
    ("m.mlpackage", "CoreML", lambda path: [*CORE_ML, path]),
    ("dynet.model", "DyNet", lambda path: ["python", "-c", path]),
]


@pytest.fixture(params=["it's a model", "-m", "new\nline"])
def renamed(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a recorded file of `frameworks.record_unread` under a name that tells nothing."""

    def copy(name: str) -> Path:
        source, new = data / "unread" / name, tmp_path / request.param
        (shutil.copytree if source.is_dir() else shutil.copy)(source, new)
        return new

    return copy


def words_of_command(path: str | Path) -> tuple[str, list[str]]:
    """The message, and the words that bash makes of the command at its end."""
    with pytest.raises(UnsupportedError) as refused:
        onernn.load(path)
    message = str(refused.value)
    first = re.search(r"pip install|python -c", message)
    assert first is not None and message.isprintable()
    command = message[first.start() :].replace("&&", "'&&'", 1)
    done = subprocess.run(
        ["bash", "-c", rf"printf '%s\0' {command}"], capture_output=True, text=True, check=True
    )
    return message, done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name, kind, command", UNREAD, ids=[each[0] for each in UNREAD])
def test_a_file_that_is_not_read_is_known_by_its_content_and_its_command_is_printed(
    name: str, kind: str, command: Callable[[str], list[str]], renamed: Callable[[str], Path]
) -> None:
    path = renamed(name)
    message, words = words_of_command(path)
    assert kind in message
    if "-c" in words:
        program = words.pop(words.index("-c") + 1)
        compile(program, "printed", "exec")
        assert "model.npz" in program and "model.npz" in message
    assert words == command(str(path))


def test_the_command_for_dynet_writes_its_arrays(renamed: Callable[[str], Path]) -> None:
    path = renamed("dynet.model")
    with contextlib.chdir(path.parent):
        _, (_, *arguments) = words_of_command(path.name)
        subprocess.run([sys.executable, *arguments], check=True)
    arrays = onernn.read_weights(path.parent / "model.npz")
    matrix = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    expected = {"/W": matrix, "/b": np.full(3, 0.5, np.float32), "/E": matrix.T}
    assert {*arrays} == {*expected}
    for key, array in expected.items():
        np.testing.assert_array_equal(arrays[key], array)
        assert arrays[key].dtype == np.float32


def test_a_graph_without_its_variables_needs_another_file_first(data: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'.*'; save .* tf\.saved_model\.save"):
        onernn.load(data / "unread" / "variables.pb")


@pytest.mark.parametrize("head", [b"\0\0\0\0ORTM", b"ftrt\0\0", b"ptrt\0\0"])
def test_files_of_one_runtime_are_known_by_their_first_bytes(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(head)
    with pytest.raises(UnsupportedError, match="one runtime only; .*ONNX file"):
        onernn.load(tmp_path / "model")


@pytest.mark.parametrize("head", [b"", b"\n", b"\x08\x01\x12", b"\n\xff\xff\xff\xff\x0f\n\x01x"])
def test_a_damaged_head_is_no_known_kind(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.pb").write_bytes(head)
    with pytest.raises(UnsupportedError, match=r"m\.pb: no GraphDef or SavedModel"):
        onernn.load(tmp_path / "m.pb")


@pytest.mark.parametrize("name", ["notes.md", "notes.txt", "rows.csv", "train.py", "README"])
@pytest.mark.parametrize("text", [b"", b"# A title", b"\n\nimport onernn"])
def test_a_file_that_is_no_model_gets_the_kinds_that_are_read(
    name: str, text: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(
        UnsupportedError, match=rf"{name}: not a model.* \.onnx.* __model__.*onernn"
    ):
        onernn.load(tmp_path / name)


@pytest.mark.parametrize("name", ["notes.md", "program", "model.v2"])
def test_a_paddle_program_loads_under_any_name(name: str, data: Path, tmp_path: Path) -> None:
    folder = data / "paddle" / "fc_gru_h0_rev0"
    shutil.copy(folder / "model.pdmodel", tmp_path / name)
    loaded = onernn.load(tmp_path / name, folder / "model.pdiparams")
    assert [n.op for n in loaded.nodes] == [n.op for n in onernn.load(folder).nodes]


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.keras"])
def test_a_folder_with_the_file_of_a_model_names_the_file(name: str, tmp_path: Path) -> None:
    for each in (name, "config.json", "tokens.txt"):
        (tmp_path / each).touch()
    with pytest.raises(onernn.ModelFormatError, match=rf"no model.*did you mean '.*{name}'"):
        onernn.load(tmp_path)


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
    "name, call",
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
