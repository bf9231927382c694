"""Writes small nets of Paddle's dynamic mode, and what its functions put around layers.

    python -m tests.frameworks.record_paddle_dygraph tests/data/paddle

In the format of the Paddle that runs it, as record_paddle_loops.py does.
"""

from __future__ import annotations

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
import paddle.nn.functional as F
from paddle import nn
from tests.frameworks.record_paddle_loops import Made, numbers, record_all
from tests.frameworks.recording import registry

MODELS, model = registry()
_RNG = np.random.default_rng(2)


class Listener(nn.Layer):
    """A front end that halves time, a layer over what is left of it, attention, a speaker."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(1, 2, 3, stride=2, padding=1)
        self.layer = nn.GRU(6, 4, direction="bidirect")
        self.query = self.create_parameter([8])

    def forward(self, x: Any, lengths: Any) -> Any:
        y = F.mish(self.conv(x.unsqueeze(1)))
        batch, steps = paddle.shape(y)[0], paddle.shape(y)[2]
        y = y.transpose([0, 2, 1, 3]).reshape([batch, steps, 6])
        halves = (lengths + 1) // 2
        y, _ = self.layer(y, None, halves)
        mask = F.sequence_mask(halves, maxlen=steps, dtype="float32")
        weights = F.softmax(paddle.mv(y.reshape([-1, 8]), self.query).reshape([batch, steps]))
        heard = paddle.bmm((weights * mask).unsqueeze(1), y).squeeze(1)
        speaker = F.normalize(heard, axis=-1)
        return speaker, halves, paddle.numel(y), paddle.einsum("ntd,nd->nt", y, speaker)


@model
def listener() -> Made:
    return Listener(), {"x": numbers(3, 7, 6), "lengths": np.array([7, 3, 4], np.int64)}


def number(truth: Any) -> Any:
    return paddle.cast(truth, "int32")


class Around(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any, y: Any, numbers_: Any, divisors: Any, at: Any) -> Any:
        x = self.linear(x)
        mask = x > 0.1
        return (
            *(paddle.floor_divide(numbers_, divisors), paddle.remainder(numbers_, divisors)),
            *(paddle.floor_divide(x, y), paddle.remainder(x, y), numbers_ % 3),
            *(paddle.log2(y + 2), paddle.log10(y + 2), F.log_sigmoid(9 * x)),
            # As numbers: jit.load of 2.6.2 gives truth values behind all others.
            *(number(paddle.isfinite(x / (0 * y))), number(paddle.isinf(x / (0 * y)))),
            number(paddle.isfinite(y)),
            *(paddle.logsumexp(x, 1), paddle.logsumexp(x), paddle.logsumexp(x, [0, 2], True)),
            *(paddle.norm(x, axis=1), paddle.norm(x, 1, -1, True), paddle.norm(x, np.inf, 0)),
            *(paddle.norm(x), paddle.norm(x, "fro", [1, 2]), paddle.norm(x, -np.inf, 1)),
            *(paddle.argmin(x, 1), paddle.argmin(x, -1, True, "int32"), paddle.argmin(x)),
            *(paddle.argsort(x, 1), paddle.argsort(x, -1, True), paddle.sort(x, 0)),
            *(
                paddle.index_select(x, at, 1),
                paddle.gather_nd(x, numbers_[:, :2].reshape([-1, 2]) % 2),
            ),
            paddle.index_sample(x[:, 0], numbers_[:, :3] % 4),
            paddle.take_along_axis(x, numbers_.unsqueeze(-1) % 3, 1),
            *(paddle.nonzero(mask), paddle.masked_select(x, mask)),
            *(F.one_hot(at, 4), F.one_hot(numbers_ % 3, 3)),
            *(paddle.roll(x, 1, 1), paddle.roll(x, [-1, 2], [0, 2]), paddle.roll(x, 3)),
        )


@model
def around() -> Made:
    whole = _RNG.integers(-9, 9, (2, 3))
    divisors = np.array([[2, -2, 4], [-3, 5, 1]])
    feeds = {"x": numbers(2, 3, 4), "y": numbers(2, 3, 4), "numbers_": whole}
    return Around(), {**feeds, "divisors": divisors, "at": np.array([2, 0])}


class Assigned(nn.Layer):
    """Slices, elements and masks that are assigned to; a head that fills a tensor step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.speaker = nn.GRUCell(3, 5), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        y = x * 2
        y[:, 1] = paddle.sum(x, axis=1)
        y[:, 3:0:-2] = 2.5
        y[-1, 0] = paddle.to_tensor([1.0, -2.0, 3.0])
        y[y > 1.9] = 0.5
        rows, columns = paddle.to_tensor([0, -1, 0]), paddle.to_tensor([[2], [0]])
        put = paddle.index_put(x + 0, (rows, columns), paddle.to_tensor([1.0, 2.0, 3.0]))
        added = paddle.index_put(x + 0, (rows,), x[:1] + 1, accumulate=True)
        spoken = paddle.zeros([2, 4, 3])
        steps = paddle.shape(x)[1] - 1
        h, word, i = paddle.zeros([2, 5]), x[:, 0], paddle.zeros([1], "int64")
        while i < steps:
            h = self.cell(word, h)[1]
            word = self.speaker(h)
            spoken[:, i] = word.unsqueeze(1)
            i = i + 1
        return y, put, added, spoken


@model
def assigned() -> Made:
    return Assigned(), {"x": numbers(2, 4, 3)}


if __name__ == "__main__":
    record_all(MODELS, "dygraph_{}_{}")
