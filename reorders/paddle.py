"""Converts the weights of Paddle's recurrent operators to the pivot layout, and back.

Layouts and formulas: documentation of Paddle's operators ``gru``, ``fusion_gru``, ``lstm`` and
``rnn``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.spec import Cell, Update
from onernn.ir.weights import RnnWeights
from onernn.reorders import torch
from onernn.reorders.gates import GateLayout, bias_back, input_layer, split_bias
from onernn.reorders.layers import gate_layout, layer_of

Layers = tuple[RnnWeights, ...]


def gru_layout(*, origin_mode: bool, gate_activation: str) -> tuple[GateLayout, Update]:
    """Returns the layout of Paddle's gates u, r, c, and the `Update` for oneDNN's formula.

    With origin_mode False, Paddle computes h = (1-u) h' + u c. If the gate activation is a sigmoid,
    the layout negates the weights of u, which turns u into 1-u. For any other gate activation, the
    result has the update "replace" (see `RnnSpec`).
    """
    flip = not origin_mode and gate_activation == "sigmoid"
    layout = GateLayout((0, 1, 2), (-1 if flip else 1, 1, 1))
    return layout, "keep" if origin_mode or flip else "replace"


def weight_h(flat: Array, layout: GateLayout) -> Array:
    """Converts Paddle's ``WeightH`` (O, 3*O) to weights of h, ldigo (L=1, D=1, O, G=3, O).

    The memory of ``WeightH`` has two consecutive blocks: (O, 2*O) for update and reset gate, (O, O)
    for the candidate.
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
    """Converts ``WeightH`` (O, 3*O), ``Bias`` (1, 3*O) and ``WeightX`` (I, 3*O) to weights.

    Without ``projection``, x is projected already.
    """
    layer = None if projection is None else input_layer(projection, layout)
    return RnnWeights(layer, weight_h(flat, layout), split_bias(bias, layout))


def weight_h_back(weights_iter: Array, layout: GateLayout) -> Array:
    """Converts weights of h (1, 1, O, 3, O) to ``WeightH`` (O, 3*O), with two blocks in memory."""
    hidden = weights_iter.shape[2]
    rows = layout.inverse(weights_iter.reshape(hidden, 3 * hidden))
    gates, candidate = np.split(rows, [2 * hidden], axis=1)
    return np.concatenate([gates.reshape(-1), candidate.reshape(-1)]).reshape(hidden, 3 * hidden)


LSTM_GATES = "c i f o"
LSTM = gate_layout(Cell.LSTM, LSTM_GATES)
"""The layout of the gates of ``lstm`` and ``fusion_lstm``."""


def lstm_bias(bias: Array, *, peephole: bool) -> tuple[Array, Array | None]:
    """Converts ``Bias`` (1, 4*O) or (1, 7*O) to bias (1, 1, 4, O) and peephole (1, 1, 3, O).

    After the biases come w_ic, w_fc, w_oc, the peephole weights of gates i, f, o in oneDNN's order.
    """
    flat, gates = bias.reshape(-1), 7 if peephole else 4
    hidden = flat.size // gates
    if flat.size != gates * hidden or bias.shape[-1] != flat.size:
        raise ShapeError(f"Bias: expected (1, {gates}*O), got {bias.shape}")
    biases, weights = np.split(flat, [4 * hidden])
    return LSTM.split(biases)[None, None], weights.reshape(1, 1, 3, -1) if peephole else None


def lstm_bias_back(bias: Array, peephole: Array | None) -> Array:
    """Converts bias (1, 1, 4, O) and peephole (1, 1, 3, O) to ``Bias`` (1, 4*O) or (1, 7*O)."""
    flat = bias_back(bias, LSTM)
    return flat if peephole is None else np.concatenate([flat, peephole.reshape(1, -1)], axis=1)


RNN_CELLS = {
    "LSTM": (Cell.LSTM, GateLayout((0, 1, 2, 3), (1, 1, 1, 1))),
    "GRU": (Cell.LBR_GRU, GateLayout((1, 0, 2), (1, 1, 1))),  # r, z, c; h = (1-z) c + z h
    "RNN_TANH": (Cell.RNN_TANH, GateLayout((0,), (1,))),
    "RNN_RELU": (Cell.RNN_RELU, GateLayout((0,), (1,))),
}
"""The cell and the gate layout of each mode of the operator ``rnn``."""


def rnn_weights(arrays: Sequence[Array], mode: str, layers: int, directions: int) -> Layers:
    """Converts ``WeightList`` of the operator ``rnn`` to one `RnnWeights` for each layer.

    The list has PyTorch's arrays: w_ih (G*O, I) and w_hh (G*O, O) of each layer and direction,
    forward first, then b_ih and b_hh (G*O,) in the same order. The two biases are added, except a
    GRU candidate's b_hh, which is inside r*(...): it is oneDNN's fourth row.
    """
    parts = layers * directions
    if len(arrays) not in (2 * parts, 4 * parts):
        raise ShapeError(f"WeightList: expected {4 * parts} arrays, got {len(arrays)}")
    kinds = (torch.NAMES.matrices, torch.NAMES.biases)
    places = list(np.ndindex(layers, directions))
    names = [torch.NAMES.place(name, *at) for kind in kinds for at in places for name in kind]
    named = dict(zip(names, arrays, strict=False))
    return tuple(torch.NAMES.read(named, RNN_CELLS[mode][0], layers, directions))


def rnn_weights_back(weights: Sequence[RnnWeights], mode: str) -> list[Array]:
    """Converts one `RnnWeights` for each layer to ``WeightList``.

    Summed biases become b_ih; b_hh is zero except for a GRU's candidate.
    """
    if any(each.layer is None for each in weights):
        raise ShapeError("WeightList: expected input weights w_ih, got an already projected input")
    named = torch.NAMES.write(layer_of(RNN_CELLS[mode][0], weights))
    return [named[name] for name in sorted(named, key=lambda name: name.startswith("bias"))]
