"""Random graphs compute the same fused as unfused, on every backend, and are fused only once.

ONERNN_RANDOM_GRAPHS tells how many; 2000 take two minutes.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from support.fusing import departure, departures, fused_once
from support.random_models import random_trial

from onernn import Ragged
from onernn.fuse_passes import PASSES

GRAPHS = int(os.environ.get("ONERNN_RANDOM_GRAPHS", "200"))
WAYS = [("reference", "f32"), ("onednn", "f32"), ("onednn", "bf16")]


def test_random_graphs_compute_the_same_fused_on_the_reference_and_on_onednn() -> None:
    fired: Counter[str] = Counter()
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        for backend, dtype in WAYS:
            result = fused_once(trial.graph, dtype)
            assert not departures(trial.graph, trial.feeds, backend, dtype), (seed, backend, dtype)
        fired.update(each.name for each in result.applied)
    assert set(fired) >= {each.name for each in PASSES}, fired


@pytest.mark.usefixtures("built")
def test_random_graphs_compute_the_same_fused_on_kernels() -> None:
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        assert not departures(trial.graph, trial.feeds, "kernels", "f32"), seed


def test_what_departs_is_noticed() -> None:
    x, offsets = np.ones((3, 2), np.float32), [0, 1, 3]
    assert departure(x, x, 1e-5) == "" and departure(x + 1e-6, x, 1e-5) == ""
    assert "apart" in departure(x + 1e-4, x, 1e-5)
    assert "apart" in departure(x * np.nan, x, 1e-5)
    assert "unfused" in departure(x.T, x, 1e-5)
    assert "unfused" in departure(x.astype(np.float64), x, 1e-5)
    assert "offsets" in departure(x, Ragged(x, offsets), 1e-5)
    assert "offsets" in departure(Ragged(x, [0, 2, 3]), Ragged(x, offsets), 1e-5)
    assert departure(np.array([1]), np.array([2]), 1e-5)
