"""Branches are parts of a plan: steps that the library jumps over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.branching import GRAPHS, branch, chosen, feeds, graph, layer
from support.graphs import new_node, small
from support.planning import agrees, as_it_is, check_shared, planned

from onernn import Session
from onernn.ir.errors import BudgetError

pytestmark = pytest.mark.usefixtures("built")


def refusing(op: str, **attributes: Any) -> Any:
    """A graph whose other branch has no steps."""
    odd = branch(new_node(f"y = {op} a", **attributes))
    return graph(chosen("c", branch(new_node("y = Neg a")), odd, "x|x", "y"))


def test_a_branch_without_steps_is_walked() -> None:
    """T words in parts of as many as there are: how many they have, a call tells."""
    session = as_it_is(refusing("Split", axis=0))
    agrees(session, *feeds(), rtol=0)


def test_what_a_branch_needs_of_sizes_is_not_asked_of_others() -> None:
    """One branch only fits where T is 4."""
    fixed = branch(new_node("y = Add a k"), k=np.ones((4, 2, 3), np.float32))
    other = branch(new_node("y = Neg a"))
    session = as_it_is(graph(chosen("c", fixed, other, "x|x", "y")))
    rng = np.random.default_rng(0)
    for time, condition in ((4, True), (4, False), (5, False), (1, False), (1, True)):
        x = rng.normal(size=(time, 2, 3)).astype(np.float32)
        feed = {"x": x, "c": np.array(condition), "d": np.array([True])}
        agrees(session, feed, rtol=0)
    plan = planned(session)
    call = plan.arguments({"x": x[:0], "c": np.array(False), "d": np.array([True])})
    assert call and plan.run(call, 2**40, 2**40, session._budget), (
        "not for the sizes of the other one"
    )


def test_branches_of_several_ranks_run_in_python() -> None:
    flat = branch(new_node("y = Flatten a"))
    node = chosen("c", flat, branch(new_node("y = Neg a")), "n|n", "y")
    nodes = (new_node("n = Exp x"), node, new_node("z = Abs n"))
    session = as_it_is(graph(*nodes, gives="y z"))
    agrees(session, *feeds())
    assert planned(session).outside == (node,)


def test_sizes_of_a_call_decide_branches_that_are_open() -> None:
    """One word, or several: of two axes, or of three, and a layer for each. Weights are
    packed once."""
    one = branch(
        new_node("s = Squeeze a k"),
        layer(0, "a", "t"),
        new_node("y = Add t s"),
        k=[0],
    )
    more = branch(layer(1, "a", "t"), new_node("y = ReduceSum t k", keepdims=0), k=[0])
    last = branch(new_node("y = Tanh a"))
    nodes = (
        new_node("shape = Shape x"),
        new_node("t = Gather shape first"),
        new_node("is_one = Equal t single"),
        chosen("is_one", one, branch(new_node("y = Neg a")), "x|x", "z"),
        chosen("is_one", branch(gives="a"), more, "z|z", "m"),
        chosen("c", last, branch(new_node("y = Neg a")), "m|m", "y"),
    )
    session = Session(graph(*nodes, first=0, single=1), backend="kernels")
    agrees(session, *feeds(), *feeds())
    plans = list(session._sized.values())
    assert len(plans) == 5 and not any(plan.outside for plan in plans)
    layers = {id(each.layer) for plan in plans for each in plan._layers.values()}
    assert layers == {id(each.layer) for each in session.layers.values()}
    assert len(session.explained) == 2
    for time in range(30):
        session.run({**feeds()[0], "x": np.ones((time + 9, 2, 3), np.float32)})
    assert len(session._sized) == 16  # no more: each has memory


def test_sizes_of_a_call_decide_a_branch_by_the_sum_of_two_windows() -> None:
    nodes = (
        new_node("a = Slice x first last axis"),
        new_node("n = Neg x"),
        new_node("b = Slice n second last axis"),
        new_node("s = Add a b"),
        new_node("shape = Shape s"),
        new_node("t = Gather shape axis"),
        new_node("is_one = Equal t single"),
        chosen(
            "is_one",
            branch(new_node("y = Squeeze a k"), k=[0]),
            branch(gives="a"),
            "s|s",
            "y",
        ),
    )
    constants = {"first": [-1], "second": [-1], "last": [2**31], "axis": [0], "single": [1]}
    session = Session(graph(*nodes, **constants), backend="kernels")
    agrees(session, *feeds(), *feeds())
    assert session._sized and all(plan and not plan.outside for plan in session._sized.values())


def test_a_reshape_between_inputs_is_planned_for_the_sizes_of_the_call() -> None:
    """That T is the same in both, only a call tells."""
    nodes = (
        new_node("shape = Shape z"),
        new_node("t = Slice shape first last"),
        new_node("wanted = Concat t rest", axis=0),
        new_node("r = Reshape x wanted"),
        new_node("y = Add r z"),
    )
    session = Session(
        small(
            nodes,
            {"x": (None, 2, 3), "z": (None, 6)},
            first=np.array([0]),
            last=np.array([1]),
            rest=np.array([-1]),
        ),
        backend="kernels",
    )
    for time in (4, 1, 4):
        x = uniform(time, 2, 3, seed=time)
        y = session.run({"x": x, "z": -x.reshape(time, 6)})["y"]
        np.testing.assert_array_equal(y, np.zeros((time, 6)))
    assert planned(session).outside
    assert [plan and plan.outside for plan in session._sized.values()] == [(), ()]


def test_a_branch_that_python_runs_steps_of_takes_part() -> None:
    """The library has no formula for these halves of whole numbers."""
    inner = [new_node("i = Cast a", to="int32"), new_node("m = Mod i k")]
    inner.append(new_node("y = Cast m", to="float32"))
    odd = branch(*inner, k=np.int32(-1))
    both = graph(chosen("c", odd, branch(new_node("y = Neg a")), "x|x", "y"))
    session = as_it_is(both)
    agrees(session, *feeds(), rtol=0)


def test_both_branches_count_as_memory() -> None:
    """The arena has room for either, and no more than for the larger one."""
    large = branch(new_node("b = Tile a k"), new_node("y = ReduceSum b"), k=[1000, 1, 1])
    other = branch(new_node("y = ReduceSum a"))
    made = graph(chosen("c", large, other, "x|x", "y"))
    feed = {"x": np.ones((50, 2, 3), np.float32), "c": np.array(True), "d": np.array([True])}
    tight = as_it_is(made, max_bytes=10**5)
    with pytest.raises(BudgetError):
        tight.run(feed)
    small = tight.run({**feed, "c": np.array(False)})
    np.testing.assert_array_equal(small["y"], 300)
    roomy = as_it_is(made, max_bytes=10**7).run(feed)
    np.testing.assert_array_equal(roomy["y"], 300_000)


def test_two_threads_take_their_own_branches() -> None:
    check_shared(Session(GRAPHS["layers"], backend="kernels"), feeds(), 300)
