"""Two opposite directions and a concat become one bidirectional rnn, or stay with a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.fusing import check_fused, fired, fuse_and_check, layer_nodes, reasons
from support.graphs import (
    HIDDEN,
    INPUT,
    MATMUL,
    constants,
    graph,
    new_node,
    projected_gru,
    small_graph,
)
from support.layers import random_layer, random_ragged

from onernn import Cell, Graph, RnnSpec, fuse
from onernn.ir.graph import Node, Value

SECOND = new_node("xw2 = MatMul x w")
LEFT, RIGHT = {"direction": "left2right"}, {"direction": "right2left"}


def pair(first: dict, second: dict, order: str = "yz", axis: int = 1) -> list[Node]:
    return [
        MATMUL,
        SECOND,
        *projected_gru("y", "xw", **first),
        *projected_gru("z", "xw2", seed=3, **second),
        Node("Concat", tuple(order), ("yz",), {"axis": axis}),
    ]


@pytest.mark.parametrize("state", ["", "h0"], ids=["zero states", "initial states"])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_pair_becomes_one_node(state: str, axis: int) -> None:
    nodes = pair({**LEFT, "state": state}, {**RIGHT, "state": state}, axis=axis)
    result = fuse_and_check(graph(nodes, ["yz"], **constants()))
    assert fired(result) == ["linear_rnn", "linear_rnn", "bidirectional"]
    (rnn,) = layer_nodes(result)
    assert rnn.outputs[0] == "yz"
    assert rnn.attributes["spec"].direction == "bidirectional_concat"


@pytest.mark.parametrize("state", ["", "h0"], ids=["zero states", "initial states"])
@pytest.mark.parametrize("read", ["h", "hk", "k"], ids=["forward", "both", "backward"])
def test_a_pair_whose_final_states_are_read_gives_them(state: str, read: str) -> None:
    """One of them before the concat, and as the graph's own output."""
    ends = {"y": ("y", "h"), "z": ("z", "k")}
    first, second = ({"state": state, "outputs": ends[each]} for each in "yz")
    nodes = pair({**LEFT, **first}, {**RIGHT, **second})
    nodes[-1:-1] = [Node("Tanh", (read[-1],), ("squashed",))]
    result = fuse_and_check(graph(nodes, ["yz", "squashed", *read], **constants()))
    assert fired(result)[-1] == "bidirectional" and result.refusals == ()
    (rnn,) = layer_nodes(result)
    assert rnn.attributes["spec"].direction == "bidirectional_concat"


def test_final_states_that_nobody_reads_are_not_made() -> None:
    nodes = pair({**LEFT, "outputs": ("y", "h")}, {**RIGHT, "outputs": ("z", "k")})
    model = fuse_and_check(graph(nodes, ["yz"], **constants())).model
    assert [node.op for node in model.nodes] == ["Rnn"]


def two(cell: Cell, *outputs: str, attention: tuple[str, ...] = ("", "")) -> Graph:
    """Both directions over x, with as many outputs as are named behind y and z."""
    nodes = []
    for name, side, scale in zip("yz", (LEFT, RIGHT), attention, strict=True):
        ends = tuple(f"{name}{end}" for end in ("", *outputs))
        layer = random_layer(RnnSpec(cell, INPUT, HIDDEN, **side), ord(name))
        nodes.append(Node("Rnn", ("x", "", "", scale), ends, layer))
    nodes.append(new_node("yz = Concat y z", axis=1))
    values = {each: Value(each, "float32", (None, 1), 1) for each in attention if each}
    values["x"] = Value("x", "float32", (None, INPUT), 1)
    return small_graph(nodes, "yz", h0=(1, 1, None, HIDDEN), **values)


def test_an_lstm_pair_gives_either_state_of_either_direction() -> None:
    model = two(Cell.LSTM, "h", "c")
    for read in (["yc"], ["zh", "yc"], ["yh", "yc", "zh", "zc"]):
        outputs = (*model.outputs, *map(Value, read))
        result = fuse_and_check(replace(model, outputs=outputs))
        assert fired(result) == ["bidirectional"]


