"""Writes small models in the format of Paddle 3, PIR, with its own inputs and outputs.

    python -m tests.frameworks.record_paddle_pir tests/data/paddle

Run in an environment with PaddlePaddle 3.3.1, in a process of its own: a format is for good.
"""

from __future__ import annotations

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
import paddle.nn.functional as F
from tests.frameworks.record_paddle_loops import RNG, numbers, record_all
from tests.frameworks.recording import registry

MODELS, model = registry()


@model
def pir_recurrent() -> Any:
    """A table, two GRU layers in both directions over sentences of 3, 0 and 2 words, an LSTM."""

    class Model(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table = paddle.nn.Embedding(7, 4)
            self.gru = paddle.nn.GRU(4, 3, num_layers=2, direction="bidirect")
            self.lstm = paddle.nn.LSTM(6, 3)
            self.out = paddle.nn.Linear(3, 5)

        def forward(self, ids: Any, lengths: Any) -> Any:
            y, h = self.gru(self.table(ids), sequence_length=lengths)
            y, (_, c) = self.lstm(y)
            return F.softmax(self.out(y)), h, c

    feeds = {"ids": RNG.integers(0, 7, (3, 3)), "lengths": np.array([3, 0, 2])}
    return Model(), feeds


@model
def pir_initial_state() -> Any:
    """SimpleRNN over steps, from a state; normalized, dropped out in both ways."""

    class Model(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = paddle.nn.SimpleRNN(4, 3, direction="bidirect", time_major=True)
            self.layer, self.batch = paddle.nn.LayerNorm(6), paddle.nn.BatchNorm1D(6)
            self.less = paddle.nn.Dropout(0.3, mode="downscale_in_infer")
            self.same = paddle.nn.Dropout(0.5)
            self.sizes = {"h": [2, None, 3]}

        def forward(self, x: Any, h: Any) -> Any:
            y, end = self.rnn(x, h)
            y = paddle.transpose(self.same(self.less(self.layer(y))), [1, 2, 0])
            return self.batch(y), end

    return Model(), {"x": numbers(2, 3, 4), "h": numbers(2, 3, 3)}


@model
def pir_around() -> Any:
    """Operators around recurrent layers, whose operands are constants in PIR."""

    class Model(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.linear(x) + 1.5
            a = paddle.concat([x, paddle.tanh(x) * 2 - 0.5], axis=-1)
            b = paddle.split(a, 2, axis=-1)[0]
            c = paddle.stack([b, b], axis=0).sum(axis=0)
            shaped = paddle.reshape(c, [0, 0, 4, 1]).squeeze(-1).unsqueeze(0)
            values, at = paddle.topk(c, 2)
            return (
                *(paddle.mean(c, axis=[1, 2]), paddle.max(a, axis=-1), shaped, c[:, 0], a[-1]),
                *(c[1:, :, ::2], values, at, paddle.argmax(c, -1), paddle.cast(c, "int64")),
                *(paddle.clip(c, -1, 1), F.log_softmax(c), paddle.flip(c, [0]), paddle.shape(c)),
                paddle.matmul(c, c, transpose_y=True),
                F.gelu(c) + F.leaky_relu(c) + F.sigmoid(c) + paddle.exp(-c),
                paddle.where(c > 0, c, c * 0.1) / (c * c + 1),
            )

    return Model(), {"x": numbers(2, 3, 4)}


if __name__ == "__main__":
    record_all(MODELS, "{}")
