"""Cells written out in live symbols become our operator: same numbers, gradients and training."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import (
    Block,
    hybridized,
    imported,
    losses_of,
    numpy_mode,
    operators_of,
    optimize,
    run,
    stacked,
)
from tests.frameworks.mxnet_models import contractive, fed
from tests.frameworks.mxnet_rnn import all_close, close, ndarrays, train_alike

from onernn import UnsupportedError
from onernn.adapters.mxnet import explain, restore

T, N, C, H = 5, 3, 6, 4
X = uniform(N, T, C)


legacy = partial(stacked, legacy=True)
CELLS: dict[str, tuple[int, Callable[[], Any]]] = {
    "lstm": (1, lambda: mx.rnn.LSTMCell(H, prefix="a_")),
    "gru": (1, lambda: mx.rnn.GRUCell(H, prefix="a_")),
    "tanh": (1, lambda: mx.rnn.RNNCell(H, prefix="a_")),
    "relu": (1, lambda: mx.rnn.RNNCell(H, activation="relu", prefix="a_")),
    "two": (2, lambda: legacy(mx.rnn.LSTMCell(H, prefix="a_"), mx.rnn.GRUCell(H, prefix="b_"))),
    "residual": (1, lambda: mx.rnn.ResidualCell(mx.rnn.GRUCell(C, prefix="a_"))),
    "both ways": (
        2,
        lambda: mx.rnn.BidirectionalCell(
            mx.rnn.GRUCell(H, prefix="a_"), mx.rnn.LSTMCell(H, prefix="b_")
        ),
    ),
    "unfused": (
        4,
        lambda: mx.rnn.FusedRNNCell(H, 2, "lstm", bidirectional=True, prefix="a_").unfuse(),
    ),
}


def unrolled(name: str, merge: bool | None = True, layout: str = "NTC", final: bool = False) -> Any:
    """What users of mx.rnn build, from an input (N, T, C) on."""
    data = mx.sym.Variable("data")
    data = data if layout == "NTC" else mx.sym.swapaxes(data, dim1=0, dim2=1)
    outputs, states = CELLS[name][1]().unroll(T, inputs=data, layout=layout, merge_outputs=merge)
    if not merge:
        outputs = mx.sym.stack(*reversed(list(outputs)), axis=1)
    pred = mx.sym.FullyConnected(outputs, num_hidden=3, flatten=False, name="pred")
    while any(isinstance(state, list) for state in states):
        states = [each for s in states for each in (s if isinstance(s, list) else [s])]
    return mx.sym.Group([pred, *states]) if final else pred


S, WIDTH = mx.sym, 9
FRONTS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "reshape": ((N, T * WIDTH), lambda x: S.reshape(x, shape=(-1, T, WIDTH))),
    "kept sizes": ((N, T, 3, 3), lambda x: S.reshape(x, shape=(0, T, WIDTH))),
    "dense": (
        (N, 7),
        lambda x: S.reshape(
            S.FullyConnected(x, num_hidden=T * WIDTH, name="front"), shape=(-1, T, WIDTH)
        ),
    ),
    "convolution": (
        (N, 2, T, 3),
        lambda x: S.reshape(
            S.transpose(
                S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=3, name="front"),
                axes=(0, 2, 1, 3),
            ),
            shape=(-1, T, WIDTH),
        ),
    ),
}  # fmt: skip
"""What fixes the width of the first cell, which is not that of its state, and its input."""


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", ["lstm", "gru", "tanh", "both ways"])
def test_cells_are_found_after_what_fixes_the_width_of_their_input(name: str, front: str) -> None:
    """Nothing says a shape of the data or of the weights."""
    sizes, before = FRONTS[front]
    count, make = CELLS[name]
    outputs, _ = make().unroll(T, inputs=before(S.Variable("data")), merge_outputs=True)
    symbol = S.FullyConnected(outputs, num_hidden=3, flatten=False, name="pred")
    ours = optimize(symbol)
    assert len(explain(ours).replaced) == count and not explain(ours).refusals
    given = fed(symbol, data=uniform(*sizes))
    all_close(run(ours, given), run(symbol, given))


class ProductCell(mx.rnn.RNNCell):
    """A cell of a user: it multiplies what a plain cell adds."""

    def __call__(self, inputs: Any, states: Any) -> Any:
        W, R = (self._iW, self._iB), (self._hW, self._hB)
        full = partial(S.FullyConnected, num_hidden=self._num_hidden)
        product = full(inputs, *W, name="x_part") * full(states[0], *R, name="h_part")
        h = self._get_activation(product, self._activation, name="out")
        return h, [h]


@pytest.mark.parametrize(
    "cell, reason",
    [
        (ProductCell(H, prefix="b_"), "onernn found no two steps of it"),
        (mx.rnn.RNNCell(H, activation="softsign", prefix="b_"), "5 steps of it: its functions"),
    ],
)
def test_a_cell_that_stays_is_named(
    cell: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in a symbol, of which nothing tells the cells but the names of their weights."""
    cells = legacy(mx.rnn.LSTMCell(H, prefix="a_"), cell)
    outputs, _ = cells.unroll(T, inputs=S.Variable("data"), merge_outputs=True)
    with caplog.at_level(logging.WARNING):
        ours = optimize(outputs)
    (refusal,) = explain(ours).refusals
    assert refusal.where == "b" and reason in refusal.reason
    assert f"b: {reason}" in caplog.text and len(explain(ours).replaced) == 1


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_unrolled_cells_become_one_operator_a_layer_and_are_restored_to_the_bit(
    name: str, merge: bool, layout: str
) -> None:
    symbol = unrolled(name, merge, layout, final=True)
    ours = optimize(symbol)
    assert len(explain(ours).replaced) == CELLS[name][0]
    assert not explain(ours).refusals
    assert not operators_of(ours) & {"Activation", "sigmoid", "tanh"}
    if name == "lstm" and merge and layout == "NTC":  # the operator's own, without steps
        assert operators_of(ours) == {"Custom", "FullyConnected", "_zeros", "_copy"}
    assert ours.list_outputs() == symbol.list_outputs()
    assert ours.list_arguments() == symbol.list_arguments()
    assert ours.infer_shape(data=X.shape) == symbol.infer_shape(data=X.shape)
    given = fed(symbol, data=X)
    all_close(run(ours, given), run(symbol, given))
    train_alike(ours, symbol, given)
    back = restore(ours)
    assert "Custom" not in operators_of(back)
    assert back.list_outputs() == symbol.list_outputs()
    assert back.list_arguments() == symbol.list_arguments()
    assert all(map(np.array_equal, run(back, given), run(symbol, given)))
    assert len(explain(optimize(back)).replaced) == CELLS[name][0]


