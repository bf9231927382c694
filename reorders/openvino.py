"""Weights of OpenVINO's RNNSequence, GRUSequence and LSTMSequence <-> the pivot.

Layouts and formulas: OpenVINO's operation specifications. LSTM: gates f, i, c, o; GRU: z, r, h
with h = (1-z) h~ + z h'; one bias, and with linear_before_reset a fourth block behind it.
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
    prefixes_of,
)

GATES = gates_of(lstm="f i c o", gru="u r o")


def read(
    arrays: Arrays,
    *,
    direction: Direction | None = None,
    linear_before_reset: bool | None = None,
    function: str = "tanh",
    activations: tuple[Activation, ...] | None = None,
) -> PivotLayer:
    """A layer from W (D, G*O, I), R (D, G*O, O) and B (D, G*O) or (D, 4*O); stacks have them under
    0/, 1/, ....

    ``linear_before_reset``: a GRU's; None: by B. ``function``: an RNNSequence's. Raises
    `ShapeError` naming the array.
    """
    prefixes = prefixes_of(arrays)
    first = need(arrays, f"{prefixes[0]}R", 3)
    gates, units = first.shape[1] // first.shape[2], first.shape[2]
    if linear_before_reset is None:
        bias = arrays.get(f"{prefixes[0]}B")
        linear_before_reset = bias is not None and bias.shape[-1] == 4 * units
    cell = cell_of(gates, linear_before_reset=linear_before_reset, function=function)
    seen: set[str] = set()
    parts = [_read_layer(arrays, cell, prefix, seen) for prefix in prefixes]
    check_all_read(arrays, seen)
    return layer_of(cell, parts, direction, activations)


def _read_layer(arrays: Arrays, cell: Cell, prefix: str, seen: set[str]) -> list[RnnWeights]:
    layout, gates = gate_layout(cell, GATES[cell]), len(cell.gates)
    w, r = need(arrays, f"{prefix}W", 3), need(arrays, f"{prefix}R", 3)
    b = np.asarray(arrays[f"{prefix}B"]) if f"{prefix}B" in arrays else None
    seen |= {f"{prefix}{name}" for name in "WRB"}
    units = r.shape[-1]
    expected = (len(r), cell.bias_rows * units)
    if w.shape[:2] != r.shape[:2] or b is not None and b.shape != expected:
        raise ShapeError(
            f"{prefix}W, R, B: {w.shape}, {r.shape}, {None if b is None else b.shape}"
            f" do not belong together; B would be {expected}"
        )
    parts = []
    for d in range(len(r)):
        bias = None
        if b is not None:
            whole, inner = np.split(b[d], [gates * units])
            bias = np.concatenate([layout.split(whole), inner.reshape(-1, units)])
        source, state = (matrix(a[d].T, layout, prefix) for a in (w, r))
        parts.append(part_of(source, state, bias))
    return parts


def write(layer: PivotLayer) -> dict[str, Array]:
    """The weights of a layer. Raises `UnsupportedError` for what OpenVINO cannot say."""
    spec, out = layer.spec, {}
    layout, gates = gate_layout(spec.cell, GATES[spec.cell]), spec.gates
    for k, weights in enumerate(layer.weights):
        prefix = f"{k}/" if spec.layers > 1 else ""
        assert weights.layer is not None  # checked
        for name, array in (("W", weights.layer), ("R", weights.iter)):
            out[prefix + name] = np.stack([matrix_back(part, layout).T for part in array[0]])
        if weights.bias is not None:
            out[f"{prefix}B"] = np.stack(
                [
                    np.concatenate([layout.inverse(b[:gates].reshape(-1)), b[gates:].reshape(-1)])
                    for b in weights.bias[0]
                ]
            )
    return out


FRAMEWORK = Framework(
    "openvino",
    "OpenVINO",
    "W (D, G*O, I), R (D, G*O, O)",
    "B (D, G*O); linear_before_reset: (D, 4*O)",
    GATES,
    read,
    write,
    limits=replace(
        SIMPLE,
        directions=("left2right", "right2left", "bidirectional_concat"),
        functions=None,
        gate_clip=True,
    ),
)
