"""MXNet's RNN operator on arrays, as the plug-in runs it; and the plug-in where MXNet is not."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.oracle import run_oracle

from onernn import MissingDependencyError, ShapeError, UnsupportedError
from onernn.adapters.mxnet.live_layer import LiveRnn, Options
from onernn.reorders import mxnet

T, N, C, H = 5, 3, 4, 2
MODES = ["rnn_tanh", "rnn_relu", "lstm", "gru"]


def attributes(mode: str, layers: int = 2, **more: str) -> dict[str, str]:
    plain = {"mode": mode, "state_size": str(H), "num_layers": str(layers), "bidirectional": "True"}
    return plain | {"state_outputs": "True"} | more


def arrays(live: LiveRnn, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = live.stack.layers * live.stack.directions
    made = [
        rng.uniform(-1, 1, (T, N, C)),
        rng.uniform(-0.5, 0.5, live.stack.elements(C)),
        *(rng.uniform(-1, 1, (rows, N, H)) for _ in live.state_names),
    ]
    lengths = [np.array([5, 1, 3])] if live.takes_lengths else []
    return [array.astype(dtype) for array in made + lengths]


def expected(live: LiveRnn, given: list[np.ndarray], lengths: Any = None) -> list[np.ndarray]:
    """Beside the oracle, sentence by sentence."""
    stack = live.stack
    weights = mxnet.weights(mxnet.split(given[1], stack), stack)
    counts = [T] * N if lengths is None else lengths.astype(int)
    sentences = [given[0][:count, n] for n, count in enumerate(counts)]
    states = tuple(s.reshape(stack.layers, 2, N, H) for s in given[2 : 2 + len(live.state_names)])
    outputs, finals = run_oracle(stack.spec(C), list(weights), sentences, states)
    y = np.zeros((T, N, 2 * H))
    for n, out in enumerate(outputs):
        y[: len(out), n] = out
    return [y, *(final.reshape(-1, N, H) for final in finals)]


@pytest.mark.parametrize("backend", ["onednn", "reference"])
@pytest.mark.parametrize("mode", MODES)
def test_the_operator_runs_with_and_without_lengths(mode: str, backend: str) -> None:
    for more in ({}, {"use_sequence_length": "True"}):
        live = LiveRnn(attributes(mode, **more), Options(backend=backend))
        given = arrays(live)
        kept = [array.copy() for array in given]
        want = expected(live, given, given[-1] if more else None)
        for got, right in zip(live.run(live.bound(given)), want, strict=True):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, right, rtol=0, atol=2e-6)
        for array, before in zip(given, kept, strict=True):
            np.testing.assert_array_equal(array, before)


def test_mxnet_cpu_ignores_the_lengths() -> None:
    more = {"use_sequence_length": "True"}
    live = LiveRnn(attributes("gru", **more), Options(semantics="mxnet-cpu", backend="reference"))
    given = arrays(live)
    for got, want in zip(live.run(live.bound(given)), expected(live, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_float64_stays_float64() -> None:
    live = LiveRnn(attributes("lstm"), Options())
    given = arrays(live, "float64")
    for got, want in zip(live.run(live.bound(given)), expected(live, given), strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-14)


def test_weights_are_packed_again_only_when_their_numbers_change() -> None:
    live = LiveRnn(attributes("gru"), Options(backend="reference"))
    parameters = arrays(live)[1]
    first = live.layer(parameters)
    assert live.layer(parameters.copy()) is first
    parameters[-1] += 1  # in place, as a trainer does it
    second = live.layer(parameters)
    assert second is not first and live.layer(parameters) is second
    assert live.layer(parameters.astype(np.float64)) is not second


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_gradients_are_the_derivatives(mode: str, masked: bool) -> None:
    """Central differences in float64: error h**2, rounding 1e-16 / h."""
    more = {"use_sequence_length": "True"} if masked else {}
    live = LiveRnn(attributes(mode, layers=1, **more), Options(backend="reference"))
    given = arrays(live, "float64", seed=3)
    rng = np.random.default_rng(4)
    outputs, recorded = live.run_training(live.bound(given))
    heads = [rng.uniform(-1, 1, out.shape) for out in outputs]

    def loss(moved: list[np.ndarray]) -> float:
        results = live.run(live.bound(moved))
        return float(sum((out * head).sum() for out, head in zip(results, heads, strict=True)))

    grads = live.backward(live.bound(given), recorded, heads[0], heads[1:])
    assert len(grads) == len(live.arguments)
    for at in range(2 + len(live.state_names)):
        direction = rng.uniform(-1, 1, given[at].shape)
        step, sides = 1e-5, []
        for sign in (1, -1):
            moved = list(given)
            moved[at] = given[at] + sign * step * direction
            sides.append(loss(moved))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert abs(slope - (grads[at] * direction).sum()) <= 1e-7 * max(1, abs(slope)), at
    if masked:
        assert not grads[-1].any()


@pytest.mark.parametrize("backend", ["reference", "onednn", "kernels"])
def test_a_nan_that_a_clip_has_stopped_reaches_no_gradient(backend: str) -> None:
    """It trains as a cell state does that is far below the range: neither has a slope."""
    clips = {"lstm_state_clip_min": "-0.3", "lstm_state_clip_max": "0.25"}
    found = []
    for start, stops in ((np.nan, "True"), (-1e30, "True"), (-np.inf, "True"), (np.nan, "False")):
        told = attributes("lstm", **clips, lstm_state_clip_nan=stops)
        live = LiveRnn(told, Options(backend=backend))
        given = arrays(live)
        given[3][2, 1, 0] = start
        outputs, recorded = live.run_training(live.bound(given))
        heads = [np.ones_like(out) for out in outputs]
        found.append(live.backward(live.bound(given), recorded, heads[0], heads[1:]))
    stopped, below, infinite, free = found
    for ours, right, same in zip(stopped, below, infinite, strict=True):
        np.testing.assert_array_equal(ours, right)
        np.testing.assert_array_equal(same, right)
    assert np.abs(stopped[1]).max() > 0.1 and np.isnan(free[1]).any()


def test_gradients_that_there_are_not_are_refused_with_the_reason() -> None:
    narrow = LiveRnn(attributes("lstm"), Options(dtype="f16"))
    given = narrow.bound(arrays(narrow))
    outputs, recorded = narrow.run_training(given)
    with pytest.raises(UnsupportedError, match="no gradients: .*f16"):
        narrow.backward(given, recorded, outputs[0], outputs[1:])


@pytest.mark.parametrize("masked", [False, True])
def test_dropout_between_layers_trains_with_one_mask(masked: bool) -> None:
    """By the seed: other seeds drop other words, and gradients are those of the very same mask."""
    more = {"use_sequence_length": "True"} if masked else {}
    live = LiveRnn(attributes("lstm", p="0.3", **more), Options(backend="reference"))
    assert live.arguments[-1] == "seed"
    given = [*arrays(live, "float64", seed=3), np.array([0.25, 0.75], np.float32)]
    rng = np.random.default_rng(4)
    outputs, recorded = live.run_training(live.bound(given))
    heads = [rng.uniform(-1, 1, out.shape) for out in outputs]
    other = [*given[:-1], np.array([0.5, 0.75], np.float32)]
    for seed, same in ((given, True), (other, False)):
        again, _ = live.run_training(live.bound(seed))
        assert np.array_equal(again[0], outputs[0]) is same
    kept = LiveRnn(attributes("lstm", **more), Options(backend="reference"))
    whole = kept.run(kept.bound(given[:-1]))
    for got, want in zip(live.run(live.bound(given)), whole, strict=True):
        np.testing.assert_array_equal(got, want)

    def loss(moved: list[np.ndarray]) -> float:
        results, _ = live.run_training(live.bound(moved))
        return float(sum((out * head).sum() for out, head in zip(results, heads, strict=True)))

    grads = live.backward(live.bound(given), recorded, heads[0], heads[1:])
    assert len(grads) == len(live.arguments) and not grads[-1].any()
    for at in range(2 + len(live.state_names)):
        direction, step = rng.uniform(-1, 1, given[at].shape), 1e-5
        sides = []
        for sign in (1, -1):
            moved = list(given)
            moved[at] = given[at] + sign * step * direction
            sides.append(loss(moved))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert abs(slope - (grads[at] * direction).sum()) <= 1e-6 * max(1, abs(slope)), at


def test_dropout_is_left_out_where_that_is_asked_for() -> None:
    with pytest.raises(UnsupportedError, match="dropout p=1: expected 0 <= p < 1"):
        LiveRnn(attributes("lstm", p="1"), Options())
    one = LiveRnn(attributes("lstm", layers=1, p="0.3"), Options())
    assert not one.dropout  # there is nothing between
    without, left_out = (
        LiveRnn(attributes("lstm", p=p), Options(semantics="mxnet-cpu", backend="reference"))
        for p in ("0", "0.3")
    )
    given = without.bound(arrays(without))
    for one, other in zip(without.run(given), left_out.run(given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shapes_are_completed_from_those_of_the_data() -> None:
    live = LiveRnn(attributes("lstm", use_sequence_length="True"), Options())
    given = [[7, 0, C], [], [], [4, 0, H], []]
    shapes, outputs = live.shapes(given)
    assert shapes == [[7, 0, C], [live.stack.elements(C)], [4, 0, H], [4, 0, H], [0]]
    assert outputs == [[7, 0, 2 * H], [4, 0, H], [4, 0, H]]
    assert live.shapes([[], [], [], [], []])[0] == [[]] * 5


def test_arrays_that_do_not_belong_together_are_refused_by_name() -> None:
    live = LiveRnn(attributes("gru"), Options(backend="reference"))
    data, parameters, state = arrays(live)
    wrong: list[tuple[type[Exception], str, list[np.ndarray]]] = [
        (ShapeError, "fit no input size", [data, parameters[:-1], state]),
        (ShapeError, "parameters: expected a vector", [data, parameters[None], state]),
        (ShapeError, r"state: expected \(L\*D, N, R\)", [data, parameters, state[:, :1]]),
        (ShapeError, r"state: expected \(4, N, R\)", [data, parameters, state[:2]]),
        (ShapeError, "x: expected", [data[..., :2], parameters, state]),
        (UnsupportedError, "data: int32", [data.astype(np.int32), parameters, state]),
        (ShapeError, "state: expected float32 as data", [data, parameters, state.astype(float)]),
    ]
    for kind, reason, given in wrong:
        with pytest.raises(kind, match=reason):
            live.run(live.bound(given))


def test_a_meaning_that_is_none_of_the_two_is_refused() -> None:
    with pytest.raises(ValueError, match="semantics: documented or mxnet-cpu, got 'cpu'"):
        Options(semantics="cpu")


@pytest.mark.skipif(find_spec("mxnet") is not None, reason="mxnet is installed")
def test_without_mxnet_the_plug_in_says_what_to_install() -> None:
    from onernn.adapters.mxnet import optimize, rnn

    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[mxnet\]'"):
        optimize(object())
    with pytest.raises(MissingDependencyError, match="numpy 1.23.5"):
        rnn(None, None, None, state_size=1, num_layers=1, mode="gru")
