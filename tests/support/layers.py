"""Random layers and batches for tests: contractive, so that rounding does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from onernn import Cell, Ragged, RnnSpec, RnnWeights


def random_weights(spec: RnnSpec, seed: int, *, projected: bool = False) -> list[RnnWeights]:
    """One-layer weights for each layer, uniform in +-1/sqrt(width)."""
    rng = np.random.default_rng(seed)
    bound = 1 / np.sqrt(max(spec.hidden_size, spec.input_size))

    def uniform(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    layers, width, d = [], spec.input_size, spec.directions
    for _ in range(spec.layers):
        layers.append(
            RnnWeights(
                None if projected else uniform(1, d, width, spec.gates, spec.hidden_size),
                uniform(1, d, spec.recurrent_size, spec.gates, spec.hidden_size),
                uniform(1, d, spec.cell.bias_rows, spec.hidden_size),
                uniform(1, d, 3, spec.hidden_size) if spec.peephole else None,
                uniform(1, d, spec.hidden_size, spec.recurrent_size)
                if spec.projection_size
                else None,
            )
        )
        width = spec.output_size if spec.stacking == "framework" else spec.recurrent_size
    return layers


def random_ragged(lengths: list[int], channels: int, seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    words = rng.uniform(-2, 2, (sum(lengths), channels)).astype(np.float32)
    return Ragged.from_lengths(words, np.asarray(lengths, np.int64))


def random_state(spec: RnnSpec, sentences: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    shape = (spec.layers, spec.directions, sentences)
    return tuple(
        rng.uniform(-1, 1, (*shape, widths[s])).astype(np.float32) for s in spec.cell.states
    )


def words(value: Any) -> np.ndarray:
    return value.data if isinstance(value, Ragged) else value


DIRECTIONS: list[Any] = [
    "left2right",
    "right2left",
    "bidirectional_concat",
    "bidirectional_sum",
]
LSTMS = [{}, {"peephole": True}, {"projection_size": 2}, {"projection_size": 2, "peephole": True}]
CELLS = [(cell, {}) for cell in Cell if cell is not Cell.LSTM] + [(Cell.LSTM, kw) for kw in LSTMS]
LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


def attention_for(spec: RnnSpec, x: Ragged, seed: int) -> Ragged | None:
    if not spec.cell.has_attention:
        return None
    scale = np.random.default_rng(seed).uniform(0, 1, (len(x.data), 1))
    return x.with_data(scale.astype(np.float32))
