"""Trains DIEN's network in MXNet 1.9.1: ``python examples/dien/train_mxnet.py``.

The cell is that of DIEN's paper, u = a u, h = (1 - u) h' + u c, in a foreach over steps. Behind the
end of a history the attention is 0, and the state stays. What comes out lies in ``mxnet/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
from clicks import ITEMS, clicks
from mxnet.gluon import HybridBlock, Trainer, nn, rnn
from recording import record

HERE = Path(__file__).resolve().parent / "mxnet"
WIDTH, UNITS, BATCH, ROUNDS = 8, 16, 128, 2500


class AttentionCell(HybridBlock):
    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        with self.name_scope():
            self.gates_of_x = nn.Dense(2 * units, in_units=inputs)
            self.gates_of_h = nn.Dense(2 * units, in_units=units)
            self.new_of_x = nn.Dense(units, in_units=inputs)
            self.new_of_h = nn.Dense(units, in_units=units)

    def hybrid_forward(self, F: Any, x: Any, h: Any, a: Any) -> Any:  # noqa: N803
        gates = F.sigmoid(self.gates_of_x(x) + self.gates_of_h(h))
        r, u = F.split(gates, 2, axis=1)
        c = F.tanh(self.new_of_x(x) + self.new_of_h(r * h))
        u = F.broadcast_mul(a, u)
        return (1 - u) * h + u * c


class Dien(HybridBlock):
    """history (T, N), lengths (N,) and offer (N,)."""

    def __init__(self) -> None:
        super().__init__(prefix="dien_")
        with self.name_scope():
            self.items = nn.Embedding(ITEMS, WIDTH, weight_initializer=mx.init.Normal(1))
            self.interests = rnn.GRU(UNITS, input_size=WIDTH)
            self.match = nn.Dense(UNITS, flatten=False, in_units=UNITS)
            self.wanted = nn.Dense(UNITS, use_bias=False, in_units=WIDTH)
            self.alike = nn.Dense(1, flatten=False, in_units=UNITS)
            self.cell = AttentionCell(UNITS, UNITS)
            self.hidden = nn.Dense(UNITS, activation="relu", in_units=UNITS + WIDTH)
            self.score = nn.Dense(1, in_units=UNITS)

    def hybrid_forward(self, F: Any, history: Any, lengths: Any, offer: Any) -> Any:  # noqa: N803
        wanted = self.items(offer).reshape((-1, WIDTH))
        interests = self.interests(self.items(history))
        both = F.broadcast_add(self.match(interests), self.wanted(wanted).expand_dims(0))
        alike = self.alike(F.tanh(both))
        a = F.softmax(F.SequenceMask(alike, lengths, True, -1e9), axis=0)

        def step(now: list[Any], states: list[Any]) -> tuple[Any, list[Any]]:
            h = self.cell(now[0], states[0], now[1])
            return h, [h]

        begin = F.zeros_like(F.slice_axis(interests, axis=0, begin=0, end=1).reshape((-3, 0)))
        _, (h,) = F.contrib.foreach(step, [interests, a], [begin])
        return F.sigmoid(self.score(self.hidden(F.concat(h, wanted, dim=1)))).reshape((-1,))


def given(batch: dict[str, Any]) -> list[Any]:
    """As the network takes them."""
    history, lengths, offer = (mx.nd.array(batch[k]) for k in ("history", "lengths", "offer"))
    return [history.T, lengths, offer]


def main() -> None:
    mx.random.seed(3)
    net = Dien()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    adam = Trainer(net.collect_params(), "adam", {"learning_rate": 1e-2})
    loss = mx.gluon.loss.SigmoidBCELoss(from_sigmoid=True)
    for step in range(ROUNDS):
        batch, taken = clicks(BATCH, 1000 + step)
        with mx.autograd.record():
            total = loss(net(*given(batch)), mx.nd.array(taken)).mean()
        total.backward()
        adam.step(1)
        if step % 250 == 0:
            print(f"step {step} of {ROUNDS}: loss {float(total.asscalar()):.3f}", flush=True)
    HERE.mkdir(exist_ok=True)
    net.export(str(HERE / "model"))
    names = ["data0", "data1", "data2"]
    saved = mx.gluon.SymbolBlock.imports(
        str(HERE / "model-symbol.json"), names, str(HERE / "model-0000.params")
    )
    record(HERE, f"mxnet {mx.__version__}", given, names, lambda *a: saved(*a).asnumpy())


if __name__ == "__main__":
    main()
