"""Dropout between layers, which MXNet's CPU leaves out in silence: drawn by us, as documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from tests.frameworks.mxnet_graphs import numpy_mode, operators_of, optimize, run
from tests.frameworks.mxnet_rnn import (
    MODES,
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

from onernn import UnsupportedError
from onernn.adapters import mxnet as plugin
from onernn.adapters.mxnet import rnn
from onernn.ir.arrays import Array

P = 0.4
OPTIONS: dict[str, Any] = {"state_size": H, "num_layers": 2, "p": P}


def mask_of(seed: int) -> Array:
    """What our dropout multiplies by, seen through a second layer that changes nothing."""
    given = arrays("rnn_relu", sides=1)
    nothing = np.zeros((H, C), np.float32), np.zeros((H, H), np.float32)
    matrices = *nothing, np.eye(H, dtype=np.float32), nothing[1]
    ones = np.repeat(np.float32([1, 0, 0, 0]), H)  # the first layer gives ones
    given["parameters"] = np.concatenate([*(m.reshape(-1) for m in matrices), ones])
    given["state"] = np.zeros_like(given["state"])
    mx.random.seed(seed)
    with mx.autograd.train_mode():
        return rnn(**ndarrays(given), **OPTIONS, mode="rnn_relu").asnumpy()


def test_words_are_dropped_by_mxnets_generator_and_scaled() -> None:
    masks = [mask_of(seed) for seed in range(40)]
    for mask in masks:
        assert set(np.unique(mask).tolist()) <= {0.0, float(np.float32(1 / (1 - P)))}
    kept = np.mean([(mask > 0).mean() for mask in masks])
    # 40 * 72 draws: four standard deviations are 0.037.
    assert abs(kept - (1 - P)) < 0.037
    np.testing.assert_array_equal(mask_of(3), masks[3])
    assert not np.array_equal(masks[3], masks[4])


def layered(mode: str, mask: Any, given: dict[str, Any]) -> Any:
    """Both layers by MXNet, one by one, with the mask between them."""
    gates = {"lstm": 4, "gru": 3}.get(mode, 1) * H
    flat, first = given["parameters"], gates * (C + H)
    second, biases = first + gates * 2 * H, 2 * gates
    parts = [
        mx.nd.concat(flat[:first], flat[second : second + biases], dim=0),
        mx.nd.concat(flat[first:second], flat[second + biases :], dim=0),
    ]
    x, options = given["data"], {"state_size": H, "num_layers": 1, "mode": mode}
    for at, part in enumerate(parts):
        states = [given[name][at : at + 1] for name in given if name.startswith("state")]
        x = mx.nd.RNN(x * mask if at else x, part, *states, **options)
    return x


@pytest.mark.parametrize("mode", MODES)
def test_training_is_that_of_layers_with_the_mask_between(mode: str) -> None:
    mask, given = mx.nd.array(mask_of(5)), arrays(mode, sides=1)
    mx.random.seed(5)
    ours = recorded(lambda **made: rnn(**made, **OPTIONS, mode=mode), given)
    all_close(ours, recorded(lambda **made: layered(mode, mask, made), given), 2e-5)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_dropped_in_inference(mode: str) -> None:
    given, plain = arrays(mode), symbol_of(mode)
    for symbol in (optimize(symbol_of(mode, p=P)), optimize(optimize(symbol_of(mode, p=P)))):
        assert operators_of(symbol) == {"Custom", "_random_uniform"}
        all_close(run(symbol, given), run(plain, given))
    got = rnn(**ndarrays(given), **OPTIONS, mode=mode, bidirectional=True).asnumpy()
    close(got, run(plain, given)[0])


def test_dropout_is_left_out_where_that_is_asked_for() -> None:
    symbol = symbol_of("lstm", p=P)
    ours = optimize(optimize(symbol), semantics="mxnet-cpu")
    assert operators_of(ours) == {"Custom"}
    found, expected = trained(ours, arrays("lstm")), trained(symbol, arrays("lstm"))
    for name, want in expected.items():
        close(found[name], want, 2e-5, name)
    with pytest.raises(UnsupportedError, match="dropout p=1: expected 0 <= p < 1"):
        optimize(symbol_of("lstm", p=1.0))


def curve(plug: Callable[[Any], Any], hybrid: bool, numpy: bool) -> list[float]:
    """The loss of 20 steps of a layer with dropout."""
    with numpy_mode(numpy):
        array = (mx.np if numpy else mx.nd).array
        layer = mx.gluon.rnn.LSTM(H, 2, dropout=P, bidirectional=True)
        layer.initialize(mx.init.Uniform(0.3))
        x = array(arrays("lstm")["data"])
        layer(x)
        rng = np.random.default_rng(6)
        for _, parameter in sorted(layer.collect_params().items()):
            parameter.set_data(array(rng.uniform(-0.4, 0.4, parameter.shape)))
        plug(layer)
        if hybrid:
            layer.hybridize()
        trainer = mx.gluon.Trainer(layer.collect_params(), "adam", {"learning_rate": 0.03})
        mx.random.seed(11)
        losses = []
        for _ in range(20):
            with mx.autograd.record():
                loss = ((layer(x) - 0.2) ** 2).mean()
            loss.backward()
            trainer.step(1)
            losses.append(float(loss.asnumpy()))
        return losses


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_seed_makes_training_repeatable(hybrid: bool, numpy: bool) -> None:
    """MXNet's own CPU trains another model: one without dropout."""
    first, again = (curve(optimize, hybrid, numpy) for _ in range(2))
    assert first == again
    without = curve(lambda layer: optimize(layer, semantics="mxnet-cpu"), hybrid, numpy)
    stock = curve(lambda layer: layer, hybrid, numpy)
    np.testing.assert_allclose(without, stock, rtol=1e-4)
    assert np.abs(np.subtract(first, stock)).max() > 1e-3
    assert first[-1] < 0.5 * first[0]


