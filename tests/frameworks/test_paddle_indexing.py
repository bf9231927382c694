"""Operators that choose, count and turn elements, beside Paddle, on every kind of batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from tests.frameworks.paddle_graphs import (
    LODS,
    Batch,
    Build,
    assert_same,
    numbers,
    ragged,
    row,
    saved_graph,
)

from onernn import Ragged, load
from onernn.engine.session import find_unsupported

CASES = {
    **{f"cumsum along {axis}": row("cumsum", X="x", axis=axis) for axis in (0, 1, -1)},
    "cumsum from the end": row("cumsum", X="x", axis=1, reverse=True),
    "cumsum of all": row("cumsum", X="x", flatten=True),
    "flip of rows": row("flip", X="x", axis=[0]),
    "flip of both": row("flip", X="x", axis=[-1, 0]),
    **{
        f"every {step}. of axis {axis}": row(
            "strided_slice", Input="x", axes=[axis], starts=[0], ends=[9], strides=[step],
            infer_flags=[1],
        )
        for axis, step in ((0, 2), (1, 3))
    },
    "all from the last": row(
        "strided_slice", Input="x", axes=[1], starts=[2**31 - 1], strides=[-1], infer_flags=[1],
        ends=[-1 if paddle.__version__ < "3" else -(2**31)],
    ),
}  # fmt: skip
REFUSED = {
    "cumsum of all": "attribute flatten=True: Paddle keeps a LoD",
    "every 2. of axis 0": "Paddle keeps a LoD that no longer fits",
}
"""Under a LoD."""


def assert_refused(folder: Path, feeds: dict[str, Batch], build: Build, reason: str) -> None:
    saved_graph(folder, feeds, build)
    (refusal,) = find_unsupported(load(folder))
    assert reason in refusal.reason


@pytest.mark.parametrize("lod", ["", *LODS])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_one_input(name: str, lod: str, tmp_path: Path) -> None:
    x: dict[str, Batch] = {"x": ragged(LODS.get(lod), 4)}
    if lod and name in REFUSED:
        return assert_refused(tmp_path, x, CASES[name], REFUSED[name])
    assert_same(tmp_path, x, CASES[name])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
@pytest.mark.parametrize("where", ["", "x", "at"])
def test_gather(axis: int, shape: tuple[int, ...], where: str, tmp_path: Path) -> None:
    feeds: dict[str, Any] = {"x": numbers(3, 4), "at": np.array([2, 0, 2]).reshape(shape)}
    feeds |= {where: Ragged.from_lod(feeds[where], [[0, 1, 3]])} if where else {}
    build = row("gather", X="x", Index="at", axis=axis)
    if where == "x" and axis == 0:
        return assert_refused(tmp_path, feeds, build, "Paddle keeps a LoD that no longer fits")
    assert_same(tmp_path, feeds, build)


@pytest.mark.parametrize("where", ["", "c", "x", "y", "xy"])
def test_where_keeps_the_lod_of_x(where: str, tmp_path: Path) -> None:
    x, y = numbers(2, 3, 4)
    feeds: dict[str, Batch] = {"c": x > y, "x": x, "y": y}
    feeds |= {name: Ragged.from_lod(feeds[name], [[0, 1, 3]]) for name in where}
    assert_same(tmp_path, feeds, row("where", Condition="c", X="x", Y="y"))


@pytest.mark.parametrize("columns", [1, 2])
def test_an_exclusive_cumsum_of_one_element_is_that_element(columns: int, tmp_path: Path) -> None:
    """What the reader refuses: of two elements Paddle gives 0 and the first one."""
    x = np.arange(2, 2 + columns, dtype=np.float32)[None]
    build = row("cumsum", X="x", axis=1, exclusive=True)
    (found,) = saved_graph(tmp_path, {"x": x}, build).run({"x": x})
    assert isinstance(found, np.ndarray)
    assert found.tolist() == ([[2.0]] if columns == 1 else [[0.0, 2.0]])
