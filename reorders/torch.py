"""PyTorch's state dicts of RNN, LSTM and GRU <-> the pivot.

Names, layouts and formulas: documentation of torch.nn.RNN, LSTM and GRU. Its GRU multiplies with
the reset gate behind the product: LBR_GRU.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.ir.arrays import Array
from onernn.ir.spec import Cell
from onernn.ir.weights import RnnWeights
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    PivotLayer,
    cell_of,
    check_all_read,
    gate_layout,
    layer_of,
    matrix,
    matrix_back,
    need,
    part_of,
    rows,
    rows_back,
)

GATES = {Cell.RNN_TANH: "h", Cell.RNN_RELU: "h", Cell.LSTM: "i f c o", Cell.LBR_GRU: "r u o"}


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}{'_reverse' * direction}"


def read(state: Arrays, *, nonlinearity: str = "tanh") -> PivotLayer:
    """A layer from weight_ih_l0 (G*O, I), weight_hh_l0 (G*O, R), bias_ih_l0, bias_hh_l0 (G*O,),
    weight_hr_l0 (R, O), then _l0_reverse, _l1, ...; those of a Cell have no suffix.

    ``nonlinearity`` is that of torch.nn.RNN. Raises `ShapeError` naming the array.
    """
    if "weight_ih" in state:  # torch.nn.LSTMCell and its like
        state = {f"{name}_l0": array for name, array in state.items()}
    count = 0
    while f"weight_ih_l{count}" in state:
        count += 1
    sides = 2 if "weight_ih_l0_reverse" in state else 1
    first = need(state, "weight_hh_l0", 2)
    hidden = need(state, "weight_hr_l0", 2).shape[1] if "weight_hr_l0" in state else first.shape[1]
    gates = len(first) // max(hidden, 1)
    cell = cell_of(gates, linear_before_reset=True, function=nonlinearity)
    seen: set[str] = set()
    parts = [
        [_read_part(state, cell, _suffix(k, d), seen) for d in range(sides)] for k in range(count)
    ]
    check_all_read(state, seen)
    return layer_of(cell, parts)


def _read_part(state: Arrays, cell: Cell, suffix: str, seen: set[str]) -> RnnWeights:
    layout = gate_layout(cell, GATES[cell])
    result = {}
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"):
        if name.endswith(("ih", "hh")) and name.startswith("weight") or name + suffix in state:
            result[name] = need(state, name + suffix, 1 if name.startswith("bias") else 2)
            seen.add(name + suffix)
    bias = None
    if "bias_ih" in result or "bias_hh" in result:
        bias = rows(layout, need(result, "bias_ih"), need(result, "bias_hh"), cell)
    return part_of(
        matrix(result["weight_ih"].T, layout, "weight_ih" + suffix),
        matrix(result["weight_hh"].T, layout, "weight_hh" + suffix),
        bias,
        projection=result["weight_hr"].T if "weight_hr" in result else None,
    )


def write(layer: PivotLayer) -> dict[str, Array]:
    """The state dict of a layer. Raises `UnsupportedError` for what PyTorch cannot say."""
    FRAMEWORK.check(layer)
    cell = layer.spec.cell
    layout, gates, out = gate_layout(cell, GATES[cell]), len(cell.gates), {}
    for k, weights in enumerate(layer.weights):
        for d in range(layer.spec.directions):
            suffix = _suffix(k, d)
            assert weights.layer is not None  # checked
            out[f"weight_ih{suffix}"] = matrix_back(weights.layer[0, d], layout).T.copy()
            out[f"weight_hh{suffix}"] = matrix_back(weights.iter[0, d], layout).T.copy()
            if weights.bias is not None:
                both = rows_back(weights.bias[0, d], layout, gates)
                out[f"bias_ih{suffix}"], out[f"bias_hh{suffix}"] = both
            if weights.projection is not None:
                out[f"weight_hr{suffix}"] = weights.projection[0, d].T.copy()
    return out


FRAMEWORK = Framework(
    "torch",
    "PyTorch",
    "weight_ih (G*O, I), weight_hh (G*O, R), weight_hr (R, O)",
    "bias_ih, bias_hh (G*O,)",
    GATES,
    read,
    write,
    limits=replace(SIMPLE, projection=True),
)
