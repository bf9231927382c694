"""Loops are parts of a plan: the library jumps back. Branches and loops take the same ways."""

from __future__ import annotations

import inspect
import signal
from typing import Any

import numpy as np
import pytest
from support import branching
from support.branching import branch
from support.graphs import new_node
from support.looping import EARLY, GRAPHS, ROW, TURN, feeds, graph, loop, scan
from support.planning import agrees, as_it_is, check_shared, planned

from onernn import Session
from onernn.ir.errors import BudgetError

pytestmark = pytest.mark.usefixtures("built")


CONTROL = {name: (graph, feeds()) for name, graph in GRAPHS.items()}
CONTROL |= {name: (graph, branching.feeds()) for name, graph in branching.GRAPHS.items()}


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("passes", [(), None], ids=["as it is", "fused"])
def test_a_plan_takes_the_branches_and_turns_of_the_walk(name: str, passes: Any) -> None:
    made, given = CONTROL[name]
    session = Session(made, backend="kernels", passes=passes)
    agrees(session, *given)
    assert not planned(session).outside


def test_values_whose_sizes_grow_stay_in_python() -> None:
    body = branch(new_node("t = Concat s e", axis=0), takes=TURN + "s e", gives="going t")
    nodes = (
        new_node("r = Neg row"),
        loop(body, "n - r row", "y"),
        new_node("z = Abs y"),
    )
    session = as_it_is(graph(*nodes, gives="z", row=ROW))
    agrees(session, *feeds()[:8])
    assert [node.op for node in planned(session).outside] == ["Loop", "Abs"]


def test_what_is_gathered_in_turns_that_nobody_bounds_stays_in_python() -> None:
    nodes = (new_node("r = Neg row"), loop(EARLY, "n c r k limit", "last ys olds"))
    made = graph(*nodes, gives="r last ys olds", row=ROW, k=np.abs(ROW))
    session = as_it_is(made)
    agrees(session, *feeds())


ENDLESS = branch(new_node("t = Add s e"), takes=TURN + "s e", gives="going t")


@pytest.mark.long
def test_loops_have_a_budget_of_operators() -> None:
    endless = graph(loop(ENDLESS, "- - row row", "y"), gives="y", row=ROW)
    assert inspect.signature(Session.__init__).parameters["max_steps"].default == 500_000
    session = as_it_is(endless, max_steps=50_000)
    with pytest.raises(BudgetError, match="more than 50,000 operators"):
        session.run(feeds()[0])
    some = graph(loop(ENDLESS, "n - row row", "y"), gives="y", row=ROW)
    for most, fits in ((2 * 2000, True), (2 * 2000 - 1, False)):
        session = as_it_is(some, max_steps=most)
        if fits:
            agrees(session, feeds()[-1])
        else:
            with pytest.raises(BudgetError):
                session.run(feeds()[-1])


def test_a_loop_is_interrupted() -> None:
    endless = graph(loop(ENDLESS, "- - row row", "y"), gives="y", row=ROW)
    session = as_it_is(endless, max_steps=2**60)
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
    body = branch(new_node("t = Identity s"), takes=TURN + "s", gives="going t t")
    made = graph(loop(body, "most - row", "y ys"), gives="ys", row=ROW, most=np.int64(10**6))
    session = as_it_is(made, max_bytes=10**7)
    with pytest.raises(BudgetError):
        session.run(feeds()[0])


def test_two_threads_share_a_session() -> None:
    check_shared(Session(GRAPHS["a layer in it"], backend="kernels"), feeds(), 100)


def test_scans_of_values_that_are_not_as_long() -> None:
    body = branch(new_node("y = Add e f"), takes="e f", gives="y")
    nodes = (new_node("m = Neg x"), scan(body, "x m", "y", states=0, scanned=2))
    agrees(as_it_is(graph(*nodes, gives="y")), feeds()[0])
