"""Small models that real Paddle 2.6.2 ran (tests/frameworks/record_paddle.py), run without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS

from onernn import Session, UnsupportedError, fuse, load, verify
from onernn.verification.recording import read_arrays

# What fired, in order, and what was refused, by its reason.
MODELS: dict[str, tuple[list[str], list[str]]] = {
    "bidirectional_states": (["linear_rnn", "linear_rnn", "bidirectional"], []),
    "dropout_downgrade": (["linear_rnn"], []),
    "embedding_crf": (["linear_rnn"], []),
    "fc_relu": ([], ["linear_rnn: the input is not a linear projection"]),
    "initial_state": (["linear_rnn"], []),
    "matmul_v2_lod_reset": (["sequence_views", "linear_rnn"], []),
    "origin_mode_reverse": (["linear_rnn"], []),
    "relu_candidate": (["linear_rnn"], []),
    "running_weight": ([], ["linear_rnn: weight 'scale_2' is computed at run time"]),
    "shared_bias": (["linear_rnn", "linear_rnn"], []),
    "shared_projection": ([], ["linear_rnn: 'elementwise_add_4' has another user"] * 2),
    "tanh_gate": (["linear_rnn"], []),
    "two_levels": (
        [],
        [
            "sequence_views: 'elementwise_add_4' does not come from 'one'",
            "sequence_views: 'gru_11' has another user",
            "linear_rnn: the input is not a linear projection",
        ],
    ),
}

# Why a GRU runs on the reference although oneDNN was asked for.
FALLS_BACK = {"relu_candidate": "relu", "tanh_gate": "tanh"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_recording_of_paddle_is_met(name: str, backend: str, data: Path) -> None:
    folder = data / "paddle" / name
    report = verify(load(folder), folder / "io.npz", backend=backend)
    assert report.passed, report.outputs
    assert report.outputs


@pytest.mark.parametrize("name", MODELS)
def test_the_passes_fire_where_they_may_and_say_why_not_elsewhere(name: str, data: Path) -> None:
    result = fuse(load(data / "paddle" / name))
    fired, refused = MODELS[name]
    assert [applied.name for applied in result.applied] == fired
    assert [refusal.reason for refusal in result.refusals] == refused


@pytest.mark.skipif("onednn" not in BACKENDS, reason="ONERNN_BACKENDS leaves onednn out")
@pytest.mark.parametrize("name", MODELS)
def test_a_gru_runs_on_onednn_or_tells_the_function_that_it_lacks(name: str, data: Path) -> None:
    session = Session(load(data / "paddle" / name), backend="onednn")
    for explained in session.explained:
        on_reference = "reference" in explained.kernel
        assert on_reference == (name in FALLS_BACK), str(explained)
        if on_reference:
            assert FALLS_BACK[name] in explained.why
    if name in FALLS_BACK:
        with pytest.raises(UnsupportedError, match=FALLS_BACK[name]):
            Session(load(data / "paddle" / name), backend="onednn", strict=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_that_differs_is_not_met(name: str, data: Path) -> None:
    folder = data / "paddle" / name
    arrays = read_arrays(folder / "io.npz")
    for key in [key for key in arrays if key.startswith("out__")]:
        other = arrays[key].copy()
        other[0] += 1 if other.dtype.kind == "i" else np.float32(1e-4) * np.abs(other).max()
        wrong = {**arrays, key: other}
        report = verify(load(folder), wrong, diagnose=False, backend="reference")
        assert not report.passed, key
    for key in [key for key in arrays if key.startswith("outlod__") and not key.endswith("__0")]:
        wrong = {**arrays, key: np.array([0, 4, 4, 4, 9, 11])}
        report = verify(load(folder), wrong, diagnose=False, backend="reference")
        assert not report.passed, key
