"""The language model that MXNet trained: the same perplexity, run without MXNet."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from onernn import Session, load


@pytest.fixture(scope="module")
def example(repo: Path) -> Path:
    return repo / "examples" / "mxnet_language_model"


def test_the_perplexity_is_the_one_that_mxnet_computed(example: Path) -> None:
    """Written apart from the example: one stream after the other, states handed on."""
    told = json.loads((example / "training.json").read_text())
    with np.load(example / "heldout.npz") as saved:
        ids = saved["ids"]
    assert told["heldout_words"] == len(ids) - 1 >= 10_000
    session = Session(load(example), threads=1)
    words, *states = (value.name for value in session.graph.inputs)
    held = [np.zeros((2, 8, 128), np.float32)] * 2
    streams = ids[: (len(ids) - 1) // 8 * 8 + 1]
    given, wanted = streams[:-1].reshape(8, -1).T, streams[1:].reshape(8, -1).T
    total = 0.0
    for at in range(0, len(given), 50):  # other pieces than those of the recording
        feeds = {words: given[at : at + 50], **dict(zip(states, held, strict=True))}
        scores, *held = session.run(feeds).values()
        assert scores.dtype == np.float32
        exact = scores.astype(np.float64)
        logs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
        total -= np.take_along_axis(logs, wanted[at : at + 50, :, None], -1).sum()
    perplexity = math.exp(total / wanted.size)
    assert 1 < perplexity < 300
    assert abs(perplexity - told["perplexity"]) < 1e-4


def test_it_is_a_small_file(example: Path) -> None:
    assert sum(file.stat().st_size for file in example.iterdir() if file.is_file()) < 4_000_000
