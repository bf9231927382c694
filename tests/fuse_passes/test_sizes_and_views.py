"""Sizes that are computed become numbers, layers are not run for sizes, axes leave scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import new_node
from support.layers import random_weights

from onernn import Cell, Graph, RnnSpec, Session, fuse
from onernn.ir.graph import Node, Value
from onernn.ops.control import scan_attributes

X = np.random.default_rng(0).normal(size=(4, 3, 6)).astype(np.float32)
SPEC = RnnSpec(Cell.LSTM, 6, 5)
RNN = new_node("y h c = Rnn x", spec=SPEC, weights=random_weights(SPEC, 0))


def graph_of(nodes: list[Node], outputs: str, constants: dict[str, Any], shape: tuple) -> Graph:
    arrays = {name: np.array(value) for name, value in constants.items()}
    wanted = tuple(map(Value, outputs.split()))
    return Graph("m", (Value("x", "float32", shape),), wanted, tuple(nodes), arrays)


def check(graph: Graph, **feed: np.ndarray) -> set[str]:
    """Fused, it gives what it gave; the kinds of its nodes."""
    feed = {"x": X, **feed}
    want, got = Session(graph, passes=()).run(feed), Session(graph).run(feed)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)
    return {node.op for node in fuse(graph).model.nodes}


CUT = [
    new_node("shape = Shape x"),
    new_node("width = Gather shape last"),
    new_node("half = Div width two"),
    new_node("y = Slice x zero half last"),
]
NUMBERS = {"last": [2], "two": [2], "zero": [0]}


def test_sizes_that_are_known_are_constants() -> None:
    assert check(graph_of(CUT, "y", NUMBERS, (None, None, 6))) == {"Slice"}


def test_sizes_with_a_name_stay_computed() -> None:
    numbers = {**NUMBERS, "last": [1]}
    assert "Shape" in check(graph_of(CUT, "y", numbers, (None, None, 6)))


def test_an_output_stays_what_a_node_makes() -> None:
    assert "Div" in check(graph_of(CUT, "y half", NUMBERS, (None, None, 6)))


@pytest.mark.parametrize("value", ["y", "h"])
def test_a_layer_is_not_run_for_its_sizes(value: str) -> None:
    nodes = [RNN, Node("Squeeze", (value, "axes"), ("flat",)), new_node("s = Shape flat")]
    axes = {"y": [0], "h": [0, 1]}[value]
    graph = graph_of(nodes, "s", {"axes": axes}, (1, None, 6))
    assert "Rnn" not in check(graph, x=X[:1])


def test_a_layer_whose_part_is_measured_stays() -> None:
    nodes = [RNN, new_node("s = Shape y", start=1)]
    assert "Rnn" in check(graph_of(nodes, "s", {}, (None, None, 6)))


def scan(step: list[Node], result: str, axis: int = 0) -> Graph:
    """A scan over an LSTM of one step, which collects ``result``."""
    layer = new_node("y h2 c2 = Rnn x1 h1 c1", **RNN.attributes)
    nodes = [
        new_node("x1 = Unsqueeze x_t first"),
        new_node("h1 = Unsqueeze h both"),
        new_node("c1 = Unsqueeze c both"),
        layer,
        new_node("h_new = Squeeze h2 both"),
        new_node("c_new = Squeeze c2 both"),
        *step,
    ]
    faces = [Value(k, "float32", (None, w)) for k, w in (("h", 5), ("c", 5), ("x_t", 6))]
    outputs = [Value(k, "float32") for k in ("h_new", "c_new", result)]
    constants = {"first": np.array([0]), "both": np.array([0, 1]), "at": np.array([axis])}
    body = Graph("body", tuple(faces), tuple(outputs), tuple(nodes), constants)
    node = new_node("h_end c_end all = Scan begin begin x", **scan_attributes(body, 2))
    begin = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    return graph_of([node], "h_end c_end all", {"begin": begin}, (None, 3, 6))


@pytest.mark.parametrize("state", ["h_new", "c_new"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_a_scan_may_collect_h_or_c_with_an_axis_more(state: str, axis: int | None) -> None:
    wide = [] if axis is None else [Node("Unsqueeze", (state, "at"), ("wide",))]
    graph = scan(wide, "wide" if wide else state, axis or 0)
    kinds = check(graph)
    assert "Rnn" in kinds and "Scan" not in kinds


def test_what_is_computed_of_a_state_is_collected_by_a_scan() -> None:
    assert "Scan" in check(scan([new_node("neg = Neg c_new")], "neg"))


@pytest.mark.parametrize("way", ["n + z * (h - n)", "h + z * (n - h)"])
def test_a_gru_between_two_values_is_one(way: str) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.normal(size=(6, 15)),
        "u": rng.normal(size=(5, 15)),
        "b": rng.normal(size=15),
    }
    end, (one, other) = ("n", ("h", "n")) if way[0] == "n" else ("h", ("n", "h"))
    sizes = {"sizes": np.array([5, 5, 5])}
    nodes = [
        new_node("xw = Gemm x_t w b"),
        new_node("hu = MatMul h u"),
        new_node("xr xz xn = Split xw sizes", axis=1),
        new_node("hr hz hn = Split hu sizes", axis=1),
        new_node("ar = Add xr hr"),
        new_node("r = Sigmoid ar"),
        new_node("az = Add xz hz"),
        new_node("z = Sigmoid az"),
        new_node("rh = Mul r hn"),
        new_node("an = Add xn rh"),
        new_node("n = Tanh an"),
        Node("Sub", (one, other), ("apart",)),
        new_node("moved = Mul z apart"),
        Node("Add", (end, "moved"), ("new",)),
    ]
    faces = (Value("h", "float32", (None, 5)), Value("x_t", "float32", (None, 6)))
    constants = {k: v.astype(np.float32) for k, v in arrays.items()} | sizes
    outputs = (Value("new", "float32"), Value("new", "float32"))
    body = Graph("body", faces, outputs, tuple(nodes), constants)
    node = new_node("end all = Scan begin x", **scan_attributes(body, 1))
    begin = rng.normal(size=(3, 5)).astype(np.float32)
    graph = graph_of([node], "end all", {"begin": begin}, (None, 3, 6))
    kinds = check(graph)
    assert "Rnn" in kinds and "Scan" not in kinds
