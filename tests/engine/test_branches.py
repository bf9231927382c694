"""Branches are parts of a plan: steps that the library jumps over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.branching import GRAPHS, branch, chosen, feeds, graph, layer
from support.checking import assert_close
from support.graphs import new_node
from support.sharing import check_shared

from onernn import Session
from onernn.engine.plan import Plan
from onernn.ir.errors import BudgetError
from onernn.ir.graph import Graph, Value

pytestmark = pytest.mark.usefixtures("built")


def planned(session: Session) -> Plan:
    (found,) = session._plans.values()
    assert found is not None, "the graph is walked"
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("passes", [(), None], ids=["as it is", "fused"])
def test_a_plan_takes_the_branch_that_the_walk_takes(name: str, passes: Any) -> None:
    session = Session(GRAPHS[name], backend="kernels", passes=passes)
    for feed in feeds():
        want, got = session._walked(feed, None), session.run(feed)
        for each, value in want.items():
            assert got[each].shape == value.shape and got[each].dtype == value.dtype, each
            assert_close(got[each], value)
    assert not planned(session).outside


def refusing(op: str, **attributes: Any) -> Any:
    """A graph whose other branch has no steps."""
    odd = branch(new_node(op, "a", "y", **attributes))
    return graph(chosen("c", branch(new_node("Neg", "a", "y")), odd, "x|x", "y"))


def test_a_branch_without_steps_is_walked() -> None:
    """T words in parts of as many as there are: how many they have, a call tells."""
    session = Session(refusing("Split", axis=0), backend="kernels", passes=())
    for feed in feeds():
        want = session._walked(feed, None)
        np.testing.assert_array_equal(session.run(feed)["y"], want["y"])


def test_what_a_branch_needs_of_sizes_is_not_asked_of_others() -> None:
    """One branch only fits where T is 4."""
    fixed = branch(new_node("Add", "a k", "y"), k=np.ones((4, 2, 3), np.float32))
    other = branch(new_node("Neg", "a", "y"))
    session = Session(graph(chosen("c", fixed, other, "x|x", "y")), backend="kernels", passes=())
    rng = np.random.default_rng(0)
    for time, condition in ((4, True), (4, False), (5, False), (1, False), (1, True)):
        x = rng.normal(size=(time, 2, 3)).astype(np.float32)
        feed = {"x": x, "c": np.array(condition), "d": np.array([True])}
        want = session._walked(feed, None)["y"]
        np.testing.assert_array_equal(session.run(feed)["y"], want)
    plan = planned(session)
    call = plan.arguments({"x": x[:0], "c": np.array(False), "d": np.array([True])})
    assert call and plan.run(call, 2**40, 2**40, session._budget), (
        "not for the sizes of the other one"
    )


def test_branches_of_several_ranks_run_in_python() -> None:
    flat = branch(new_node("Flatten", "a", "y"))
    node = chosen("c", flat, branch(new_node("Neg", "a", "y")), "n|n", "y")
    nodes = (new_node("Exp", "x", "n"), node, new_node("Abs", "n", "z"))
    session = Session(graph(*nodes, gives="y z"), backend="kernels", passes=())
    for feed in feeds():
        want, got = session._walked(feed, None), session.run(feed)
        for name, value in want.items():
            assert got[name].shape == value.shape
            assert_close(got[name], value)
    assert planned(session).outside == (node,)


def test_sizes_of_a_call_decide_branches_that_are_open() -> None:
    """One word, or several: of two axes, or of three, and a layer for each. Weights are
    packed once."""
    one = branch(
        new_node("Squeeze", "a k", "s"),
        layer(0, "a", "t"),
        new_node("Add", "t s", "y"),
        k=[0],
    )
    more = branch(layer(1, "a", "t"), new_node("ReduceSum", "t k", "y", keepdims=0), k=[0])
    last = branch(new_node("Tanh", "a", "y"))
    nodes = (
        new_node("Shape", "x", "shape"),
        new_node("Gather", "shape first", "t"),
        new_node("Equal", "t single", "is_one"),
        chosen("is_one", one, branch(new_node("Neg", "a", "y")), "x|x", "z"),
        chosen("is_one", branch(gives="a"), more, "z|z", "m"),
        chosen("c", last, branch(new_node("Neg", "a", "y")), "m|m", "y"),
    )
    session = Session(graph(*nodes, first=0, single=1), backend="kernels")
    for feed in [*feeds(), *feeds()]:
        want, got = session._walked(feed, None)["y"], session.run(feed)["y"]
        assert got.shape == want.shape
        assert_close(got, want)
    plans = list(session._sized.values())
    assert len(plans) == 5 and not any(plan.outside for plan in plans)
    layers = {id(each.layer) for plan in plans for each in plan._layers.values()}
    assert layers == {id(each.layer) for each in session.layers.values()}
    assert len(session.explained) == 2
    for time in range(30):
        session.run({**feeds()[0], "x": np.ones((time + 9, 2, 3), np.float32)})
    assert len(session._sized) == 16  # no more: each has memory


def test_sizes_of_a_call_make_a_plan_where_none_holds_for_all() -> None:
    """Two windows, whose lengths an open plan tells apart, decide the branch by their sum's."""
    nodes = (
        new_node("Slice", "x first last axis", "a"),
        new_node("Neg", "x", "n"),
        new_node("Slice", "n second last axis", "b"),
        new_node("Add", "a b", "s"),
        new_node("Shape", "s", "shape"),
        new_node("Gather", "shape axis", "t"),
        new_node("Equal", "t single", "is_one"),
        chosen(
            "is_one",
            branch(new_node("Squeeze", "a k", "y"), k=[0]),
            branch(gives="a"),
            "s|s",
            "y",
        ),
    )
    constants = {"first": [-1], "second": [-1], "last": [2**31], "axis": [0], "single": [1]}
    session = Session(graph(*nodes, **constants), backend="kernels")
    for feed in [*feeds(), *feeds()]:
        want, got = session._walked(feed, None)["y"], session.run(feed)["y"]
        assert got.shape == want.shape
        assert_close(got, want)
    assert list(session._plans.values()) == [None]
    assert session._sized and all(plan and not plan.outside for plan in session._sized.values())


