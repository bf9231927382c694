"""Scales and shifts of channels are folded into the convolution before them, or why not."""

from __future__ import annotations

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, fired, operators, reasons
from support.graphs import new_node, small_graph

from onernn import Graph, fuse
from onernn.fuse_passes.conv_scale import fuse_conv_scale
from onernn.ir.graph import Node

PASSES = (fuse_conv_scale,)
SHAPES = {
    "w": (4, 1, 3, 2),
    **dict.fromkeys(("bias", "scale", "shift", "mean"), (4,)),
    "column": (4, 1, 1),
    "column4": (1, 4, 1, 1),
    "number": (),
    "row": (5,),
    "image": (2, 4, 1, 1),
    "deep": (1, 1, 4, 1, 1),
    "two": (2,),
}
CONSTANTS = {
    **{name: uniform(*shape, seed=k) for k, (name, shape) in enumerate(SHAPES.items())},
    "variance": np.abs(uniform(4)) + np.float32(0.1),
    "huge": np.full((4, 1, 1), 3e38, np.float32),
    "eight": np.full((4, 1, 3, 2), 8, np.float32),
}
CONV = new_node("c = Conv x w bias", group=2, strides=(2, 1))
NORM = new_node("y = BatchNormalization c scale shift mean variance")
X = uniform(3, 2, 7, 6)


def model(*nodes: Node, outputs: str = "y", **constants: np.ndarray) -> Graph:
    constants = {**CONSTANTS, **constants}
    return small_graph(nodes, outputs, constants, x=(None, 2, None, None), given=None)


def mul(a: str, b: str, out: str = "y") -> Node:
    return new_node(f"{out} = Mul {a} {b}")


FOLDED = [
    (CONV, NORM),
    (new_node("c = Conv x w", group=2), NORM),
    *((CONV, mul("c", name)) for name in ("column", "column4", "number")),
    (CONV, mul("column", "c")),
    *((CONV, Node("Add", ("c", name), ("y",))) for name in ("column", "column4", "number")),
    (CONV, mul("c", "column", "d"), new_node("e = Add d number"), NORM.rename({"c": "e"})),
]


@pytest.mark.parametrize("nodes", FOLDED)
def test_what_scales_channels_is_part_of_the_weights(nodes: tuple[Node, ...]) -> None:
    feed = {"x": X, "given": CONSTANTS["column"]}
    fused = check_fused(model(*nodes), feed, passes=PASSES, atol=2e-5)
    assert operators(fused) == ["Conv"] and {*fired(fused)} == {"conv_scale"}
    assert fused.model.nodes[0].attributes == nodes[0].attributes


def test_weights_that_others_read_stay_as_they_are() -> None:
    other = new_node("z = Conv x w", group=2)
    fused = fuse(model(CONV, NORM, other, outputs="y z"), PASSES).model
    np.testing.assert_array_equal(fused.constants["w"], CONSTANTS["w"])
    assert {node.inputs[1] == "w" for node in fused.nodes} == {False, True}


@pytest.mark.parametrize(
    "nodes, outputs, reason",
    [
        ((CONV, NORM), "y c", "'c' has another user"),
        ((CONV, NORM, new_node("z = Neg c")), "y z", "'c' has another user"),
        ((CONV, mul("c", "given")), "y", "computed at run time"),
        ((CONV.rename({"w": "given"}), NORM), "y", "computed at run time"),
        ((CONV, mul("c", "row")), "y", "expected one value per channel"),
        ((CONV, mul("c", "image")), "y", "expected one value per channel"),
        ((CONV, mul("c", "deep")), "y", "more axes"),
        ((CONV, mul("c", "c")), "y", "both are the convolution"),
        ((CONV.rename({"w": "eight"}), mul("c", "huge")), "y", "infinite"),
    ],
)
def test_what_is_not_folded_has_a_reason(
    nodes: tuple[Node, ...], outputs: str, reason: str
) -> None:
    fused = fuse(model(*nodes, outputs=outputs), PASSES)
    assert fused.applied == () and [reason in each for each in reasons(fused)] == [True]


def test_numbers_that_do_not_fit_are_left_for_the_run() -> None:
    names = ("w", "bias", *NORM.inputs[1:])
    halves = {name: CONSTANTS[name].astype(np.float16) for name in names}
    below = {"variance": -CONSTANTS["variance"]}
    others = ({"mean": CONSTANTS["two"]}, below, {"bias": CONSTANTS["two"]}, halves)
    for constants in others:
        assert not fuse(model(CONV, NORM, **constants), PASSES).applied
