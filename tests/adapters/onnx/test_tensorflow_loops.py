"""Layers of Keras 2 and TensorFlow 1 that tf2onnx writes as Loop or Scan become layers again.

``tests/frameworks/tensorflow_loops.py`` recorded the files, and what TensorFlow computed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_models import session_of
from support.recordings import DATA

from onernn import Session, fuse, load
from onernn.engine.compiling import compile_model
from onernn.fuse_passes.bodies import every_node
from onernn.ir.rnn import Recurrent
from onernn.verification.recording import read_arrays

HARD = "hardsigmoid(0.2, 0.5)"
LAYERS = {
    "keras2_lstm_dropout": ["sigmoid tanh tanh"],
    "keras2_gru_hard": [f"{HARD} tanh"],
    "keras2_gru_before_relu": [f"{HARD} relu"],
    "keras2_rnn_elu_both": ["elu(1)", "elu(1)"],
    "keras2_lstm_elu": ["sigmoid elu(1) elu(1)"],
    "keras2_masked_gru_hard": [f"{HARD} tanh"],
    "tensorflow1_lstm": ["sigmoid tanh tanh"],
    "tensorflow1_lstm_relu": ["sigmoid relu relu"],
    "tensorflow1_lstm_peepholes": ["sigmoid tanh tanh"],
    "tensorflow1_gru_both": ["sigmoid tanh", "sigmoid tanh"],
    "tensorflow1_rnn": ["tanh"],
    "tensorflow1_stacked": ["sigmoid tanh tanh", "sigmoid tanh"],
}
"""The functions of each layer."""
LENGTHS = ["tensorflow1_lstm", "tensorflow1_lstm_peepholes", "tensorflow1_rnn"]
LENGTHS += ["tensorflow1_stacked"]
MAJOR = ("tensorflow1_lstm_relu", "tensorflow1_rnn")
TOLERANCE = 2 * 6 * 4 * 10 * float(np.finfo(np.float32).eps)
"""Of two float32 results: 6 steps, a chain of 4 operators each, sums of 10 products below 1."""


def file_of(name: str) -> Path:
    return DATA / "onnx" / name / "model.onnx"


def recorded(name: str) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The inputs by name, and TensorFlow's outputs."""
    arrays = read_arrays(DATA / "onnx" / name / "io.npz")
    inputs = {key[4:]: array for key, array in arrays.items() if key.startswith("in__")}
    return inputs, [array for key, array in arrays.items() if key.startswith("out__")]


def assert_near(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for mine, other in zip(got, want, strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", LAYERS)
def test_the_loop_is_a_layer_of_the_functions_of_its_cell(name: str) -> None:
    nodes = list(every_node(fuse(file_of(name)).model))
    specs = [Recurrent.of(node).spec for node in nodes if node.op == "Rnn"]
    assert [" ".join(map(str, spec.functions)) for spec in specs] == LAYERS[name]
    assert {"Loop", "Scan", "If"}.isdisjoint(node.op for node in nodes)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_and_each_sequence_alone_give_what_tensorflow_gave(name: str) -> None:
    """Their lengths are 6, 0, 1 and 4."""
    inputs, want = recorded(name)
    session, axis = Session(file_of(name)), int(name in MAJOR)
    assert_near([*session.run(inputs).values()], want)
    for n in range(len(next(iter(inputs.values()))) if not axis else 4):

        def row(array: np.ndarray, at: int = n) -> np.ndarray:
            """The sequence's part: of steps, unlike states, the batch may be the second axis."""
            batch = axis if array.ndim == 3 else 0
            return np.ascontiguousarray(array.take([at], batch))

        alone = session.run({key: row(array) for key, array in inputs.items()})
        assert_near([*alone.values()], [row(array) for array in want])


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", LENGTHS)
def test_any_lengths_give_what_onnx_runtime_gives(name: str) -> None:
    """Also below 0, and beyond the steps."""
    session, runtime = Session(file_of(name)), session_of(onnx.load(file_of(name)))
    inputs, _ = recorded(name)
    for lengths in ([0, 0, 0, 0], [6, 6, 6, 6], [-2, 9, 5, 2]):
        feed = {**inputs, "lengths:0": np.array(lengths, np.int32)}
        assert_near([*session.run(feed).values()], runtime.run(None, feed))
    assert session.explain().endswith("graph: one call of the library")


@pytest.mark.usefixtures("built")
def test_a_layer_with_lengths_compiles(tmp_path: Path) -> None:
    inputs, want = recorded("tensorflow1_lstm")
    compile_model(load(file_of("tensorflow1_lstm")), tmp_path / "m.onernn")
    assert_near([*Session(tmp_path / "m.onernn").run(inputs).values()], want)


@pytest.mark.usefixtures("built")
def test_a_loop_that_stays_runs_in_the_plan_and_is_explained() -> None:
    """A GRU whose candidate has no function."""
    inputs, want = recorded("keras2_gru_linear")
    session = Session(file_of("keras2_gru_linear"))
    assert_near([*session.run(inputs).values()], want)
    _, loop, *_, last = session.explain().splitlines()
    assert "(Loop): a loop (scanned_cells: " in loop
    assert last.startswith("graph: ") and last.endswith("one call of the library")
