"""Sizes that are computed become numbers, layers are not run for sizes, axes leave scans."""

from __future__ import annotations

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_node, small_graph
from support.layers import random_layer

from onernn import Cell, Graph, RnnSpec
from onernn.ir.graph import Node
from onernn.ops.control import scan_attributes

X = uniform(4, 3, 6)
SPEC = RnnSpec(Cell.LSTM, 6, 5)
RNN = new_node("y h c = Rnn x", **random_layer(SPEC, 0))


def check(graph: Graph, x: np.ndarray = X) -> set[str]:
    """Fused, it gives what it gave; the kinds of its nodes."""
    return {*operators(check_fused(graph, {"x": x}, backends=("reference", "auto"), atol=1e-6))}


CUT = [
    new_node("shape = Shape x"),
    new_node("width = Gather shape last"),
    new_node("half = Div width two"),
    new_node("y = Slice x zero half last"),
]
NUMBERS = {"last": [2], "two": [2], "zero": [0]}


def test_sizes_that_are_known_are_constants() -> None:
    assert check(small_graph(CUT, "y", NUMBERS, x=(None, None, 6))) == {"Slice"}


def test_sizes_with_a_name_stay_computed() -> None:
    numbers = {**NUMBERS, "last": [1]}
    assert "Shape" in check(small_graph(CUT, "y", numbers, x=(None, None, 6)))


def test_an_output_stays_what_a_node_makes() -> None:
    assert "Div" in check(small_graph(CUT, "y half", NUMBERS, x=(None, None, 6)))


@pytest.mark.parametrize("value", ["y", "h"])
def test_a_layer_is_not_run_for_its_sizes(value: str) -> None:
    nodes = [RNN, new_node(f"flat = Squeeze {value} axes"), new_node("s = Shape flat")]
    axes = {"y": [0], "h": [0, 1]}[value]
    graph = small_graph(nodes, "s", {"axes": axes}, x=(1, None, 6))
    assert "Rnn" not in check(graph, x=X[:1])


def test_a_layer_whose_part_is_measured_stays() -> None:
    nodes = [RNN, new_node("s = Shape y", start=1)]
    assert "Rnn" in check(small_graph(nodes, "s", x=(None, None, 6)))


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
    constants, faces = {"first": [0], "both": [0, 1], "at": [axis]}, {"h": 5, "c": 5, "x_t": 6}
    shapes = {name: (None, width) for name, width in faces.items()}
    body = small_graph(nodes, f"h_new c_new {result}", constants, **shapes)
    node = new_node("h_end c_end all = Scan begin begin x", **scan_attributes(body, 2))
    return small_graph([node], "h_end c_end all", {"begin": uniform(3, 5)}, x=(None, 3, 6))


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
    arrays = {"w": uniform(6, 15), "u": uniform(5, 15), "b": uniform(15), "sizes": [5, 5, 5]}
    end, (one, other) = ("n", ("h", "n")) if way[0] == "n" else ("h", ("n", "h"))
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
    body = small_graph(nodes, "new new", arrays, h=(None, 5), x_t=(None, 6))
    node = new_node("end all = Scan begin x", **scan_attributes(body, 1))
    kinds = check(small_graph([node], "end all", {"begin": uniform(3, 5)}, x=(None, 3, 6)))
    assert "Rnn" in kinds and "Scan" not in kinds
