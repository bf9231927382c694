"""Dropout between layers, which MXNet's CPU leaves out in silence, and onernn with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from tests.frameworks.mxnet_graphs import losses_of, numpy_mode, operators_of, optimize, run
from tests.frameworks.mxnet_rnn import (
    MODES,
    H,
    all_close,
    arrays,
    close,
    ndarrays,
    symbol_of,
    train_alike,
)

from onernn.adapters import mxnet as plugin
from onernn.adapters.mxnet.custom_operator import _warn_of_dropout

P = 0.4


@pytest.mark.parametrize("mode", MODES)
def test_a_symbol_runs_here_and_trains_as_mxnets_with_one_warning(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_dropout.cache_clear()
    symbol, given = symbol_of(mode, p=P), arrays(mode)
    ours = optimize(optimize(symbol))
    assert operators_of(ours) == {"Custom"}
    all_close(run(ours, given), run(symbol, given))
    assert "dropout" not in caplog.text
    for options, warnings in (({"semantics": "mxnet-cpu"}, 0), ({}, 1), ({}, 1)):
        train_alike(optimize(symbol, **options), symbol, given, 2e-5)
        assert caplog.text.count("dropout between its layers in training") == warnings


def trained_layer(plug: Callable[[Any], Any], hybrid: bool, numpy: bool) -> tuple[Any, list[Any]]:
    """A layer with dropout after some steps, the losses, and a prediction."""
    with numpy_mode(numpy):
        kind, x = mx.np if numpy else mx.nd, arrays("lstm")["data"]
        layer = mx.gluon.rnn.LSTM(H, 2, dropout=P, bidirectional=True)
        losses = losses_of(layer, x, plug=plug, steps=3, hybrid=hybrid, arrays=kind)
        return layer, [*losses, layer(kind.array(x)).asnumpy()]


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_layer_trains_with_mxnets_bits_and_predicts_here(hybrid: bool, numpy: bool) -> None:
    ours, (*losses, y) = trained_layer(optimize, hybrid, numpy)
    _, (*stock, right) = trained_layer(lambda layer: layer, hybrid, numpy)
    assert losses == stock
    close(y, right)
    told = plugin.explain(ours)
    assert told.replaced == (ours.name,) and "dropout" in told.refusals[0].reason


def test_a_direct_call_is_mxnets_in_training_alone() -> None:
    given = ndarrays(arrays("gru", sides=1))
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": "gru", "p": P}
    want = mx.nd.RNN(**given, **options).asnumpy()
    close(plugin.rnn(**given, **options).asnumpy(), want)
    with mx.autograd.train_mode():
        np.testing.assert_array_equal(plugin.rnn(**given, **options).asnumpy(), want)
