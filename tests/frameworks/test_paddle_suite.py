"""What is read from Paddle's files, under the conformance kit, against Paddle on these files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import OUTPUTS, PaddleGraph, SavedModel

from onernn import Ragged, RnnSpec, RnnWeights, fuse, load
from onernn.ir.graph import Graph
from onernn.verification.suite import Case, Conformance


def rnns(graph: Graph) -> tuple[RnnSpec, list[RnnWeights]]:
    """The recurrent layers of a graph as one stack."""
    found = [node.attributes for node in fuse(graph).model.nodes if node.op == "Rnn"]
    weights: list[RnnWeights] = []
    for each in found:
        given = each["weights"]
        weights += [given] if isinstance(given, RnnWeights) else given
    return replace(found[0]["spec"], layers=len(weights)), weights


class Saved(Conformance):
    framework = "paddle"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def weights(self, saved: SavedModel, case: Case) -> tuple[RnnSpec, list[RnnWeights]]:
        return rnns(load(saved.folder))


class TestLod(Saved):
    """mul + gru, and mul + lstm, over sentences; both give no final state."""

    cells = ("gru", "lstm", "lstm_peephole")
    directions, layers = ("left2right", "right2left"), (1, 2)
    final_states = False

    def layer(self, case: Case) -> SavedModel:
        graph, spec = PaddleGraph(), case.spec
        units, width = spec.hidden_size, spec.input_size
        columns, reverse = spec.gates * units, spec.direction == "right2left"
        value = graph.feed("x", [-1, width], lod_level=1)
        for k in range(spec.layers):
            parameters = {
                "Weight": graph.parameter(case.contractive(units, columns)),
                "Bias": graph.parameter(case.contractive(1, columns + 3 * units * spec.peephole)),
            }
            weight = graph.parameter(case.contractive(width, columns))
            projected = graph.op("mul", {"X": value, "Y": weight})
            states = {
                f"{part.upper()}0": graph.feed(f"{part}{k}", [-1, units])
                for part in spec.cell.states
            }
            inputs = {"Input": projected, **parameters, **states}
            kind = "gru" if case.cell == "gru" else "lstm"
            peepholes = {"use_peepholes": spec.peephole} if kind == "lstm" else {}
            value, *_ = graph.op(kind, inputs, OUTPUTS[kind], is_reverse=reverse, **peepholes)
            width = units
        return graph.save(self.folder, [value])

    def outputs(self, saved: SavedModel, case: Case) -> tuple[Ragged, None]:
        zeros = np.zeros((len(case.x), case.spec.hidden_size), np.float32)
        feeds: dict[str, Any] = {"x": case.x}
        for k in range(case.spec.layers):
            for at, part in enumerate(case.spec.cell.states):
                feeds[f"{part}{k}"] = zeros if case.state is None else case.state[at][k, 0]
        (y,) = saved.run(feeds)
        return y, None


MODES = {"rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU", "lstm": "LSTM", "lbr_gru": "GRU"}


class TestRnn(Saved):
    """The operator behind paddle.nn.SimpleRNN, LSTM and GRU, over padded batches with lengths."""

    cells, directions = tuple(MODES), ("left2right", "bidirectional_concat")

    def layer(self, case: Case) -> SavedModel:
        graph, spec = PaddleGraph(), case.spec
        rows, width, pairs = spec.gates * spec.hidden_size, spec.input_size, []
        for _ in range(spec.layers):
            pairs += [(width, spec.hidden_size)] * spec.directions
            width = spec.output_size
        shapes = [(rows, columns) for pair in pairs for columns in pair]
        shapes += [(rows,)] * (2 * len(pairs))
        states = [
            graph.feed(part, [spec.layers * spec.directions, -1, spec.hidden_size])
            for part in spec.cell.states
        ]
        inputs = {
            "Input": graph.feed("x", [-1, -1, spec.input_size]),
            "WeightList": [graph.parameter(case.contractive(*shape)) for shape in shapes],
            "PreState": states,
            "SequenceLength": graph.feed("lengths", [-1], "int32"),
        }
        out, after = graph.op(
            "rnn",
            inputs,
            OUTPUTS["rnn"],
            counts={"State": len(states)},
            mode=MODES[case.cell],
            is_bidirec=spec.directions == 2,
            num_layers=spec.layers,
            input_size=spec.input_size,
            hidden_size=spec.hidden_size,
            is_test=True,
        )[:2]
        return graph.save(self.folder, [out, *after])

    def outputs(self, saved: SavedModel, case: Case) -> tuple[Any, Any]:
        spec = case.spec
        shape = (spec.layers * spec.directions, len(case.x), spec.hidden_size)
        feeds = {"x": case.padded(time_major=True), "lengths": case.lengths.astype(np.int32)}
        for at, part in enumerate(spec.cell.states):
            state = None if case.state is None else case.state[at].reshape(shape)
            feeds[part] = np.zeros(shape, np.float32) if state is None else state
        y, *after = saved.run(feeds)
        places = (spec.layers, spec.directions, len(case.x), -1)
        return case.cut(y, time_major=True), tuple(each.reshape(places) for each in after)
