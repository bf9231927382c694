"""Paddle's recurrent parameters <-> the pivot.

Layouts and formulas: documentation of Paddle's operators ``gru``, ``fusion_gru``, ``lstm`` and
``rnn``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.spec import Cell, Update
from onernn.ir.weights import RnnWeights
from onernn.reorders import torch
from onernn.reorders.gates import GateLayout, input_layer, summed_bias
from onernn.reorders.layers import PivotLayer, layer_of

Layers = tuple[RnnWeights, ...]


def gru_layout(*, origin_mode: bool, gate_activation: str) -> tuple[GateLayout, Update]:
    """Paddle's gates u, r, c as oneDNN's u, r, o, and what the update gate does then.

    With origin_mode False Paddle computes h = (1-u) h' + u c. Under a sigmoid 1-u is u with its
    sign turned, so the layout turns it; under any other function the update is "replace".
    """
    flip = not origin_mode and gate_activation == "sigmoid"
    layout = GateLayout((0, 1, 2), (-1 if flip else 1, 1, 1))
    return layout, "keep" if origin_mode or flip else "replace"


def weight_h(flat: Array, layout: GateLayout) -> Array:
    """Paddle ``WeightH`` (O, 3*O) -> weights iter, ldigo (L=1, D=1, O, G=3, O).

    Memory holds two blocks back to back, (O, 2*O) for update|reset and (O, O) for the candidate;
    the shape (O, 3*O) is only declared.
    """
    hidden = flat.shape[0]
    if flat.ndim != 2 or flat.shape[1] != 3 * hidden:
        raise ShapeError(f"WeightH: expected (O, 3*O), got {flat.shape}")
    gates, candidate = np.split(flat.reshape(-1), [2 * hidden * hidden])
    rows = [gates.reshape(hidden, 2 * hidden), candidate.reshape(hidden, hidden)]
    return layout.split(np.concatenate(rows, axis=1))[None, None]


def gru_weights(
    flat: Array, bias: Array | None, layout: GateLayout, projection: Array | None = None
) -> RnnWeights:
    """``WeightH`` (O, 3*O), ``Bias`` (1, 3*O) and ``WeightX`` (I, 3*O) -> weights of one layer.

    Without ``projection`` the input is projected already.
    """
    layer = None if projection is None else input_layer(projection, layout)
    return RnnWeights(layer, weight_h(flat, layout), summed_bias(layout, bias))


def weight_h_back(weights_iter: Array, layout: GateLayout) -> Array:
    """weights iter (1, 1, O, 3, O) -> Paddle ``WeightH`` (O, 3*O), two blocks in memory."""
    hidden = weights_iter.shape[2]
    rows = layout.inverse(weights_iter.reshape(hidden, 3 * hidden))
    gates, candidate = np.split(rows, [2 * hidden], axis=1)
    return np.concatenate([gates.reshape(-1), candidate.reshape(-1)]).reshape(hidden, 3 * hidden)


LSTM = GateLayout((1, 2, 0, 3), (1, 1, 1, 1))
"""Gates c, i, f, o of ``lstm`` and ``fusion_lstm`` as oneDNN's i, f, c, o."""


def lstm_bias(bias: Array, *, peephole: bool) -> tuple[Array, Array | None]:
    """``Bias`` (1, 4*O), or (1, 7*O) with peepholes -> bias (1, 1, 4, O), peephole (1, 1, 3, O).

    Behind the biases stand w_ic, w_fc, w_oc: gates i, f, o, as in oneDNN.
    """
    flat, gates = bias.reshape(-1), 7 if peephole else 4
    hidden = flat.size // gates
    if flat.size != gates * hidden or bias.shape[-1] != flat.size:
        raise ShapeError(f"Bias: expected (1, {gates}*O), got {bias.shape}")
    biases, weights = np.split(flat, [4 * hidden])
    return LSTM.split(biases)[None, None], weights.reshape(1, 1, 3, -1) if peephole else None


def lstm_bias_back(bias: Array, peephole: Array | None) -> Array:
    """bias ldgo (1, 1, 4, O), and peephole (1, 1, 3, O) if any -> ``Bias`` (1, 4*O) or (1, 7*O)."""
    flat = LSTM.inverse(bias.reshape(1, -1))
    return flat if peephole is None else np.concatenate([flat, peephole.reshape(1, -1)], axis=1)


RNN_CELLS = {
    "LSTM": (Cell.LSTM, GateLayout((0, 1, 2, 3), (1, 1, 1, 1))),
    "GRU": (Cell.LBR_GRU, GateLayout((1, 0, 2), (1, 1, 1))),  # r, z, c; h = (1-z) c + z h
    "RNN_TANH": (Cell.RNN_TANH, GateLayout((0,), (1,))),
    "RNN_RELU": (Cell.RNN_RELU, GateLayout((0,), (1,))),
}
"""Modes of the operator ``rnn``: the cell, and its gates in oneDNN's order."""


def rnn_weights(arrays: Sequence[Array], mode: str, layers: int, directions: int) -> Layers:
    """``WeightList`` of the operator ``rnn`` -> one-layer weights for each layer.

    The list holds (w_ih (G*O, I), w_hh (G*O, O)) of each layer and direction, forward first, then
    (b_ih, b_hh), (G*O,) each, of each in the same order: PyTorch's arrays. Both biases are added;
    in a GRU's candidate b_hh is inside r*(...) and stays apart, as oneDNN's fourth row.
    """
    parts = layers * directions
    if len(arrays) not in (2 * parts, 4 * parts):
        raise ShapeError(f"WeightList: expected {4 * parts} arrays, got {len(arrays)}")
    sides = torch.NAMES.read(_name(arrays, parts), RNN_CELLS[mode][0], parts, 1)
    return tuple(
        RnnWeights.joined([side for (side,) in sides[first : first + directions]], 1)
        for first in range(0, parts, directions)
    )


def _name(arrays: Sequence[Array], parts: int) -> dict[str, Array]:
    """Names the arrays of a ``WeightList`` as PyTorch those of as many layers."""
    kinds = (torch.NAMES.matrices, torch.NAMES.biases)
    names = [f"{name}_l{part}" for kind in kinds for part in range(parts) for name in kind]
    return dict(zip(names, arrays, strict=False))


def rnn_weights_back(weights: Sequence[RnnWeights], mode: str) -> list[Array]:
    """Returns one-layer weights for each layer -> ``WeightList``.

    Sums of biases go into b_ih; b_hh is zero except for a GRU's candidate.
    """
    return _list(torch.NAMES.write(_layer(weights, mode)))


def _layer(weights: Sequence[RnnWeights], mode: str) -> PivotLayer:
    if any(each.layer is None for each in weights):
        raise ShapeError("WeightList: an input that is projected already has no w_ih")
    return layer_of(
        RNN_CELLS[mode][0],
        [[each.part(0, d) for d in range(each.iter.shape[1])] for each in weights],
    )


def _list(named: Mapping[str, Array]) -> list[Array]:
    return [named[name] for name in sorted(named, key=lambda name: name.startswith("bias"))]
