"""A FullyConnected in front of an RNN operator becomes part of ours, and is trained as before."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.arrays import uniform
from tests.frameworks.mxnet_graphs import operators_of, optimize, run
from tests.frameworks.mxnet_models import contractive
from tests.frameworks.mxnet_rnn import MODES, close, trained

from onernn.adapters.mxnet import explain
from onernn.ir.arrays import Array

T, N, C, P, H = 5, 3, 4, 7, 6


def chain(mode: str, *, bias: bool = True, directions: int = 2, **more: Any) -> Any:
    x = mx.sym.Variable("data", shape=(T, N, C))
    x = mx.sym.FullyConnected(x, num_hidden=P, flatten=False, no_bias=not bias, name="fc")
    slots = ["parameters", "state", *(["state_cell"] if mode == "lstm" else [])]
    slots += ["sequence_length"] if more.get("use_sequence_length") else []
    told = {"state_size": H, "num_layers": 2, "bidirectional": directions == 2, "mode": mode}
    variables = {name: mx.sym.Variable(name) for name in slots}
    return mx.sym.RNN(x, **variables, **told, state_outputs=True, name="rnn", **more)


def arrays(symbol: Any, seed: int = 0) -> dict[str, Array]:
    x = uniform(T, N, C, seed=seed)
    return {"data": x, **contractive(np.random.default_rng(1), symbol, {"data": x}, "float32")}


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
    want, got = trained(symbol, given), trained(ours, given)
    assert np.abs(want["fc_weight"]).max() > 1e-3
    for name, theirs in want.items():
        close(got[name], theirs, 3e-5, name)
    for name in ("fc_weight", "parameters"):  # changed in place
        changed = {**given, name: given[name] * 0.5}
        for mine, theirs in zip(run(ours, changed), run(symbol, changed), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


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


@pytest.mark.parametrize("why", ["another reader", "an output", "dearer", "a matrix"])
def test_a_projection_stays_where_it_has_to(why: str) -> None:
    symbol = chain("gru")
    inner = symbol.get_internals()["fc_output"]
    if why == "another reader":
        symbol = mx.sym.Group([*symbol, mx.sym.tanh(inner)])
    elif why == "an output":
        symbol = mx.sym.Group([*symbol, inner])
    elif why == "dearer":
        x = mx.sym.Variable("data", shape=(T, N, 90))
        x = mx.sym.FullyConnected(x, num_hidden=2, flatten=False, name="fc")
        symbol = mx.sym.RNN(x, mode="gru", state_size=H, num_layers=1, name="rnn")
    else:
        x = mx.sym.FullyConnected(mx.sym.Variable("data", shape=(6, C)), num_hidden=P, name="fc")
        x = mx.sym.Reshape(x, shape=(2, 3, P))
        symbol = mx.sym.RNN(x, mode="gru", state_size=H, num_layers=1, name="rnn")
    assert {"Custom", "FullyConnected"} <= operators_of(optimize(symbol))
