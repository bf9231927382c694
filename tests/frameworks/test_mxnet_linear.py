"""A FullyConnected in front of an RNN operator becomes part of ours, and is trained as before."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import operators_of, optimize, run
from tests.frameworks.mxnet_models import fed
from tests.frameworks.mxnet_rnn import (
    MODES,
    OPTIONS,
    H,
    all_close,
    operator_of,
    train_alike,
    trained,
)

from onernn.adapters.mxnet import explain
from onernn.ir.arrays import Array

T, N, C, P = 5, 3, 4, 7


def chain(mode: str, *, bias: bool = True, directions: int = 2, **more: Any) -> Any:
    x = mx.sym.Variable("data", shape=(T, N, C))
    x = mx.sym.FullyConnected(x, num_hidden=P, flatten=False, no_bias=not bias, name="fc")
    options = {**OPTIONS, "bidirectional": directions == 2, "state_outputs": True, **more}
    return operator_of(mode, x, name="rnn", **options)


def arrays(symbol: Any) -> dict[str, Array]:
    return fed(symbol, data=uniform(T, N, C))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_outputs_and_all_gradients_are_mxnets(mode: str, directions: int, bias: bool) -> None:
    symbol = chain(mode, bias=bias, directions=directions)
    ours = optimize(symbol)
    assert operators_of(ours) == {"Custom"}
    assert explain(optimize(ours)).replaced == ("rnn",)
    assert ours.list_arguments() == symbol.list_arguments()
    assert ours.list_outputs() == symbol.list_outputs()
    wanted, inferred = (
        dict(zip(s.list_arguments(), s.infer_shape()[0], strict=True)) for s in (symbol, ours)
    )
    assert inferred == wanted
    given = arrays(symbol)
    assert np.abs(train_alike(ours, symbol, given)["fc_weight"]).max() > 1e-3
    for name in ("fc_weight", "parameters"):  # changed in place
        changed = {**given, name: given[name] * 0.5}
        all_close(run(ours, changed), run(symbol, changed))


def test_lengths_find_their_input_beside_it() -> None:
    symbol = chain("gru", use_sequence_length=True)
    ours = optimize(symbol)
    given = arrays(chain("gru")) | {"sequence_length": np.float32([5, 2, 3])}
    plain = optimize(chain("gru"))
    whole = {name: a for name, a in given.items() if name != "sequence_length"}
    y = run(ours, given)[0]
    for n, length in enumerate([5, 2, 3]):
        cut = {**whole, "data": whole["data"][:length, n : n + 1]}
        cut["state"] = whole["state"][:, n : n + 1]
        np.testing.assert_allclose(y[:length, n : n + 1], run(plain, cut)[0], atol=1e-5)
        assert not y[length:, n].any()
    grads = trained(ours, given)
    assert np.abs(grads["fc_weight"]).max() > 1e-3 and not grads["sequence_length"].any()


def before(width: int, shape: tuple[int, ...], **more: Any) -> Any:
    x = mx.sym.FullyConnected(mx.sym.Variable("data", shape=shape), num_hidden=width, **more)
    x = x if len(shape) == 3 else mx.sym.Reshape(x, shape=(2, 3, width))
    return mx.sym.RNN(x, mode="gru", state_size=H, num_layers=1, name="rnn")


GRU = chain("gru")
INNER = GRU.get_internals()["fc_output"]


@pytest.mark.parametrize(
    "symbol",
    [
        pytest.param(mx.sym.Group([*GRU, mx.sym.tanh(INNER)]), id="another reader"),
        pytest.param(mx.sym.Group([*GRU, INNER]), id="an output"),
        pytest.param(before(2, (T, N, 90), flatten=False), id="dearer"),
        pytest.param(before(P, (6, C)), id="a matrix"),
    ],
)
def test_a_projection_stays_where_it_has_to(symbol: Any) -> None:
    assert {"Custom", "FullyConnected"} <= operators_of(optimize(symbol))
