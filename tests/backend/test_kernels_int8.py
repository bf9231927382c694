"""int8-dynamic and int8-weights: what they hold, and the same bits in any batch.

int8-weights: columns in 255 steps of their largest number / 127. Rows keep 24 bits of their largest
number, so a layer on codes is compared with the float64 reference on the numbers that the codes
hold, under float32's own tolerance.
"""

from __future__ import annotations

import itertools
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

from onernn import Activation, Cell, Ragged, RnnSpec, RnnWeights, Session, UnsupportedError
from onernn.backend import open_backend, reference_stack
from onernn.ir.graph import Graph, Value
from onernn.ir.rnn import Recurrent, with_precision
from onernn.ir.weights import LayerPrecision

CODES = "int8-weights"
DTYPES = ("int8-dynamic", CODES)
SPECS = {
    "gru": RnnSpec(Cell.GRU, 21, 51),
    "augru": RnnSpec(Cell.AUGRU, 5, 19, update="replace"),
    "lbr": RnnSpec(Cell.LBR_GRU, 70, 32, layers=2),
    "lbr augru": RnnSpec(Cell.LBR_AUGRU, 5, 19),
    "lstm": RnnSpec(Cell.LSTM, 24, 144),
    "lstm with all": RnnSpec(
        Cell.LSTM, 7, 18, projection_size=67, peephole=True, cell_clip=(-0.2, 0.3), gate_clip=0.8
    ),
    "lstm with one gate for two": RnnSpec(Cell.LSTM, 8, 16, input_forget=True),
    "rnn": RnnSpec(Cell.RNN_TANH, 18, 65),
    "relu": RnnSpec(Cell.RNN_RELU, 18, 64),
}
LENGTHS = [40, 0, 3, 1, 17, 2, 9, 9]

pytestmark = pytest.mark.usefixtures("built")


def prepare(dtype: str, spec: RnnSpec, weights: Any, threads: int = 1, **more: Any) -> Any:
    backend = open_backend("kernels", threads=threads)
    return backend.prepare(spec, weights, dtype=dtype, strict=True, **more)


def rounded(weights: RnnWeights) -> RnnWeights:
    """Matrices in steps of each column's largest number / 127, in float64; rows are axis 2.

    A code is the nearest to a quotient of float32, which tells a tie from what is nearly one.
    """
    made: dict[str, Any] = {}
    for name in ("layer", "iter", "projection"):
        array = getattr(weights, name)
        if array is None:
            continue
        narrow = np.moveaxis(array, 2, -1)
        columns = np.float64(narrow)
        for place in np.ndindex(columns.shape[:-1]):
            step = max(abs(narrow[place])) / np.float32(127)
            if step:
                columns[place] = np.rint(narrow[place] / step) * np.float64(step)
        made[name] = np.moveaxis(columns, -1, 2)
    rest = {"bias": weights.bias, "peephole": weights.peephole}
    return RnnWeights(**made, **{k: None if a is None else np.float64(a) for k, a in rest.items()})


@pytest.mark.parametrize("name", SPECS)
def test_only_weights_are_rounded_on_every_instruction_set(isa: str, name: str) -> None:
    """All else is right to float32's tolerance."""
    for direction in DIRECTIONS:
        spec = replace(SPECS[name], direction=direction)
        weights = random_weights(spec, 3)
        layer = prepare(CODES, spec, weights)
        assert layer.backend == "kernels" and layer.dtype == CODES
        x, state = random_ragged(LENGTHS, spec.input_size, 1), random_state(spec, len(LENGTHS), 2)
        given = (x, state, attention_for(spec, x, 5))
        y, final = layer.run(*given)
        codes = list(map(rounded, weights))
        want, ends = reference_stack(spec, codes, "f64").run(*given)
        for got, exact in zip((words(y), *final), (words(want), *ends), strict=True):
            assert_close(got, exact)
    exact, _ = reference_stack(spec, weights, "f64").run(*given)
    assert np.abs(words(y) - words(exact)).max() > 1e-4  # a difference would show


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
    y, _ = prepare(CODES, spec, [weights]).run(x)
    matrix = rounded(weights).layer[0, 0, :, 0]
    sizes = np.abs(x[0]).max(axis=1, keepdims=True) * np.abs(matrix).sum(axis=0)
    want = np.float64(x[0]) @ matrix
    bound = sizes * (0.5 / (127 * 2**16) + 2.0**-24) + 4 * 2.0**-24 * np.abs(want) + 1e-36
    assert (np.abs(y[0] - want) <= bound).all()
    assert not y[0, 3].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gru", "lbr", "lstm with all"])
