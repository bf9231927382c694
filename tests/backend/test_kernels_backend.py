"""Our kernels as a backend: right for every cell and dtype, with the same bits in any batch.

Narrow dtypes are compared with the float64 reference on the numbers that they hold: f16 and bf16
store matrices so; int8-weights has columns in 255 steps of their largest number / 127, and rows
keep 24 bits of their largest number. In u8 and int8-dynamic every row of x and h has such steps,
too: DESIGN's tolerance of 2e-2.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import (
    assert_all_close,
    assert_close,
    assert_same,
    check_layer,
    check_step,
    grid,
    sentences_of,
)
from support.interpreters import printed
from support.layers import (
    DIRECTIONS,
    attention_for,
    prepare_on,
    random_ragged,
    random_state,
    random_weights,
    words,
)
from support.oracle import run_oracle

from onernn import Activation, Cell, Ragged, RnnSpec, RnnWeights, Session, UnsupportedError, load
from onernn.backend import reference_stack
from onernn.backend.compiled import library
from onernn.ir.graph import Graph, Value
from onernn.ir.rnn import Recurrent, with_precision
from onernn.ir.weights import LayerPrecision
from onernn.kernels import build

# Panels that are not full, one, two and four side by side.
SPECS = {
    "rnn": RnnSpec(Cell.RNN_TANH, 18, 65, layers=2),
    "relu": RnnSpec(Cell.RNN_RELU, 5, 64),
    "sigmoid": RnnSpec(Cell.RNN_SIGMOID, 1, 16),
    "gru": RnnSpec(Cell.GRU, 21, 51),
    "gru wide": RnnSpec(Cell.GRU, 16, 64, layers=3),
    "gru replaces": RnnSpec(Cell.GRU, 5, 33, update="replace", gate_clip=0.5),
    "lbr": RnnSpec(Cell.LBR_GRU, 70, 32, layers=2),
    "augru": RnnSpec(Cell.AUGRU, 6, 19),
    "lbr augru": RnnSpec(Cell.LBR_AUGRU, 5, 19, layers=2, update="replace"),
    "lstm": RnnSpec(Cell.LSTM, 24, 144),
    "lstm narrow": RnnSpec(Cell.LSTM, 7, 19, layers=2),
    "lstm with all": RnnSpec(
        Cell.LSTM, 7, 18, layers=2, projection_size=7, peephole=True, cell_clip=(-0.2, 0.3),
        cell_clip_nan=True, gate_clip=0.8,
    ),
    "lstm coupled": RnnSpec(
        Cell.LSTM, 4, 5, input_forget=True,
        activations=(Activation("hardsigmoid", 0.2, 0.5), Activation("elu"), Activation("relu")),
    ),
    "lstm apart": RnnSpec(Cell.LSTM, 7, 18, layers=3, projection_size=7, stacking="onednn"),
    "lstm open": RnnSpec(
        Cell.LSTM, 4, 20, activations=("softsign", "softplus", Activation("scaledtanh", 0.9, 1.1)),
        gate_clip=1.0,
    ),
}  # fmt: skip
LENGTHS = [40, 0, 3, 1, 17, 2, 3, 9, 9, 1, 0]

CODES = "int8-weights"
DTYPES = ("int8-dynamic", CODES)
FLOATS = ("f32", "f16", "bf16")
BYTES = ("u8", *DTYPES)
IN_BYTES = ("gru", "lbr", "lbr augru", "lstm", "lstm with all", "rnn", "relu")
"""Cells whose outputs lie in [-1, 1], and a relu."""

pytestmark = pytest.mark.usefixtures("built")


def prepared(spec: RnnSpec, weights: Any, threads: int = 1, dtype: str = "f32", **more: Any) -> Any:
    layer = prepare_on("kernels", spec, weights, threads=threads, dtype=dtype, strict=True, **more)
    assert layer.backend == "kernels"
    return layer


def in_codes(array: np.ndarray) -> np.ndarray:
    """Matrices (L, D, K, ...) in steps of each column's largest number / 127.

    A code is the nearest to a quotient of float32, which tells a tie from what is nearly one.
    """
    narrow = np.moveaxis(array, 2, -1)
    columns = np.float64(narrow)
    for place in np.ndindex(columns.shape[:-1]):
        step = max(abs(narrow[place])) / np.float32(127)
        if step:
            columns[place] = np.rint(narrow[place] / step) * np.float64(step)
    return np.moveaxis(columns, -1, 2)


def rounded(weights: list[RnnWeights], dtype: str) -> list[RnnWeights]:
    """Matrices as they are stored, in float64."""

    def matrix(array: Any) -> Any:
        if dtype == "f16":
            return array.astype(np.float16).astype(np.float64)
        if dtype == "bf16":
            # To 8 bits behind the first one: ties to even, as NumPy's own rounding has it.
            mantissa, exponent = np.frexp(array.astype(np.float64))
            return np.ldexp(np.round(mantissa * 256) / 256, exponent)
        return in_codes(array) if dtype == CODES else array.astype(np.float64)

    def array(name: str, given: Any) -> Any:
        return given.astype(np.float64) if name in ("bias", "peephole") else matrix(given)

    return [
        RnnWeights(**{"layer": None} | {name: array(name, a) for name, a in w.arrays.items()})
        for w in weights
    ]


CASES = [
    *((name, dtype) for name in SPECS for dtype in FLOATS),
    *((name, dtype) for name in IN_BYTES for dtype in ("u8", CODES)),
    *((name, "f64") for name in ("gru", "lstm with all", "rnn", "lbr augru")),
]


@pytest.mark.parametrize("name, dtype", CASES)
def test_layers_are_right_on_every_instruction_set(isa: str, name: str, dtype: str) -> None:
    """Two of four directions, on the next set the others."""
    rounds = dtype == "bf16" and isa.endswith(
        ("_bf16", "_amx")
    )  # inputs and states, too: design/0020
    turn = CASES.index((name, dtype)) + [*build.isas()].index(isa)
    for direction in DIRECTIONS[turn % 2 :: 2]:
        spec = replace(SPECS[name], direction=direction)
        weights = random_weights(spec, 3)
        rtol, atol = 2e-2 if rounds else 1e-5, 1e-6
        if dtype == "u8":  # a relu's outputs are no longer in [-1, 1]
            atol = 2e-2 * (2 if direction == "bidirectional_sum" else 1)
            rtol = 2e-2 if name == "relu" else 0
        exact = reference_stack(spec, rounded(weights, dtype), "f64")
        wide = dtype == "f64"  # a model of float64 stays one
        if wide:
            weights, rtol, atol = rounded(weights, dtype), 1e-12, 1e-13
        layer = prepared(spec, weights, dtype="f32" if wide else dtype)
        assert layer.dtype == dtype
        for lengths in (LENGTHS, [2], [], [5, 5, 5, 5]):  # the memory grows, and stays
            x = random_ragged(lengths, spec.input_size, 1)
            x = x.with_data(x.data.astype(np.float64)) if wide else x
            state = random_state(spec, len(lengths), 2)
            given = (x, state, attention_for(spec, x, 5))
            made = layer.run(*given)
            assert words(made[0]).dtype == words(x).dtype
            assert_all_close(made, exact.run(*given), rtol, atol)
            if dtype == CODES and lengths == LENGTHS:  # a difference would show
                plain, _ = reference_stack(spec, weights, "f64").run(*given)
                assert np.abs(words(made[0]) - words(plain)).max() > 1e-4


@pytest.mark.parametrize("projected", [(True, True), (True, False), (False, True)])
def test_any_layer_may_have_an_input_that_is_projected_already(projected: tuple[bool]) -> None:
    spec = RnnSpec(Cell.RNN_TANH, 18, 18, layers=2)
    weights = [
        replace(one, layer=None) if is_projected else one
        for one, is_projected in zip(random_weights(spec, 1), projected, strict=True)
    ]
    x = random_ragged([3, 0, 6], spec.input_size, 2)
    for dtype, rtol in (("f32", 1e-5), ("bf16", 2e-2)):
        exact = reference_stack(spec, rounded(weights, dtype), "f64")
        assert_all_close(prepared(spec, weights, dtype=dtype).run(x), exact.run(x), rtol)


@pytest.mark.parametrize("dtype", [*FLOATS, *BYTES])
@pytest.mark.parametrize("name", ["gru wide", "lbr augru", "lstm with all", "rnn"])
def test_a_sentence_has_the_same_bits_in_any_batch_order_layout_and_on_two_threads(
    isa: str, name: str, dtype: str
) -> None:
    """Whatever the sizes of its neighbours' numbers, and whatever stands behind it."""
    spec = replace(SPECS[name], direction="bidirectional_concat")
    weights = random_weights(spec, 3)
    x, state = random_ragged(LENGTHS, spec.input_size, 1), random_state(spec, len(LENGTHS), 2)
    x.data[:40] *= 1000
    attention = attention_for(spec, x, 5)
    sentences, scales = x.to_list(), None if attention is None else attention.to_list()
    layers = [prepared(spec, weights, threads, dtype) for threads in (1, 2)]
    y, final = layers[0].run(x, state, attention)
    alone, rng = y.to_list(), np.random.default_rng(0)
    assert_same(layers[1].run(x, state, attention), (y, final))
    for turn in range(24):
        chosen = [turn] if turn < len(LENGTHS) else rng.choice(len(LENGTHS), 8).tolist()
        if turn % 2:  # a dense batch
            chosen = [n for n in chosen if LENGTHS[n] == LENGTHS[chosen[0]]]

        def batch(of: Any, chosen: list[int] = chosen, dense: int = turn % 2) -> Any:
            some = [of[n] for n in chosen]
            return np.stack(some, axis=1) if dense else Ragged.from_list(some)

        own = tuple(np.ascontiguousarray(s[:, :, chosen]) for s in state)
        scale = None if scales is None else batch(scales)
        got, ends = layers[turn // 2 % 2].run(batch(sentences), own, scale)
        for n, words_of_n in zip(chosen, sentences_of(got), strict=True):
            assert_same(words_of_n, alone[n])
        for end, all_ends in zip(ends, final, strict=True):
            assert_same(end, all_ends[:, :, chosen])


@pytest.mark.parametrize("dtype", ["bf16", "u8"])
@pytest.mark.parametrize("inputs, units", [(1, 17), (33, 15), (16, 64), (64, 100)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    isa: str, inputs: int, units: int, dtype: str
) -> None:
    """Tiles hold 16 rows, and 16 units of 32 or 64 inputs."""
    for cell in (Cell.GRU, Cell.LSTM):
        spec = RnnSpec(cell, inputs, units)
        layer = prepared(spec, random_weights(spec, 3), dtype=dtype)
        x = uniform(3, 40, inputs, seed=1)
        all_rows = layer.run(x)[0]
        for count in (1, 2, 15, 16, 17, 31, 32, 33):
            first = 40 - count
            assert_same(layer.run(x[:, first:].copy())[0], all_rows[:, first:])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", ["gru", "lbr", "lstm", "rnn"])
def test_a_nan_stays_in_its_sentence_and_infinity_is_refused(
    isa: str, name: str, dtype: str
) -> None:
    spec = replace(SPECS[name], layers=2)
    layer = prepared(spec, random_weights(spec, 0), dtype=dtype)
    x, state = random_ragged([5, 4, 6], spec.input_size, 1), random_state(spec, 3, 2)
    want = layer.run(x, state)[0].to_list()
    broken = x.with_data(x.data.copy())
    broken.data[7, 3] = np.nan  # word 2 of the second sentence
    y, (h, *_) = layer.run(broken, state)
    first, second, third = y.to_list()
    assert_same(first, want[0])
    assert_same(second[:2], want[1][:2])
    assert np.isnan(second[2:]).all() and np.isnan(h[:, :, 1]).all()
    assert_same(third, want[2])
    for bad in (np.inf, -np.inf):
        broken.data[7, 3] = bad
        refused = f"x: .* {dtype}, got inf"
        with pytest.raises(UnsupportedError, match=refused):
            layer.run(broken, state)
        dense = np.ascontiguousarray(broken.data[5:9, None])
        for _ in range(2):
            with pytest.raises(UnsupportedError, match=refused):
                layer.run(dense)
        h = state[0].copy()
        h[1, 0, 2, 15] = bad
        with pytest.raises(UnsupportedError, match=f"state h: .* {dtype}, got inf"):
            layer.run(x, (h, *state[1:]))
    assert_same(words(layer.run(x, state)[0]), np.concatenate(want))


def along(array: np.ndarray, axis: int | None) -> np.ndarray:
    """To the nearest of the 255 numbers that the largest one along an axis leaves."""
    return grid(array, np.abs(array).max(axis=axis, keepdims=True))


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
    recurrent = along(weights.iter, axis)
    if cell is Cell.GRU and not per_channel:  # the candidate is a matrix of its own
        gates = [slice(0, 2), slice(2, 3)]
        recurrent = np.concatenate([along(weights.iter[:, :, :, g], None) for g in gates], axis=3)
    held = RnnWeights(along(weights.layer, axis), recurrent, np.float64(weights.bias))
    atol = 2e-5
    if cell is not Cell.LSTM:  # h that is kept is not rounded, only what goes into products
        atol += np.abs(h - along(h, 3)).max()
    if cell is Cell.GRU:  # r * h is rounded to steps of its largest number / 127, at most h's
        atol += 0.5 / 127 * np.abs(h).max() * np.abs(weights.iter[0, 0, :, 2]).sum(axis=0).max()
    run = prepared(spec, [weights], dtype="u8", per_channel=per_channel).run(x, (h, *c))
    check_step(run, spec, held, along(x, 2), (along(h, 3), *c), atol, 2e-5)


def test_the_float_steps_are_the_only_difference_between_instruction_sets(isa: str) -> None:
    """Sums of bytes are exact: one step differs by a few units of float32's last place."""
    spec = RnnSpec(Cell.LSTM, 300, 64)
    weights, x = random_weights(spec, 0), random_ragged([1] * 9, 300, 1)
    got, _ = prepared(spec, weights, dtype="u8").run(x)
    (given,) = weights
    held = RnnWeights(along(given.layer, 2), along(given.iter, 2), np.float64(given.bias))
    zeros = tuple(np.zeros((1, 1, 9, 64)) for _ in range(2))
    want, _ = run_oracle(spec, [held], [along(w, 1) for w in x.to_list()], zeros)
    assert_close(words(got), np.concatenate(want), 0, 1e-6)


def test_a_given_data_scale_is_that_of_x_in_the_first_layer() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 8, 16, layers=2)
    weights, x, state = (
        random_weights(spec, 0),
        random_ragged([6, 2], 8, 1),
        random_state(spec, 2, 0),
    )
    layer = prepared(spec, weights, dtype="u8", data_scale=127 / 2)
    check_layer(layer, spec, weights, x, state, rtol=0, atol=2e-2)
    # Beyond the range that the scale leaves, data saturates: the same as clipped input.
    y, _ = layer.run(x.with_data(x.data * 100))
    clipped, _ = layer.run(x.with_data(np.clip(x.data * 100, -128 / 63.5, 127 / 63.5)))
    assert_same(y, clipped)
    # A coarse scale of x does not make states coarse.
    coarse = prepared(spec, weights, dtype="u8", data_scale=0.5)
    still = x.with_data(np.zeros_like(x.data))
    assert_same(coarse.run(still)[0], layer.run(still)[0])


def test_an_input_that_is_projected_already_is_not_rounded() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 96, 32)
    weights = random_weights(spec, 0, projected=True)
    x, state = random_ragged(LENGTHS, 96, 1), random_state(spec, len(LENGTHS), 2)
    check_layer(prepared(spec, weights, dtype="u8"), spec, weights, x, state, rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", BYTES)
def test_rows_and_columns_of_zeros_tiny_and_huge_weights_are_right(dtype: str) -> None:
    spec = RnnSpec(Cell.LBR_GRU, 66, 16)
    (weights,) = random_weights(spec, 0)
    layer, recurrent = weights.layer.copy(), weights.iter.copy()
    layer[..., 0, :4] = 0
    layer[..., 1, :4] *= np.float32(1e-35)
    layer[..., 2, :4] *= np.float32(1e30)
    recurrent[..., 5] = 0
    weights = replace(weights, layer=layer, iter=recurrent)
    x, state = random_ragged([3, 2], 66, 1), random_state(spec, 2, 0)
    x.data[1] = x.data[4] = 0
    held = rounded([weights], dtype) if dtype == CODES else [weights]
    tolerance = {} if dtype == CODES else {"rtol": 0, "atol": 2e-2}
    check_layer(prepared(spec, [weights], dtype=dtype), spec, held, x, state, **tolerance)


@pytest.mark.parametrize("largest", [1e-20, 1e-3, 1e4, 1e30])
def test_rows_keep_24_bits_of_their_largest_number(isa: str, largest: float) -> None:
    """y = W x is off by at most half a step of x, largest / 127 / 2^16, times the column's sum of
    magnitudes, and four roundings of float32."""
    spec = RnnSpec(Cell.RNN_TANH, 131, 20, activations=(Activation("identity"),))
    rng = np.random.default_rng(0)
    (given,) = random_weights(spec, 0)
    weights = replace(given, iter=np.zeros_like(given.iter), bias=np.zeros_like(given.bias))
    x = (rng.uniform(-1, 1, (1, 9, 131)) * largest).astype(np.float32)
    x[0, 3] = 0
    x[0, 4] *= np.float32(0.001)
    y, _ = prepared(spec, [weights], dtype=CODES).run(x)
    matrix = in_codes(weights.layer)[0, 0, :, 0]
    sizes = np.abs(x[0]).max(axis=1, keepdims=True) * np.abs(matrix).sum(axis=0)
    want = np.float64(x[0]) @ matrix
    bound = sizes * (0.5 / (127 * 2**16) + 2.0**-24) + 4 * 2.0**-24 * np.abs(want) + 1e-36
    assert (np.abs(y[0] - want) <= bound).all()
    assert not y[0, 3].any()


def test_more_rows_than_sums_of_32_bits_hold_are_summed_in_groups(isa: str) -> None:
    """The largest codes and digits, all of one sign, in two groups of 65536 rows and some more."""
    K = 2 * 65536 + 5
    spec = RnnSpec(Cell.RNN_TANH, K, 3, activations=(Activation("identity"),))
    layer = np.ones((1, 1, K, 1, 3), np.float32)
    layer[0, 0, :, 0, 1] = -1
    layer[0, 0, ::2, 0, 2] = -1
    weights = RnnWeights(layer, np.zeros((1, 1, 3, 1, 3), np.float32))
    y, _ = prepared(spec, [weights], dtype=CODES).run(np.ones((1, 1, K), np.float32))
    np.testing.assert_allclose(y[0, 0], [K, -K, -1], rtol=1e-6)


def test_dynamic_is_u8_without_scales_bit_by_bit() -> None:
    spec = SPECS["lstm with all"]
    weights, x = random_weights(spec, 0), random_ragged(LENGTHS, 7, 1)
    assert_same(
        words(prepared(spec, weights, dtype="int8-dynamic").run(x)[0]),
        words(prepared(spec, weights, dtype="u8").run(x)[0]),
    )


@pytest.mark.parametrize("dtype", BYTES)
def test_what_bytes_get_wrong_is_refused_by_name(dtype: str) -> None:
    spec, long = SPECS["gru"], RnnSpec(Cell.RNN_TANH, 70000, 1)
    weights = random_weights(spec, 0)
    hiding = replace(spec, activations=("sigmoid", Activation("thresholdedrelu", 1.0)))
    refused: list[tuple[str, RnnSpec, Any, dict[str, Any]]] = [
        (f"{dtype}: .*float64", spec, [w.map(np.float64) for w in weights], {}),
        (f"{dtype}: .*thresholdedrelu", hiding, weights, {}),
        *([("70000", long, 0, {})] if dtype != CODES else []),
        *([(f"data_scale: .*'{dtype}'", spec, weights, {"data_scale": 2.0})] * (dtype != "u8")),
    ]
    for reason, of, given, more in refused:
        with pytest.raises(UnsupportedError, match=reason):
            prepared(of, given, dtype=dtype, **more)
    with pytest.raises(UnsupportedError, match=f"dtype {dtype}: expected f32 or bf16"):
        prepared(spec, weights, dtype=dtype).run_training(random_ragged([3, 2], 21, 1))
    if dtype == "u8":
        with pytest.raises(ValueError, match="data_scale: .*-1"):
            prepared(spec, weights, dtype=dtype, data_scale=-1.0)
        return
    with pytest.raises(UnsupportedError, match=f"oneDNN has no {dtype}"):
        prepare_on("onednn", spec, weights, dtype=dtype)
    if dtype == CODES:
        weights[0].iter.flags.writeable = True
        weights[0].iter[0, 0, 1, 1, 1] = np.nan
        with pytest.raises(UnsupportedError, match=f"{dtype}: .*finite"):
            prepared(spec, weights, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_session_or_a_layer_may_have_it_as_its_precision(dtype: str) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 0)
    x = uniform(6, 2, 21, seed=1)
    want, _ = prepared(spec, weights, dtype=dtype).run(x)
    node = Recurrent(spec, weights[0], "x", "y").node()
    inputs = (Value("x", "float32", (None, None, spec.input_size)),)
    model = Graph("model", inputs, (Value("y"),), (node,), {})
    with_own = with_precision(model, {"y": LayerPrecision(dtype)})
    for session in (Session(model, dtype), Session(with_own)):
        assert f"{dtype}, kernels " in session.explain()
        assert_same(session.run({"x": x})["y"], want)
    with pytest.raises(UnsupportedError, match=f"oneDNN has no {dtype}"):
        Session(model, dtype, backend="onednn")


def test_two_python_threads_share_a_layer() -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 3)
    batches = [random_ragged([length, 3], 21, length) for length in range(1, 65)]
    for threads in (1, 2):
        layer = prepared(spec, weights, threads)
        want = [layer.run(x) for x in batches]
        with ThreadPoolExecutor(4) as pool:
            assert_same(pool.map(layer.run, batches), want)


