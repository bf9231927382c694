"""onernn repair as a user types it: exit codes, what stands there afterwards, JSON."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import planted
from support.command_line import failed, onernn
from support.planted import write_swapped

from onernn.verification.verifying import Report, verify


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_swapped(tmp_path)
    return tmp_path


def repaired(folder: Path, broken: str, *options: str, out: str = "fixed.onnx") -> Any:
    paths = (folder / broken, "--against", folder / "sound.onnx", "-o", folder / out)
    return onernn("repair", *paths, *options)


def test_where_nothing_is_wrong_nothing_is_written_and_exit_is_0(files: Path) -> None:
    done = repaired(files, "sound.onnx")
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

    monkeypatch.setattr("onernn.verification.conversion.verify", doubting)
    (files / "fixed.onnx").write_bytes(b"old")
    done = repaired(files, "wrong.onnx", *flags)
    assert done.returncode == 1 and (files / "fixed.onnx").read_bytes() == b"old"
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("onernn: ")
    if flags:
        told = json.loads(done.stdout)
        assert told["status"] == "fail" and told["written"] is None and told["refused"]
        assert [each["name"] for each in told["outputs"]] == ["Y", "Y_h"]


def test_a_kind_of_file_that_is_not_written_is_told(files: Path) -> None:
    done = repaired(files, "wrong.onnx", out="fixed.tflite")
    assert "fixed.tflite: cannot write .tflite" in failed(done)
    assert "no such file" in failed(repaired(files, "no.onnx"))


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_proved_fault_is_undone_the_diff_shown_and_exit_is_0(
    files: Path, flags: list[str]
) -> None:
    done = repaired(files, "wrong.onnx", *flags)
    assert done.returncode == 0, done.stderr
    if flags:
        told = json.loads(done.stdout)
        assert told["status"] == "pass" and told["written"].endswith("fixed.onnx")
        assert [each["evidence"] for each in told["causes"]] == ["proved"] and told["changes"]
    else:
        for part in ("[gates_swapped]", "weights 'layer'", "agrees with", "fixed.onnx"):
            assert part in done.stdout
    again = repaired(files, "fixed.onnx", out="again.onnx")
    assert again.returncode == 0 and not (files / "again.onnx").exists()


def test_the_printed_command_repairs_what_verify_found(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    np.savez("io.npz", **planted.recording(Path("sound.onnx").read_bytes()))
    for given in (("--against", "sound.onnx"), ("--data", "io.npz")):
        found = onernn("verify", "wrong.onnx", *given, "--report", "report.html")
        line = found.stdout.partition("to repair it\n")[2].strip()
        assert found.returncode == 1 and line in Path("report.html").read_text()
        done = onernn(*shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr
        assert onernn("verify", "wrong-fixed.onnx", "--against", "sound.onnx").returncode == 0
        Path("wrong-fixed.onnx").unlink()
    assert "to repair it" not in onernn("verify", "sound.onnx", "--data", "io.npz").stdout