def test_pairs_with_initial_states_become_a_stack() -> None:
    """Whose states are joined twice, under two names."""
    upper = [
        Node("Rnn", ("yz", f"{name}0"), (name,), random_layer(spec, 5))
        for name, side in (("u", LEFT), ("v", RIGHT))
        for spec in (RnnSpec(Cell.GRU, 2 * HIDDEN, HIDDEN, **side),)
    ]
    chain = ("h0", "a", "u0", "v0")  # a state of its own for each direction
    states = [Node("Tanh", each[:1], each[1:]) for each in zip(chain, chain[1:], strict=False)]
    nodes = [*states, *pair({**LEFT, "state": "h0"}, {**RIGHT, "state": "a"}), *upper]
    nodes.append(new_node("uv = Concat u v", axis=1))
    result = fuse_and_check(graph(nodes, ["uv"], **constants()))
    assert fired(result)[-3:] == ["bidirectional"] * 2 + ["stack_layers"]


def test_directions_under_one_attention_are_a_pair() -> None:
    feed = {"x": random_ragged([3, 0, 5, 1], INPUT, 0), "s": random_ragged([3, 0, 5, 1], 1, 1)}
    feed["h0"] = np.zeros((1, 1, 4, HIDDEN), np.float32)
    result = check_fused(two(Cell.AUGRU, attention=("s", "s")), feed, atol=1e-6)
    (rnn,) = layer_nodes(result)
    assert fired(result) == ["bidirectional"] and rnn.inputs[3] == "s"


def test_cells_of_every_word_and_two_attentions_are_refused() -> None:
    model = two(Cell.LSTM, "h", "c", "cells")
    result = fuse(replace(model, outputs=(*model.outputs, Value("zcells"))))
    assert reasons(result) == [
        "bidirectional: the cell state of every step of one direction is read"
    ]
    assert fuse(model).applied
    apart = fuse(two(Cell.AUGRU, attention=("s", "t")))
    assert reasons(apart) == ["bidirectional: each direction has an attention of its own"]


REFUSED = {
    "the halves do not run left to right, then right to left": (pair(LEFT, LEFT), ["yz"]),
    "the directions are not concatenated along the channels": (pair(LEFT, RIGHT, axis=0), ["yz"]),
    "the directions compute different cells": (
        pair(LEFT, {**RIGHT, "activations": ("sigmoid", "relu")}),
        ["yz"],
    ),
    "'y' has another user": (pair(LEFT, RIGHT), ["yz", "y"]),
    "only one direction has an initial state": (pair({**LEFT, "state": "h0"}, RIGHT), ["yz"]),
    "one direction starts from the result of the other": (
        pair({**LEFT, "outputs": ("y", "h"), "state": "h0"}, {**RIGHT, "state": "half"}),
        ["yz"],
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_pair_is_refused_with_a_reason(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    if "starts from" in reason:  # through another operator
        nodes = [*nodes[:4], new_node("half = Tanh h"), *nodes[4:]]
    built = graph(nodes, outputs, **constants())
    result = fuse(built) if "channels" in reason else fuse_and_check(built)
    assert reasons(result) == [f"bidirectional: {reason}"]


def test_the_wrong_order_of_halves_is_refused() -> None:
    result = fuse_and_check(graph(pair(LEFT, RIGHT, "zy"), ["yz"], **constants()))
    assert reasons(result) == [f"bidirectional: {[*REFUSED][0]}"]


def test_different_inputs_are_refused() -> None:
    nodes = pair(LEFT, RIGHT)
    nodes[1:2] = [new_node("x2 = Tanh x"), new_node("xw2 = MatMul x2 w")]
    result = fuse_and_check(graph(nodes, ["yz"], **constants()))
    assert reasons(result) == ["bidirectional: the directions read different inputs"]
