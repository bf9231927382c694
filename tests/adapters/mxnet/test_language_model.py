"""The language model that MXNet trained: the same perplexity, run without MXNet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def example(repo: Path) -> Path:
    return repo / "examples" / "mxnet_language_model"


def test_the_perplexity_is_the_one_that_mxnet_computed(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(example))
    from perplexity import LanguageModel, perplexity

    told = json.loads((example / "training.json").read_text())
    with np.load(example / "heldout.npz") as saved:
        ids = saved["ids"]
    assert told["heldout_words"] == len(ids) - 1 >= 10_000
    assert abs(perplexity(LanguageModel(), ids)[0] - told["perplexity"]) < 1e-4


def test_it_is_a_small_file(example: Path) -> None:
    assert sum(file.stat().st_size for file in example.iterdir() if file.is_file()) < 4_000_000
