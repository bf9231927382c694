"""`onernn verify --against paddle:PATH`: Paddle itself runs the saved model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

import onernn
from onernn.ir.errors import UnsupportedError
from onernn.verification.references import open_against
from onernn.verification.verifying import verify

MODELS = [
    "fc_gru_h0_rev0",
    "rnn_gru",
    "embedding_crf",
    "lstm_states_reverse",
    "origin_mode_reverse",
]


@pytest.mark.parametrize("name", MODELS)
def test_paddle_gives_the_same_on_made_inputs(name: str, data: Path) -> None:
    folder = data / "paddle" / name
    report = verify(onernn.load(folder), against=open_against(f"paddle:{folder}"))
    assert report.passed and report.evidence is not None
    assert report.evidence.reference.who.startswith(f"paddle {paddle.__version__}")


def test_a_changed_parameter_is_told_beside_paddle(data: Path, tmp_path: Path) -> None:
    sound = data / "paddle" / "origin_mode_reverse"
    wrong = shutil.copytree(sound, tmp_path / "wrong")
    file = wrong / "model.pdmodel"
    program = file.read_bytes()
    assert program.count(b"origin_mode") == 1
    at = program.index(b"origin_mode")
    flag = program.index(b"\x50\x01", at)  # field 10, bool: true
    file.write_bytes(program[:flag] + b"\x50\x00" + program[flag + 2 :])
    command = [sys.executable, "-c", "from onernn.cli import main; main()", "verify", str(wrong)]
    done = subprocess.run(
        [*command, "--against", f"paddle:{sound}", "--json"], capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["cause"]["id"] == "update_sign", done.stderr


def test_what_paddle_says_is_the_message(data: Path, tmp_path: Path) -> None:
    folder = data / "paddle" / "fc_gru_h0_rev0"
    model = onernn.load(folder)
    broken = shutil.copytree(folder, tmp_path / "broken")
    against = open_against(f"paddle:{broken}")
    params = broken / "model.pdiparams"
    params.write_bytes(params.read_bytes()[:500])
    with pytest.raises(UnsupportedError, match="paddle .*broken"):
        verify(model, against=against)


def test_given_inputs_go_to_both(data: Path) -> None:
    folder = data / "paddle" / "rnn_gru"
    with np.load(folder / "io.npz") as file:
        recorded = {key: file[key] for key in file if not key.startswith("out")}
    against = open_against(f"paddle:{folder}")
    assert verify(onernn.load(folder), recorded, against=against).passed
