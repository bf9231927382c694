"""Scales that a caller brings: oneDNN's rnn_data_qparams and rnn_weights_qparams, on both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close, assert_same, sentences_of
from support.layers import prepare_on, random_ragged, random_state, random_weights, words
from support.machine import needs_vnni
from support.oracle import run_oracle

from onernn import Cell, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.ir.weights import PartScales, Scale

BACKENDS = ["onednn", "kernels"]
STRICT = [pytest.param("onednn", marks=needs_vnni), "kernels"]
DATA = {"data_scale": 110.0}


def prepare(name: str, spec: RnnSpec, weights: Any, **options: Any) -> Any:
    return prepare_on(name, spec, weights, dtype="u8", strict=True, **options)


def on_grid(weights: RnnWeights, factors: Any, projection: Any = None) -> RnnWeights:
    """The matrices in steps of 1 / factor, as signed bytes hold them."""

    def rounded(array: Any, by: Any) -> Any:
        by = np.asarray(by, np.float64)
        return (np.clip(np.rint(array * by), -128, 127) / by).astype(np.float32)

    changed = {k: rounded(getattr(weights, k), factors) for k in ("layer", "iter")}
    if projection is not None and weights.projection is not None:
        changed["projection"] = rounded(weights.projection, projection)
    return replace(weights, **changed)


@pytest.mark.parametrize(
    "name, cell",
    [
        *(pytest.param("onednn", cell, marks=needs_vnni) for cell in (Cell.GRU, Cell.LSTM)),
        *(("kernels", cell) for cell in (Cell.GRU, Cell.LBR_GRU, Cell.LSTM)),
    ],
)
def test_weights_are_rounded_by_the_callers_scales(cell: Cell, name: str) -> None:
    """Numbers that are on the grid already give the same bits, and the oracle's result."""
    spec, rng = RnnSpec(cell, 12, 20), np.random.default_rng(0)
    (weights,) = random_weights(spec, 0)
    scales = rng.uniform(20, 40, (spec.gates, 20)).astype(np.float32)  # some weights saturate
    weights = replace(weights, layer=weights.layer * 20)
    x, state = random_ragged([5, 1, 3], 12, 1), random_state(spec, 3, 2)
    x = x.with_data(x.data / np.abs(x.data).max())
    moved = on_grid(weights, scales)
    assert np.abs(moved.layer - weights.layer).max() > 0.5
    given, exact = (
        prepare(name, spec, w, weights_scales=scales, **DATA).run(x, state)
        for w in (weights, moved)
    )
    assert_same(given[0], exact[0])
    want, _ = run_oracle(spec, [moved], sentences_of(x), state)
    for got, oracle in zip(sentences_of(given[0]), want, strict=True):
        # x and h are off by half a step of 1 / 110, through columns of these weights.
        assert_close(got, oracle, 0, 0.25)
    plain = prepare(name, spec, weights, **DATA).run(x, state)
    assert np.abs(words(plain[0]) - words(given[0])).max() > 0.05


@needs_vnni
@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LSTM])
def test_scales_of_the_largest_weights_are_the_ones_that_are_found(cell: Cell) -> None:
    spec = RnnSpec(cell, 12, 20)
    (weights,) = random_weights(spec, 0)
    both = np.concatenate([weights.layer, weights.iter], axis=2)
    x = random_ragged([5, 1, 3], 12, 1)
    found = words(prepare("onednn", spec, weights, **DATA).run(x)[0])
    for axes, options in (((0, 1, 2), {}), (None, {"per_channel": False})):
        scales = 127 / np.abs(both).max(axis=axes)
        own = words(prepare("onednn", spec, weights, **DATA, **options).run(x)[0])
        given = prepare("onednn", spec, weights, weights_scales=scales, **DATA).run(x)[0]
        assert_same(words(given), own)
    assert (own != found).any()


@pytest.mark.parametrize("name", STRICT)
def test_a_projection_has_scales_of_its_own(name: str) -> None:
    spec, rng = RnnSpec(Cell.LSTM, 12, 20, projection_size=9), np.random.default_rng(0)
    (weights,) = random_weights(spec, 0)
    scales, of_r = rng.uniform(40, 60, (4, 20)), rng.uniform(10, 20, 9)
    options: dict[str, Any] = {"weights_scales": scales, "projection_scales": of_r, **DATA}
    x = random_ragged([5, 1, 3], 12, 1)
    made = [
        prepare(name, spec, w, **options).run(x)[0]
        for w in (weights, on_grid(weights, scales, of_r))
    ]
    assert_same(*map(words, made))
    fine = prepare(name, spec, weights, weights_scales=scales, **DATA).run(x)[0]
    assert (words(fine) != words(made[0])).any()


