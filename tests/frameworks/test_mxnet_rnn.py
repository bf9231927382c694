"""``rnn``: what stands in for mx.nd.RNN and mx.sym.RNN, also where MXNet's own is not to be had."""

from __future__ import annotations

from typing import Any

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
    close,
    recorded,
    symbol_of,
)

from onernn import plugins_disabled
from onernn.adapters.mxnet import rnn, rnn_param_size


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_rnn_of_symbols_is_a_symbol(mode: str, states: bool, numpy: bool) -> None:
    given, options = arrays(mode), {**OPTIONS, "mode": mode}
    with numpy_mode(numpy):
        made = {name: mx.sym.Variable(name) for name in given}
        if numpy:
            made = {name: each.as_np_ndarray() for name, each in made.items()}
        theirs = (mx.sym.npx.rnn if numpy else mx.sym.RNN)(**made, **options, state_outputs=states)
        ours = rnn(**made, **options, state_outputs=states, name="net")
        with plugins_disabled():
            left = rnn(**made, **options, state_outputs=states, name="net")
        assert type(ours) is type(left) is type(theirs)
        symbols = [ours, left, theirs]
        if isinstance(ours, list):
            symbols = [mx.sym.Group(each, mx.sym.np._Symbol) for each in symbols]
    assert [operators_of(symbol) for symbol in symbols] == [
        {"Custom"},
        *[{"RNN"}] * 2,
    ]
    found = [run(symbol, given, numpy=numpy) for symbol in symbols]
    assert len(found[0]) == (1 + len(given) - 2 if states else 1)
    for got, same, want in zip(*found, strict=True):
        close(got, want)
        close(same, want)


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


LOW, HIGH = -0.15, 0.2


def clipped_lstm(given: dict[str, Any], bounds: tuple[float, float] | None) -> Any:
    """Two layers in MXNet's own operators, which clip, with a slope of 1 inside and 0 outside."""
    x, at, flat = given["data"], 0, given["parameters"]

    def taken(*shape: int) -> Any:
        nonlocal at
        at += int(np.prod(shape))
        return flat[at - int(np.prod(shape)) : at].reshape(shape)

    matrices = [(taken(4 * H, C if k == 0 else H), taken(4 * H, H)) for k in range(2)]
    biases = [(taken(4 * H), taken(4 * H)) for k in range(2)]
    for k, ((w, u), (b, d)) in enumerate(zip(matrices, biases, strict=True)):
        h, c, outputs = given["state"][k], given["state_cell"][k], []
        for t in range(T):
            a = mx.nd.FullyConnected(x[t], w, b, num_hidden=4 * H)
            a = a + mx.nd.FullyConnected(h, u, d, num_hidden=4 * H)
            i, f, g, o = mx.nd.split(a, num_outputs=4, axis=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            c = c if bounds is None else c.clip(*bounds)
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        x = mx.nd.stack(*outputs, axis=0)
    return x


BOUNDS = {"lstm_state_clip_min": LOW, "lstm_state_clip_max": HIGH}
LSTM = {"state_size": H, "num_layers": 2, "mode": "lstm", **BOUNDS}


def test_a_clipped_cell_state_trains() -> None:
    given = arrays("lstm", sides=1)
    ours = recorded(lambda **made: rnn(**made, **LSTM), given)
    theirs, free = (
        recorded(lambda b=bounds, **made: clipped_lstm(made, b), given)
        for bounds in ((LOW, HIGH), None)
    )
    all_close(ours, theirs, 2e-5)
    assert np.abs(free[2] - theirs[2]).max() > 0.1


def test_a_nan_in_a_clipped_cell_state_trains_as_a_state_below_the_range() -> None:
    """Beside MXNet's own operators, which have no such flag, of a state that they clip."""
    given, found = arrays("lstm", sides=1), []
    for start, function in (
        (np.nan, lambda **made: rnn(**made, **LSTM, lstm_state_clip_nan=True)),
        (-1e6, lambda **made: clipped_lstm(made, (LOW, HIGH))),
    ):
        given["state_cell"][0, 1, 2] = start
        found.append(recorded(function, given))
    all_close(*found, 2e-5)


def test_mxnet_accepts_what_its_documentation_does_not_allow() -> None:
    """One end of a clip, no layers, and a projection of a GRU, whose vector has another length."""
    x, found = mx.sym.Variable("x"), {}
    for name, told in {
        "clip": {"mode": "lstm", "num_layers": 1, "lstm_state_clip_min": 1},
        "layers": {"mode": "lstm", "num_layers": 0},
        "plain": {"mode": "gru", "num_layers": 1},
        "projection": {"mode": "gru", "num_layers": 1, "projection_size": 2},
    }.items():
        symbol = mx.sym.RNN(x, state_size=H, name="n", **told)
        shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(x=(T, N, C))[0], strict=True))
        (found[name],) = shapes["n_parameters"]
    assert found["clip"] == rnn_param_size("lstm", C, H)
    assert found["plain"] == rnn_param_size("gru", C, H) != found["projection"]
    with pytest.raises(mx.MXNetError, match="drop rate"):
        mx.sym.RNN(x, state_size=H, num_layers=1, mode="gru", p=1.5)
