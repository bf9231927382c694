"""Every command that writes says what it wrote: one line on stderr, none if the user wants none."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from support import onnx_models
from support.command_line import onernn
from support.planted import write_swapped

from onernn import model_commands, showing
from onernn.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

WRITING = {
    "run": ("run m --input io.npz -o out.npz", "out.npz", "1 output: ", {"lines"}),
    "score": ("score tags rows.jsonl scores", "scores", "1 file, 2 rows", {"output", "rows"}),
    "verify": (
        "verify m --data io.npz --report r.html",
        "r.html",
        "1 output, 0 differ",
        {"details"},
    ),
    "convert": ("convert m new.onnx", "new.onnx", "3 inputs, 1 output, ", {"details"}),
    "join": (
        "join one.onnx two.onnx -o j.onnx",
        "j.onnx",
        "1 input, 1 output; check it ",
        {"inputs"},
    ),
    "quantize": (
        "quantize tags q.onnx --data ids.npz",
        "q.onnx",
        "2 recurrent nodes",
        {"layers"},
    ),
    "weights": ("weights m --to onnx -o w.npz", "w.npz", "3 arrays of 1 layer", {"lines"}),
    "repair": (
        "repair wrong.onnx --against sound.onnx -o f.onnx",
        "f.onnx",
        "3 inputs",
        {"changes"},
    ),
    "emit": ("emit m -o cpp", "cpp", "27 files; build its example: c++ ", {"lines"}),
    "compile": ("compile m -o m.onernn", "m.onernn", "2 inputs, 1 output", {"lines"}),
    "plug": ("plug sound.onnx -o p.onnx", "p.onnx", "1 recurrent node of libonernn", {"lines"}),
    "samples": (
        "samples s --force",
        "s",
        " files; see what they are: cat s/README.md",
        {"written"},
    ),
    "inspect": ("inspect m --html g.html", "g.html", "6 nodes, 3 after fusion", {"drawn"}),
}
"""By command: a line, the written file, a part of what it says, and keys of its JSON."""
READING = {"audit", "doctor", "paddle-run"}
"""Commands that write no file."""


@pytest.fixture
def files(
    data: Path, repo: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder of models, recordings and rows, in which the commands run."""
    (tmp_path / "m").symlink_to(data / "paddle" / "fc_gru_h0_rev0")
    (tmp_path / "io.npz").symlink_to(data / "paddle" / "fc_gru_h0_rev0" / "io.npz")
    (tmp_path / "tags").symlink_to(repo / "examples" / "segmenter")
    letters = np.random.default_rng(0).integers(0, 26, 40)
    np.savez(tmp_path / "ids.npz", in__letters=letters, lod__letters=[0, 9, 9, 40])
    rows = [{"letters": [1, 2, 3]}, {"letters": [4]}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, text in (("one", "(float[N, 3] x) => (e) { e = Tanh (x) }"), ("two", TWO)):
        onnx.save(onnx_models.parsed(text), tmp_path / f"{name}.onnx")
    write_swapped(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TWO = "(float[N, 3] e) => (y) { y = Relu (e) }"

Run = Callable[..., CompletedProcess[str]]


def said(run: CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("wrote ")]


def test_every_command_is_known_to_write_or_not() -> None:
    """A new command that writes calls `show_written` and gets a line in the table above."""
    assert sorted(COMMANDS.keys() - WRITING.keys() - READING) == []
    assert (WRITING.keys() | READING) <= COMMANDS.keys()


@pytest.mark.parametrize("name", WRITING)
def test_a_command_says_what_it_wrote(name: str, files: Path) -> None:
    line, file, part, keys = WRITING[name]
    before = set(files.iterdir())
    plain = onernn(*shlex.split(line))
    assert plain.returncode == 0, plain.stderr
    (told,) = said(plain)
    assert re.match(rf"wrote {file}: [\d.]+ (bytes|kB|MB), ", told) and part in told
    assert "wrote" not in plain.stdout
    for path in set(files.iterdir()) - before:
        assert path.name == file or path.name.startswith(f".{file}")

    quiet = onernn(*shlex.split(line), "--quiet")
    assert (quiet.returncode, quiet.stdout, said(quiet)) == (0, "", [])
    as_json = onernn(*shlex.split(line), "--json")
    assert as_json.returncode == 0 and said(as_json) == []
    result = json.loads(as_json.stdout)
    assert result["status"] == "pass" and keys <= result.keys()
    if "lines" in keys:
        assert result["lines"] == plain.stdout.splitlines()


def test_a_scoring_says_once_what_it_wrote_and_rejected(files: Path) -> None:
    with open("rows.jsonl", "a") as rows:
        rows.write('{"letters": [99]}\n')
    first, second = (onernn("score", "tags", "rows.jsonl", "scores") for _ in range(2))
    (told,) = first.stderr.splitlines()
    assert first.stdout == "" and ", 1 file, 3 rows, 1 of them rejected" in told
    assert ", 1 file (1 from before), 3 rows, " in second.stderr


@pytest.mark.parametrize("name", ["new.onnx", "it's new.onnx", "-new.onnx"])
def test_the_printed_command_runs(files: Path, name: str) -> None:
    (told,) = said(onernn("convert", "m", "--", name))
    assert told.startswith(f"wrote {name}: ")
    program, *words = shlex.split(told.partition("; check it with onnxruntime: ")[2])
    assert program == "onernn" and onernn(*words).returncode == 0


@pytest.mark.long
def test_the_printed_command_builds_the_example(files: Path) -> None:
    (told,) = said(onernn("emit", "m", "-o", "the code"))
    subprocess.run(["bash", "-c", told.partition("; build its example: ")[2]], check=True)
    ran = subprocess.run(["./main"], cwd="the code", capture_output=True, text=True, check=True)
    assert "[0] = " in ran.stdout


def test_a_checked_file_needs_no_further_check(files: Path) -> None:
    (told,) = said(onernn("convert", "m", "new.onnx", "--check", "io.npz"))
    assert told.endswith("1 recurrent node")


def test_all_files_of_a_model_are_named(files: Path) -> None:
    Path("new.txt").write_text("not of this model")
    for _ in range(2):  # the second run replaces the files
        (told,) = said(onernn("convert", "m", "new.pdmodel"))
        assert told.startswith("wrote new.pdmodel and new.pdiparams: ")


def test_what_is_not_written_is_not_named(files: Path) -> None:
    assert said(onernn("repair", "sound.onnx", "--against", "sound.onnx", "-o", "f.onnx")) == []
    assert said(onernn("run", "m", "--input", "no.npz", "-o", "out.npz")) == []
    assert said(onernn("verify", "m", "--data", "io.npz")) == []
    assert said(onernn("inspect", "m")) == []


def test_a_pipe_gets_the_file_alone(files: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "onernn.cli",
        "run",
        "m",
        "--input",
        "io.npz",
        "-o",
        "/dev/stdout",
    ]
    done = subprocess.run(line, capture_output=True, check=True)
    Path("piped.npz").write_bytes(done.stdout)
    assert onernn("run", "m", "--input", "io.npz", "-o", "out.npz").returncode == 0
    with np.load("piped.npz") as piped, np.load("out.npz") as plain:
        assert dict(piped).keys() == dict(plain).keys()
        assert all(np.array_equal(piped[key], plain[key]) for key in plain)
    assert done.stderr.startswith(b"wrote /dev/stdout: 1 output")


@pytest.mark.parametrize(
    "size, text",
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (12_345, "12.3 kB"),
        (5_000_000, "5.0 MB"),
        (2e9, "2.0 GB"),
    ],
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert showing._describe_size(int(size)) == text


def test_a_large_model_is_not_read_again(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_commands, "_READ_AGAIN", 100)
    (told,) = said(onernn("convert", "m", "new.pdmodel"))
    assert re.fullmatch(r"wrote new.pdmodel and new.pdiparams: 23\.\d kB(; .*)?", told)