@pytest.mark.parametrize("name", STRICT)
def test_one_number_a_row_and_one_for_each_layer_and_direction_say_the_same(name: str) -> None:
    spec = RnnSpec(Cell.GRU, 8, 8, layers=2, direction="bidirectional_sum")
    weights, x = random_weights(spec, 0), random_ragged([4, 2], 8, 1)
    forms = [50.0, [50.0], np.full(24, 50.0), np.full((3, 8), 50.0), np.full((2, 2, 3, 8), 50.0)]
    made = [prepare(name, spec, weights, weights_scales=each, **DATA).run(x)[0] for each in forms]
    for each in made[1:]:
        assert_same(each, made[0])
    apart = np.full((2, 2, 3, 8), 50.0)
    apart[1, 1] = 20.0
    other = prepare(name, spec, weights, weights_scales=apart, **DATA).run(x)[0]
    assert (words(other) != words(made[0])).any()


def test_kernels_take_any_whole_shift_of_the_input() -> None:
    """What a byte holds of x gives the same bits as x: from -0.3 to 2.25 here."""
    spec = RnnSpec(Cell.LSTM, 12, 20)
    weights, x = random_weights(spec, 0), random_ragged([5, 1, 3], 12, 1)
    x = x.with_data(x.data * 2)
    layer = prepare("kernels", spec, weights, data_scale=100.0, data_shift=30.0)
    held = (np.clip(np.rint(x.data * 100) + 30, 0, 255) - 30) / 100
    assert held.min() == -0.3 and held.max() == 2.25
    same = layer.run(x.with_data(held.astype(np.float32)))[0]
    assert_same(layer.run(x)[0], same)
    symmetric = prepare("kernels", spec, weights, data_scale=100.0)
    assert (words(symmetric.run(x)[0]) != words(same)).any()


@needs_vnni
def test_scales_of_a_program_of_onednn_run_there_whatever_the_batch() -> None:
    """Its states are bytes, and saturate: kernels keep those of a GRU in float32."""
    spec = RnnSpec(Cell.GRU, 8, 8)
    weights, scale, columns = random_weights(spec, 0), Scale(250.0, 128.0), np.full((3, 8), 60.0)
    scales, x = [PartScales(scale, scale, columns, columns)], random_ragged([9, 4], 8, 1)
    auto, kernels = (
        prepare_on(name, spec, weights, dtype="u8", scales=scales) for name in ("auto", "kernels")
    )
    assert auto.backend == "onednn"
    largest, free = (words(layer.run(x)[0]).max() for layer in (auto, kernels))
    assert largest == np.float32(127 / 250) < free


LSTM = RnnSpec(Cell.LSTM, 4, 5)
REFUSED: list[tuple[type[Exception], str, RnnSpec, dict[str, Any]]] = [
    *(
        (ShapeError, "weights_scales: .* 20 or", LSTM, {"weights_scales": bad})
        for bad in (np.ones(4), np.ones((5, 4)), np.ones((1, 4, 5)), np.ones(0))
    ),
    (
        ShapeError,
        "projection_scales: .* 3 or",
        replace(LSTM, projection_size=3),
        {"projection_scales": np.ones(4)},
    ),
    (ShapeError, "projection_scales", LSTM, {"projection_scales": 1.0}),
    *(
        (ShapeError, "scales of weights layer", LSTM, {"weights_scales": bad})
        for bad in (0.0, -1.0, np.inf, np.nan)
    ),
    (
        ValueError,
        "weights_scales: .*per_channel",
        LSTM,
        {"weights_scales": np.ones(20), "per_channel": False},
    ),
]


@pytest.mark.parametrize("name", BACKENDS)
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    for error, reason, spec, options in REFUSED:
        with pytest.raises(error, match=reason):
            prepare_on(name, spec, dtype="u8", **options, **DATA)
    with pytest.raises(UnsupportedError, match="weights_scales: .*dtype='u8'"):
        prepare_on(name, LSTM, weights_scales=1.0)
    with pytest.raises(ValueError, match="weights_scales"):
        prepare_on(name, LSTM, dtype="u8", weights_scales=1.0, scales=[PartScales()])


@needs_vnni
def test_onednn_takes_scales_of_weights_beside_a_data_scale_only() -> None:
    spec = RnnSpec(Cell.GRU, 4, 5)
    with pytest.raises(UnsupportedError, match="weights_scales: .*data_scale"):
        prepare("onednn", spec, random_weights(spec, 0), weights_scales=20.0)
