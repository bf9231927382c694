"""The cell state of every word, which no primitive hands out.

oneDNN's primitives give the hidden state of each word and the last cell state. Given all hidden
states, the gates of all words are one matrix product; only the sum over time runs step by step.
"""

from __future__ import annotations

import numpy as np

from onernn.backend.run_arguments import State, checked_state
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.ops.activations import function
from onernn.reorders.lod import Packing


def check_cells(spec: RnnSpec) -> None:
    """Nothing, or `UnsupportedError` where `cell_sequence` does not know the layer."""
    plain = spec.projection_size is None and not spec.input_forget
    clipped = spec.gate_clip is not None or spec.cell_clip is not None
    if spec.cell is not Cell.LSTM or spec.layers * spec.directions > 1 or clipped or not plain:
        raise UnsupportedError(
            "cells of every word: given for one LSTM layer in one direction only, without"
            f" projection and clips, not for {spec}"
        )


def cell_sequence(
    spec: RnnSpec, weights: RnnWeights, x: Ragged | Array, y: Ragged | Array, state: State | None
) -> Ragged | Array:
    """c of every word, like x with O channels: (W, O) or (T, N, O).

    ``x`` and ``y``: a layer's input and output; ``state``: the initial (h, c), each ldnc.
    Formula: RNN developer guide of oneDNN, LSTM with peephole.
    """
    words, hidden = data_of(x), data_of(y)
    packing = (
        Packing.of(x.offsets) if isinstance(x, Ragged) else Packing.rectangle(*words.shape[:2])
    )
    h, c = (
        each[0, 0, packing.order]
        for each in checked_state(spec, state, len(packing.order), weights.iter.dtype)
    )

    def run_order(array: Array) -> Array:
        rows = packing.pack(array) if isinstance(x, Ragged) else array.reshape(-1, array.shape[-1])
        return rows[packing.flip] if spec.direction == "right2left" else rows

    rows, sizes, units = run_order(words), packing.batch_sizes, spec.hidden_size
    first = int(sizes[0]) if len(sizes) else 0
    before = np.arange(first, len(rows)) - np.repeat(sizes[:-1], sizes[1:])  # a step earlier
    previous = np.concatenate([h[:first], run_order(hidden)[before]])
    gates = previous @ weights.iter[0, 0].reshape(-1, 4 * units)
    gates += rows if weights.layer is None else rows @ weights.layer[0, 0].reshape(-1, 4 * units)
    gates = gates.reshape(-1, 4, units)
    if weights.bias is not None:
        gates += weights.bias[0, 0]
    gate, candidate, _ = (function(each) for each in spec.functions)
    added = candidate(gates[:, 2])
    peephole = np.zeros((3, units), c.dtype) if weights.peephole is None else weights.peephole[0, 0]
    out = np.empty_like(added)
    for start, count in zip(packing.step_offsets, sizes, strict=False):
        at, c = slice(start, start + count), c[:count]
        i, f = (gate(gates[at, k] + peephole[k] * c) for k in (0, 1))
        out[at] = c = f * c + i * added[at]
    out = out[packing.flip] if spec.direction == "right2left" else out
    if isinstance(x, Ragged):
        return x.with_data(packing.unpack(out))
    return out.reshape(*words.shape[:2], units)
