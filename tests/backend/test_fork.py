"""Forks while other threads run layers: every child ends, with right numbers or one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

CHILDREN = 10

FORKING = """
    import os, signal, sys, threading, time
    import numpy as np
    import onernn
    from onernn import Cell, RnnSpec, RnnWeights
    from onernn.backend import open_backend

    name, threads, children = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spec, rng = RnnSpec(Cell.GRU, 8, 64), np.random.default_rng(0)
    numbers = [rng.uniform(-0.1, 0.1, shape).astype(np.float32)
               for shape in ((1, 1, 8, 3, 64), (1, 1, 64, 3, 64), (1, 1, 3, 64))]
    layer = open_backend(name, threads=threads).prepare(spec, RnnWeights(*numbers))
    assert layer.backend == name, layer.why
    x = rng.uniform(-1, 1, (5, 3, 8)).astype(np.float32)
    want, _ = layer.run(x)
    running = True

    def work(seed):  # every batch of another shape: primitives are made all the time
        rng = np.random.default_rng(seed)
        while running:
            shape = (*rng.integers(1, 40, 2), 8)
            layer.run(np.zeros(shape, np.float32))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for worker in workers: worker.start()
    started = []
    for _ in range(children):
        time.sleep(0.03)
        child = os.fork()
        if not child:
            running = False
            try:
                for shape in [(5, 3), (7, 50), (41, 2)]:
                    given = x if shape == (5, 3) else np.zeros((*shape, 8), np.float32)
                    y, _ = layer.run(given)
                    assert given is not x or np.abs(y - want).max() < 1e-5
            except onernn.LibraryError as error:
                sys.exit(7 if "fork" in str(error) else 8)
            sys.exit(0)  # which takes down what it inherited
        started.append(child)
    running = False
    for worker in workers: worker.join()
    ends, deadline = {}, time.time() + 60
    while len(ends) < children and time.time() < deadline:
        for child in started:
            if child not in ends and (done := os.waitpid(child, os.WNOHANG))[0]:
                ends[child] = os.waitstatus_to_exitcode(done[1])
        time.sleep(0.01)
    for child in started:
        if child not in ends: os.kill(child, signal.SIGKILL)
    print(*(ends.get(child, "hangs") for child in started))
"""


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("backend", "threads", "end"), [("kernels", 2, "7"), ("kernels", 1, "0"), ("onednn", 1, "0")]
)
def test_every_child_ends(backend: str, threads: int, end: str) -> None:
    """7: refused, for the layer's second thread did not survive the fork."""
    command = [sys.executable, "-c", dedent(FORKING), backend, str(threads), str(CHILDREN)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [end] * CHILDREN, done.stderr
