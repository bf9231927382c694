"""Every recurrent operator but the GRUs over LoD, in every form, beside Paddle's native kernels."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.backends import BACKENDS
from tests.frameworks.paddle_graphs import (
    Batch,
    PaddleGraph,
    SavedModel,
    Variable,
    check,
    differences,
)

from onernn import Ragged, Session, UnsupportedError, load
from onernn.ir.arrays import Array

LENGTHS = [[0, 1, 1, 5, 7]]
FILLED = [[0, 1, 5, 7]]
FUNCTIONS = ("sigmoid", "tanh", "relu", "identity")
LSTM = ("Hidden", "Cell", "BatchGate", "BatchCellPreAct")
FUSION = (
    *("Hidden", "Cell", "XX", "BatchedInput", "BatchedHidden", "BatchedCell"),
    *("ReorderedH0", "ReorderedC0"),
)
FLAGS = pytest.mark.parametrize("backend", BACKENDS)
REVERSE = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
PEEPHOLE = pytest.mark.parametrize("peephole", [False, True], ids=["", "peephole"])


def numbers(*shape: int, seed: int = 0) -> Array:
    """Contractive also under functions without bounds."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.uniform(-1, 1, shape) / (2 * np.sqrt(shape[0]))).astype(np.float32)


def ragged(lod: list[list[int]], channels: int) -> Ragged:
    data = np.random.default_rng(channels).uniform(-1, 1, (lod[-1][-1], channels))
    return Ragged.from_lod(data.astype(np.float32), lod)


def built(folder: Path, feeds: dict[str, Batch], build: Any) -> SavedModel:
    graph = PaddleGraph()
    made = build(graph, {name: graph.feed_like(name, value) for name, value in feeds.items()})
    folder.mkdir(parents=True, exist_ok=True)
    return graph.save(folder, list(made))


def with_states(feeds: dict[str, Batch], hidden: int, state: bool, batch: int = 4) -> None:
    if state:
        feeds["h0"] = numbers(batch, hidden, seed=1) * 2
        feeds["c0"] = numbers(batch, hidden, seed=2) * 2


def lstm(operator: str, hidden: int, *, peephole: bool, **attributes: Any) -> Any:
    """What appends the operator, from a projected input or (fused) 5 channels or word numbers."""

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        parameter = graph.parameter
        inputs = {"Bias": parameter(numbers(1, (7 if peephole else 4) * hidden))}
        weight_h = parameter(numbers(hidden, 4 * hidden))
        if operator == "lstm":
            inputs |= {"Input": v["x"], "Weight": weight_h}
        elif operator == "fusion_lstm":
            weight_x = parameter(numbers(5, 4 * hidden))
            inputs |= {"X": v["x"], "WeightX": weight_x, "WeightH": weight_h}
        else:
            table = parameter(numbers(6, 4 * hidden) * 2)
            inputs |= {"Ids": v["x"], "Embeddings": table, "WeightH": weight_h}
        if "h0" in v:
            inputs |= {"H0": v["h0"], "C0": v["c0"]}
        outputs = LSTM if operator == "lstm" else FUSION
        outputs += ("CheckedCell",) if operator == "fusion_lstm" else ()
        return graph.op(operator, inputs, outputs, use_peepholes=peephole, **attributes)[:2]

    return build


@FLAGS
@REVERSE
@PEEPHOLE
@pytest.mark.parametrize("state", [False, True], ids=["", "H0 C0"])
@pytest.mark.parametrize("hidden", [1, 3, 8])
def test_lstm_with_every_cell(
    hidden: int, state: bool, peephole: bool, reverse: bool, backend: str, tmp_path: Path
) -> None:
    feeds: dict[str, Batch] = {"x": ragged(LENGTHS, 4 * hidden)}
    with_states(feeds, hidden, state)
    saved = built(tmp_path, feeds, lstm("lstm", hidden, peephole=peephole, is_reverse=reverse))
    check(saved, [feeds, feeds], backend)


@FLAGS
@PEEPHOLE
@pytest.mark.parametrize("gate, cell, candidate", list(itertools.product(FUNCTIONS, repeat=3)))
def test_lstm_of_every_function(
    gate: str, cell: str, candidate: str, peephole: bool, backend: str, tmp_path: Path
) -> None:
    feeds: dict[str, Batch] = {"x": ragged(LENGTHS, 12)}
    attributes = {"gate_activation": gate, "cell_activation": cell}
    build = lstm("lstm", 3, peephole=peephole, candidate_activation=candidate, **attributes)
    check(built(tmp_path, feeds, build), [feeds], backend)


