"""Weights of Keras 2 and 3's SimpleRNN, LSTM and GRU <-> the pivot.

Names, layouts and formulas: documentation and source of keras.layers.SimpleRNN, LSTM, GRU and
Bidirectional. GRU: h = z h' + (1-z) h~; reset_after: the reset gate comes after the
product, and the bias has two rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.ir.spec import Activation, Direction
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    NamedArrays,
    PivotLayer,
    cell_of,
    gates_of,
    layer_of,
)


def _place(name: str, layer: int, direction: int, layers: int, directions: int) -> str:
    side = ("forward/", "backward/")[direction] if directions == 2 else ""
    return f"{layer}/{side}{name}" if layers > 1 else side + name


GATES = gates_of(lstm="i f c o", gru="u r o")
NAMES = NamedArrays(GATES, _place, ("kernel", "recurrent_kernel"), ("bias",), turned=False)


def read(
    arrays: Arrays,
    *,
    reset_after: bool | None = None,
    function: str = "tanh",
    activations: tuple[Activation, ...] | None = None,
    merge: Direction = "bidirectional_concat",
) -> PivotLayer:
    """Reads kernel (I, G*O), recurrent_kernel (O, G*O) and bias; stacks have them under
    0/, 1/, ..., Bidirectional under forward/ and backward/.

    ``reset_after``: a GRU's; None: by its bias, and without one true, as in Keras.
    ``function``: a SimpleRNN's. ``activations``: the cell's, unless they are the usual ones.
    ``merge``: of Bidirectional. Raises `ShapeError` naming the array.
    """
    layers, sides, gates = NAMES.sizes(arrays)
    bias = arrays.get(NAMES.place("bias", 0, 0, layers, sides))
    if reset_after is None:
        reset_after = bias is None or np.ndim(bias) == 2
    cell = cell_of(gates, linear_before_reset=reset_after, function=function)
    parts = NAMES.read(arrays, cell, layers, sides)
    return layer_of(cell, parts, merge if sides == 2 else None, activations)


FRAMEWORK = Framework(
    "keras",
    "Keras",
    "kernel (I, G*O), recurrent_kernel (O, G*O)",
    "bias (G*O,); reset_after: (2, G*O)",
    GATES,
    read,
    NAMES.write,
    limits=replace(
        SIMPLE,
        directions=("left2right", "bidirectional_concat", "bidirectional_sum"),
        functions=None,
    ),
)
