"""Layers of paddle.nn on arrays in memory: what the plug-in runs and trains, without Paddle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onernn import ShapeError, UnsupportedError
from onernn.adapters.paddle.partition import Arguments, LayerKind, LiveLayer, Options
from onernn.backend import TapeError
from onernn.ir.arrays import Array
from onernn.reorders.paddle import RNN_CELLS

T, N, I, O = 4, 3, 3, 2  # noqa: E741
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
LENGTHS = np.array([2, 4, 0], np.int32)


def layer(mode: str, layers: int = 1, directions: int = 1, **options: Any) -> LiveLayer:
    options = {"backend": "reference", **options}
    return LiveLayer(LayerKind(mode, I, O, layers, directions), Options(**options))


def arguments(
    live: LiveLayer,
    dtype: str = "float64",
    *,
    lengths: Array | None = None,
    time_major: bool = False,
    seed: int = 0,
) -> Arguments:
    kind, rng = live.kind, np.random.default_rng(seed)
    rows, matrices, biases = GATES[kind.mode] * O, [], []
    for at, _ in itertools.product(range(kind.layers), range(kind.directions)):
        width = O * kind.directions if at else I
        matrices += [rng.uniform(-0.6, 0.6, (rows, width)), rng.uniform(-0.6, 0.6, (rows, O))]
        biases += [rng.uniform(-0.6, 0.6, rows), rng.uniform(-0.6, 0.6, rows)]
    states = [
        rng.uniform(-1, 1, (kind.layers * kind.directions, N, O)) for _ in kind.spec.cell.states
    ]
    x = rng.uniform(-1, 1, (T, N, I) if time_major else (N, T, I))
    cast = [array.astype(dtype) for array in (x, *states, *matrices, *biases)]
    return Arguments(
        cast[0], tuple(cast[1 : 1 + len(states)]), cast[1 + len(states) :], lengths, time_major
    )


def moved(given: Arguments, at: int, by: Array) -> Arguments:
    """The arguments with ``by`` added to x, a state or a weight, counted through."""
    flat = [given.x, *given.states, *given.weights]
    flat[at] = flat[at] + by
    count = len(given.states)
    return given._replace(x=flat[0], states=tuple(flat[1 : 1 + count]), weights=flat[1 + count :])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", RNN_CELLS)
def test_gradients_are_the_derivatives(mode: str, directions: int, lengths: Array | None) -> None:
    """Central differences in float64: error h**2, rounding 1e-16 / h; relu's kinks are not met."""
    live = layer(mode, layers=2, directions=directions)
    given = arguments(live, lengths=lengths, seed=3)
    rng = np.random.default_rng(4)
    outputs, recorded = live.run_training(given)
    heads = [rng.uniform(-1, 1, out.shape) for out in outputs]

    def loss(at: Arguments) -> float:
        return float(sum((o * h).sum() for o, h in zip(live.run(at), heads, strict=True)))

    incoming = given._replace(x=heads[0], states=tuple(heads[1:]))
    dx, dstates, dweights = live.backward(recorded, incoming)
    grads = [dx, *dstates, *dweights]
    assert [g.shape for g in grads] == [a.shape for a in (given.x, *given.states, *given.weights)]
    for at, grad in enumerate(grads):
        along, step = rng.uniform(-1, 1, grad.shape), 1e-5
        sides = [loss(moved(given, at, sign * step * along)) for sign in (1, -1)]
        slope = (sides[0] - sides[1]) / (2 * step)
        assert abs(slope - (grad * along).sum()) <= 1e-7 * max(1, abs(slope)), at


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
def test_axes_of_time_and_batch_may_be_exchanged(lengths: Array | None) -> None:
    live = layer("LSTM", directions=2)
    by_batch = arguments(live, lengths=lengths)
    by_time = by_batch._replace(x=by_batch.x.swapaxes(0, 1).copy(), time_major=True)
    one, other = live.run(by_batch), live.run(by_time)
    assert np.array_equal(one[0], other[0].swapaxes(0, 1))
    assert all(map(np.array_equal, one[1:], other[1:]))
    trained = [live.run_training(each) for each in (by_batch, by_time)]
    grads = [
        live.backward(tape, each._replace(x=np.ones_like(y), states=tuple(states)))
        for ((y, *states), tape), each in zip(trained, (by_batch, by_time), strict=True)
    ]
    assert np.array_equal(grads[0][0], grads[1][0].swapaxes(0, 1))
    assert all(map(np.array_equal, grads[0][2], grads[1][2]))


