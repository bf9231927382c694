"""Initial states that are zeros are left out, if they are one row for each sequence."""

from __future__ import annotations

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, fired, layer_nodes, reasons
from support.graphs import new_nodes, rnn_node, small_graph

from onernn import Cell, RnnSpec
from onernn.fuse_passes.views import drop_zero_states

LSTM = RnnSpec(Cell.LSTM, 4, 3)
ZEROS = """\
shape = Shape x
n = Slice shape one two
size = Concat onex n three axis=0
flat = ConstantOfShape size
"""
"""Zeros (1, N, 3) for x (T, N, 4)."""
CONSTANTS = {
    **{name: np.array([number]) for name, number in {"one": 1, "two": 2, "three": 3}.items()},
    "onex": np.array([1]), "ones": np.ones((1, 1, 1, 3), np.float32),
    "fixed": np.zeros((1, 1, 1, 3), np.float32), "zero": np.array([0]),
}  # fmt: skip


def states_left(text: str, h: str, c: str, rows: int | None = None) -> tuple[list[str], list[str]]:
    """The states that a layer keeps, and why, after all outputs were compared."""
    nodes = (*new_nodes(ZEROS + text), rnn_node(f"y hn cn = Rnn x {h} {c}", LSTM))
    graph = small_graph(nodes, "y hn cn", CONSTANTS, x=(None, rows, 4), given=(1, 1, None, 3))
    batch = 1 if {"fixed", "ones"} & {h, c} else 2
    feed = {"x": uniform(5, batch, 4), "given": uniform(1, 1, batch, 3)}
    result = check_fused(graph, feed, passes=(drop_zero_states,))
    (node,) = layer_nodes(result)
    assert fired(result) == ["zero_states"] * (node.inputs != nodes[-1].inputs)
    return [*node.inputs[1:]], reasons(result)


LONGER = "h = Unsqueeze flat zero"
VIEWS = """\
both = Concat flat flat axis=0
half = Slice both zero one zero
h = Unsqueeze half zero"""


@pytest.mark.parametrize("text", [LONGER, VIEWS])
def test_computed_zeros_are_no_state(text: str) -> None:
    assert states_left(text, "h", "h") == ([], [])
    assert states_left(text, "given", "h") == (["given"], [])
    assert states_left(text, "h", "given") == (["", "given"], [])


def test_constant_zeros_are_no_state_of_as_many_sequences() -> None:
    assert states_left("", "fixed", "fixed", rows=1) == ([], [])
    kept, why = states_left("", "fixed", "given")
    assert kept == ["fixed", "given"] and "'fixed'" in why[0]


def test_other_numbers_stay() -> None:
    assert states_left("", "ones", "given", rows=1) == (["ones", "given"], [])
    assert states_left(LONGER + "\ng = Cos h", "g", "given") == (["g", "given"], [])
