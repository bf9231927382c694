"""Programs as MXNet's users write them: with onernn in them they give what they gave without."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from tests.frameworks.mxnet_graphs import Block, hybridized, stacked
from tests.frameworks.mxnet_rnn import all_close, close

import onernn
from onernn.adapters.mxnet import explain, optimize, restore
from onernn.ir.arrays import Array

rnn, nn = gluon.rnn, gluon.nn
Plug = Callable[[Any], Any]
STEPS, WORDS, HIDDEN = 14, 20, 12
CONTEXT, PATHS = 8, 50


def rows(*shape: int) -> Any:
    return nd.array(np.random.default_rng(len(shape)).uniform(-1, 1, shape))


def words(*shape: int) -> Any:
    return nd.array(np.random.default_rng(0).integers(1, WORDS, shape))


def module(plug: Plug) -> list[Array]:
    """LSTNet's cells, trained by Module, and a prediction right behind the training: nothing waits
    for it. One cell is read by its last step, one by some of its steps.
    """
    cells = [mx.rnn.LSTMCell(HIDDEN, prefix=f"{name}_") for name in "ab"]
    data, label = mx.sym.Variable("data"), mx.sym.Variable("y_label")
    one, other = (cell.unroll(STEPS, data, merge_outputs=False)[0] for cell in cells)
    symbol = mx.sym.FullyConnected(mx.sym.concat(one[-1], *other[::-5], dim=1), num_hidden=2)
    symbol = plug(mx.sym.LinearRegressionOutput(symbol, label, name="y"))
    x = rows(8, STEPS, 6).asnumpy()
    batches = mx.io.NDArrayIter(x, x[:, -1, :2], 4, label_name="y_label")
    made = mx.mod.Module(symbol, label_names=["y_label"])
    made.bind(batches.provide_data, batches.provide_label)
    made.init_params(mx.init.Uniform(0.2))
    made.init_optimizer(optimizer_params={"learning_rate": 0.1})
    for batch in batches:
        made.forward(batch, is_train=True)
        made.backward()
        made.update()
    return [made.predict(batches).asnumpy()]


def classifier() -> Block:
    """A classifier of sequences of these lengths, by the mean of its steps."""

    def run(net: Any, F: Any, x: Any, lengths: Any) -> Any:  # noqa: N803
        y = F.swapaxes(net.layer(net.words(x)), 0, 1)
        kept = F.SequenceMask(y, lengths, use_sequence_length=True)
        return net.out(F.broadcast_div(F.sum(kept, axis=0), F.expand_dims(lengths, 1)))

    layer = lambda: rnn.LSTM(HIDDEN, 2, bidirectional=True, layout="NTC")  # noqa: E731
    return Block(run, words=embedding, layer=layer, out=lambda: nn.Dense(2))


def embedding() -> Any:
    return nn.Embedding(WORDS, 6)


class Translator(gluon.Block):
    """An encoder of cells, with lengths, and a decoder that attends to it."""

    @staticmethod
    def encode(net: Any, F: Any, x: Any, lengths: Any) -> Any:  # noqa: N803
        y = net.words(x)
        for cell in (net.both, net.up):
            y, after = cell.unroll(STEPS, y, None, "NTC", True, valid_length=lengths)
        return y, after[0]

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            both = lambda: rnn.BidirectionalCell(rnn.LSTMCell(6), rnn.LSTMCell(6))  # noqa: E731
            self.cell = rnn.GRUCell(HIDDEN)
            up = lambda: rnn.GRUCell(HIDDEN)  # noqa: E731
            self.encoder = Block(self.encode, words=embedding, both=both, up=up)
            self.words, self.out = embedding(), nn.Dense(WORDS)

    def forward(self, x: Any, lengths: Any) -> Any:
        memory, *states = self.encoder(x, lengths)
        word, scores = nd.zeros(len(x)), []
        for _ in range(3):
            y, states = self.cell(self.words(word), states)
            weights = nd.softmax(nd.batch_dot(memory, y.expand_dims(2)), axis=1)
            scores.append(self.out(nd.concat(y, (weights * memory).sum(axis=1), dim=1)))
            word = scores[-1].argmax(axis=1)
        return nd.stack(*scores, axis=1)


def siamese() -> Block:
    """A layer over two inputs, and a cell after it."""

    def run(net: Any, F: Any, x: Any, lengths: Any) -> Any:  # noqa: N803
        x = net.words(x)
        y = F.abs(net.layer(x) - net.layer(F.reverse(x, axis=1)))
        y, _ = net.cell.unroll(STEPS, y, None, "NTC", True)
        return F.SequenceLast(F.swapaxes(y, 0, 1), lengths, use_sequence_length=True)

    layer = lambda: rnn.GRU(HIDDEN, layout="NTC")  # noqa: E731
    return Block(run, words=embedding, layer=layer, cell=lambda: rnn.GRUCell(HIDDEN))


class Stepwise(gluon.Block):
    """Cells that a program calls step by step, in a stack that is no HybridBlock."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.words, self.cells = embedding(), rnn.SequentialRNNCell()
            self.cells.add(rnn.LSTMCell(6))
            self.cells.add(rnn.ResidualCell(rnn.GRUCell(6)))
            self.layer = rnn.RNN(HIDDEN, layout="NTC")

    def forward(self, x: Any, lengths: Any) -> Any:
        x, steps = self.words(x), []
        states = self.cells.begin_state(batch_size=len(x), func=nd.zeros)
        for t in range(STEPS):
            y, states = self.cells(x[:, t], states)
            steps.append(y)
        return self.layer(nd.stack(*steps, axis=1))


