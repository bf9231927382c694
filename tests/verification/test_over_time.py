"""A model of one frame over sequences gives what frame after frame gives, or is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from support.command_line import failed
from support.command_line import onernn as command
from support.graphs import new_node, new_nodes, rnn_node

import onernn
from onernn import Cell, Graph, RnnSpec, Session, UnsupportedError, over_time
from onernn.engine.chunks import expose
from onernn.ir.graph import Node, Value
from onernn.verification.conversion import UndecidedError

WIDTH, H, N = 3, 4, 2
INTS = {"axes": np.array([0]), "first": np.array([0]), "2nd": np.array([1])}


def layer(text: str, cell: Cell, width: int = WIDTH, **more: Any) -> Node:
    """``y h = Rnn x h0``, with random weights."""
    spec = RnnSpec(cell, width, H, **more)
    seed = len(text.partition("Rnn ")[2].split()[0])
    return rnn_node(text, spec, seed)


def model(
    nodes: Sequence[Node],
    state: tuple[int | None, ...],
    x: tuple[int | None, ...] = (None, WIDTH),
    constants: dict[str, np.ndarray] = INTS,
) -> Graph:
    inputs = (Value("x", "float32", x), Value("s", "float32", state))
    outputs = (Value("y", "float32"), Value("sN", "float32"))
    return Graph("step", inputs, outputs, tuple(nodes), constants).prune()


def packed(read: str = "hc", written: str = "hc", reads: str = "") -> Graph:
    """An LSTM whose states are one value (2, N, H); a frame's result is its last h."""
    h, c = (f"{name}0" for name in read)
    one, other = (f"{name}1" for name in written)
    nodes = [
        *new_nodes(f"""
        {h} = Gather s first axis=0
        {c} = Gather s 2nd axis=0
        h00 = Unsqueeze h0 axes
        c00 = Unsqueeze c0 axes
        steps = Unsqueeze x axes
    """),
        layer(" h11 c11 = Rnn steps h00 c00", Cell.LSTM),
        *new_nodes(f"""
        h1 = Squeeze h11 axes
        c1 = Squeeze c11 axes
        sN = Concat {one} {other} axis=0
        row = Squeeze h1 axes
        seen = Squeeze {reads or "h1"} axes
        positive = Relu row
        y = Add positive {"seen" if reads else "row"}
    """),
    ]
    return model(nodes, (2, None, H))


def two_layers(crossed: bool = False) -> Graph:
    """Two GRUs whose states are the last axis of one value (1, N, H, 2)."""
    zero, one = ("2nd", "first") if crossed else ("first", "2nd")
    nodes = [
        *new_nodes("""
        a = Gather s first axis=3
        b = Gather s 2nd axis=3
        a0 = Transpose a perm=(0,3,1,2)
        b0 = Transpose b perm=(0,3,1,2)
        steps = Unsqueeze x axes
    """),
        layer("ya a1 = Rnn steps a0", Cell.GRU),
        new_node("between = Tanh ya"),
        layer("yb b1 = Rnn between b0", Cell.LBR_GRU, H),
        *new_nodes(f"""
        ab = Concat a1 b1 axis=1
        first_state = Gather ab {zero} axis=1
        second_state = Gather ab {one} axis=1
        f = Transpose first_state perm=(0,2,3,1)
        g = Transpose second_state perm=(0,2,3,1)
        sN = Concat f g axis=3
        y = Squeeze yb axes
    """),
    ]
    return model(nodes, (1, None, H, 2))


def chunks() -> Graph:
    """Three steps a frame, a stack of two layers, and a layer that sees one frame only."""
    nodes = [
        layer("z = Rnn x", Cell.GRU, direction="bidirectional_sum"),
        layer("y sN = Rnn z s", Cell.GRU, H, layers=2),
    ]
    return model(nodes, (2, 1, None, H), (3, None, WIDTH))


