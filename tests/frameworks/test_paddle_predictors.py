"""Ours inside of paddle.inference for a reader of text lines: convolutions, then an LSTM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from onernn.adapters.paddle import optimize
from onernn.ir.arrays import Array

pytestmark = pytest.mark.usefixtures("dynamic_mode")
ROWS, CLASSES = 16, 7


class Reader(paddle.nn.Layer):  # type: ignore[misc, unused-ignore]
    """Classes of columns of an image, (N, 1, ROWS, width) -> (N, width / 2, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(1, 4, 3, padding=1)
        self.norm = paddle.nn.BatchNorm2D(4)
        self.pool = paddle.nn.MaxPool2D(2)
        self.rnn = paddle.nn.LSTM(4 * ROWS // 2, 6, num_layers=2, direction="bidirect")
        self.scores = paddle.nn.Linear(12, CLASSES)

    def forward(self, image: Any) -> Any:
        found = self.pool(paddle.nn.functional.relu(self.norm(self.conv(image))))
        columns = found.transpose([0, 3, 1, 2]).reshape([0, 0, 4 * ROWS // 2])
        return self.scores(self.rnn(columns)[0])


def images(count: int, width: int) -> Array:
    return np.random.default_rng(width).uniform(-1, 1, (count, 1, ROWS, width)).astype(np.float32)


BATCHES = images(3, 20), images(1, 6), images(5, 34)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, list[Array]]:
    """The prefix of a model's files, and what Paddle's layers give for `BATCHES`."""
    model = Reader()
    model.eval()
    spec = [paddle.static.InputSpec([None, 1, ROWS, None], "float32", "image")]
    paddle.jit.save(model, str(tmp_path / "reader"), input_spec=spec)
    return tmp_path / "reader", [model(paddle.to_tensor(batch)).numpy() for batch in BATCHES]


def config_of(prefix: Path) -> Any:
    program = next(each for each in prefix.parent.iterdir() if each.suffix in (".pdmodel", ".json"))
    config = paddle.inference.Config(str(program), str(prefix.with_suffix(".pdiparams")))
    config.disable_glog_info()
    return config


def run(predictor: Any, batch: Array) -> Array:
    predictor.get_input_handle("image").copy_from_cpu(batch)
    predictor.run()
    (name,) = predictor.get_output_names()
    found: Array = predictor.get_output_handle(name).copy_to_cpu()
    return found


def check(predictor: Any, want: list[Array]) -> None:
    for batch, expected in zip(BATCHES, want, strict=True):
        got = run(predictor, batch)
        assert got.shape == expected.shape and np.abs(expected).max() > 0.05
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 + 1e-5 * np.abs(expected).max())


def test_layers_behind_convolutions_become_ours(
    saved: tuple[Path, list[Array]], caplog: pytest.LogCaptureFixture
) -> None:
    prefix, want = saved
    with caplog.at_level(logging.INFO, "onernn"):
        config = optimize(config_of(prefix))
    (told,) = (each.getMessage() for each in caplog.records)
    assert "LSTM bidirectional_concat" in told
    check(paddle.inference.create_predictor(config), want)


def test_a_pool_gives_predictors_with_ours(saved: tuple[Path, list[Array]]) -> None:
    prefix, want = saved
    pool = paddle.inference.PredictorPool(optimize(config_of(prefix)), 2)
    for at in range(2):
        check(pool.retrive(at), want)
