"""Constants behind operators are constants: weights that exporters cast, turn and join load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto
from support.counting import memory_peak
from support.graphs import reference
from support.mxnet_files import node, symbol, var
from support.onnx_models import model, ours, parsed_nodes, read, theirs
from support.paddle_operators import op, program

from onernn import Ragged
from onernn.adapters.mxnet.lower import lower as lower_symbol
from onernn.adapters.onnx.lower import lower as lower_onnx
from onernn.adapters.onnx.read import parse_model
from onernn.adapters.paddle.lower import lower as lower_program
from onernn.adapters.paddle.read import Variable

F32 = np.float32
Constants = dict[str, np.ndarray]
Chain = Callable[[str, np.ndarray], tuple[str, Constants]]
"""Nodes that make the array of that name, and the constants that they begin with."""


def halves(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """Directions and halves of gates stored in float16, turned: cast, turned, shaped, joined."""
    nodes, constants, directions = "", Constants(), []
    for d, rows in enumerate(array):
        parts = []
        for h, half in enumerate(np.array_split(rows, 2)):
            p = f"{name}{d}{h}"
            constants[p] = np.ascontiguousarray(half.T).astype(np.float16)
            constants[f"{p}s"] = np.array([1, *half.shape])
            nodes += f" {p}c = Cast <to = 1> ({p}) {p}t = Transpose ({p}c)"
            nodes += f" {p}r = Reshape ({p}t, {p}s)"
            parts.append(f"{p}r")
        nodes += f" {name}{d} = Concat <axis = 1> ({', '.join(parts)})"
        directions.append(f"{name}{d}")
    return f"{nodes} {name} = Concat <axis = 0> ({', '.join(directions)})", constants


def narrow(name: str, array: np.ndarray) -> tuple[str, Constants]:
    return f" {name} = Cast <to = 1> ({name}0)", {f"{name}0": array.astype(np.float16)}


def rounded(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """To bfloat16 and back."""
    nodes = f" {name}1 = Cast <to = 16> ({name}0) {name} = Cast <to = 1> ({name}1)"
    return nodes, {f"{name}0": array}


def reordered(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """Gates in another order."""
    order = np.random.default_rng(3).permutation(array.shape[1])
    stored = {f"{name}0": array[:, order], f"{name}i": np.argsort(order)}
    return f" {name} = Gather <axis = 1> ({name}0, {name}i)", stored


def scaled(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """Arithmetic: half of it, and half of it."""
    nodes = f" {name}1 = Mul ({name}0, {name}h) {name}2 = Add ({name}1, {name}1)"
    stored = {f"{name}0": array, f"{name}h": np.array(0.5, F32)}
    return f"{nodes} {name} = Identity ({name}2)", stored


def sliced(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """Halves of gates, of which one is cut out of more, before there is an axis of directions."""
    count = array.shape[1] // 2
    stored = {f"{name}a": array.reshape(-1, *array.shape[2:]), f"{name}b": array[:1, count:][0]}
    stored |= {f"{name}0": np.array([0]), f"{name}n": np.array([count])}
    stored |= {f"{name}r": array[1:]}
    nodes = f" {name}c = Slice ({name}a, {name}0, {name}n)"
    nodes += (
        f" {name}j = Concat <axis = 0> ({name}c, {name}b) {name}u = Unsqueeze ({name}j, {name}0)"
    )
    return f"{nodes} {name} = Concat <axis = 0> ({name}u, {name}r)", stored


def shaped(name: str, array: np.ndarray) -> tuple[str, Constants]:
    """A shape that is computed."""
    stored = {f"{name}0": array.reshape(-1), f"{name}like": np.zeros(array.shape, np.int8)}
    return f" {name}s = Shape ({name}like) {name} = Reshape ({name}0, {name}s)", stored


def layer(kind: str, chain: Chain, hidden: int) -> tuple[onnx.ModelProto, Constants]:
    rng, gates = np.random.default_rng(1), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    rows, x = gates * hidden, rng.normal(size=(3, 2, hidden)).astype(F32)
    w, r = (rng.normal(size=(2, rows, hidden)) / hidden**0.5 for _ in range(2))
    b = rng.normal(size=(2, 2 * rows, 1)) / 10
    made = [chain(name, each.astype(F32)) for name, each in (("W", w), ("R", r), ("B1", b))]
    nodes = "".join(each for each, _ in made) + " B = Reshape (B1, Bs) "
    nodes += f'Y = {kind} <hidden_size = {hidden}, direction = "bidirectional"> (X, W, R, B)'
    constants = {k: v for _, stored in made for k, v in stored.items()}
    constants["Bs"] = np.array([2, 2 * rows])
    return model(nodes, {"X": x}, ["Y"], constants=constants), {"X": x}


@pytest.mark.parametrize("chain", [halves, rounded, reordered, scaled, sliced, shaped])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_weights_that_operators_make_of_constants_load(kind: str, chain: Chain) -> None:
    made, feed = layer(kind, chain, 4)
    assert "Rnn" in [each.op for each in read(made).nodes]
    for mine, want in zip(ours(made, feed), theirs(made, feed), strict=True):
        assert_allclose(mine, want, rtol=1e-5, atol=1e-6)


def test_large_weights_load_too() -> None:
    made, _ = layer("LSTM", halves, 400)
    assert [each.op for each in read(made).nodes if each.op in ("Rnn", "Cast", "Concat")] == ["Rnn"]


def test_weights_inside_a_body_load(tmp_path: Path) -> None:
    """Those made outside of it and those made inside."""
    rng = np.random.default_rng(2)
    w, r = (rng.normal(size=(1, 12, n)).astype(F32) for n in (3, 4))
    (outside, stored), (inside, more) = halves("W", w), scaled("R", r)
    branch = f"""Y = If (yes) <
        then_branch = then () => (inner) {{ {inside} inner = GRU <hidden_size = 4> (X, W, R) }},
        else_branch = other () => (nothing) {{
            other = GRU <hidden_size = 4> (X, W, R0) nothing = Sub (other, other)
        }}
    >"""
    x = {"X": rng.normal(size=(3, 2, 3)).astype(F32), "yes": np.array(True)}
    made = model(f"{outside} {branch}", x, ["Y"], constants={**stored, **more})
    for mine, want in zip(ours(made, x), theirs(made, x), strict=True):
        assert_allclose(mine, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("narrow", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_round_trips_through_narrow_numbers_are_exact(narrow: int) -> None:
    """Every float16 and bfloat16, and what lies half way between two of them."""
    bits = np.arange(2**16, dtype=np.uint16)
    kind = np.float16 if narrow == TensorProto.FLOAT16 else ml_dtypes.bfloat16
    every = bits.view(kind).astype(F32)
    with np.errstate(all="ignore"):
        between = np.nextafter(every, F32(np.inf)) + (np.roll(every, 1) - every) / 2
        values = np.concatenate([every, between, -between])
        want = values.astype(kind).astype(F32)
    nodes = f"n = Cast <to = {narrow}> (c) w = Cast <to = 1> (n) Y = Where (yes, w, w)"
    yes = {"yes": np.array(True)}
    made = model(nodes, yes, ["Y"], constants={"c": values})
    assert [each.op for each in read(made).nodes] == ["Where"]
    (got,) = ours(made, yes)
    assert_array_equal(got, want)


def test_arithmetic_stays_in_the_graph() -> None:
    """The first step of an unrolled cell is one of zeros, and has to look like the others."""
    made = model("Y = Add (a, b)", {}, ["Y"], constants={"a": F32(1), "b": F32(2)})
    assert [each.op for each in read(made).nodes] == ["Add"]
    assert ours(made, {}) == [3]


@pytest.mark.parametrize(
    "text",
    [
        "Y = Expand (one, many)",
        "t = Tile (ones, many) Y = Tile (t, many)",
        "Y = ConstantOfShape (many)",
        "Y = Gather (ones, places)",
        " ".join(f"c{k + 1} = Concat <axis = 0> (c{k}, c{k})" for k in range(34))
        + " Y = Identity (c34)",
        "c0 = Transpose (ones) "
        + " ".join(f"c{k + 1} = Expand (c{k}, two)" for k in range(30))
        + " Y = Identity (c30)",
    ],
    ids=["expand", "tile", "fill", "gather", "concat", "expand-chain"],
)
def test_nothing_grows_beyond_a_bound(text: str) -> None:
    constants = {
        "one": np.ones((1, 1), F32),
        "ones": np.ones((8, 8), F32),
        "c0": np.ones(2, F32),
        "many": np.array([2**15, 2**15]),
        "two": np.array([2] * 3),
        "places": np.zeros((2**12, 2**4), np.int64),
    }
    nodes = parsed_nodes(text)
    used = {name for each in nodes for name in each.input}
    used -= {name for each in nodes for name in each.output}
    kept = {k: v for k, v in constants.items() if k in used}
    made, graphs = model(nodes, {}, ["Y"], constants=kept), []
    assert memory_peak(lambda: graphs.append(read(made))) < 2**26
    (lowered,) = graphs
    assert sum(array.nbytes for array in lowered.constants.values()) < 2**24
    assert lowered.nodes


def test_parameters_of_paddle_are_widened_wherever_the_cast_stands() -> None:
    """float16 -> transposed -> shaped -> cast -> joined into a gru's Weight: exactly."""
    rng = np.random.default_rng(5)
    weight = rng.uniform(-0.5, 0.5, (3, 9)).astype(np.float16)
    stored = {"a": np.ascontiguousarray(weight[:, :4].T), "b": weight[:, 4:].reshape(-1)}
    gru = op("gru Input=x Weight=w -> Hidden=y")
    chain = [
        op("transpose2 X=a -> Out=at", axis=[1, 0]),
        op("cast X=at -> Out=ac", in_dtype=4, out_dtype=5),
        op("reshape2 X=b -> Out=br", shape=[3, 5]),
        op("cast X=br -> Out=bc", in_dtype=4, out_dtype=5),
        op("concat X=ac,bc -> Out=w", axis=1),
    ]
    shapes = {"a": (4, 3), "b": (15,), "at": (3, 4), "br": (3, 5)}
    narrow = {n: Variable(n, 7, "float16", shape, 0, n in stored) for n, shape in shapes.items()}
    batch = {"x": Ragged(rng.uniform(-1, 1, (5, 9)).astype(F32), [0, 2, 5])}
    wide = {"x": Variable("x", 7, "float32", (None, 9), 1, False)}
    got, want = (
        reference(lower_program(each), batch)["y"]
        for each in (
            program(*chain, gru, parameters=stored, **wide, **narrow),
            program(gru, parameters={"w": weight.astype(F32)}, **wide),
        )
    )
    assert_array_equal(got.data, want.data)


