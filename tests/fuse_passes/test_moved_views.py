"""Views and joins along time: cancelled where they undo each other, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusing import check_fused, fired, operators
from support.graphs import new_node, small_graph
from support.layers import random_layer

from onernn import Cell, Graph, RnnSpec
from onernn.fuse_passes.joined_layers import pair_directions
from onernn.fuse_passes.stacked_steps import moving
from onernn.ir.graph import Node

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
END = -(2**62)


def graph(*nodes: Node, outputs: str, **constants: list[int]) -> Graph:
    return small_graph(nodes, outputs, NUMBERS | constants, x=None)


def checked(built: Graph) -> list[str]:
    """The operators left after fusion, which gives the same numbers, and is stable."""
    return operators(check_fused(built, {"x": X}, atol=0))


def reverse(source: str, target: str, axis: str) -> Node:
    return Node("Slice", (source, "minus", "end", axis, "minus"), (target,))


NUMBERS = {"minus": [-1], "end": [END], "one": [1], "two": [2], "zero": [0]}


def test_two_reversals_of_one_axis_cancel() -> None:
    built = graph(reverse("x", "a", "one"), reverse("a", "b", "one"), outputs="b")
    assert checked(built) == []


@pytest.mark.parametrize("second", ["two", "zero"])
def test_reversals_of_different_axes_stay(second: str) -> None:
    built = graph(reverse("x", "a", "one"), reverse("a", "b", second), outputs="b")
    assert checked(built) == ["Slice", "Slice"]


def test_a_reversal_of_a_part_stays() -> None:
    part = new_node("a = Slice x minus zero one minus")
    built = graph(part, reverse("a", "b", "one"), outputs="b")
    assert checked(built) == ["Slice", "Slice"]


def test_exchanged_axes_cancel_however_they_are_written() -> None:
    swap = new_node("a = Einsum x", equation="ab...->ba...")
    back = new_node("b = Transpose a", perm=(1, 0, 2))
    other = new_node("c = Transpose a", perm=(2, 0, 1))
    assert checked(graph(swap, back, outputs="b")) == []
    assert checked(graph(swap, other, outputs="c")) == ["Einsum", "Transpose"]


def test_a_value_that_is_read_before_the_second_view_stays() -> None:
    nodes = (reverse("x", "a", "one"), reverse("a", "b", "one"))
    assert checked(graph(*nodes, outputs="a b")) == ["Slice"]


def joined(axis: int, views: int = 2) -> Graph:
    swaps = [
        new_node(f"s{k} = Einsum {source}", equation="ab...->ba...")
        for k, source in enumerate(["x", "half"][:views])
    ]
    half = new_node("half = Relu x")
    parts = ("s0", "s1") if views == 2 else ("s0", "other")
    other = new_node("other = Transpose half", perm=(1, 0, 2))
    concat = Node("Concat", parts, ("y",), {"axis": axis})
    extra = (other,) if views == 1 else ()
    return graph(half, *swaps, *extra, concat, outputs="y")


def test_a_join_of_channels_moves_in_front_of_equal_views() -> None:
    assert checked(joined(2)) == ["Relu", "Concat", "Einsum"]
    assert checked(joined(2, views=1)) == ["Relu", "Concat", "Einsum"]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_join_of_an_axis_that_is_exchanged_stays(axis: int) -> None:
    assert checked(joined(axis)).count("Einsum") == 2


def pieces(order: list[int], axis: int = 1) -> Graph:
    names = tuple(f"p{k}" for k in range(3))
    nodes = [Node("Split", ("x",), names, {"axis": 1})]
    nodes += [Node("Squeeze", (name, "one"), (f"{name}s",)) for name in names]
    back = "one" if axis == 1 else "zero"
    nodes += [Node("Unsqueeze", (f"p{k}s", back), (f"u{at}",)) for at, k in enumerate(order)]
    concat = Node("Concat", tuple(f"u{at}" for at in range(len(order))), ("y",), {"axis": axis})
    return graph(*nodes, concat, outputs="y")


def test_pieces_put_together_again_are_the_value() -> None:
    assert checked(pieces([0, 1, 2])) == []
    assert checked(pieces([0, 1, 2], axis=0)) == ["Einsum"]
    assert checked(pieces([2, 1, 0])) == ["Slice"]


@pytest.mark.parametrize("order", [[0, 1], [0, 2, 1], [0, 0, 1], [0, 1, 2, 2]])
def test_pieces_in_another_order_or_number_stay_pieces(order: list[int]) -> None:
    assert "Split" in checked(pieces(order))


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_an_axis_is_moved_without_knowing_the_rank(axis: int) -> None:
    np.testing.assert_array_equal(np.einsum(moving(axis, 0), X), np.moveaxis(X, axis, 0))
    np.testing.assert_array_equal(np.einsum(moving(0, axis), X), np.moveaxis(X, 0, axis))


def test_views_made_twice_are_shared_and_different_ones_are_not() -> None:
    def view(name: str, shape: str) -> Node:
        return Node("Reshape", ("x", shape), (name,))

    same = graph(view("a", "s"), view("b", "t"), outputs="a b", s=[6, 4], t=[6, 4])
    other = graph(view("a", "s"), view("b", "t"), outputs="a b", s=[6, 4], t=[4, 6])
    assert checked(same) == ["Reshape"]
    assert checked(other) == ["Reshape", "Reshape"]


@pytest.mark.parametrize("axis, paired", [(2, True), (-1, True), (1, False), (0, False)])
def test_directions_of_a_dense_batch_pair_along_its_channels_only(axis: int, paired: bool) -> None:
    """x is (T, N, I): axis 1 is the batch, where a ragged value has its channels."""
    made = [
        new_node(f"{way} = Rnn x", **random_layer(RnnSpec(Cell.LBR_GRU, 4, 2, direction=way), 1))
        for way in ("left2right", "right2left")
    ]
    concat = new_node("y = Concat left2right right2left", axis=axis)
    built = graph(*made, concat, outputs="y")
    result = check_fused(built, {"x": X}, passes=(pair_directions,), atol=1e-6)
    assert fired(result) == ["bidirectional"] * paired
    assert len(result.refusals) == (not paired)
