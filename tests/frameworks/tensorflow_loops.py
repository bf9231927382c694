"""Recurrent layers of Keras 2 and TensorFlow 1 that its exporter, tf2onnx, writes as Loop or Scan.

``TF_USE_LEGACY_KERAS=1 python -m tests.frameworks.tensorflow_loops`` records them anew under
tests/data/onnx; it needs tensorflow-cpu 2.16, tf-keras and tf2onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from tensorflow.python.ops import control_flow_util
from tests.frameworks.recording import record_onnx

from onernn import recording

WIDTH, H = 4, 3
X = np.random.default_rng(0).uniform(-1, 1, (4, 6, WIDTH)).astype(np.float32)
LENGTHS = np.array([6, 0, 1, 4], np.int32)
IDS = np.array([[1, 2, 3, 4, 0, 0], [5, 6, 0, 0, 0, 0], [7, 0, 8, 9, 0, 1], [0] * 6], np.int32)
V1, KERAS = tf.compat.v1, tf.keras.layers
CELLS = V1.nn.rnn_cell


def weights(shapes: list[Any]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-0.8, 0.8, shape).astype(np.float32) for shape in shapes]


class Export(NamedTuple):
    """A model, what it read and what TensorFlow computed."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: list[Any]


def keras(make: Callable[..., Any], opset: int, masked: bool = False, **options: Any) -> Export:
    """A layer over steps, or over an embedding that masks zeros."""
    name, inputs = ("ids", IDS) if masked else ("x", X)
    begin = tf.keras.Input((None,) if masked else (None, WIDTH), dtype=inputs.dtype)
    front = KERAS.Embedding(20, WIDTH, mask_zero=True)(begin) if masked else begin
    model = tf.keras.Model(begin, make(**options)(front))
    model.set_weights(weights([each.shape for each in model.get_weights()]))
    spec = [tf.TensorSpec([None] * 2 if masked else [None, None, WIDTH], inputs.dtype, name)]
    function = tf.function(lambda x: model(x, training=False), input_signature=spec)
    proto, _ = tf2onnx.convert.from_function(function, input_signature=spec, opset=opset)
    return Export(proto, {name: inputs}, tf.nest.flatten(function(inputs)))


def dynamic_rnn(
    make: Callable[[], Any],
    opset: int,
    *,
    lengths: bool = True,
    major: bool = False,
    both: bool = False,
) -> Export:
    """A cell under dynamic_rnn, frozen as a GraphDef, as programs of TensorFlow 1 do it."""
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    graph = tf.Graph()
    with graph.as_default(), V1.Session(graph=graph) as session:
        x = V1.placeholder(tf.float32, [None, None, WIDTH], name="x")
        sizes = V1.placeholder(tf.int32, [None], name="lengths") if lengths else None
        options = {"dtype": tf.float32, "sequence_length": sizes, "time_major": major}
        if both:
            results = V1.nn.bidirectional_dynamic_rnn(make(), make(), x, **options)
        else:
            results = V1.nn.dynamic_rnn(make(), x, **options)
        outputs = [tf.identity(each, f"out{k}") for k, each in enumerate(tf.nest.flatten(results))]
        session.run(V1.global_variables_initializer())
        variables = V1.global_variables()
        for variable, array in zip(variables, weights([v.shape for v in variables]), strict=True):
            variable.load(array, session)
        feed = {"x:0": np.ascontiguousarray(X.swapaxes(0, 1)) if major else X}
        feed |= {"lengths:0": LENGTHS} if lengths else {}
        want = session.run(outputs, feed)
        names = [each.name for each in outputs]
        frozen = V1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), [name.removesuffix(":0") for name in names]
        )
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = True
    proto, _ = tf2onnx.convert.from_graph_def(
        frozen, input_names=[*feed], output_names=names, opset=opset
    )
    return Export(proto, feed, want)


def both(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **options: KERAS.Bidirectional(make(**options))


def stacked() -> Any:
    return CELLS.MultiRNNCell([CELLS.LSTMCell(H), CELLS.GRUCell(2)])


LSTM, GRU, RNN = (partial(each, H) for each in (KERAS.LSTM, KERAS.GRU, KERAS.SimpleRNN))
STEPS: dict[str, Any] = {"return_sequences": True}
HARD: dict[str, Any] = {"recurrent_activation": "hard_sigmoid"}
DROP: dict[str, Any] = {"recurrent_dropout": 0.2}
LOOPS: dict[str, Callable[[], Export]] = {
    "keras2_lstm_dropout": lambda: keras(LSTM, 9, **STEPS, **DROP, return_state=True),
    "keras2_gru_hard": lambda: keras(GRU, 10, **STEPS, **HARD),
    "keras2_gru_before_relu": lambda: keras(
        GRU, 11, **STEPS, **HARD, **DROP, activation="relu", reset_after=False, go_backwards=True
    ),
    "keras2_rnn_elu_both": lambda: keras(both(RNN), 12, **STEPS, **DROP, activation="elu"),
    "keras2_gru_linear": lambda: keras(GRU, 17, **STEPS, activation="linear"),
    "keras2_lstm_elu": lambda: keras(LSTM, 18, activation="elu", use_bias=False),
    "keras2_masked_gru_hard": lambda: keras(GRU, 13, masked=True, **STEPS, **HARD),
    "tensorflow1_lstm": lambda: dynamic_rnn(lambda: CELLS.LSTMCell(H), 9),
    "tensorflow1_lstm_relu": lambda: dynamic_rnn(
        lambda: CELLS.BasicLSTMCell(H, activation=tf.nn.relu), 15, lengths=False, major=True
    ),
    "tensorflow1_lstm_peepholes": lambda: dynamic_rnn(
        lambda: CELLS.LSTMCell(H, use_peepholes=True, cell_clip=0.3, num_proj=2), 18
    ),
    "tensorflow1_gru_both": lambda: dynamic_rnn(lambda: CELLS.GRUCell(H), 11, both=True),
    "tensorflow1_rnn": lambda: dynamic_rnn(lambda: CELLS.BasicRNNCell(H), 13, major=True),
    "tensorflow1_stacked": lambda: dynamic_rnn(stacked, 17),
}


def export(name: str, folder: Path) -> None:
    """Writes ``model.onnx`` and the recording ``io.npz`` into a folder."""
    result = LOOPS[name]()
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(result.model, folder / "model.onnx")
    recording.save(folder / "io.npz", result.inputs, result.outputs)


if __name__ == "__main__":
    record_onnx(LOOPS, export)
