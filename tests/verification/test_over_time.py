"""A model of one frame over sequences gives what frame after frame gives, or is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.command_line import failed
from support.command_line import onernn as command
from support.graphs import new_node, new_nodes
from support.layers import random_weights

import onernn
from onernn import Cell, Graph, RnnSpec, Session, UnsupportedError, over_time
from onernn.ir.graph import Node, Value

WIDTH, H, N = 3, 4, 2
INTS = {"axes": np.array([0]), "first": np.array([0]), "2nd": np.array([1])}


def layer(
    cell: Cell, x: str, states: list[str], outputs: list[str], width: int = WIDTH, **more: Any
) -> Node:
    spec = RnnSpec(cell, width, H, **more)
    weights = random_weights(spec, len(x))
    at = {"spec": spec, "weights": weights[0] if spec.layers == 1 else tuple(weights)}
    return Node("Rnn", (x, *states), tuple(outputs), at)


def model(
    nodes: list[Node], outputs: list[str], state: tuple[int | None, ...], x: Any = (None, WIDTH)
):
    inputs = (Value("x", "float32", x), Value("s", "float32", state))
    values = tuple(Value(name, "float32") for name in outputs)
    return Graph("step", inputs, values, tuple(nodes), INTS)


def packed(read: str = "hc", written: str = "hc", reads: str = "") -> Graph:
    """An LSTM whose states are one value (2, N, H); a frame's result is its last h."""
    h, c = (f"{name}0" for name in read)
    one, other = (f"{name}1" for name in written)
    nodes = [
        Node("Gather", ("s", "first"), (h,), {"axis": 0}),
        Node("Gather", ("s", "2nd"), (c,), {"axis": 0}),
        *new_nodes("""
        h00 = Unsqueeze h0 axes
        c00 = Unsqueeze c0 axes
        steps = Unsqueeze x axes
    """),
        layer(Cell.LSTM, "steps", ["h00", "c00"], ["", "h11", "c11"]),
        *new_nodes("""
        h1 = Squeeze h11 axes
        c1 = Squeeze c11 axes
    """),
        Node("Concat", (one, other), ("sN",), {"axis": 0}),
        new_node("row = Squeeze h1 axes"),
        *([Node("Squeeze", (reads, "axes"), ("seen",))] if reads else []),
        new_node("positive = Relu row"),
        Node("Add", ("positive", "seen" if reads else "row"), ("y",)),
    ]
    return model(nodes, ["y", "sN"], (2, None, H))


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
        layer(Cell.GRU, "steps", ["a0"], ["ya", "a1"]),
        new_node("between = Tanh ya"),
        layer(Cell.LBR_GRU, "between", ["b0"], ["yb", "b1"], width=H),
        new_node("ab = Concat a1 b1", axis=1),
        Node("Gather", ("ab", zero), ("first_state",), {"axis": 1}),
        Node("Gather", ("ab", one), ("second_state",), {"axis": 1}),
        *new_nodes("""
        f = Transpose first_state perm=(0,2,3,1)
        g = Transpose second_state perm=(0,2,3,1)
        sN = Concat f g axis=3
        y = Squeeze yb axes
    """),
    ]
    return model(nodes, ["y", "sN"], (1, None, H, 2))


def chunks() -> Graph:
    """Three steps a frame, a stack of two layers, and a layer that sees one frame only."""
    nodes = [
        layer(Cell.GRU, "x", [], ["z"], direction="bidirectional_sum"),
        layer(Cell.GRU, "z", ["s"], ["y", "sN"], width=H, layers=2),
    ]
    return model(nodes, ["y", "sN"], (2, 1, None, H), (3, None, WIDTH))


