"""Bytes in our kernels: right to their steps, the same in any batch, nothing silently wrong.

Every row of x and h, and every column of a matrix, has steps of its largest number / 127.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close, check_layer, sentences_of
from support.layers import (
    DIRECTIONS,
    attention_for,
    random_ragged,
    random_state,
    random_weights,
    words,
)
from support.oracle import run_oracle

from onernn import Activation, Cell, Ragged, RnnSpec, RnnWeights, UnsupportedError
from onernn.backend import open_backend, reference_stack

SPECS = {
    "gru": RnnSpec(Cell.GRU, 24, 32),
    "gru of odd sizes": RnnSpec(Cell.GRU, 21, 51, layers=2),
    "lbr": RnnSpec(Cell.LBR_GRU, 24, 32, layers=2),
    "lbr augru": RnnSpec(Cell.LBR_AUGRU, 5, 19, update="replace"),
    "lstm": RnnSpec(Cell.LSTM, 24, 48, layers=2),
    "lstm with all": RnnSpec(
        Cell.LSTM, 7, 18, projection_size=7, peephole=True, cell_clip=(-0.2, 0.3), gate_clip=0.8
    ),
    "rnn": RnnSpec(Cell.RNN_TANH, 18, 64),
    "relu": RnnSpec(Cell.RNN_RELU, 18, 64),
}
LENGTHS = [40, 0, 3, 1, 17, 2, 9, 9]

pytestmark = pytest.mark.usefixtures("built")


def prepare(spec: RnnSpec, weights: Any, threads: int = 1, **more: Any) -> Any:
    backend = open_backend("kernels", threads=threads)
    return backend.prepare(spec, weights, dtype="u8", strict=True, **more)


def grid(array: np.ndarray, axis: int | None) -> np.ndarray:
    """float64, to the nearest of the 255 numbers that the largest one along an axis leaves."""
    wide = np.float64(array)
    step = np.abs(wide).max(axis=axis, keepdims=True) / 127
    return np.rint(wide / np.where(step > 0, step, 1)) * step


@pytest.mark.parametrize("name", SPECS)
def test_u8_is_right_to_its_steps_on_every_instruction_set(isa: str, name: str) -> None:
    """DESIGN's tolerance: 2e-2, twice that for a sum of two directions."""
    for direction in DIRECTIONS:
        spec = replace(SPECS[name], direction=direction)
        weights = random_weights(spec, 3)
        layer = prepare(spec, weights)
        assert layer.backend == "kernels" and layer.dtype == "u8"
        x, state = random_ragged(LENGTHS, spec.input_size, 1), random_state(spec, len(LENGTHS), 2)
        twice = 2 if direction == "bidirectional_sum" else 1
        relative = 2e-2 if name == "relu" else 0  # outputs are no longer in [-1, 1]
        given = (x, state, attention_for(spec, x, 5))
        y, final = layer.run(*given)
        want, ends = reference_stack(spec, weights).run(*given)
        for got, exact in zip((words(y), *final), (words(want), *ends), strict=True):
            assert_close(got, exact, relative, 2e-2 * twice)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("largest", [1e-4, 1.0, 40.0, 1e8])