@FLAGS
@REVERSE
@PEEPHOLE
@pytest.mark.parametrize("use_seq", [False, True], ids=["batch", "seq"])
@pytest.mark.parametrize("state", [False, True], ids=["", "H0 C0"])
@pytest.mark.parametrize("operator", ["fusion_lstm", "fused_embedding_fc_lstm"])
def test_fused_lstms(
    operator: str,
    state: bool,
    use_seq: bool,
    peephole: bool,
    reverse: bool,
    backend: str,
    tmp_path: Path,
) -> None:
    for hidden in (1, 3, 8):
        feeds: dict[str, Batch] = {"x": ragged(FILLED, 5)}
        if operator == "fused_embedding_fc_lstm":
            ids = np.random.default_rng(hidden).integers(0, 6, (7, 1))
            feeds = {"x": Ragged.from_lod(ids, FILLED)}
        with_states(feeds, hidden, state, batch=3)
        build = lstm(operator, hidden, peephole=peephole, is_reverse=reverse, use_seq=use_seq)
        check(built(tmp_path / str(hidden), feeds, build), [feeds, feeds], backend)


@FLAGS
@pytest.mark.parametrize("functions", list(itertools.product(FUNCTIONS, repeat=3)), ids="/".join)
def test_fusion_lstm_of_every_function(
    functions: tuple[str, str, str], backend: str, tmp_path: Path
) -> None:
    names = ("gate_activation", "cell_activation", "candidate_activation")
    feeds: dict[str, Batch] = {"x": ragged(FILLED, 5)}
    attributes = dict(zip(names, functions, strict=True))
    build = lstm("fusion_lstm", 3, peephole=False, **attributes)
    check(built(tmp_path, feeds, build), [feeds], backend)


@FLAGS
def test_a_sentence_of_length_zero_changes_no_other(backend: str, tmp_path: Path) -> None:
    """Paddle's fusion_lstm runs the batch without it; ours gives the same rows with it."""
    feeds: dict[str, Batch] = {"x": ragged(LENGTHS, 5)}
    with_states(feeds, 3, True)
    saved = built(tmp_path, feeds, lstm("fusion_lstm", 3, peephole=True))
    got = Session(load(tmp_path), backend=backend).run(feeds)
    kept = [0, 2, 3]
    without = saved.run(
        {"x": Ragged(feeds["x"].data, FILLED[0]), **{k: feeds[k][kept] for k in ("h0", "c0")}}
    )
    assert not differences(got, [feeds["x"].with_data(each.data) for each in without])


MODES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def rnn(mode: str, layers: int, both: bool, lengths: bool, dropout: float = 0.0) -> Any:
    hidden, inputs = 3, 5

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        matrices, biases = [], []
        for layer, direction in itertools.product(range(layers), range(2 if both else 1)):
            width = inputs if layer == 0 else hidden * (2 if both else 1)
            rows, seed = MODES[mode] * hidden, 10 * layer + direction
            matrices += [numbers(rows, width, seed=seed), numbers(rows, hidden, seed=seed)]
            biases += [numbers(rows, seed=seed) * 2, numbers(rows, seed=seed + 50) * 2]
        states = [v[name] for name in ("h0", "c0") if name in v]
        slots = {
            "Input": v["x"],
            "PreState": states,
            "WeightList": [graph.parameter(array) for array in matrices + biases],
        }
        if lengths:
            slots["SequenceLength"] = v["lengths"]
        out, state, *_ = graph.op(
            "rnn",
            slots,
            ("Out", "State", "Reserve", "DropoutState"),
            gives={
                "Out": "float32",
                "State": "float32",
                "Reserve": "uint8",
                "DropoutState": "uint8",
            },
            counts={"State": len(states)},
            mode=mode,
            num_layers=layers,
            is_bidirec=both,
            input_size=inputs,
            hidden_size=hidden,
            dropout_prob=dropout,
            is_test=True,
        )
        return [out, *state]

    return build


