"""Loops are parts of a plan: the library jumps back."""

from __future__ import annotations

import inspect
import signal
from typing import Any

import numpy as np
import pytest
from support.branching import branch
from support.checking import assert_close
from support.graphs import new_node
from support.looping import EARLY, GRAPHS, ROW, TURN, feeds, graph, loop, scan
from support.sharing import check_shared

from onernn import Session
from onernn.engine.plan import Plan
from onernn.ir.errors import BudgetError

pytestmark = pytest.mark.usefixtures("built")


def planned(session: Session) -> Plan:
    (found,) = session._plans.values()
    assert found is not None, "the graph is walked"
    return found


def agrees(session: Session, feed: Any) -> None:
    want, got = session._walked(feed, None), session.run(feed)
    for each, value in want.items():
        assert got[each].shape == np.shape(value) and got[each].dtype == value.dtype, each
        assert_close(got[each], np.asarray(value))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("passes", [(), None], ids=["as it is", "fused"])
def test_a_plan_runs_the_turns_that_the_walk_runs(name: str, passes: Any) -> None:
    session = Session(GRAPHS[name], backend="kernels", passes=passes)
    for feed in feeds():
        agrees(session, feed)
    assert not planned(session).outside


def test_values_whose_sizes_grow_stay_in_python() -> None:
    body = branch(new_node("Concat", "s e", "t", axis=0), takes=TURN + "s e", gives="going t")
    nodes = (
        new_node("Neg", "row", "r"),
        loop(body, "n - r row", "y"),
        new_node("Abs", "y", "z"),
    )
    session = Session(graph(*nodes, gives="z", row=ROW), backend="kernels", passes=())
    for feed in feeds()[:8]:
        agrees(session, feed)
    assert [node.op for node in planned(session).outside] == ["Loop", "Abs"]


def test_what_is_gathered_in_turns_that_nobody_bounds_stays_in_python() -> None:
    nodes = (new_node("Neg", "row", "r"), loop(EARLY, "n c r k limit", "last ys olds"))
    made = graph(*nodes, gives="r last ys olds", row=ROW, k=np.abs(ROW))
    session = Session(made, backend="kernels", passes=())
    for feed in feeds():
        agrees(session, feed)


ENDLESS = branch(new_node("Add", "s e", "t"), takes=TURN + "s e", gives="going t")


@pytest.mark.long
def test_loops_have_a_budget_of_operators() -> None:
    endless = graph(loop(ENDLESS, "- - row row", "y"), gives="y", row=ROW)
    assert inspect.signature(Session.__init__).parameters["max_steps"].default == 500_000
    session = Session(endless, backend="kernels", passes=(), max_steps=50_000)
    with pytest.raises(BudgetError, match="more than 50,000 operators"):
        session.run(feeds()[0])
    some = graph(loop(ENDLESS, "n - row row", "y"), gives="y", row=ROW)
    for most, fits in ((2 * 2000, True), (2 * 2000 - 1, False)):
        session = Session(some, backend="kernels", passes=(), max_steps=most)
        if fits:
            agrees(session, feeds()[-1])
        else:
            with pytest.raises(BudgetError):
                session.run(feeds()[-1])


def test_a_loop_is_interrupted() -> None:
    endless = graph(loop(ENDLESS, "- - row row", "y"), gives="y", row=ROW)
    session = Session(endless, backend="kernels", passes=(), max_steps=2**60)
    # What an interrupt's handler does, by a signal that whoever runs the tests leaves alone.
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            session.run(feeds()[0])
    finally:
        signal.signal(signal.SIGALRM, before)
    small = Session(GRAPHS["sums"], backend="kernels")
    agrees(small, feeds()[0])


def test_what_is_gathered_is_memory() -> None:
    body = branch(new_node("Identity", "s", "t"), takes=TURN + "s", gives="going t t")
    made = graph(loop(body, "most - row", "y ys"), gives="ys", row=ROW, most=np.int64(10**6))
    session = Session(made, backend="kernels", passes=(), max_bytes=10**7)
    with pytest.raises(BudgetError):
        session.run(feeds()[0])


def test_two_threads_share_a_session() -> None:
    check_shared(Session(GRAPHS["a layer in it"], backend="kernels"), feeds(), 100)


def test_scans_of_values_that_are_not_as_long() -> None:
    body = branch(new_node("Add", "e f", "y"), takes="e f", gives="y")
    nodes = (new_node("Neg", "x", "m"), scan(body, "x m", "y", states=0, scanned=2))
    agrees(Session(graph(*nodes, gives="y"), backend="kernels", passes=()), feeds()[0])
