"""``rnn``: what stands in for mx.nd.RNN and mx.sym.RNN, also where MXNet's own is not to be had."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
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
    recorded,
    symbol_of,
)

from onernn import plugins_disabled
from onernn.adapters.mxnet import rnn


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_rnn_of_symbols_is_a_symbol(mode: str, states: bool, numpy: bool) -> None:
    given, options = arrays(mode), {**OPTIONS, "mode": mode}
    with numpy_mode(numpy):
        made = {name: mx.sym.Variable(name) for name in given}
        if numpy:
            made = {name: each.as_np_ndarray() for name, each in made.items()}
        options |= {"state_outputs": states, "name": "net"}
        symbols = [
            rnn(**made, **options),
            (mx.sym.npx.rnn if numpy else mx.sym.RNN)(**made, **options),
        ]
        with plugins_disabled():
            symbols.append(rnn(**made, **options))
        assert len(set(map(type, symbols))) == 1
        if isinstance(symbols[0], list):
            symbols = [mx.sym.Group(each, mx.sym.np._Symbol) for each in symbols]
    assert [operators_of(symbol) for symbol in symbols] == [{"Custom"}, {"RNN"}, {"RNN"}]
    ours, *others = (run(symbol, given, numpy=numpy) for symbol in symbols)
    assert len(ours) == (1 + len(given) - 2 if states else 1)
    for each in others:
        all_close(ours, each)


def test_inputs_that_a_symbol_lacks_become_variables() -> None:
    options = {"state_size": H, "num_layers": 2, "mode": "lstm", "name": "net"}
    x = mx.sym.Variable("x")
    ours, theirs = rnn(x, None, None, **options), mx.sym.RNN(x, **options)
    assert ours.list_arguments() == theirs.list_arguments()
    assert ours.infer_shape(x=(T, N, C)) == theirs.infer_shape(x=(T, N, C))
    assert [*ours.list_outputs()] == [*theirs.list_outputs()]


@pytest.mark.parametrize("mode", MODES)
def test_float16_is_computed_in_float32(mode: str) -> None:
    """Of inputs rounded to float16 the results are float32's, rounded once more."""
    narrow = {name: array.astype(np.float16) for name, array in arrays(mode).items()}
    found = []
    for function, dtype in ((rnn, "float16"), (mx.nd.RNN, "float32")):
        given = {name: array.astype(dtype) for name, array in narrow.items()}
        found.append(recorded(lambda f=function, **k: f(**k, **OPTIONS, mode=mode), given))
    for got, wide in zip(*found, strict=True):
        assert got.dtype == np.float16
        # Half a unit in the last place of what comes out, and float32's own error.
        np.testing.assert_allclose(got, wide, rtol=2**-11, atol=2e-5 * np.abs(wide).max())
    symbol, plain = symbol_of(mode, "float16"), symbol_of(mode)
    wide = {name: array.astype(np.float32) for name, array in narrow.items()}
    for got, want in zip(run(optimize(symbol), narrow), run(plain, wide), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=2**-11, atol=1e-6)
