"""Two opposite directions and a concat become one bidirectional rnn, or stay with a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.fusing import fuse_and_check
from support.graphs import HIDDEN, INPUT, MATMUL, constants, graph, new_node, projected_gru
from support.layers import random_ragged, random_weights

from onernn import Cell, Graph, RnnSpec, Session, fuse
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
    assert [a.name for a in result.applied] == ["linear_rnn", "linear_rnn", "bidirectional"]
    rnn = result.model.producer("yz")
    assert rnn is not None
    assert rnn.attributes["spec"].direction == "bidirectional_concat"
    assert sum(node.op == "Rnn" for node in result.model.nodes) == 1


@pytest.mark.parametrize("state", ["", "h0"], ids=["zero states", "initial states"])
@pytest.mark.parametrize("read", ["h", "hk", "k"], ids=["forward", "both", "backward"])
def test_a_pair_whose_final_states_are_read_gives_them(state: str, read: str) -> None:
    """One of them before the concat, and as the graph's own output."""
    ends = {"y": ("y", "h"), "z": ("z", "k")}
    first, second = ({"state": state, "outputs": ends[each]} for each in "yz")
    nodes = pair({**LEFT, **first}, {**RIGHT, **second})
    nodes[-1:-1] = [Node("Tanh", (read[-1],), ("squashed",))]
    result = fuse_and_check(graph(nodes, ["yz", "squashed", *read], **constants()))
    assert [a.name for a in result.applied][-1] == "bidirectional" and result.refusals == ()
    (rnn,) = (node for node in result.model.nodes if node.op == "Rnn")
    assert rnn.attributes["spec"].direction == "bidirectional_concat"


def test_final_states_that_nobody_reads_are_not_made() -> None:
    nodes = pair({**LEFT, "outputs": ("y", "h")}, {**RIGHT, "outputs": ("z", "k")})
    model = fuse_and_check(graph(nodes, ["yz"], **constants())).model
    assert [node.op for node in model.nodes] == ["Rnn"]


def two(cell: Cell, *outputs: str, attention: tuple[str, ...] = ("", "")) -> Graph:
    """Both directions over x, with as many outputs as are named behind y and z."""
    nodes = []
    for k, (direction, name) in enumerate((("left2right", "y"), ("right2left", "z"))):
        spec = RnnSpec(cell, INPUT, HIDDEN, direction=direction)
        (weights,) = random_weights(spec, k)
        ends = tuple(f"{name}{end}" for end in ("", *outputs))
        attributes = {"spec": spec, "weights": weights}
        nodes.append(Node("Rnn", ("x", "", "", attention[k]), ends, attributes))
    nodes.append(new_node("yz = Concat y z", axis=1))
    scales = [Value(each, "float32", (None, 1), 1) for each in dict.fromkeys(attention) if each]
    made = graph([], ["x"])
    inputs = (*made.inputs, *scales)
    return replace(made, inputs=inputs, nodes=tuple(nodes), outputs=(Value("yz"),))


def test_an_lstm_pair_gives_either_state_of_either_direction() -> None:
    model = two(Cell.LSTM, "h", "c")
    for read in (["yc"], ["zh", "yc"], ["yh", "yc", "zh", "zc"]):
        outputs = (*model.outputs, *map(Value, read))
        result = fuse_and_check(replace(model, outputs=outputs))
        assert [each.name for each in result.applied] == ["bidirectional"]


def test_pairs_with_initial_states_become_a_stack() -> None:
    """Whose states are joined twice, under two names."""
    spec = RnnSpec(Cell.GRU, 2 * HIDDEN, HIDDEN)
    upper = []
    for name, direction in (("u", "left2right"), ("v", "right2left")):
        one = replace(spec, direction=direction)
        (weights,) = random_weights(one, 5)
        upper.append(Node("Rnn", ("yz", f"{name}0"), (name,), {"spec": one, "weights": weights}))
    chain = ("h0", "a", "u0", "v0")  # a state of its own for each direction
    states = [Node("Tanh", each[:1], each[1:]) for each in zip(chain, chain[1:], strict=False)]
    nodes = [*states, *pair({**LEFT, "state": "h0"}, {**RIGHT, "state": "a"}), *upper]
    nodes.append(new_node("uv = Concat u v", axis=1))
    result = fuse_and_check(graph(nodes, ["uv"], **constants()))
    assert [a.name for a in result.applied][-3:] == ["bidirectional"] * 2 + ["stack_layers"]


def test_directions_under_one_attention_are_a_pair() -> None:
    model = two(Cell.AUGRU, attention=("s", "s"))
    result = fuse(model)
    (rnn,) = (node for node in result.model.nodes if node.op == "Rnn")
    assert [a.name for a in result.applied] == ["bidirectional"] and rnn.inputs[3] == "s"
    feed = {"x": random_ragged([3, 0, 5, 1], INPUT, 0), "s": random_ragged([3, 0, 5, 1], 1, 1)}
    feed["h0"] = np.zeros((1, 1, 4, HIDDEN), np.float32)
    want, got = (
        Session(model, backend="reference", passes=passes).run(feed)["yz"].data
        for passes in ((), None)
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_cells_of_every_word_and_two_attentions_are_refused() -> None:
    model = two(Cell.LSTM, "h", "c", "cells")
    result = fuse(replace(model, outputs=(*model.outputs, Value("zcells"))))
    assert [r.reason for r in result.refusals] == [
        "bidirectional: the cell of every word of one direction is used"
    ]
    assert fuse(model).applied
    (refusal,) = fuse(two(Cell.AUGRU, attention=("s", "t"))).refusals
    assert refusal.reason == "bidirectional: each direction has an attention of its own"


REFUSED = {
    "the halves do not run left to right, then right to left": (pair(LEFT, LEFT), ["yz"]),
    "the directions compute different cells": (
        pair(LEFT, {**RIGHT, "activations": ("sigmoid", "relu")}),
        ["yz"],
    ),
    "'y' has another user": (pair(LEFT, RIGHT), ["yz", "y"]),
    "only one direction has an initial state": (pair({**LEFT, "state": "h0"}, RIGHT), ["yz"]),
    "one direction starts from what the other one gives": (
        pair({**LEFT, "outputs": ("y", "h"), "state": "h0"}, {**RIGHT, "state": "half"}),
        ["yz"],
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_pair_is_refused_with_a_reason(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    if "starts from" in reason:  # through another operator
        nodes = [*nodes[:4], new_node("half = Tanh h"), *nodes[4:]]
    result = fuse_and_check(graph(nodes, outputs, **constants()))
    assert [r.reason for r in result.refusals] == [f"bidirectional: {reason}"]


def test_the_wrong_order_of_halves_is_refused() -> None:
    result = fuse_and_check(graph(pair(LEFT, RIGHT, "zy"), ["yz"], **constants()))
    assert "left to right, then right to left" in result.refusals[0].reason


def test_different_inputs_are_refused() -> None:
    nodes = pair(LEFT, RIGHT)
    nodes[1:2] = [new_node("x2 = Tanh x"), new_node("xw2 = MatMul x2 w")]
    result = fuse_and_check(graph(nodes, ["yz"], **constants()))
    assert [r.reason for r in result.refusals] == [
        "bidirectional: the directions read different inputs"
    ]


def test_a_concat_of_sentences_is_refused() -> None:
    (refusal,) = fuse(graph(pair(LEFT, RIGHT, axis=0), ["yz"], **constants())).refusals
    assert refusal.reason == "bidirectional: the directions are not concatenated along the channels"