def test_parameters_of_mxnet_may_be_cut_and_joined() -> None:
    """A flat vector out of slices of another: SliceChannel and Concat in front of RNN."""
    rng = np.random.default_rng(6)
    flat = rng.uniform(-0.5, 0.5, 2 * (3 * 2 + 2 * 2 + 2 + 2)).astype(F32)[: 3 * 2 + 2 * 2 + 2 + 2]
    cut = [flat[:7], flat[7:]]
    x, h = rng.normal(size=(4, 2, 3)).astype(F32), np.zeros((1, 2, 2), F32)
    rnn = {"mode": "rnn_tanh", "state_size": "2", "num_layers": "1"}

    def run(stored: Constants, *nodes: Any) -> Any:
        graph = lower_symbol(symbol(var("data"), var("state"), *nodes), stored)
        return next(iter(reference(graph, {"data": x, "state": h}).values()))

    def net(parameters: str) -> Any:
        return node(f"net = RNN data {parameters} state", **rnn)

    want = run({"w": flat}, var("w"), net("w"))
    joined = [
        *map(var, ("end", "begin")),
        node("w = Concat begin end", dim="0", num_args="2"),
        node("n = negative w"),
        node("nn = negative n"),
        net("nn"),
    ]
    assert_array_equal(run({"begin": cut[0], "end": cut[1]}, *joined), want)


