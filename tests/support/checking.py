"""A prepared layer against the oracle, under DESIGN's tolerance: |a-b| <= 1e-6 + 1e-5 max|ref|."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn import Ragged, RnnSpec, RnnWeights
from support.layers import words
from support.oracle import run_oracle


def assert_close(got: np.ndarray, want: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert got.shape == want.shape
    worst = np.abs(got.astype(np.float64) - want).max(initial=0)
    assert worst <= atol + rtol * np.abs(want).max(initial=0), f"{worst} apart"


def assert_same_bits(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """Values by name: equal dtypes, shapes, offsets and bits."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert type(got[name]) is type(value), name
        one, other = words(got[name]), words(value)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        assert getattr(got[name], "lod", None) == getattr(value, "lod", None), name


def flat(value: Any) -> list[Any]:
    """The arrays of a run, or of nested results, in order; of ragged values offsets, too."""
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, tuple | list | Iterator):
        return [array for each in value for array in flat(each)]
    return [value.data, *value.outer, value.offsets] if isinstance(value, Ragged) else [value]


def assert_same(got: Any, want: Any) -> None:
    """The same numbers, bit by bit."""
    for one, other in zip(flat(got), flat(want), strict=True):
        np.testing.assert_array_equal(one, other)


def assert_all_close(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for one, other in zip(flat(got), flat(want), strict=True):
        assert_close(one, other, rtol, atol)


def sentences_of(batch: Any) -> list[np.ndarray]:
    return batch.to_list() if isinstance(batch, Ragged) else list(np.swapaxes(batch, 0, 1))


def grid(array: np.ndarray, largest: Any) -> np.ndarray:
    """float64, to the nearest of the 255 numbers that 8 bits have in [-largest, largest]."""
    step = np.asarray(largest, np.float64) / 127
    return np.rint(np.float64(array) / np.where(step > 0, step, 1)) * step


def check_step(
    run: Any, spec: RnnSpec, held: RnnWeights, x: Any, state: Any, atol: float, rest: float
) -> tuple[Any, Any]:
    """A step is the oracle's on rounded numbers, up to ``atol``, states c up to ``rest``.

    That of weights with other signs is not. Gives what the oracle gives.
    """
    (y, final), batch = run, sentences_of(x)
    outputs, ends = run_oracle(spec, [held], batch, state)
    assert_all_close(sentences_of(y), outputs, 0, atol)
    assert_all_close(final[1:], ends[1:], 0, rest)
    other, _ = run_oracle(spec, [replace(held, iter=-held.iter)], batch, state)
    assert np.abs(np.stack(other) - np.stack(outputs)).max() > 2 * atol  # a difference would show
    return outputs, ends


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
    assert_all_close([sentences_of(y), final], [outputs, ends], rtol, atol)
    assert_same(given, kept)
