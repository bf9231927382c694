"""bf16 and u8 against the float64 oracle, and the library's wrong numbers routed around.

Tolerances: DESIGN's, of outputs in [-1, 1]: bf16 keeps 8 bits (2e-2 of the largest), a u8 state has
steps of 1/127 (2e-2 absolute).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_same, check_layer
from support.layers import prepare_on, random_ragged, random_state, random_weights, words
from support.machine import needs_vnni

from onernn import Cell, Ragged, RnnSpec, UnsupportedError

U8 = [(Cell.LSTM, {}), (Cell.LSTM, {"projection_size": 8}), (Cell.GRU, {})]


def prepare(spec: RnnSpec, weights: Any, dtype: str, **more: Any) -> Any:
    return prepare_on("onednn", spec, weights, dtype=dtype, strict=True, **more)


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
    assert_same(y, clipped)
    with pytest.raises(ValueError, match="data_scale: .*-1"):
        prepare(spec, weights, "u8", data_scale=-1.0)


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
    layer = prepare_on("onednn", spec, dtype="u8")
    assert why in layer.why and layer.dtype == "f32"


@pytest.mark.usefixtures("built")
def test_lbr_gru_in_u8_runs_on_the_kernels_and_says_so() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 24, 32, direction="bidirectional_concat")
    weights, x = random_weights(spec, 0), random_ragged([5, 0, 3], 24, 1)
    with pytest.raises(UnsupportedError, match="oneDNN has no u8 GRU"):
        prepare(spec, weights, "u8")
    options: Any = {"dtype": "u8", "data_scale": 90.0}
    layers = [prepare_on(name, spec, weights, **options) for name in ("onednn", "kernels")]
    assert_same(*(words(layer.run(x)[0]) for layer in layers))
    assert layers[0].backend == "kernels" and layers[0].dtype == "u8"
    assert layers[0].why.endswith("the kernels run it") and layers[0].why in layers[0].explain()
    assert layers[1].why == ""


def test_equal_rectangles_run_dense_or_ragged_alike() -> None:
    spec = RnnSpec(Cell.GRU, 6, 8, direction="bidirectional_concat")
    layer = prepare(spec, random_weights(spec, 0), "f32")
    dense = uniform(5, 3, 6)
    ragged = Ragged.from_lengths(dense.swapaxes(0, 1).reshape(15, 6), [5, 5, 5])
    y, _ = layer.run(dense)
    z, _ = layer.run(ragged)
    assert_same(y.swapaxes(0, 1).reshape(15, -1), words(z))