def test_arguments_and_auxiliary_states_keep_their_order() -> None:
    norm = mx.sym.BatchNorm(mx.sym.Variable("data"), name="norm")
    cut = mx.sym.SliceChannel(norm, num_outputs=T, axis=1, squeeze_axis=True)
    cell = legacy(mx.rnn.GRUCell(H, prefix="a_"), mx.rnn.LSTMCell(H, prefix="b_"))
    w = mx.sym.Variable("w")
    x = [mx.sym.Activation(mx.sym.broadcast_mul(cut[t], w), act_type="tanh") for t in range(T)]
    outputs, _ = cell.unroll(T, inputs=x, merge_outputs=True)
    symbol = mx.sym.BatchNorm(outputs, name="last")
    ours = optimize(symbol)
    assert len(explain(ours).replaced) == 2
    for each in (ours, optimize(ours), mx.sym.load_json(ours.tojson())):
        assert each.list_inputs() == symbol.list_inputs()
        assert each.list_arguments() == symbol.list_arguments()
        assert each.list_auxiliary_states() == symbol.list_auxiliary_states()


def shared_cell() -> Callable[[Any], Any]:
    cell = mx.rnn.LSTMCell(H, prefix="a_")

    def layer(x: Any) -> Any:
        cell.reset()
        return cell.unroll(T, x, merge_outputs=True)[0]

    return layer


def shared_operator(**attributes: Any) -> Callable[[Any], Any]:
    slots = "parameters", "state", *["sequence_length"] * len(attributes)
    inputs = {name: mx.sym.Variable(name) for name in slots}
    return lambda x: mx.sym.RNN(x, **inputs, **attributes, mode="gru", state_size=H, num_layers=1)


SHARED: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "operator": shared_operator,
    "lengths": partial(shared_operator, use_sequence_length=True),
    "cell": shared_cell,
}


@pytest.mark.parametrize("name", SHARED)
def test_arguments_that_two_layers_share_keep_their_order(name: str) -> None:
    """The second layer reads them directly, and also through the first layer."""
    layer = SHARED[name]()
    symbol = layer(layer(mx.sym.Variable("data")))
    ours = optimize(symbol)
    assert len(explain(ours).replaced) == 2
    assert symbol.list_arguments()[0] == "data"
    assert ours.list_arguments() == symbol.list_arguments()


