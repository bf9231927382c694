"""How often the weights of a model stand in memory, as the allocators of Python and NumPy see it.

What protobuf's extension holds while a file is read is not seen here. oneDNN packs the weights once
more, for the first batch that it is faster for.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node

from onernn import Cell, Graph, RnnSpec, RnnWeights, Session, load
from onernn.adapters.converting import write_model
from onernn.ir.graph import Value
from onernn.ir.rnn import Recurrent

pytestmark = pytest.mark.usefixtures("built")
SIZE = 512
"""Of inputs and units: a multiple of what kernels take at once, so that packing adds no zeros."""
WEIGHTS = 4 * (2 * 4 * SIZE * SIZE + SIZE * 4 * SIZE)
"""Bytes of an LSTM's two matrices, and of a product's behind it."""
SOME = WEIGHTS // 8
"""For objects, bias, and values of a run; less than any of the three matrices."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An LSTM and a product behind it."""
    rng, spec = np.random.default_rng(0), RnnSpec(Cell.LSTM, SIZE, SIZE)
    shapes = ((1, 1, SIZE, 4, SIZE), (1, 1, SIZE, 4, SIZE), (1, 1, 4, SIZE))
    weights = RnnWeights(*(rng.normal(0, 0.01, shape).astype(np.float32) for shape in shapes))
    matrix = rng.normal(0, 0.01, (SIZE, 4 * SIZE)).astype(np.float32)
    x, z = Value("x", "float32", (None, 1, SIZE)), Value("z", "float32", (None, 1, 4 * SIZE))
    nodes = (Recurrent(spec, weights, x="x", y="y").node(), new_node("z = MatMul y m"))
    write_model(Graph("m", (x,), (z,), nodes, {"m": matrix}), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


BATCH = {"x": np.ones((3, 1, SIZE), np.float32)}


@pytest.fixture(autouse=True)
def traced(file: Path) -> Iterator[None]:
    Session(load(file), backend="kernels").run(BATCH)  # what is imported and made once a process
    tracemalloc.start()
    yield
    tracemalloc.stop()


def taken(act: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives; the weights that it leaves in memory, and that it has there at most."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    made = act()
    gc.collect()
    after, peak = tracemalloc.get_traced_memory()
    return made, (after - before) / WEIGHTS, (peak - before) / WEIGHTS


@pytest.mark.long
def test_weights_stand_in_memory_once_for_the_graph_and_once_for_the_kernels(file: Path) -> None:
    size, some = file.stat().st_size / WEIGHTS, SOME / WEIGHTS
    assert 1 <= size < 1 + some
    graph, left, most = taken(lambda: load(file))
    assert 1 <= left < 1 + some  # nothing of the file's bytes
    assert most < 2 + some  # the file's numbers, and those that are turned round for the pivot
    session, left, most = taken(lambda: Session(graph, backend="kernels"))
    layer = 2 / 3
    assert layer <= left < layer + some  # the LSTM, packed
    assert most < layer + some  # nothing is copied on the way
    _, left, most = taken(lambda: session.run(BATCH))
    assert 1 / 3 <= left < 1 / 3 + some and most < 1 / 3 + some  # the product, packed
    _, left, most = taken(lambda: session.run(BATCH))
    assert left < some and most < some


def test_a_copy_of_one_matrix_would_be_seen(file: Path) -> None:
    matrix = max(load(file).constants.values(), key=lambda each: each.nbytes)
    _, left, most = taken(matrix.copy)
    assert left > SOME / WEIGHTS and most > SOME / WEIGHTS
