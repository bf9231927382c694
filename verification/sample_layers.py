"""Layers and batches on which kernels are examined: small, reproducible, contractive."""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

import numpy as np

from onernn.backend import Stack, State
from onernn.core.arrays import Array
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights

KINDS: dict[str, tuple[Cell, tuple[str, ...]]] = {
    "RNN tanh": (Cell.RNN_TANH, ()),
    "RNN relu": (Cell.RNN_RELU, ()),
    "RNN sigmoid": (Cell.RNN_SIGMOID, ()),
    "LSTM": (Cell.LSTM, ()),
    "LSTM peephole": (Cell.LSTM, ("peephole",)),
    "LSTM projection": (Cell.LSTM, ("projection",)),
    "LSTM peephole projection": (Cell.LSTM, ("peephole", "projection")),
    "GRU": (Cell.GRU, ()),
    "LBR GRU": (Cell.LBR_GRU, ()),
    "AUGRU": (Cell.AUGRU, ()),
    "LBR AUGRU": (Cell.LBR_AUGRU, ()),
}
"""The cells by name; an LSTM with and without its extras counts as several."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

Outputs = dict[str, Array]


class Shape(NamedTuple):
    """Of a layer, and of a batch: dense where all sentences are equally long.

    ``projection_size``: of cells that have one; None: half of the hidden size.
    """

    input_size: int
    hidden_size: int
    layers: int
    lengths: tuple[int, ...]
    projection_size: int | None = None


# Kernels cut a batch in pieces by its size: its steps have 33 sentences, 17 twice, 16, 3 and 1.
# A projection that is wider than all gates together (they fill 32 numbers) is read another way.
ODD = Shape(7, 5, 1, (5, 0, *[4] * 7, *[1] * 16, 7, 3, *[4] * 6, 5), projection_size=33)
EVEN = Shape(16, 32, 2, (3,) * 16)
LARGE = Shape(32, 512, 1, (5, 3, 3, 1))  # large weights may run another way


class SampleLayer(NamedTuple):
    """A layer and what it is given, all in [-1, 1]."""

    spec: RnnSpec
    weights: list[RnnWeights]
    x: Ragged | Array
    state: State
    attention: Ragged | Array | None

    def outputs(self, layer: Stack) -> Outputs:
        """What a run gives, by name."""
        y, final = layer.run(self.x, self.state, self.attention)
        return {"y": data_of(y), **_numbered("state", final)}

    def gradients(self, layer: Stack) -> tuple[Outputs, str, str]:
        """What a run and its backward give, by name; the kernel and why none faster."""
        y, final, tape = layer.run_training(self.x, self.state, self.attention)
        rng = np.random.default_rng(2)
        dy = _uniform(rng, data_of(y).shape)
        grads = layer.backward(
            tape,
            y.with_data(dy) if isinstance(y, Ragged) else dy,
            tuple(_uniform(rng, s.shape) for s in final),
        )
        out = {"y": data_of(y), **_numbered("state", final), **_numbered("dstate", grads.state)}
        out["dx"] = data_of(grads.x)
        if grads.attention is not None:
            out["dattention"] = data_of(grads.attention)
        for k, weights in enumerate(grads.layers):
            out |= {f"d{name}{k}": array for name, array in weights.arrays.items()}
        return out, tape.kernel, tape.why


def _numbered(name: str, arrays: State | list[Array]) -> Outputs:
    return {f"{name}{k}": array for k, array in enumerate(arrays)}


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float = 1.0) -> Array:
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def sample_layer(
    cell: str, direction: Direction, shape: Shape, *, training: bool = False
) -> SampleLayer:
    """The layer of a cell by its name in `KINDS`; the same at every call."""
    kind, extras = KINDS[cell]
    units = shape.hidden_size
    spec = RnnSpec(
        kind,
        shape.input_size,
        units,
        layers=shape.layers,
        direction=direction,
        peephole="peephole" in extras,
        projection_size=(shape.projection_size or units // 2) if "projection" in extras else None,
    )
    rng = np.random.default_rng(0)
    # The derivative of relu jumps at 0, and a rounding error would choose its side: where
    # gradients are compared every unit is clearly on or clearly off.
    decided = training and kind is Cell.RNN_RELU
    bound = (0.25 if decided else 1.0) / math.sqrt(max(units, spec.recurrent_size))

    def uniform(*sizes: int) -> Array:
        return _uniform(rng, (1, spec.directions, *sizes), bound)

    weights, width = [], shape.input_size
    for _ in range(shape.layers):
        layer = uniform(width, spec.gates, units)
        iteration = uniform(spec.recurrent_size, spec.gates, units)
        bias = uniform(kind.bias_rows, units)
        if decided:
            bias += np.where(np.arange(units) % 2, 2, -2).astype(np.float32)
        peephole = uniform(3, units) if spec.peephole else None
        projection = uniform(units, spec.recurrent_size) if spec.projection_size else None
        weights.append(RnnWeights(layer, iteration, bias, peephole, projection))
        width = spec.output_size

    lengths = shape.lengths
    stack = (spec.layers, spec.directions, len(lengths))
    widths = {"h": spec.recurrent_size, "c": units}
    state = tuple(_uniform(rng, (*stack, widths[s])) for s in kind.states)
    attention = None
    if kind.has_attention:
        attention = _batch(np.abs(_uniform(rng, (sum(lengths), 1))), lengths)
    return SampleLayer(
        spec,
        weights,
        _batch(_uniform(rng, (sum(lengths), shape.input_size)), lengths),
        state,
        attention,
    )


def _batch(words: Array, lengths: tuple[int, ...]) -> Ragged | Array:
    if len(set(lengths)) == 1:
        return words.reshape(lengths[0], len(lengths), -1)
    return Ragged.from_lengths(words, lengths)
