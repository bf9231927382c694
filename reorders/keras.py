"""Weights of Keras 2 and 3's SimpleRNN, LSTM and GRU <-> the pivot.

Names, layouts and formulas: documentation and source of keras.layers.SimpleRNN, LSTM, GRU and
Bidirectional. GRU: h = z h' + (1-z) h~; reset_after: the reset gate stands behind the
product, where the bias has two rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.spec import Activation, Cell, Direction
from onernn.ir.weights import RnnWeights
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    PivotLayer,
    cell_of,
    check_all_read,
    gate_layout,
    gates_of,
    layer_of,
    matrix,
    matrix_back,
    need,
    part_of,
    rows,
    rows_back,
)

GATES = gates_of(lstm="i f c o", gru="u r o")
_SIDES = ("forward/", "backward/")


def _prefixes(layers: int, directions: int) -> list[list[str]]:
    sides = _SIDES if directions == 2 else ("",)
    return [[(f"{k}/" if layers > 1 else "") + side for side in sides] for k in range(layers)]


def read(
    arrays: Arrays,
    *,
    reset_after: bool | None = None,
    function: str = "tanh",
    activations: tuple[Activation, ...] | None = None,
    merge: Direction = "bidirectional_concat",
) -> PivotLayer:
    """A layer from kernel (I, G*O), recurrent_kernel (O, G*O) and bias; stacks have them under
    0/, 1/, ..., Bidirectional under forward/ and backward/.

    ``reset_after``: a GRU's; None: by its bias, and without one true, as in Keras.
    ``function``: a SimpleRNN's. ``activations``: the cell's, where they are not the usual ones.
    ``merge``: of Bidirectional. Raises `ShapeError` naming the array.
    """
    layers = len({name.split("/")[0] for name in arrays if name.split("/")[0].isdigit()}) or 1
    sides = 2 if any("backward/" in name for name in arrays) else 1
    prefixes = _prefixes(layers, sides)
    first = need(arrays, f"{prefixes[0][0]}recurrent_kernel", 2)
    bias = arrays.get(f"{prefixes[0][0]}bias")
    if reset_after is None:
        reset_after = bias is None or np.ndim(bias) == 2
    gates = first.shape[1] // first.shape[0]
    cell = cell_of(gates, linear_before_reset=reset_after, function=function)
    seen: set[str] = set()
    parts = [[_read_part(arrays, cell, prefix, seen) for prefix in each] for each in prefixes]
    check_all_read(arrays, seen)
    return layer_of(cell, parts, merge if sides == 2 else None, activations)


def _read_part(arrays: Arrays, cell: Cell, prefix: str, seen: set[str]) -> RnnWeights:
    layout = gate_layout(cell, GATES[cell])
    kernel, recurrent = (need(arrays, prefix + name, 2) for name in ("kernel", "recurrent_kernel"))
    seen |= {prefix + name for name in ("kernel", "recurrent_kernel", "bias")}
    bias = None
    if prefix + "bias" in arrays:
        given = np.asarray(arrays[prefix + "bias"])
        shape = (2, recurrent.shape[1]) if cell.linear_before_reset else (recurrent.shape[1],)
        if given.shape != shape:
            raise ShapeError(f"{prefix}bias: expected {shape}, got {given.shape}")
        of_x, of_h = given if given.ndim == 2 else (given, None)
        bias = rows(layout, of_x, of_h, cell)
    return part_of(
        matrix(kernel, layout, f"{prefix}kernel"),
        matrix(recurrent, layout, f"{prefix}recurrent_kernel"),
        bias,
    )


def write(layer: PivotLayer) -> dict[str, Array]:
    """The weights of a layer. Raises `UnsupportedError` for what Keras cannot say."""
    FRAMEWORK.check(layer)
    spec, out = layer.spec, {}
    layout, gates = gate_layout(spec.cell, GATES[spec.cell]), spec.gates
    prefixes = _prefixes(spec.layers, spec.directions)
    for weights, sides in zip(layer.weights, prefixes, strict=True):
        for d, prefix in enumerate(sides):
            assert weights.layer is not None  # checked
            out[f"{prefix}kernel"] = matrix_back(weights.layer[0, d], layout)
            out[f"{prefix}recurrent_kernel"] = matrix_back(weights.iter[0, d], layout)
            if weights.bias is not None:
                of_x, of_h = rows_back(weights.bias[0, d], layout, gates)
                lbr = spec.cell.linear_before_reset
                out[f"{prefix}bias"] = np.stack([of_x, of_h]) if lbr else of_x
    return out


FRAMEWORK = Framework(
    "keras",
    "Keras",
    "kernel (I, G*O), recurrent_kernel (O, G*O)",
    "bias (G*O,); reset_after: (2, G*O)",
    GATES,
    read,
    write,
    limits=replace(
        SIMPLE,
        directions=("left2right", "bidirectional_concat", "bidirectional_sum"),
        functions=None,
    ),
)
