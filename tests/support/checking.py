"""A prepared layer against the oracle, under DESIGN's tolerance: |a-b| <= 1e-6 + 1e-5 max|ref|."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn import Ragged, RnnSpec, RnnWeights
from support.layers import words
from support.oracle import run_oracle


def assert_close(got: np.ndarray, want: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert got.shape == want.shape
    worst = np.abs(got.astype(np.float64) - want).max(initial=0)
    assert worst <= atol + rtol * np.abs(want).max(initial=0), f"{worst} apart"


def sentences_of(batch: Any) -> list[np.ndarray]:
    return batch.to_list() if isinstance(batch, Ragged) else list(np.swapaxes(batch, 0, 1))


def check_layer(
    layer: Any,
    spec: RnnSpec,
    weights: list[RnnWeights],
    x: Any,
    state: tuple[np.ndarray, ...],
    attention: Any = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Output and final states; and that the caller's arrays stay as they were."""
    given = [words(x), *state, *([] if attention is None else [words(attention)])]
    kept = [a.copy() for a in given]
    y, final = layer.run(x, state, attention)
    scale = None if attention is None else sentences_of(attention)
    outputs, ends = run_oracle(spec, weights, sentences_of(x), state, scale)
    assert isinstance(y, Ragged) == isinstance(x, Ragged)
    for got, want in zip(sentences_of(y), outputs, strict=True):
        assert_close(got, want, rtol, atol)
    for got, want in zip(final, ends, strict=True):
        assert_close(got, want, rtol, atol)
    for array, before in zip(given, kept, strict=True):
        np.testing.assert_array_equal(array, before)
