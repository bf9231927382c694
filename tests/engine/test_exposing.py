"""A model of sequences in chunks gives what it gives of the whole, or is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.layers import random_weights
from typer.testing import CliRunner

import onernn
from onernn import Cell, Graph, RnnSpec, Session, UnsupportedError
from onernn.cli import app
from onernn.engine.chunks import exposed
from onernn.ir.graph import Node, Value

WIDTH, H, T = 4, 5, 17
RNG = np.random.default_rng(0)
CUTS = (0, 3, 4, 8, 9, T)


def rnn(x: str, outputs: list[str], *states: str, width: int = WIDTH, **more: Any) -> Node:
    spec = RnnSpec(more.pop("cell", Cell.LSTM), width, H, **more)
    weights = random_weights(spec, 2)
    at = {"spec": spec, "weights": weights[0] if spec.layers == 1 else tuple(weights)}
    return Node("Rnn", (x, *states), tuple(outputs), at)


def conv(x: str, y: str, pads: tuple[int, int], dilation: int = 1) -> Node:
    at = {"kernel_shape": (3,), "pads": pads, "dilations": (dilation,)}
    return Node("Conv", (x, "k"), (y,), at)


def model(nodes: list[Node], output: str = "y", **constants: Any) -> Graph:
    known = {
        "k": RNG.uniform(-0.5, 0.5, (WIDTH, WIDTH, 3)).astype("f4"),
        "w": RNG.uniform(-0.5, 0.5, (WIDTH, WIDTH)).astype("f4"),
        "time": np.array([0]),
        "last": np.array([-1]),
        "two": np.array([-2]),
        "none": np.array([0]),
        "channel": np.array([2]),
        "front": np.array([0, 0, 4, 0, 0, 0]),
        **constants,
    }
    x = Value("x", "float32", (None, None, WIDTH))
    graph = Graph("model", (x,), (Value(output, "float32"),), tuple(nodes), known)
    return graph.pruned()


TO_ROWS = Node("Transpose", ("x",), ("rows",), {"perm": (1, 2, 0)})  # (T, N, C) -> (N, C, T)


def from_rows(name: str, out: str) -> Node:
    return Node("Transpose", (name,), (out,), {"perm": (2, 0, 1)})


def in_chunks(graph: Graph, x: np.ndarray) -> np.ndarray:
    made = exposed(graph)
    session, state, found = Session(made.graph), dict(made.first), []
    for begin, end in zip(CUTS, CUTS[1:], strict=False):
        done = session.run({"x": x[begin:end], **state})
        state = {name: done[after] for name, after in made.states.items()}
        found.append(done["y"])
    return np.concatenate(found, made.time["y"])


LAYERS = model(
    [Node("MatMul", ("x", "w"), ("p",)), rnn("p", ["a"], layers=2), rnn("a", ["y"], width=H)]
)
GRU = model([rnn("x", ["a", "h"], cell=Cell.LBR_GRU), Node("Softmax", ("a",), ("y",))])
CAUSAL = model(
    [
        TO_ROWS,
        conv("rows", "one", (2, 0)),
        Node("Relu", ("one",), ("r",)),
        Node("Pad", ("r", "front"), ("padded",)),
        conv("padded", "two_", (0, 0), dilation=2),
        Node("Add", ("two_", "rows"), ("sum",)),
        from_rows("sum", "p"),
        rnn("p", ["y"]),
    ]
)
CHOMPED = model(
    [
        TO_ROWS,
        conv("rows", "long", (2, 2)),
        Node("Slice", ("long", "none", "two", "channel"), ("c",)),
        from_rows("c", "p"),
        rnn("p", ["y"]),
    ]
)
LATE = model([TO_ROWS, conv("rows", "c", (1, 1)), from_rows("c", "p"), rnn("p", ["y"])])


@pytest.mark.parametrize(
    ("graph", "late"), [(LAYERS, 0), (GRU, 0), (CAUSAL, 0), (CHOMPED, 0), (LATE, 1)]
)
def test_chunks_give_what_the_whole_gives(graph: Graph, late: int) -> None:
    """What a convolution looks ahead comes later, and not at the end."""
    assert exposed(graph).delay["y"] == late
    x = np.random.default_rng(5).uniform(-2, 2, (T, 1, WIDTH)).astype("f4")
    whole = Session(graph, backend="reference", passes=()).run({"x": x})["y"]
    np.testing.assert_allclose(in_chunks(graph, x), whole[: T - late], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([rnn("x", ["y"], direction="right2left")], "from the last step to the first"),
        ([rnn("x", ["y"], direction="bidirectional_concat")], "from the last step to the first"),
        (
            [
                rnn("x", ["a"]),
                Node("ReduceMean", ("a", "time"), ("m",)),
                Node("Sub", ("a", "m"), ("y",)),
            ],
            "needs other steps than those so far",
        ),
        (
            [rnn("x", ["a"]), Node("CumSum", ("a", "zero"), ("y",))],
            "needs other steps than those so far",
        ),
        (
            [
                Node("ReduceSum", ("x", "time"), ("s",), {"keepdims": 0}),
                Node("MatMul", ("s", "wide"), ("i",)),
                Node("Unsqueeze", ("i", "both"), ("h0",)),
                rnn("x", ["y"], "h0", cell=Cell.GRU),
            ],
            "its initial state 'h0' is computed",
        ),
        (
            [TO_ROWS, Node("Softmax", ("rows",), ("q",)), from_rows("q", "p"), rnn("p", ["y"])],
            "Softmax",
        ),
        ([Node("Relu", ("x",), ("y",))], "no layer goes along an open number of steps"),
    ],
)
def test_what_needs_other_steps_is_refused_by_name(nodes: list[Node], told: str) -> None:
    more = {
        "zero": np.array(0),
        "both": np.array([0, 1]),
        "wide": np.ones((WIDTH, H), np.float32),
    }
    with pytest.raises(UnsupportedError, match=told):
        exposed(model(nodes, **more))


@pytest.mark.parametrize("batch", [None, 1])
def test_streams_of_a_model_of_sequences_go_on(batch: int | None) -> None:
    """What is padded before the first step is gone behind it: that state changes its size."""
    sizes = replace(CAUSAL.inputs[0], shape=(None, batch, WIDTH))
    streams = Session(replace(CAUSAL, inputs=(sizes,))).streams(3)
    x = np.random.default_rng(6).uniform(-2, 2, (T, 1, WIDTH)).astype("f4")
    opened = [streams.open() for _ in range(3)]
    for begin, end in zip(CUTS, CUTS[1:], strict=False):
        for at, stream in enumerate(opened):
            streams.push(stream, x[begin:end] * (at + 1))
    for at, stream in enumerate(opened):
        got = np.concatenate([each["y"] for each in streams.pull(stream)])
        want = Session(CAUSAL).run({"x": x * (at + 1)})["y"]
        np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-5)


def test_the_written_file_goes_on_in_onnx_runtime(tmp_path: Path) -> None:
    before, out = tmp_path / "whole.onnx", tmp_path / "chunks.onnx"
    onernn.convert(LAYERS, before)
    done = CliRunner().invoke(app, ["convert", str(before), str(out), "--expose-states"])
    assert done.exit_code == 0, done.exception
    session = onnxruntime.InferenceSession(out)
    x = np.random.default_rng(7).uniform(-2, 2, (T, 3, WIDTH)).astype("f4")
    states = [value for value in session.get_inputs() if value.name != "x"]
    state = {v.name: np.zeros([n if isinstance(n, int) else 3 for n in v.shape]) for v in states}
    found, names = [], [value.name for value in session.get_outputs()]
    for begin, end in zip(CUTS, CUTS[1:], strict=False):
        feed = {name: array.astype("f4") for name, array in state.items()}
        made = dict(zip(names, session.run(names, {"x": x[begin:end], **feed}), strict=True))
        found.append(made["y"])
        state = {name: made[f"{name}N"] for name in state}
    whole = Session(LAYERS).run({"x": x})["y"]
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-6, rtol=1e-5)


FAR = {
    "thousand": np.array([1000]),
    "limit": np.array(1000),
    "minus_thousand": np.array([-1000]),
    "step": np.array(1),
    "far": np.array([2**62]),
    "zero": np.array(0),
    "scale": np.float32(1e-3),
}
STEPS = Node("Shape", ("x",), ("steps",), {"start": 0, "end": 1})


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (
            [
                STEPS,
                Node("Greater", ("steps", "thousand"), ("long",)),
                Node("Where", ("long", "x", "doubled"), ("p",)),
            ],
            r"'long' \(Greater\): it computes with the number of steps",
        ),
        (
            [
                STEPS,
                Node("Min", ("steps", "thousand"), ("most",)),
                Node("Slice", ("x", "none", "most", "time"), ("p",)),
            ],
            r"'p' \(Slice\): it makes steps that are no input's",
        ),
        (
            [
                STEPS,
                Node("Div", ("steps", "thousand"), ("thousands",)),
                Node("Cast", ("thousands",), ("f",), {"to": "float32"}),
                Node("Add", ("x", "f"), ("p",)),
            ],
            r"'thousands' \(Div\): it (divides|computes with) the number of steps",
        ),
        (
            [
                STEPS,
                Node("Squeeze", ("steps",), ("count",)),
                Node("Range", ("zero", "count", "step"), ("places",)),
                Node("Less", ("places", "limit"), ("near",)),
                Node("Unsqueeze", ("near", "behind"), ("mask",)),
                Node("Where", ("mask", "x", "doubled"), ("p",)),
            ],
            r"'places' \(Range\): it computes with the number of steps",
        ),
        (
            [Node("Slice", ("x", "none", "thousand", "time"), ("p",))],
            r"'p' \(Slice\): it makes steps that are no input's",
        ),
        (
            [rnn("x", ["a"]), Node("Slice", ("a", "minus_thousand", "far", "time"), ("y",))],
            r"'y' \(Slice\): it takes steps \[-1000:",
        ),
        (
            [
                Node("CumSum", ("x", "zero"), ("sums",)),
                Node("Greater", ("sums", "limit_f"), ("long",)),
                Node("Where", ("long", "x", "doubled"), ("p",)),
            ],
            r"'sums' \(CumSum\): it needs other steps",
        ),
    ],
)
def test_what_no_chunk_of_the_proof_shows_is_refused(nodes: list[Node], told: str) -> None:
    """A threshold of 1,000 steps, which chunks of a few do not reach."""
    more = {**FAR, "two_f": np.float32(2), "limit_f": np.float32(1e6), "behind": np.array([1, 2])}
    nodes = [Node("Mul", ("x", "two_f"), ("doubled",)), *nodes]
    nodes += [rnn("p", ["y"])] if nodes[-1].outputs == ("p",) else []
    with pytest.raises(UnsupportedError, match=told):
        exposed(model(nodes, **more))


def test_sizes_made_of_the_number_of_steps_are_none_of_its_uses() -> None:
    nodes = [
        Node("Shape", ("x",), ("shape",)),
        *(
            Node("Gather", ("shape", at), (name,))
            for at, name in zip(("at0", "at1", "at2"), "tnc", strict=True)
        ),
        Node("Mul", ("t", "n"), ("rows",)),
        Node("Concat", ("rows", "c"), ("flat_shape",), {"axis": 0}),
        Node("Reshape", ("x", "flat_shape"), ("flat",)),
        Node("MatMul", ("flat", "w"), ("q",)),
        Node("Reshape", ("q", "shape"), ("p",)),
        rnn("p", ["y"]),
    ]
    places = {f"at{at}": np.array([at]) for at in range(3)}
    assert exposed(model(nodes, **places)).states
