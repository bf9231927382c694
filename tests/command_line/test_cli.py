"""The command line as a user types it: exit codes, one message on stderr, JSON only."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import onnx_models
from support.command_line import failed, onernn


@pytest.fixture
def model(data: Path) -> Path:
    return data / "paddle" / "fc_gru_h0_rev0"


def test_run_writes_outputs_that_verify_accepts(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    run = onernn("run", model, "--input", model / "io.npz", "--output", output)
    assert run.returncode == 0, run.stderr
    with np.load(output) as written, np.load(model / "io.npz") as recorded:
        assert {k for k in recorded if k.startswith("out")} == set(written)
        whole = tmp_path / "whole.npz"
        inputs = {k: recorded[k] for k in recorded if not k.startswith("out")}
        np.savez(whole, **inputs, **{k: written[k] for k in written})
    assert onernn("verify", model, "--data", whole).returncode == 0


def test_a_truncated_model_is_named_with_the_offset(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "cut")
    params = tmp_path / "cut" / "model.pdiparams"
    params.write_bytes(params.read_bytes()[:1000])
    message = failed(onernn("run", tmp_path / "cut", "--input", "x", "--output", "y"))
    assert "model.pdiparams" in message and "at byte" in message


def test_an_npz_without_the_lod_is_told_what_to_add(model: Path, tmp_path: Path) -> None:
    with np.load(model / "io.npz") as recorded:
        np.savez(tmp_path / "in.npz", **{k: recorded[k] for k in recorded if "lod__" not in k})
    message = failed(
        onernn("run", model, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    )
    assert "'x' is ragged" in message and "lod__x" in message


def test_wrong_usage_exits_with_2(model: Path) -> None:
    failed(onernn("verify", model))
    failed(onernn("no-such-command"))
    failed(onernn("run", model, "--input", "x", "--output", "y", "--threads", "0"))
    assert "semantics" in failed(onernn("inspect", model, "--semantics", "guessed"))
    assert "expected 'auto' or 'kernels' or 'onednn' or " in failed(
        onernn("inspect", model, "--backend", "cuda")
    )


def test_a_run_keeps_within_the_memory_that_it_is_given(
    model: Path, data: Path, tmp_path: Path
) -> None:
    recording = data / "paddle" / "fc_gru_h0_rev0" / "io.npz"
    for command in (
        ("run", model, "--input", recording, "--output", tmp_path / "out.npz"),
        ("verify", model, "--data", recording),
    ):
        assert "of at most 1,000 are taken" in failed(onernn(*command, "--max-bytes", 1000))
        assert onernn(*command, "--max-bytes", 10**7).returncode == 0


def test_a_loop_keeps_within_the_steps_that_it_is_given(tmp_path: Path) -> None:
    text = """(int64 most, bool going) => (seen) {
        seen = Loop <body = turn (int64 t, bool go) => (bool again, int64 t) {
            again = Identity (go)
        }> (most, going)
    }"""
    feed = {"most": np.array(5), "going": np.array(True)}
    onnx.save(onnx_models.parsed(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **{f"in__{name}": value for name, value in feed.items()})
    files = ("--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    command = ("run", tmp_path / "m.onnx", *files, "--max-steps")
    assert "more than 3 operators" in failed(onernn(*command, 3))
    assert onernn(*command, 20).returncode == 0
