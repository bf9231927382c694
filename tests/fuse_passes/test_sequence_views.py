"""Offsets dropped and given back around row-wise operators."""

from __future__ import annotations

from support.fusing import fired, fuse_and_check, reasons
from support.graphs import ADD, MATMUL, constants, graph, new_node, projected_gru

from onernn.ir.graph import Node


def dropped(*middle: Node, made: str) -> list[Node]:
    return [*middle, Node("SequenceLike", (made, "x"), ("back",))]


DROP = new_node("dense = SequenceData x")
DENSE_MATMUL = new_node("xw = MatMul dense w")


def test_an_rnn_behind_a_view_is_fused_with_its_projection() -> None:
    nodes = [*dropped(DROP, DENSE_MATMUL, ADD, made="xwb"), *projected_gru("y", "back")]
    result = fuse_and_check(graph(nodes, ["y"], **constants()))
    assert fired(result) == ["sequence_views", "linear_rnn"]
    assert [node.op for node in result.model.nodes] == ["Rnn"]


def test_a_view_that_is_an_output_keeps_its_name() -> None:
    result = fuse_and_check(graph(dropped(DROP, DENSE_MATMUL, made="xw"), ["back"], **constants()))
    assert [node.op for node in result.model.nodes] == ["MatMul", "Identity"]


def test_a_value_seen_elsewhere_without_offsets_is_refused() -> None:
    nodes = dropped(DROP, DENSE_MATMUL, made="xw")
    result = fuse_and_check(graph(nodes, ["back", "xw"], **constants()))
    assert reasons(result) == ["sequence_views: 'xw' has another user"]


def test_an_operator_that_mixes_rows_is_refused() -> None:
    mixed = new_node("soft = Softmax dense", axis=0)
    result = fuse_and_check(graph(dropped(DROP, mixed, made="soft"), ["back"], **constants()))
    assert "is not row-wise" in reasons(result)[0]


def test_words_of_another_value_are_refused() -> None:
    nodes = [
        MATMUL,
        new_node("other = Tanh x"),
        new_node("back = SequenceLike xw other"),
    ]
    result = fuse_and_check(graph(nodes, ["back"], **constants()))
    assert result.applied == () and "does not come from" in reasons(result)[0]
