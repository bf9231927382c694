"""MXNet's faults: told from the attributes of RNN nodes, and as far off as the two meanings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faulty import predicted
from support.graphs import reference
from support.mxnet_files import CLIP, N, T, findings, recording_of, recurrent_model

from onernn import audit, load
from onernn.adapters.loading import find_faults
from onernn.ir.arrays import Array
from onernn.verification.recording import read_arrays, read_inputs

LENGTHS = {"use_sequence_length": True}


def saved(folder: Path, mode: str, dtype: str = "float32", **attributes: Any) -> dict[str, Array]:
    """A recording of inputs for a model of one RNN."""
    return recording_of(recurrent_model(folder, mode, dtype, **attributes))


def run(folder: Path, semantics: Any, recording: dict[str, Array]) -> dict[str, Any]:
    model = load(folder, semantics=semantics)
    return reference(model, read_inputs(recording, model.inputs))


def counted(folder: Path, recording: dict[str, Array] | None = None) -> dict[str, Any]:
    return {fault: each for fault, each in findings(folder, recording).items() if each.counts}


@pytest.mark.parametrize(
    "mode, attributes, fault",
    [
        ("gru", {**LENGTHS, "bidirectional": True}, "lengths_ignored"),
        ("lstm", {**LENGTHS, "num_layers": 2}, "lengths_ignored"),
        ("lstm", CLIP, "clip_ignored"),
    ],
)
def test_an_error_is_the_distance_of_the_two_meanings(
    mode: str, attributes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    recording = saved(tmp_path, mode, **attributes)
    right, wrong = (run(tmp_path, s, recording) for s in ("documented", "mxnet-cpu"))
    found = counted(tmp_path, recording)
    assert found.keys() == {fault, fault.replace("ignored", "refused")}
    assert found[fault.replace("ignored", "refused")].paths == ("native",)
    guessed = predicted(find_faults(tmp_path), "cpu", recording)
    for name in right:
        np.testing.assert_allclose(guessed[name], wrong[name], rtol=0, atol=1e-6)
    error = max(np.abs(right[name] - wrong[name]).max() for name in right)
    assert abs(found[fault].max_abs - error) < 1e-6 < 1e-2 < error


def test_lengths_that_cut_nothing_off_and_wide_clips_change_nothing(tmp_path: Path) -> None:
    wide = {"lstm_state_clip_min": -99, "lstm_state_clip_max": 99}
    recording = saved(tmp_path, "lstm", **LENGTHS, **wide)
    recording["in__n"] = np.full(N, T, np.float32)
    assert counted(tmp_path, recording).keys() == {"lengths_refused", "clip_refused"}


@pytest.mark.parametrize("dtype, width", [("float64", None), ("float32", 2)])
def test_where_mxnet_s_own_kernels_run_it_refuses(
    dtype: str, width: int | None, tmp_path: Path
) -> None:
    attributes = {**LENGTHS, **CLIP, **({"projection_size": width} if width else {})}
    saved(tmp_path, "lstm", dtype, **attributes)
    found = counted(tmp_path)
    assert found.keys() == {"lengths_refused", "clip_refused"}
    assert all(each.paths == ("cpu", "native") for each in found.values())


def test_a_projection_without_states_crashes(tmp_path: Path) -> None:
    saved(tmp_path, "lstm", projection_size=2, state_outputs=False)
    assert counted(tmp_path).keys() == {"projection_crashes"}
    saved(tmp_path, "lstm", projection_size=2)
    assert not counted(tmp_path)


@pytest.mark.parametrize(
    "mode, attributes, reason",
    [
        ("gru", {"bidirectional": True}, "two directions"),
        ("lstm", {"bidirectional": True, "num_layers": 2}, "two directions"),
        ("rnn_tanh", {"num_layers": 3}, "3 layers"),
        ("lstm", {"projection_size": 2}, "a projection"),
        ("lstm", LENGTHS, "sequence lengths"),
        ("gru", {"state_outputs": False}, "state_outputs=False"),
    ],
)
def test_what_the_exporter_refuses_is_told_and_does_not_count(
    mode: str, attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    saved(tmp_path, mode, **attributes)
    finding = findings(tmp_path)["export_refused"]
    assert finding.text.endswith(reason) and not finding.counts


def test_what_the_exporter_takes_wrongly_is_told(tmp_path: Path) -> None:
    saved(tmp_path, "lstm", bidirectional=True)
    assert not findings(tmp_path)
    saved(tmp_path, "lstm", **CLIP)
    assert findings(tmp_path)["export_drops_clip"].max_abs > 1e-2
    saved(tmp_path, "gru", num_layers=2, p=0.5)
    assert findings(tmp_path).keys() == {"dropout_ignored", "export_two_layers"}
    assert audit(tmp_path)  # nothing of it hits a run


@pytest.mark.parametrize("name", ["op_lstm_seqlen", "op_lstm_clip"])
def test_the_recordings_of_both_meanings_are_the_two_predictions(
    name: str, shared_models: Path
) -> None:
    """One is what MXNet 1.9.1 gave, the other what its documentation says."""
    folder = shared_models / "mxnet"
    for path, suffix in (("cpu", ""), ("none", ".documented")):
        arrays = read_arrays(folder / f"{name}{suffix}.npz")
        inputs = {key: array for key, array in arrays.items() if key.startswith("in__")}
        got = predicted(find_faults(folder / f"{name}-symbol.json"), path, inputs)
        for at, value in enumerate(got.values()):
            np.testing.assert_allclose(value, arrays[f"out__{at}"], rtol=0, atol=2e-6)
