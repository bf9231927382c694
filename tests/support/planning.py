"""Sessions whose plans do what walks in Python do, in one thread and in several."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from onernn import Graph, Session
from onernn.engine.plan import Plan
from onernn.engine.session import Feed
from onernn.ir.ragged import data_of
from support.checking import assert_close
from support.fusing import departure


def as_it_is(graph: Graph, **options: Any) -> Session:
    """A session of the unfused graph on the kernels."""
    return Session(graph, backend="kernels", passes=(), **options)


def planned(session: Session) -> Plan:
    """The one plan for inputs of all sizes."""
    (found,) = session._plans.values()
    assert found is not None, "the graph is walked"
    return found


def agrees(session: Session, *feeds: Feed, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Runs give what walks give, to the bit if ``rtol`` is 0."""
    for feed in feeds:
        want, got = session._walk(feed, None), session.run(feed)
        assert got.keys() == want.keys()
        for name, value in want.items():
            one, other = data_of(got[name]), np.asarray(data_of(value))
            assert one.shape == other.shape and one.dtype == other.dtype, name
            assert getattr(got[name], "lod", None) == getattr(value, "lod", None), name
            if rtol:
                assert_close(one, other, rtol, atol)
            else:
                np.testing.assert_array_equal(one, other, name)


def check_shared(session: Session, given: list[Feed], turns: int) -> None:
    """Three threads run random ones of the feeds; each gives what a walk of one thread gave."""
    want = [session._walk(feed, None) for feed in given]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for at in np.random.default_rng(seed).integers(len(given), size=turns):
            got = session.run(given[at])
            wrong.extend(n for n in got if departure(got[n], want[at][n], 1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
