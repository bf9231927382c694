"""Operators that look at the LoD, or run over several inputs with one, beside Paddle."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import reference
from tests.frameworks.paddle_graphs import (
    LODS,
    Batch,
    Fixed,
    PaddleGraph,
    Variable,
    assert_same,
    numbers,
    ragged,
    row,
    saved_graph,
)

from onernn import Ragged, ShapeError, load

Lod = list[list[int]]
ONE, TWO = LODS["ragged"], LODS["two-levels"]
OTHER = [[0, 1, 5]]
KINDS = {"dense": None, "one": ONE, "two": TWO, "other": OTHER}
PAIRS = list(itertools.product(KINDS, KINDS))
ONE_LEVEL = pytest.mark.parametrize("lod", [ONE, LODS["one-word"]], ids=["ragged", "one-word"])
SEVERAL = {
    **{f"a sum, {sizes}": (row("elementwise_add", X="x", Y="y"), sizes)
       for sizes in ((3, 3), (3, 1), (1, 3))},
    **{f"a concatenation, {axis}": (row("concat", X=["x", "y"], axis=axis), (3, 2))
       for axis in (1, -1)},
    # Y comes before target_lod; it takes every level of Y.
    "lod_reset": (row("lod_reset", X="x", Y="y", target_lod=[0, 5]), (3, 1)),
}  # fmt: skip


@pytest.mark.parametrize("x, y", PAIRS, ids="+".join)
@pytest.mark.parametrize("name", SEVERAL)
def test_two_inputs_of_any_lod(name: str, x: str, y: str, tmp_path: Path) -> None:
    build, sizes = SEVERAL[name]
    if name == "lod_reset" and y == "dense":  # there it is offsets
        build, like = row("lod_reset", X="x", Y="y"), np.array([0, 0, 4, 4, 5], np.int32)
        return assert_same(tmp_path, {"x": ragged(KINDS[x], 3), "y": like}, build)
    feeds = {"x": ragged(KINDS[x], sizes[0]), "y": ragged(KINDS[y], sizes[1], seed=1)}
    assert_same(tmp_path, feeds, build)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 3), (5,)], ids=str)
@pytest.mark.parametrize("lod", [None, ONE], ids=["dense", "one"])
def test_a_sum_with_a_parameter_in_front_has_no_lod(
    shape: tuple[int, ...], lod: Lod | None, tmp_path: Path
) -> None:
    build = row("elementwise_add", X=shape, Y="y", axis=0 if shape == (5,) else -1)
    assert_same(tmp_path, {"y": ragged(lod, 3)}, build)


@pytest.mark.parametrize(
    "sizes, axis, lods",
    [
        *(((2, 2), axis, (ONE,) * 3) for axis in (1, -2, 2, -1)),
        # Along the words sentences are appended.
        *(
            ((3,), axis, lods)
            for axis in (0, -2)
            for lods in ((ONE, OTHER), (TWO, TWO, TWO), (ONE,), (None, ONE), (None, None))
        ),
    ],
)
def test_several_are_concatenated(
    sizes: tuple[int, ...], axis: int, lods: Any, tmp_path: Path
) -> None:
    feeds = {f"x{k}": ragged(lod, *sizes, seed=k) for k, lod in enumerate(lods)}
    assert_same(tmp_path, feeds, row("concat", X=list(feeds), axis=axis))


@pytest.mark.parametrize("x", KINDS)
@pytest.mark.parametrize("target", [[0, 2, 5], [0, 0, 4, 4, 5]], ids=str)
def test_lod_reset_takes_offsets_as_numbers(x: str, target: list[int], tmp_path: Path) -> None:
    assert_same(tmp_path, {"x": ragged(KINDS[x], 3)}, row("lod_reset", X="x", target_lod=target))


@pytest.mark.parametrize("tags", [1, 2, 5, 8, 9, 17])  # Paddle's kernel works in blocks of 8
@pytest.mark.parametrize("ties", [False, True], ids=["any", "ties"])
@pytest.mark.parametrize("labelled", [False, True], ids=["", "Label"])
def test_viterbi_paths(tags: int, ties: bool, labelled: bool, tmp_path: Path) -> None:
    lod = [[0, 1, 1, 3, 30, 42, 42]]
    emission, transition = numbers(42, tags), numbers(tags + 2, tags)
    if ties:
        emission, transition = np.round(emission), np.round(transition)
    feeds: dict[str, Batch] = {"x": Ragged.from_lod(emission, lod)}
    if labelled:
        labels = np.random.default_rng(tags).integers(0, tags, (42, 1))
        feeds["label"] = Ragged.from_lod(labels, lod)
    slots = {"Label": "label"} if labelled else {}
    assert_same(
        tmp_path, feeds, row("crf_decoding", Emission="x", Transition=Fixed(transition), **slots)
    )


@pytest.mark.parametrize("length, start", [(1, 0), (3, -1), (2, 0), (4, -3)])
def test_a_fused_sequence_conv(length: int, start: int, tmp_path: Path) -> None:
    weights = {"Filter": (3 * length, 2), "Bias": (1, 2)}
    places = {"contextLength": length, "contextStart": start, "contextStride": 1}
    build = row("fusion_seqconv_eltadd_relu", X="x", **weights, **places)
    assert_same(tmp_path, {"x": ragged([[0, 1, 3, 8]], 3)}, build)


@ONE_LEVEL
@pytest.mark.parametrize("sizes", [(3,), (2, 3)], ids=str)
def test_sequence_reverse(sizes: tuple[int, ...], lod: Lod, tmp_path: Path) -> None:
    assert_same(tmp_path, {"x": ragged(lod, *sizes)}, row("sequence_reverse", X="x"))


@pytest.mark.parametrize("x", ["dense", "ragged"])
@pytest.mark.parametrize("y, level", [("one", -1), ("one", 0), ("two", 0), ("two", 1), ("two", -1)])
def test_sequence_expand(x: str, y: str, level: int, tmp_path: Path) -> None:
    like = ragged(KINDS[y], 2, seed=1)
    assert isinstance(like, Ragged)
    count = len([*like.outer, like.offsets][level]) - 1
    value = ragged([[0, 1, 3, 3][: count + 1]], 3) if x == "ragged" else numbers(count, 3)
    build = row("sequence_expand", X="x", Y="y", ref_level=level)
    assert_same(tmp_path, {"x": value, "y": like}, build)


@ONE_LEVEL
def test_sequence_expand_as(lod: Lod, tmp_path: Path) -> None:
    feeds = {"x": numbers(len(lod[0]) - 1, 3), "y": ragged(lod, 2, seed=1)}
    assert_same(tmp_path, feeds, row("sequence_expand_as", X="x", Y="y"))


@pytest.mark.parametrize("lods", [([0, 2, 2, 5], [0, 1, 4, 4]), ([0, 1],) * 3], ids=str)
def test_sequence_concat(lods: tuple[list[int], ...], tmp_path: Path) -> None:
    feeds = {f"x{k}": ragged([lod], 3, seed=k) for k, lod in enumerate(lods)}
    assert_same(tmp_path, feeds, row("sequence_concat", X=list(feeds)))


@ONE_LEVEL
@pytest.mark.parametrize("length", [-1, 7])
@pytest.mark.parametrize("sizes, value", [((3,), (1,)), ((3,), (3,)), ((2, 3), (1,))], ids=str)
def test_sequence_pad_and_back(
    sizes: tuple[int, ...], value: tuple[int, ...], length: int, lod: Lod, tmp_path: Path
) -> None:
    pad = row("sequence_pad", X="x", PadValue=value, padded_length=length)

    def build(graph: PaddleGraph, inputs: Any) -> list[Variable]:
        padded, lengths = pad(graph, inputs)
        back = row("sequence_unpad", X="padded", Length="lengths")
        return [padded, lengths, *back(graph, {"padded": padded, "lengths": lengths})]

    assert_same(tmp_path, {"x": ragged(lod, *sizes)}, build)


@ONE_LEVEL
@pytest.mark.parametrize("new_dim", [1, 2, 4])
def test_sequence_reshape(new_dim: int, lod: Lod, tmp_path: Path) -> None:
    build = row("sequence_reshape", X="x", new_dim=new_dim)
    assert_same(tmp_path, {"x": ragged(lod, 4)}, build)


@pytest.mark.parametrize("offsets, lengths", [([1, 0, 0], [1, 0, 2]), ([0, 0, 2], [2, 0, 1])])
def test_sequence_slice(offsets: list[int], lengths: list[int], tmp_path: Path) -> None:
    places = {"first": np.array(offsets)[:, None], "count": np.array(lengths)[:, None]}
    build = row("sequence_slice", X="x", Offset="first", Length="count")
    assert_same(tmp_path, {"x": ragged(ONE, 2, 3), **places}, build)


@pytest.mark.parametrize("offset, length", [(0, 4), (2, 2), (-1, 2)])
def test_a_slice_beyond_a_sequence_is_refused(offset: int, length: int, tmp_path: Path) -> None:
    """Paddle refuses it, too."""
    feeds = {"x": ragged(ONE, 3), "first": np.array([[offset], [0], [0]]),
             "count": np.array([[length], [0], [1]])}  # fmt: skip
    saved_graph(tmp_path, feeds, row("sequence_slice", X="x", Offset="first", Length="count"))
    with pytest.raises(ShapeError, match="the number of steps, got [35]"):
        reference(load(tmp_path), feeds)


@ONE_LEVEL
@pytest.mark.parametrize("tokens", [[], [0, 2, 3], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sequence_erase(dtype: str, tokens: list[int], lod: Lod, tmp_path: Path) -> None:
    x = Ragged.from_lod(np.array([2, 5, 0, 1, 3], dtype)[: lod[-1][-1], None], lod)
    build = row("sequence_erase", X="x", tokens=tokens, gives=dtype)
    assert_same(tmp_path, {"x": x}, build)


@ONE_LEVEL
@pytest.mark.parametrize("size, pad", [(2, 0), (3, 7), (4, -1)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sequence_enumerate(dtype: str, size: int, pad: int, lod: Lod, tmp_path: Path) -> None:
    x = Ragged.from_lod(np.array([2, 5, 0, 1, 3], dtype)[: lod[-1][-1], None], lod)
    build = row("sequence_enumerate", X="x", win_size=size, pad_value=pad, gives=dtype)
    assert_same(tmp_path, {"x": x}, build)


@ONE_LEVEL
def test_sequence_scatter(lod: Lod, tmp_path: Path) -> None:
    """A column that comes twice gets both updates."""
    ids = Ragged.from_lod(np.array([2, 2, 0, 1, 0])[: lod[-1][-1], None], lod)
    feeds = {"x": numbers(len(lod[-1]) - 1, 4), "ids": ids, "updates": ragged(lod, 1)}
    assert_same(tmp_path, feeds, row("sequence_scatter", X="x", Ids="ids", Updates="updates"))
