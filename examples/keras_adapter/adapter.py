"""Keras's recurrent layers from their arrays alone: no Keras, no HDF5, a hundred lines of NumPy.

Written as somebody outside of onernn would write it, to show how the conformance kit tests it: see
test_adapter.py. (onernn.convert_weights has an adapter for Keras of its own.)

    spec, weights = read([LayerArrays("LSTM", lstm.get_weights())])
    layer = onernn.backend.open_backend().prepare(spec, weights)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onernn import Cell, RnnSpec, RnnWeights, ShapeError, UnsupportedError

Arrays = Sequence[np.ndarray]

# Keras's gates, side by side in the columns of its matrices, in oneDNN's order:
# LSTM i, f, c, o as they are; GRU z, r, h is u, r, o; h = z h' + (1-z) h~ keeps with z, as oneDNN.
GATES = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}
PLAIN = {"tanh": Cell.RNN_TANH, "relu": Cell.RNN_RELU, "sigmoid": Cell.RNN_SIGMOID}


class LayerArrays(NamedTuple):
    """One layer: its class, what ``get_weights()`` gives, and the arguments that matter.

    ``arrays``: kernel (I, G*O), recurrent_kernel (O, G*O), bias; of Bidirectional the forward
    layer's and then the backward layer's. ``merge_mode``: of Bidirectional, None for one direction.
    """

    kind: str
    arrays: Arrays
    activation: str = "tanh"
    reset_after: bool = True
    go_backwards: bool = False
    merge_mode: str | None = None


def read(layers: Sequence[LayerArrays]) -> tuple[RnnSpec, list[RnnWeights]]:
    """The spec of a stack of equal layers, and oneDNN's weights of each, (L=1, D, ...).

    A layer that runs backwards gives its words in the order of the sentence here, where Keras gives
    them in the order in which it went. Raises `ShapeError` and `UnsupportedError`.
    """
    first = layers[0]
    if any(each._replace(arrays=()) != first._replace(arrays=()) for each in layers):
        raise UnsupportedError("layers of different kinds are no stack")
    spec = RnnSpec(
        _cell(first),
        first.arrays[0].shape[0],
        first.arrays[1].shape[0],
        layers=len(layers),
        direction=_direction(first),
    )
    return spec, [_weights(each, spec) for each in layers]


def _cell(layer: LayerArrays) -> Cell:
    if layer.kind == "SimpleRNN" and layer.activation in PLAIN:
        return PLAIN[layer.activation]
    if layer.kind not in ("LSTM", "GRU") or layer.activation != "tanh":
        raise UnsupportedError(f"{layer.kind} with activation={layer.activation!r}")
    if layer.kind == "LSTM":
        return Cell.LSTM
    return Cell.LBR_GRU if layer.reset_after else Cell.GRU


def _direction(layer: LayerArrays) -> str:
    if layer.merge_mode is None:
        return "right2left" if layer.go_backwards else "left2right"
    if layer.merge_mode != "concat" or layer.go_backwards:
        raise UnsupportedError(f"Bidirectional with merge_mode={layer.merge_mode!r}")
    return "bidirectional_concat"


def _weights(layer: LayerArrays, spec: RnnSpec) -> RnnWeights:
    if len(layer.arrays) != 3 * spec.directions:
        raise ShapeError(f"expected {3 * spec.directions} arrays, got {len(layer.arrays)}")
    gates, units = GATES[layer.kind], spec.hidden_size
    parts = []
    for at in range(0, len(layer.arrays), 3):
        kernel, recurrent, bias = layer.arrays[at : at + 3]
        rows = (2, gates * units) if spec.cell is Cell.LBR_GRU else (gates * units,)
        expected = {"recurrent_kernel": (units, gates * units), "bias": rows}
        for name, array in (("recurrent_kernel", recurrent), ("bias", bias)):
            if array.shape != expected[name]:
                raise ShapeError(f"{name}: expected {expected[name]}, got {array.shape}")
        if spec.cell is Cell.LBR_GRU:
            # Of the two rows the second stands inside r*(...), but only in the candidate.
            of_x, of_h = bias.reshape(2, gates, units)
            bias = np.concatenate([of_x[:2] + of_h[:2], of_x[2:], of_h[2:]])
        parts.append(
            [
                kernel.reshape(-1, gates, units),
                recurrent.reshape(units, gates, units),
                bias.reshape(-1, units),
            ]
        )
    return RnnWeights(*(np.stack(arrays)[None] for arrays in zip(*parts, strict=True)))
