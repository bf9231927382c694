"""Converts the weights of ONNX's recurrent operators to the pivot layout, and back.

Layouts: ONNX operator specification, RNN, GRU, LSTM. W (D, G*O, I) and R (D, G*O, O) are ldgoi.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, seal
from onernn.ir.errors import ShapeError
from onernn.ir.spec import Activation, Cell, Direction
from onernn.ir.weights import RnnWeights
from onernn.reorders import layers
from onernn.reorders.gates import GateLayout
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    PivotLayer,
    cell_of,
    check_all_read,
    gates_of,
    layer_of,
    need,
    prefixes_of,
)

PEEPHOLES = GateLayout((0, 2, 1), (1, 1, 1))  # i, o, f
GATES = gates_of(lstm="i o f c", gru="u r o")
"""ONNX's gate orders; its z, r, h are oneDNN's u, r, o, with the same formula h = (1-z) h~ + z
h'.
"""


def gate_layout(cell: Cell) -> GateLayout:
    """Returns the layout of ONNX's gates."""
    return layers.gate_layout(cell, GATES[cell])


def matrix(name: str, array: Array, cell: Cell) -> Array:
    """Converts W (D, G*O, I) or R (D, G*O, O) to weights of x or h, ldigo (1, D, I, G, O)."""
    if array.ndim != 3:
        raise ShapeError(f"{name}: expected (D, G*O, I), got {array.shape}")
    return seal(gate_layout(cell).split(array.swapaxes(1, 2))[None])


def matrix_back(ldigo: Array, cell: Cell) -> Array:
    """Converts weights (1, D, I, G, O) to W or R (D, G*O, I)."""
    _, d, i, g, o = ldigo.shape
    back = gate_layout(cell).inverse(ldigo.reshape(d, i, g * o))
    return np.ascontiguousarray(back.swapaxes(1, 2))


def bias(b: Array, cell: Cell) -> Array:
    """Converts B (D, 2*G*O), the biases of W and then of R, to ldgo (1, D, G', O).

    The two biases are summed. An LBR cell's candidate keeps both, because R's bias is inside
    r*(...).
    """
    if b.ndim != 2 or b.shape[1] % (2 * len(cell.gates)):
        raise ShapeError(f"B: expected (D, {2 * len(cell.gates)}*O), got {b.shape}")
    layout, halves = gate_layout(cell), zip(*np.split(b, 2, axis=1), strict=True)
    return np.stack([layers.rows(layout, of_w, of_r, cell) for of_w, of_r in halves])[None]


def bias_back(ldgo: Array, cell: Cell) -> Array:
    """Converts ldgo (1, D, G', O) to B (D, 2*G*O); R's biases are zero, except an LBR cell's
    candidate.
    """
    gates, layout = len(cell.gates), gate_layout(cell)
    return np.stack([np.concatenate(layers.rows_back(each, layout, gates)) for each in ldgo[0]])


def peephole(p: Array) -> Array:
    """Converts P (D, 3*O) of gates i, o, f to ldgo (1, D, 3, O) of gates i, f, o."""
    if p.ndim != 2:
        raise ShapeError(f"P: expected (D, 3*O), got {p.shape}")
    return PEEPHOLES.split(p)[None]


def peephole_back(ldgo: Array) -> Array:
    """Converts ldgo (1, D, 3, O) to P (D, 3*O)."""
    return PEEPHOLES.inverse(ldgo.reshape(ldgo.shape[1], -1))


def weights(w: Array, r: Array, b: Array | None, p: Array | None, cell: Cell) -> RnnWeights:
    """Converts W (D, G*O, I), R (D, G*O, O), B (D, 2*G*O) and P (D, 3*O) to one layer's weights.

    `write` is the inverse.
    """
    return RnnWeights(
        matrix("W", w, cell),
        matrix("R", r, cell),
        None if b is None else bias(b, cell),
        None if p is None else peephole(p),
    )


def couple(weights: RnnWeights) -> RnnWeights:
    """Returns the weights of an LSTM whose forget gate has the negated weights of i, so that it is
    1 - i.
    """
    turned: Any = {
        name: array.copy() for name, array in weights.arrays.items() if name != "projection"
    }
    for array in turned.values():
        array[..., 1, :] = -array[..., 0, :]  # sigmoid(-a) = 1 - sigmoid(a)
    return replace(weights, **turned)


def read(
    arrays: Arrays,
    *,
    linear_before_reset: bool = False,
    direction: Direction | None = None,
    function: str = "tanh",
    activations: tuple[Activation, ...] | None = None,
) -> PivotLayer:
    """Returns a layer from an operator's W, R, B and P; in stacks, their names begin with 0/, 1/,
    ....

    The other arguments are the operator's attributes. ``function``: the activation that an RNN
    uses. Raises `ShapeError`.
    """
    prefixes = prefixes_of(arrays)
    first = need(arrays, f"{prefixes[0]}R", 3)
    gates = first.shape[1] // first.shape[2]
    cell = cell_of(gates, linear_before_reset=linear_before_reset, function=function)
    check_all_read(arrays, {f"{prefix}{name}" for prefix in prefixes for name in "WRBP"})
    parts = []
    for prefix in prefixes:
        w, r = (need(arrays, f"{prefix}{name}", 3) for name in "WR")
        parts.append(weights(w, r, arrays.get(f"{prefix}B"), arrays.get(f"{prefix}P"), cell))
    return layer_of(cell, parts, direction, activations)


def write(layer: PivotLayer) -> dict[str, Array]:
    """Returns W, R, B and P of an operator, or of several operators with names 0/W, 1/W, ...."""
    cell, out = layer.spec.cell, {}
    for k, weights in enumerate(layer.weights):
        prefix = f"{k}/" if layer.spec.layers > 1 else ""
        assert weights.layer is not None  # checked
        out[f"{prefix}W"] = matrix_back(weights.layer, cell)
        out[f"{prefix}R"] = matrix_back(weights.iter, cell)
        if weights.bias is not None:
            out[f"{prefix}B"] = bias_back(weights.bias, cell)
        if weights.peephole is not None:
            out[f"{prefix}P"] = peephole_back(weights.peephole)
    return out


FRAMEWORK = Framework(
    "onnx",
    "ONNX",
    "W (D, G*O, I), R (D, G*O, O), P (D, 3*O): i o f",
    "B (D, 2*G*O): W's, then R's",
    GATES,
    read,
    write,
    limits=replace(
        SIMPLE,
        directions=("left2right", "right2left", "bidirectional_concat"),
        peephole=True,
        functions=None,
        gate_clip=True,
    ),
)