def test_large_weights_do_not_stay_beside_what_is_made_of_them() -> None:
    """The chain holds at most two of its links, and what the same cast alone would need."""
    peaks = []
    for chain in (halves, narrow):
        data = layer("GRU", chain, 512)[0].SerializeToString()
        peaks.append(memory_peak(lambda data=data: lower_onnx(parse_model(data, Path("m.onnx")))))
    assert peaks[0] < 1.3 * peaks[1]


def test_a_large_constant_stays_as_long_as_anybody_reads_it() -> None:
    """Under two names, by an operator, by an output, and in a body."""
    big = np.arange(2**19, dtype=np.int32).reshape(2**9, 2**10)
    nodes = """
        t = Transpose (c)
        d = Dropout (t)
        i = Identity (d)
        r = Reshape (t, s)
        b = If (yes) <then_branch = then () => (float[] sum) { sum = Add (t, x) },
            else_branch = other () => (float[] same) { same = Identity (i) }>
        e = Sub (i, x)
        n = Neg (d)
        """
    feed = {"x": np.ones((1, 1), np.float32), "yes": np.array(True)}
    constants = {"c": big.astype(np.float32), "s": np.array([-1])}
    made = model(nodes, feed, [*"rbent"], constants=constants)
    for mine, want in zip(ours(made, feed), theirs(made, feed), strict=True):
        assert_array_equal(mine, want)
