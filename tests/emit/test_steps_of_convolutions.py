"""Generated C++ of models that look back goes word by word: what a convolution saw is a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emitting import assert_computes, build
from support.graphs import new_node
from support.layers import random_weights

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
TO_ROWS = new_node("Transpose", "x", "rows", perm=(1, 2, 0))  # (T, N, C) -> (N, C, T)


def from_rows(name: str, out: str = "p") -> Node:
    return Node("Transpose", (name,), (out,), {"perm": (2, 0, 1)})


def conv(x: str, y: str, pads: tuple[int, int] = (0, 0), kernel: str = "k", **more: Any) -> Node:
    return Node("Conv", (x, kernel), (y,), {"pads": pads, **more})


def rnn(x: str) -> Node:
    return Node("Rnn", (x,), ("y",), {"spec": SPEC, "weights": random_weights(SPEC, 0)})


def op(name: str, inputs: str, out: str, **attributes: Any) -> Node:
    return Node(name, tuple(inputs.split()), (out,), attributes)


CASES: dict[str, list[Node]] = {
    "causal": [TO_ROWS, conv("rows", "c", (2, 0)), from_rows("c"), rnn("p")],
    "dilated behind a Pad, beside a skip connection": [
        TO_ROWS,
        op("Pad", "rows front4", "padded"),
        conv("padded", "c", dilations=(2,)),
        op("Add", "c rows", "sum"),
        conv("sum", "d", (2, 0)),
        from_rows("d"),
        rnn("p"),
    ],
    "cut behind": [
        TO_ROWS,
        conv("rows", "c", (2, 2)),
        op("Relu", "c", "r"),
        conv("r", "d", (2, 2)),
        op("Slice", "d 0 -4 2", "cut"),
        from_rows("cut"),
        rnn("p"),
    ],
    "padded before it is turned, by another number": [
        op("Pad", "x words2 low", "padded"),
        op("Transpose", "padded", "t", perm=(1, 2, 0)),
        op("Tanh", "t", "tanh"),
        conv("tanh", "c"),
        from_rows("c"),
        rnn("p"),
    ],
    "of one word": [TO_ROWS, conv("rows", "c", kernel="k1"), from_rows("c"), rnn("p")],
    "a word late": [
        TO_ROWS,
        op("Pad", "rows around1", "padded"),
        op("Slice", "padded 0 -2 2", "late"),
        op("Add", "late rows", "sum"),
        from_rows("sum"),
        rnn("p"),
    ],
    "looked ahead, and late": [
        TO_ROWS,
        op("Pad", "rows front4", "padded"),
        conv("padded", "c"),
        op("Slice", "c 0 -2 2", "late"),
        from_rows("late"),
        rnn("p"),
    ],
    "cut before": [
        TO_ROWS,
        op("Pad", "rows front2", "padded"),
        op("Slice", "padded 2 far 2", "same"),
        from_rows("same"),
        rnn("p"),
    ],
    "pooled": [
        TO_ROWS,
        op("Pad", "rows front2 low", "padded"),
        op("MaxPool", "padded", "m", kernel_shape=(3,)),
        op("Pad", "m front2", "zeros"),
        op("AveragePool", "zeros", "a", kernel_shape=(3,)),
        from_rows("a"),
        rnn("p"),
    ],
    "over words and channels": [
        op("Transpose", "x", "turned", perm=(1, 0, 2)),
        op("Unsqueeze", "turned one", "plane_in"),
        conv("plane_in", "c", (2, 1, 0, 1), "plane"),  # type: ignore[arg-type]
        op("Relu", "c", "r"),
        conv("r", "d", (1, 0, 0, 0), "back"),  # type: ignore[arg-type]
        op("Squeeze", "d one", "s"),
        op("Transpose", "s", "p", perm=(1, 0, 2)),
        rnn("p"),
    ],
    "behind a layer": [
        op("Identity", "x", "same"),
        new_node("Rnn", "same", "h", spec=SPEC, weights=random_weights(SPEC, 1)),
        op("Slice", "h 0 -1 2", "narrow"),
        op("Transpose", "narrow", "t", perm=(1, 2, 0)),
        conv("t", "c", (2, 0)),
        from_rows("c", "y"),
    ],
    "without a layer": [TO_ROWS, conv("rows", "c", (2, 0)), from_rows("c", "y")],
}


def model(nodes: list[Node]) -> Graph:
    x = Value("x", "float32", ("T", "N", WIDTH))
    return Graph("model", (x,), (Value("y"),), tuple(nodes), CONSTANTS).pruned()


def one_graph(cases: dict[str, list[Node]], x: Value) -> Graph:
    """All cases of one input; what a case makes begins with its name."""
    nodes, shared = list[Node](), {"x", *CONSTANTS}
    for case, theirs in cases.items():
        for node in theirs:
            inputs = (name if name in shared else f"{case}/{name}" for name in node.inputs)
            outputs = (f"{case}/{name}" for name in node.outputs)
            nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
    outputs = tuple(Value(f"{case}/y") for case in cases)
    return Graph("model", (x,), outputs, tuple(nodes), CONSTANTS).pruned()


def test_steps_give_what_all_words_at_once_give(tmp_path: Path) -> None:
    """In the second round of each, two streams take turns."""
    alone = {"without a layer": CASES["without a layer"]}
    models = {"every": CASES, "single": alone}
    given = Value("x", "float32", ("T", "N", WIDTH))
    graphs = {name: one_graph(cases, given) for name, cases in models.items()}
    emitted = build(graphs, tmp_path)
    feed = {"x": np.random.default_rng(1).uniform(-2, 2, (T, N, WIDTH)).astype("f4")}
    for name, cases in models.items():
        plain = Session(one_graph(cases, Value("x")), backend="reference", passes=())
        want = plain.run(feed)
        assert emitted[name].steps, emitted[name].program.no_step
        for mode in ("infer", "step"):
            assert_computes(emitted[name], feed, want, mode)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([TO_ROWS, conv("rows", "c", (1, 1)), from_rows("c"), rnn("p")], "'c' (Conv) looks at all"),
        ([TO_ROWS, conv("rows", "c", (0, 2)), from_rows("c"), rnn("p")], "'c' (Conv) looks at all"),
        ([TO_ROWS, conv("rows", "c"), from_rows("c"), rnn("p")], "'c' (Conv) looks at all"),
        (
            [
                TO_ROWS,
                op("Pad", "rows front2", "padded"),
                conv("padded", "c", strides=(2,)),
                from_rows("c"),
                rnn("p"),
            ],
            "'c' (Conv) looks at all steps",
        ),
        (
            [TO_ROWS, op("Pad", "rows front2", "padded"), from_rows("padded"), rnn("p")],
            "'y' (Rnn) reads words that are not there at the same time",
        ),
        (
            [
                TO_ROWS,
                op("Pad", "rows front2", "a"),
                op("Pad", "a front2", "b"),
                conv("b", "c", dilations=(2,)),
                from_rows("c"),
                rnn("p"),
            ],
            "'b' (Pad) looks at all steps",
        ),
        (
            [TO_ROWS, op("Pad", "rows front2", "padded", mode="edge"), conv("padded", "c")]
            + [from_rows("c"), rnn("p")],
            "'padded' (Pad) looks at all steps",
        ),
        (
            [TO_ROWS, op("Slice", "rows -2 far 2", "end"), from_rows("end"), rnn("p")],
            "'end' (Slice) looks at all steps",
        ),
        (
            [TO_ROWS, op("Slice", "rows 2 far 2", "end"), from_rows("end"), rnn("p")],
            "'end' (Slice) looks at all steps",
        ),
        ([op("Pad", "x words2", "y")], "'y' has more words than there are"),
        ([op("Relu", "x", "y")], "has no recurrent layer, and looks at no step before"),
    ],
)
def test_what_looks_ahead_has_no_step_and_says_why(nodes: list[Node], told: str) -> None:
    program = parse(model(nodes))
    infer_shapes(program)
    initialize(program)
    assert told in program.no_step
