"""`onernn verify --against mxnet:PATH`: MXNet runs the symbol, and its own faults are named."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from tests.frameworks.mxnet_graphs import save, stacked
from tests.frameworks.mxnet_models import contractive

import onernn
from onernn.ir.errors import UnsupportedError
from onernn.verification.references import open_against
from onernn.verification.verifying import verify


@pytest.mark.parametrize(
    "name", ["gluon_language_model", "gluon_bidirectional_ntc", "gluon_foreach", "numpy_mode_model"]
)
def test_mxnet_gives_the_same_on_made_inputs(name: str, data: Path) -> None:
    folder = data / "mxnet" / name
    report = verify(onernn.load(folder), against=open_against(f"mxnet:{folder}"))
    assert report.passed and report.evidence is not None
    assert report.evidence.reference.who.startswith("mxnet 1.9.1")


@pytest.mark.parametrize(
    "name, cause", [("op_lstm_seqlen", "mask_ignored"), ("op_lstm_clip", "clip_ignored")]
)
def test_what_mxnet_ignores_on_cpu_is_named(name: str, cause: str, shared_models: Path) -> None:
    path = shared_models / "mxnet" / name
    against = open_against(f"mxnet:{path}")
    report = verify(onernn.load(path), against=against)
    assert report.cause is not None and report.cause.id == cause
    assert verify(onernn.load(path, semantics="mxnet-cpu"), against=against).passed


def test_parameters_that_mxnet_unpacks_on_saving_are_told(data: Path) -> None:
    folder = data / "mxnet" / "legacy_fused_checkpoint"
    with pytest.raises(UnsupportedError, match="'lstm_parameters', got none"):
        verify(onernn.load(folder), against=open_against(f"mxnet:{folder}"))


def labelled(name: str) -> tuple[mx.sym.Symbol, dict[str, tuple[int, ...]]]:
    """Five steps of mx.rnn's cells with a loss, and the shapes of what it is trained with."""
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    cells = mx.rnn.LSTMCell(4, prefix="lstm_"), mx.rnn.GRUCell(4, prefix="gru_")
    stack = stacked(*cells, legacy=True)
    if name == "fused":
        stack = mx.rnn.FusedRNNCell(4, 2, "lstm", prefix="lstm_")
    steps = stack.unroll(5, data, layout="NTC", merge_outputs=name != "by step")[0]
    shapes = {"data": (3, 5, 6), "softmax_label": (15,) if name == "direct" else (3, 5)}
    if name == "by step":
        labels = mx.sym.SliceChannel(label, num_outputs=5, squeeze_axis=True)
        losses = map(mx.sym.SoftmaxOutput, steps, labels)
        return mx.sym.Group(list(losses)), shapes
    scores = mx.sym.Reshape(steps, shape=(-1, 4))
    if name == "regression":
        wanted = mx.sym.Reshape(label, shape=(-1, 4))
        return mx.sym.LinearRegressionOutput(scores, wanted), shapes | {"softmax_label": (3, 5, 4)}
    flat = label if name == "direct" else mx.sym.Reshape(label, shape=(-1,))
    return mx.sym.SoftmaxOutput(scores, flat, name="softmax"), shapes


@pytest.mark.parametrize("name", ["direct", "reshaped", "fused", "by step", "regression"])
def test_models_with_a_label_run_with_and_without_it(name: str, tmp_path: Path) -> None:
    symbol, shapes = labelled(name)
    rng = np.random.default_rng(5)
    inputs = {key: rng.uniform(-1, 1, shape).astype("float32") for key, shape in shapes.items()}
    save(symbol, contractive(symbol, inputs), tmp_path / "model")
    given = inputs if name == "fused" else {"data": inputs["data"]}
    recorded = {f"in__{key}": array for key, array in given.items()}
    against = open_against(f"mxnet:{tmp_path}")
    assert verify(onernn.load(tmp_path), recorded, against=against).passed