@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU, Cell.LBR_GRU])
def test_a_step_is_that_of_the_numbers_which_bytes_hold(
    isa: str, cell: Cell, largest: float, per_channel: bool
) -> None:
    """float64 on rounded numbers: what is left is float32, and what a GRU rounds inside."""
    spec, rng = RnnSpec(cell, 26, 33), np.random.default_rng(0)
    (weights,) = random_weights(spec, 0)
    weights = replace(weights, layer=weights.layer / np.float32(max(largest, 1)))
    x = (rng.uniform(-1, 1, (1, 5, 26)) * largest).astype(np.float32)
    h, *c = random_state(spec, 5, 1)
    h *= np.float32(3)  # states may have any size
    axis = 2 if per_channel else None
    recurrent = grid(weights.iter, axis)
    if cell is Cell.GRU and not per_channel:  # the candidate is a matrix of its own
        gates = [slice(0, 2), slice(2, 3)]
        recurrent = np.concatenate([grid(weights.iter[:, :, :, g], None) for g in gates], axis=3)
    held = RnnWeights(grid(weights.layer, axis), recurrent, np.float64(weights.bias))
    outputs, ends = run_oracle(spec, [held], sentences_of(grid(x, 2)), (grid(h, 3), *c))
    # h that is kept is not rounded, only what goes into products.
    if cell is not Cell.LSTM:
        moved = np.abs(h - grid(h, 3)).max()
    else:
        moved = 0
    atol = 2e-5 + moved
    if cell is Cell.GRU:  # r * h is rounded to steps of its largest number / 127, at most h's
        atol += 0.5 / 127 * np.abs(h).max() * np.abs(weights.iter[0, 0, :, 2]).sum(axis=0).max()
    y, final = prepare(spec, [weights], per_channel=per_channel).run(x, (h, *c))
    for got, want in zip(sentences_of(y), outputs, strict=True):
        assert_close(got, want, 0, atol)
    for got, want in zip(final[1:], ends[1:], strict=True):
        assert_close(got, want, 0, 2e-5)
    turned = replace(held, iter=-held.iter)
    other, _ = run_oracle(spec, [turned], sentences_of(grid(x, 2)), (grid(h, 3), *c))
    assert np.abs(np.stack(other) - np.stack(outputs)).max() > 2 * atol  # a difference would show


@pytest.mark.parametrize("name", ["gru", "lbr", "lstm"])
def test_a_sequence_has_the_same_bits_alone_in_any_batch_and_on_two_threads(name: str) -> None:
    """Whatever the sizes of its neighbours' numbers."""
    spec = replace(SPECS[name], direction="bidirectional_concat")
    weights = random_weights(spec, 0)
    x, state = random_ragged(LENGTHS, 24, 1), random_state(spec, len(LENGTHS), 2)
    x.data[:40] *= 1000
    y, final = prepare(spec, weights, threads=2).run(x, state)
    alone = prepare(spec, weights)
    for n, (own, want) in enumerate(zip(x.to_list(), y.to_list(), strict=True)):
        given = tuple(np.ascontiguousarray(s[:, :, n : n + 1]) for s in state)
        got, ends = alone.run(np.ascontiguousarray(own[:, None]), given)
        np.testing.assert_array_equal(got[:, 0], want)
        for end, all_ends in zip(ends, final, strict=True):
            np.testing.assert_array_equal(end[:, :, 0], all_ends[:, :, n])


def test_the_float_steps_are_the_only_difference_between_instruction_sets(isa: str) -> None:
    """Sums of bytes are exact: one step differs by a few units of float32's last place."""
    spec = RnnSpec(Cell.LSTM, 300, 64)
    weights, x = random_weights(spec, 0), random_ragged([1] * 9, 300, 1)
    got, _ = prepare(spec, weights).run(x)
    (given,) = weights
    held = RnnWeights(grid(given.layer, 2), grid(given.iter, 2), np.float64(given.bias))
    zeros = tuple(np.zeros((1, 1, 9, 64)) for _ in range(2))
    want, _ = run_oracle(spec, [held], [grid(w, 1) for w in x.to_list()], zeros)
    assert_close(words(got), np.concatenate(want), 0, 1e-6)


@pytest.mark.parametrize("name", ["gru", "lbr", "lstm", "rnn"])
def test_a_nan_stays_in_its_sequence_and_infinity_is_refused(isa: str, name: str) -> None:
    spec = replace(SPECS[name], layers=2)
    weights = random_weights(spec, 0)
    layer = prepare(spec, weights)
    x, state = random_ragged([5, 4, 6], spec.input_size, 1), random_state(spec, 3, 2)
    want = layer.run(x, state)[0].to_list()
    broken = x.with_data(x.data.copy())
    broken.data[7, 3] = np.nan  # word 2 of the second sequence
    y, (h, *_) = layer.run(broken, state)
    first, second, third = y.to_list()
    np.testing.assert_array_equal(first, want[0])
    np.testing.assert_array_equal(second[:2], want[1][:2])
    assert np.isnan(second[2:]).all() and np.isnan(h[:, :, 1]).all()
    np.testing.assert_array_equal(third, want[2])
    for bad in (np.inf, -np.inf):
        broken.data[7, 3] = bad
        with pytest.raises(UnsupportedError, match="x: u8 holds finite numbers, got inf"):
            layer.run(broken, state)
        dense = np.ascontiguousarray(broken.data[5:9, None])
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="x: u8 holds finite numbers, got inf"):
                layer.run(dense)
        h = state[0].copy()
        h[1, 0, 2, 15] = bad
        with pytest.raises(UnsupportedError, match="state h: u8 holds finite numbers, got inf"):
            layer.run(x, (h, *state[1:]))
    np.testing.assert_array_equal(words(layer.run(x, state)[0]), np.concatenate(want))


