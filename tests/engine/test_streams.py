"""Many streams on one session: each is as it would be alone, whatever others do.

ONERNN_STREAM_SECONDS tells how long streams open and close at random; make streams takes 600.
"""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.branching import DOUBLE, branch, chosen
from support.graphs import new_node
from support.interpreters import resident
from support.layers import random_weights

from onernn import BudgetError, Cell, Graph, RnnSpec, Session, ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.rnn import with_precision
from onernn.ir.weights import UNIT, LayerPrecision, PartScales, Scale

SECONDS = float(os.environ.get("ONERNN_STREAM_SECONDS", "0.5"))
WIDTH, H, WORDS = 6, 8, 11
MANY, QUEUE, FRAMES, RECORDINGS = 1000, 4, 30, 60


def step_model(words: int = 0) -> Graph:
    """One frame of an LSTM; with ``words``, a frame is the number of a row of a table."""
    spec = RnnSpec(Cell.LSTM, WIDTH, H)
    at = {"spec": spec, "weights": random_weights(spec, 0)[0]}
    rng = np.random.default_rng(1)
    constants = {
        "axes": np.array([0, 1]),
        "w": rng.uniform(-1, 1, (H, 3)).astype("f4"),
        "table": rng.uniform(-1, 1, (WORDS, WIDTH)).astype("f4"),
    }
    x = Value("x", "int64", (1,)) if words else Value("x", "float32", (1, WIDTH))
    nodes = [
        new_node("Gather", "table x", "row") if words else new_node("Identity", "x", "row"),
        new_node("Unsqueeze", "row first", "steps"),
        new_node("Rnn", "steps h c", "ys hN cN", **at),
        new_node("Squeeze", "ys first", "out"),
        new_node("MatMul", "out w", "scores"),
        new_node("Softmax", "scores", "y"),
    ]
    constants["first"] = np.array([0])
    states = tuple(Value(name, "float32", (1, 1, 1, H)) for name in "hc")
    outputs = tuple(Value(name, "float32") for name in ("y", "hN", "cN"))
    return Graph("step", (x, *states), outputs, tuple(nodes), constants)


STATES = {"h": "hN", "c": "cN"}


def alone(
    model: Graph, frames: list[np.ndarray], dtype: str = "f32", backend: str = "auto"
) -> list[np.ndarray]:
    session, found = Session(model, dtype, 1, backend), []
    state = {name: np.zeros((1, 1, 1, H), np.float32) for name in STATES}
    for frame in frames:
        made = session.run({"x": frame, **state})
        state = {name: made[after] for name, after in STATES.items()}
        found.append(made["y"])
    return found


