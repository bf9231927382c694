"""Paddle's recurrent parameters <-> the pivot.

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
from onernn.reorders.gates import GateLayout, input_layer, input_layer_back, summed_bias

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


def initial_state(h0: Array) -> Array:
    """``H0`` (N, O) in the caller's order -> src_iter, ldnc (1, 1, N, O)."""
    if h0.ndim != 2:
        raise ShapeError(f"H0: expected (N, O), got {h0.shape}")
    return h0[None, None]


def initial_state_back(src_iter: Array) -> Array:
    """src_iter (1, 1, N, O) -> ``H0`` (N, O)."""
    if src_iter.ndim != 4 or src_iter.shape[:2] != (1, 1):
        raise ShapeError(f"src_iter: expected (1, 1, N, O), got {src_iter.shape}")
    return src_iter[0, 0]


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
    (b_ih, b_hh), (G*O,) each, of each in the same order. Both biases are added; in a GRU's
    candidate b_hh stands inside r*(...) and stays apart, as oneDNN's fourth row.
    """
    parts = layers * directions
    if len(arrays) not in (2 * parts, 4 * parts):
        raise ShapeError(f"WeightList: expected {4 * parts} arrays, got {len(arrays)}")
    cell, layout = RNN_CELLS[mode]
    result = []
    for part in range(parts):
        w_ih, w_hh = arrays[2 * part : 2 * part + 2]
        b_ih, b_hh = arrays[2 * (parts + part) :][:2] or (None, None)
        result.append(
            RnnWeights(
                input_layer(w_ih.T, layout),
                input_layer(w_hh.T, layout),
                _rnn_bias(b_ih, b_hh, cell, layout),
            )
        )
    return tuple(
        RnnWeights.joined(result[first : first + directions], 1)
        for first in range(0, parts, directions)
    )


def _rnn_bias(
    b_ih: Array | None, b_hh: Array | None, cell: Cell, layout: GateLayout
) -> Array | None:
    if b_ih is None or b_hh is None:
        return None
    if not cell.linear_before_reset:
        return summed_bias(layout, b_ih, b_hh)
    of_input, of_state = layout.split(b_ih), layout.split(b_hh)
    rows = [of_input[0] + of_state[0], of_input[1] + of_state[1], of_input[2], of_state[2]]
    return np.stack(rows)[None, None]


def rnn_weights_back(weights: Sequence[RnnWeights], mode: str) -> list[Array]:
    """One-layer weights for each layer -> ``WeightList``.

    Sums of biases go into b_ih; b_hh is zero but for a GRU's candidate.
    """
    cell, layout = RNN_CELLS[mode]
    matrices, biases = [], []
    for layer in weights:
        for direction in range(layer.iter.shape[1]):
            part = layer.part(0, direction)
            if part.layer is None:
                raise ShapeError("WeightList: an input that is projected already has no w_ih")
            matrices += [input_layer_back(array, layout).T for array in (part.layer, part.iter)]
            if part.bias is None:
                continue
            rows = part.bias[0, 0]
            of_state = np.zeros_like(rows[: len(cell.gates)])
            if cell.linear_before_reset:
                of_state[-1] = rows[-1]
            biases += [
                layout.inverse(each.reshape(-1)) for each in (rows[: len(cell.gates)], of_state)
            ]
    return [*map(np.ascontiguousarray, matrices), *biases]
