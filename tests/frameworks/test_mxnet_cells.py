"""Cells written out in live symbols become our operator: same numbers, gradients and training."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import (
    Block,
    imported,
    losses_of,
    numpy_mode,
    operators_of,
    optimize,
    run,
)
from tests.frameworks.mxnet_models import contractive
from tests.frameworks.mxnet_rnn import close, ndarrays, trained

from onernn import UnsupportedError
from onernn.adapters.mxnet import explain, restore
from onernn.ir.arrays import Array

T, N, C, H = 5, 3, 6, 4
X = uniform(N, T, C)


def stacked(*cells: Any) -> Any:
    whole = mx.rnn.SequentialRNNCell()
    for cell in cells:
        whole.add(cell)
    return whole


CELLS: dict[str, tuple[int, Callable[[], Any]]] = {
    "lstm": (1, lambda: mx.rnn.LSTMCell(H, prefix="a_")),
    "gru": (1, lambda: mx.rnn.GRUCell(H, prefix="a_")),
    "tanh": (1, lambda: mx.rnn.RNNCell(H, prefix="a_")),
    "relu": (1, lambda: mx.rnn.RNNCell(H, activation="relu", prefix="a_")),
    "two": (2, lambda: stacked(mx.rnn.LSTMCell(H, prefix="a_"), mx.rnn.GRUCell(H, prefix="b_"))),
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


def params_of(symbol: Any, **inputs: Array) -> dict[str, Array]:
    return contractive(np.random.default_rng(2), symbol, inputs or {"data": X}, "float32")


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
    given = {"data": X, **params_of(symbol)}
    for got, want in zip(run(ours, given), run(symbol, given), strict=True):
        close(got, want)
    found, expected = trained(ours, given), trained(symbol, given)
    for key, want in expected.items():
        close(found[key], want, 3e-5)
    back = restore(ours)
    assert "Custom" not in operators_of(back)
    assert back.list_outputs() == symbol.list_outputs()
    assert back.list_arguments() == symbol.list_arguments()
    for one, other in zip(run(back, given), run(symbol, given), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(explain(optimize(back)).replaced) == CELLS[name][0]


def test_arguments_and_auxiliary_states_keep_their_order() -> None:
    norm = mx.sym.BatchNorm(mx.sym.Variable("data"), name="norm")
    cut = mx.sym.SliceChannel(norm, num_outputs=T, axis=1, squeeze_axis=True)
    cell = stacked(mx.rnn.GRUCell(H, prefix="a_"), mx.rnn.LSTMCell(H, prefix="b_"))
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


@pytest.mark.parametrize("layers", [1, 2])
def test_cells_whose_steps_have_variables_of_their_own_stay_mxnets(layers: int) -> None:
    cell = stacked(*(mx.rnn.GRUCell(H, prefix=f"{k}_") for k in range(layers)))
    outputs, _ = cell.unroll(T, inputs=[mx.sym.Variable(f"x{t}") for t in range(T)])
    symbol = mx.sym.Group(list(outputs))
    assert symbol.list_arguments()[:2] == ["x0", "0_i2h_weight"]
    refused = explain(symbol, backend="reference").refusals
    assert len(refused) == layers
    assert all("only some of its steps read 'x" in each.reason for each in refused)
    with pytest.raises(UnsupportedError, match="the order of arguments would change"):
        optimize(symbol)


def test_a_variable_of_ones_is_no_constant() -> None:
    """The numbers that stand for weights are neither read nor kept."""
    symbol = unrolled("gru")
    params = params_of(symbol)
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
    cell = stacked(mx.rnn.LSTMCell(H, prefix="lstm_l0_"), mx.rnn.LSTMCell(H, prefix="lstm_l1_"))

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


def tagger(kind: str, loop: bool = False) -> Block:
    """A block whose cell is unrolled, or run by foreach."""

    def run(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
        if not loop:
            return net.out(net.cell.unroll(T, x, layout="NTC", merge_outputs=True)[0])
        first = F.slice_axis(x, axis=2, begin=0, end=H).mean(axis=1)
        states = [first * k for k in range(1 + (kind == "LSTMCell"))]
        y, states = F.contrib.foreach(net.cell, F.swapaxes(x, dim1=0, dim2=1), states)
        return F.broadcast_add(net.out(y), F.mean(states[-1]))

    dense = lambda: mx.gluon.nn.Dense(3, flatten=False)  # noqa: E731
    return Block(run, cell=lambda: getattr(mx.gluon.rnn, kind)(H), out=dense)


KINDS = ["LSTMCell", "GRUCell", "RNNCell"]


@pytest.mark.parametrize("loop", [False, True], ids=["unroll", "foreach"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hybridized_block_trains_the_same_curve(kind: str, loop: bool) -> None:
    block = tagger(kind, loop)
    want, got = losses_of(tagger(kind, loop), X), losses_of(block, X, plug=optimize)
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
        net = Block(run_written, **parts)
        net.initialize(mx.init.Uniform(0.5))
        net.hybridize()
        given = mx.np.array(X), mx.np.full((N, H), 0.5)
        want = net(*given)
        block = optimize(imported(net, tmp_path, "data0", "data1"))
        assert "Custom" in operators_of(block._cached_graph[1])
        got = block(*given)
        assert type(got) is type(want)
        close(got.asnumpy(), want.asnumpy())


def manual(step: Callable[[Any, Any, int], Any]) -> Any:
    """An LSTM whose states somebody handles between the steps."""
    cell, steps = mx.rnn.LSTMCell(H, prefix="a_"), mx.sym.Variable("data")
    parts = mx.sym.SliceChannel(steps, num_outputs=T, axis=1, squeeze_axis=True)
    states, outputs = cell.begin_state(), []
    for t in range(T):
        output, states = cell(parts[t], states)
        states = step(cell, states, t)
        outputs.append(output)
    return mx.sym.Group([mx.sym.stack(*outputs, axis=1), *states])


REFUSED = {
    "dropout between the steps": (
        lambda cell, states, t: [mx.sym.Dropout(states[0], p=0.5), states[1]],
        "Dropout .* stands between its steps",
    ),
    "gradients stopped between the steps": (
        lambda cell, states, t: [states[0], mx.sym.BlockGrad(states[1])],
        "BlockGrad .* stands between its steps",
    ),
    "states of zoneout": (
        lambda cell, states, t: [mx.sym.where(states[0] > 0, *states), states[1]],
        "_greater_scalar .* stands between its steps",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_cells_that_cannot_be_cut_stay_with_a_reason(name: str, caplog: Any) -> None:
    step, why = REFUSED[name]
    symbol = manual(step)
    with pytest.raises(UnsupportedError, match=why):
        optimize(symbol)
    layer = mx.rnn.GRUCell(H, prefix="behind_").unroll(T, symbol[0], merge_outputs=True)[0]
    why = "stands between its steps"
    with caplog.at_level(logging.INFO, "onernn"):
        ours = optimize(layer)
    assert why in caplog.text and "stays with MXNet" in caplog.text
    assert any(why in r.reason for r in explain(ours).refusals)
    given = {"data": X, **params_of(layer)}
    close(run(ours, given)[0], run(layer, given)[0])


def test_an_inner_value_that_somebody_reads_keeps_the_cells() -> None:
    symbol = unrolled("lstm")
    inner = symbol.get_internals()["a_t2_i_output"]
    with pytest.raises(UnsupportedError, match="another user|a value inside of it"):
        optimize(mx.sym.Group([symbol, inner]))
    middle = symbol.get_internals()["a_t2_state_output"]
    with pytest.raises(UnsupportedError, match="another user|a value inside of it"):
        optimize(mx.sym.Group([symbol, middle]))


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
    with pytest.raises(UnsupportedError, match="Dropout .* stands inside of it"):
        optimize(written_by_hand(mx.sym.zeros((0, H)), 0.3))


def test_a_cell_written_by_hand_without_a_bias_is_found() -> None:
    h = written_by_hand(mx.sym.Variable("h0"), 0)
    shapes = {"w": (H, C), "u": (H, H), "h0": (N, H)}
    given = {"data": X} | {k: uniform(*s, bound=0.5) for k, s in shapes.items()}
    expected, found = trained(h, given), trained(optimize(h), given)
    for key, want in expected.items():
        close(found[key], want, 3e-5)
