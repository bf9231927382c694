"""Scales of each layer and direction: bytes of x with any shift, of h, and columns of weights.

The oracle computes in float64 from numbers that are rounded here; one step, since from the second
one on a difference of float32 may move a byte.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close, assert_same, check_step, sentences_of
from support.layers import prepare_on, random_ragged, random_state, random_weights, words
from support.machine import needs_vnni
from support.oracle import run_oracle

from onernn import Cell, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.ir.weights import PartScales, Scale

pytestmark = pytest.mark.usefixtures("built")

SPECS = {
    "rnn": RnnSpec(Cell.RNN_TANH, 26, 33),
    "gru": RnnSpec(Cell.GRU, 26, 33),
    "lbr": RnnSpec(Cell.LBR_GRU, 26, 33),
    "lstm": RnnSpec(Cell.LSTM, 26, 33, peephole=True),
    "projected lstm": RnnSpec(Cell.LSTM, 26, 33, projection_size=19),
}
OF_X, OF_H = Scale(40.0, 30.0), Scale(100.0, 140.0)  # x from -0.75 to 5.6


def prepare(spec: RnnSpec, weights: Any, scales: Any, threads: int = 1, name: str = "kernels"):
    return prepare_on(name, spec, weights, threads=threads, dtype="u8", strict=True, scales=scales)


def held(array: np.ndarray, scale: Scale) -> np.ndarray:
    """float64: what a byte of this scale holds of it."""
    q = np.clip(np.rint(np.float64(array) * scale.factor) + scale.shift, 0, 255)
    return (q - scale.shift) / scale.factor


def columns(array: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Weights (1, 1, K, ...) in the steps of their columns."""
    if factors is None:
        factors = 127 / np.abs(array).max(axis=2)
    factors = np.float64(factors).reshape(1, 1, 1, *array.shape[3:])
    return np.rint(np.float64(array) * factors) / factors


@pytest.mark.parametrize("given", [False, True], ids=["own columns", "columns given"])
@pytest.mark.parametrize("name", SPECS)
def test_a_step_is_that_of_the_numbers_which_bytes_hold(isa: str, name: str, given: bool) -> None:
    spec, rng = SPECS[name], np.random.default_rng(0)
    (weights,) = random_weights(spec, 0)
    x = rng.uniform(-4, 5, (1, 5, 26)).astype(np.float32)  # below -0.75 it saturates
    h, *c = random_state(spec, 5, 1)
    h = held(h, OF_H).astype(np.float32)  # what a GRU keeps of h is not rounded
    of: dict[str, Any] = {"layer": None, "iter": None, "projection": None}
    if given:
        shape = (spec.gates, spec.hidden_size)
        of |= {k: rng.uniform(70, 90, shape).astype(np.float32) for k in ("layer", "iter")}
        if spec.projection_size:
            of["projection"] = rng.uniform(70, 90, spec.projection_size).astype(np.float32)
    rounded = replace(
        weights,
        **{
            k: columns(array, of[k]) if k in of else np.float64(array)
            for k, array in weights.arrays.items()
        },
    )
    scales = [PartScales(OF_X, OF_H, **of)]
    run, state = prepare(spec, [weights], scales).run(x, (h, *c)), (held(h, OF_H), *c)
    atol = 2e-5
    if spec.cell is Cell.GRU:  # r * h is rounded to steps of h
        atol += 0.5 / OF_H.factor * np.abs(rounded.iter[0, 0, :, 2]).sum(axis=0).max()
    if spec.projection_size:  # what is projected is at most 1, and rounded to its row's steps
        assert rounded.projection is not None
        atol += 0.5 / 127 * np.abs(rounded.projection[0, 0]).sum(axis=0).max()
    want, _ = check_step(run, spec, rounded, held(x, OF_X), state, atol, 2e-5)
    wide, _ = run_oracle(spec, [rounded], sentences_of(np.float64(x)), state)
    assert np.abs(np.stack(wide) - np.stack(want)).max() > 2 * atol  # saturation shows


def scales_of(spec: RnnSpec) -> list[PartScales]:
    """Others for each layer and direction."""
    count = spec.layers * spec.directions
    return [PartScales(Scale(90.0 - k, 100.0 + k), Scale(120.0 + k, 128.0)) for k in range(count)]


