"""Writes small models with loops, branches and arrays of tensors, with Paddle's own outputs.

    python -m tests.frameworks.record_paddle_loops tests/data/paddle

In the format of the Paddle that runs it, 2.6.2 or 3.3.1: ``loop_NAME_2`` or ``loop_NAME_3``.
"""

from __future__ import annotations

import sys

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
from paddle import nn
from tests.frameworks.recording import Models, registry, strip_call_stacks

from onernn import load

Made = tuple[nn.Layer, dict[str, np.ndarray]]
NEW = paddle.__version__ >= "3"
RNG = np.random.default_rng(0)


MODELS, model = registry()


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


class OwnCell(nn.RNNCellBase):
    """Elman's, written out by its user."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_h = nn.Linear(4, 3), nn.Linear(3, 3)
        self.input_size, self.hidden_size = 4, 3

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (3,)

    def forward(self, x: Any, states: Any = None) -> Any:
        if states is None:
            states = self.get_initial_states(x, self.state_shape)
        h = paddle.tanh(self.of_x(x) + self.of_h(states))
        return h, h


class Recurrent(nn.Layer):
    def __init__(self, layer: nn.Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, lengths: Any = None) -> Any:
        y, states = self.layer(x, sequence_length=lengths)
        return y, *paddle.utils.flatten(states)


@model
def simple() -> Made:
    return Recurrent(nn.RNN(nn.SimpleRNNCell(4, 3))), {"x": numbers(2, 5, 4)}


@model
def gru_backwards() -> Made:
    layer = nn.RNN(nn.GRUCell(4, 3), is_reverse=True, time_major=True)
    return Recurrent(layer), {"x": numbers(5, 2, 4)}


@model
def bidirectional() -> Made:
    return Recurrent(nn.BiRNN(nn.LSTMCell(4, 3), nn.LSTMCell(4, 3))), {"x": numbers(2, 5, 4)}


@model
def lengths() -> Made:
    layer = nn.BiRNN(nn.GRUCell(4, 3), nn.GRUCell(4, 3))
    return Recurrent(layer), {"x": numbers(3, 5, 4), "lengths": np.array([5, 0, 2])}


@model
def own_cell() -> Made:
    return Recurrent(nn.RNN(OwnCell())), {"x": numbers(2, 5, 4)}


@model
def appended() -> Made:
    """A list that grows in Python's loop over steps."""

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 3)

        def forward(self, x: Any) -> Any:
            h, outputs = paddle.zeros([x.shape[0], 3]), []
            for t in range(x.shape[1]):
                _, h = self.cell(x[:, t], h)
                outputs.append(h)
            return paddle.stack(outputs, axis=1), paddle.concat(outputs, axis=1), h

    return Model(), {"x": numbers(2, 5, 4)}


@model
def branch_in_loop() -> Made:
    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cell = nn.Linear(3, 3), nn.GRUCell(3, 3)

        def forward(self, x: Any) -> Any:
            h, outputs = paddle.zeros([x.shape[0], 3]), []
            for t in range(x.shape[1]):
                step = x[:, t]
                if step.sum() > 0:
                    after = paddle.tanh(self.linear(step) + h)
                else:
                    _, after = self.cell(step, h)
                h = after
                outputs.append(after)
            return paddle.stack(outputs), h

    return Model(), {"x": numbers(2, 6, 3)}


@model
def until_small() -> Made:
    """As many turns as the numbers want."""

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            turns = paddle.zeros([1], "int64")
            while paddle.abs(x).sum() > 0.5:
                x = paddle.tanh(self.linear(x)) * 0.5
                turns = turns + 1
            return x, turns

    return Model(), {"x": numbers(2, 3) * 3}


@model
def while_loop() -> Made:
    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 3)

        def forward(self, x: Any) -> Any:
            steps, rows = paddle.shape(x)[1], paddle.shape(x)[0]
            at, h, c = paddle.zeros([1], "int32"), paddle.zeros([rows, 3]), paddle.ones([rows, 3])

            def body(at: Any, h: Any, c: Any) -> Any:
                step = paddle.squeeze(paddle.slice(x, [1], [at], [at + 1]), 1)
                _, (h, c) = self.cell(step, (h, c))
                return at + 1, h, c

            _, h, c = paddle.static.nn.while_loop(lambda at, *_: at < steps, body, [at, h, c])
            return h, c

    return Model(), {"x": numbers(2, 5, 4)}


@model
def cases() -> Made:
    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            choose, mean = paddle.static.nn, paddle.mean(x)
            a, b = choose.cond(mean > 0, lambda: (self.linear(x), x + 1), lambda: (x * 2, x - 1))
            c = choose.case(
                [(mean < -1, lambda: a), (mean < 0.5, lambda: b)], default=lambda: a * b
            )
            kind = paddle.cast(paddle.round(mean), "int32")
            d = choose.switch_case(kind, {0: lambda: a, 1: lambda: b}, default=lambda: a - b)
            return a, b, c, d

    return Model(), {"x": numbers(2, 3)}


if NEW:

    @model
    def last_of_list() -> Made:
        """What was appended last is read again, and a list that begins with an element."""

        class Model(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.GRUCell(4, 3)

            def forward(self, x: Any) -> Any:
                outputs = [paddle.zeros([x.shape[0], 3])]
                for t in range(x.shape[1]):
                    _, h = self.cell(x[:, t], outputs[-1])
                    outputs.append(h)
                return paddle.concat(outputs, axis=1)

        return Model(), {"x": numbers(2, 5, 4)}


def record(made_by: Callable[[], Made], folder: Path) -> None:
    paddle.seed(sum(map(ord, made_by.__name__)))
    layer, feeds = made_by()
    layer.eval()
    sizes = {key: [None] * value.ndim for key, value in feeds.items()}
    if "x" in feeds:
        sizes["x"][-1] = feeds["x"].shape[-1]
    sizes |= getattr(layer, "sizes", {})
    specs = [
        paddle.static.InputSpec(sizes[key], str(value.dtype), key) for key, value in feeds.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    paddle.jit.save(layer, str(folder / "model"), input_spec=specs)
    # Not by a predictor: that of 3.3.1 hangs in loops over arrays.
    made = paddle.jit.load(str(folder / "model"))(*map(paddle.to_tensor, feeds.values()))
    made = made if isinstance(made, list | tuple) else [made]
    arrays = {f"in__{key}": value for key, value in feeds.items()}
    names = [value.name for value in load(folder).outputs]
    arrays |= {f"out__{key}": each.numpy() for key, each in zip(names, made, strict=True)}
    np.savez_compressed(folder / "io.npz", **arrays)
    if not NEW:
        strip_call_stacks(folder / "model.pdmodel")
        (folder / "model.pdiparams.info").unlink()


def record_all(models: Models, form: str) -> None:
    """``form``: of a folder's name, with places for the model's and for Paddle's version."""
    for name, make in models.items():
        record(make, Path(sys.argv[1]) / form.format(name, 3 if NEW else 2))
        print(name)


if __name__ == "__main__":
    record_all(MODELS, "loop_{}_{}")
