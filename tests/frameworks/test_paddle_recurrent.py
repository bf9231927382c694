"""Every recurrent operator in every form, beside Paddle's native kernels.

On the reference: tests/backend compares the other backends with an oracle, for the same layers.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import (
    Batch,
    Build,
    Fixed,
    PaddleGraph,
    assert_same,
    check,
    row,
)

from onernn import Ragged
from onernn.ir.arrays import Array

LENGTHS = [[0, 1, 1, 5, 7]]
FILLED = [[0, 1, 5, 7]]
"""Over sentences of length zero Paddle's fused kernels go wrong."""
FUNCTIONS = ("sigmoid", "tanh", "relu", "identity")
PAIRS = list(itertools.product(FUNCTIONS, repeat=2))
TRIPLES = [(*pair, FUNCTIONS[k % 4 ^ k // 4]) for k, pair in enumerate(PAIRS)]
"""Every two functions in every two places."""
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
ORIGIN = pytest.mark.parametrize("origin", [False, True], ids=["", "origin"])
PEEPHOLE = pytest.mark.parametrize("peephole", [False, True], ids=["", "peephole"])


def small(*shape: int, seed: int = 0, scale: float = 1) -> Array:
    """Contractive also under functions without bounds."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.uniform(-scale, scale, shape) / (2 * np.sqrt(shape[0]))).astype(np.float32)


def fixed(*shape: int, seed: int = 0, scale: float = 1) -> Fixed:
    return Fixed(small(*shape, seed=seed, scale=scale))


def sentences(lod: list[list[int]], channels: int) -> Ragged:
    data = np.random.default_rng(channels).uniform(-1, 1, (lod[-1][-1], channels))
    return Ragged.from_lod(data.astype(np.float32), lod)


def states(hidden: int, batch: int) -> dict[str, Array]:
    return {name: small(batch, hidden, seed=seed, scale=2) for seed, name in ((1, "h"), (2, "c"))}


def gru(operator: str, hidden: int, *, bias: bool, state: bool, **attributes: Any) -> Build:
    """Over an input that is projected already, or (fused) 5 channels."""
    slots: dict[str, Any] = {"Input": "x", "Weight": fixed(hidden, 3 * hidden)}
    if operator == "fusion_gru":
        slots = {"X": "x", "WeightX": fixed(5, 3 * hidden), "WeightH": slots["Weight"]}
    slots |= {"Bias": fixed(1, 3 * hidden)} if bias else {}
    slots |= {"H0": "h"} if state else {}
    return row(operator, **slots, **attributes)


def lstm(operator: str, hidden: int, *, peephole: bool, state: bool, **attributes: Any) -> Build:
    """Over an input that is projected already, or (fused) 5 channels or word numbers."""
    slots: dict[str, Any] = {"Bias": fixed(1, (7 if peephole else 4) * hidden)}
    weight = fixed(hidden, 4 * hidden)
    if operator == "lstm":
        slots |= {"Input": "x", "Weight": weight}
    elif operator == "fusion_lstm":
        slots |= {"X": "x", "WeightX": fixed(5, 4 * hidden), "WeightH": weight}
    else:
        slots |= {"Ids": "x", "Embeddings": fixed(6, 4 * hidden, scale=2), "WeightH": weight}
    slots |= {"H0": "h", "C0": "c"} if state else {}
    return row(operator, use_peepholes=peephole, **slots, **attributes)


@REVERSE
@pytest.mark.parametrize("functions", PAIRS, ids="/".join)
@pytest.mark.parametrize(
    "operator, more",
    [
        *(("gru", {"origin_mode": origin}) for origin in (False, True)),
        *(("fusion_gru", {"use_seq": use}) for use in (False, True)),  # two kernels of Paddle
    ],
)
def test_grus_of_every_form(
    operator: str,
    more: dict[str, bool],
    functions: tuple[str, str],
    reverse: bool,
    tmp_path: Path,
) -> None:
    attributes = {"gate_activation": functions[0], "activation": functions[1], **more}
    for hidden, state, bias in ((1, True, False), (4, True, True), (3, False, True)):
        feeds: dict[str, Batch] = {"x": sentences(FILLED, 5)}
        if operator == "gru":
            feeds["x"] = sentences(LENGTHS, 3 * hidden)
        feeds |= {"h": small(len(feeds["x"]), hidden)} if state else {}
        build = gru(operator, hidden, bias=bias, state=state, is_reverse=reverse, **attributes)
        assert_same(tmp_path / str(hidden), feeds, build)


@REVERSE
@PEEPHOLE
@pytest.mark.parametrize("state", [False, True], ids=["", "H0 C0"])
@pytest.mark.parametrize(
    "operator, more",
    [
        ("lstm", {}),
        *((operator, {"use_seq": use}) for operator in ("fusion_lstm", "fused_embedding_fc_lstm")
          for use in (False, True)),
    ],
)  # fmt: skip
def test_lstms_with_every_cell(
    operator: str,
    more: dict[str, bool],
    state: bool,
    peephole: bool,
    reverse: bool,
    tmp_path: Path,
) -> None:
    for hidden in (1, 3, 8):
        x = sentences(FILLED, 5)
        if operator == "lstm":
            x = sentences(LENGTHS, 4 * hidden)
        elif operator == "fused_embedding_fc_lstm":
            x = Ragged.from_lod(np.random.default_rng(hidden).integers(0, 6, (7, 1)), FILLED)
        feeds: dict[str, Batch] = {"x": x, **(states(hidden, len(x)) if state else {})}
        build = lstm(operator, hidden, peephole=peephole, state=state, is_reverse=reverse, **more)
        assert_same(tmp_path / str(hidden), feeds, build)


@pytest.mark.parametrize(
    "operator, peephole", [("lstm", False), ("lstm", True), ("fusion_lstm", False)]
)
@pytest.mark.parametrize("functions", TRIPLES, ids="/".join)
def test_lstms_of_every_function(
    functions: tuple[str, str, str], operator: str, peephole: bool, tmp_path: Path
) -> None:
    names = ("gate_activation", "cell_activation", "candidate_activation")
    attributes = dict(zip(names, functions, strict=True))
    x = sentences(LENGTHS, 12) if operator == "lstm" else sentences(FILLED, 5)
    build = lstm(operator, 3, peephole=peephole, state=False, **attributes)
    assert_same(tmp_path, {"x": x}, build)


MODES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@pytest.mark.parametrize("lengths", [False, True], ids=["", "lengths"])
@pytest.mark.parametrize("both", [False, True], ids=["", "both"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_rnn_of_every_mode(
    mode: str, layers: int, both: bool, lengths: bool, tmp_path: Path
) -> None:
    """Several batches in a row; lengths of zero and of all steps are among them."""
    count, batches = layers * (1 + both), []
    names = "hc" if mode == "LSTM" else "h"
    for steps, each in ((6, [6, 0, 2, 5]), (1, [1, 1]), (4, [2, 1, 3])):
        n = len(each)
        feeds: dict[str, Batch] = {"x": small(steps, n, 5, scale=4)}
        feeds |= {name: small(count, n, 3, seed=ord(name), scale=2) for name in names}
        feeds |= {"lengths": np.array(each, np.int32)} if lengths else {}
        batches.append(feeds)
    matrices, biases = [], []
    for layer, direction in itertools.product(range(layers), range(1 + both)):
        width = 5 if layer == 0 else 3 * (1 + both)
        gates, seed = MODES[mode] * 3, 10 * layer + direction
        matrices += [fixed(gates, width, seed=seed), fixed(gates, 3, seed=seed)]
        biases += [fixed(gates, seed=seed + k, scale=2) for k in (0, 50)]
    graph = PaddleGraph()
    inputs = {"x": graph.feed("x", [-1, -1, 5])}
    inputs |= {name: graph.feed(name, [count, -1, 3]) for name in names}
    inputs |= {"lengths": graph.feed("lengths", [-1], "int32")} if lengths else {}
    build = row(
        "rnn", Input="x", PreState=list(names), WeightList=matrices + biases,
        **({"SequenceLength": "lengths"} if lengths else {}), counts={"State": len(names)},
        mode=mode, num_layers=layers, is_bidirec=both, input_size=5, hidden_size=3,
        dropout_prob=0.5, is_test=True,
    )  # fmt: skip
    check(graph.save(tmp_path, build(graph, inputs)), batches)


@ORIGIN
@pytest.mark.parametrize("functions", list(itertools.product(range(4), repeat=2)), ids=str)
def test_gru_unit(functions: tuple[int, int], origin: bool, tmp_path: Path) -> None:
    feeds: dict[str, Batch] = {"x": small(4, 9, scale=2), "h": small(4, 3, scale=2)}
    gate, candidate = functions
    build = row("gru_unit", Input="x", HiddenPrev="h", Weight=fixed(3, 9), Bias=fixed(1, 9),
                gate_activation=gate, activation=candidate, origin_mode=origin)  # fmt: skip
    assert_same(tmp_path, feeds, build)


@ORIGIN
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_multi_gru(layers: int, bias: bool, origin: bool, tmp_path: Path) -> None:
    """Paddle has it on its own oneDNN only."""
    parts = range(2 * layers)
    slots = {"WeightX": [fixed(5 if part < 2 else 6, 9, seed=part) for part in parts]}
    slots["WeightH"] = [fixed(3, 9, seed=part) for part in parts]
    slots |= {"Bias": [fixed(1, 9, seed=part) for part in parts]} if bias else {}
    build = row("multi_gru", X="x", **slots, layers=layers, origin_mode=origin, use_mkldnn=True)
    assert_same(tmp_path, {"x": sentences(FILLED, 5)}, build)
