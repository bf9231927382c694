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
RNN = new_node("Rnn", "x", "y h c", spec=SPEC, weights=random_weights(SPEC, 0))


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
    new_node("Shape", "x", "shape"),
    new_node("Gather", "shape last", "width"),
    new_node("Div", "width two", "half"),
    new_node("Slice", "x zero half last", "y"),
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
    nodes = [RNN, Node("Squeeze", (value, "axes"), ("flat",)), new_node("Shape", "flat", "s")]
    axes = {"y": [0], "h": [0, 1]}[value]
    graph = graph_of(nodes, "s", {"axes": axes}, (1, None, 6))
    assert "Rnn" not in check(graph, x=X[:1])


def test_a_layer_whose_part_is_measured_stays() -> None:
    nodes = [RNN, new_node("Shape", "y", "s", start=1)]
    assert "Rnn" in check(graph_of(nodes, "s", {}, (None, None, 6)))


def scan(step: list[Node], result: str, axis: int = 0) -> Graph:
    """A scan over an LSTM of one step, which collects ``result``."""
    layer = new_node("Rnn", "x1 h1 c1", "y h2 c2", **RNN.attributes)
    nodes = [
        new_node("Unsqueeze", "x_t first", "x1"),
        new_node("Unsqueeze", "h both", "h1"),
        new_node("Unsqueeze", "c both", "c1"),
        layer,
        new_node("Squeeze", "h2 both", "h_new"),
        new_node("Squeeze", "c2 both", "c_new"),
        *step,
    ]
    faces = [Value(k, "float32", (None, w)) for k, w in (("h", 5), ("c", 5), ("x_t", 6))]
    outputs = [Value(k, "float32") for k in ("h_new", "c_new", result)]
    constants = {"first": np.array([0]), "both": np.array([0, 1]), "at": np.array([axis])}
    body = Graph("body", tuple(faces), tuple(outputs), tuple(nodes), constants)
    node = new_node("Scan", "begin begin x", "h_end c_end all", **scan_attributes(body, 2))
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
    assert "Scan" in check(scan([new_node("Neg", "c_new", "neg")], "neg"))


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
        new_node("Gemm", "x_t w b", "xw"),
        new_node("MatMul", "h u", "hu"),
        new_node("Split", "xw sizes", "xr xz xn", axis=1),
        new_node("Split", "hu sizes", "hr hz hn", axis=1),
        new_node("Add", "xr hr", "ar"),
        new_node("Sigmoid", "ar", "r"),
        new_node("Add", "xz hz", "az"),
        new_node("Sigmoid", "az", "z"),
        new_node("Mul", "r hn", "rh"),
        new_node("Add", "xn rh", "an"),
        new_node("Tanh", "an", "n"),
        Node("Sub", (one, other), ("apart",)),
        new_node("Mul", "z apart", "moved"),
        Node("Add", (end, "moved"), ("new",)),
    ]
    faces = (Value("h", "float32", (None, 5)), Value("x_t", "float32", (None, 6)))
    constants = {k: v.astype(np.float32) for k, v in arrays.items()} | sizes
    outputs = (Value("new", "float32"), Value("new", "float32"))
    body = Graph("body", faces, outputs, tuple(nodes), constants)
    node = new_node("Scan", "begin x", "end all", **scan_attributes(body, 1))
    begin = rng.normal(size=(3, 5)).astype(np.float32)
    graph = graph_of([node], "end all", {"begin": begin}, (None, 3, 6))
    kinds = check(graph)
    assert "Rnn" in kinds and "Scan" not in kinds
