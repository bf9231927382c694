"""What a terminal shows of names that try to steer it: all of it, as text, on one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.command_line import onernn
from support.onnx_models import model

from onernn import ModelFormatError, Refusal, UnsupportedError, load
from onernn.ir.errors import printable

NAME = "y[/x][v2]:skull:[red]\x1b[31m\u202e\x9b2J\r\nonernn: all is well"
VISIBLE = ("y[/x][v2]:skull:[red]", "onernn: all is well")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models whose input, output, operator and file bear the name."""
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=(1, 12, n)).astype(np.float32) for k, n in (("W", 3), ("R", 4))}
    x = np.zeros((5, 2, 3), np.float32)
    gru = helper.make_node("GRU", [NAME, "W", "R"], [NAME + "y"], hidden_size=4)
    strange = helper.make_node(NAME, [NAME + "y"], ["z"])
    onnx.save(model([gru], {NAME: x}, [NAME + "y"], constants=weights), tmp_path / "m.onnx")
    onnx.save(model([gru, strange], {NAME: x}, ["z"], constants=weights), tmp_path / "op.onnx")
    np.savez(tmp_path / "other.npz", in__other=x, **{f"out__{NAME}": x})
    np.savez(tmp_path / "in.npz", **{f"in__{NAME}": x}, out__other=x)
    return tmp_path


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "command, code",
    [
        ("inspect m.onnx", 0),
        ("inspect op.onnx", 0),
        ("verify m.onnx --against m.onnx", 0),
        ("weights m.onnx --to onnx --output w.npz --node x", 2),
        ("run op.onnx --input in.npz --output out.npz", 2),
        ("run m.onnx --input other.npz --output out.npz", 2),
        ("verify m.onnx --data in.npz", 2),
        ("convert op.onnx out.onnx", 2),
    ],
)
def test_names_are_shown_whole_and_steer_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    monkeypatch.chdir(folder)
    done = onernn(*command.split())
    assert done.returncode == code, done.stderr
    shown = done.stdout if code == 0 else done.stderr
    assert harmless(done.stdout + done.stderr), ascii(done.stdout + done.stderr)
    assert not any(line.startswith("onernn: all is well") for line in shown.split("\n"))
    assert all(part in shown for part in VISIBLE) and "\\x1b[31m\\u202e" in shown


def test_json_tells_names_exactly(folder: Path) -> None:
    done = onernn("verify", folder / "m.onnx", "--against", folder / "m.onnx", "--json")
    assert done.returncode == 0 and harmless(done.stdout)
    (output,) = json.loads(done.stdout)["outputs"]
    assert output["name"] == NAME + "y"


def test_a_name_that_the_encoding_lacks_is_no_reason_to_stop(folder: Path) -> None:
    gru = onnx.load(folder / "m.onnx")
    gru.graph.output[0].name = gru.graph.node[0].output[0] = "词"
    onnx.save(gru, folder / "word.onnx")
    line = [sys.executable, "-m", "onernn.cli", "inspect", folder / "word.onnx"]
    done = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0 and "\\u8bcd" in done.stdout


def test_messages_are_harmless_before_anybody_prints_them(folder: Path) -> None:
    for error in (
        ModelFormatError(f"input {NAME}", NAME),
        UnsupportedError(f"{NAME} cannot be run:", [Refusal(NAME, NAME)]),
    ):
        assert harmless(str(error)) and VISIBLE[0] in str(error)
        assert str(error).count("\n") == (isinstance(error, UnsupportedError))
    loaded = load(folder / "m.onnx")
    texts = [*map(str, loaded.inputs), *(node.label for node in load(folder / "op.onnx").nodes)]
    assert all(text.isprintable() for text in texts)


@pytest.mark.parametrize("text", ["y", "词向量 ü 💀", "a b\\n"])
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_every_character_that_cannot_be_seen_is_an_escape() -> None:
    for code in range(sys.maxunicode + 1):
        shown = printable(chr(code))
        assert shown.isprintable() and (shown == chr(code) or shown.startswith("\\"))
    assert printable("a\nb\tc", keep="\n") == "a\nb\\tc"