@pytest.mark.parametrize("direction", ["bidirectional_concat", "bidirectional_sum"])
@pytest.mark.parametrize("cell", [Cell.LBR_GRU, Cell.LSTM])
def test_each_layer_and_direction_has_its_own(cell: Cell, direction: Any) -> None:
    """The bits of a stack are those of its layers and directions one by one."""
    spec = RnnSpec(cell, 24, 24, layers=2, direction=direction)
    weights, scales, x = random_weights(spec, 0), scales_of(spec), random_ragged([4, 0, 7], 24, 1)
    y, _ = prepare(spec, weights, scales).run(x)
    below: Any = x
    for layer, given in enumerate(weights):
        sides = []
        for d, side in enumerate(("left2right", "right2left")):
            one = spec.one_layer(spec.reads(layer), side)
            made = prepare(one, [given.part(0, d)], [scales[layer * 2 + d]])
            sides.append(words(made.run(below)[0]))
        joined = sides[0] + sides[1]
        if direction == "bidirectional_concat":
            joined = np.concatenate(sides, axis=1)
        below = x.with_data(joined)
    assert_same(y, below)


@pytest.mark.parametrize("shift", [0.0, 128.0, 255.0])
def test_what_is_not_a_number_comes_out_in_its_sequence(isa: str, shift: float) -> None:
    spec = RnnSpec(Cell.GRU, 24, 32)
    layer = prepare(spec, random_weights(spec, 0), [PartScales(Scale(50.0, shift))])
    x = random_ragged([3, 3], 24, 1)
    clean = layer.run(x)[0].to_list()
    x.data[1, 5] = np.nan
    one, other = layer.run(x)[0].to_list()
    assert_same(other, clean[1])
    assert_same(one[:1], clean[0][:1])
    assert np.isnan(one[1:]).all()
    x.data[1, 5] = np.inf
    with pytest.raises(UnsupportedError, match="x: .* u8, got inf"):
        layer.run(x)


def test_weights_that_do_not_fit_their_factors_saturate() -> None:
    """As QuantizeLinear would: no byte wraps around."""
    spec = RnnSpec(Cell.RNN_TANH, 4, 4)
    ones = np.full((1, 1, 4, 1, 4), 1, np.float32)
    weights = RnnWeights(ones, ones * 0)
    factors = np.full((1, 4), 200, np.float32)
    layer = prepare(spec, [weights], [PartScales(Scale(100.0, 0.0), layer=factors)])
    y, _ = layer.run(np.full((1, 1, 4), 0.25, np.float32))
    assert_close(y, np.tanh(np.full((1, 1, 4), 127 / 200)), 0, 1e-6)


def test_what_does_not_fit_is_refused() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 4, layers=2)
    weights = random_weights(spec, 0)
    with pytest.raises(ShapeError, match="2 parts"):
        prepare(spec, weights, scales_of(spec)[:1])
    wrong = [PartScales(), PartScales(iter=np.ones((3, 4)))]
    with pytest.raises(ShapeError, match="layer 1, direction 0: .* iter"):
        prepare(spec, weights, wrong)
    if os.environ.get("ONERNN_TEST_BACKEND") != "onednn":  # which is the default one then
        assert prepare(spec, weights, scales_of(spec), name="auto").backend == "kernels"
    for name in ("kernels", "onednn"):
        with pytest.raises(UnsupportedError, match="scales: .*'bf16'"):
            prepare_on(name, spec, weights, dtype="bf16", scales=scales_of(spec))
    with pytest.raises(ValueError, match="data_scale"):
        prepare_on("kernels", spec, weights, dtype="u8", scales=scales_of(spec), data_scale=1.0)


@needs_vnni
def test_onednn_refuses_scales_of_states_apart_from_those_of_inputs() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 4, layers=2)
    with pytest.raises(UnsupportedError, match="x and h"):
        prepare(spec, random_weights(spec, 0), scales_of(spec), name="onednn")


@pytest.mark.parametrize(
    "scale", [(0, 0), (-1, 0), (np.nan, 0), (np.inf, 0), (1, -1), (1, 256), (1, 0.5)]
)
def test_a_scale_that_is_none_is_refused(scale: tuple[float, float]) -> None:
    with pytest.raises(ShapeError, match="scale of data"):
        PartScales(Scale(*scale))
    with pytest.raises(ShapeError, match="weights layer"):
        PartScales(layer=np.array([[1.0, 0.0]]))
