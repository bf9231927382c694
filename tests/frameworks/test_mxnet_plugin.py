"""Our recurrent layers inside a live MXNet: the same numbers, gradients and errors that say why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import numpy_mode, operators_of, optimize, run
from tests.frameworks.mxnet_models import around
from tests.frameworks.mxnet_rnn import (
    MODES,
    OPTIONS,
    C,
    H,
    N,
    T,
    all_close,
    arrays,
    close,
    ndarrays,
    recorded,
    symbol_of,
    trained,
)

from onernn import ShapeError, UnsupportedError, plugins_disabled
from onernn.adapters.mxnet import rnn
from onernn.adapters.mxnet.custom_operator import view


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_a_symbol_with_our_operator_gives_the_same_and_its_gradients(mode: str, dtype: str) -> None:
    symbol, given = symbol_of(mode, dtype), arrays(mode, dtype=dtype)
    ours = optimize(symbol, ndarrays(given))
    assert operators_of(ours) == {"Custom"} and operators_of(symbol) == {"RNN"}
    all_close(run(ours, given), run(symbol, given))
    found, expected = trained(ours, given, dtype), trained(symbol, given, dtype)
    for name, want in expected.items():
        close(found[name], want, 2e-5, name)


@pytest.mark.parametrize("mode", MODES)
def test_rnn_takes_ndarrays_with_the_names_of_mxnet(mode: str) -> None:
    given, options = arrays(mode), {**OPTIONS, "mode": mode}
    mine, theirs = ndarrays(given), ndarrays(given)
    for _ in range(2):
        results = (
            function(**made, **options, state_outputs=True)
            for function, made in ((rnn, mine), (mx.nd.RNN, theirs))
        )
        all_close(*([each.asnumpy() for each in outputs] for outputs in results))
        before = rnn(**mine, **options).asnumpy()
        for name, array in mine.items():  # read in place, and not changed
            np.testing.assert_array_equal(array.asnumpy(), theirs[name].asnumpy())
        for made in (mine, theirs):  # is noticed
            made["parameters"][3] += 0.5
        assert np.abs(rnn(**mine, **options).asnumpy() - before).max() > 1e-5
    ours, wanted = (recorded(lambda f=f, **k: f(**k, **options), given) for f in (rnn, mx.nd.RNN))
    assert np.abs(ours[2]).max() > 1e-3
    all_close(ours, wanted, 2e-5)


def test_numpy_arrays_of_mxnet_come_out_as_such() -> None:
    given, options = arrays("gru"), {**OPTIONS, "mode": "gru"}
    want = mx.nd.RNN(**ndarrays(given), **options).asnumpy()
    with numpy_mode():
        made = {name: mx.np.array(array) for name, array in given.items()}
        for recording in (False, True):
            with mx.autograd.record() if recording else mx.autograd.pause():
                got = rnn(**made, **options)
            assert isinstance(got, mx.np.ndarray)
            close(got.asnumpy(), want)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_layers_of_a_block_become_ours_in_place(kind: str, hybrid: bool) -> None:
    block = around(lambda: getattr(mx.gluon.rnn, kind)(H, 2, bidirectional=True))
    # Large enough for the LayerNorm behind the layer, which multiplies by one over the deviation.
    block.initialize(mx.init.Uniform(1))
    if hybrid:
        block.hybridize()
    ids = mx.nd.array([[1, 2], [3, 4], [5, 6]])
    want = block(ids).asnumpy()
    names = list(block.collect_params())
    assert optimize(block) is block
    for _ in range(2):
        close(block(ids).asnumpy(), want)
    assert list(block.collect_params()) == names
    assert isinstance(block.layer, getattr(mx.gluon.rnn, kind))
    for parameter in block.collect_params(".*h2h_weight").values():
        parameter.set_data(parameter.data() * 0.5)
    changed = block(ids).asnumpy()
    assert np.abs(changed - want).max() > 1e-4
    assert optimize(block, backend="reference") is block
    close(block(ids).asnumpy(), changed)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_write_to_one_gate_or_one_number_is_read_by_the_next_call(
    kind: str, hybrid: bool
) -> None:
    """Written by set_data, in place, by MXNet's memory, and by a Trainer's step."""

    def train(parameter: Any, wanted: Any) -> None:
        trainer = mx.gluon.Trainer({parameter.name: parameter}, "sgd", {"learning_rate": 1.0})
        change = parameter.data() - wanted
        with mx.autograd.record():
            loss = (parameter.data() * change).sum()
        loss.backward()
        trainer.step(1)

    def write_memory(parameter: Any, wanted: Any) -> None:
        view(parameter.data(), parameter.name)[:] = wanted.asnumpy()

    writes = mx.gluon.Parameter.set_data, lambda p, w: w.copyto(p.data()), write_memory, train
    more = {"activation": "tanh"} if kind == "RNN" else {}  # a relu may hide a write
    theirs, ours = (getattr(mx.gluon.rnn, kind)(H, 2, bidirectional=True, **more) for _ in range(2))
    batches = [mx.nd.array(uniform(t, N, C, seed=[t])) for t in (1, 40)]
    for net in (theirs, ours):
        net.initialize(mx.init.Uniform(0.5))
        net(batches[0])
    optimize(ours)
    if hybrid:
        ours.hybridize(static_alloc=True)
    parameters = [*zip(*(net.collect_params().values() for net in (theirs, ours)), strict=True)]
    for turn, (_, mine) in enumerate(parameters):
        gate = len(mine.data()) // H - 1
        for rows in (slice(gate * H, gate * H + H), slice(turn % H, turn % H + 1)):
            written, before = mine.data().asnumpy(), ours(batches[1]).asnumpy()
            written[rows] = uniform(*written[rows].shape, seed=[turn, rows.stop - rows.start]) * 0.6
            writes[turn % 4](mine, mx.nd.array(written))
            for other, own in parameters:
                other.set_data(own.data())
            for x in batches:
                close(ours(x).asnumpy(), theirs(x).asnumpy())
            assert np.abs(ours(batches[1]).asnumpy() - before).max() > 1e-5


def test_parameters_of_a_frozen_block_are_those_of_its_first_call() -> None:
    block, x = mx.gluon.rnn.GRU(H), mx.nd.array(uniform(T, N, C, seed=[1]))
    block.initialize(mx.init.Uniform(0.5))
    want = block(x).asnumpy()
    optimize(block, frozen=True, backend="kernels").hybridize(static_alloc=True)
    close(block(x).asnumpy(), want)
    for parameter in block.collect_params().values():
        view(parameter.data(), parameter.name)[:] += 1
    close(block(x).asnumpy(), want)


@contextmanager
def logged(caplog: Any, text: str) -> Iterator[None]:
    """MXNet raises, and our reason is in the log."""
    with caplog.at_level(logging.ERROR, "onernn"), pytest.raises(mx.MXNetError):
        yield
    assert text in caplog.text


def test_gradients_where_there_are_none_are_refused_with_a_reason(caplog: Any) -> None:
    with logged(caplog, "node 'net' (RNN): UnsupportedError: no gradients"):
        trained(optimize(symbol_of("lstm"), dtype="f16"), arrays("lstm"))


def test_an_error_at_run_time_is_logged_with_the_node(caplog: Any) -> None:
    options = {**OPTIONS, "mode": "gru", "use_sequence_length": True}
    given = {**arrays("gru"), "sequence_length": np.float32([T + 1, 1, 1])}
    with pytest.raises(ShapeError, match="sequence 0 has 7"):
        rnn(**ndarrays(given), **options)
    variables = {name: mx.sym.Variable(name) for name in given}
    with logged(caplog, "node 'masked' (RNN): ShapeError"):
        run(optimize(mx.sym.RNN(**variables, **options, name="masked")), given)


def test_what_cannot_run_is_refused_by_name() -> None:
    given, options = ndarrays(arrays("lstm")), {**OPTIONS, "mode": "lstm"}
    flat = given["parameters"]
    sparse = flat.reshape((-1, 1)).tostype("row_sparse")
    whole = {k: v.astype("int32") for k, v in given.items()}
    refused: list[tuple[Any, str, dict[str, Any]]] = [
        (UnsupportedError, "lstm_state_clip_min and lstm_state_cl", {"lstm_state_clip_min": -1.0}),
        (ShapeError, "missing: state_cell", {"state_cell": None}),
        (ShapeError, "fit no input size", {"parameters": flat[:-1]}),
        (UnsupportedError, "data: int32, only float16, float32, float64", whole),
        (TypeError, "data: expected an NDArray, got nd", {"data": given["data"].asnumpy()}),
        (UnsupportedError, "parameters: storage type row_sparse", {"parameters": sparse}),
        (ValueError, "semantics: documented or mxnet-cpu", {"semantics": "cpu"}),
    ]
    for kind, why, more in refused:
        with pytest.raises(kind, match=why):
            rnn(**{**given, **options, **more})
    with pytest.raises(TypeError, match="Symbol or gluon Block"):
        optimize("model-symbol.json")
    for target in (mx.gluon.nn.Dense(3), mx.sym.tanh(mx.sym.Variable("x"))):
        with pytest.raises(UnsupportedError, match="holds no recurrent layer that can be replaced"):
            optimize(target)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_plugins_that_are_disabled_leave_everything_to_mxnet(mode: str) -> None:
    given, options = ndarrays(arrays(mode)), {**OPTIONS, "mode": mode}
    layer, x = mx.gluon.rnn.GRU(H, 2), given["data"]
    layer.initialize()
    want, symbol = layer(x).asnumpy(), symbol_of(mode)
    optimize(layer)
    with plugins_disabled():
        assert optimize(symbol) is symbol and optimize(layer) is layer
        np.testing.assert_array_equal(layer(x).asnumpy(), want)  # to the bit
        got, theirs = rnn(**given, **options), mx.nd.RNN(**given, **options)
        np.testing.assert_array_equal(got.asnumpy(), theirs.asnumpy())
    close(layer(x).asnumpy(), want)
    assert operators_of(optimize(symbol)) == {"Custom"}
