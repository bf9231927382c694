"""bf16 and u8 against the float64 oracle, and the library's wrong numbers routed around.

Tolerances: DESIGN's, of outputs in [-1, 1]: bf16 keeps 8 bits (2e-2 of the largest), a u8 state has
steps of 1/127 (2e-2 absolute).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.checking import check_layer
from support.layers import (
    random_ragged,
    random_state,
    random_weights,
    words,
)
from support.machine import needs_vnni

from onernn import Cell, Ragged, RnnSpec, UnsupportedError
from onernn.backend import open_backend
from onernn.backend.onednn.library import load_library

U8 = [(Cell.LSTM, {}), (Cell.LSTM, {"projection_size": 8}), (Cell.GRU, {})]


def prepare(spec: RnnSpec, weights: Any, dtype: str, **more: Any) -> Any:
    return open_backend("onednn").prepare(spec, weights, dtype=dtype, strict=True, **more)


def has(isa: str) -> bool:
    return isa in load_library().effective_isa


bf16 = pytest.mark.skipif(
    not any(has(isa) for isa in ("bf16", "fp16", "amx")), reason="this CPU has no bf16"
)


@needs_vnni
@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU])
def test_u8_inputs_of_any_range_are_scaled_batch_by_batch(cell: Cell) -> None:
    spec = RnnSpec(cell, 16, 16)
    weights = random_weights(spec, 0)
    layer = prepare(spec, weights, "u8")
    for largest in (0.5, 3.0, 40.0):
        x = random_ragged([5, 2], 16, 1)
        x = x.with_data(x.data * np.float32(largest / np.abs(x.data).max()))
        # A step of the input is largest/127, a sum of 16 products with weights below 1/4 moves by
        # about the square root of 16 steps of 1/4: largest/127.
        check_layer(
            layer, spec, weights, x, random_state(spec, 2, 0), rtol=0, atol=2e-2 + largest / 64
        )


@needs_vnni
@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU])
def test_a_given_data_scale_is_used_as_it_is(cell: Cell) -> None:
    spec = RnnSpec(cell, 8, 16)
    weights = random_weights(spec, 0)
    x = random_ragged([6, 2], 8, 1)
    layer = prepare(spec, weights, "u8", data_scale=127 / 2)
    check_layer(layer, spec, weights, x, random_state(spec, 2, 0), rtol=0, atol=4e-2)
    # Beyond the range that the scale leaves, data saturates: the same as clipped input.
    y, _ = layer.run(x.with_data(x.data * 100))
    clipped, _ = layer.run(x.with_data(np.clip(x.data * 100, -128 / 63.5, 127 / 63.5)))
    np.testing.assert_array_equal(words(y), words(clipped))
    with pytest.raises(ValueError, match="data_scale: expected a positive number"):
        prepare(spec, weights, "u8", data_scale=-1.0)


@needs_vnni
def test_one_scale_for_all_weights_is_coarser_but_right() -> None:
    spec = RnnSpec(Cell.LSTM, 16, 16)
    weights = random_weights(spec, 0)
    x = random_ragged([4, 4], 16, 1)
    layer = prepare(spec, weights, "u8", per_channel=False)
    check_layer(
        layer, spec, weights, x.with_data(x.data / 2), random_state(spec, 2, 0), rtol=0, atol=3e-2
    )


@pytest.mark.parametrize(
    "spec, why",
    [
        (RnnSpec(Cell.RNN_TANH, 4, 4), "no u8 plain RNN with tanh"),
        (RnnSpec(Cell.LSTM, 4, 4, peephole=True), "no u8 LSTM with peepholes"),
        (RnnSpec(Cell.AUGRU, 4, 4), "no u8 GRU with attention"),
    ],
)
def test_u8_cells_that_the_library_lacks_are_refused_by_name(spec: RnnSpec, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        prepare(spec, random_weights(spec, 0), "u8")
    layer = open_backend("onednn").prepare(spec, random_weights(spec, 0), dtype="u8")
    assert why in layer.why and layer.dtype == "f32"


@pytest.mark.usefixtures("built")
def test_lbr_gru_in_u8_runs_on_the_kernels_and_says_so() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 24, 32, direction="bidirectional_concat")
    weights, x = random_weights(spec, 0), random_ragged([5, 0, 3], 24, 1)
    with pytest.raises(UnsupportedError, match="oneDNN has no u8 GRU with the reset gate behind"):
        prepare(spec, weights, "u8")
    backends = [open_backend(name) for name in ("onednn", "kernels")]
    layers = [each.prepare(spec, weights, dtype="u8", data_scale=90.0) for each in backends]
    np.testing.assert_array_equal(*(words(layer.run(x)[0]) for layer in layers))
    assert layers[0].backend == "kernels" and layers[0].dtype == "u8"
    assert layers[0].why.endswith("the kernels run it") and layers[0].why in layers[0].explain()
    assert layers[1].why == ""


def test_unknown_data_types_are_refused() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 4)
    for dtype in ("s8", "f64", "int4"):
        with pytest.raises(UnsupportedError, match="expected one of f32, bf16, f16, u8"):
            prepare(spec, random_weights(spec, 0), dtype)


def test_equal_rectangles_run_dense_or_ragged_alike() -> None:
    spec = RnnSpec(Cell.GRU, 6, 8, direction="bidirectional_concat")
    layer = prepare(spec, random_weights(spec, 0), "f32")
    dense = np.random.default_rng(0).uniform(-1, 1, (5, 3, 6)).astype(np.float32)
    ragged = Ragged.from_lengths(dense.swapaxes(0, 1).reshape(15, 6), [5, 5, 5])
    y, _ = layer.run(dense)
    z, _ = layer.run(ragged)
    np.testing.assert_array_equal(y.swapaxes(0, 1).reshape(15, -1), words(z))
