"""One step whose initial state has other channels than the final one: R != O at T = 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layers import random_weights
from support.raw import run_raw

from onernn import Cell, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.backend import SingleStep, open_backend
from onernn.backend.onednn.precision import PRECISIONS

BACKENDS = ["reference", "onednn", "kernels", "auto"]
CELLS: list[tuple[Cell, dict[str, Any]]] = [
    (Cell.RNN_TANH, {}),
    (Cell.RNN_RELU, {}),
    (Cell.RNN_SIGMOID, {}),
    (Cell.LSTM, {}),
    (Cell.LSTM, {"peephole": True}),
    (Cell.LSTM, {"projection_size": 3}),
]
INPUT, UNITS, BATCH = 4, 5, 3


def made(spec: RnnSpec, R: int, seed: int = 0) -> tuple[RnnWeights, np.ndarray, Any]:
    rng = np.random.default_rng(seed)
    (weights,) = random_weights(spec, seed)
    D = spec.directions
    iter_ = rng.uniform(-0.4, 0.4, (1, D, R, spec.gates, UNITS)).astype(np.float32)
    weights = RnnWeights(**{**weights.arrays, "iter": iter_})
    x = rng.uniform(-1, 1, (1, BATCH, INPUT)).astype(np.float32)
    widths = (R, UNITS)[: len(spec.cell.states)]
    state = tuple(rng.uniform(-1, 1, (1, D, BATCH, w)).astype(np.float32) for w in widths)
    return weights, x, state


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def by_hand(spec: RnnSpec, weights: RnnWeights, x: np.ndarray, state: Any) -> Any:
    """The guide's equations of one step, in float64: outputs, final h and c of each direction."""
    ends = []
    for d in range(spec.directions):
        w = {name: a[0, d].astype(np.float64) for name, a in weights.arrays.items()}
        a = np.einsum("ni,igo->gno", x[0], w["layer"]) + w["bias"][:, None]
        a += np.einsum("nr,rgo->gno", state[0][0, d], w["iter"])
        if spec.cell is not Cell.LSTM:
            function = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0), "sigmoid": sigmoid}
            ends.append((function[spec.cell.value.removeprefix("rnn_")](a[0]),))
            continue
        c, p = state[1][0, d], w.get("peephole", np.zeros((3, UNITS)))
        i, f = sigmoid(a[0] + p[0] * c), sigmoid(a[1] + p[1] * c)
        c = f * c + i * np.tanh(a[2])
        h = sigmoid(a[3] + p[2] * c) * np.tanh(c)
        ends.append((h @ w["projection"] if "projection" in w else h, c))
    final = tuple(np.stack(parts)[None] for parts in zip(*ends, strict=True))
    hs = [end[0] for end in ends]
    y = sum(hs) if spec.direction == "bidirectional_sum" else np.concatenate(hs, axis=1)
    return y[None], final


@pytest.mark.parametrize("direction", ["left2right", "bidirectional_concat", "bidirectional_sum"])
@pytest.mark.parametrize("R", [1, 5, 7])
@pytest.mark.parametrize(("cell", "more"), CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_takes_a_state_of_other_channels_than_it_gives(
    backend: str, cell: Cell, more: dict[str, Any], R: int, direction: Any
) -> None:
    spec = RnnSpec(cell, INPUT, UNITS, direction=direction, **more)
    weights, x, state = made(spec, R)
    y, final = SingleStep(open_backend(backend), spec, weights).run(x, state)
    want, ends = by_hand(spec, weights, x, state)
    # Sums of 11 products of numbers up to 1, in float32.
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-6)
    for got, end in zip(final, ends, strict=True):
        assert got.shape == end.shape
        np.testing.assert_allclose(got, end, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("cell", "more"), [CELLS[0], CELLS[3], CELLS[5]])
def test_the_primitive_makes_the_same_of_it(cell: Cell, more: dict[str, Any]) -> None:
    spec = RnnSpec(cell, INPUT, UNITS, **more)
    weights, x, state = made(spec, 7)
    got, _ = SingleStep(open_backend("onednn"), spec, weights).run(x, state)
    # What the raw call makes of dst_iter has the shape of src_iter, so only y is looked at.
    raw = _raw_y(spec, weights, x, state)
    np.testing.assert_allclose(got, raw, rtol=0, atol=1e-6)


def _raw_y(spec: RnnSpec, weights: RnnWeights, x: np.ndarray, state: Any) -> np.ndarray:
    dst = tuple(np.zeros((1, 1, BATCH, w), np.float32) for w in (spec.recurrent_size, UNITS))
    y, _ = run_raw(spec, weights, x, state, PRECISIONS["f32"], dst_state=dst[: len(state)])
    return y


@pytest.mark.parametrize("dtype", ["bf16", "u8"])
@pytest.mark.parametrize("backend", ["onednn", "kernels"])
def test_narrow_types_run_it_too(backend: str, dtype: str) -> None:
    spec = RnnSpec(Cell.LSTM, INPUT, UNITS)
    weights, x, state = made(spec, 7)
    y, _ = SingleStep(open_backend(backend), spec, weights, dtype=dtype).run(x, state)
    np.testing.assert_allclose(y, by_hand(spec, weights, x, state)[0], rtol=0, atol=2e-2)


