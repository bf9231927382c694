"""Steps that a file asks for are counted, wherever a layer runs; a caller's data are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, rnn_node, small
from support.looping import GRAPHS, feeds

from onernn import BudgetError, Cell, Graph, RnnSpec, Session
from onernn.ir.budget import Recurrence
from onernn.ir.graph import Node

pytestmark = pytest.mark.usefixtures("built")

RNG = np.random.default_rng(0)
BACKENDS = ("reference", "kernels")
SPEC = RnnSpec(Cell.LSTM, 3, 2, direction="bidirectional_concat")
RNN = rnn_node("y = Rnn x", SPEC)
BYTES = {
    "w": RNG.integers(-9, 9, (2, 3, 8)).astype(np.int8),
    "r": RNG.integers(-9, 9, (2, 2, 8)).astype(np.int8),
    "one": np.ones(2, np.float32),
    "zero": np.zeros(2, np.int8),
}
QUANTIZED = new_node(
    "y = DynamicQuantizeLSTM x w r      one zero one zero",
    direction="bidirectional",
    hidden_size=2,
)


def stretched(layer: Node, steps: int) -> Graph:
    """A file of some bytes, whose layer runs over so many steps, and an input of one."""
    stretch = new_node("x = Expand one_step shape")
    constants = {"shape": np.array([steps, 1, 3]), **BYTES}
    constants = {n: a for n, a in constants.items() if n in (*stretch.inputs, *layer.inputs)}
    return small((stretch, layer), {"one_step": (1, 1, 3)}, **constants)


ONE = {"one_step": np.ones((1, 1, 3), np.float32)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layer", [RNN, QUANTIZED], ids=["Rnn", "DynamicQuantizeLSTM"])
def test_millions_of_steps_that_a_file_asks_for_are_refused(layer: Node, backend: str) -> None:
    session = Session(stretched(layer, 2_400_000), backend=backend, passes=())
    with pytest.raises(BudgetError, match=rf"node 'y' \({layer.op}\): .*max_steps=\.\.\."):
        session.run(ONE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layer", [RNN, QUANTIZED], ids=["Rnn", "DynamicQuantizeLSTM"])
def test_every_step_of_each_direction_counts(layer: Node, backend: str) -> None:
    steps, free = 300, ONE["one_step"].nbytes * (2 + 1)
    for most, fits in ((2 * steps - free, True), (2 * steps - free - 1, False)):
        session = Session(stretched(layer, steps), backend=backend, passes=(), max_steps=most)
        if fits:
            assert session.run(ONE)["y"].shape[0] == steps
        else:
            with pytest.raises(BudgetError):
                session.run(ONE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_of_a_caller_may_have_any_number_of_steps(backend: str) -> None:
    long = small((RNN,), {"x": (None, None, 3)})
    session = Session(long, backend=backend, max_steps=1)
    for shape in ((4000, 1, 3), (1, 4000, 3), (0, 5, 3)):
        assert session.run({"x": np.zeros(shape, np.float32)})["y"].shape[:2] == shape[:2]


def fewest(backend: str, graph: Graph, feed: Any) -> int:
    """The smallest budget in which a graph runs."""
    low, high = 0, 4096
    while high - low > 1:
        middle = (low + high) // 2
        try:
            Session(graph, backend=backend, passes=(), max_steps=middle).run(feed)
            high = middle
        except BudgetError:
            low = middle
    return high


@pytest.mark.parametrize("name", ["a layer in it", "early end", "sums"])
def test_layers_in_loops_count_each_turn_alike_in_plans_and_walks(name: str) -> None:
    feed = feeds()[0]
    assert fewest("kernels", GRAPHS[name], feed) == fewest("reference", GRAPHS[name], feed)


def test_work_counts_as_operators_that_take_as_long() -> None:
    """2**18 multiplications stand for an operator: (runs, work) of steps over rows."""
    assert Recurrence(1, 0).cost(10, 70) == 10
    assert Recurrence(2, 2**18).cost(10, 70) == 90
    assert Recurrence(2, 2**17).cost(10, 7) == 23