def read_by_the_frame() -> Graph:
    """The result of a frame reads the next state by its own name."""
    nodes = [
        *new_nodes("""
        steps = Unsqueeze x axes
        h = Unsqueeze s axes
    """),
        layer("ys last = Rnn steps h", Cell.GRU),
        *new_nodes("""
        sN = Squeeze last axes
        y = Add ys sN
    """),
    ]
    return model(nodes, (1, None, H))


def with_outputs(*names: str) -> Graph:
    """``read_by_the_frame`` with these outputs; z has the numbers of the next state."""
    step = read_by_the_frame()
    again = new_node("z = Identity sN")
    outputs = tuple(Value(name, "float32") for name in names)
    return replace(step, nodes=(*step.nodes, again), outputs=outputs).prune()


@pytest.mark.parametrize("after", ["sN", "z"])
@pytest.mark.parametrize("outputs", [("sN",), ("z",), ("sN", "z"), ("z", "sN")])
def test_a_state_may_be_the_only_output_or_be_there_twice(
    outputs: tuple[str, ...], after: str, tmp_path: Path
) -> None:
    step = with_outputs(*outputs)
    if after not in outputs:
        with pytest.raises(UnsupportedError, match="no such output"):
            over_time(step, {"s": after})
        return
    rng = np.random.default_rng(3)
    x, s = (rng.uniform(-1, 1, shape).astype("f4") for shape in ((5, N, WIDTH), (1, N, H)))
    _, last = frame_by_frame(read_by_the_frame(), x, s)
    session, found = Session(step, passes=(), backend="reference"), list[np.ndarray]()
    for frame in x:
        found.append(session.run({"x": frame, "s": found[-1] if found else s})[after])
    onernn.convert(over_time(step, {"s": after}), tmp_path / "m.onnx")
    made = Session(tmp_path / "m.onnx").run({"x": x, "s": s})
    assert set(made) == set(outputs)
    for name, value in made.items():
        want = last if name == after else np.stack(found)
        assert_allclose(value, want, atol=1e-6, rtol=1e-5)


