"""Random graphs compute the same walked, planned and fused, on every backend, and are fused once.

ONERNN_RANDOM_GRAPHS tells how many; 2000 take two minutes, and every pass acts on some of 200.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.fusing import departure, departures, fused_once
from support.random_graphs import GRAPHS
from support.random_models import random_trial

from onernn import OnernnError, Ragged, Session
from onernn.fuse_passes import PASSES, passes_for

WAYS = {"f32": ("reference", "onednn"), "bf16": ("onednn",)}
"""Backends by the data type that a graph is fused for."""


def test_random_graphs_compute_the_same_fused_on_the_reference_and_on_onednn() -> None:
    fired: Counter[str] = Counter()
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        for dtype, backends in WAYS.items():
            result = fused_once(trial.graph, passes_for(dtype))
            for backend in backends:
                apart = departures(trial.graph, trial.feeds, backend, dtype)
                assert not apart, (seed, backend, dtype, apart)
        fired.update(each.name for each in result.applied)
    drawn = {each.name for each in PASSES} - {"counted_scans", "split_scans"}  # TensorFlow's loops
    assert GRAPHS < 200 or set(fired) >= drawn, fired


@pytest.mark.usefixtures("built")
def test_random_graphs_compute_the_same_walked_planned_and_fused_on_kernels() -> None:
    planned = 0
    for seed in range(GRAPHS):
        trial = random_trial(seed)
        plain, fused = (Session(trial.graph, backend="kernels", passes=p) for p in ((), None))
        for feed in trial.feeds:
            try:
                want = plain._walk(feed, None)
            except OnernnError as error:
                for session in (plain, fused):
                    with pytest.raises(type(error)):
                        session.run(feed)
                continue
            for got in (plain.run(feed), fused._walk(feed, None), fused.run(feed)):
                assert list(got) == list(want)
                for name in want:
                    assert not departure(got[name], want[name], 1e-5), (seed, name)
        planned += any(plan is not None for plan in fused._plans.values())
    assert planned > 0.75 * GRAPHS


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
