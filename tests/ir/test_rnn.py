"""The view of a recurrent node by names, and a stack's layers and directions one by one."""

from __future__ import annotations

import pytest
from support.graphs import new_node
from support.layers import random_layer

from onernn import Cell, RnnSpec
from onernn.ir.graph import NativeOp, Node
from onernn.ir.rnn import Recurrent, parts

LSTM = RnnSpec(Cell.LSTM, 3, 4, layers=2, direction="bidirectional_concat")


def node(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    return Node("Rnn", inputs, outputs, random_layer(LSTM, 0), (NativeOp(7, "lstm"),))


@pytest.mark.parametrize(
    "inputs, outputs, states, finals",
    [
        (("x",), ("y",), ("", ""), ("", "")),
        (("x", "", "c0"), ("y", "h", ""), ("", "c0"), ("h", "")),
        (("x", "h0", "c0", "a"), ("y", "", "c", "all"), ("h0", "c0"), ("", "c")),
    ],
    ids=["alone", "one state", "everything"],
)
def test_each_value_is_where_its_position_says(inputs, outputs, states, finals) -> None:  # type: ignore[no-untyped-def]
    rnn = Recurrent.of(node(inputs, outputs))
    assert (rnn.x, rnn.y, rnn.states, rnn.finals) == ("x", "y", states, finals)
    assert rnn.attention == (inputs + ("",) * 4)[3] and rnn.cells == (outputs + ("",) * 4)[3]
    assert len(rnn.layers) == 2 and rnn.spec is LSTM


def test_the_view_gives_the_node_back_without_absent_ends() -> None:
    given = node(("x", "", "c0", ""), ("y", "h", "", ""))
    made = Recurrent.of(given).node()
    assert (made.inputs, made.outputs) == (("x", "", "c0"), ("y", "h"))
    assert dict(made.attributes) == dict(given.attributes) and made.origin == given.origin


def test_states_are_put_in_by_the_order_of_the_cell() -> None:
    rnn = Recurrent.of(node(("x", "h0", "c0", "a"), ("y",)))
    made = rnn.with_states(("h1", ""), ("", "c2")).node()
    assert made.inputs == ("x", "h1", "", "a") and made.outputs == ("y", "", "c2")


def test_another_operator_is_no_recurrent_layer() -> None:
    with pytest.raises(ValueError, match="expected an Rnn"):
        Recurrent.of(new_node("Add", "a b", "c"))


@pytest.mark.parametrize(
    "direction, stacking, widths, joins",
    [
        ("bidirectional_concat", "framework", [3, 8], [True, True]),
        ("bidirectional_sum", "framework", [3, 4], [True, True]),
        ("bidirectional_concat", "onednn", [4, 4], [False, True]),
    ],
)
def test_parts_are_layer_by_layer_and_read_what_the_layer_below_gives(
    direction: str, stacking: str, widths: list[int], joins: list[bool]
) -> None:
    width = widths[0]
    spec = RnnSpec(Cell.GRU, width, 4, layers=2, direction=direction, stacking=stacking)  # type: ignore[arg-type]
    found = list(parts(spec))
    assert [(part.layer, part.direction) for part in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [part.side for part in found] == ["left2right", "right2left"] * 2
    assert [part.backwards for part in found] == [False, True] * 2
    assert [part.spec.input_size for part in found[::2]] == widths
    assert all(part.spec.layers * part.spec.directions == 1 for part in found)
    assert [spec.joins(layer) for layer in range(2)] == joins


def test_one_direction_keeps_its_side() -> None:
    (part,) = parts(RnnSpec(Cell.GRU, 3, 4, direction="right2left"))
    assert part.backwards and part.direction == 0
