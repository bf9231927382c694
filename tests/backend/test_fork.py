"""Forks while other threads run layers: every child ends, with right numbers."""

from __future__ import annotations

import pytest
from support.interpreters import printed

CHILDREN = 10

FORKING = """
    import sys
    import numpy as np
    from onernn import Cell, LibraryError, RnnSpec
    from onernn.backend import open_backend
    from support.interpreters import ends_of_children
    from support.layers import random_weights

    name, threads, children = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spec = RnnSpec(Cell.GRU, 8, 64)
    layer = open_backend(name, threads=threads).prepare(spec, random_weights(spec, 0))
    assert layer.backend == name, layer.why
    x = np.random.default_rng(0).uniform(-1, 1, (5, 3, 8)).astype(np.float32)
    want, _ = layer.run(x)

    def work(seed):  # every batch of another shape: primitives are made all the time
        layer.run(np.zeros((*np.random.default_rng(seed).integers(1, 40, 2), 8), np.float32))

    def child():
        try:
            for shape in [(5, 3), (7, 50), (41, 2)]:
                given = x if shape == (5, 3) else np.zeros((*shape, 8), np.float32)
                y, _ = layer.run(given)
                assert given is not x or np.abs(y - want).max() < 1e-5
        except LibraryError as error:
            return 7 if "fork" in str(error) else 8
        return 0

    print(*ends_of_children(children, work, child))
"""


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("backend, threads", [("kernels", 4), ("kernels", 1), ("onednn", 1)])
@pytest.mark.long
def test_every_child_ends(backend: str, threads: int) -> None:
    """A child starts threads of its own: it has none of its parent's."""
    team = {"ONERNN_TEAM": str(threads)} if threads > 1 else {}
    assert printed(FORKING, backend, threads, CHILDREN, **team) == ["0"] * CHILDREN
