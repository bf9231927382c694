"""The table of Paddle's operators: rows say what the operators' records have, and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node
from support.paddle_writing import CANONICAL

from onernn import Graph
from onernn.adapters.paddle.lower import load_paddle
from onernn.adapters.paddle.operators import REDUCTIONS, ROWS, Row
from onernn.adapters.paddle.write import write_paddle
from onernn.ir.graph import Value
from onernn.ir.operator import OPERATORS

AS_FORMULAS = {"SequenceReverse", "LogSoftmax"}
"""Operators that a written program computes with several of Paddle's operators."""


def of_type(row: Row) -> str:
    return row.type


def test_an_operator_of_paddle_has_one_row() -> None:
    types = [row.type for row in (*ROWS, *REDUCTIONS)]
    assert len(set(types)) == len(types)


def attributes(op: str) -> dict[str, Any]:
    """Those that Paddle has a form for: ``rational`` is how ONNX Runtime computes."""
    return {k: v for k, v in OPERATORS[op].attributes.items() if k != "rational"}


@pytest.mark.parametrize("row", ROWS, ids=of_type)
def test_a_row_says_all_attributes_of_its_operator(row: Row) -> None:
    assert set(row.attributes) == set(attributes(row.op))


@pytest.mark.parametrize("row", ROWS, ids=of_type)
def test_a_row_is_among_the_cases_that_are_written_beside_paddle(row: Row) -> None:
    cases = {graph.nodes[0].op for graph, _ in CANONICAL.values()}
    assert row.op in cases | {"SequenceSoftmax"}  # of what another node makes


def another(default: Any) -> Any:
    """A value of an attribute that is none's default."""
    return {"none": "tanh"}.get(default) or type(default)(1 if default == -1 else default / 2)


@pytest.mark.parametrize("row", [row for row in ROWS if len(row.inputs) == 1], ids=of_type)
@pytest.mark.parametrize("given", [False, True], ids=["defaults", "given"])
def test_what_a_row_writes_is_read_as_the_same(row: Row, given: bool, tmp_path: Path) -> None:
    """Also where defaults are ours: Paddle's may be others."""
    record, dtype = OPERATORS[row.op], "bool" if row.op == "Not" else "float32"
    chosen = {k: another(v) for k, v in attributes(row.op).items()} if given else {}
    inputs = (Value("x", dtype, (None, 4), int(record.slots[0].ragged)),)
    node = new_node(row.op, "x", "y", **chosen)
    write_paddle(Graph("model", inputs, (Value("y"),), (node,), {}), tmp_path / "m.pdmodel")
    found = load_paddle(tmp_path / "m.pdmodel").nodes
    if row.op in AS_FORMULAS:
        assert len(found) > 1
        return
    assert [each.op for each in found] == [row.op]
    for name in record.attributes:
        want, got = getattr(node.attrs, name), getattr(found[0].attrs, name)
        assert got == (np.float32(want) if isinstance(want, float) else want), name