@pytest.mark.parametrize("layers", [1, 2])
def test_cells_whose_steps_have_variables_of_their_own_stay_mxnets(layers: int) -> None:
    cell = legacy(*(mx.rnn.GRUCell(H, prefix=f"{k}_") for k in range(layers)))
    outputs, _ = cell.unroll(T, inputs=[mx.sym.Variable(f"x{t}") for t in range(T)])
    symbol = mx.sym.Group(list(outputs))
    assert symbol.list_arguments()[:2] == ["x0", "0_i2h_weight"]
    refused = explain(symbol, backend="reference").refusals
    assert len(refused) == layers
    assert all("only some of its steps read 'x" in each.reason for each in refused)
    with pytest.raises(UnsupportedError, match="'x"):
        optimize(symbol)


def test_a_variable_of_ones_is_no_constant() -> None:
    """The numbers that stand for weights are neither read nor kept."""
    symbol = unrolled("gru")
    params = contractive(symbol, {"data": X})
    ones = {name: np.ones_like(a) if "bias" in name else a for name, a in params.items()}
    ours = optimize(symbol, ndarrays(ones))
    for given in (ones, params):
        close(run(ours, {"data": X, **given})[0], run(symbol, {"data": X, **given})[0])


OPTIMIZERS = {
    "adam": {"learning_rate": 0.05},
    "sgd": {"learning_rate": 0.05, "momentum": 0.9},
}


def train_buckets(plug: Callable[[Any], Any], optimizer: str, kept: int = 0) -> dict[str, Any]:
    """example/rnn/bucketing of MXNet: one set of parameters, a symbol for each length.

    Symbols of at most ``kept`` steps stay as they are.
    """
    cell = legacy(mx.rnn.LSTMCell(H, prefix="lstm_l0_"), mx.rnn.LSTMCell(H, prefix="lstm_l1_"))

    def sym_gen(length: int) -> Any:
        data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
        embed = mx.sym.Embedding(data, input_dim=12, output_dim=C, name="embed")
        cell.reset()
        outputs, _ = cell.unroll(length, inputs=embed, merge_outputs=True)
        pred = mx.sym.Reshape(outputs, shape=(-1, H))
        pred = mx.sym.FullyConnected(pred, num_hidden=12, name="pred")
        label = mx.sym.Reshape(label, shape=(-1,))
        symbol = mx.sym.SoftmaxOutput(pred, label, name="softmax")
        symbol = plug(symbol) if length > kept else symbol
        return symbol, ["data"], ["softmax_label"]

    for seed in (random.seed, np.random.seed, mx.random.seed):
        seed(1)
    sentences = [list(range(k % 4 + 1, n + k % 4 + 1)) for k, n in enumerate((3, 5, 4, 7) * 2)]
    batches = mx.rnn.BucketSentenceIter(sentences, 2, buckets=[3, 5, 7], invalid_label=0)
    module = mx.mod.BucketingModule(sym_gen, batches.default_bucket_key)
    told = {"optimizer": optimizer, "optimizer_params": OPTIMIZERS[optimizer], "num_epoch": 10}
    module.fit(
        batches, eval_metric=mx.metric.Perplexity(0), initializer=mx.init.Uniform(0.3), **told
    )
    return {name: array.asnumpy() for name, array in module.get_params()[0].items()}


