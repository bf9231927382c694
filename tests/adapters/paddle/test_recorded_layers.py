"""Every recurrent operator as real Paddle 2.6.2 ran it (record_paddle_layers.py), without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS

from onernn import Cell, Session, UnsupportedError, fuse, load, verify
from onernn.verification.recording import read_arrays

# What fired, in order; nothing is refused but what a name says.
MODELS: dict[str, list[str]] = {
    "attention": [],
    "fused_embedding_fc_lstm": [],
    "fusion_lstm": [],
    "gru_unit": [],
    "half_weights": ["linear_rnn"],
    "initial_state_clipped": ["linear_rnn"],
    "lstm_cell_used": ["linear_rnn"],
    "lstm_pair": ["linear_rnn", "linear_rnn", "bidirectional"],
    "lstm_states_reverse": ["linear_rnn"],
    "lstm_states_reverse_clipped": ["linear_rnn"],
    "mul_gru_bare": ["linear_rnn"],
    "multi_gru_two_layers": [],
    "normalized": ["linear_rnn"],
    "normalized_clipped": ["linear_rnn"],
    "pooled": [],
    "rnn_gru": [],
    "rnn_lstm": [],
    "rnn_simple": [],
    "sentences": [],
    "shuffled": ["linear_rnn"],
}
CELLS = {
    **dict.fromkeys(("gru_unit", "mul_gru_bare", "multi_gru_two_layers"), {Cell.GRU}),
    **dict.fromkeys(("normalized", "normalized_clipped", "shuffled"), {Cell.GRU}),
    **dict.fromkeys(("half_weights", "initial_state_clipped"), {Cell.GRU}),
    **{name: {Cell.LSTM} for name in MODELS if "lstm" in name},
    **dict.fromkeys(("attention", "pooled", "sentences"), set()),
    "rnn_gru": {Cell.LBR_GRU},
    "rnn_simple": {Cell.RNN_TANH, Cell.RNN_RELU},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_recording_of_paddle_is_met(name: str, backend: str, data: Path) -> None:
    folder = data / "paddle" / name
    report = verify(load(folder), folder / "io.npz", backend=backend)
    assert report.passed and report.outputs, report.outputs


@pytest.mark.parametrize("name", MODELS)
def test_unfused_it_is_met_too(name: str, data: Path) -> None:
    folder = data / "paddle" / name
    assert verify(load(folder), folder / "io.npz", backend="reference", passes=()).passed


@pytest.mark.parametrize("name", MODELS)
def test_each_projection_is_folded_and_nothing_is_refused(name: str, data: Path) -> None:
    result = fuse(load(data / "paddle" / name))
    around = {"identities", "common_values"}
    kinds = [applied.name for applied in result.applied if applied.name not in around]
    assert (kinds, result.refusals) == (MODELS[name], ())
    specs = [node.attributes["spec"] for node in result.model.nodes if node.op == "Rnn"]
    assert {spec.cell for spec in specs} == CELLS[name]


@pytest.mark.skipif("onednn" not in BACKENDS, reason="ONERNN_BACKENDS leaves onednn out")
@pytest.mark.parametrize("name", [name for name in MODELS if CELLS[name]])
def test_every_layer_runs_on_onednn(name: str, data: Path) -> None:
    session = Session(load(data / "paddle" / name), backend="onednn", strict=True)
    assert session.explained
    assert all("oneDNN" in each.kernel for each in session.explained), session.explain()
    cells = any("the cell of every word on NumPy" in each.why for each in session.explained)
    assert cells == (CELLS[name] == {Cell.LSTM} and name not in ("lstm_pair", "rnn_lstm"))


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_that_differs_is_not_met(name: str, data: Path) -> None:
    folder = data / "paddle" / name
    arrays, model = read_arrays(folder / "io.npz"), load(folder)
    for key in [key for key in arrays if key.startswith("out__")]:
        other = arrays[key].copy()
        first = (0,) * other.ndim
        other[first] += 1 if other.dtype.kind == "i" else np.float32(1e-3) * np.abs(other).max()
        wrong = {**arrays, key: other}
        report = verify(model, wrong, diagnose=False, backend="reference")
        assert not report.passed, key


def test_cells_of_every_word_are_computed_only_where_somebody_looks(data: Path) -> None:
    model = load(data / "paddle" / "lstm_cell_used")
    arrays = read_arrays(data / "paddle" / "lstm_cell_used" / "io.npz")
    hidden = model.outputs[0]
    alone = type(model)(model.name, model.inputs, (hidden,), model.nodes, model.constants).pruned()
    assert "the cell of every word" in Session(model, backend="reference").explain()
    assert "the cell of every word" not in Session(alone, backend="reference").explain()
    given = {key for key in arrays if "in__" in key or "lod__" in key and "out" not in key}
    kept = {key: arrays[key] for key in arrays if key in given or hidden.name in key}
    assert verify(alone, kept, backend="reference").passed


def test_cells_of_a_stack_are_refused(data: Path) -> None:
    from onernn import RnnSpec
    from onernn.ir.rnn import check_cells

    check_cells(RnnSpec(Cell.LSTM, 4, 3, peephole=True, direction="right2left"))
    for more in (
        {"layers": 2},
        {"direction": "bidirectional_concat"},
        {"projection_size": 2},
        {"cell_clip": (-1.0, 1.0)},
        {"gate_clip": 1.0},
        {"input_forget": True},
    ):
        with pytest.raises(UnsupportedError, match="one LSTM layer in one direction only"):
            check_cells(RnnSpec(Cell.LSTM, 4, 3, **more))
    with pytest.raises(UnsupportedError, match="one LSTM layer in one direction only"):
        check_cells(RnnSpec(Cell.GRU, 4, 3))