@pytest.mark.parametrize("backend", ["reference", "onednn", "kernels"])
@pytest.mark.parametrize("direction", ["left2right", "bidirectional_concat"])
def test_its_gradients_are_slopes(backend: str, direction: Any) -> None:
    spec = RnnSpec(Cell.LSTM, INPUT, UNITS, direction=direction)
    weights, x, state = made(spec, 7)
    rng = np.random.default_rng(3)
    step = SingleStep(open_backend(backend), spec, weights)
    y, final, tape = step.run_training(x, state)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dstate = tuple(rng.standard_normal(s.shape).astype(np.float32) for s in final)
    found = step.backward(tape, dy, dstate)
    gradients = {"x": found.x, "h": found.state[0], "c": found.state[1], **found.layers[0].arrays}
    given = {"x": x, "h": state[0], "c": state[1], **weights.arrays}
    assert {n: a.shape for n, a in gradients.items()} == {n: a.shape for n, a in given.items()}

    def loss(at: dict[str, np.ndarray]) -> float:
        names = {name: at[name] for name in weights.arrays}
        y, ends = by_hand(spec, RnnWeights(**names), at["x"], (at["h"], at["c"]))
        return float((y * dy).sum() + sum((e * d).sum() for e, d in zip(ends, dstate, strict=True)))

    wide = {name: array.astype(np.float64) for name, array in given.items()}
    for name, array in gradients.items():
        way = rng.standard_normal(array.shape)
        high, low = (loss(wide | {name: wide[name] + s * 1e-5 * way}) for s in (1, -1))
        slope, got = (high - low) / 2e-5, float((array * way).sum())
        assert abs(slope - got) < 1e-4 * max(1, abs(slope)), name


@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_GRU])
def test_a_gru_keeps_the_channels_of_its_state(cell: Cell) -> None:
    """Ours says why; oneDNN says invalid arguments."""
    spec = RnnSpec(cell, INPUT, UNITS)
    weights, x, state = made(spec, 7)
    with pytest.raises(UnsupportedError, match="adds a part of src_iter to dst_iter"):
        SingleStep(open_backend("reference"), spec, weights)
    with pytest.raises(Exception, match="invalid_arguments"):
        _raw_y(spec, weights, x, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w, x, s: (w, np.repeat(x, 2, 0), s),
            r"x: expected \(T=1, N, 4\), got \(2, 3, 4\)",
        ),
        (lambda w, x, s: (w, x, s[:1]), r"state: expected \(h, c\), got 1 arrays"),
        (
            lambda w, x, s: (w, x, (s[1], s[1])),
            r"state h: expected \(L, D, N, R\) = \(1, 1, 3, 7\), got \(1, 1, 3, 5\)",
        ),
        (
            lambda w, x, s: (RnnWeights(w.layer, w.iter[:, :, :, :3]), x, s),
            r"weights iter: expected \(1, 1, R, 4, 5\), got \(1, 1, 7, 3, 5\)",
        ),
        (
            lambda w, x, s: (RnnWeights(w.layer[:, :, :3], w.iter), x, s),
            r"weights layer: expected \(1, 1, 4, 4, 5\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: Any, message: str) -> None:
    spec = RnnSpec(Cell.LSTM, INPUT, UNITS)
    weights, x, state = change(*made(spec, 7))
    with pytest.raises(ShapeError, match=message):
        SingleStep(open_backend("reference"), spec, weights).run(x, state)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_not_given_is_zero_and_float64_stays_float64(backend: str) -> None:
    spec = RnnSpec(Cell.LSTM, INPUT, UNITS)
    weights, x, state = made(spec, 7)
    zeros = tuple(np.zeros_like(s) for s in state)
    step = SingleStep(open_backend(backend), spec, weights)
    np.testing.assert_array_equal(step.run(x)[0], step.run(x, zeros)[0])
    wide = RnnWeights(**{name: a.astype(np.float64) for name, a in weights.arrays.items()})
    y, _ = SingleStep(open_backend(backend), spec, wide).run(x, state)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, by_hand(spec, weights, x, state)[0], rtol=0, atol=1e-14)


def test_more_than_one_step_or_layer_is_refused() -> None:
    spec = RnnSpec(Cell.LSTM, UNITS, UNITS, layers=2)
    weights, *_ = made(RnnSpec(Cell.LSTM, UNITS, UNITS), 7)
    with pytest.raises(UnsupportedError, match="a single step is one layer"):
        SingleStep(open_backend("reference"), spec, weights)
    with pytest.raises(ShapeError, match=r"weights iter: expected \(1, 1, 5, 4, 5\)"):
        open_backend("reference").prepare(RnnSpec(Cell.LSTM, UNITS, UNITS), weights)  # any T