def frame_by_frame(step: Graph, x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    session, found = Session(step, backend="reference", passes=()), []
    for frame in x:
        made = session.run({"x": frame, "s": s})
        s = made["sN"]
        found.append(made["y"])
    return np.stack(found), s


def check_run(run: Any, step: Graph, x: np.ndarray, s: np.ndarray) -> None:
    """What ``run`` gives for all frames at once, beside frame after frame."""
    y, last = frame_by_frame(step, x, s)
    made = run({"x": x, "s": s})
    assert_allclose(made["y"], y, atol=1e-6, rtol=1e-5)
    assert_allclose(made["sN"], last, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "made", [packed, lambda: packed("ch", "ch"), two_layers, chunks, read_by_the_frame]
)
@pytest.mark.parametrize("frames", [1, 6])
def test_all_frames_at_once_give_what_frame_after_frame_gives(made: Any, frames: int) -> None:
    step = made()
    whole = over_time(step, {"s": "sN"})
    rng = np.random.default_rng(frames)
    sizes = [[N if size is None else size for size in value.shape] for value in step.inputs]
    x = rng.uniform(-2, 2, (frames, *sizes[0])).astype("f4")
    s = rng.uniform(-1, 1, sizes[1]).astype("f4")
    check_run(Session(whole).run, step, x, s)
    steps = {node.op for node in whole.nodes}
    assert "Rnn" in steps and not steps & {"Loop", "Scan"}


WINDOW = {
    "k": np.random.default_rng(0).uniform(-1, 1, (4, WIDTH, 3)).astype("f4"),
    "k3": np.random.default_rng(1).uniform(-1, 1, (WIDTH, WIDTH, 3)).astype("f4"),
    "0": np.array([0]),
    "1": np.array([1]),
    "-2": np.array([-2]),
    "far": np.array([2**62]),
    "time": np.array([2]),
    "part": np.array([0]),
    "square": np.ones((1, 1), np.float32),
}


def buffered(nodes: Sequence[Node], steps: int, state: tuple[int | None, ...]) -> Graph:
    """A frame of ``steps`` steps, (N, C, steps), and a window that moves on."""
    return model(nodes, state, (None, WIDTH, steps), WINDOW)


CUT_BEHIND = new_nodes("""
        j = Concat s x axis=2
        y = Conv j k
        sN = Slice j -2 far time
    """)
CUT_BEFORE = new_nodes("""
        p = Slice s 1 far time
        sN = Concat p x axis=2
        y = Conv sN k
    """)
TWICE = new_nodes("""
        p = Slice s 1 far time
        r = Relu x
        sN = Concat p r axis=-1
        j = Concat s r axis=2
        y = Conv j k
    """)
PACKED = new_nodes("""
        a4 = Gather s 0 axis=0
        b4 = Gather s 1 axis=0
        a = Squeeze a4 part
        b = Squeeze b4 part
        ja = Concat a x axis=2
        ya = Conv ja k3
        aN = Slice ja -2 far time
        jb = Concat b ya axis=2
        y = Conv jb k
        bN = Slice jb -2 far time
        aN4 = Unsqueeze aN part
        bN4 = Unsqueeze bN part
        sN = Concat aN4 bN4 axis=0
    """)


@pytest.mark.parametrize(
    "step, state",
    [
        (buffered(CUT_BEHIND, 1, (None, WIDTH, 2)), (N, WIDTH, 2)),
        (buffered(CUT_BEHIND, 4, (None, WIDTH, 2)), (N, WIDTH, 2)),
        (buffered(CUT_BEFORE, 1, (None, WIDTH, 9)), (N, WIDTH, 9)),
        (buffered(TWICE, 1, (None, WIDTH, 12)), (N, WIDTH, 12)),
        (buffered(PACKED, 1, (2, None, WIDTH, 2)), (2, N, WIDTH, 2)),
    ],
    ids=["cut behind", "longer frames", "cut before", "twice", "packed"],
)
def test_a_window_that_moves_on_is_one_long_value(step: Graph, state: tuple[int, ...]) -> None:
    whole = over_time(step, {"s": "sN"})
    rng = np.random.default_rng(0)
    steps = step.inputs[0].shape[2]
    s = rng.uniform(-1, 1, state).astype("f4")
    for frames in (1, 15):
        x = rng.uniform(-2, 2, (frames, N, WIDTH, steps)).astype("f4")
        check_run(Session(whole).run, step, x, s)
    nothing = Session(whole).run({"x": x[:0], "s": s})
    assert len(nothing["y"]) == 0 and np.array_equal(nothing["sN"], s)


UNLIKE_LAYERS = {
    "what moves on is not what the frame sees": (
        buffered((*TWICE[:3], new_node("j = Concat s x", axis=2), *TWICE[4:]), 1, (None, WIDTH, 3)),
        r"'j' \(Concat\)",
    ),
    "two steps are dropped, and one comes": (
        buffered(
            (*CUT_BEHIND[:2], *new_nodes("t = Slice j -2 far time\nsN = Concat t x axis=2")),
            1,
            (None, WIDTH, 3),
        ),
        r"'j' \(Concat\)",
    ),
    "a sum": (buffered(new_nodes("sN = Add x s\ny = Relu sN"), 1, (None, WIDTH, 1)), "state 's'"),
    "a cell that is not a layer": (
        buffered(
            new_nodes("h = MatMul s square\na = Mul x h\nsN = Sigmoid a\ny = Relu sN"),
            1,
            (None, WIDTH, 1),
        ),
        r"'h' \(MatMul\)",
    ),
    "the frame before": (
        buffered(new_nodes("y = Sub x s\nsN = Tanh x"), 1, (None, WIDTH, 1)),
        r"'y' \(Sub\)",
    ),
    "exchanged when written": (packed("hc", "ch"), "sN: .* 's'"),
    "exchanged when read": (packed("ch", "hc"), "sN: .* 's'"),
    "another layer's": (two_layers(crossed=True), "sN: .* 's'"),
    "read by the frame": (packed(reads="h0"), "state 'seen': expected only recurrent"),
}


@pytest.mark.parametrize("kind", UNLIKE_LAYERS)
def test_states_that_layers_do_not_hand_on_are_scanned(kind: str, tmp_path: Path) -> None:
    step, reason = UNLIKE_LAYERS[kind]
    whole = over_time(step, {"s": "sN"})
    assert re.search(f"a scan runs s frame after frame: .*{reason}", Session(whole).explain())
    onernn.convert(whole, tmp_path / "whole.onnx")
    written, names = onnxruntime.InferenceSession(tmp_path / "whole.onnx"), ["y", "sN"]
    runs = Session(whole).run, lambda feed: dict(zip(names, written.run(names, feed), strict=True))
    rng = np.random.default_rng(0)
    sizes = [[N if size is None else size for size in value.shape] for value in step.inputs]
    for frames in (1, 6):
        x = rng.uniform(-1, 1, (frames, *sizes[0])).astype("f4")
        s = rng.uniform(-1, 1, sizes[1]).astype("f4")
        for run in runs:
            check_run(run, step, x, s)


def test_no_frames_leave_the_state_as_it_is() -> None:
    whole = over_time(packed(), {"s": "sN"})
    s = np.ones((2, N, H), np.float32)
    got = Session(whole).run({"x": np.zeros((0, N, WIDTH), np.float32), "s": s})
    assert got["y"].shape == (0, N, H) and np.array_equal(got["sN"], s)


def random_step(seed: int) -> tuple[Graph, dict[str, str]]:
    """Operators over x and up to three states, each of which may read the others."""
    rng = np.random.default_rng(seed)
    states = {f"s{at}": f"s{at}N" for at in range(rng.integers(1, 4))}
    values, nodes = ["x", *states], list[Node]()
    for at in range(rng.integers(2, 9)):
        op, one, other = (
            str(rng.choice(each)) for each in (["Add", "Mul", "Tanh"], values, values)
        )
        nodes.append(Node(op, (one, other)[: 1 if op == "Tanh" else 2], (f"v{at}",)))
        values.append(f"v{at}")
    for after in states.values():
        nodes.append(Node("Tanh", (str(rng.choice(values)),), (after,)))
        values.append(after)
    nodes.append(Node("Identity", (str(rng.choice(values)),), ("y",)))
    inputs = tuple(Value(name, "float32", (None, WIDTH)) for name in ("x", *states))
    outputs = tuple(Value(name, "float32") for name in ("y", *states.values()))
    return Graph("step", inputs, outputs, tuple(nodes), {}).prune(), states


@pytest.mark.parametrize("seed", range(20))
def test_any_step_over_time_gives_what_frame_after_frame_gives(seed: int) -> None:
    step, states = random_step(seed)
    whole, one = Session(over_time(step, states)), Session(step, backend="reference", passes=())
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (5, N, WIDTH)).astype("f4")
    first = {name: rng.uniform(-1, 1, (N, WIDTH)).astype("f4") for name in states}
    for frames in (0, 5):
        state, made = dict(first), list[np.ndarray]()
        for frame in x[:frames]:
            result = one.run({"x": frame, **state})
            state = {name: result[after] for name, after in states.items()}
            made.append(result["y"])
        got = whole.run({"x": x[:frames], **first})
        want = {after: state[name] for name, after in states.items()} | {"y": np.array(made)}
        for name, value in want.items():
            assert_allclose(got[name].reshape(value.shape), value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("op, bounds", [("Clip", (-0.1, 0.3)), ("Max", (0,)), ("Min", (0.3,))])
def test_a_bound_on_a_state_holds_in_every_frame(op: str, bounds: tuple[float, ...]) -> None:
    step = packed()
    limits = {f"limit{at}": np.float32(bound) for at, bound in enumerate(bounds)}
    nodes = list(step.nodes)
    at = next(at for at, node in enumerate(nodes) if "sN" in node.outputs)
    nodes[at] = replace(nodes[at], inputs=("h1", "bounded"))
    nodes.insert(at, Node(op, ("c1", *limits), ("bounded",)))
    step = replace(step, nodes=tuple(nodes), constants={**step.constants, **limits})
    x = np.random.default_rng(0).uniform(1, 2, (70, N, WIDTH)).astype("f4")
    zeros = np.zeros((2, N, H), np.float32)
    (_, free), (_, held) = frame_by_frame(packed(), x, zeros), frame_by_frame(step, x, zeros)
    assert not np.allclose(free, held, atol=0.1)
    check_run(Session(over_time(step, {"s": "sN"})).run, step, x, zeros)


def test_a_branch_that_stays_open_tells_which_input_decides_it() -> None:
    value = (Value("a"),)
    then = Graph("then", value, (Value("b"),), (new_node("b = Neg a"),), {})
    other = Graph("else", value, (Value("b"),), (new_node("b = Abs a"),), {})
    branches = {"then_branch": then, "else_branch": other, "then_taken": 1}
    step = packed()
    step = replace(
        step,
        inputs=(*step.inputs, Value("rate", "int64", ())),
        nodes=(
            new_node("high = Greater rate limit"),
            new_node("sN = If high s s", **branches),
            *(node for node in step.nodes if "sN" not in node.outputs),
        ),
        constants={**step.constants, "limit": np.array(8000)},
    )
    with pytest.raises(UndecidedError) as caught:
        over_time(step, {"s": "sN"})
    assert caught.value.options[0] == ("--given", "rate=8000")
    over_time(step, {"s": "sN"}, given={"rate": np.array(8000)})


@pytest.mark.parametrize(
    "states, told",
    [
        ({"q": "sN"}, "no such input; there are x, s"),
        ({"s": "q"}, "no such output; there are y, sN"),
        ({"s": "sN", "x": "sN"}, "expected one state per output, got 2"),
        ({}, "expected an input of frames, and a state"),
        ({"x": "y"}, "expected the type of 'x'"),
    ],
)
def test_names_that_are_no_states_are_told(states: dict[str, str], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        over_time(packed(), states)


def test_streams_and_chunks_of_one_frame_are_told_which_inputs_are_states() -> None:
    for use in (lambda: Session(packed()).streams(2), lambda: expose(packed())):
        with pytest.raises(UnsupportedError, match="model: .* streams.*{'s': 'sN'}.*--state s=sN"):
            use()


def test_the_written_file_runs_in_onnx_runtime(tmp_path: Path) -> None:
    step, out = tmp_path / "step.onnx", tmp_path / "whole.onnx"
    onernn.convert(packed(), step)
    done = command("convert", step, out, "--over-time", "s=sN")
    assert done.returncode == 0, done.stderr
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (5, N, WIDTH)).astype("f4")
    s = rng.uniform(-1, 1, (2, N, H)).astype("f4")
    session, names = onnxruntime.InferenceSession(out), ["y", "sN"]
    check_run(lambda feed: dict(zip(names, session.run(names, feed), strict=True)), packed(), x, s)


@pytest.mark.parametrize(
    "options, told",
    [
        (["--over-time", "s"], "expected STATE=NEXT"),
        (["--given", "s=1"], "--given belongs to --over-time"),
        (["--over-time", "s=sN", "--given", "q=1"], "the model takes"),
        (["--over-time", "s=sN", "--given", "s=one"], "--given s=one"),
        (["--over-time", "s=sN", "--input", "q=float32(3)"], "no such input"),
    ],
)
def test_refusals_leave_an_old_file_alone(tmp_path: Path, options: list[str], told: str) -> None:
    step, out = tmp_path / "step.onnx", tmp_path / "whole.onnx"
    onernn.convert(packed(), step)
    out.write_text("old")
    assert told in failed(command("convert", step, out, *options)) and out.read_text() == "old"