def test_a_sentence_has_the_same_bits_in_any_batch_order_layout_and_on_two_threads(
    dtype: str, name: str
) -> None:
    """Whatever the sizes of its neighbours' numbers; 1,000 compositions of batches."""
    spec = replace(SPECS[name], direction="bidirectional_concat")
    weights = random_weights(spec, 0)
    x = random_ragged(LENGTHS, spec.input_size, 1)
    x.data[:40] *= 1000
    state, sentences = random_state(spec, len(LENGTHS), 2), x.to_list()
    layers = [prepare(dtype, spec, weights, threads) for threads in (1, 2)]
    y, final = layers[0].run(x, state)
    alone = y.to_list()
    rng = np.random.default_rng(0)
    for turn, layer in itertools.product(range(84), layers):  # of 3 cells in 2 types: 1,008
        chosen = rng.choice(len(LENGTHS), rng.integers(1, 9), replace=True)
        own = tuple(np.ascontiguousarray(s[:, :, chosen]) for s in state)
        batch: Any = Ragged.from_list([sentences[n] for n in chosen])
        if turn % 2:  # padded: behind a sentence stands anything
            longest = max(LENGTHS[n] for n in chosen)
            batch = [sentences[n] for n in chosen if LENGTHS[n] == longest]
            own = tuple(s[:, :, [LENGTHS[n] == longest for n in chosen]] for s in own)
            chosen = [n for n in chosen if LENGTHS[n] == longest]
            batch = np.stack(batch, axis=1)
        got, ends = layer.run(batch, tuple(map(np.ascontiguousarray, own)))
        for n, words_of_n in zip(chosen, sentences_of(got), strict=True):
            np.testing.assert_array_equal(words_of_n, alone[n])
        for end, all_ends in zip(ends, final, strict=True):
            np.testing.assert_array_equal(end, all_ends[:, :, chosen])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_in_its_sentence_and_infinity_is_refused(isa: str, dtype: str) -> None:
    spec = SPECS["lbr"]
    layer = prepare(dtype, spec, random_weights(spec, 0))
    x, state = random_ragged([5, 4, 6], spec.input_size, 1), random_state(spec, 3, 2)
    want = layer.run(x, state)[0].to_list()
    broken = x.with_data(x.data.copy())
    broken.data[7, 3] = np.nan  # word 2 of the second sentence
    y, (h,) = layer.run(broken, state)
    first, second, third = y.to_list()
    np.testing.assert_array_equal(first, want[0])
    np.testing.assert_array_equal(second[:2], want[1][:2])
    assert np.isnan(second[2:]).all() and np.isnan(h[:, :, 1]).all()
    np.testing.assert_array_equal(third, want[2])
    broken.data[7, 3] = -np.inf
    with pytest.raises(UnsupportedError, match=f"x: {dtype} holds finite numbers, got inf"):
        layer.run(broken, state)


def test_columns_of_zeros_tiny_and_huge_weights_are_right() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 66, 16)
    (weights,) = random_weights(spec, 0)
    layer, recurrent = weights.layer.copy(), weights.iter.copy()
    layer[..., 0, :4] = 0
    layer[..., 1, :4] *= np.float32(1e-35)
    layer[..., 2, :4] *= np.float32(1e30)
    recurrent[..., 5] = 0
    weights = replace(weights, layer=layer, iter=recurrent)
    state, codes = random_state(spec, 2, 0), rounded(weights)
    check_layer(prepare(CODES, spec, [weights]), spec, [codes], random_ragged([3, 2], 66, 1), state)