def test_layers_come_and_go() -> None:
    """The process's team ends with the last of them."""
    code = """
import os, numpy as np
from onernn import Cell, RnnSpec, RnnWeights
from onernn.backend import open_backend
spec = RnnSpec(Cell.GRU, 4, 16)
weights = RnnWeights(*(np.zeros(s, np.float32) for s in ((1, 1, 4, 3, 16), (1, 1, 16, 3, 16))))
backend = open_backend("kernels", threads=2)
for turn in range(200):
    layer = backend.prepare(spec, weights)
    layer.run(np.zeros((2, 2, 4), np.float32))
    if turn == 20: before = len(os.listdir("/proc/self/task"))
# One that has ended is listed for a moment; 179 would be if they stayed.
assert len(os.listdir("/proc/self/task")) < before + 20, os.listdir("/proc/self/task")
print("fine")
"""
    assert printed(code) == ["fine"]


def test_activations_have_their_default_numbers() -> None:
    """Without alpha and beta of their own, as the reference has them."""
    names = ["leakyrelu", "hardsigmoid", "elu"]
    spec = RnnSpec(Cell.LSTM, 4, 5, activations=tuple(map(Activation, names)))
    weights, x = random_weights(spec, 3), random_ragged([3, 2], 4, 1)
    assert_all_close(prepared(spec, weights).run(x), reference_stack(spec, weights, "f64").run(x))
    for name in ("affine", "thresholdedrelu"):
        open_ended = RnnSpec(Cell.RNN_TANH, 4, 5, activations=(Activation(name),))
        with pytest.raises(UnsupportedError, match="expected alpha and beta"):
            prepare_on("kernels", open_ended)


