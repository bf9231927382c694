"""Each fault that an audit predicts happens in MXNet 1.9.1, with the outputs that it predicts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.faulty import predicted
from support.mxnet_files import CLIP, findings, recording_of, recurrent_model
from tests.frameworks.mxnet_graphs import run
from tests.frameworks.mxnet_rnn import MODES

from onernn.adapters.loading import find_faults
from onernn.ir.arrays import Array

OUTCOME = """
import sys, mxnet as mx
symbol, arguments, _ = mx.model.load_checkpoint(sys.argv[1], 0)
arguments |= mx.nd.load(sys.argv[2])
bound = symbol.bind(mx.cpu(), {name: arguments[name] for name in symbol.list_arguments()})
[out.asnumpy() for out in bound.forward(is_train=False)]
"""


def saved(folder: Path, mode: str, dtype: str = "float32", **attributes: Any) -> dict[str, Array]:
    """A model of one RNN in files, beside a batch for it."""
    arrays = recurrent_model(folder, mode, dtype, **attributes)
    batch = {n: mx.nd.array(a, dtype=a.dtype) for n, a in arrays.items() if n != "p"}
    mx.nd.save(str(folder / "batch"), batch)
    return arrays


def outcome(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a run ends in a process of its own."""
    command = [sys.executable, "-c", OUTCOME, str(folder / "m"), str(folder / "batch")]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


LENGTHS = {"use_sequence_length": True}


@pytest.mark.parametrize(
    "fault, mode, attributes",
    [
        *(("lengths_ignored", m, LENGTHS | {"bidirectional": True}) for m in MODES[1:]),
        ("clip_ignored", "lstm", CLIP),
    ],
)
def test_mxnet_gives_what_its_faults_predict(
    fault: str, mode: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    arrays = saved(tmp_path, mode, **attributes)
    found = findings(tmp_path, recording_of(arrays))[fault]
    outputs = run(mx.sym.load(str(tmp_path / "m-symbol.json")), arrays)
    guessed, right = (
        predicted(find_faults(tmp_path), path, recording_of(arrays)).values()
        for path in ("cpu", "none")
    )
    for ours, theirs in zip(guessed, outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
    error = max(np.abs(a - b).max() for a, b in zip(right, outputs, strict=True))
    assert found.counts and abs(error - found.max_abs) < 2e-6 < 1e-2 < error


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "lengths": ("lengths_refused", LENGTHS, "float32", "0"),
    "clip": ("clip_refused", CLIP, "float32", "0"),
    "lengths in float64": ("lengths_refused", LENGTHS, "float64", "1"),
    "clip of a projection": ("clip_refused", {**CLIP, "projection_size": 2}, "float32", "1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mxnet_s_own_kernels_raise_an_error(name: str, tmp_path: Path) -> None:
    fault, attributes, dtype, fast = REFUSED[name]
    arrays = saved(tmp_path, "lstm", dtype, **attributes)
    found = findings(tmp_path, recording_of(arrays))
    assert found[fault].effect == "refuses" and found[fault].counts
    assert ("cpu" in found[fault].paths) == (fast == "1")
    assert "MXNetError" in outcome(tmp_path, MXNET_USE_MKLDNN_RNN=fast).stderr


def test_a_projection_without_states_crashes(tmp_path: Path) -> None:
    arrays = saved(tmp_path, "lstm", projection_size=2, state_outputs=False)
    (found,) = (each for each in findings(tmp_path, recording_of(arrays)).values() if each.counts)
    assert (found.fault, found.effect) == ("projection_crashes", "crashes")
    assert "Segmentation fault" in outcome(tmp_path).stderr


EXPORTS: list[tuple[str, dict[str, Any]]] = [
    ("gru", {}),
    ("gru", {"bidirectional": True}),
    ("lstm", {"bidirectional": True}),
    ("lstm", {"bidirectional": True, "num_layers": 2}),
    ("lstm", {"num_layers": 3}),
    ("lstm", {"projection_size": 2}),
    ("lstm", LENGTHS),
    ("gru", {"state_outputs": False}),
    ("lstm", CLIP),
]


@pytest.mark.skipif(find_spec("onnx") is None, reason="MXNet's exporter needs onnx, not installed")
@pytest.mark.parametrize("mode, attributes", EXPORTS, ids=str)
def test_the_exporter_refuses_what_an_audit_says(
    mode: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    arrays = saved(tmp_path, mode, **attributes)
    faults = findings(tmp_path, recording_of(arrays)).keys()
    names = mx.sym.load(str(tmp_path / "m-symbol.json")).list_inputs()
    shapes = [arrays[name].shape for name in names if name != "p"]
    files = [str(tmp_path / name) for name in ("m-symbol.json", "m-0000.params", "x.onnx")]
    try:
        mx.onnx.export_model(*files[:2], shapes, [np.float32] * len(shapes), files[2])
    except NotImplementedError:
        assert "export_refused" in faults
    else:
        assert "export_refused" not in faults
        assert ("export_drops_clip" in faults) == (attributes is CLIP)
