"""Generated C++ of models that look back goes word by word: what a convolution saw is a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.arrays import uniform
from support.causal import TO_ROWS, conv, from_rows
from support.emitting import assert_computes, build
from support.graphs import new_node, rnn_node, small

from onernn import Cell, Graph, RnnSpec, Session
from onernn.engine.emit.pipeline import infer_shapes, initialize, parse
from onernn.ir.graph import Node, Value

WIDTH, H, T, N = 4, 5, 9, 3
SPEC = RnnSpec(Cell.LSTM, WIDTH, H)
RNG = np.random.default_rng(0)
CONSTANTS = {
    "k": RNG.uniform(-0.5, 0.5, (WIDTH, WIDTH, 3)).astype("f4"),
    "k1": RNG.uniform(-0.5, 0.5, (WIDTH, WIDTH, 1)).astype("f4"),
    "plane": RNG.uniform(-0.5, 0.5, (2, 1, 3, 3)).astype("f4"),
    "back": RNG.uniform(-0.5, 0.5, (1, 2, 2, 1)).astype("f4"),
    "low": np.float32(-9),
    "one": np.array([1]),
    "0": np.array([0]),
    "1": np.array([1]),
    "2": np.array([2]),
    "-1": np.array([-1]),
    "-2": np.array([-2]),
    "-4": np.array([-4]),
    "far": np.array([2**63 - 1]),
    "front2": np.array([0, 0, 2, 0, 0, 0]),
    "front4": np.array([0, 0, 4, 0, 0, 0]),
    "around1": np.array([0, 0, 1, 0, 0, 1]),
    "words2": np.array([2, 0, 0, 0, 0, 0]),
}


def rnn(x: str) -> Node:
    return rnn_node(f"y = Rnn {x}", SPEC)


CASES: dict[str, list[Node]] = {
    "causal": [TO_ROWS, conv("rows", "c", (2, 0)), from_rows("c"), rnn("p")],
    "dilated behind a Pad, beside a skip connection": [
        TO_ROWS,
        new_node("padded = Pad rows front4"),
        conv("padded", "c", dilations=(2,)),
        new_node("sum = Add c rows"),
        conv("sum", "d", (2, 0)),
        from_rows("d"),
        rnn("p"),
    ],
    "cut behind": [
        TO_ROWS,
        conv("rows", "c", (2, 2)),
        new_node("r = Relu c"),
        conv("r", "d", (2, 2)),
        new_node("cut = Slice d 0 -4 2"),
        from_rows("cut"),
        rnn("p"),
    ],
    "padded before it is turned, by another number": [
        new_node("padded = Pad x words2 low"),
        new_node("t = Transpose padded", perm=(1, 2, 0)),
        new_node("tanh = Tanh t"),
        conv("tanh", "c"),
        from_rows("c"),
        rnn("p"),
    ],
    "of one word": [TO_ROWS, conv("rows", "c", kernel="k1"), from_rows("c"), rnn("p")],
    "a word late": [
        TO_ROWS,
        new_node("padded = Pad rows around1"),
        new_node("late = Slice padded 0 -2 2"),
        new_node("sum = Add late rows"),
        from_rows("sum"),
        rnn("p"),
    ],
    "looked ahead, and late": [
        TO_ROWS,
        new_node("padded = Pad rows front4"),
        conv("padded", "c"),
        new_node("late = Slice c 0 -2 2"),
        from_rows("late"),
        rnn("p"),
    ],
    "cut before": [
        TO_ROWS,
        new_node("padded = Pad rows front2"),
        new_node("same = Slice padded 2 far 2"),
        from_rows("same"),
        rnn("p"),
    ],
    "pooled": [
        TO_ROWS,
        new_node("padded = Pad rows front2 low"),
        new_node("m = MaxPool padded", kernel_shape=(3,)),
        new_node("zeros = Pad m front2"),
        new_node("a = AveragePool zeros", kernel_shape=(3,)),
        from_rows("a"),
        rnn("p"),
    ],
    "over words and channels": [
        new_node("turned = Transpose x", perm=(1, 0, 2)),
        new_node("plane_in = Unsqueeze turned one"),
        conv("plane_in", "c", (2, 1, 0, 1), "plane"),
        new_node("r = Relu c"),
        conv("r", "d", (1, 0, 0, 0), "back"),
        new_node("s = Squeeze d one"),
        new_node("p = Transpose s", perm=(1, 0, 2)),
        rnn("p"),
    ],
    "behind a layer": [
        new_node("same = Identity x"),
        rnn_node("h = Rnn same", SPEC, 1),
        new_node("narrow = Slice h 0 -1 2"),
        new_node("t = Transpose narrow", perm=(1, 2, 0)),
        conv("t", "c", (2, 0)),
        from_rows("c", "y"),
    ],
    "without a layer": [TO_ROWS, conv("rows", "c", (2, 0)), from_rows("c", "y")],
}


def model(nodes: list[Node]) -> Graph:
    return small(nodes, {"x": ("T", "N", WIDTH)}, **CONSTANTS).prune()


def one_graph(cases: dict[str, list[Node]], x: Value) -> Graph:
    """All cases of one input; what a case makes begins with its name."""
    nodes, shared = list[Node](), {"x", *CONSTANTS}
    for case, theirs in cases.items():
        for node in theirs:
            inputs = (name if name in shared else f"{case}/{name}" for name in node.inputs)
            outputs = (f"{case}/{name}" for name in node.outputs)
            nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
    outputs = tuple(Value(f"{case}/y") for case in cases)
    return Graph("model", (x,), outputs, tuple(nodes), CONSTANTS).prune()


def test_steps_give_what_all_words_at_once_give(tmp_path: Path) -> None:
    """In the second round of each, two streams take turns."""
    alone = {"without a layer": CASES["without a layer"]}
    models = {"every": CASES, "single": alone}
    given = Value("x", "float32", ("T", "N", WIDTH))
    graphs = {name: one_graph(cases, given) for name, cases in models.items()}
    emitted = build(graphs, tmp_path)
    feed = {"x": uniform(T, N, WIDTH, seed=1, bound=2)}
    for name, cases in models.items():
        plain = Session(one_graph(cases, Value("x")), backend="reference", passes=())
        want = plain.run(feed)
        assert emitted[name].steps, emitted[name].program.no_step
        for mode in ("infer", "step"):
            assert_computes(emitted[name], feed, want, mode)


@pytest.mark.parametrize(
    "nodes, told",
    [
        ([TO_ROWS, conv("rows", "c", (1, 1)), from_rows("c"), rnn("p")], "'c' (Conv) reads all"),
        ([TO_ROWS, conv("rows", "c", (0, 2)), from_rows("c"), rnn("p")], "'c' (Conv) reads all"),
        ([TO_ROWS, conv("rows", "c"), from_rows("c"), rnn("p")], "'c' (Conv) reads all"),
        (
            [
                TO_ROWS,
                new_node("padded = Pad rows front2"),
                conv("padded", "c", strides=(2,)),
                from_rows("c"),
                rnn("p"),
            ],
            "'c' (Conv) reads all steps",
        ),
        (
            [TO_ROWS, new_node("padded = Pad rows front2"), from_rows("padded"), rnn("p")],
            "'y' (Rnn) reads steps that are not known at the same time",
        ),
        (
            [
                TO_ROWS,
                new_node("a = Pad rows front2"),
                new_node("b = Pad a front2"),
                conv("b", "c", dilations=(2,)),
                from_rows("c"),
                rnn("p"),
            ],
            "'b' (Pad) reads all steps",
        ),
        (
            [TO_ROWS, new_node("padded = Pad rows front2", mode="edge"), conv("padded", "c")]
            + [from_rows("c"), rnn("p")],
            "'padded' (Pad) reads all steps",
        ),
        (
            [TO_ROWS, new_node("end = Slice rows -2 far 2"), from_rows("end"), rnn("p")],
            "'end' (Slice) reads all steps",
        ),
        (
            [TO_ROWS, new_node("end = Slice rows 2 far 2"), from_rows("end"), rnn("p")],
            "'end' (Slice) reads all steps",
        ),
        ([new_node("y = Pad x words2")], "'y' has more steps than the input"),
        ([new_node("y = Relu x")], "has no recurrent layer, and reads no earlier step"),
    ],
)
def test_what_looks_ahead_has_no_step_and_says_why(nodes: list[Node], told: str) -> None:
    program = parse(model(nodes))
    infer_shapes(program)
    initialize(program)
    assert told in program.no_step
