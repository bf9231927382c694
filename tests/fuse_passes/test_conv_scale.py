"""Scales and shifts of channels are folded into the convolution before them, or why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, unfused

from onernn import Graph, fuse
from onernn.fuse_passes.conv_scale import fuse_conv_scale
from onernn.ir.graph import Node, Value

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


CONSTANTS = {
    "w": floats(4, 1, 3, 2),
    "bias": floats(4),
    "scale": floats(4),
    "shift": floats(4),
    "mean": floats(4),
    "variance": np.abs(floats(4)) + np.float32(0.1),
    "column": floats(4, 1, 1),
    "column4": floats(1, 4, 1, 1),
    "number": floats(),
    "row": floats(5),
    "image": floats(2, 4, 1, 1),
    "deep": floats(1, 1, 4, 1, 1),
    "two": floats(2),
    "huge": np.full((4, 1, 1), 3e38, np.float32),
    "eight": np.full((4, 1, 3, 2), 8, np.float32),
}
CONV = new_node("c = Conv x w bias", group=2, strides=(2, 1))
NORM = new_node("y = BatchNormalization c scale shift mean variance")
X = floats(3, 2, 7, 6)


def model(*nodes: Node, outputs: str = "y", **constants: np.ndarray) -> Graph:
    inputs = (Value("x", "float32", (None, 2, None, None)), Value("given", "float32", None))
    results = tuple(map(Value, outputs.split()))
    return Graph("model", inputs, results, nodes, {**CONSTANTS, **constants})


def run(graph: Graph) -> Any:
    feed = {"x": X, "given": CONSTANTS["column"]}
    return unfused(graph, feed)["y"]


def mul(a: str, b: str, out: str = "y") -> Node:
    return Node("Mul", (a, b), (out,))


FOLDED = [
    (CONV, NORM),
    (new_node("c = Conv x w", group=2), NORM),
    *((CONV, mul("c", name)) for name in ("column", "column4", "number")),
    (CONV, mul("column", "c")),
    *((CONV, Node("Add", ("c", name), ("y",))) for name in ("column", "column4", "number")),
    (CONV, mul("c", "column", "d"), new_node("e = Add d number"), NORM.renamed({"c": "e"})),
]


@pytest.mark.parametrize("nodes", FOLDED)
def test_what_scales_channels_is_part_of_the_weights(nodes: tuple[Node, ...]) -> None:
    graph = model(*nodes)
    fused = fuse(graph, (fuse_conv_scale,))
    assert [node.op for node in fused.model.nodes] == ["Conv"]
    assert {each.name for each in fused.applied} == {"conv_scale"}
    np.testing.assert_allclose(run(fused.model), run(graph), rtol=2e-5, atol=2e-5)
    assert fused.model.nodes[0].attributes == nodes[0].attributes


def test_weights_that_others_read_stay_as_they_are() -> None:
    other = new_node("z = Conv x w", group=2)
    fused = fuse(model(CONV, NORM, other, outputs="y z"), (fuse_conv_scale,)).model
    np.testing.assert_array_equal(fused.constants["w"], CONSTANTS["w"])
    assert {node.inputs[1] == "w" for node in fused.nodes} == {False, True}


@pytest.mark.parametrize(
    "nodes, outputs, reason",
    [
        ((CONV, NORM), "y c", "'c' has another user"),
        ((CONV, NORM, new_node("z = Neg c")), "y z", "'c' has another user"),
        ((CONV, mul("c", "given")), "y", "computed at run time"),
        ((CONV.renamed({"w": "given"}), NORM), "y", "computed at run time"),
        ((CONV, mul("c", "row")), "y", "not one number a channel"),
        ((CONV, mul("c", "image")), "y", "not one number a channel"),
        ((CONV, mul("c", "deep")), "y", "more axes"),
        ((CONV, mul("c", "c")), "y", "both are the convolution"),
        ((CONV.renamed({"w": "eight"}), mul("c", "huge")), "y", "infinite"),
    ],
)
def test_what_is_not_folded_has_a_reason(
    nodes: tuple[Node, ...], outputs: str, reason: str
) -> None:
    fused = fuse(model(*nodes, outputs=outputs), (fuse_conv_scale,))
    assert fused.applied == () and [reason in str(each) for each in fused.refusals] == [True]


def test_numbers_that_do_not_fit_are_left_for_the_run() -> None:
    for node in (NORM.renamed({"mean": "two"}), NORM.renamed({"variance": "mean"})):
        assert not fuse(model(CONV, node), (fuse_conv_scale,)).applied
    assert not fuse(model(CONV.renamed({"bias": "two"}), NORM), (fuse_conv_scale,)).applied
    names = ("w", "bias", *NORM.inputs[1:])
    halves = {name: CONSTANTS[name].astype(np.float16) for name in names}
    assert not fuse(model(CONV, NORM, **halves), (fuse_conv_scale,)).applied