def test_a_reshape_between_inputs_is_planned_for_the_sizes_of_the_call() -> None:
    """That T is the same in both, only a call tells."""
    nodes = (
        new_node("Shape", "z", "shape"),
        new_node("Slice", "shape first last", "t"),
        new_node("Concat", "t rest", "wanted", axis=0),
        new_node("Reshape", "x wanted", "r"),
        new_node("Add", "r z", "y"),
    )
    more = {"first": np.array([0]), "last": np.array([1]), "rest": np.array([-1])}
    inputs = (Value("x", "float32", (None, 2, 3)), Value("z", "float32", (None, 6)))
    session = Session(Graph("apart", inputs, (Value("y"),), nodes, more), backend="kernels")
    for time in (4, 1, 4):
        x = np.random.default_rng(time).normal(size=(time, 2, 3)).astype(np.float32)
        y = session.run({"x": x, "z": -x.reshape(time, 6)})["y"]
        np.testing.assert_array_equal(y, np.zeros((time, 6)))
    assert planned(session).outside
    assert [plan and plan.outside for plan in session._sized.values()] == [(), ()]


def test_a_branch_that_python_runs_steps_of_takes_part() -> None:
    """The library has no formula for these halves of whole numbers."""
    inner = [new_node("Cast", "a", "i", to="int32"), new_node("Mod", "i k", "m")]
    inner.append(new_node("Cast", "m", "y", to="float32"))
    odd = branch(*inner, k=np.int32(-1))
    both = graph(chosen("c", odd, branch(new_node("Neg", "a", "y")), "x|x", "y"))
    session = Session(both, backend="kernels", passes=())
    for feed in feeds():
        np.testing.assert_array_equal(session.run(feed)["y"], session._walked(feed, None)["y"])


def test_both_branches_count_as_memory() -> None:
    """The arena has room for either, and no more than for the larger one."""
    large = branch(new_node("Tile", "a k", "b"), new_node("ReduceSum", "b", "y"), k=[1000, 1, 1])
    other = branch(new_node("ReduceSum", "a", "y"))
    made = graph(chosen("c", large, other, "x|x", "y"))
    feed = {"x": np.ones((50, 2, 3), np.float32), "c": np.array(True), "d": np.array([True])}
    tight = Session(made, backend="kernels", passes=(), max_bytes=10**5)
    with pytest.raises(BudgetError):
        tight.run(feed)
    small = tight.run({**feed, "c": np.array(False)})
    np.testing.assert_array_equal(small["y"], 300)
    roomy = Session(made, backend="kernels", passes=(), max_bytes=10**7).run(feed)
    np.testing.assert_array_equal(roomy["y"], 300_000)


def test_two_threads_take_their_own_branches() -> None:
    check_shared(Session(GRAPHS["layers"], backend="kernels"), feeds(), 300)
