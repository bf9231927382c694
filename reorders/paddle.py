"""Paddle's recurrent parameters <-> the pivot.

Layouts and formulas: documentation of Paddle's operators ``gru`` and ``fusion_gru``.
"""

from __future__ import annotations

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.spec import Update
from onernn.reorders.gates import GateLayout


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