def test_what_kernels_do_not_run_is_refused_or_goes_to_the_reference() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 3, peephole=True)
    shifted: Any = {"dtype": "u8", "data_scale": 1.0, "data_shift": 0.5}
    large = [random_weights(spec, 0)[0].map(lambda array: array * 1e6)]
    for reason, weights, options in (
        ("data_shift: .*; drop strict=True", 0, shifted),
        ("dtype 'f8': expected one of f32, bf16", 0, {"dtype": "f8"}),
        ("f16: .* 65504, .*; use bf16", large, {"dtype": "f16"}),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            prepare_on("kernels", spec, weights, strict=True, **options)
    layer = prepare_on("kernels", spec, **shifted)
    assert layer.backend == "reference" and "data_shift" in layer.why
    assert prepare_on("kernels", spec, large, dtype="bf16").backend == "kernels"


def test_a_session_says_what_runs(isa: str, data: Path) -> None:
    model = load(data / "paddle" / "fc_gru_h0_rev0")
    node, threads = Session(model, threads=1, backend="kernels").explain().splitlines()
    assert node.endswith(f", f32, kernels {isa}") and threads == "threads: 1"
    said = Session(model, backend="kernels", dtype="bf16").explain()
    assert ("matrices widened to f32" in said) == (not isa.endswith(("_bf16", "_amx")))


def test_what_c_does_not_know_is_a_status() -> None:
    kernels = library.load_kernels()
    ffi, lib = kernels.ffi, kernels.lib
    made, parts = ffi.new("onernn_stack **"), ffi.new("onernn_part[1]")
    for fields in ({"cell": 4}, {"cell": -1}, {"stored": 9}, {"gate": {"kind": 12}}):
        spec = ffi.new("onernn_spec *", fields)
        assert lib.onernn_stack_new(spec, parts, ffi.NULL, 1, made) == lib.ONERNN_UNKNOWN
    lib.onernn_stack_free(ffi.NULL)


def test_nothing_of_it_is_imported_before_it_is_asked_for() -> None:
    script = "import onernn, sys; print({'cffi', 'onernn.backend.compiled'} & set(sys.modules))"
    assert printed(script) == ["set()"]
