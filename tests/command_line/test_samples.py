"""`onernn samples`: it copies all samples, keeps other files, and takes any name of a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onernn import cli
from onernn.samples_command import SAMPLES

NAMES = sorted(str(file.relative_to(SAMPLES)) for file in SAMPLES.rglob("*") if file.is_file())
MODEL = Path("onnx_tagger", "model.onnx")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Returns the exit code of ``onernn samples WORDS``."""
    monkeypatch.setattr("sys.argv", ["onernn", "samples", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def copied(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_all_samples_are_small_and_each_page_of_them_is_listed() -> None:
    assert sum((SAMPLES / name).stat().st_size for name in NAMES) < 3_000_000
    listed = (SAMPLES / "README.md").read_text()
    folders = {Path(name).parts[0] for name in NAMES} - {"README.md"}
    assert folders and not [name for name in folders if f"| `{name}` |" not in listed]


@pytest.mark.parametrize("name", ["new", "a/b c", "-dash", "ünïcode\x1b[31m", "back\\slash", "."])
def test_a_folder_of_any_name_gets_all_samples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--", name) == 0
    assert copied(tmp_path / name) == NAMES
    assert all((tmp_path / name / n).read_bytes() == (SAMPLES / n).read_bytes() for n in NAMES)
    out, said = capfd.readouterr()
    assert not out and f"{len(NAMES)} files" in said and "\x1b" not in said


def test_equal_files_stay_and_missing_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(tmp_path)) == 0
    kept, missing = tmp_path / "README.md", tmp_path / MODEL
    before = kept.stat()
    missing.unlink()
    capfd.readouterr()
    assert run(monkeypatch, str(tmp_path), "--json") == 0
    assert json.loads(capfd.readouterr().out)["written"] == [str(missing)]
    assert kept.stat().st_mtime_ns == before.st_mtime_ns and kept.stat().st_ino == before.st_ino
    assert run(monkeypatch, str(tmp_path), "--quiet") == 0
    assert capfd.readouterr() == ("", "")


def test_a_file_of_the_user_is_overwritten_only_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / MODEL
    mine.parent.mkdir()
    mine.write_text("mine")
    assert run(monkeypatch, str(tmp_path)) == 2
    assert copied(tmp_path) == [str(MODEL)] and mine.read_text() == "mine"
    said = capfd.readouterr().err
    assert str(mine) in said and "--force" in said
    assert run(monkeypatch, str(tmp_path), "--force") == 0
    assert copied(tmp_path) == NAMES and mine.read_bytes() == (SAMPLES / MODEL).read_bytes()


def place_folder(path: Path) -> None:
    path.mkdir()


def place_pipe(path: Path) -> None:
    os.mkfifo(path)


def place_link(path: Path) -> None:
    (path.parent / "target").write_text("of somebody else")
    path.symlink_to("target")


def place_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("place", [place_folder, place_pipe, place_link, place_broken_link])
def test_what_is_no_file_of_the_user_is_never_replaced(
    place: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MODEL).parent.mkdir()
    place(tmp_path / MODEL)  # type: ignore[operator]
    before = sorted(tmp_path.rglob("*"))
    for option in ("--quiet", "--force"):
        assert run(monkeypatch, str(tmp_path), option) == 2
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["", "file", "file/inside", "nul\0", "x" * 300])
def test_a_name_that_is_no_folder_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    assert run(monkeypatch, name) == 2
    assert capfd.readouterr().err.startswith("onernn: ")
    assert copied(tmp_path) == ["file"] and Path("file").read_text() == "mine"


def test_an_installation_without_samples_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onernn.samples_command.SAMPLES", tmp_path / "none")
    assert run(monkeypatch, str(tmp_path / "out")) == 2
    assert "no samples" in capfd.readouterr().err
