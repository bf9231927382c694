"""What must hold for every pass: neutral, idempotent, and the old graph untouched."""

from __future__ import annotations

import numpy as np

from onernn import FuseResult, Graph, Session, fuse
from onernn.fuse_passes import PASSES, Pass
from support.layers import random_ragged, words


def run_unfused(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    session = Session(graph, backend="reference", passes=())
    return _run(session, seed)


def _run(session: Session, seed: int) -> list[np.ndarray]:
    x = random_ragged([3, 0, 5, 1], 4, seed)
    h0 = np.random.default_rng(seed).uniform(-1, 1, (1, 1, 4, 3)).astype(np.float32)
    return [words(v) for v in session.run({"x": x, "h0": h0}).values()]


def fuse_and_check(graph: Graph, passes: tuple[Pass, ...] = PASSES) -> FuseResult:
    """The result, after checking what every rewrite owes."""
    nodes, constants = graph.nodes, {k: v.copy() for k, v in graph.constants.items()}
    expected = run_unfused(graph)
    result = fuse(graph, passes)
    again = fuse(result.model, passes)
    assert again.applied == () and again.model.nodes == result.model.nodes
    assert again.refusals == result.refusals
    assert graph.nodes is nodes
    for name, array in constants.items():
        np.testing.assert_array_equal(graph.constants[name], array)
    for got, want in zip(run_unfused(result.model), expected, strict=True):
        # Folding only reorders sums of a dozen terms of size 1.
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)
    return result
