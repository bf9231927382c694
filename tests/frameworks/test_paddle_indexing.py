"""Operators that choose, count and turn elements, beside Paddle, on every kind of batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import LODS, Batch, PaddleGraph, Variable, check

from onernn import Ragged, load
from onernn.engine.session import unsupported

CASES: dict[str, dict[str, Any]] = {
    **{f"cumsum along {axis}": {"type": "cumsum", "axis": axis} for axis in (0, 1, -1)},
    "cumsum from the end": {"type": "cumsum", "axis": 1, "reverse": True},
    "cumsum of all": {"type": "cumsum", "flatten": True},
    "flip of rows": {"type": "flip", "axis": [0]},
    "flip of both": {"type": "flip", "axis": [-1, 0]},
}


def refused(graph: PaddleGraph, folder: Path, out: Variable, reason: str) -> None:
    graph.save(folder, [out])
    (refusal,) = unsupported(load(folder))
    assert reason in refusal.reason


@pytest.mark.parametrize("lod", ["", *LODS])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_one_input(name: str, lod: str, tmp_path: Path) -> None:
    graph, case = PaddleGraph(), dict(CASES[name])
    rows = LODS[lod][-1][-1] if lod else 3
    data = np.random.default_rng(3).uniform(-2, 2, (rows, 4)).astype(np.float32)
    x: Batch = Ragged.from_lod(data, LODS[lod]) if lod else data
    out = graph.op(case.pop("type"), {"X": graph.feed_like("x", x)}, **case)
    if lod and "all" in name:
        return refused(graph, tmp_path, out, "attribute flatten: Paddle keeps a LoD")
    check(graph.save(tmp_path, [out]), [{"x": x}], "reference")


@pytest.mark.parametrize("lod", ["", *LODS])
@pytest.mark.parametrize("axis, step", [(0, 2), (1, 3)])
def test_strided_slice(axis: int, step: int, lod: str, tmp_path: Path) -> None:
    graph = PaddleGraph()
    rows = LODS[lod][-1][-1] if lod else 3
    data = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    x: Batch = Ragged.from_lod(data, LODS[lod]) if lod else data
    cut = {"axes": [axis], "starts": [0], "ends": [9], "strides": [step], "infer_flags": [1]}
    out = graph.op("strided_slice", {"Input": graph.feed_like("x", x)}, **cut)
    if lod and axis == 0:
        return refused(graph, tmp_path, out, "Paddle keeps a LoD that does not fit")
    check(graph.save(tmp_path, [out]), [{"x": x}], "reference")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
@pytest.mark.parametrize("where", ["", "x", "at"])
def test_gather(axis: int, shape: tuple[int, ...], where: str, tmp_path: Path) -> None:
    graph = PaddleGraph()
    x: Any = np.arange(12, dtype=np.float32).reshape(3, 4)
    at: Any = np.array([2, 0, 2]).reshape(shape)
    x = Ragged.from_lod(x, [[0, 1, 3]]) if where == "x" else x
    at = Ragged.from_lod(at, [[0, 1, 3]]) if where == "at" else at
    slots = {"X": graph.feed_like("x", x), "Index": graph.feed_like("at", at)}
    out = graph.op("gather", slots, axis=axis)
    if where == "x" and axis == 0:
        return refused(graph, tmp_path, out, "Paddle keeps a LoD that does not fit")
    check(graph.save(tmp_path, [out]), [{"x": x, "at": at}], "reference")


@pytest.mark.parametrize("where", ["", "c", "x", "y", "xy"])
def test_where_keeps_the_lod_of_x(where: str, tmp_path: Path) -> None:
    graph, rng = PaddleGraph(), np.random.default_rng(5)
    x, y = rng.uniform(-1, 1, (2, 3, 4)).astype(np.float32)
    feeds: dict[str, Batch] = {"c": x > y, "x": x, "y": y}
    feeds |= {name: Ragged.from_lod(feeds[name], [[0, 1, 3]]) for name in where}
    slots = {slot: graph.feed_like(name, feeds[name])
             for slot, name in (("Condition", "c"), ("X", "x"), ("Y", "y"))}  # fmt: skip
    check(graph.save(tmp_path, [graph.op("where", slots)]), [feeds], "reference")


@pytest.mark.parametrize("columns", [1, 2])
def test_an_exclusive_cumsum_of_one_element_is_that_element(columns: int, tmp_path: Path) -> None:
    """What the reader refuses: of two elements Paddle gives 0 and the first one."""
    graph = PaddleGraph()
    x = np.arange(2, 2 + columns, dtype=np.float32)[None]
    out = graph.op("cumsum", {"X": graph.feed_like("x", x)}, axis=1, exclusive=True)
    (found,) = graph.save(tmp_path, [out]).run({"x": x})
    assert isinstance(found, np.ndarray)
    assert found.tolist() == ([[2.0]] if columns == 1 else [[0.0, 2.0]])
