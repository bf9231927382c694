"""Operators over whole sentences, beside Paddle: with empty ones, with two levels, of one word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import LODS, Batch, PaddleGraph, Variable, check

from onernn import Ragged, Session, UnsupportedError, load
from onernn.ir.arrays import Array

Build = Callable[[PaddleGraph, dict[str, Variable]], Any]
POOLS = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")
RAGGED = pytest.mark.parametrize("layout", LODS)
ONE_LEVEL = pytest.mark.parametrize("layout", ["ragged", "one-word"])


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-2, 2, shape).astype(np.float32)


def ragged(lod: list[list[int]], *sizes: int, seed: int = 0) -> Ragged:
    return Ragged.from_lod(numbers(lod[-1][-1], *sizes, seed=seed), lod)


def compare(folder: Path, feeds: Mapping[str, Batch], build: Build) -> None:
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in feeds.items()})
    fetches = list(made) if isinstance(made, list | tuple) else [made]
    check(graph.save(folder, fetches), [feeds, feeds], "reference")


@RAGGED
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("sizes", [(3,), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("pad", [0.0, -1.5])
def test_sequence_pool(
    kind: str, sizes: tuple[int, ...], layout: str, pad: float, tmp_path: Path
) -> None:
    compare(
        tmp_path,
        {"x": ragged(LODS[layout], *sizes)},
        lambda graph, v: graph.op(
            "sequence_pool",
            {"X": v["x"]},
            ("Out", "MaxIndex"),
            gives={"Out": "float32", "MaxIndex": "int32"},
            pooltype=kind,
            pad_value=pad,
            is_test=True,
        )[0],
    )


@RAGGED
@pytest.mark.parametrize("sizes", [(1,), ()], ids=str)
def test_sequence_softmax(sizes: tuple[int, ...], layout: str, tmp_path: Path) -> None:
    feeds = {"x": ragged(LODS[layout], *sizes)}
    compare(tmp_path, feeds, lambda graph, v: graph.op("sequence_softmax", {"X": v["x"]}))


@ONE_LEVEL
@pytest.mark.parametrize("sizes", [(3,), (2, 3)], ids=str)
def test_sequence_reverse(sizes: tuple[int, ...], layout: str, tmp_path: Path) -> None:
    feeds = {"x": ragged(LODS[layout], *sizes)}
    compare(tmp_path, feeds, lambda graph, v: graph.op("sequence_reverse", {"X": v["x"]}, ("Y",)))


@ONE_LEVEL
@pytest.mark.parametrize("length, start", [(1, 0), (3, -1), (3, 0), (2, -2), (3, 1), (5, -2)])
def test_sequence_conv(length: int, start: int, layout: str, tmp_path: Path) -> None:
    feeds = {"x": ragged(LODS[layout], 3)}

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        inputs = {"X": v["x"], "Filter": graph.parameter(numbers(3 * length, 2))}
        return graph.op("sequence_conv", inputs, contextLength=length, contextStart=start)

    compare(tmp_path, feeds, build)


@pytest.mark.parametrize("x", ["dense", "ragged"])
@pytest.mark.parametrize("y, level", [("one", -1), ("one", 0), ("two", 0), ("two", 1), ("two", -1)])
def test_sequence_expand(x: str, y: str, level: int, tmp_path: Path) -> None:
    lods = {"one": [[0, 2, 2, 5]], "two": [[0, 1, 3], [0, 2, 2, 5]]}
    like = ragged(lods[y], 2, seed=1)
    count = len([*like.outer, like.offsets][level]) - 1
    lod = [[0, 1, 3, 3][: count + 1]] if x == "ragged" else None
    value = ragged(lod, 3) if lod else numbers(count, 3)
    compare(
        tmp_path,
        {"x": value, "y": like},
        lambda graph, v: graph.op("sequence_expand", {"X": v["x"], "Y": v["y"]}, ref_level=level),
    )


@ONE_LEVEL
def test_sequence_expand_as(layout: str, tmp_path: Path) -> None:
    like = ragged(LODS[layout], 2, seed=1)
    feeds = {"x": numbers(len(like), 3), "y": like}
    compare(
        tmp_path,
        feeds,
        lambda graph, v: graph.op("sequence_expand_as", {"X": v["x"], "Y": v["y"]}),
    )


@pytest.mark.parametrize("lods", [([0, 2, 2, 5], [0, 1, 4, 4]), ([0, 1],) * 3], ids=str)
def test_sequence_concat(lods: tuple[list[int], ...], tmp_path: Path) -> None:
    feeds = {f"x{k}": ragged([lod], 3, seed=k) for k, lod in enumerate(lods)}
    compare(tmp_path, feeds, lambda graph, v: graph.op("sequence_concat", {"X": list(v.values())}))


@ONE_LEVEL
@pytest.mark.parametrize("length", [-1, 7])
@pytest.mark.parametrize("sizes, value", [((3,), (1,)), ((3,), (3,)), ((2, 3), (1,))], ids=str)
def test_sequence_pad_and_back(
    sizes: tuple[int, ...], value: tuple[int, ...], length: int, layout: str, tmp_path: Path
) -> None:
    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        padded, lengths = graph.op(
            "sequence_pad",
            {"X": v["x"], "PadValue": graph.parameter(numbers(*value))},
            ("Out", "Length"),
            gives={"Out": "float32", "Length": "int64"},
            padded_length=length,
        )
        back = graph.op("sequence_unpad", {"X": padded, "Length": lengths})
        return [padded, lengths, back]

    compare(tmp_path, {"x": ragged(LODS[layout], *sizes)}, build)


REFUSED: dict[str, tuple[Build, dict[str, Batch]]] = {
    "input X carries no LoD": (
        lambda graph, v: graph.op("sequence_reverse", {"X": v["x"]}, ("Y",)),
        {"x": numbers(4, 3)},
    ),
    "2 LoD levels, only 1 is supported": (
        lambda graph, v: graph.op(
            "sequence_expand_as", {"X": v["x"], "Y": v["y"]}, ("Out",)
        ),
        {"x": numbers(3, 3), "y": ragged(LODS["two-levels"], 2)},
    ),
    "trained padding": (
        lambda graph, v: graph.op(
            "sequence_conv",
            {"X": v["x"], "Filter": graph.parameter(numbers(9, 2)),
             "PaddingData": graph.parameter(numbers(2, 3))},
            contextLength=3, contextStart=-1, paddingTrainable=True,
        ),
        {"x": ragged(LODS["ragged"], 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_known_is_refused(reason: str, tmp_path: Path) -> None:
    build, feeds = REFUSED[reason]
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in feeds.items()})
    graph.save(tmp_path, [made])
    with pytest.raises(
        UnsupportedError, match=reason if reason != "trained padding" else "padding"
    ):
        Session(load(tmp_path), backend="reference")
