"""Random layers and batches for tests: contractive, so that rounding does not grow."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import open_backend
from support.arrays import uniform


def random_weights(spec: RnnSpec, seed: int, *, projected: bool = False) -> list[RnnWeights]:
    """One-layer weights for each layer, uniform in +-1/sqrt(width)."""
    rng = np.random.default_rng(seed)
    bound = 1 / np.sqrt(max(spec.hidden_size, spec.input_size))

    draw = partial(uniform, seed=rng, bound=bound)
    layers, width, d = [], spec.input_size, spec.directions
    for _ in range(spec.layers):
        layers.append(
            RnnWeights(
                None if projected else draw(1, d, width, spec.gates, spec.hidden_size),
                draw(1, d, spec.recurrent_size, spec.gates, spec.hidden_size),
                draw(1, d, spec.cell.bias_rows, spec.hidden_size),
                draw(1, d, 3, spec.hidden_size) if spec.peephole else None,
                draw(1, d, spec.hidden_size, spec.recurrent_size) if spec.projection_size else None,
            )
        )
        width = spec.output_size if spec.stacking == "framework" else spec.recurrent_size
    return layers


def random_layer(spec: RnnSpec, seed: int, *, projected: bool = False) -> dict[str, Any]:
    """The attributes of a layer's node, with random weights."""
    return {"spec": spec, "weights": random_weights(spec, seed, projected=projected)}


def prepare_on(
    name: str,
    spec: RnnSpec,
    weights: Any = 0,
    *,
    threads: int | None = None,
    cache_capacity: int | None = None,
    **options: Any,
) -> Any:
    """A layer on a backend; ``weights``: these, or the seed of random ones."""
    backend: Any = open_backend(name, threads=threads, cache_capacity=cache_capacity)
    weights = random_weights(spec, weights) if isinstance(weights, int) else weights
    return backend.prepare(spec, weights, **options)


def random_ragged(lengths: list[int], channels: int, seed: int) -> Ragged:
    words = uniform(sum(lengths), channels, seed=seed, bound=2)
    return Ragged.from_lengths(words, np.asarray(lengths, np.int64))


def random_state(spec: RnnSpec, sentences: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    shape = (spec.layers, spec.directions, sentences)
    return tuple(uniform(*shape, widths[state], seed=rng) for state in spec.cell.states)


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
