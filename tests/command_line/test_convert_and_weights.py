"""onernn convert and onernn weights as a user types them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.command_line import failed, onernn

import onernn as package


@pytest.fixture
def model(data: Path) -> Path:
    return data / "paddle" / "bigru_concat"


def test_a_converted_model_is_checked_by_onnx_runtime_and_loads_there(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    run = onernn("convert", model, out, "--check", model / "io.npz")
    assert run.returncode == 0 and "pass" in run.stdout, run.stderr
    names = [each.name for each in onnxruntime.InferenceSession(out).get_inputs()]
    assert names == ["x", "x_lengths"]
    quiet = onernn("convert", model, tmp_path / "other.onnx", "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.onnx", "out.onnx"]


def test_opset_dtype_and_names_are_options(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    options = ("--opset", 13, "--output-dtype", "float16", "--names", "x=words")
    run = onernn(
        "convert", model, out, *options, "--names", "x_lengths=n", "--check", model / "io.npz"
    )
    assert run.returncode == 0, run.stderr
    assert {value.name for value in package.load(out).inputs} == {"words", "n"}


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("out.txt",), "cannot write .txt"),
        (("out",), "a file of no suffix"),
        (("out.onnx", "--opset", "8"), "opset 8: expected 9 to 22"),
        (("out.onnx", "--output-dtype", "int3"), "expected one of float32"),
        (("out.onnx", "--names", "q=r"), "expected inputs or outputs"),
        (("out.onnx", "--names", "x"), "expected OLD=NEW, got ['x']"),
        (
            ("out.onnx", "--check", "nothing.npz"),
            "nothing.npz: no such file or folder; check the path",
        ),
        (("nowhere/out.onnx",), "nowhere does not exist; create it"),
    ],
)
def test_what_cannot_be_converted_exits_with_2(
    model: Path, tmp_path: Path, arguments, reason
) -> None:
    out, *more = arguments
    assert reason in failed(onernn("convert", model, tmp_path / out, *more))
    assert not list(tmp_path.iterdir())


def test_weights_come_in_any_layout_that_can_say_them(data: Path, tmp_path: Path) -> None:
    folder, out = data / "paddle" / "bigru_concat", tmp_path / "w.npz"
    run = onernn("weights", folder, "--to", "keras", "--output", out)
    assert run.returncode == 0, run.stderr
    with np.load(out) as arrays:
        assert set(arrays) == {
            f"{side}/{name}"
            for side in ("forward", "backward")
            for name in ("kernel", "recurrent_kernel", "bias")
        }
        assert all(f"{name} float32 {arrays[name].shape}" in run.stdout for name in arrays)
    message = failed(onernn("weights", folder, "--to", "torch", "--output", out))
    assert "PyTorch" in message and "GRU" in message


def test_several_layers_stand_under_the_names_of_what_they_make(data: Path, tmp_path: Path) -> None:
    folder, out = data / "paddle" / "shared_bias", tmp_path / "w.npz"
    run = onernn("weights", folder, "--to", "onnx", "--output", out)
    assert run.returncode == 0, run.stderr
    with np.load(out) as arrays:
        prefixes = {name.rpartition("/")[0] for name in arrays}
    assert len(prefixes) > 1
    one = sorted(prefixes)[0]
    run = onernn("weights", folder, "--to", "onnx", "--output", out, "--node", one)
    assert run.returncode == 0, run.stderr
    with np.load(out) as arrays:
        assert set(arrays) == {"W", "R", "B"}
    wrong = onernn("weights", folder, "--to", "onnx", "--output", out, "--node", "x")
    assert one in failed(wrong)