def test_a_given_data_scale_is_that_of_x_in_the_first_layer() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 8, 16, layers=2)
    weights, x, state = (
        random_weights(spec, 0),
        random_ragged([6, 2], 8, 1),
        random_state(spec, 2, 0),
    )
    layer = prepare(spec, weights, data_scale=127 / 2)
    check_layer(layer, spec, weights, x, state, rtol=0, atol=2e-2)
    # Beyond the range that the scale leaves, data saturates: the same as clipped input.
    y, _ = layer.run(x.with_data(x.data * 100))
    clipped, _ = layer.run(x.with_data(np.clip(x.data * 100, -128 / 63.5, 127 / 63.5)))
    np.testing.assert_array_equal(words(y), words(clipped))
    # A coarse scale of x does not make states coarse.
    coarse = prepare(spec, weights, data_scale=0.5)
    still = x.with_data(np.zeros_like(x.data))
    np.testing.assert_array_equal(words(coarse.run(still)[0]), words(layer.run(still)[0]))


def test_an_input_that_is_projected_already_is_not_rounded() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 96, 32)
    weights = random_weights(spec, 0, projected=True)
    x, state = random_ragged(LENGTHS, 96, 1), random_state(spec, len(LENGTHS), 2)
    check_layer(prepare(spec, weights), spec, weights, x, state, rtol=0, atol=2e-2)


def test_what_bytes_get_wrong_is_refused_by_name() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 4)
    weights = random_weights(spec, 0)
    with pytest.raises(UnsupportedError, match="u8 with a whole number as data_shift"):
        prepare(spec, weights, data_scale=1.0, data_shift=0.5)
    with pytest.raises(ValueError, match="data_scale: expected a positive number"):
        prepare(spec, weights, data_scale=-1.0)
    threshold = Activation("thresholdedrelu", 1.0)
    hidden = RnnSpec(Cell.LSTM, 4, 4, activations=("sigmoid", threshold, "tanh"))
    with pytest.raises(UnsupportedError, match="u8: thresholdedrelu hides what was not finite"):
        prepare(hidden, weights)
    wide = RnnSpec(Cell.RNN_TANH, 70000, 1)
    with pytest.raises(UnsupportedError, match="sums of 70000 products may not fit 32 bits"):
        prepare(wide, random_weights(wide, 0))
    precise = [RnnWeights(*(np.float64(a) for a in (w.layer, w.iter, w.bias))) for w in weights]
    with pytest.raises(UnsupportedError, match="u8 computes from float32 weights"):
        prepare(spec, precise)


def test_rows_and_columns_of_zeros_add_nothing() -> None:
    spec = RnnSpec(Cell.GRU, 6, 20)
    (weights,) = random_weights(spec, 0)
    layer, recurrent = weights.layer.copy(), weights.iter.copy()
    layer[0, 0, :, 1, 3] = recurrent[0, 0, :, 2, 5] = 0
    weights = replace(weights, layer=layer, iter=recurrent)
    x = random_ragged([3, 2], 6, 1)
    x.data[1] = x.data[4] = 0
    state = random_state(spec, 2, 0)
    check_layer(prepare(spec, [weights]), spec, [weights], x, state, rtol=0, atol=2e-2)


def test_ragged_batches_without_words_are_fine() -> None:
    layer = prepare(SPECS["lstm"], random_weights(SPECS["lstm"], 0))
    empty = Ragged.from_lengths(np.zeros((0, 24), np.float32), np.array([0, 0]))
    y, (h, c) = layer.run(empty)
    assert words(y).shape == (0, 48) and not h.any() and not c.any()
