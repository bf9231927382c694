"""Operators over several running inputs, and those that look at the LoD, beside Paddle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.backends import BACKENDS
from tests.frameworks.paddle_graphs import (
    LODS,
    Batch,
    PaddleGraph,
    Variable,
    check,
    differences,
)

from onernn import Ragged, Session, load
from onernn.ir.arrays import Array

ONE, TWO = LODS["ragged"], LODS["two-levels"]
OTHER = [[0, 1, 5]]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-2, 2, shape).astype(np.float32)


def ragged(lod: list[list[int]] | None, *sizes: int, seed: int = 0) -> Batch:
    data = numbers(lod[-1][-1] if lod else 5, *sizes, seed=seed)
    return Ragged.from_lod(data, lod) if lod else data


def compare(
    folder: Path,
    feeds: Mapping[str, Batch],
    build: Callable[[PaddleGraph, dict[str, Variable]], Variable],
    backend: str = "reference",
) -> None:
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in feeds.items()})
    check(graph.save(folder, [made]), [feeds, feeds], backend)


KINDS = {"dense": None, "one": ONE, "two": TWO, "other": OTHER}
PAIRS = list(itertools.product(KINDS, KINDS))


@pytest.mark.parametrize("x, y", PAIRS, ids="+".join)
@pytest.mark.parametrize("sizes", [(3, 3), (3, 1), (1, 3)], ids=str)
def test_a_sum_is_as_ragged_as_x(x: str, y: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    feeds = {"x": ragged(KINDS[x], sizes[0]), "y": ragged(KINDS[y], sizes[1], seed=1)}
    compare(
        tmp_path, feeds, lambda graph, v: graph.op("elementwise_add", {"X": v["x"], "Y": v["y"]})
    )


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 3), (5,)], ids=str)
@pytest.mark.parametrize("y", ["dense", "one"])
def test_a_sum_with_a_parameter_in_front_has_no_lod(
    shape: tuple[int, ...], y: str, tmp_path: Path
) -> None:
    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Variable:
        axis = 0 if shape == (5,) else -1
        inputs = {"X": graph.parameter(numbers(*shape)), "Y": v["y"]}
        return graph.op("elementwise_add", inputs, axis=axis)

    compare(tmp_path, {"y": ragged(KINDS[y], 3)}, build)


@pytest.mark.parametrize("x, y", PAIRS, ids="+".join)
@pytest.mark.parametrize("axis", [1, -1])
def test_a_concatenation_is_as_ragged_as_the_first(
    x: str, y: str, axis: int, tmp_path: Path
) -> None:
    feeds = {"x": ragged(KINDS[x], 3), "y": ragged(KINDS[y], 2, seed=1)}
    compare(tmp_path, feeds, lambda g, v: g.op("concat", {"X": [v["x"], v["y"]]}, axis=axis))


@pytest.mark.parametrize("axis", [1, -2, 2, -1])
def test_words_of_three_axes_are_concatenated(axis: int, tmp_path: Path) -> None:
    feeds = {name: ragged(ONE, 2, 2, seed=k) for k, name in enumerate("xyz")}
    compare(tmp_path, feeds, lambda g, v: g.op("concat", {"X": list(v.values())}, axis=axis))


@pytest.mark.parametrize("axis", [0, -2])
@pytest.mark.parametrize("lods", [(ONE, OTHER), (TWO, TWO, TWO), (ONE,), (None, ONE), (None, None)])
def test_along_the_words_sentences_are_appended(lods: Any, axis: int, tmp_path: Path) -> None:
    feeds = {f"x{k}": ragged(lod, 3, seed=k) for k, lod in enumerate(lods)}
    compare(tmp_path, feeds, lambda g, v: g.op("concat", {"X": list(v.values())}, axis=axis))


@pytest.mark.parametrize("x, y", [(x, y) for x, y in PAIRS if y != "dense"], ids="+".join)
def test_lod_reset_takes_every_level_of_y(x: str, y: str, tmp_path: Path) -> None:
    feeds = {"x": ragged(KINDS[x], 3), "y": ragged(KINDS[y], 1)}
    compare(
        tmp_path,
        feeds,
        # Y comes before target_lod
        lambda g, v: g.op("lod_reset", {"X": v["x"], "Y": v["y"]}, target_lod=[0, 5]),
    )


@pytest.mark.parametrize("x", KINDS)
@pytest.mark.parametrize("target", [[0, 2, 5], [0, 0, 4, 4, 5]], ids=str)
def test_lod_reset_takes_offsets_as_numbers(x: str, target: list[int], tmp_path: Path) -> None:
    feeds = {"x": ragged(KINDS[x], 3)}
    for part in ("attribute", "input"):
        (tmp_path / part).mkdir()
    compare(
        tmp_path / "attribute",
        feeds,
        lambda g, v: g.op("lod_reset", {"X": v["x"]}, target_lod=target),
    )
    compare(
        tmp_path / "input",
        {**feeds, "y": np.array(target, np.int32)},
        lambda g, v: g.op("lod_reset", {"X": v["x"], "Y": v["y"]}),
    )


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

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Variable:
        inputs = {"Emission": v["x"], "Transition": graph.parameter(transition)}
        if labelled:
            inputs["Label"] = v["label"]
        return graph.op("crf_decoding", inputs, ("ViterbiPath",), gives="int64")

    compare(tmp_path, feeds, build)


GRU = ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden")
FUSION_GRU = ("ReorderedH0", "XX", "BatchedInput", "BatchedOut", "Hidden")
FUNCTIONS = ("sigmoid", "tanh", "relu", "identity")
BOTH_FUNCTIONS = list(itertools.product(FUNCTIONS, FUNCTIONS))
LENGTHS = [[0, 1, 1, 5, 7]]


def gru(
    graph: PaddleGraph, v: dict[str, Variable], hidden: int, bias: bool, **attributes: Any
) -> Variable:
    # Gates that are not bounded: small weights keep the recurrence contractive.
    inputs = {
        "Input": v["x"],
        "Weight": graph.parameter(numbers(hidden, 3 * hidden) / (6 * hidden)),
    }
    if bias:
        inputs["Bias"] = graph.parameter(numbers(1, 3 * hidden) / 4)
    if "h" in v:
        inputs["H0"] = v["h"]
    return graph.op("gru", inputs, GRU, **attributes)[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize("origin", [False, True], ids=["", "origin"])
@pytest.mark.parametrize("functions", BOTH_FUNCTIONS, ids="/".join)
def test_gru_of_every_form(
    functions: tuple[str, str], origin: bool, reverse: bool, backend: str, tmp_path: Path
) -> None:
    for hidden, h0, bias in ((1, True, False), (4, True, True), (3, False, True)):
        feeds = {"x": Ragged.from_lod(numbers(7, 3 * hidden) / 2, LENGTHS)}
        if h0:
            feeds["h"] = numbers(4, hidden) / 2
        folder = tmp_path / str(hidden)
        folder.mkdir()
        compare(
            folder,
            feeds,
            lambda graph, v, hidden=hidden, bias=bias: gru(
                graph,
                v,
                hidden,
                bias,
                gate_activation=functions[0],
                activation=functions[1],
                origin_mode=origin,
                is_reverse=reverse,
            ),
            backend,
        )


def fusion_gru(
    graph: PaddleGraph, v: dict[str, Variable], hidden: int, bias: bool, **attributes: Any
) -> Variable:
    inputs = {
        "X": v["x"],
        "WeightX": graph.parameter(numbers(5, 3 * hidden) / 5),
        "WeightH": graph.parameter(numbers(hidden, 3 * hidden) / (6 * hidden)),
    }
    if bias:
        inputs["Bias"] = graph.parameter(numbers(1, 3 * hidden) / 4)
    if "h" in v:
        inputs["H0"] = v["h"]
    return graph.op("fusion_gru", inputs, FUSION_GRU, **attributes)[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize("functions", BOTH_FUNCTIONS, ids="/".join)
def test_fusion_gru_of_every_form(
    functions: tuple[str, str], reverse: bool, backend: str, tmp_path: Path
) -> None:
    """Without sentences of length zero, over which Paddle's native kernel goes wrong."""
    for hidden, h0, bias in ((1, True, False), (4, True, True), (3, False, True)):
        feeds = {"x": ragged([[0, 1, 5]], 5)}
        if h0:
            feeds["h"] = numbers(2, hidden) / 2
        for use_seq in (False, True):  # two kernels of Paddle
            folder = tmp_path / f"{hidden}{use_seq}"
            folder.mkdir()
            compare(
                folder,
                feeds,
                lambda graph, v, hidden=hidden, bias=bias, use_seq=use_seq: fusion_gru(
                    graph,
                    v,
                    hidden,
                    bias,
                    gate_activation=functions[0],
                    activation=functions[1],
                    is_reverse=reverse,
                    use_seq=use_seq,
                ),
                backend,
            )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_fusion_gru_over_sentences_of_length_zero(
    reverse: bool, backend: str, tmp_path: Path
) -> None:
    """Paddle's kernel runs the same batch without them: their rows are none, the others equal."""
    graph = PaddleGraph()
    feeds: dict[str, Batch] = {"x": Ragged.from_lod(numbers(7, 5), LENGTHS), "h": numbers(4, 3)}
    v = {name: graph.feed_like(name, value) for name, value in feeds.items()}
    saved = graph.save(tmp_path, [fusion_gru(graph, v, 3, True, is_reverse=reverse)])
    got = Session(load(tmp_path), backend=backend).run(feeds)
    kept = {"x": Ragged(feeds["x"].data, [0, 1, 5, 7]), "h": feeds["h"][[0, 2, 3]]}
    (without,) = saved.run(kept)
    assert not differences(got, [feeds["x"].with_data(without.data)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize("origin", [False, True], ids=["", "origin"])
def test_fusion_gru_honours_origin_mode(
    origin: bool, reverse: bool, backend: str, tmp_path: Path
) -> None:
    """As documented; Paddle's native kernel ignores it, so the oracle is written out here."""
    graph = PaddleGraph()
    feeds: dict[str, Batch] = {"x": Ragged.from_lod(numbers(7, 5), LENGTHS), "h": numbers(4, 3)}
    v = {name: graph.feed_like(name, value) for name, value in feeds.items()}
    made = fusion_gru(graph, v, 3, True, is_reverse=reverse, origin_mode=origin)
    graph.save(tmp_path, [made])
    w_x, w_h, bias = (
        np.float64(a) for a in (numbers(5, 9) / 5, numbers(3, 9) / 18, numbers(1, 9) / 4)
    )
    gates, candidate = w_h.reshape(-1)[:18].reshape(3, 6), w_h.reshape(-1)[18:].reshape(3, 3)
    rows = np.zeros((7, 3))
    for n, (start, end) in enumerate(itertools.pairwise(LENGTHS[0])):
        h = np.float64(feeds["h"][n])
        for t in reversed(range(start, end)) if reverse else range(start, end):
            xu, xr, xc = np.split(np.float64(feeds["x"].data[t]) @ w_x + bias[0], 3)
            u = 1 / (1 + np.exp(-(xu + h @ gates[:, :3])))
            r = 1 / (1 + np.exp(-(xr + h @ gates[:, 3:])))
            c = np.tanh(xc + (r * h) @ candidate)
            h = rows[t] = u * h + (1 - u) * c if origin else (1 - u) * h + u * c
    got = Session(load(tmp_path), backend=backend).run(feeds)
    assert not differences(got, [feeds["x"].with_data(rows.astype(np.float32))])