def test_a_bound_symbol_draws_anew_in_every_step() -> None:
    symbol = optimize(symbol_of("gru", p=P, state_outputs=False))
    given = ndarrays(arrays("gru"))
    grads = {name: mx.nd.zeros(a.shape) for name, a in given.items()}
    bound = symbol.bind(mx.cpu(), given, args_grad=grads)
    outputs = []
    for seed in (1, 1, None):
        if seed:
            mx.random.seed(seed)
        outputs.append(bound.forward(is_train=True)[0].asnumpy())
        bound.backward([mx.nd.ones((T, N, 2 * H))])
        assert all(np.isfinite(grad.asnumpy()).all() for grad in grads.values())
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


def test_a_hybridized_layer_is_traced_for_training_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere MXNet's own operator runs, with its bits; each trace is kept."""
    layers = [mx.gluon.rnn.LSTM(H, 2, dropout=P, input_size=C) for _ in range(2)]
    for layer in layers:
        mx.random.seed(5)
        layer.initialize(mx.init.Uniform(0.4))
        layer.hybridize()
    theirs, ours = layers[0], plugin.optimize(layers[1])
    traces, build = [], mx.gluon.HybridBlock._build_cache
    monkeypatch.setattr(
        mx.gluon.HybridBlock,
        "_build_cache",
        lambda self, *arguments: (traces.append(self), build(self, *arguments)),
    )
    x = mx.nd.array(arrays("lstm")["data"])
    for _ in range(3):
        want = theirs(x).asnumpy()
        np.testing.assert_array_equal(ours(x).asnumpy(), want)
        with mx.autograd.record():
            assert np.abs(ours(x).asnumpy() - want).max() > 1e-3
        gradients = []
        for layer in (theirs, ours):  # nothing is dropped, gradients come
            x.attach_grad()
            with mx.autograd.record(train_mode=False):
                y = layer(x)
            y.backward()
            close(y.asnumpy(), want)
            gradients.append(x.grad.asnumpy())
        close(*gradients)
    assert traces.count(ours) == 2
    ran = plugin.explain(ours)
    assert ran.replaced == (ours.name,) and len(ran.refusals) == 1
    ours.hybridize()
    ours(x)
    assert traces.count(ours) == 3
