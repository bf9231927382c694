"""onernn repair as a user types it: exit codes, what stands there afterwards, JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support import planted
from support.command_line import failed, onernn
from support.planted import model, reordered

from onernn.verification.verifying import Report, verify


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """right.onnx, and swapped.onnx, two gates for each other."""
    arrays = planted.weights("GRU")
    (tmp_path / "right.onnx").write_bytes(model("GRU", arrays))
    (tmp_path / "swapped.onnx").write_bytes(model("GRU", reordered(arrays, (1, 0, 2))))
    return tmp_path


def repaired(folder: Path, broken: str, *options: str, out: str = "fixed.onnx") -> Any:
    paths = (folder / broken, "--against", folder / "right.onnx", "-o", folder / out)
    return onernn("repair", *paths, *options)


def test_where_nothing_is_wrong_nothing_is_written_and_exit_is_0(files: Path) -> None:
    done = repaired(files, "right.onnx")
    assert done.returncode == 0 and not (files / "fixed.onnx").exists()
    assert "nothing to repair" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_is_not_proved_is_not_written_and_exit_is_1(
    files: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What verify proves it proves; here it has doubts."""

    def doubting(*arguments: Any, **options: Any) -> Report:
        report = verify(*arguments, **options)
        causes = (replace(cause, evidence="candidate") for cause in report.causes)
        return replace(report, causes=tuple(causes))

    monkeypatch.setattr("onernn.model_commands.verify", doubting)
    (files / "fixed.onnx").write_bytes(b"old")
    done = repaired(files, "swapped.onnx", *flags)
    assert done.returncode == 1 and (files / "fixed.onnx").read_bytes() == b"old"
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("onernn: ")
    if flags:
        told = json.loads(done.stdout)
        assert told["status"] == "fail" and told["written"] is None and told["refused"]
        assert [each["name"] for each in told["outputs"]] == ["Y", "Y_h"]


def test_a_kind_of_file_that_is_not_written_is_told(files: Path) -> None:
    done = repaired(files, "swapped.onnx", out="fixed.tflite")
    assert "fixed.tflite: cannot write .tflite" in failed(done)
    assert "no such file" in failed(repaired(files, "no.onnx"))


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_proved_fault_is_undone_the_diff_shown_and_exit_is_0(
    files: Path, flags: list[str]
) -> None:
    done = repaired(files, "swapped.onnx", *flags)
    assert done.returncode == 0, done.stderr
    made, right = (onnx_outputs(files / name) for name in ("fixed.onnx", "right.onnx"))
    for mine, wanted in zip(made, right, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=2e-6)
    if flags:
        told = json.loads(done.stdout)
        assert told["status"] == "pass" and told["written"].endswith("fixed.onnx")
        assert [each["evidence"] for each in told["causes"]] == ["proved"] and told["changes"]
    else:
        for part in ("[gates_swapped]", "weights 'layer'", "agrees with", "fixed.onnx"):
            assert part in done.stdout
    again = repaired(files, "fixed.onnx", out="again.onnx")
    assert again.returncode == 0 and not (files / "again.onnx").exists()


def onnx_outputs(path: Path) -> list[np.ndarray]:
    """What ONNX Runtime gives."""
    session = onnxruntime.InferenceSession(path)
    given = planted.feed(False, 1)
    lengths = np.array([4, 2, 9, 1, 7], np.int32)
    taken = {each.name: given[each.name] for each in session.get_inputs()}
    return list(session.run(None, taken | {"lens": lengths}))
