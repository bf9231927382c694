"""dst_layer in bytes: the second type of output that the guide has for u8 data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layers import random_ragged, random_weights
from support.machine import needs_vnni
from support.raw import run_raw

from onernn import Cell, Ragged, RnnSpec, UnsupportedError
from onernn.backend import open_backend
from onernn.backend.onednn.precision import PRECISIONS
from onernn.ir.precision import Scale

SCALE = {"data_scale": 100.0, "data_shift": 128.0}
LAYERS: list[tuple[Cell, dict[str, Any]]] = [
    (Cell.LSTM, {}),
    (Cell.LSTM, {"direction": "bidirectional_concat"}),
    (Cell.GRU, {"direction": "right2left"}),
    (Cell.LBR_GRU, {}),
]
X = np.random.default_rng(0).uniform(-1, 1, (4, 3, 8)).astype(np.float32)

pytestmark = needs_vnni


def prepared(backend: str, spec: RnnSpec, **more: Any) -> Any:
    opened = open_backend(backend)
    return opened.prepare(spec, random_weights(spec, 0), dtype="u8", **SCALE, **more)  # type: ignore[call-arg]


@pytest.mark.parametrize(("cell", "more"), LAYERS)
@pytest.mark.parametrize("backend", ["onednn", "kernels", "auto"])
def test_u8_output_is_the_rounded_f32_output(
    backend: str, cell: Cell, more: dict[str, Any]
) -> None:
    spec = RnnSpec(cell, 8, 16, **more)
    for x in (X, random_ragged([5, 0, 3], 8, 1), random_ragged([4], 8, 2)):
        wide, ends = prepared(backend, spec).run(x)
        y, final = prepared(backend, spec, output="u8").run(x)
        wide, got = (b.data if isinstance(b, Ragged) else b for b in (wide, y))
        assert isinstance(y, Ragged) == isinstance(x, Ragged)
        assert got.dtype == np.uint8 and wide.dtype == np.float32
        steps = wide.astype(np.float64) * 100 + 128
        # Half a step, and what float32 rounds of a number up to 255.
        assert np.abs(got - np.clip(steps, 0, 255)).max() <= 0.5 + 255 * 2**-23
        for one, other in zip(ends, final, strict=True):
            np.testing.assert_array_equal(one, other)  # float32 in both


def test_ntc_stays_ntc() -> None:
    spec = RnnSpec(Cell.LSTM, 8, 16)
    layer = prepared("onednn", spec, output="u8")
    y, _ = layer.run(X)
    turned, _ = layer.run(X.swapaxes(0, 1), layout="ntc")
    np.testing.assert_array_equal(turned, y.swapaxes(0, 1))


def test_bytes_beyond_the_range_saturate() -> None:
    spec = RnnSpec(Cell.LSTM, 8, 16)
    opened: Any = open_backend("onednn")
    options: Any = {"dtype": "u8", "data_scale": 2000.0, "data_shift": 100.0}
    wide, _ = opened.prepare(spec, random_weights(spec, 0), **options).run(X)
    y, _ = opened.prepare(spec, random_weights(spec, 0), output="u8", **options).run(X)
    steps = wide.astype(np.float64) * 2000 + 100
    assert (y[steps > 255] == 255).all() and (y[steps < 0] == 0).all()
    assert (steps > 255).any() and (steps < 0).any()


def test_the_primitive_gives_the_same_bytes() -> None:
    spec = RnnSpec(Cell.LSTM, 8, 16)
    (weights,) = random_weights(spec, 0)
    state = tuple(np.zeros((1, 1, 3, 16), np.float32) for _ in "hc")
    precision = PRECISIONS["u8"]._replace(out="u8")
    scale = Scale(SCALE["data_scale"], SCALE["data_shift"])
    raw, _ = run_raw(spec, weights, X, state, precision, scale)
    y, _ = prepared("onednn", spec, output="u8").run(X)
    np.testing.assert_array_equal(np.rint(raw * 100 + 128), y)


@pytest.mark.parametrize("backend", ["onednn", "kernels"])
def test_what_bytes_cannot_hold_or_nobody_asked_for_is_refused(backend: str) -> None:
    opened: Any = open_backend(backend)
    spec = RnnSpec(Cell.LSTM, 8, 16)
    weights = random_weights(spec, 0)
    with pytest.raises(ValueError, match="output='u8': expected a data_scale"):
        opened.prepare(spec, weights, dtype="u8", output="u8")
    with pytest.raises(ValueError, match="output: expected 'u8' or 'f32', got 's8'"):
        opened.prepare(spec, weights, dtype="u8", output="s8", **SCALE)
    with pytest.raises(UnsupportedError, match="output 'u8': belongs to dtype='u8', not to 'f32'"):
        opened.prepare(spec, weights, output="u8")
    both = RnnSpec(Cell.LSTM, 8, 16, direction="bidirectional_sum")
    with pytest.raises(UnsupportedError, match="sum of two states does not fit into a byte"):
        prepared(backend, both, output="u8")
    other = RnnSpec(Cell.LSTM, 8, 16, activations=("relu", "tanh", "tanh"))
    if backend == "onednn":
        with pytest.raises(UnsupportedError, match="; the reference gives no bytes"):
            prepared(backend, other, output="u8")
