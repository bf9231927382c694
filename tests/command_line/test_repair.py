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
from support.html_pages import Page
from support.planted import write_swapped

from onernn.model_commands import repair_line
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
        parts = (
            "[gates_swapped]",
            "GRU): the input weights (1,",
            "agrees with",
            "fixed.onnx",
            "opset",
        )
        for part in parts:
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
        as_json = json.loads(onernn("verify", "wrong.onnx", *given, "--json").stdout)
        assert as_json["details"]["repair"] == line
        done = onernn(*shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr
        side = "forward: the input weights"  # the repair from the recording splits the layer
        assert (side in done.stdout) == (given[0] == "--data")
        assert onernn("verify", "wrong-fixed.onnx", "--against", "sound.onnx").returncode == 0
        Path("wrong-fixed.onnx").unlink()
    sound = ("verify", "sound.onnx", "--data", "io.npz")
    assert "to repair it" not in onernn(*sound).stdout
    assert json.loads(onernn(*sound, "--json").stdout)["details"]["repair"] is None


def printed(*command: object) -> str:
    """The command that verify prints last, as a user would copy it."""
    found = onernn("verify", *command)
    assert found.returncode == 1, found.stderr
    return found.stdout.partition("to repair it\n")[2].strip()


ONE_OF_EACH_KIND = {fault.cause: name for name, fault in reversed(planted.FAULTS.items())}
QUICK = {"gates_swapped", "mask_ignored", "operator_missing"}


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.long)
        for each in ONE_OF_EACH_KIND
    ],
)
def test_the_printed_command_undoes_every_kind_of_cause(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a path has a space and a quotation mark."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    name = ONE_OF_EACH_KIND[cause]
    shape = planted.fitting(name, list(planted.FAULTS).index(name))
    pair = planted.pairs()[planted.labelled(name, shape)]()
    for file in ("sound", "wrong"):
        (folder / f"{file}.onnx").write_bytes(getattr(pair, file))
    files = ("it's a folder/wrong.onnx", "--against", "it's a folder/sound.onnx")
    line = printed(*files, "--seconds", 600, "--report", "report.html")
    page = Page(Path("report.html").read_text())
    assert line in page.words and "What to change." not in page.words
    words = shlex.split(line)
    assert words[-4:] == ["--seconds", "1200", "-o", "it's a folder/wrong-fixed.onnx"]
    done = onernn(*words[1:])
    assert done.returncode == 0 and f"[{cause}]" in done.stdout, done.stderr
    assert onernn("verify", words[-1], *files[1:], "--seconds", 0).returncode == 0


def test_the_printed_command_overwrites_no_file_and_names_a_folder_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("m-fixed.onnx", "m-fixed1.onnx"):
        Path(file).touch()
    assert repair_line("m.onnx").split()[-1] == "m-fixed2.onnx"
    assert repair_line(".").split()[2:] == [".", "-o", f"{tmp_path}-fixed.onnx"]
    assert repair_line("-m.onnx").split()[2] == "./-m.onnx"


def test_no_command_is_printed_if_nothing_can_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = planted.weights("LSTM", 2)
    Path("wrong.onnx").write_bytes(planted.model("LSTM", arrays))
    np.savez("io.npz", **planted.recording(planted.model("LSTM", arrays, lengths=False)))
    assert printed("wrong.onnx", "--data", "io.npz", "--report", "report.html") == ""
    words = Page(Path("report.html").read_text()).words
    assert "What to change." in words and "Repair it." not in words
