"""A constant table is projected once, within its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, fired, reasons
from support.graphs import new_node, small_graph
from support.layers import random_layer

from onernn import Cell, Graph, Ragged, RnnSpec
from onernn.fuse_passes import PASSES, FuseResult, passes_for, projections
from onernn.ir.graph import NativeOp, Node, Value

WORDS, WIDTH, HIDDEN = 11, 4, 3
IDS = Ragged(np.array([3, 0, 10, 3, 7]), [0, 2, 2, 5])


def model(cell: Cell = Cell.GRU, outputs: str = "y", table: str = "table", **spec: Any) -> Graph:
    made = random_layer(RnnSpec(cell, WIDTH, HIDDEN, **spec), 1)
    arrays = uniform(WORDS, WIDTH)
    arrays[3] = 0  # padding: its word is a row of zeros
    nodes = (
        new_node("computed = Tanh table"),
        Node("Gather", (table, "ids"), ("e",), {"axis": 0}, (NativeOp(0, "lookup_table"),)),
        Node("Rnn", ("e",), ("y",), made, (NativeOp(1, "gru"),)),
    )
    ids = Value("ids", "int64", (None,), 1)
    return small_graph(nodes, outputs, {"table": arrays}, ids=ids).prune()


@pytest.fixture(autouse=True)
def narrow_tables_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "NARROWEST", 1)


def checked(graph: Graph) -> FuseResult:
    passes = (projections.fuse_embedding_rnn,)
    return check_fused(graph, {"ids": IDS}, passes=passes, backends=("reference", "onednn"))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("direction", ["left2right", "right2left"])
@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_GRU, Cell.LSTM, Cell.RNN_TANH])
def test_rows_come_projected(cell: Cell, direction: str, layers: int) -> None:
    result = checked(model(cell, direction=direction, layers=layers))
    assert fired(result) == ["embedding_rnn"]
    assert [op.type for op in result.applied[0].origin] == ["lookup_table", "gru"]
    gather, rnn = result.model.nodes
    width = len(cell.gates) * HIDDEN
    assert result.model.constants[gather.inputs[0]].shape == (WORDS, width)
    assert "table" not in result.model.constants
    assert rnn.attributes["spec"].input_size == width


WITHIN = WORDS * 3 * HIDDEN * 4
REFUSED = {
    "two directions would need two tables": model(direction="bidirectional_concat"),
    "the table 'computed' is computed at run time": model(table="computed"),
    "'e' has another user": model(outputs="y e"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_projected_is_refused_with_a_reason(reason: str) -> None:
    result = checked(REFUSED[reason])
    assert result.applied == () and reasons(result) == [f"embedding_rnn: {reason}"]


@pytest.mark.parametrize("name, most", [("LIMIT", WITHIN), ("NARROWEST", -WIDTH)])
def test_tables_are_projected_up_to_their_bounds(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound, refused in ((most, 0), (most - 1, 1)):
        monkeypatch.setattr(projections, name, abs(bound))
        assert len(checked(model()).refusals) == refused


def test_sessions_use_it_in_float32_only() -> None:
    more = [each.name for each in passes_for("f32")[len(PASSES) :]]
    assert passes_for("f32")[: len(PASSES)] == PASSES and more[-1] == "embedding_rnn"
    for dtype in ("bf16", "f16", "u8"):
        kept = [each.name for each in passes_for(dtype)[len(PASSES) :]]
        assert passes_for(dtype)[: len(PASSES)] == PASSES and kept == ["zero_states"]