def gluon_block(plug: Plug, kind: Callable[[], Any]) -> list[Array]:
    """Trained by Trainer, its gradients taken twice; then restored."""
    net = plug(hybridized(kind(), 0.2))
    x, lengths = words(4, STEPS), nd.array([STEPS, 3, 9, 1])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(2):
        with autograd.record():
            loss = (net(x, lengths) ** 2).mean()
        loss.backward(retain_graph=True)
        loss.backward()
        trainer.step(1)
    trained = net(x, lengths).asnumpy()
    close(restore(net)(x, lengths).asnumpy(), trained)
    return [trained]


SCRIPTS: dict[str, Callable[[Plug], list[Array]]] = {
    "Module": module,
    "classifier": partial(gluon_block, kind=classifier),
    "translator": partial(gluon_block, kind=Translator),
    "siamese": partial(gluon_block, kind=siamese),
    "step by step": partial(gluon_block, kind=Stepwise),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_gives_what_it_gave(script: Callable[[Plug], list[Array]]) -> None:
    results = []
    for plug in (lambda target: target, partial(optimize, backend="kernels")):
        for seed in (random.seed, np.random.seed, mx.random.seed):
            seed(3)
        results.append(script(plug))
    all_close(*results[::-1])


def forecaster() -> Block:
    """GluonTS's DeepAR of its formulas: cells over the past, then samples of Student's t from step
    to step. Outputs also the distribution of the first step.
    """

    def run(net: Any, F: Any, past: Any) -> Any:  # noqa: N803
        scale = F.mean(F.abs(past), axis=1, keepdims=True)
        x = F.expand_dims(F.broadcast_div(past, scale), 2)
        _, states = net.cells.unroll(CONTEXT, x, None, "NTC", True)
        last = F.slice_axis(past, axis=1, begin=-1, end=None)
        last, scale, *states = (F.repeat(e, PATHS, axis=0) for e in (last, scale, *states))
        drawn, first = [], []
        for _ in range(2):
            x = F.expand_dims(F.broadcast_div(last, scale), 2)
            y, states = net.cells.unroll(1, x, states, "NTC", True)
            mu, sigma, nu = F.split(net.out(y), 3, axis=2, squeeze_axis=True)
            nu = 2 + F.Activation(nu, act_type="softrelu")
            sigma = F.broadcast_mul(F.Activation(sigma, act_type="softrelu"), scale)
            mu = F.broadcast_mul(mu, scale)
            gammas = F.sample_gamma(nu / 2, 2 / (nu * F.square(sigma)))
            last = F.sample_normal(mu, 1 / F.sqrt(gammas))
            drawn.append(last)
            first = first or [mu, sigma, nu]
        return (F.concat(*drawn, dim=1), *first)

    cells = lambda: stacked(rnn.LSTMCell(HIDDEN), rnn.ResidualCell(rnn.LSTMCell(HIDDEN)))  # noqa: E731
    return Block(run, cells=cells, out=lambda: nn.Dense(3, flatten=False))


def test_deepar_runs_inside_mxnet_and_without_it(tmp_path: Path) -> None:
    past, outputs = rows(3, CONTEXT) + 2, []
    for plug in (lambda target: target, partial(optimize, backend="kernels")):
        mx.random.seed(3)
        net = plug(hybridized(forecaster(), 0.3))
        outputs.append([each.asnumpy() for each in net(past)])
    assert len(explain(net).replaced) == 2
    all_close(*outputs, 1e-4)  # the samples, too: one generator, one seed
    net.export(str(tmp_path / "m"))

    model = onernn.load(tmp_path / "m-symbol.json")
    assert any("'seed'" in note for note in model.notes)
    session = onernn.Session(model)

    def sample(seed: int) -> list[Array]:
        return [*session.run({"data": past.asnumpy(), "seed": np.array(seed)}).values()]

    runs = [*map(sample, range(40))]
    all_close(runs[0][1:], outputs[0][1:], 1e-4)
    assert np.array_equal(sample(0)[0], runs[0][0]) and not np.array_equal(runs[1][0], runs[0][0])
    _, mu, sigma, nu = (each.reshape(3, -1)[:, 0] for each in runs[0])
    samples = np.stack([run[0] for run in runs]).reshape(40, 3, PATHS, 2)[..., 0]
    below = (samples < mu[:, None]).mean((0, 2))
    assert np.abs(below - 0.5).max() < 5 * 0.5 / np.sqrt(40 * PATHS)  # 5 standard errors
    spread = samples.std((0, 2)) / (sigma * np.sqrt(nu / (nu - 2)))
    assert (0.6 < spread).all() and (spread < 1.6).all()  # by a tail this heavy
    with pytest.raises(onernn.ShapeError, match="seed"):
        session.run({"data": past.asnumpy()})


def test_numbers_drawn_in_a_loop_are_refused(tmp_path: Path) -> None:
    """Each turn is the same graph of the same seed."""
    body = lambda x, states: (mx.sym.sample_normal(x, x), states)  # noqa: E731
    drawn, _ = mx.sym.contrib.foreach(body, mx.sym.Variable("data"), [])
    drawn.save(str(tmp_path / "m-symbol.json"))
    with pytest.raises(onernn.UnsupportedError, match="each iteration of the loop would draw"):
        onernn.Session(tmp_path / "m-symbol.json")
