"""An operator of ONNX that gets a record is read and written without a line in the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.graphs import new_node
from support.layers import random_ragged
from support.onnx_models import assert_equal, ours, parsed, theirs
from support.onnx_written import assert_same, run, written

from onernn import Graph, Session, UnsupportedError
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from onernn.engine.kernels import KERNELS
from onernn.ir.graph import Value
from onernn.ir.operator import OPERATORS, Axis, op
from onernn.ops.rules import same

X = random_ragged([3, 0, 5, 1], 4, 0)


def _hardmax(x: np.ndarray, *, axis: Axis = -1) -> np.ndarray:
    first = np.expand_dims(np.argmax(x, axis), axis)
    return (np.arange(x.shape[axis]) == np.moveaxis(first, axis, -1)).astype(x.dtype)


@pytest.fixture(autouse=True)
def new_operators() -> Iterator[None]:
    """Two operators of ONNX that the house does not know: when one becomes known, take another."""
    kernels, operators = dict(KERNELS), dict(OPERATORS)
    op("Tan", kind="elementwise", since=7, type=same)(_tan)
    op("Hardmax", kind="mixes", since=13, type=same)(_hardmax)
    names = OPERATORS.keys() - operators.keys()
    assert names == {"Tan", "Hardmax"}
    KERNELS.update((name, OPERATORS[name].run) for name in names)  # made when it is imported
    yield
    for table, before in ((KERNELS, kernels), (OPERATORS, operators)):
        table.clear()
        table.update(before)


def _tan(x: np.ndarray) -> np.ndarray:
    return np.tan(x)


def read(op: str, **attributes: Any) -> Graph:
    told = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    node = f"y = {op} {f'<{told}>' if told else ''} (x)"
    model = parsed(f"(float[N, 4] x) => (float[N, 4] y) {{ {node} }}", opset=18)
    onnx.checker.check_model(model)
    return lower(parse_model(model.SerializeToString(), Path("new.onnx")))


@pytest.mark.parametrize("op, attributes", [("Tan", {}), ("Hardmax", {}), ("Hardmax", {"axis": 1})])
def test_it_is_read(op: str, attributes: dict[str, Any]) -> None:
    (node,) = read(op, **attributes).nodes
    assert (node.op, node.outputs, dict(node.attributes)) == (op, ("y",), attributes)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("op", ["Tan", "Hardmax"])
def test_it_is_written_and_runs_in_onnx_runtime(op: str, ragged: bool) -> None:
    x = Value("x", "float32", (None, 4), int(ragged))
    built = Graph("new", (x,), (Value("y"),), (new_node(f"y = {op} x"),), {})
    feed = {"x": X if ragged else X.data}
    assert op in [each.op_type for each in written(built).graph.node]
    got = run(written(built), feed)["y"]
    want = OPERATORS[op].run(built.nodes[0], feed["x"])
    assert_same(got, want)


def test_what_has_no_record_is_still_refused() -> None:
    with pytest.raises(UnsupportedError, match="this operator is not known"):
        Session(read("Sinh"))


def test_a_real_signal_of_stft_may_lack_its_last_axis() -> None:
    """As Kokoro's file has it, and ONNX Runtime takes it; ONNX's text wants (N, T, 1)."""
    model = parsed(
        "(float[N, T] x) => (float[N, F, K, C] y) { y = STFT (x, step, , size) }",
        {"step": np.array(3), "size": np.array(8)},
    )
    x = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    assert_equal(ours(model, {"x": x}), theirs(model, {"x": x}))