def read_by_the_frame() -> Graph:
    """The result of a frame reads the next state by its own name."""
    nodes = [
        *new_nodes("""
        steps = Unsqueeze x axes
        h = Unsqueeze s axes
    """),
        layer(Cell.GRU, "steps", ["h"], ["ys", "last"]),
        *new_nodes("""
        sN = Squeeze last axes
        y = Add ys sN
    """),
    ]
    return model(nodes, ["y", "sN"], (1, None, H))


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
    np.testing.assert_allclose(made["y"], y, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(made["sN"], last, atol=1e-6, rtol=1e-5)


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


def buffered(nodes: list[Node], steps: int, state: tuple[int | None, ...]) -> Graph:
    """A frame of ``steps`` steps, (N, C, steps), and a window that moves on."""
    inputs = (Value("x", "float32", (None, WIDTH, steps)), Value("s", "float32", state))
    outputs = (Value("y", "float32"), Value("sN", "float32"))
    return Graph("step", inputs, outputs, tuple(nodes), WINDOW)


CUT_BEHIND = [
    *new_nodes("""
        j = Concat s x axis=2
        y = Conv j k
        sN = Slice j -2 far time
    """)
]
CUT_BEFORE = [
    *new_nodes("""
        p = Slice s 1 far time
        sN = Concat p x axis=2
        y = Conv sN k
    """)
]
TWICE = [
    *new_nodes("""
        p = Slice s 1 far time
        r = Relu x
        sN = Concat p r axis=-1
        j = Concat s r axis=2
        y = Conv j k
    """)
]
PACKED = [
    *new_nodes("""
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
]


@pytest.mark.parametrize(
    ("step", "state"),
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


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (  # what moves on is not what the frame sees
            [*TWICE[:3], new_node("j = Concat s x", axis=2), *TWICE[4:]],
            r"'j' \(Concat\): state 's' is read, and does not move on",
        ),
        (  # two steps are dropped, and one comes
            [
                *CUT_BEHIND[:2],
                *new_nodes("""
        t = Slice j -2 far time
        sN = Concat t x axis=2
    """),
            ],
            r"'j' \(Concat\): state 's' is read, and does not move on",
        ),
        (
            [
                *new_nodes("""
        sN = Add x s
        y = Relu sN
    """)
            ],
            r"'sN/frame' \(Add\): state 's' is read",
        ),
        (  # a cell that is no layer
            [
                *new_nodes("""
        h = MatMul s square
        a = Add x h
        sN = Tanh a
        y = Relu sN
    """)
            ],
            r"'h' \(MatMul\): state 's' is read",
        ),
    ],
)
def test_windows_that_do_not_move_on_are_refused(nodes: list[Node], told: str) -> None:
    size = 1 if nodes[0].op in ("Add", "MatMul") else 3
    step = buffered(nodes, 1, (None, WIDTH, size))
    with pytest.raises(UnsupportedError, match=told):
        over_time(step.pruned(), {"s": "sN"})


def test_no_frames_leave_the_state_as_it_is() -> None:
    whole = over_time(packed(), {"s": "sN"})
    s = np.ones((2, N, H), np.float32)
    got = Session(whole).run({"x": np.zeros((0, N, WIDTH), np.float32), "s": s})
    assert got["y"].shape == (0, N, H) and np.array_equal(got["sN"], s)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (packed("hc", "ch"), "it is not what a layer makes of 's'"),
        (packed("ch", "hc"), "it is not what a layer makes of 's'"),
        (two_layers(crossed=True), "it is not what a layer makes of 's'"),
        (packed(reads="h0"), "state 'seen' is read"),
    ],
)
def test_states_that_do_not_go_back_to_their_layers_are_refused(step: Graph, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        over_time(step, {"s": "sN"})


@pytest.mark.parametrize(("op", "bounds"), [("Clip", (-40, 40)), ("Max", (-5,)), ("Min", (30,))])
def test_a_bound_on_a_state_is_refused_though_no_made_number_reaches_it(
    op: str, bounds: tuple[int, ...]
) -> None:
    """A cell state grows from frame to frame: what seven frames do not reach, seventy may."""
    step = packed()
    limits = {f"limit{at}": np.float32(bound) for at, bound in enumerate(bounds)}
    nodes = list(step.nodes)
    at = next(at for at, node in enumerate(nodes) if "sN" in node.outputs)
    nodes[at] = replace(nodes[at], inputs=("h1", "bounded"))
    nodes.insert(at, Node(op, ("c1", *limits), ("bounded",)))
    step = replace(step, nodes=tuple(nodes), constants={**step.constants, **limits})
    with pytest.raises(UnsupportedError, match="it is not what a layer makes of 's'"):
        over_time(step, {"s": "sN"})


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
    told = "state 's' is read in a branch that stays open; say --given rate=NUMBER, such as 8000"
    with pytest.raises(UnsupportedError, match=told):
        over_time(step, {"s": "sN"})


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ({"q": "sN"}, "no such input; there are x, s"),
        ({"s": "q"}, "no such output; there are y, sN"),
        ({"s": "sN", "x": "sN"}, "one output of two states"),
        ({}, "expected an input of frames, and a state"),
        ({"x": "y"}, "is read"),
    ],
)
def test_names_that_are_no_states_are_told(states: dict[str, str], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        over_time(packed(), states)


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
    ("options", "told"),
    [
        (["--over-time", "s"], "expected STATE=NEXT"),
        (["--given", "s=1"], "belong to --over-time"),
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
