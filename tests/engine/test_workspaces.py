"""Plans under forks, interrupts and threads: right numbers, and memory that is given back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import printed
from support.taggers import sentences, tagger

from onernn import Session
from onernn.engine import plan as plans
from onernn.engine.compiling import compile_model
from onernn.engine.plan import Plan

pytestmark = pytest.mark.usefixtures("built")

START = """
    import gc, signal, sys, time
    import numpy as np
    from onernn import LibraryError, Session
    from onernn.engine.plan import Workspace
    from support.interpreters import ends_of_children, resident
    from support.taggers import sentences, tagger

    rng = np.random.default_rng(0)
    def wrong(got, want):
        return [name for name in want if not np.array_equal(got[name].data, want[name].data)]
"""

FORKING = """
    session = Session(tagger(), backend="kernels", threads=int(sys.argv[1]))
    feeds = [sentences(rng, count) for count in (3, 40, 7, 300)]
    want = [session.run(feed) for feed in feeds]
    assert all(session._plans.values())

    def work(seed):
        rng = np.random.default_rng(seed)
        session.run(sentences(rng, rng.integers(1, 200)))

    def child():
        try:
            return len(sum((wrong(session.run(f), w) for f, w in zip(feeds, want)), []))
        except LibraryError as error:
            return 7 if "fork" in str(error) else 8

    ends = ends_of_children(10, work, child)
    print(*ends, *(not wrong(session.run(f), w) for f, w in zip(feeds, want)))
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.long
def test_children_and_their_parent_run_a_plan_after_forks_among_threads(threads: int) -> None:
    assert printed(START + FORKING, threads) == ["0"] * 10 + ["True"] * 4


INTERRUPTED = """
    in_python = "python" in sys.argv
    session = Session(tagger(in_python=in_python), backend="kernels", threads=1)
    long, short = sentences(rng, 2000), sentences(rng, 5)
    session.run(long), session.run(short)
    want = [session.run(long), session.run(short)]
    (plan,) = session._plans.values()
    assert bool(plan.outside) == in_python
    begin = time.perf_counter()
    session.run(long), session.run(short)
    seconds = time.perf_counter() - begin

    # Of signals that a timer sends this one's handler raises what an interrupt's does.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted, apart = 0, []
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, seconds))
            for _ in range(1000):  # an interrupt within a finalizer is lost
                session.run(long), session.run(short)
        except KeyboardInterrupt:
            interrupted += 1
        apart += wrong(session.run(short), want[1]) + wrong(session.run(long), want[0])
        interrupted == 30 and print(-resident())
    gc.collect()
    spaces = sum(type(each) is Workspace for each in gc.get_objects())
    print(resident(), len(apart), interrupted, spaces)
"""


@pytest.mark.parametrize("where", ["library", "python"])
@pytest.mark.long
def test_a_session_is_as_good_as_before_when_its_runs_were_interrupted(where: str) -> None:
    before, after, apart, interrupted, left = map(float, printed(START + INTERRUPTED, where))
    assert (apart, left) == (0, 1) and interrupted > 290
    assert before + after < 10  # MB


MIXED = """
    session = Session(tagger(), backend="kernels", threads=1)
    def run(count):
        for _ in range(count):
            session.run(sentences(rng, rng.integers(1, 60)))
        return resident()
    print(*(run(500) for _ in range(8)))
"""


def test_memory_is_flat_over_thousands_of_sizes() -> None:
    """Most of the times: the allocator's heap grows in steps, when chance wants it."""
    taken = list(map(float, printed(START + MIXED)))
    assert np.median(np.diff(taken)) < 0.1  # MB in 500 runs: 200 bytes of each


HUGE = """
    def peak():  # ru_maxrss would begin with the memory of the process that forked this one
        status = dict(line.split(":") for line in open("/proc/self/status"))
        return int(status["VmHWM"].split()[0]) / 1024
    session = Session(sys.argv[1] if len(sys.argv) > 1 else tagger(), threads=1)
    small = sentences(rng, 10)
    session.run(small)
    huge = sentences(rng, 200_000)
    gc.collect()
    before, most = resident(), peak()
    session.run(huge)
    once, most = resident(), peak() - most
    session.run(huge), session.run(huge)
    for _ in range(16):
        session.run(small)
    print(most, once - before, resident() - before)
"""


@pytest.mark.parametrize("is_compiled", [False, True], ids=["model", "compiled"])
def test_memory_of_one_huge_run_is_given_back_after_it(is_compiled: bool, tmp_path: Path) -> None:
    """And that of several after 16 runs that need less."""
    if is_compiled:
        compile_model(tagger(), tmp_path / "m.onernn")
    most, once, after = map(float, printed(START + HUGE, *tmp_path.iterdir()))
    assert most > 50 and once < most / 5 and after < most / 5


def workspaces_of(session: Session) -> list[plans.Workspace]:
    (plan,) = session._plans.values()
    assert isinstance(plan, Plan)
    return list(plan._workspaces._idle)


def test_workspaces_that_only_a_burst_of_threads_needed_are_given_back() -> None:
    session, feed = Session(tagger(), backend="kernels"), sentences(np.random.default_rng(0), 50)
    session.run(feed)
    (first,) = workspaces_of(session)
    together = threading.Barrier(6)

    def enter(call: Any) -> Any:
        def entered(*arguments: Any) -> Any:
            together.wait()
            return call(*arguments)

        return entered

    plan: Any = next(iter(session._plans.values()))
    plan._run, call = enter(plan._run), plan._run
    burst = [threading.Thread(target=session.run, args=(feed,)) for _ in range(6)]
    for thread in burst:
        thread.start()
    for thread in burst:
        thread.join()
    plan._run = call
    assert len(workspaces_of(session)) == 6
    for _ in range(2 * plans._PATIENCE):
        session.run(feed)
    assert len(workspaces_of(session)) == 1


LAYER = """
    from onernn import Cell, RnnSpec
    from onernn.backend import open_backend
    from support.layers import random_weights
    spec = RnnSpec(Cell.GRU, 8, 64, layers=3)
    layer = open_backend("kernels", threads=1).prepare(spec, random_weights(spec, 0))
    layer.run(np.zeros((1, 1, 8), np.float32))
    before = resident()
    layer.run(np.zeros((200_000, 1, 8), np.float32))
    print(resident() - before)
"""


def test_a_layer_gives_the_memory_of_one_huge_run_back() -> None:
    """What its second layer reads takes 50 MB."""
    (left,) = map(float, printed(START + LAYER))
    assert left < 10


@pytest.mark.parametrize("every", [1, 2, 8])
def test_memory_that_two_of_any_16_runs_need_stays(every: int) -> None:
    """Steady use allocates nothing."""
    session, rng = Session(tagger(), backend="kernels"), np.random.default_rng(0)
    large, small = sentences(rng, 20_000), sentences(rng, 2)

    def run(count: int) -> list[Any]:
        for turn in range(count):
            session.run(small if turn % every else large)
        return workspaces_of(session)

    run(2 * every)
    (workspace,) = run(every)
    assert run(4 * every) == [workspace]
    for _ in range(16):
        session.run(small)
    assert workspaces_of(session) != [workspace]


def test_a_workspace_that_is_needed_again_and_again_stays() -> None:
    session, rng = Session(tagger(), backend="kernels"), np.random.default_rng(0)
    large, small = sentences(rng, 50), sentences(rng, 2)
    session.run(large)
    (workspace,) = workspaces_of(session)
    for turn in range(3 * plans._PATIENCE):
        session.run(large if turn % 900 == 0 else small)
    assert workspaces_of(session) == [workspace]
