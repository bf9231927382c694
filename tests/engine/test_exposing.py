"""A model of sequences in chunks gives what it gives of the whole, or is refused by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from support.arrays import uniform
from support.branching import chosen
from support.causal import TO_ROWS, conv, from_rows
from support.graphs import new_node, rnn_node, small, unfused
from support.layers import random_weights
from typer.testing import CliRunner

import onernn
from onernn import Cell, Graph, RnnSpec, Session, ShapeError, UnsupportedError
from onernn.cli import app
from onernn.engine.chunks import expose
from onernn.ir.graph import Node, Value
from onernn.ops.control import scan_attributes

WIDTH, H, T = 4, 5, 17
RNG = np.random.default_rng(0)
CUTS = (0, 4, 5, 9, 10, T)


def rnn(x: str, outputs: list[str], *states: str, width: int = WIDTH, **more: Any) -> Node:
    spec = RnnSpec(more.pop("cell", Cell.LSTM), width, H, **more)
    weights = random_weights(spec, 2)
    at = {"spec": spec, "weights": weights[0] if spec.layers == 1 else tuple(weights)}
    return Node("Rnn", (x, *states), tuple(outputs), at)


FLAG = Value("flag", "int64", ())


def model(nodes: list[Node], output: str = "y", *more: Value, **constants: Any) -> Graph:
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
    graph = Graph("model", (x, *more), (Value(output, "float32"),), tuple(nodes), known)
    return graph.prune()


def in_chunks(graph: Graph, x: np.ndarray, cuts: tuple[int, ...]) -> np.ndarray:
    made = expose(graph)
    session, state, found = Session(made.graph), dict(made.first), []
    for begin, end in pairwise(cuts):
        done = session.run({"x": x[begin:end], **state})
        state = {name: done[after] for name, after in made.states.items()}
        found.append(done["y"])
    return np.concatenate(found, made.time["y"])


LAYERS = model([new_node("p = MatMul x w"), rnn("p", ["a"], layers=2), rnn("a", ["y"], width=H)])
GRU = model([rnn("x", ["a", "h"], cell=Cell.LBR_GRU), new_node("y = Softmax a")])
CAUSAL = model(
    [
        TO_ROWS,
        conv("rows", "one", (2, 0)),
        new_node("r = Relu one"),
        new_node("padded = Pad r front"),
        conv("padded", "two_", (0, 0), dilations=(2,)),
        new_node("sum = Add two_ rows"),
        from_rows("sum"),
        rnn("p", ["y"]),
    ]
)
CHOMPED = model(
    [
        TO_ROWS,
        conv("rows", "long", (2, 2)),
        new_node("c = Slice long none two channel"),
        from_rows("c"),
        rnn("p", ["y"]),
    ]
)
SHIFT = {"shift": np.array([0, 0, -2, 0, 0, 2]), "shorter": np.array([0, 0, 0, 0, 0, -3])}
AHEAD = [TO_ROWS, conv("rows", "c", (1, 1)), new_node("c1 = Relu c"), conv("c1", "c2", (0, 2))]
AROUND = model(  # a skip connection, two reaches ahead, and a layer that counts its steps
    [
        *AHEAD,
        new_node("sum = Add c2 rows"),
        new_node("both = Concat sum c1", axis=1),
        from_rows("both"),
        rnn("p", ["y"], width=2 * WIDTH),
    ]
)
SHIFTED = model(  # x[2:], zeros behind
    [
        TO_ROWS,
        new_node("moved = Pad rows shift"),
        new_node("change = Sub moved rows"),
        from_rows("change"),
        rnn("p", ["y"]),
    ],
    **SHIFT,
)
DIFFERENCES = model(  # x[1:] - x[:-1], and a pool over three of them
    [
        new_node("later = Slice x one end time"),
        new_node("earlier = Slice x none last time"),
        new_node("d = Sub later earlier"),
        new_node("rows = Transpose d", perm=(1, 2, 0)),
        new_node("pooled = MaxPool rows", kernel_shape=(3,)),
        from_rows("pooled"),
        rnn("p", ["y"]),
    ],
    one=np.array([1]),
    end=np.array([2**62]),
)
LATE = model([TO_ROWS, conv("rows", "c", (1, 1)), from_rows("c"), rnn("p", ["y"])])


@pytest.mark.parametrize("name", ["h0", "h1", "h0'"])
def test_states_have_names_of_their_own(name: str) -> None:
    layers = [rnn("x", [name, ""], cell=Cell.LBR_GRU), rnn(name, ["y", ""], width=H)]
    graph = model(layers)
    x = RNG.normal(size=(T, 1, WIDTH)).astype("f4")
    expected = Session(graph).run({"x": x})["y"]
    assert_allclose(in_chunks(graph, x, CUTS), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "graph, late",
    [
        *((LAYERS, 0), (GRU, 0), (CAUSAL, 0), (CHOMPED, 0), (LATE, 1)),
        *((AROUND, 3), (SHIFTED, 2), (DIFFERENCES, 0)),
    ],
)
def test_chunks_give_what_the_whole_gives(graph: Graph, late: int) -> None:
    """What a convolution looks ahead comes later, and not at the end."""
    assert expose(graph).delay["y"] == late
    x = uniform(T, 1, WIDTH, seed=5, bound=2)
    whole = unfused(graph, {"x": x})["y"]
    for cuts in (CUTS, (0, 5, *range(6, T + 1)), (0, 11, T), (0, T)):
        got = in_chunks(graph, x, cuts)
        assert_allclose(got, whole[: len(whole) - late], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "nodes, told",
    [
        ([rnn("x", ["y"], direction="right2left")], "expected a layer that runs left2right"),
        (
            [rnn("x", ["y"], direction="bidirectional_concat")],
            "expected a layer that runs left2right",
        ),
        (
            [
                rnn("x", ["a"]),
                new_node("m = ReduceMean a time"),
                new_node("y = Sub a m"),
            ],
            "may count steps, or read later ones",
        ),
        (
            [rnn("x", ["a"]), new_node("y = CumSum a zero")],
            "may count steps, or read later ones",
        ),
        (
            [
                new_node("s = ReduceSum x time", keepdims=0),
                new_node("i = MatMul s wide"),
                new_node("h0 = Unsqueeze i both"),
                rnn("x", ["y"], "h0", cell=Cell.GRU),
            ],
            "its initial state 'h0' is computed",
        ),
        (
            [TO_ROWS, new_node("q = Softmax rows"), from_rows("q"), rnn("p", ["y"])],
            "Softmax",
        ),
        ([new_node("y = Relu x")], "expected a recurrent layer over an open number of steps"),
    ],
)
def test_what_needs_other_steps_is_refused_by_name(nodes: list[Node], told: str) -> None:
    more = {
        "zero": np.array(0),
        "both": np.array([0, 1]),
        "wide": np.ones((WIDTH, H), np.float32),
    }
    with pytest.raises(UnsupportedError, match=told):
        expose(model(nodes, **more))


def test_no_two_states_are_proposed_for_one_output(tmp_path: Path) -> None:
    graph = small((new_node("hN = Add h1 h2"),), {"h1": (3,), "h2": (3,)}, "hN")
    with pytest.raises(UnsupportedError) as error:
        expose(graph)
    pairs = [word.split("=") for word in str(error.value).split(" --state ")[1:]]
    assert onernn.compile_model(graph, tmp_path / "m.onernn", states=dict(pairs))


@pytest.mark.parametrize("batch", [None, 1])
def test_streams_of_a_model_of_sequences_go_on(batch: int | None) -> None:
    """What is padded before the first step is gone behind it: that state changes its size."""
    sizes = replace(CAUSAL.inputs[0], shape=(None, batch, WIDTH))
    streams = Session(replace(CAUSAL, inputs=(sizes,))).streams(3)
    x = uniform(T, 1, WIDTH, seed=6, bound=2)
    opened = [streams.open() for _ in range(3)]
    for begin, end in zip(CUTS, CUTS[1:], strict=False):
        for at, stream in enumerate(opened):
            streams.push(stream, x[begin:end] * (at + 1))
    for at, stream in enumerate(opened):
        got = np.concatenate([each["y"] for each in streams.pull(stream)])
        want = Session(CAUSAL).run({"x": x * (at + 1)})["y"]
        assert_allclose(got, want, atol=1e-6, rtol=1e-5)


def test_the_written_file_goes_on_in_onnx_runtime(tmp_path: Path) -> None:
    before, out = tmp_path / "whole.onnx", tmp_path / "chunks.onnx"
    onernn.convert(LAYERS, before)
    done = CliRunner().invoke(app, ["convert", str(before), str(out), "--expose-states"])
    assert done.exit_code == 0, done.exception
    session = onnxruntime.InferenceSession(out)
    x = uniform(T, 3, WIDTH, seed=7, bound=2)
    states = [value for value in session.get_inputs() if value.name != "x"]
    state = {v.name: np.zeros([n if isinstance(n, int) else 3 for n in v.shape]) for v in states}
    found, names = [], [value.name for value in session.get_outputs()]
    for begin, end in zip(CUTS, CUTS[1:], strict=False):
        feed = {name: array.astype("f4") for name, array in state.items()}
        made = dict(zip(names, session.run(names, {"x": x[begin:end], **feed}), strict=True))
        found.append(made["y"])
        state = {name: made[f"{name}N"] for name in state}
    whole = Session(LAYERS).run({"x": x})["y"]
    assert_allclose(np.concatenate(found), whole, atol=1e-6, rtol=1e-5)


FAR = {
    "thousand": np.array([1000]),
    "limit": np.array(1000),
    "minus_thousand": np.array([-1000]),
    "step": np.array(1),
    "far": np.array([2**62]),
    "zero": np.array(0),
    "scale": np.float32(1e-3),
}
STEPS = new_node("steps = Shape x", start=0, end=1)


@pytest.mark.parametrize(
    "nodes, told",
    [
        (
            [
                STEPS,
                new_node("long = Greater steps thousand"),
                new_node("p = Where long x doubled"),
            ],
            r"'long' \(Greater\): it computes with the number of steps",
        ),
        (
            [
                STEPS,
                new_node("most = Min steps thousand"),
                new_node("p = Slice x none most time"),
            ],
            r"'p' \(Slice\): expected the steps of an input",
        ),
        (
            [
                STEPS,
                new_node("thousands = Div steps thousand"),
                new_node("f = Cast thousands", to="float32"),
                new_node("p = Add x f"),
            ],
            r"'thousands' \(Div\): it (divides|computes with) the number of steps",
        ),
        (
            [
                STEPS,
                new_node("count = Squeeze steps"),
                new_node("places = Range zero count step"),
                new_node("near = Less places limit"),
                new_node("mask = Unsqueeze near behind"),
                new_node("p = Where mask x doubled"),
            ],
            r"'places' \(Range\): it computes with the number of steps",
        ),
        (
            [new_node("p = Slice x none thousand time")],
            r"expected a recurrent layer over an open number of steps",
        ),
        (
            [rnn("x", ["a"]), new_node("y = Slice a none thousand time")],
            r"'y' \(Slice\): it takes steps \[0:1000\]",
        ),
        (
            [rnn("x", ["a"]), new_node("y = Slice a minus_thousand far time")],
            r"'y' \(Slice\): it takes steps \[-1000:",
        ),
        (
            [
                new_node("sums = CumSum x zero"),
                new_node("long = Greater sums limit_f"),
                new_node("p = Where long x doubled"),
            ],
            r"'sums' \(CumSum\): it may count steps",
        ),
    ],
)
def test_what_no_chunk_of_the_proof_shows_is_refused(nodes: list[Node], told: str) -> None:
    """A threshold of 1,000 steps, which chunks of a few do not reach."""
    more = {**FAR, "two_f": np.float32(2), "limit_f": np.float32(1e6), "behind": np.array([1, 2])}
    nodes = [new_node("doubled = Mul x two_f"), *nodes]
    nodes += [rnn("p", ["y"])] if nodes[-1].outputs == ("p",) else []
    with pytest.raises(UnsupportedError, match=told):
        expose(model(nodes, **more))


def test_sizes_made_of_the_number_of_steps_are_none_of_its_uses() -> None:
    nodes = [
        new_node("shape = Shape x"),
        *(
            new_node(f"{name} = Gather shape {at}")
            for at, name in zip(("at0", "at1", "at2"), "tnc", strict=True)
        ),
        new_node("rows = Mul t n"),
        new_node("flat_shape = Concat rows c", axis=0),
        new_node("flat = Reshape x flat_shape"),
        new_node("q = MatMul flat w"),
        new_node("p = Reshape q shape"),
        rnn("p", ["y"]),
    ]
    places = {f"at{at}": np.array([at]) for at in range(3)}
    assert expose(model(nodes, **places)).states


REVERSED = {"minus": np.array([-1]), "begin": np.array([-(2**62)])}


@pytest.mark.parametrize(
    "nodes, told",
    [
        ([new_node("z = Slice p minus begin time minus")], r"'z' \(Slice\): its results in chunks"),
        ([new_node("g = Gather p time", axis=0), new_node("z = Add p g")], r"'z' \(Add\): its"),
        (
            [
                rnn("p", ["s", "h"], cell=Cell.GRU),
                new_node("m = ReduceMean h", keepdims=0),
                new_node("z = Mul p m"),
            ],
            r"'z' \(Mul\): its results in chunks",
        ),
    ],
)
def test_values_that_a_condition_hides_are_compared_too(nodes: list[Node], told: str) -> None:
    """The proof runs one value of the condition; a later call may have the other one."""
    flag = [new_node("q = Cast flag", to="bool"), new_node("p = Tanh x")]
    last = [new_node("chosen = Where q z p"), rnn("chosen", ["y"])]
    with pytest.raises(UnsupportedError, match=told):
        expose(model([*flag, *nodes, *last], "y", FLAG, **REVERSED))


TO_TIME = new_node("t = Transpose p", perm=(1, 2, 0))


def along(*nodes: Node, **constants: np.ndarray) -> Graph:
    return small(nodes, {"p": (None, None, WIDTH)}, "o", **constants)


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize(
    "branch, told",
    [
        (along(rnn_node("o = Rnn p", RnnSpec(Cell.GRU, WIDTH, WIDTH))), r"'o' \(Rnn\)"),
        (along(new_node("o = Softmax p", axis=0)), r"'o' \(Softmax\)"),
        (along(new_node("o = CumSum p axis"), axis=np.array(0)), r"'o' \(CumSum\)"),
        (
            along(TO_TIME, conv("t", "c", (2, 0)), from_rows("c", "o"), k=np.ones((4, 4, 3), "f4")),
            r"'c' \(Conv\)",
        ),
    ],
    ids=["layer", "softmax", "sum", "convolution"],
)
def test_a_branch_that_the_proof_does_not_take_combines_no_steps(
    branch: Graph, told: str, taken: int
) -> None:
    sides = (along(new_node("o = Neg p")), branch)
    nodes = [
        new_node("q = Cast flag", to="bool"),
        new_node("a = Tanh x"),
        chosen("q", *sides[:: 1 if taken else -1], "a|a", "p"),
        rnn("p", ["y"]),
    ]
    with pytest.raises(UnsupportedError, match=rf"'p' \(If\): its graph may combine steps.*{told}"):
        expose(model(nodes, "y", FLAG))


def test_branches_that_run_step_by_step_have_streams() -> None:
    sides = (along(new_node("o = Neg p")), along(new_node("o = Softmax p", axis=-1)))
    nodes = [new_node("q = Cast flag", to="bool"), chosen("q", *sides, "x|x", "p"), rnn("p", ["y"])]
    graph = model(nodes, "y", FLAG)
    x = uniform(T, 1, WIDTH, seed=3)
    streams = Session(graph).streams(2)
    for flag in (np.array(0), np.array(1)):
        stream = streams.open()
        for begin, end in pairwise(CUTS):
            streams.push(stream, {"x": x[begin:end], "flag": flag})
        got = np.concatenate([each["y"] for each in streams.pull(stream)])
        assert_allclose(got, unfused(graph, {"x": x, "flag": flag})["y"], rtol=0, atol=1e-6)


def test_a_scan_that_counts_its_steps_is_refused() -> None:
    """Its values change after 1,000 steps, which chunks of a few do not reach."""
    body = small(
        [
            new_node("c2 = Add c one"),
            new_node("long = Greater c2 limit"),
            new_node("o = Where long one e"),
        ],
        {"c": (1,), "e": (1, WIDTH)},
        "c2 o",
        one=np.ones(1, "f4"),
        limit=np.float32([1000]),
    )
    scan = Node("Scan", ("zero", "x"), ("count", "p"), scan_attributes(body, 1))
    with pytest.raises(UnsupportedError, match=r"'count' \(Scan\): its graph may combine steps"):
        expose(model([scan, rnn("p", ["y"])], zero=np.zeros(1, "f4")))


@pytest.mark.parametrize("seed", range(8))
def test_random_models_that_look_ahead_and_meet_again(seed: int) -> None:
    """Convolutions, shifts, cuts, pools and layers, whose values are added and put side by side."""
    rng = np.random.default_rng(seed)
    nodes, made = [TO_ROWS], ["rows"]
    constants: dict[str, np.ndarray] = {}
    for index in range(7):
        out, x = f"v{index}", made[int(rng.integers(len(made)))]
        kind = rng.integers(5)
        if kind == 0:
            reach = 2 * int(rng.integers(1, 3))
            left = int(rng.integers(reach + 1))
            nodes.append(conv(x, out, (left, reach - left), dilations=(reach // 2,)))
        elif kind == 1:
            by = int(rng.integers(-2, 3))
            constants[f"by{index}"] = np.array([0, 0, by, 0, 0, -by])
            nodes.append(new_node(f"{out} = Pad {x} by{index}"))
        elif kind == 2:
            nodes.append(new_node(f"{out} = Tanh {x}"))
        elif kind == 3:
            nodes += [from_rows(x, f"{out}i"), rnn(f"{out}i", [f"{out}s"], width=WIDTH)]
            nodes.append(new_node(f"{out}t = Transpose {out}s", perm=(1, 2, 0)))
            nodes.append(new_node(f"{out} = Slice {out}t none four channels"))
        else:
            nodes.append(Node("Add", (x, made[int(rng.integers(len(made)))]), (out,)))
        made.append(out)
    nodes += [Node("Sum", tuple(made), ("all",)), from_rows("all"), rnn("p", ["y"])]
    known = {"four": np.array([WIDTH]), "channels": np.array([1]), **constants}
    graph = model(nodes, **known)
    exposed_ = expose(graph)
    x = rng.uniform(-2, 2, (40, 1, WIDTH)).astype("f4")
    whole = unfused(graph, {"x": x})["y"]
    first = exposed_.least + int(rng.integers(3))
    for cuts in ((0, *range(first, 41)), (0, *sorted({*rng.integers(first, 40, 5).tolist()}), 40)):
        got = in_chunks(graph, x, cuts)
        late = exposed_.delay["y"]
        assert_allclose(got, whole[: len(whole) - late], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 3, None])
@pytest.mark.parametrize("late", [0, 1])
def test_one_step_of_padding_and_any_batch_have_chunks(batch: int | None, late: int) -> None:
    """In the first chunk, a convolution that looks ahead has fewer steps before it than later."""
    nodes = [TO_ROWS, conv("rows", "c", (2 - late, late)), from_rows("c"), rnn("p", ["y"])]
    graph = replace(model(nodes), inputs=(Value("x", "float32", (None, batch, WIDTH)),))
    x = uniform(T, batch or 1, WIDTH, seed=4)
    whole = unfused(graph, {"x": x})["y"]
    assert_allclose(in_chunks(graph, x, CUTS), whole[: T - late], rtol=0, atol=1e-6)


def test_inputs_whose_steps_meet_have_one_number_of_steps() -> None:
    """Each has a name of its own for it; another input has a batch that stays open."""
    nodes = [
        new_node("p = Concat x other", axis=2),
        rnn("p", ["y"], "h0", width=WIDTH + 2, cell=Cell.GRU),
    ]
    inputs = (
        Value("x", "float32", (None, 1, WIDTH)),
        Value("other", "float32", (None, 1, 2)),
        Value("h0", "float32", (1, 1, None, H)),
    )
    graph = replace(model([rnn("x", ["y"])]), inputs=inputs, nodes=tuple(nodes))
    graph = replace(graph, inputs=inputs[:2], nodes=(nodes[0], replace(nodes[1], inputs=("p",))))
    made = expose(graph.prune())
    assert made.time == {"x": 0, "other": 0, "y": 0}


def test_a_first_frame_of_a_stream_brings_what_is_looked_ahead() -> None:
    streams = Session(AROUND).streams(2)
    x = uniform(T, 1, WIDTH, seed=8, bound=2)
    whole = Session(AROUND).run({"x": x})["y"]
    one, two = streams.open(), streams.open()
    for stream, ends in ((one, (0, 4, *range(5, T + 1))), (two, (0, 9, 10, T))):
        for begin, end in pairwise(ends):
            streams.push(stream, x[begin:end])
    for stream in (one, two):
        got = np.concatenate([each["y"] for each in streams.pull(stream)])
        assert_allclose(got, whole[: T - 3], atol=1e-6, rtol=1e-5)


def test_a_frame_of_too_few_steps_is_told_how_many_a_stream_needs() -> None:
    """And the stream goes on as if the frame had not come."""
    streams = Session(AROUND).streams(1)
    stream, x = streams.open(), uniform(T, 1, WIDTH, seed=8, bound=2)
    for part in (x[:2], x[:9], x[9:9], x[9:]):
        streams.push(stream, part)
    told = r"frame of {} steps: expected 4 or more in the first frame of a stream, 1 or more in"
    with pytest.raises(ShapeError, match=told.format(2)):
        streams.pull(stream)
    (first,) = streams.pull(stream)
    with pytest.raises(ShapeError, match=told.format(0)):
        streams.pull(stream)
    (last,) = streams.pull(stream)
    got = np.concatenate([first["y"], last["y"]])
    assert_allclose(got, Session(AROUND).run({"x": x})["y"][: T - 3], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "nodes, reason",
    [
        ([TO_ROWS, new_node("c = Conv rows k", strides=(2,))], "expected stride 1 along time"),
        ([TO_ROWS, conv("rows", "c", (3, 0))], "it pads 3 steps: expected at most"),
        (
            [TO_ROWS, new_node("c = Pad rows front", mode="reflect")],
            "expected zeros as padding",
        ),
        (
            [TO_ROWS, new_node("c = Slice rows far5k end channel")],
            "expected at most 4096, got more",
        ),
    ],
)
def test_windows_and_ends_that_no_chunk_has_are_refused(nodes: list[Node], reason: str) -> None:
    known = {"far5k": np.array([5000]), "end": np.array([2**62])}
    nodes = [*nodes, from_rows("c"), rnn("p", ["y"])]
    with pytest.raises(UnsupportedError, match=f"'c'.*{reason}"):
        expose(model(nodes, **known))
