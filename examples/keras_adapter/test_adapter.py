"""The adapter under onernn's conformance kit: against Keras's formulas, and Keras where it is.

pytest examples/keras_adapter                          some seconds, without Keras
ONERNN_REQUIRE=keras pytest examples/keras_adapter     an error where Keras is not installed
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onernn.verification.suite import Case, Conformance

sys.path.insert(0, str(Path(__file__).parent))
from adapter import LayerArrays, read
from layers import run

from onernn import ShapeError, UnsupportedError

KINDS = {
    "rnn_tanh": ("SimpleRNN", {}),
    "rnn_relu": ("SimpleRNN", {"activation": "relu"}),
    "rnn_sigmoid": ("SimpleRNN", {"activation": "sigmoid"}),
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {"reset_after": False}),
    "lbr_gru": ("GRU", {"reset_after": True}),
}


class TestAgainstFormulas(Conformance):
    cells = tuple(KINDS)
    known_failures = "known_failures.toml"

    def layer(self, case: Case) -> list[LayerArrays]:
        """A stack with numbers of its own, which the adapter has to read."""
        kind, options = KINDS[case.cell]
        spec, width = case.spec, case.spec.input_size
        options = {**options, "go_backwards": spec.direction == "right2left"}
        if spec.directions == 2:
            options["merge_mode"] = spec.direction.removeprefix("bidirectional_")
        stack, columns = [], spec.gates * spec.hidden_size
        for _ in range(spec.layers):
            biases = (2, columns) if case.cell == "lbr_gru" else (columns,)
            shapes = [(width, columns), (spec.hidden_size, columns), biases] * spec.directions
            arrays = [case.contractive(*shape) for shape in shapes]
            stack.append(LayerArrays(kind, arrays, **options))
            width = spec.output_size
        return stack

    def outputs(self, layer: list[LayerArrays], case: Case):
        x, after = case.pad(), []
        for k, each in enumerate(layer):
            x, states = self.run(each, x, case, self.states_of(case, k))
            after.append(states)
        # [layer][direction and part] -> one (L, D, N, O) for each part
        grouped = np.array(after).reshape(len(layer), case.spec.directions, -1, *after[0][0].shape)
        return case.cut(x), tuple(np.moveaxis(grouped, 2, 0))

    def states_of(self, case: Case, layer: int) -> list[np.ndarray]:
        """h, or h and c, (N, O), of one layer; of both directions where there are two."""
        parts, spec = len(case.spec.cell.states), case.spec
        if case.state is None:
            shape = (len(case.x), spec.hidden_size)
            return [np.zeros(shape, np.float32)] * (parts * spec.directions)
        return [part[layer, d] for d in range(spec.directions) for part in case.state]

    def run(self, layer: LayerArrays, x: np.ndarray, case: Case, states: list[np.ndarray]):
        return run(layer, x, case.lengths, states)

    def weights(self, layer: list[LayerArrays], case: Case):
        return read(layer)


class TestAgainstKeras(TestAgainstFormulas):
    framework = "keras"
    lengths, sizes = ("ragged",), ("odd", "wide")  # Keras builds each layer anew: some seconds

    def run(self, layer: LayerArrays, x: np.ndarray, case: Case, states: list[np.ndarray]):
        import keras

        kind, given = getattr(keras.layers, layer.kind), {"activation": layer.activation}
        if layer.kind == "GRU":
            given["reset_after"] = layer.reset_after
        made = kind(
            layer.arrays[1].shape[0],
            return_sequences=True,
            return_state=True,
            go_backwards=layer.go_backwards,
            **given,
        )
        if layer.merge_mode is not None:
            made = keras.layers.Bidirectional(made, merge_mode=layer.merge_mode)
        made.build(x.shape)
        made.set_weights(layer.arrays)
        mask = np.arange(x.shape[1]) < case.lengths[:, None]
        y, *after = made(x, mask=mask, initial_state=states)
        y = np.asarray(y)
        return (y[:, ::-1] if layer.go_backwards else y), [np.asarray(each) for each in after]


def test_what_cannot_be_read_is_refused_by_name() -> None:
    arrays = [np.zeros((4, 12)), np.zeros((3, 12)), np.zeros(12)]
    with pytest.raises(UnsupportedError, match="LSTM with activation='relu'"):
        read([LayerArrays("LSTM", arrays, activation="relu")])
    with pytest.raises(ShapeError, match=r"bias: expected \(12,\), got \(11,\)"):
        read([LayerArrays("LSTM", [*arrays[:2], np.zeros(11)])])
    with pytest.raises(ShapeError, match="expected 3 arrays, got 2"):
        read([LayerArrays("LSTM", arrays[:2])])
