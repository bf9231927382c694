"""What a command writes takes the place of an old file whole, or leaves it as it was."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import onernn
from onernn.ir.files import replacing, replacing_all
from onernn.verification.recording import write_inputs, write_outputs
from onernn.verification.report import write_report

_ROOM = 256  # bytes that a file may have here; all that is written below is longer


@contextmanager
def full_disk() -> Iterator[None]:
    """Every write behind the first bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _arrays(out: Path, _: Path) -> None:
    write_outputs(out, {"y": np.zeros(1000)})


def _inputs(out: Path, _: Path) -> None:
    write_inputs(out, {"y": np.zeros(1000)})


def _report(out: Path, data: Path) -> None:
    folder = data / "paddle" / "fc_gru_h0_rev0"
    report = onernn.verify(onernn.load(folder), folder / "io.npz")
    write_report(report, out)


def _converted(out: Path, data: Path) -> None:
    onernn.convert(onernn.load(data / "paddle" / "fc_gru_h0_rev0"), out)


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "out.npz": _arrays,
    "in.npz": _inputs,
    "report.html": _report,
    "m.onnx": _converted,
    "m.pdmodel": _converted,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(name: str, tmp_path: Path, data: Path) -> None:
    out = tmp_path / name
    WRITERS[name](out, data)  # what is imported late is imported now
    good = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert min(map(len, good.values())) > _ROOM
    with full_disk(), pytest.raises(OSError, match=out.stem):
        WRITERS[name](out, data)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == good


@pytest.mark.parametrize("command", ["run", "weights"])
def test_commands_leave_the_old_output(command: str, tmp_path: Path, data: Path) -> None:
    model, out = data / "paddle" / "fc_gru_h0_rev0", tmp_path / "out.npz"
    out.write_bytes(b"good")
    options = {"run": ["--input", model / "io.npz"], "weights": ["--to", "onnx"]}[command]
    code = f"""import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({_ROOM}, {_ROOM}))
from onernn.cli import main; main()"""
    arguments = [sys.executable, "-B", "-c", code, command, model, "--output", out, *options]
    run = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 2 and "File too large" in run.stderr and "out.npz" in run.stderr
    assert out.read_bytes() == b"good" and list(tmp_path.iterdir()) == [out]


def test_several_files_are_replaced_together(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    second.write_text("old")
    with full_disk(), pytest.raises(OSError, match="second"):
        with replacing_all([first, second]) as streams:
            streams[0].write(b"new")
            streams[1].write(bytes(2 * _ROOM))
    assert first.read_text() == second.read_text() == "old"
    with replacing_all([first, second]) as streams:
        for stream in streams:
            stream.write(b"new")
    assert first.read_text() == second.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_what_fails_midway_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(file) as stream:
        stream.write(b"new")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_links_and_rights_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    with replacing(link) as stream:
        stream.write(b"new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_rights_that_open_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with replacing(tmp_path / "file"):
        pass
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_device_is_written_to_and_not_replaced() -> None:
    with replacing(os.devnull) as stream:
        stream.write(b"new")
    assert not os.path.isfile(os.devnull)


def test_a_missing_folder_is_named_by_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere/out.npz"),
        replacing(tmp_path / "nowhere" / "out.npz"),
    ):
        pass
