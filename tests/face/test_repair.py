"""onernn repair as a user types it: exit codes, what stands there afterwards, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import planted
from support.planted import model, reordered
from typer.testing import CliRunner, Result

from onernn.cli import app


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """right.onnx; swapped.onnx, two gates for each other."""
    arrays = planted.weights("GRU")
    (tmp_path / "right.onnx").write_bytes(model("GRU", arrays))
    (tmp_path / "swapped.onnx").write_bytes(model("GRU", reordered(arrays, (1, 0, 2))))
    return tmp_path


def repaired(folder: Path, broken: str, *options: str, out: str = "fixed.onnx") -> Result:
    paths = [str(folder / broken), "--against", str(folder / "right.onnx"), "-o", str(folder / out)]
    return CliRunner().invoke(app, ["repair", *paths, *options])


def test_where_nothing_is_wrong_nothing_is_written_and_exit_is_0(files: Path) -> None:
    done = repaired(files, "right.onnx")
    assert done.exit_code == 0 and not (files / "fixed.onnx").exists()
    assert "nothing is to be repaired" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_it_cannot_prove_it_does_not_write_and_exit_is_1(
    files: Path, flags: list[str]
) -> None:
    (files / "fixed.onnx").write_bytes(b"old")
    exact = ["--atol", "0", "--rtol", "0"]  # kernels and the reference round otherwise
    done = repaired(files, "swapped.onnx", *exact, *flags)
    assert done.exit_code == 1 and (files / "fixed.onnx").read_bytes() == b"old"
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("onernn: ")
    if flags:
        told = json.loads(done.stdout)
        assert told["status"] == "fail" and told["written"] is None and told["refused"]
        assert [each["name"] for each in told["outputs"]] == ["Y", "Y_h"]


def test_a_kind_of_file_that_is_not_written_is_told(files: Path) -> None:
    done = repaired(files, "swapped.onnx", out="fixed.tflite")
    assert "fixed.tflite: cannot write .tflite" in str(done.exception)
    done = repaired(files, "no.onnx")
    assert "no such file" in str(done.exception)