def test_behind_the_lengths_there_are_zeros_and_nothing_is_read() -> None:
    live = layer("GRU", directions=2)
    given = arguments(live, lengths=LENGTHS)
    y, h = live.run(given)
    noisy = given.x.copy()
    for n, length in enumerate(LENGTHS):
        assert not y[n, length:].any() and y[n, :length].all()
        noisy[n, length:] = np.nan
    again, _ = live.run(given._replace(x=noisy))
    assert np.array_equal(again, y)
    assert np.array_equal(h[:, 2], given.states[0][:, 2])  # a sentence of length zero


def test_weights_are_packed_once_and_again_when_a_number_changes() -> None:
    live = layer("GRU")
    weights = arguments(live).weights
    first = live.layer(weights)
    assert live.layer([array.copy() for array in weights]) is first
    for array in weights:
        array.flat[-1] += 1  # in place, as an optimizer does it
        second = live.layer(weights)
        assert second is not first
        first = second
    assert live.layer([array.astype(np.float32) for array in weights]) is not first


def test_a_batch_of_no_sentences_and_one_of_no_words() -> None:
    live = layer("LSTM", directions=2)
    given = arguments(live)
    none = given._replace(x=given.x[:0], states=tuple(s[:, :0] for s in given.states))
    assert [out.shape for out in live.run(none)] == [(0, T, 2 * O), (2, 0, O), (2, 0, O)]
    empty = given._replace(x=given.x[:, :0])
    y, *states = live.run(empty)
    assert y.shape == (N, 0, 2 * O) and all(map(np.array_equal, states, given.states))


def test_what_does_not_belong_together_is_refused_by_name() -> None:
    live = layer("GRU")
    given = arguments(live)
    wrong: dict[str, Arguments] = {
        r"initial_states: expected \(1, 3, 2\), got \(1, 2, 2\)": given._replace(
            states=(given.states[0][:, :2],)
        ),
        r"x: expected \(T, N, 3\)": given._replace(x=given.x[..., :2]),
        "lengths: expected 3": given._replace(lengths=LENGTHS[:2]),
        "lengths: sequence 0 has 9": given._replace(lengths=np.array([9, 1, 1])),
        "WeightList: expected 4 arrays": given._replace(weights=given.weights[:3]),
    }
    for reason, arguments_ in wrong.items():
        with pytest.raises(ShapeError, match=reason):
            live.run(arguments_)


def test_what_onednn_does_not_run_is_refused_unless_the_reference_is_asked_for() -> None:
    given = arguments(layer("GRU"))
    with pytest.raises(UnsupportedError, match="float64"):
        layer("GRU", backend="onednn").run(given)
    assert layer("GRU").run(given)[0].dtype == np.float64
    narrow = layer("LSTM", backend="onednn", dtype="f16")
    with pytest.raises(UnsupportedError, match="f16"):
        narrow.run_training(arguments(narrow, "float32"))


def test_a_tape_serves_one_backward() -> None:
    live = layer("GRU")
    given = arguments(live)
    (y, h), recorded = live.run_training(given)
    live.backward(recorded, given._replace(x=y, states=(h,)))
    with pytest.raises(TapeError, match="used already"):
        live.backward(recorded, given._replace(x=y, states=(h,)))
