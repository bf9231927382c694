"""Consecutive layers become one stack, or stay two with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from support.arrays import uniform
from support.fusing import check_fused, fired, fuse_and_check, reasons
from support.graphs import HIDDEN, INPUT, graph, small_graph
from support.layers import random_layer, random_ragged

from onernn import Cell, Graph, RnnSpec, fuse
from onernn.ir.graph import NativeOp, Node, Value


def layer(
    x: str,
    y: str,
    inputs: int,
    *,
    states: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    cell: Cell = Cell.LBR_GRU,
    seed: int = 0,
    projected: bool = False,
    **spec: Any,
) -> Node:
    spec.setdefault("direction", "bidirectional_concat")
    made = random_layer(RnnSpec(cell, inputs, HIDDEN, **spec), seed, projected=projected)
    return Node("Rnn", (x, *states), (y, *outputs), made, (NativeOp(seed, "gru"),))


@pytest.mark.parametrize("direction", ["left2right", "right2left", "bidirectional_concat"])
@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_GRU, Cell.LSTM, Cell.RNN_TANH])
def test_three_layers_become_one_stack(direction: str, cell: Cell) -> None:
    width = HIDDEN * (2 if direction == "bidirectional_concat" else 1)
    nodes = [
        layer("x", "a", INPUT, direction=direction, cell=cell, seed=1),
        layer("a", "b", width, direction=direction, cell=cell, seed=2),
        layer("b", "y", width, direction=direction, cell=cell, seed=3),
    ]
    result = fuse_and_check(graph(nodes, ["y"]))
    assert fired(result) == ["stack_layers"] * 2
    (rnn,) = result.model.nodes
    assert rnn.attributes["spec"].layers == 3 and len(rnn.attributes["weights"]) == 3
    assert [op.position for op in rnn.origin] == [1, 2, 3]


def test_a_stack_takes_a_layer_more() -> None:
    nodes = [
        layer("x", "a", INPUT, layers=2, seed=1),
        layer("a", "y", 2 * HIDDEN, seed=2),
    ]
    (rnn,) = fuse_and_check(graph(nodes, ["y"])).model.nodes
    assert rnn.attributes["spec"].layers == 3


X = Value("x", "float32", (None, INPUT), 1)


@pytest.mark.parametrize("cell", [Cell.LBR_GRU, Cell.LSTM])
def test_initial_states_are_joined_layer_by_layer(cell: Cell) -> None:
    names = ("ha", "hb") if cell is Cell.LBR_GRU else ("ha", "hb", "ca", "cb")
    of = {k: tuple(n for n in names if n.endswith(k)) for k in "ab"}
    nodes = [
        layer("x", "a", INPUT, cell=cell, states=of["a"], seed=1),
        layer("a", "y", 2 * HIDDEN, cell=cell, states=of["b"], seed=2),
    ]
    model = small_graph(nodes, "y", x=X, **dict.fromkeys(names, (1, 2, None, HIDDEN)))
    feed = {"x": random_ragged([3, 0, 2], INPUT, 0)}
    feed |= {name: uniform(1, 2, 3, HIDDEN, seed=k) for k, name in enumerate(names)}
    result = check_fused(model, feed, backends=("reference", "onednn"))
    assert fired(result) == ["stack_layers"]


FIRST, SECOND = layer("x", "a", INPUT, seed=1), layer("a", "y", 2 * HIDDEN, seed=2)
REFUSED: dict[str, tuple[list[Node], list[str]]] = {
    "the layers compute different cells": (
        [FIRST, layer("a", "y", 2 * HIDDEN, direction="left2right")],
        ["y"],
    ),
    "'a' has another user": ([FIRST, SECOND], ["y", "a"]),
    "a final state of one layer is used": (
        [layer("x", "a", INPUT, outputs=("h",)), SECOND],
        ["y", "h"],
    ),
    "the upper layer has no input weights": (
        [
            layer("x", "a", INPUT, direction="left2right", cell=Cell.RNN_TANH),
            layer("a", "y", 3, direction="left2right", cell=Cell.RNN_TANH, projected=True),
        ],
        ["y"],
    ),
    "oneDNN's own stacking joins layers in a different way": (
        [
            layer("x", "a", INPUT, stacking="onednn"),
            layer("a", "y", 2 * HIDDEN, stacking="onednn"),
        ],
        ["y"],
    ),
    "only one layer has an initial state": (
        [
            layer("x", "a", INPUT, direction="left2right", states=("h0",)),
            layer("a", "y", HIDDEN, direction="left2right"),
        ],
        ["y"],
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_stack_is_refused_with_a_reason(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    result = fuse_and_check(graph(nodes, outputs))
    assert reasons(result) == [f"stack_layers: {reason}"]


def attentive(*scales: str) -> Graph:
    """Two layers, each under an attention."""
    more = {"cell": Cell.AUGRU, "direction": "left2right"}
    nodes = [
        layer(x, y, size, states=("", "", scale), **more)
        for x, y, size, scale in zip("xa", "ay", (INPUT, HIDDEN), scales, strict=True)
    ]
    attentions = {name: Value(name, "float32", (None, 1), 1) for name in scales}
    return small_graph(nodes, "y", x=X, **attentions)


def test_layers_with_attentions_of_their_own_stay_apart() -> None:
    result = fuse(attentive("s", "t"))
    assert reasons(result) == ["stack_layers: each layer has an attention of its own"]


def test_layers_under_one_attention_become_a_stack() -> None:
    feed = {"x": random_ragged([3, 0, 5, 1], INPUT, 0), "s": random_ragged([3, 0, 5, 1], 1, 1)}
    (rnn,) = check_fused(attentive("s", "s"), feed, atol=1e-6).model.nodes
    assert rnn.inputs == ("x", "", "", "s")