def frames_of(stream: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(stream)
    return [rng.uniform(-2, 2, (1, WIDTH)).astype("f4") for _ in range(count)]


@pytest.mark.usefixtures("built")
@pytest.mark.long
def test_a_thousand_streams_that_open_and_close_at_random_are_as_each_alone() -> None:
    """Bit for bit, every number: the kernels' sums have one order. Some frames are NaN, some queues
    are full. Memory stays what it was when all streams were open and all queues full."""
    model, rng = step_model(), np.random.default_rng(0)
    recorded = [frames_of(seed, FRAMES) for seed in range(RECORDINGS)]
    for frames in recorded[::10]:
        frames[FRAMES // 2] *= np.nan
    wanted = [np.stack(alone(model, frames, backend="kernels")) for frames in recorded]
    streams = Session(model, backend="kernels").streams(MANY, STATES, queue=QUEUE)
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
            assert f"stream {stream}: {QUEUE} frames wait already" in str(error)
            assert pushed - pulled >= QUEUE
            full += 1
        else:
            assert pushed - pulled < 2 * QUEUE  # as many results may wait, too
            opened[stream][1] += 1

    def pull(stream: int) -> None:
        number, pushed, pulled = opened[stream]
        if got := streams.pull(stream):
            want = wanted[number][pulled:pushed]
            np.testing.assert_array_equal(np.stack([each["y"] for each in got]), want)
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
    model = step_model()
    streams = Session(model).streams(8, STATES)
    opened = [streams.open() for _ in range(8)]
    for at, stream in enumerate(opened):
        for frame in frames_of(at, 5):
            streams.push(stream, frame * np.nan if at == 3 else frame)
    for at, stream in enumerate(opened):
        got = np.stack([each["y"] for each in streams.pull(stream)])
        if at == 3:
            assert np.isnan(got).all()
        else:
            np.testing.assert_allclose(got, alone(model, frames_of(at, 5)), atol=1e-6)


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
    want = alone(step_model(WORDS), [np.array([word]) for word in (1, 2, 3)])
    (last,) = streams.pull(one)
    np.testing.assert_allclose(last["y"], want[-1], atol=1e-6)


def test_a_stream_begins_with_the_first_state_where_another_has_ended() -> None:
    first = {"h": np.full((1, 1, 1, H), 0.5, np.float32)}
    streams = Session(step_model()).streams(1, STATES, first=first)
    results = []
    for _ in range(2):
        stream = streams.open()
        for frame in frames_of(0, 3):
            streams.push(stream, frame)
        results.append([each["y"] for each in streams.pull(stream)])
        streams.close(stream)
    assert np.array_equal(*results)
    assert not np.allclose(results[0], alone(step_model(), frames_of(0, 3)))


def test_an_old_id_never_names_a_stream_again() -> None:
    """The memory of a stream is used again, its id is not."""
    rng, streams = np.random.default_rng(3), Session(step_model()).streams(3, STATES)
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


def test_what_is_full_or_closed_says_so() -> None:
    streams = Session(step_model()).streams(2, STATES, queue=3)
    stream, _ = streams.open(), streams.open()
    with pytest.raises(BudgetError, match="2 streams are open"):
        streams.open()
    frame = frames_of(0, 1)[0]
    for _ in range(3):
        streams.push(stream, frame)
    with pytest.raises(BudgetError, match="3 frames wait already"):
        streams.push(stream, frame)
    for _ in range(5):
        streams.tick()
    for _ in range(3):  # three results wait to be pulled: its frames wait, others run
        streams.push(stream, frame)
    assert streams.tick() == 0
    assert len(streams.pull(stream)) == 6
    streams.close(stream)
    for act in (streams.close, streams.pull):
        with pytest.raises(ShapeError, match="is not open"):
            act(stream)
    with pytest.raises(ShapeError, match="is not open"):
        streams.push(stream, frame)


def test_frames_that_do_not_fit_are_refused_at_once() -> None:
    streams = Session(step_model()).streams(2, STATES)
    stream = streams.open()
    for wrong in (np.zeros((1, WIDTH + 1), np.float32), {"q": frames_of(0, 1)[0]}, np.zeros(3)):
        with pytest.raises(ShapeError):
            streams.push(stream, wrong)
    assert streams.pull(stream) == []
    with pytest.raises(UnsupportedError, match="no such input"):
        Session(step_model()).streams(2, {"q": "hN"})
    with pytest.raises(UnsupportedError, match="expected 1 or more"):
        Session(step_model()).streams(0, STATES)


def test_what_the_caller_pushed_may_be_used_again() -> None:
    streams = Session(step_model()).streams(1, STATES)
    stream, frame = streams.open(), frames_of(0, 1)[0]
    streams.push(stream, frame)
    frame[:] = 99
    (got,) = streams.pull(stream)
    np.testing.assert_allclose(got["y"], alone(step_model(), frames_of(0, 1))[0], atol=1e-6)


def test_states_take_little_more_than_their_numbers() -> None:
    session = Session(step_model())
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
    model = step_model()
    streams = Session(model).streams(16, STATES)

    def client(at: int) -> list[np.ndarray]:
        stream, found = streams.open(), []
        for frame in frames_of(at, 40):
            streams.push(stream, frame)
            found += [each["y"] for each in streams.pull(stream)]
        streams.close(stream)
        return found

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(client, range(48)))
    for at, found in enumerate(results):
        np.testing.assert_allclose(found, alone(model, frames_of(at, 40)), atol=1e-6)


def test_an_interrupted_tick_loses_no_frame_and_runs_none_twice() -> None:
    """Control-C arrives at every line of a tick in turn; the caller goes on."""
    model, frames = step_model(), frames_of(0, 3)
    streams = Session(model).streams(2, STATES)
    at = 0
    while True:
        stream, left = streams.open(), at

        def interrupting(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith("streams.py"):
                return None
            if event == "line" and frame.f_code.co_name in ("_tick", "_run", "_put"):
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return interrupting

        for each in frames:
            streams.push(stream, each)
        sys.settrace(interrupting)
        try:
            streams.pull(stream)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        got = streams.pull(stream)
        if left >= 0:
            break
        np.testing.assert_allclose([each["y"] for each in got], alone(model, frames), atol=1e-6)
        streams.close(stream)
        at += 1
    assert at > 20


def summing(x: tuple[int | None, int], state: tuple[int | None, int]) -> Graph:
    inputs = (Value("x", "float32", x), Value("s", "float32", state))
    nodes = (new_node("Add", "x s", "sN"), new_node("Relu", "sN", "y"))
    return Graph("sum", inputs, (Value("y"), Value("sN")), nodes, {})


def test_a_frame_whose_state_does_not_fit_is_told_to_its_stream_only() -> None:
    streams = Session(summing((None, 3), (None, 3))).streams(2, {"s": "sN"})
    one, other = streams.open(), streams.open()
    streams.push(one, np.ones((2, 3), np.float32))
    streams.push(other, np.ones((1, 3), np.float32))
    (got,) = streams.pull(other)
    assert np.array_equal(got["y"], np.ones((1, 3)))
    with pytest.raises(ShapeError, match=r"state 's': expected float32 \(1, 3\), the frame made"):
        streams.pull(one)


def test_a_state_of_fewer_rows_or_another_dtype_is_no_next_state() -> None:
    """An assignment would repeat the rows, or round the numbers."""
    step = summing((1, 3), (2, 3))
    narrow = replace(
        step,
        nodes=(
            new_node("ReduceSum", "s axes", "t"),
            new_node("Add", "x t", "sN"),
            step.nodes[1],
        ),
        constants={"axes": np.array([0])},
    )
    step = summing((1, 3), (1, 3))
    whole = replace(
        step,
        inputs=(step.inputs[0], Value("s", "int64", (1, 3))),
        nodes=(
            new_node("CastLike", "s x", "t"),
            new_node("Add", "x t", "sN"),
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
    model = step_model()
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
            each += [made["y"] for made in streams.pull(stream)]
    one = "auto" if parts else "kernels"
    for stream, each in frames.items():
        np.testing.assert_array_equal(got[stream], alone(model, each, dtype, one))
    assert not np.array_equal(got[0], alone(step_model(), frames[0]))  # it is in bytes


@pytest.mark.usefixtures("built")
def test_streams_that_would_share_a_scale_are_refused() -> None:
    session = Session(step_model(), "u8", backend="onednn")
    if session.explained[0].dtype == "f32":
        pytest.skip(session.explained[0].why)
    with pytest.raises(UnsupportedError, match="takes the scale of u8 from a whole batch"):
        session.streams(2, STATES)


def test_capacities_beyond_memory_and_unknown_first_states_are_told() -> None:
    session = Session(step_model())
    with pytest.raises(BudgetError, match="no memory for the states of 1000000000000000 streams"):
        session.streams(10**15, STATES)
    with pytest.raises(ShapeError, match="first: 'hidden' is no state; there are h, c"):
        session.streams(1, STATES, first={"hidden": np.ones((1, 1, 1, H), np.float32)})


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
        new_node("ReduceSum", "x", "total", keepdims=1),
        new_node("Equal", "rate high", "fast"),
        chosen("fast", DOUBLE, branch(new_node("Identity", "a", "y")), "total|total", "part"),
        new_node("Add", "s part", "sN"),
        new_node("Identity", "sN", "y"),
    )
    inputs = (Value("x", "float32"), Value("s", "float32", (1, 1)), Value("rate", "int64", ()))
    constants = {"high": np.array(16000)}
    return Graph("rated", inputs, (Value("y"), Value("sN")), nodes, constants)


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


@pytest.mark.parametrize(
    "known", [np.zeros((1, 3), np.float32), (1, 3), Value("", "float32", (1, 3))]
)
def test_what_is_known_of_an_input_is_an_array_a_shape_or_a_value(known: object) -> None:
    streams = Session(rated_model()).streams(
        1, {"s": "sN"}, given={"rate": 16000}, inputs={"x": known}
    )
    stream = streams.open()
    streams.push(stream, np.ones((1, 3), np.float32))
    assert streams.pull(stream)[0]["y"].item() == 6


def test_an_input_that_is_declared_otherwise_is_refused() -> None:
    session = Session(step_model())
    for known, reason in (((1, 7), "got the shape"), ("three", "expected an array, a dtype")):
        with pytest.raises(ShapeError, match=f"input x: float32.*{reason}"):
            session.streams(1, STATES, inputs={"x": known})