def test_more_rows_than_sums_of_32_bits_hold_are_summed_in_groups(isa: str) -> None:
    """The largest codes and digits, all of one sign, in two groups of 65536 rows and some more."""
    K = 2 * 65536 + 5
    spec = RnnSpec(Cell.RNN_TANH, K, 3, activations=(Activation("identity"),))
    layer = np.ones((1, 1, K, 1, 3), np.float32)
    layer[0, 0, :, 0, 1] = -1
    layer[0, 0, ::2, 0, 2] = -1
    weights = RnnWeights(layer, np.zeros((1, 1, 3, 1, 3), np.float32))
    y, _ = prepare("int8-weights", spec, [weights]).run(np.ones((1, 1, K), np.float32))
    np.testing.assert_allclose(y[0, 0], [K, -K, -1], rtol=1e-6)


def test_dynamic_is_u8_without_scales_bit_by_bit() -> None:
    spec = SPECS["lstm with all"]
    weights, x = random_weights(spec, 0), random_ragged(LENGTHS, 7, 1)
    for got, want in zip(
        words(prepare("int8-dynamic", spec, weights).run(x)[0]),
        words(prepare("u8", spec, weights).run(x)[0]),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_cannot_be_is_refused_by_name(dtype: str) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 0)
    wide = [RnnWeights(*(np.float64(a) for a in (w.layer, w.iter, w.bias))) for w in weights]
    with pytest.raises(UnsupportedError, match=f"{dtype} computes from float32 weights"):
        prepare(dtype, spec, wide)
    hiding = replace(spec, activations=("sigmoid", Activation("thresholdedrelu", 1.0)))
    with pytest.raises(UnsupportedError, match=f"{dtype}: thresholdedrelu hides"):
        prepare(dtype, hiding, weights)
    with pytest.raises(UnsupportedError, match=f"belongs to dtype='u8', not to '{dtype}'"):
        prepare(dtype, spec, weights, data_scale=2.0)
    with pytest.raises(UnsupportedError, match=f"oneDNN has no {dtype}; use backend='auto' or"):
        open_backend("onednn").prepare(spec, weights, dtype=dtype)
    with pytest.raises(UnsupportedError, match=f"train in f32 and bf16, not in {dtype}"):
        prepare(dtype, spec, weights).run_training(random_ragged([3, 2], 21, 1))
    if dtype == CODES:
        weights[0].iter.flags.writeable = True
        weights[0].iter[0, 0, 1, 1, 1] = np.nan
        with pytest.raises(UnsupportedError, match=f"{dtype}: a weight is not finite"):
            prepare(dtype, spec, weights)


def model_of(spec: RnnSpec, weights: list[RnnWeights]) -> Graph:
    rnn = Recurrent(spec, weights[0], "x", "y")
    x = Value("x", "float32", (None, None, spec.input_size))
    return Graph("model", (x,), (Value("y"),), (rnn.node(),), {})


@pytest.mark.parametrize("dtype", DTYPES)
def test_auto_runs_it_on_kernels(dtype: str) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 0)
    x = np.random.default_rng(1).uniform(-1, 1, (6, 2, 21)).astype(np.float32)
    want, _ = prepare(dtype, spec, weights).run(x)
    session = Session(model_of(spec, weights), dtype)
    assert f"{dtype}, kernels " in session.explain()
    np.testing.assert_array_equal(session.run({"x": x})["y"], want)
    with pytest.raises(UnsupportedError, match=f"oneDNN has no {dtype}"):
        Session(model_of(spec, weights), dtype, backend="onednn")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_may_have_it_as_a_precision_of_its_own(dtype: str) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 0)
    x = np.random.default_rng(1).uniform(-1, 1, (6, 2, 21)).astype(np.float32)
    want, _ = prepare(dtype, spec, weights).run(x)
    session = Session(with_precision(model_of(spec, weights), {"y": LayerPrecision(dtype)}))
    assert f"{dtype}, kernels " in session.explain()
    np.testing.assert_array_equal(session.run({"x": x})["y"], want)
