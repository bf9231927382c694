"""Our recurrent layers inside a live MXNet: the same numbers, gradients and errors that say why."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.live_properties import *  # noqa: F403
from tests.frameworks.mxnet_graphs import numpy_mode, operators_of, optimize, run
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
    train_alike,
    trained,
)

from onernn import ShapeError, UnsupportedError, plugins_disabled
from onernn.adapters import mxnet as plugin
from onernn.adapters.mxnet import rnn
from onernn.adapters.mxnet.custom_operator import view
from onernn.ir.arrays import Array


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_a_symbol_with_our_operator_gives_the_same_and_its_gradients(mode: str, dtype: str) -> None:
    symbol, given = symbol_of(mode, dtype), arrays(mode, dtype=dtype)
    ours = optimize(symbol, ndarrays(given))
    assert operators_of(ours) == {"Custom"} and operators_of(symbol) == {"RNN"}
    all_close(run(ours, given), run(symbol, given))
    train_alike(ours, symbol, given, 2e-5, dtype)


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


def by_memory(parameter: Any, rows: slice, values: Array) -> None:
    view(parameter.data(), parameter.name)[rows] = values


def by_set_data(parameter: Any, rows: slice, values: Array) -> None:
    written = parameter.data().asnumpy()
    written[rows] = values
    parameter.set_data(mx.nd.array(written))


def in_place(parameter: Any, rows: slice, values: Array) -> None:
    parameter.data()[rows] = mx.nd.array(values)


def by_trainer(parameter: Any, rows: slice, values: Array) -> None:
    trainer = mx.gluon.Trainer({parameter.name: parameter}, "sgd", {"learning_rate": 1.0})
    written = parameter.data().asnumpy()
    written[rows] = values
    change = parameter.data() - mx.nd.array(written)
    with mx.autograd.record():
        loss = (parameter.data() * change).sum()
    loss.backward()
    trainer.step(1)


class MxnetHost:
    """See `Host`."""

    is_rounded, units = False, H
    ways = (by_memory, by_set_data, in_place, by_trainer)
    restore = staticmethod(plugin.restore)

    def __init__(self, kind: str, hybrid: bool) -> None:
        self._kind, self.freezes = kind, hybrid  # elsewhere MXNet joins parameters anew
        self._x = {t: mx.nd.array(uniform(t, N, C, seed=[t])) for t in (1, 3, 4, 30)}

    def layer(self) -> Any:
        more = {"activation": "tanh"} if self._kind == "RNN" else {}  # a relu may hide a write
        made = getattr(mx.gluon.rnn, self._kind)(H, 2, bidirectional=True, **more)
        made.initialize(mx.init.Uniform(0.5))
        made(self._x[1])
        if self.freezes:
            made.hybridize(static_alloc=True)
        return made

    def copy(self, layer: Any) -> Any:
        result = self.layer()
        pairs = zip(*(self.parameters(each).values() for each in (result, layer)), strict=True)
        for one, other in pairs:
            one.set_data(other.data())
        return result

    def optimize(self, layer: Any, **options: Any) -> Any:
        return optimize(layer, **options)

    def run(self, layer: Any, steps: int) -> list[Array]:
        return [layer(self._x[steps]).asnumpy()]

    def parameters(self, layer: Any) -> Any:
        return {name[len(layer.prefix) :]: p for name, p in layer.collect_params().items()}


@pytest.fixture(params=itertools.product(("LSTM", "GRU", "RNN"), (False, True)), ids=str)
def host(request: pytest.FixtureRequest) -> MxnetHost:
    return MxnetHost(*request.param)


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
        (UnsupportedError, "lstm_state_clip_min=-1.0, lstm_state_c", {"lstm_state_clip_min": -1.0}),
        (ShapeError, "missing: state_cell", {"state_cell": None}),
        (ShapeError, "a multiple of", {"parameters": flat[:-1]}),
        (UnsupportedError, "data: expected one of .*, got int32", whole),
        (TypeError, "data: expected an NDArray, got nd", {"data": given["data"].asnumpy()}),
        (UnsupportedError, "parameters: .*, got row_sparse", {"parameters": sparse}),
        (ValueError, "semantics: expected .*, got 'cpu'", {"semantics": "cpu"}),
    ]
    for kind, why, more in refused:
        with pytest.raises(kind, match=why):
            rnn(**{**given, **options, **more})
    with pytest.raises(TypeError, match="Symbol or gluon Block"):
        optimize("model-symbol.json")
    for target in (mx.gluon.nn.Dense(3), mx.sym.tanh(mx.sym.Variable("x"))):
        with pytest.raises(UnsupportedError, match="Dense|the symbol"):
            optimize(target)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_plugins_that_are_disabled_leave_symbols_and_calls_to_mxnet(mode: str) -> None:
    given, options, symbol = ndarrays(arrays(mode)), {**OPTIONS, "mode": mode}, symbol_of(mode)
    with plugins_disabled():
        assert optimize(symbol) is symbol
        got, theirs = rnn(**given, **options), mx.nd.RNN(**given, **options)
        np.testing.assert_array_equal(got.asnumpy(), theirs.asnumpy())
    assert operators_of(optimize(symbol)) == {"Custom"}
