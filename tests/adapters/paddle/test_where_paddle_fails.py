"""Each case in which Paddle's own fused path is wrong, crashes or gives up: ours is right there.

A recording is what Paddle's unfused operators gave; the model is run fused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS
from support.oracle import run_oracle

from onernn import Ragged, Session, load, verify

BACKEND = pytest.mark.parametrize("backend", BACKENDS)


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
