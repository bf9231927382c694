"""Each case in which Paddle's own fused path is wrong, crashes or gives up: ours is right there.

A recording is what Paddle's unfused operators gave; the model is run fused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS
from support.oracle import run_oracle
from typer.testing import CliRunner

from onernn import Graph, Ragged, Session, fuse, load, verify
from onernn.cli import app
from onernn.verification.recording import read_arrays, read_inputs

BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def fused(name: str, backend: str, data: Path, **session: str) -> Graph:
    """The fused graph of a recording that it meets."""
    folder = data / "paddle" / name
    model = load(folder)
    report = verify(model, folder / "io.npz", backend=backend, **session)
    assert report.passed, report.outputs
    return fuse(model).model


def kinds(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@BACKEND
def test_h0_travels_into_the_fused_node(backend: str, data: Path) -> None:
    graph = fused("initial_state", backend, data)
    assert "MatMul" not in kinds(graph)
    (rnn,) = (node for node in graph.nodes if node.op == "Rnn")
    assert rnn.input(1)


@BACKEND
def test_a_bias_that_two_grus_share_is_added_once_to_each(backend: str, data: Path) -> None:
    graph = fused("shared_bias", backend, data)
    assert "MatMul" not in kinds(graph) and kinds(graph).count("Rnn") == 2
    fused("shared_bias", backend, data)  # loaded and fused again, the bias is what it was


@BACKEND
def test_origin_mode_true_is_fused_and_right(backend: str, data: Path) -> None:
    graph = fused("origin_mode_reverse", backend, data)
    assert "MatMul" not in kinds(graph)


@BACKEND
def test_mul_and_gru_are_fused_without_any_bias(backend: str, data: Path) -> None:
    assert "MatMul" not in kinds(fused("mul_gru_bare", backend, data))


@BACKEND
def test_who_reads_the_cell_of_a_fused_lstm_gets_it(backend: str, data: Path) -> None:
    graph = fused("lstm_cell_used", backend, data)
    assert "MatMul" not in kinds(graph) and "Tanh" in kinds(graph)


@BACKEND
def test_fc_and_lstm_are_fused(backend: str, data: Path) -> None:
    assert "MatMul" not in kinds(fused("lstm_states_reverse", backend, data))


@BACKEND
def test_two_directions_are_one_node_without_a_concat(backend: str, data: Path) -> None:
    for name in ("bidirectional_states", "lstm_pair"):
        graph = fused(name, backend, data)
        assert kinds(graph).count("Rnn") == 1
        (rnn,) = (node for node in graph.nodes if node.op == "Rnn")
        assert rnn.attributes["spec"].direction == "bidirectional_concat"
        assert not [n for n in graph.nodes if n.op == "Concat" and rnn.outputs[0] in n.inputs]


@pytest.mark.skipif("onednn" not in BACKENDS, reason="ONERNN_BACKENDS leaves onednn out")
@pytest.mark.parametrize("name", ["rnn_gru", "rnn_lstm", "rnn_simple"])
def test_paddle_nn_layers_run_on_onednn(name: str, data: Path) -> None:
    session = Session(load(data / "paddle" / name), backend="onednn", strict=True)
    assert all("oneDNN" in each.kernel for each in session.explained)


LENGTHS = ([3, 0, 2], [0], [0, 0, 4], [5], [1, 7, 0, 2, 2, 6], [3, 0, 2])


def batch(lengths: list[int], seed: int) -> dict[str, np.ndarray | Ragged]:
    rng = np.random.default_rng(seed)
    words = rng.uniform(-2, 2, (sum(lengths), 4)).astype(np.float32)
    h0 = rng.uniform(-1, 1, (len(lengths), 5)).astype(np.float32)
    return {"x": Ragged.from_lengths(words, lengths), "h0": h0}


@BACKEND
def test_empty_sentences_and_other_batch_sizes_from_run_to_run(backend: str, data: Path) -> None:
    """One session, batches of other sizes and other states: each as if it were the first."""
    model = load(data / "paddle" / "initial_state")
    session = Session(model, backend=backend)
    (rnn,) = (node for node in session.graph.nodes if node.op == "Rnn")
    spec, weights = rnn.attributes["spec"], rnn.attributes["weights"]
    for seed, lengths in enumerate(LENGTHS):
        feeds = batch(lengths, seed)
        (got,) = session.run(feeds).values()
        want, _ = run_oracle(spec, [weights], feeds["x"].to_list(), (feeds["h0"][None, None],))
        assert got.lod == feeds["x"].lod
        for ours, theirs in zip(got.to_list(), want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6)


@pytest.mark.skipif("onednn" not in BACKENDS, reason="ONERNN_BACKENDS leaves onednn out")
@pytest.mark.parametrize("name", ["initial_state", "mul_gru_bare", "multi_gru_two_layers"])
def test_int8_stays_close_to_float32(name: str, data: Path) -> None:
    """Where Paddle's int8 GRU is 0.2 to 0.6 apart: within two steps of 1/127, or refused."""
    folder = data / "paddle" / name
    report = verify(load(folder), folder / "io.npz", dtype="u8")
    assert report.passed, report.outputs


ROWS = {
    "H0 present": ("initial_state", "fc_gru_h0_rev0", "bidirectional_states"),
    "two fc+gru sharing the gru bias": ("shared_bias",),
    "origin_mode True": ("origin_mode_reverse",),
    "mul+gru without a gru bias": ("mul_gru_bare",),
    "mul+lstm, Cell read": ("lstm_cell_used", "fusion_lstm"),
    "fc+lstm": ("lstm_states_reverse", "lstm_pair"),
    "two directions": ("bigru_concat", "lstm_pair", "multi_gru_two_layers"),
    "rnn": ("rnn_gru", "rnn_lstm", "rnn_simple"),
    "empty sentences": ("initial_state", "sentences", "two_levels"),
    "other activations": ("relu_candidate", "tanh_gate"),
}
"""What Paddle's own fused path gets wrong, refuses or does not fuse; recordings that hold it."""


@BACKEND
@pytest.mark.parametrize("row", ROWS)
def test_verify_exits_with_0_in_each_case(row: str, backend: str, data: Path) -> None:
    for name in ROWS[row]:
        folder = data / "paddle" / name
        command = ["verify", folder, "--data", folder / "io.npz", "--backend", backend]
        result = CliRunner().invoke(app, [*map(str, command)])
        assert result.exit_code == 0, result.output


def test_empty_sentences_are_in_the_recordings(data: Path) -> None:
    """Under a state or not, in one level or two."""
    for name in ROWS["empty sentences"]:
        arrays = read_arrays(data / "paddle" / name / "io.npz")
        ragged = [a for key, a in arrays.items() if key.startswith("lod__")]
        assert any((np.diff(offsets) == 0).any() for offsets in ragged), name


def test_what_was_recorded_is_not_trivial(data: Path) -> None:
    """Dropping the state, or taking the other update, would be seen."""
    folder = data / "paddle" / "initial_state"
    arrays, model = read_arrays(folder / "io.npz"), load(folder)
    without = {**arrays, "in__h0": np.zeros_like(arrays["in__h0"])}
    assert not verify(model, without, diagnose=False, backend="reference").passed
    feeds = read_inputs(arrays, model.inputs, "recording")
    assert 0 in feeds["x"].lengths
