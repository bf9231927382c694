"""Trains DIEN's network in Paddle 2.6.2: ``python examples/dien/train_paddle.py``.

The cell is that of DIEN's paper: u = a u, h = (1 - u) h' + u c. Behind the end of a history the
attention is 0, and the state stays. What comes out lies in ``paddle/``.
"""

from __future__ import annotations

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
from clicks import ITEMS, clicks
from paddle import nn
from recording import record

HERE = Path(__file__).resolve().parent / "paddle"
WIDTH, UNITS, BATCH, ROUNDS = 8, 16, 128, 1500


class AttentionCell(nn.Layer):
    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.gates_of_x, self.gates_of_h = nn.Linear(inputs, 2 * units), nn.Linear(units, 2 * units)
        self.new_of_x, self.new_of_h = nn.Linear(inputs, units), nn.Linear(units, units)

    def forward(self, x: Any, h: Any, a: Any) -> Any:
        gates = nn.functional.sigmoid(self.gates_of_x(x) + self.gates_of_h(h))
        r, u = paddle.split(gates, 2, axis=1)
        c = paddle.tanh(self.new_of_x(x) + self.new_of_h(r * h))
        u = a * u
        return (1.0 - u) * h + u * c


class Dien(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.interests = nn.GRU(WIDTH, UNITS)
        self.match = nn.Linear(UNITS, WIDTH, bias_attr=False)
        self.cell = AttentionCell(UNITS, UNITS)
        self.hidden, self.score = nn.Linear(UNITS + WIDTH, UNITS), nn.Linear(UNITS, 1)

    def forward(self, history: Any, lengths: Any, offer: Any) -> Any:
        wanted = self.items(offer)
        interests, _ = self.interests(self.items(history))
        running = paddle.arange(history.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
        alike = (self.match(interests) * wanted.unsqueeze(1)).sum(-1)
        alike = paddle.where(running, alike, paddle.full_like(alike, -1e9))
        a = nn.functional.softmax(alike, -1)
        h = paddle.zeros([history.shape[0], UNITS])
        for t in range(history.shape[1]):
            h = self.cell(interests[:, t], h, a[:, t].unsqueeze(1))
        both = paddle.concat([h, wanted], axis=1)
        return nn.functional.sigmoid(self.score(nn.functional.relu(self.hidden(both)))).squeeze(1)


def without_paths(file: Path) -> None:
    """Every operator remembers the lines of Python that made it, with the paths of this machine."""
    saved = paddle.base.core.ProgramDesc(file.read_bytes())
    for at in range(saved.num_blocks()):
        block = saved.block(at)
        for k in range(block.op_size()):
            block.op(k).remove_attr("op_callstack")
    file.write_bytes(saved.serialize_to_string())


def main() -> None:
    paddle.seed(3)
    net = Dien()
    adam = paddle.optimizer.Adam(1e-2, parameters=net.parameters())
    for step in range(ROUNDS):
        batch, taken = clicks(BATCH, 1000 + step)
        got = net(*(paddle.to_tensor(batch[name]) for name in ("history", "lengths", "offer")))
        loss = nn.functional.binary_cross_entropy(got, paddle.to_tensor(taken))
        loss.backward()
        adam.step()
        adam.clear_grad()
        if step % 250 == 0:
            print(f"step {step} of {ROUNDS}: loss {float(loss):.3f}", flush=True)
    net.eval()
    spec = paddle.static.InputSpec
    faces = [
        spec([None, None], "int64", "history"),
        spec([None], "int64", "lengths"),
        spec([None], "int64", "offer"),
    ]
    HERE.mkdir(exist_ok=True)
    paddle.jit.save(paddle.jit.to_static(net, input_spec=faces), str(HERE / "model"))
    saved = paddle.jit.load(str(HERE / "model"))
    (HERE / "model.pdiparams.info").unlink()
    without_paths(HERE / "model.pdmodel")
    names = ["history", "lengths", "offer"]

    def run(*arrays: np.ndarray) -> np.ndarray:
        return np.array(saved(*map(paddle.to_tensor, arrays)))

    record(HERE, f"paddle {paddle.__version__}", lambda batch: [*batch.values()], names, run)


if __name__ == "__main__":
    main()
