"""Single steps in u8, and conversions between data types: right, and as refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import (
    assert_close,
    assert_same,
    check_layer,
    check_step,
    grid,
)
from support.layers import prepare_on, random_state, random_weights
from support.machine import needs_vnni

from onernn import Cell, RnnSpec, RnnWeights, UnsupportedError
from onernn.backend.onednn.memory import narrow, widen
from onernn.ir.weights import Scale

U8 = [Cell.LSTM, Cell.GRU]


def prepare(spec: RnnSpec, weights: Any, dtype: str = "u8", **more: Any) -> Any:
    return prepare_on("onednn", spec, weights, threads=1, dtype=dtype, strict=True, **more)


def step_of(spec: RnnSpec, batch: int, seed: int, largest: float = 1.0) -> np.ndarray:
    """One step (1, N, I) whose largest magnitude is this one."""
    x = np.random.default_rng(seed).uniform(-1, 1, (1, batch, spec.input_size))
    return (x * (largest / np.abs(x).max())).astype(np.float32)


def quantized(weights: RnnWeights, scaled: float) -> RnnWeights:
    """The weights that 8 bits hold, a scale for each gate and output.

    The primitive adds up sums of both matrices, so that they share one; inputs were divided by a
    power of two, by which the input's matrix was multiplied before.
    """
    layer, recurrent = np.float64(weights.layer) * scaled, np.float64(weights.iter)
    largest = np.maximum(*(np.abs(a).max(axis=2, keepdims=True) for a in (layer, recurrent)))
    return RnnWeights(
        grid(layer, largest) / scaled, grid(recurrent, largest), np.float64(weights.bias)
    )


@needs_vnni
@pytest.mark.parametrize("largest", [0.25, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("batch", [1, 3, 5, 17])
@pytest.mark.parametrize("cell", U8)
def test_a_step_is_that_of_the_numbers_which_8_bits_hold(
    cell: Cell, batch: int, largest: float
) -> None:
    """float64 on rounded numbers: what is left is float32, and what the cell rounds inside."""
    spec = RnnSpec(cell, 24, 32)
    (weights,) = random_weights(spec, 0)
    layer = prepare(spec, [weights])
    x, state = step_of(spec, batch, 1, largest), random_state(spec, batch, 2)
    power = 2.0 ** max(0, np.ceil(np.log2(largest)))
    atol = 1e-5 + 0.5 / 127  # the new state is rounded
    if cell is Cell.GRU:  # so is r * h, and multiplied by these
        atol += 0.5 / 127 * np.abs(weights.iter[0, 0, :, 2]).sum(axis=0).max()
    run, held = layer.run(x, state), (grid(state[0], 1), *state[1:])
    _, ends = check_step(run, spec, quantized(weights, power), grid(x, power), held, atol, 1e-5)
    assert_close(run[1][0], ends[0], 0, atol)


@needs_vnni
@pytest.mark.parametrize("cell", U8)
def test_what_8_bits_cannot_hold_is_refused_as_ever_and_leaves_nothing_behind(cell: Cell) -> None:
    spec = RnnSpec(cell, 8, 16, layers=2)
    layer = prepare(spec, random_weights(spec, 0))
    x, state = step_of(spec, 2, 0), random_state(spec, 2, 1)
    y, end = layer.run(x, state)
    cases = [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf"), (1e30, "1.0.*e\\+30")]
    with pytest.raises(
        UnsupportedError, match=r"state h: expected values in \[-1, 1\] for u8, got 1.5"
    ):
        layer.run(x, (np.full_like(state[0], 1.5), *state[1:]))
    for bad, told in cases:
        broken = x.copy()
        broken[0, 1, 3] = bad
        with pytest.raises(UnsupportedError, match=f"x: expected values in .*, got {told}"):
            layer.run(broken, state)
        for place in [(0, 0, 0, 0), (1, 0, 1, 15)]:
            h = state[0].copy()
            h[place] = bad
            with pytest.raises(UnsupportedError, match=f"state h: expected values .*, got {told}"):
                layer.run(x, (h, *state[1:]))
        again, ends = layer.run(x, state)
        assert_same((y, *end), (again, *ends))


@needs_vnni
@pytest.mark.parametrize("shift", [100.0, 100.5])
def test_a_shift_between_two_integers_is_kept(shift: float) -> None:
    spec = RnnSpec(Cell.LSTM, 8, 16)
    weights = random_weights(spec, 0)
    layer = prepare(spec, weights, data_scale=90.0, data_shift=shift)
    for seed in range(3):
        x = step_of(spec, 2, seed)
        check_layer(layer, spec, weights, x, random_state(spec, 2, seed), rtol=0, atol=3e-2)


class TestConversions:
    @pytest.mark.parametrize("scale", [Scale(127, 128), Scale(63.5, 128), Scale(40, 100.5)])
    def test_u8_is_rounded_to_the_nearest_and_saturates(self, scale: Scale) -> None:
        x = uniform(5000, bound=5)
        x[::7] = (np.arange(len(x[::7])) % 300 - 20 - scale.shift) / scale.factor
        x[-1], x[-2] = 1e30, -np.inf
        product = np.float32(scale.factor) * x + np.float32(scale.shift)  # rounds as float32 does
        want = [min(255, max(0, round(a))) for a in np.clip(product, -1e9, 1e9).tolist()]
        result = narrow(x, "u8", scale)
        assert result.dtype == np.uint8 and result.tolist() == want

    def test_halves_go_to_even(self) -> None:
        halves = np.arange(510) / 2  # 0, .5, 1, ...
        result = narrow(halves, "u8", Scale(1, 0))
        assert result.tolist() == [round(a) for a in halves.tolist()]

    def test_u8_goes_back_by_the_rounded_factor(self) -> None:
        q = np.arange(256, dtype=np.uint8)
        result = widen(q, "u8", Scale(100, 128))
        want = (q.astype(np.float32) - np.float32(128)) * np.float32(0.01)
        assert_same(result, want)
        assert_same(narrow(result, "u8", Scale(100, 128)), q)

    def test_bf16_is_the_nearest_number_of_16_bits(self) -> None:
        x = uniform(5000, bound=2)
        x[:4] = 1.00390625, 1.01171875, 3.4e38, -np.inf  # halves between two numbers, the ends
        bits = x.view(np.uint32).astype(np.uint64)
        want = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
        result = narrow(x, "bf16")
        assert_same(result, want)
        back = widen(result, "bf16")
        assert_same(back.view(np.uint32), want.astype(np.uint32) << 16)

    def test_bf16_keeps_every_nan(self) -> None:
        bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32)
        assert np.isnan(widen(narrow(bits.view(np.float32), "bf16"), "bf16")).all()

    def test_strided_and_read_only_arrays_are_read(self) -> None:
        wide = uniform(90, 100)
        wide.flags.writeable = False
        for dtype in ("bf16", "u8"):
            result = narrow(wide[:, ::2], dtype)
            assert_same(result, narrow(wide, dtype)[:, ::2])
