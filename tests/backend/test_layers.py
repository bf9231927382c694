"""All backends against the float64 oracle: cells, directions, layers, lengths, states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrays import uniform
from support.checking import assert_same, check_layer
from support.layers import (
    CELLS,
    DIRECTIONS,
    LENGTHS,
    prepare_on,
    random_ragged,
    random_state,
    random_weights,
    words,
)
from support.machine import needs_vnni

from onernn import Cell, Ragged, RnnSpec, RnnWeights, UnsupportedError
from onernn.backend import open_backend


@pytest.fixture(scope="module", params=["reference", "onednn", "kernels"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "kernels":
        request.getfixturevalue("built")
    return str(request.param)


TOLERANCES = {"f32": (1e-5, 1e-6), "bf16": (2e-2, 1e-2), "f16": (4e-3, 1e-3), "u8": (0.0, 2e-2)}
SIZES = st.sampled_from([1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 31])
BATCHES = st.tuples(SIZES, SIZES) | LENGTHS | st.sampled_from([[], [0], [0, 0], (0, 2), (3, 0)])


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "name, dtype",
    [
        *(("onednn", dtype) for dtype in TOLERANCES),
        *((name, dtype) for name in ("kernels", "auto") for dtype in ("f32", "bf16")),
        ("reference", "f32"),
    ],
)
@given(
    cell=st.sampled_from(CELLS),
    direction=st.sampled_from(DIRECTIONS),
    layers=st.integers(1, 2),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    form=st.sampled_from(["framework", "onednn", "projected"]),
    batch=BATCHES,
    threads=st.integers(1, 2),
    has_state=st.booleans(),
    seed=st.integers(0, 999),
)
def test_layers_are_right(
    name: str,
    dtype: str,
    cell: Any,
    direction: Any,
    layers: int,
    sizes: tuple[int, int, int],
    form: str,
    batch: Any,
    threads: int,
    has_state: bool,
    seed: int,
) -> None:
    """Every cell, direction and stacking, ragged and dense, against the guide's equations."""
    (inputs, hidden, narrow), more = sizes, dict(cell[1])
    if "projection_size" in more:
        more["projection_size"] = min(narrow, hidden)
    if form == "onednn":
        inputs, more["stacking"] = more.get("projection_size", hidden), "onednn"
    if form == "projected":
        inputs, layers = hidden * len(cell[0].gates), 1
    spec = RnnSpec(cell[0], inputs, hidden, layers=layers, direction=direction, **more)
    weights = random_weights(spec, seed, projected=form == "projected")
    rng = np.random.default_rng(seed)
    shape = batch if isinstance(batch, tuple) else (sum(batch),)
    x, scale = (
        rng.uniform(low, 1, (*shape, n)).astype(np.float32) for low, n in ((-1, inputs), (0, 1))
    )
    if not isinstance(batch, tuple):
        x, scale = (Ragged.from_lengths(each, np.array(batch, int)) for each in (x, scale))
    state = random_state(spec, len(x) if isinstance(x, Ragged) else batch[1], seed)
    state = state if has_state else tuple(map(np.zeros_like, state))
    layer = prepare_on(name, spec, weights, threads=threads, dtype=dtype)
    rtol, atol = TOLERANCES[layer.dtype]
    if layer.dtype == "u8":  # each layer and direction adds its own steps
        atol *= layers * (1 + (direction == "bidirectional_sum"))
    attention = scale if spec.cell.has_attention else None
    check_layer(layer, spec, weights, x, state, attention, rtol, atol)


