"""Values that stand inside of others hold what copies would hold."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.moving_graphs import COLUMNS, moving_graph

from onernn import Graph, Session
from onernn.engine.program import Nest
from onernn.ir.graph import Node, Value

pytestmark = pytest.mark.usefixtures("built")
GRAPHS = int(os.environ.get("ONERNN_RANDOM_GRAPHS", "200"))


def test_random_moves_give_what_the_walk_gives() -> None:
    outside = viewed = 0
    for seed in range(GRAPHS):
        graph = moving_graph(seed)
        session = Session(graph, backend="kernels", passes=())
        for T in (3, 1, 0, 17):
            feed = {"x": np.random.default_rng(T).normal(size=(T, COLUMNS)).astype(np.float32)}
            before, plan = feed["x"].copy(), session._plan(feed)
            want, got = session._walked(feed, None), session.run(feed)
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=1e-5, err_msg=f"{seed} {T}")
                assert plan is None or not np.may_share_memory(got[name], feed["x"])
            assert np.array_equal(feed["x"], before)
        if plan is not None:
            outside += len(plan.outside)
            viewed += sum(bool(start.terms) for _, start in plan._encoded.program.views.values())
    assert outside > GRAPHS / 4 and viewed > GRAPHS


def copies(nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> int:
    """How many copies a plan of x (T, 6) makes; it is right."""
    constants = {"two": np.array([2, 4]), "first": np.array([0]), "second": np.array([1])}
    given = Value("x", "float32", (None, 6))
    graph = Graph("one", (given,), tuple(map(Value, outputs)), nodes, constants)
    session = Session(graph, backend="kernels", passes=())
    feed = {"x": np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)}
    want, got = session._walked(feed, None), session.run(feed)
    assert all(np.array_equal(got[name], want[name]) for name in want)
    plan = session._plan(feed)
    assert plan is not None and not plan.outside
    steps = [step for each in plan._encoded.program.codes for step in each.codes]
    return sum(isinstance(step, Nest) and step.expression == ("same", 0) for step in steps)


def test_parts_of_the_first_axis_are_not_copied() -> None:
    split = Node("Split", ("t", "two"), ("a", "b"), {"axis": 0})
    square = Node("Transpose", ("x",), ("t",), {"perm": [1, 0]})
    ends = Node("Neg", ("a",), ("y",)), Node("Abs", ("b",), ("z",))
    assert copies((square, split, *ends), ("y", "z")) == 1  # the transpose
    assert copies((square, split, *ends), ("y", "z", "b")) == 2  # callers get their own


def test_what_is_joined_is_written_in_place() -> None:
    made = Node("CumSum", ("x", "first"), ("a",)), Node("CumSum", ("x", "second"), ("b",))
    both = Node("Concat", ("a", "b"), ("y",), {"axis": 0})
    assert copies((*made, both), ("y",)) == 0
    assert copies((*made, both), ("y", "a")) == 1
    twice = Node("Concat", ("a", "b", "a"), ("y",), {"axis": 0})
    assert copies((*made, twice), ("y",)) == 1
    beside = Node("Concat", ("a", "b"), ("y",), {"axis": 1})
    assert copies((*made, beside), ("y",)) == 2
    again = Node("Concat", ("b", "a"), ("z",), {"axis": 0})
    assert copies((*made, both, again), ("y", "z")) == 2