@FLAGS
@pytest.mark.parametrize("lengths", [False, True], ids=["", "lengths"])
@pytest.mark.parametrize("both", [False, True], ids=["", "both"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_rnn_of_every_mode(
    mode: str, layers: int, both: bool, lengths: bool, backend: str, tmp_path: Path
) -> None:
    """Several batches in a row; lengths of zero and of all steps are among them."""
    rows, batches = layers * (1 + both), []
    for steps, found in ((6, [6, 0, 2, 5]), (1, [1, 1]), (4, [2, 1, 3])):
        n = len(found)
        feeds: dict[str, Batch] = {"x": numbers(steps, n, 5) * 4}
        feeds["h0"] = numbers(rows, n, 3, seed=1) * 2
        if mode == "LSTM":
            feeds["c0"] = numbers(rows, n, 3, seed=2) * 2
        if lengths:
            feeds["lengths"] = np.array(found, np.int32)
        batches.append(feeds)

    def build_from(graph: PaddleGraph) -> list[Variable]:
        v = {"x": graph.feed("x", [-1, -1, 5])}
        v |= {name: graph.feed(name, [rows, -1, 3]) for name in ("h0", "c0") if name in batches[0]}
        if lengths:
            v["lengths"] = graph.feed("lengths", [-1], "int32")
        return rnn(mode, layers, both, lengths, dropout=0.5)(graph, v)

    graph = PaddleGraph()
    check(graph.save(tmp_path, build_from(graph)), batches, backend)


@FLAGS
@pytest.mark.parametrize("origin", [False, True], ids=["", "origin"])
@pytest.mark.parametrize("functions", list(itertools.product(range(4), repeat=2)), ids=str)
def test_gru_unit(functions: tuple[int, int], origin: bool, backend: str, tmp_path: Path) -> None:
    feeds: dict[str, Batch] = {"x": numbers(4, 9) * 2, "h": numbers(4, 3) * 2}

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        weight, bias = (graph.parameter(numbers(*s)) for s in ((3, 9), (1, 9)))
        made = graph.op(
            "gru_unit",
            {"Input": v["x"], "HiddenPrev": v["h"], "Weight": weight, "Bias": bias},
            ("Hidden", "Gate", "ResetHiddenPrev"),
            gate_activation=functions[0],
            activation=functions[1],
            origin_mode=origin,
        )
        return made[:1]

    check(built(tmp_path, feeds, build), [feeds], backend)


@FLAGS
@pytest.mark.parametrize("origin", [False, True], ids=["", "origin"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_multi_gru(layers: int, bias: bool, origin: bool, backend: str, tmp_path: Path) -> None:
    """Paddle has it on its own oneDNN only."""
    feeds: dict[str, Batch] = {"x": ragged(FILLED, 5)}

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        slots: dict[str, Any] = {"X": v["x"], "WeightX": [], "WeightH": []}
        slots |= {"Bias": []} if bias else {}
        for part in range(2 * layers):
            width = 5 if part < 2 else 6
            slots["WeightX"].append(graph.parameter(numbers(width, 9, seed=part)))
            slots["WeightH"].append(graph.parameter(numbers(3, 9, seed=part)))
            if bias:
                slots["Bias"].append(graph.parameter(numbers(1, 9, seed=part)))
        made = graph.op(
            "multi_gru", slots, ("Hidden",), layers=layers, origin_mode=origin, use_mkldnn=True
        )
        return [made]

    check(built(tmp_path, feeds, build), [feeds], backend)


def test_attention_lstm_is_refused_with_its_reason(tmp_path: Path) -> None:
    feeds: dict[str, Batch] = {"x": ragged(FILLED, 5), "c0": numbers(3, 3)}

    def build(graph: PaddleGraph, v: dict[str, Variable]) -> Any:
        inputs = {"X": v["x"], "C0": v["c0"]}
        shapes = {"AttentionWeight": (8, 1), "LSTMWeight": (8, 12), "LSTMBias": (1, 12)}
        inputs |= {slot: graph.parameter(numbers(*shape)) for slot, shape in shapes.items()}
        outputs = ("Hidden", "Cell", "AttentionedX", "AttentionFCOut", "LSTMX", "LSTMOUT")
        return graph.op("attention_lstm", inputs, outputs)[:1]

    built(tmp_path, feeds, build)
    with pytest.raises(UnsupportedError, match="attends to the whole sentence anew"):
        Session(load(tmp_path), backend="reference")
