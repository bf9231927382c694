"""Two opposite directions and a concat become one bidirectional rnn, or stay with a reason."""

from __future__ import annotations

import pytest
from support.fusing import fuse_and_check
from support.graphs import MATMUL, constants, graph, projected_gru

from onernn import fuse
from onernn.core.graph import Node

SECOND = Node("MatMul", ("x", "w"), ("xw2",))
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


REFUSED = {
    "the halves do not run left to right, then right to left": (pair(LEFT, LEFT), ["yz"]),
    "the directions compute different cells": (
        pair(LEFT, {**RIGHT, "activations": ("sigmoid", "relu")}),
        ["yz"],
    ),
    "'y' has another user": (pair(LEFT, RIGHT), ["yz", "y"]),
    "only one direction has an initial state": (pair({**LEFT, "state": "h0"}, RIGHT), ["yz"]),
    "a final state of one direction is used": (
        pair({**LEFT, "outputs": ("y", "h")}, RIGHT),
        ["yz", "h"],
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_pair_is_refused_with_a_reason(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    result = fuse_and_check(graph(nodes, outputs, **constants()))
    assert [r.reason for r in result.refusals] == [f"bidirectional: {reason}"]


def test_the_wrong_order_of_halves_is_refused() -> None:
    result = fuse_and_check(graph(pair(LEFT, RIGHT, "zy"), ["yz"], **constants()))
    assert "left to right, then right to left" in result.refusals[0].reason


def test_different_inputs_are_refused() -> None:
    nodes = pair(LEFT, RIGHT)
    nodes[1:2] = [Node("Tanh", ("x",), ("x2",)), Node("MatMul", ("x2", "w"), ("xw2",))]
    result = fuse_and_check(graph(nodes, ["yz"], **constants()))
    assert [r.reason for r in result.refusals] == [
        "bidirectional: the directions read different inputs"
    ]


def test_a_concat_of_sentences_is_refused() -> None:
    (refusal,) = fuse(graph(pair(LEFT, RIGHT, axis=0), ["yz"], **constants())).refusals
    assert refusal.reason == "bidirectional: the directions are not concatenated along the channels"