@pytest.mark.parametrize("kept", [0, 3, 5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bucketing_module_shares_weights_and_states_of_all_lengths(
    optimizer: str, kept: int
) -> None:
    want = train_buckets(lambda symbol: symbol, optimizer)
    got = train_buckets(optimize, optimizer, kept)
    assert max(np.abs(array).max() for array in want.values()) > 0.4  # they began below 0.3
    for name, theirs in want.items():
        np.testing.assert_allclose(got[name], theirs, rtol=0, atol=1e-4, err_msg=name)


def looping(kind: str) -> Block:
    """A block whose cell is run by foreach."""

    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        first = F.slice_axis(x, axis=2, begin=0, end=H).mean(axis=1)
        states = [first * k for k in range(1 + (kind == "LSTMCell"))]
        y, states = F.contrib.foreach(net.cell, F.swapaxes(x, dim1=0, dim2=1), states)
        return F.broadcast_add(net.out(y), F.mean(states[-1]))

    dense = lambda: mx.gluon.nn.Dense(3, flatten=False)  # noqa: E731
    return Block(run, cell=lambda: getattr(mx.gluon.rnn, kind)(H), out=dense)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_a_loop_trains_the_same_curve(kind: str) -> None:
    block = looping(kind)
    want, got = losses_of(looping(kind), X), losses_of(block, X, plug=optimize)
    assert "Custom" in operators_of(block._cached_graph[1])
    assert "_foreach" not in operators_of(block._cached_graph[1])
    assert want[-1] < 0.8 * want[0]
    np.testing.assert_allclose(got, want, rtol=1e-4)


def run_written(net: Any, F: Any, x: Any, h: Any) -> Any:  # noqa: N803
    """A cell written out with the operators of NumPy mode."""
    outputs = []
    for t in range(T):
        h = F.np.tanh(net.of_x(x[:, t]) + net.of_h(h))
        outputs.append(h)
    return F.np.stack(outputs, axis=1)


def test_in_numpy_mode_cells_become_ours(tmp_path: Path) -> None:
    with numpy_mode():
        dense = mx.gluon.nn.Dense
        parts = {"of_x": lambda: dense(H, in_units=C), "of_h": lambda: dense(H, use_bias=False)}
        net = hybridized(Block(run_written, **parts), 0.5)
        given = mx.np.array(X), mx.np.full((N, H), 0.5)
        want = net(*given)
        block = optimize(imported(net, tmp_path, "data0", "data1"))
        assert "Custom" in operators_of(block._cached_graph[1])
        got = block(*given)
        assert type(got) is type(want)
        close(got.asnumpy(), want.asnumpy())


def manual(step: Callable[[Any, Any], list[Any]]) -> Any:
    """An LSTM whose states somebody handles between the steps."""
    cell, steps = mx.rnn.LSTMCell(H, prefix="a_"), mx.sym.Variable("data")
    parts = mx.sym.SliceChannel(steps, num_outputs=T, axis=1, squeeze_axis=True)
    states, outputs = cell.begin_state(), []
    for part in parts:
        output, states = cell(part, states)
        states = step(*states)
        outputs.append(output)
    return mx.sym.Group([mx.sym.stack(*outputs, axis=1), *states])


BETWEEN: dict[str, Callable[[Any, Any], list[Any]]] = {
    "Dropout": lambda h, c: [mx.sym.Dropout(h, p=0.5), c],
    "BlockGrad": lambda h, c: [h, mx.sym.BlockGrad(c)],
    "_greater_scalar": lambda h, c: [mx.sym.where(h > 0, h, c), c],  # states of zoneout
}
"""States of an LSTM between its steps, by the operator that reads them."""


@pytest.mark.parametrize("op", BETWEEN)
def test_cells_that_cannot_be_cut_stay_with_a_reason(op: str, caplog: Any) -> None:
    symbol, why = manual(BETWEEN[op]), "comes between its steps"
    with pytest.raises(UnsupportedError, match=f"{op} .* {why}"):
        optimize(symbol)
    layer = mx.rnn.GRUCell(H, prefix="behind_").unroll(T, symbol[0], merge_outputs=True)[0]
    with caplog.at_level(logging.INFO, "onernn"):
        ours = optimize(layer)
    assert why in caplog.text and "stays with MXNet" in caplog.text
    assert any(why in r.reason for r in explain(ours).refusals)
    given = fed(layer, data=X)
    close(run(ours, given)[0], run(layer, given)[0])


@pytest.mark.parametrize("name", ["a_t2_i_output", "a_t2_state_output"])
def test_an_inner_value_that_somebody_reads_keeps_the_cells(name: str) -> None:
    symbol = unrolled("lstm")
    with pytest.raises(UnsupportedError, match="a_t2_"):
        optimize(mx.sym.Group([symbol, symbol.get_internals()[name]]))


def written_by_hand(h: Any, drops: float) -> Any:
    data = mx.sym.Variable("data")
    parts = mx.sym.SliceChannel(data, num_outputs=T, axis=1, squeeze_axis=True)
    w, u = mx.sym.Variable("w"), mx.sym.Variable("u")
    for t in range(T):
        of_x = mx.sym.FullyConnected(parts[t], w, no_bias=True, num_hidden=H)
        of_x = mx.sym.Dropout(of_x, p=drops) if drops else of_x
        h = mx.sym.tanh(of_x + mx.sym.FullyConnected(h, u, no_bias=True, num_hidden=H))
    return h


def test_dropout_inside_a_cell_keeps_it() -> None:
    with pytest.raises(UnsupportedError, match="Dropout 'dropout"):
        optimize(written_by_hand(mx.sym.zeros((0, H)), 0.3))


def test_a_cell_written_by_hand_without_a_bias_is_found() -> None:
    h = written_by_hand(mx.sym.Variable("h0"), 0)
    shapes = {"w": (H, C), "u": (H, H), "h0": (N, H)}
    given = {"data": X} | {k: uniform(*s, bound=0.5) for k, s in shapes.items()}
    train_alike(optimize(h), h, given)
