"""Many streams on one session: each is as it would be alone, whatever others do.

ONERNN_STREAM_SECONDS tells how long streams open and close at random; make streams takes 600.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.arrays import uniform
from support.branching import DOUBLE, branch, chosen
from support.graphs import new_node, small, step_model
from support.interpreters import resident

from onernn import (
    BudgetError,
    FrameError,
    Graph,
    ModelFormatError,
    Session,
    ShapeError,
    UnsupportedError,
)
from onernn.engine.streams import Streams
from onernn.ir.graph import Value
from onernn.ir.rnn import with_precision
from onernn.ir.weights import UNIT, LayerPrecision, PartScales, Scale

SECONDS = float(os.environ.get("ONERNN_STREAM_SECONDS", "0.5"))
WIDTH, H, WORDS = 6, 8, 11
MANY, QUEUE, FRAMES, RECORDINGS = 1000, 4, 30, 60


STATES = {"h": "hN", "c": "cN"}


MODEL = step_model()


def step_streams(count: int, **options: Any) -> Streams:
    return Session(MODEL).streams(count, STATES, **options)


def alone(
    frames: Any, model: Graph = MODEL, dtype: str = "f32", backend: str = "auto"
) -> list[np.ndarray]:
    session, found = Session(model, dtype, 1, backend), []
    state = {name: np.zeros((1, 1, 1, H), np.float32) for name in STATES}
    for frame in frames:
        made = session.run({"x": frame, **state})
        state = {name: made[after] for name, after in STATES.items()}
        found.append(made["y"])
    return found


def check_alone(got: Any, frames: Any, model: Graph = MODEL) -> None:
    assert_allclose(got, alone(frames, model), atol=1e-6)


def pull(streams: Streams, stream: int) -> list[np.ndarray]:
    return [made["y"] for made in streams.pull(stream)]


def frames_of(stream: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(stream)
    return [rng.uniform(-2, 2, (1, WIDTH)).astype("f4") for _ in range(count)]


@pytest.mark.usefixtures("built")
def test_a_model_of_states_only_gives_the_states_of_each_frame() -> None:
    model = replace(MODEL, outputs=MODEL.outputs[1:]).prune()
    session, streams = Session(model), Session(model).streams(2, STATES)
    stream, state = streams.open(), dict.fromkeys(STATES, np.zeros((1, 1, 1, H), np.float32))
    for frame in frames_of(0, 3):
        streams.push(stream, frame)
        want = session.run({"x": frame, **state})
        (got,) = streams.pull(stream)
        assert got.keys() == want.keys()
        for name, array in want.items():
            assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)
        state = {name: want[after] for name, after in STATES.items()}


@pytest.mark.usefixtures("built")
@pytest.mark.long
def test_a_thousand_streams_that_open_and_close_at_random_are_as_each_alone() -> None:
    """Bit for bit, every number: the kernels' sums have one order. Some frames are NaN, some queues
    are full. Memory stays what it was when all streams were open and all queues full."""
    rng = np.random.default_rng(0)
    recorded = [frames_of(seed, FRAMES) for seed in range(RECORDINGS)]
    for frames in recorded[::10]:
        frames[FRAMES // 2] *= np.nan
    wanted = [np.stack(alone(frames, backend="kernels")) for frames in recorded]
    streams = Session(MODEL, backend="kernels").streams(MANY, STATES, queue=QUEUE)
    opened: dict[int, list[int]] = {}  # by stream: its recording, frames pushed and pulled
    full = 0

    def open_one() -> None:
        opened[streams.open()] = [int(rng.integers(RECORDINGS)), 0, 0]

    def push(stream: int) -> None:
        nonlocal full
        number, pushed, pulled = opened[stream]
        frame = recorded[number][pushed]
        try:
            streams.push(stream, frame)
        except BudgetError as error:
            assert f"stream {stream}: expected at most {QUEUE} frames that wait" in str(error)
            assert pushed - pulled >= QUEUE
            full += 1
        else:
            assert pushed - pulled < 2 * QUEUE  # as many results may wait, too
            opened[stream][1] += 1

    def pull(stream: int) -> None:
        number, pushed, pulled = opened[stream]
        if got := streams.pull(stream):
            want = wanted[number][pulled:pushed]
            assert_array_equal(np.stack([each["y"] for each in got]), want)
        assert len(got) == pushed - pulled
        opened[stream][2] = pushed

    def close(stream: int) -> None:
        streams.close(stream)
        del opened[stream]

    while len(streams) < MANY:
        open_one()
    for stream in [each for each in opened for _ in range(QUEUE)]:
        push(stream)
    for stream in opened:
        pull(stream)
    for batch in (*range(1, 128), *range(128, MANY, 32)):  # memory that each size of a batch takes
        busy = list(opened)[:batch]
        for stream in busy:
            push(stream)
        for stream in busy:
            pull(stream)
            if opened[stream][1] == FRAMES:
                close(stream)
                open_one()
    before, until = resident(), time.monotonic() + SECONDS
    ended = 0
    while ended < 100 or time.monotonic() < until:
        while len(streams) < MANY and rng.integers(40):
            open_one()
        for stream in rng.choice(list(opened), len(opened) // 3, replace=False).tolist():
            for _ in range(rng.integers(1, QUEUE + 2)):
                if opened[stream][1] < FRAMES:
                    push(stream)
        for stream in rng.choice(list(opened), len(opened) // 5, replace=False).tolist():
            pull(stream)
            if opened[stream][2] == FRAMES or not rng.integers(5):
                close(stream)
                ended += 1
    print(f"{ended} streams ended, {full} queues were full, {resident() - before:+.1f} MB")
    assert full and resident() - before < 20  # MB


def test_a_stream_of_nan_spoils_no_other() -> None:
    streams = step_streams(8)
    opened = [streams.open() for _ in range(8)]
    for at, stream in enumerate(opened):
        for frame in frames_of(at, 5):
            streams.push(stream, frame * np.nan if at == 3 else frame)
    for at, stream in enumerate(opened):
        got = np.stack(pull(streams, stream))
        if at == 3:
            assert np.isnan(got).all()
        else:
            check_alone(got, frames_of(at, 5))


def test_a_frame_that_the_model_refuses_is_told_to_its_stream_only() -> None:
    streams = Session(step_model(WORDS)).streams(3, STATES)
    one, other = streams.open(), streams.open()
    for word in (1, 2, WORDS + 5, 3):
        streams.push(one, np.array([word]))
        streams.push(other, np.array([word % WORDS]))
    assert len(streams.pull(other)) == 4
    before = streams.pull(one)
    assert len(before) == 2
    with pytest.raises(ShapeError):
        streams.pull(one)
    want = alone([np.array([word]) for word in (1, 2, 3)], step_model(WORDS))
    (last,) = streams.pull(one)
    assert_allclose(last["y"], want[-1], atol=1e-6)


def test_a_stream_begins_with_the_first_state_where_another_has_ended() -> None:
    first = {"h": np.full((1, 1, 1, H), 0.5, np.float32)}
    streams = step_streams(1, first=first)
    results = []
    for _ in range(2):
        stream = streams.open()
        for frame in frames_of(0, 3):
            streams.push(stream, frame)
        results.append(pull(streams, stream))
        streams.close(stream)
    assert np.array_equal(*results)
    assert not np.allclose(results[0], alone(frames_of(0, 3)))


def test_an_old_id_never_names_a_stream_again() -> None:
    """The memory of a stream is used again, its id is not."""
    rng, streams = np.random.default_rng(3), step_streams(3)
    opened: list[int] = []
    closed: list[int] = []
    for _ in range(100):
        if len(opened) == 3 or (opened and rng.random() < 0.5):
            closed.append(opened.pop(int(rng.integers(len(opened)))))
            streams.close(closed[-1])
        else:
            opened.append(streams.open())
    assert len({*closed, *opened}) == len(closed) + len(opened)
    for stream in closed:
        for use in (streams.close, streams.pull, lambda s: streams.push(s, frames_of(0, 1)[0])):
            with pytest.raises(ShapeError, match=f"stream {stream} is not open"):
                use(stream)
    assert len(streams) == len(opened)


def test_what_is_full_says_so() -> None:
    streams = step_streams(2, queue=3)
    stream, _ = streams.open(), streams.open()
    with pytest.raises(BudgetError, match="got 2 open streams"):
        streams.open()
    frame = frames_of(0, 1)[0]
    for _ in range(3):
        streams.push(stream, frame)
    with pytest.raises(BudgetError, match="3 wait already"):
        streams.push(stream, frame)
    for _ in range(5):
        streams.tick()
    for _ in range(3):  # three results wait to be pulled: its frames wait, others run
        streams.push(stream, frame)
    assert streams.tick() == 0
    assert len(streams.pull(stream)) == 6


def test_frames_that_do_not_fit_are_refused_at_once() -> None:
    streams = step_streams(2)
    stream = streams.open()
    for wrong in (np.zeros((1, WIDTH + 1), np.float32), {"q": frames_of(0, 1)[0]}, np.zeros(3)):
        with pytest.raises(ShapeError):
            streams.push(stream, wrong)
    assert streams.pull(stream) == []
    with pytest.raises(UnsupportedError, match="no such input"):
        Session(MODEL).streams(2, {"q": "hN"})
    with pytest.raises(UnsupportedError, match="expected 1 or more"):
        step_streams(0)


def test_what_the_caller_pushed_may_be_used_again() -> None:
    streams = step_streams(1)
    stream, frame = streams.open(), frames_of(0, 1)[0]
    streams.push(stream, frame)
    frame[:] = 99
    check_alone(pull(streams, stream), frames_of(0, 1))


def test_states_take_little_more_than_their_numbers() -> None:
    session = Session(MODEL)
    tracemalloc.start()
    streams = session.streams(1000, STATES)
    for _ in range(1000):
        streams.open()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    numbers = 1000 * 2 * H * 4
    model = 300_000  # the graph over streams and its layers, once
    assert taken < numbers + model + 1000 * 1000


def test_threads_share_streams() -> None:
    streams = step_streams(16)

    def client(at: int) -> list[np.ndarray]:
        stream, found = streams.open(), []
        for frame in frames_of(at, 40):
            streams.push(stream, frame)
            found += pull(streams, stream)
        streams.close(stream)
        return found

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(client, range(48)))
    for at, found in enumerate(results):
        check_alone(found, frames_of(at, 40))


def interrupt(at: int, work: Callable[[], object], counts: Callable[[str], bool]) -> object:
    """Runs until the line of this number in streams.py, of functions whose names count; what the
    work gives if it was not reached."""
    left = at

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("streams.py"):
            return None
        if event == "line" and counts(frame.f_code.co_name):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        return work()
    except KeyboardInterrupt:
        return KeyboardInterrupt
    finally:
        sys.settrace(None)


def test_an_interrupted_tick_loses_no_frame_and_runs_none_twice() -> None:
    """Control-C arrives at every line of a tick in turn; the caller goes on."""
    frames, streams, at = frames_of(0, 3), step_streams(2), 0
    parts = ("_tick", "_run", "_store", "_kind")
    while True:
        stream = streams.open()
        for each in frames:
            streams.push(stream, each)
        ended = interrupt(at, lambda one=stream: streams.pull(one), lambda name: name in parts)
        got = pull(streams, stream)
        if ended is not KeyboardInterrupt:
            break
        check_alone(got, frames)
        streams.close(stream)
        at += 1
    assert at > 20


def summing(x: tuple[int | None, int], state: tuple[int | None, int]) -> Graph:
    nodes = (new_node("sN = Add x s"), new_node("y = Relu sN"))
    return small(nodes, {"x": x, "s": state}, "y sN")


def test_a_frame_whose_state_does_not_fit_is_told_to_its_stream_only() -> None:
    streams = Session(summing((None, 3), (None, 3))).streams(2, {"s": "sN"})
    one, other = streams.open(), streams.open()
    streams.push(one, np.ones((2, 3), np.float32))
    streams.push(other, np.ones((1, 3), np.float32))
    (got,) = streams.pull(other)
    assert np.array_equal(got["y"], np.ones((1, 3)))
    with pytest.raises(ShapeError, match=r"state 's': expected float32 \(1, 3\), got"):
        streams.pull(one)


def test_a_state_of_fewer_rows_or_another_dtype_is_no_next_state() -> None:
    """An assignment would repeat the rows, or round the numbers."""
    step = summing((1, 3), (2, 3))
    narrow = replace(
        step,
        nodes=(
            new_node("t = ReduceSum s axes"),
            new_node("sN = Add x t"),
            step.nodes[1],
        ),
        constants={"axes": np.array([0])},
    )
    step = summing((1, 3), (1, 3))
    whole = replace(
        step,
        inputs=(step.inputs[0], Value("s", "int64", (1, 3))),
        nodes=(
            new_node("t = CastLike s x"),
            new_node("sN = Add x t"),
            step.nodes[1],
        ),
    )
    for model in (narrow, whole):
        streams = Session(model).streams(1, {"s": "sN"})
        stream = streams.open()
        streams.push(stream, np.ones((1, 3), np.float32))
        with pytest.raises(ShapeError, match="state 's': expected"):
            streams.pull(stream)


COLUMNS = np.full((4, H), 300, np.float32)
U8 = {
    "its own steps": ("u8", "kernels", ()),
    "where oneDNN would take a batch's scale": ("u8", "auto", ()),
    "found as it runs": ("int8-dynamic", "auto", ()),
    "scales of x and of h": ("f32", "auto", (PartScales(Scale(60, 90), UNIT),)),
    "oneDNN's scales": ("f32", "auto", (PartScales(UNIT, UNIT, COLUMNS, COLUMNS),)),
}


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", U8)
def test_streams_in_bytes_have_the_bits_of_each_alone_in_any_company(name: str) -> None:
    """Beside one that is 1,000 times as loud, and one with NaN, which oneDNN refuses in bytes."""
    dtype, backend, parts = U8[name]
    if backend == "auto" and os.environ.get("ONERNN_TEST_BACKEND") == "onednn":
        pytest.skip("another default backend: without kernels around layers bits are NumPy's")
    model = MODEL
    if parts:
        model = with_precision(model, {"ys": LayerPrecision("u8", parts)})
    streams, rng = Session(model, dtype, 1, backend).streams(9, STATES), np.random.default_rng(0)
    frames = {streams.open(): frames_of(at, 40) for at in range(9)}
    frames[3] = [frame * np.float32(1000) for frame in frames[3]]
    if name != "oneDNN's scales":
        frames[4][20] *= np.nan
    left = {stream: list(each) for stream, each in frames.items()}
    got: dict[int, list[Any]] = {stream: [] for stream in frames}
    while any(left.values()):
        for stream in rng.choice(9, rng.integers(1, 10), replace=False).tolist():
            if left[stream]:
                streams.push(stream, left[stream].pop(0))
        streams.tick()
        for stream, each in got.items():
            each += pull(streams, stream)
    one = "auto" if parts else "kernels"
    for stream, each in frames.items():
        assert_array_equal(got[stream], alone(each, model, dtype, one))
    assert not np.array_equal(got[0], alone(frames[0]))  # it is in bytes


@pytest.mark.usefixtures("built")
def test_streams_that_would_share_a_scale_are_refused() -> None:
    session = Session(MODEL, "u8", backend="onednn")
    if session.explained[0].dtype == "f32":
        pytest.skip(session.explained[0].why)
    with pytest.raises(UnsupportedError, match="u8"):
        session.streams(2, STATES)


def test_capacities_beyond_memory_and_unknown_first_states_are_told() -> None:
    with pytest.raises(BudgetError, match="1000000000000000"):
        step_streams(10**15)
    with pytest.raises(ShapeError, match="first: 'hidden' is not a state: expected one of h, c"):
        step_streams(1, first={"hidden": np.ones((1, 1, 1, H), np.float32)})


def test_what_all_streams_give_has_to_fit_the_model() -> None:
    session = Session(summing((1, 3), (1, 3)))
    for given in (np.ones((2, 3)), "abc"):
        with pytest.raises(ShapeError, match="input x: float32"):
            session.streams(1, {"s": "sN"}, given={"x": given})
    with pytest.raises(ShapeError, match="unknown"):
        session.streams(1, {"s": "sN"}, given={"q": np.ones(3)})


def rated_model() -> Graph:
    """sN = s + the sum of x, which counts twice at a rate of 16000; x has no declared shape."""
    nodes = (
        new_node("total = ReduceSum x", keepdims=1),
        new_node("fast = Equal rate high"),
        chosen("fast", DOUBLE, branch(new_node("y = Identity a")), "total|total", "part"),
        new_node("sN = Add s part"),
        new_node("y = Identity sN"),
    )
    inputs = {"x": None, "s": (1, 1), "rate": ("int64",)}
    return small(nodes, inputs, "y sN", high=16000)


def test_streams_of_several_rates_and_sizes_take_their_own_branch() -> None:
    streams = Session(rated_model()).streams(9, {"s": "sN"})
    opened = {streams.open(): (rate, size) for rate in (16000, 8000) for size in (3, 5, 3)}
    total = dict.fromkeys(opened, 0)
    for frame in range(1, 4):
        for stream, (rate, size) in opened.items():
            x = np.full((1, size), frame * (stream + 1), np.float32)
            streams.push(stream, {"x": x, "rate": rate})
            total[stream] += (2 if rate == 16000 else 1) * size * frame * (stream + 1)
        assert {s: streams.pull(s)[0]["y"].item() for s in opened} == total


def test_more_kinds_of_frames_than_are_kept_are_all_right() -> None:
    streams = Session(rated_model()).streams(1, {"s": "sN"})
    stream, total = streams.open(), 0
    for size in [*range(1, 20), *range(1, 20)]:
        streams.push(stream, {"x": np.ones((1, size), np.float32), "rate": 8000})
        total += size
        assert streams.pull(stream)[0]["y"].item() == total


def test_an_input_that_is_declared_otherwise_is_refused() -> None:
    for known, reason in (((1, 7), "got the shape"), ("three", "expected an array, a dtype")):
        with pytest.raises(ShapeError, match=f"input x: float32.*{reason}"):
            step_streams(1, inputs={"x": known})


# --- many ids in one call


def test_frames_of_one_call_are_as_those_of_many_calls() -> None:
    streams = step_streams(20)
    opened = np.array([streams.open() for _ in range(20)])
    rng = np.random.default_rng(0)
    frames = {int(stream): frames_of(int(stream), 12) for stream in opened}
    got: dict[int, list[np.ndarray]] = {stream: [] for stream in frames}
    at = dict.fromkeys(frames, 0)
    for _ in range(40):  # any ids in any order, and single ones in between
        some = rng.permutation(opened)[: rng.integers(1, 21)]
        some = np.array([each for each in some.tolist() if at[each] < 12], np.int32)
        if not some.size:
            continue
        streams.push(some, np.stack([frames[each][at[each]] for each in some.tolist()]))
        for each in some.tolist():
            at[each] += 1
        half = rng.permutation(some).tolist()
        for each in half[::2]:
            got[each] += pull(streams, each)
        for each, y in zip(half[1::2], streams.pull(half[1::2]).get("y", ()), strict=True):
            got[each].append(y)
    for stream, each in frames.items():
        assert len(got[stream]) == at[stream] > 3
        check_alone(got[stream], each[: at[stream]])


def test_an_id_that_comes_twice_has_two_frames_in_this_order() -> None:
    streams = step_streams(2)
    one, other = streams.open(), streams.open()
    frames = frames_of(0, 4)
    streams.push([one, other, one, one], np.stack([frames[k] for k in (0, 3, 1, 2)]))
    y = streams.pull([one, one, other])["y"]
    want = alone(frames[:3])
    assert_allclose(y, [*want[:2], *alone(frames[3:])], atol=1e-6)
    assert_allclose(streams.pull(one)[0]["y"], want[2], atol=1e-6)


def test_what_all_frames_of_a_call_have_alike_needs_no_axis() -> None:
    streams = Session(rated_model()).streams(3, {"s": "sN"})
    opened = [streams.open() for _ in range(3)]
    x = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    streams.push(opened, {"x": x, "rate": 16000})
    assert streams.pull(opened)["y"].reshape(-1).tolist() == [2, 10, 18]
    streams.push(opened, {"x": x, "rate": np.array([16000, 8000, 8000])})
    assert streams.pull(opened)["y"].reshape(-1).tolist() == [4, 15, 27]


@pytest.mark.parametrize(
    "ids, frames, error",
    [
        ([0, 1, 7], np.zeros((3, 1, WIDTH)), ShapeError),  # not open
        ([0, 1], np.zeros((3, 1, WIDTH)), ShapeError),
        ([0, 1], np.zeros((2, 1, WIDTH + 1)), ShapeError),
        ([0, 1], {"q": np.zeros((2, 1, WIDTH))}, ShapeError),
        ([0, 1, 1, 1], np.zeros((4, 1, WIDTH)), BudgetError),  # its queue is 2
        ([[0, 1]], np.zeros((2, 1, WIDTH)), ShapeError),
        ([0.0, 1.0], np.zeros((2, 1, WIDTH)), ShapeError),
        (np.array([True, False]), np.zeros((2, 1, WIDTH)), ShapeError),
        ("01", np.zeros((2, 1, WIDTH)), ShapeError),
        (None, np.zeros((2, 1, WIDTH)), ShapeError),
    ],
)
def test_a_call_that_is_refused_takes_no_frame(ids: Any, frames: Any, error: Any) -> None:
    streams = step_streams(2, queue=2)
    opened = [streams.open(), streams.open()]
    with pytest.raises(error):
        streams.push(ids, frames)
    assert streams.tick() == 0
    assert streams.pull([]) == {}
    streams.push(opened, np.stack(frames_of(0, 2)))
    for wrong in ([0, 0], [0, 5], [[0]]):
        with pytest.raises(ShapeError):
            streams.pull(wrong)
    want = [alone([each])[0] for each in frames_of(0, 2)]
    assert_allclose(streams.pull(opened)["y"], want, atol=1e-6)


def test_refused_frames_of_a_call_are_named_and_no_other_is_lost() -> None:
    streams = Session(step_model(WORDS)).streams(5, STATES)
    opened = [streams.open() for _ in range(5)]
    words = np.array([[1], [WORDS], [3], [-WORDS - 1], [5]])
    streams.push(opened, words)
    with pytest.raises(FrameError) as caught:
        streams.pull(opened)
    assert {*caught.value.errors} == {opened[1], opened[3]}
    assert all(isinstance(each, ShapeError) for each in caught.value.errors.values())
    assert {*pickle.loads(pickle.dumps(caught.value)).errors} == {opened[1], opened[3]}
    right = [each for each in opened if each not in caught.value.errors]
    got = streams.pull(right)["y"]
    for y, word in zip(got, (1, 3, 5), strict=True):
        check_alone([y], [np.array([word])], step_model(WORDS))
    assert [streams.pull(each) for each in opened] == [[]] * 5
    streams.push(opened[1], np.array([2]))  # its state is as before the refused frame
    check_alone(pull(streams, opened[1]), [np.array([2])], step_model(WORDS))


def test_results_of_other_shapes_are_pulled_in_calls_of_their_own() -> None:
    nodes = [new_node("t = ReduceSum x"), new_node("sN = Add s t"), new_node("y = Neg x")]
    step = small(nodes, {"x": (None, 3), "s": (1, 1)}, "y sN")
    streams = Session(step).streams(2, {"s": "sN"})
    one, other = streams.open(), streams.open()
    for stream, rows in ((one, 2), (other, 1)):
        streams.push(stream, np.ones((rows, 3), np.float32))
    with pytest.raises(ShapeError):
        streams.pull([one, other])
    assert streams.pull([one])["y"].shape == (1, 2, 3)
    assert streams.pull([other])["y"].shape == (1, 1, 3)


def test_threads_push_and_pull_at_once() -> None:
    """One thread pushes to all, two others pull what is theirs, one opens and closes streams."""
    count = 24
    streams = step_streams(count + 4)
    opened = [streams.open() for _ in range(count)]
    frames = [frames_of(stream, count) for stream in opened]
    done = threading.Event()
    got: dict[int, list[np.ndarray]] = {stream: [] for stream in opened}

    def push_all() -> None:
        for at in range(count):
            streams.push(opened, np.stack([each[at] for each in frames]))

    def pull_some(some: list[int]) -> None:
        while any(len(got[stream]) < count for stream in some):
            for stream in some:
                got[stream] += pull(streams, stream)

    def churn() -> None:
        while not done.is_set():
            stream = streams.open()
            streams.push([stream], np.stack(frames_of(0, 1)))
            check_alone(streams.pull([stream])["y"], frames_of(0, 1))
            streams.close(stream)

    with ThreadPoolExecutor(4) as pool:
        churning = pool.submit(churn)
        work = [pool.submit(push_all), pool.submit(pull_some, opened[::2])]
        work.append(pool.submit(pull_some, opened[1::2]))
        try:
            for each in work:
                each.result(60)
        finally:
            done.set()
        churning.result(60)
    for stream, each in zip(opened, frames, strict=True):
        check_alone(got[stream], each)


def test_interrupted_calls_of_many_ids_leave_all_frames() -> None:
    """Control-C arrives at every line of a push, an open and a pull in turn; the caller goes on."""
    frames, streams = np.stack(frames_of(0, 3)), step_streams(4)
    want = np.stack([alone([each])[0] for each in frames])

    def counts(name: str) -> bool:
        return name not in ("push", "pull", "open", "__init__")  # Python leaves a with by no line

    at, ended = 0, 0
    while ended < 3:
        ended = 0
        opened = [streams.open() for _ in range(3)]
        result = interrupt(at, streams.open, counts)
        ended += result is not KeyboardInterrupt
        result = interrupt(at, lambda ids=opened: streams.push(ids, frames), counts)
        ended += result is not KeyboardInterrupt
        if result is KeyboardInterrupt:
            taken = streams.tick()
            assert taken in (0, 3)  # all, or none
            if not taken:
                streams.push(opened, frames)
        result = interrupt(at, lambda ids=opened: streams.pull(ids), counts)
        ended += result is not KeyboardInterrupt
        if result is KeyboardInterrupt:  # after the results were taken, or before
            rest = [pull(streams, each) for each in opened]
            assert [*map(len, rest)] in ([0] * 3, [1] * 3)
            result = {"y": [each[0] for each in rest] if rest[0] else want}
        assert_allclose(result["y"], want, atol=1e-6)  # type: ignore[index]
        for each in [*streams._rows]:
            streams.close(each)
        at += 1
    assert at > 40


# --- states as bytes


def test_a_saved_state_goes_on_in_other_streams() -> None:
    streams = step_streams(3)
    one, other = streams.open(), streams.open()
    for at in range(3):
        streams.push([one, other], np.stack([frames_of(0, 5)[at], frames_of(1, 5)[at]]))
    saved, every = streams.save(one), streams.save()  # runs what waits
    assert len(streams.pull(one)) == len(streams.pull(other)) == 3
    later = Session(MODEL, threads=1).streams(4, STATES)
    alone_again = later.open(state=saved)
    again = later.restore(every)
    assert {*again} == {one, other} and len(later) == 3
    wanted = {seed: alone(frames_of(seed, 5))[3:] for seed in (0, 1)}
    for stream, seed in ((alone_again, 0), (again[one], 0), (again[other], 1)):
        for at in (3, 4):
            later.push(stream, frames_of(seed, 5)[at])
        assert_allclose(pull(later, stream), wanted[seed], atol=1e-6)


def test_states_whose_sizes_change_are_saved_with_their_sizes() -> None:
    nodes = [new_node("sN = Concat s x", axis=0), new_node("y = ReduceSum sN")]
    model = small(nodes, {"x": (1, 2), "s": (None, None)}, "y sN")
    first = {"s": np.zeros((0, 2), np.float32)}
    streams = Session(model).streams(2, {"s": "sN"}, first=first)
    opened = streams.open(), streams.open()
    for count, stream in enumerate(opened, 2):
        for _ in range(count):
            streams.push(stream, np.ones((1, 2), np.float32))
    again = Session(model).streams(2, {"s": "sN"}, first=first)
    new = again.restore(streams.save())
    for count, stream in enumerate(opened, 2):
        again.push(new[stream], np.ones((1, 2), np.float32))
        assert again.pull(new[stream])[0]["y"].item() == 2 * (count + 1)


def test_bytes_that_are_no_states_of_the_model_open_nothing() -> None:
    streams = step_streams(2)
    stream = streams.open()
    saved = streams.save(stream)
    other = replace(MODEL, constants={**MODEL.constants, "w": uniform(H, 3, seed=9)})
    target = Session(other).streams(2, STATES)
    with pytest.raises(ModelFormatError):
        target.open(state=saved)
    rng = np.random.default_rng(0)
    wrong: list[Any] = [b"", saved[:-1], saved + b"1", rng.bytes(500), saved[:72]]
    for at in range(len(saved)):
        wrong.append(saved[:at] + bytes([saved[at] ^ 4]) + saved[at + 1 :])
    for bad in wrong:
        for opening in (
            lambda bad=bad: streams.open(state=bad),
            lambda bad=bad: streams.restore(bad),
        ):
            with pytest.raises(ModelFormatError):
                opening()
    for bad in ("text", 5, [saved]):
        with pytest.raises(ShapeError):
            streams.restore(bad)  # type: ignore[arg-type]
    streams.open()
    with pytest.raises(ShapeError):
        streams.open(state=streams.save())
    with pytest.raises(BudgetError):
        streams.open(state=saved)
    assert len(streams) == 2


@pytest.mark.parametrize("count", [-1, 0, 2, 2**40, 2**63 - 1])
def test_no_count_in_saved_states_is_believed(count: int) -> None:
    """The checksum is right: whoever changes bytes can compute it."""
    streams = step_streams(2)
    saved = bytearray(streams.save(streams.open()))
    saved[72:80] = np.array([count], "<i8").tobytes()
    saved[40:72] = sha256(saved[72:]).digest()
    with pytest.raises(ModelFormatError):
        streams.restore(bytes(saved))
    assert len(streams) == 1


# --- what frames may be


def test_a_frame_of_a_wrong_length_is_told_the_right_one() -> None:
    """MatMul asks for 4, a window for 3 or more; each is said when the frame is pushed."""
    nodes = [new_node("y = MatMul x w"), new_node("sN = Add s y")]
    model = small(nodes, {"x": (1, None), "s": (1, 2)}, "y sN", w=uniform(4, 2, seed=0))
    streams = Session(model).streams(1, {"s": "sN"})
    with pytest.raises(ShapeError, match=r"float32\(1, 4\): got float32 \(1, 5\)"):
        streams.push(streams.open(), np.zeros((1, 5), np.float32))


def test_an_operator_that_mixes_streams_is_named_before_the_first_frame() -> None:
    """Whatever the open size is, Trilu is not computed for many rows."""
    nodes = [new_node("y = Trilu x"), new_node("t = ReduceSum y"), new_node("sN = Add s t")]
    nodes.append(new_node("m = Identity k"))
    model = small(nodes, {"x": (None, None), "s": (1, 1), "k": ("int64",)}, "y sN m")
    with pytest.raises(UnsupportedError) as caught:
        Session(model).streams(1, {"s": "sN"})
    assert "(Trilu)" in caught.value.refusal.where


@pytest.mark.parametrize(
    "known",
    [
        *(
            {"x": each}
            for each in (np.zeros((1, 3), np.float32), (1, 3), Value("", "float32", (1, 3)))
        ),
        *("x=float32(1, 3)", ["x=float32(1, 3)"], {"x": "float32(1, 3)"}, ["x=float32(N, 3)"]),
    ],
)
def test_inputs_are_declared_by_arrays_shapes_and_values_or_as_on_the_command_line(
    known: Any,
) -> None:
    streams = Session(rated_model()).streams(1, {"s": "sN"}, given={"rate": 16000}, inputs=known)
    stream = streams.open()
    streams.push(stream, np.ones((1, 3), np.float32))
    assert streams.pull(stream)[0]["y"].item() == 6
    with pytest.raises(ShapeError):
        streams.push(stream, np.ones((1, 4), np.float32))


@pytest.mark.parametrize("wrong", ["x", ["x=float32"], [3], {"x": "float33(1, 3)"}, 5])
def test_texts_that_declare_no_input_are_refused(wrong: Any) -> None:
    with pytest.raises(ShapeError):
        Session(rated_model()).streams(1, {"s": "sN"}, inputs=wrong)
