"""Converts state dicts of PyTorch's RNN, LSTM and GRU to the pivot layout, and back.

Names, layouts and formulas: documentation of torch.nn.RNN, LSTM and GRU. PyTorch's GRU applies the
reset gate after the matrix product, as oneDNN's LBR_GRU does.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.ir.spec import Cell
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    NamedArrays,
    PivotLayer,
)

GATES = {Cell.RNN_TANH: "h", Cell.RNN_RELU: "h", Cell.LSTM: "i f c o", Cell.LBR_GRU: "r u o"}
NAMES = NamedArrays(
    GATES,
    lambda name, layer, direction, *_: f"{name}_l{layer}{'_reverse' * direction}",
    ("weight_ih", "weight_hh"),
    ("bias_ih", "bias_hh"),
    "weight_hr",
)


def read(state: Arrays, *, nonlinearity: str = "tanh") -> PivotLayer:
    """Returns a layer from weight_ih_l0 (G*O, I), weight_hh_l0 (G*O, R), bias_ih_l0 and bias_hh_l0
    (G*O,), weight_hr_l0 (R, O), then _l0_reverse, _l1, ....

    The names of a Cell have no suffix. ``nonlinearity``: the option of torch.nn.RNN. Raises
    `ShapeError` that names the array.
    """
    if "weight_ih" in state:  # torch.nn.LSTMCell and other cells
        state = {f"{name}_l0": array for name, array in state.items()}
    return NAMES.read_stack(state, linear_before_reset=True, function=nonlinearity)


FRAMEWORK = Framework(
    "torch",
    "PyTorch",
    "weight_ih (G*O, I), weight_hh (G*O, R), weight_hr (R, O)",
    "bias_ih, bias_hh (G*O,)",
    GATES,
    read,
    NAMES.write,
    limits=replace(SIMPLE, projection=True),
)