@pytest.mark.parametrize("direction", ["left2right", "bidirectional_concat"])
@pytest.mark.parametrize("dtype", ["f32", "u8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_stay_whatever_runs_afterwards(direction: Any, dtype: str, threads: int) -> None:
    """Layers share the arrays that stand between input and output."""
    spec = RnnSpec(Cell.LSTM, 6, 8, layers=3, direction=direction)
    weights = random_weights(spec, 0)
    backend = open_backend("onednn", threads=threads)
    layers = [backend.prepare(spec, weights, dtype=dtype) for _ in "ab"]
    dense = uniform(4, 20, 6, seed=2)
    batches = [random_ragged([5, 3, 0, 7] * 5, 6, 1), dense, random_ragged([9], 6, 3)]
    results = [(layer, x, *layer.run(x)) for x in (*batches, *batches) for layer in layers]
    kept = [[words(y).copy(), *(s.copy() for s in state)] for _, _, y, state in results]
    for layer, x, _, _ in results:
        layer.run(x.with_data(-x.data) if isinstance(x, Ragged) else -x)
    for (_, _, y, state), copies in zip(results, kept, strict=True):
        assert_same((words(y), *state), copies)


def test_large_gates_saturate_without_overflow(backend: str) -> None:
    spec = RnnSpec(Cell.GRU, 2, 3)
    weights = random_weights(spec, 0)
    x = Ragged(np.float32([[1e4, -1e4], [-1e4, 1e4], [1e30, 1e30]]), [0, 3])
    with np.errstate(over="raise", invalid="raise"):
        y, _ = prepare_on(backend, spec, weights).run(x)
    assert np.isfinite(words(y)).all()


class TestFallback:
    """What oneDNN cannot do runs on the reference and says why, or raises where strict."""

    @pytest.mark.parametrize(
        "spec, why",
        [
            (
                RnnSpec(Cell.GRU, 2, 3, activations=("sigmoid", "relu")),
                "no GRU with functions sigmoid, relu, only with sigmoid, tanh",
            ),
            (
                RnnSpec(Cell.GRU, 2, 3, update="replace"),
                "no GRU that replaces with its update gate",
            ),
            (RnnSpec(Cell.GRU, 2, 3, gate_clip=1.0), "no GRU with clipped gates"),
        ],
    )
    def test_it_says_why(self, spec: RnnSpec, why: str) -> None:
        weights = random_weights(spec, 0)
        layer = prepare_on("onednn", spec, weights)
        assert layer.kernel == "NumPy reference" and why in layer.why
        with pytest.raises(UnsupportedError, match=f"{why}; drop strict=True"):
            prepare_on("onednn", spec, weights, strict=True)

    def test_float64_weights_compute_in_float64(self) -> None:
        spec = RnnSpec(Cell.LSTM, 2, 3)
        (single,) = random_weights(spec, 0)
        double = RnnWeights(
            *(a.astype(np.float64) for a in (single.layer, single.iter, single.bias))
        )
        layer = prepare_on("onednn", spec, double)
        assert layer.dtype == "f64"
        x = Ragged(np.ones((4, 2)), [0, 1, 4])
        check_layer(layer, spec, [double], x, random_state(spec, 2, 0), rtol=1e-13, atol=1e-13)


@needs_vnni
def test_an_error_in_one_of_two_directions_reaches_the_caller() -> None:
    spec = RnnSpec(Cell.GRU, 8, 8, direction="bidirectional_concat")
    layer = prepare_on("onednn", spec, threads=2, dtype="u8")
    state = np.zeros((1, 2, 1, 8), np.float32)
    state[0, 1] = 2
    with pytest.raises(UnsupportedError, match="state h: expected values in"):
        layer.run(random_ragged([3], 8, 0), (state,))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dense", [True, False])
def test_a_batch_dealt_out_to_threads_comes_back_in_order(direction: Any, dense: bool) -> None:
    spec = RnnSpec(Cell.LSTM, 5, 6, layers=2, direction=direction)
    weights = random_weights(spec, 0)
    rng = np.random.default_rng(0)
    x: Any = random_ragged(rng.integers(0, 9, 40).tolist(), 5, 1)
    if dense:
        x = rng.uniform(-2, 2, (7, 40, 5)).astype(np.float32)
    for threads in (1, 2, 3):
        layer = prepare_on("onednn", spec, weights, threads=threads)
        check_layer(layer, spec, weights, x, random_state(spec, 40, 2))
