"""A module's parameters as weights of a layer, and gradients back: copied by PyTorch, whose
turned copies take a sixth of NumPy's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onernn.core.arrays import sealed
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.reorders.layers import gate_layout
from onernn.reorders.torch import GATES

CELLS = {
    "LSTM": Cell.LSTM,
    "GRU": Cell.LBR_GRU,
    "RNN_TANH": Cell.RNN_TANH,
    "RNN_RELU": Cell.RNN_RELU,
}


def spec_of(module: Any) -> RnnSpec:
    """What a recurrent module of torch.nn computes."""
    if not isinstance(module, torch.nn.RNNBase):
        kind = next(cell for cell in ("LSTM", "GRU", "RNN") if f"{cell}Cell" in _bases(module))
        mode = f"RNN_{module.nonlinearity.upper()}" if kind == "RNN" else kind
        return RnnSpec(CELLS[mode], module.input_size, module.hidden_size)
    return RnnSpec(
        CELLS[module.mode],
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        direction="bidirectional_concat" if module.bidirectional else "left2right",
        projection_size=module.proj_size or None,
    )


def _bases(module: Any) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}


def weights_of(spec: RnnSpec, parameters: Sequence[torch.Tensor]) -> list[RnnWeights]:
    """The layers' weights from flat weights in PyTorch's order, copied."""
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    D, units, width = spec.directions, spec.hidden_size, spec.recurrent_size
    every = len(parameters) // (spec.layers * D)
    has_bias, new = every >= 4, parameters[0].new_empty
    layers = []
    for k in range(spec.layers):
        layer = new((1, D, spec.reads(k), len(order), units))
        recurrent = new((1, D, width, len(order), units))
        bias = new((1, D, spec.cell.bias_rows, units)) if has_bias else None
        projection = new((1, D, units, width)) if spec.projection_size else None
        for d in range(D):
            first = (k * D + d) * every
            ih, hh, *rest = parameters[first : first + every]
            for g, place in enumerate(order):
                rows = slice(place * units, (place + 1) * units)
                layer[0, d, :, g] = ih[rows].t()
                recurrent[0, d, :, g] = hh[rows].t()
                if bias is not None:
                    apart = spec.cell.linear_before_reset and g == 2
                    bias[0, d, g] = rest[0][rows] if apart else rest[0][rows] + rest[1][rows]
                    if apart:
                        bias[0, d, 3] = rest[1][rows]
            if projection is not None:
                projection[0, d] = rest[-1].t()
        made = (layer, recurrent, bias, None, projection)
        layers.append(RnnWeights(*(None if a is None else sealed(a.numpy()) for a in made)))  # type: ignore[arg-type]
    return layers


def gradients_back(spec: RnnSpec, layers: Sequence[RnnWeights], every: int) -> list[torch.Tensor]:
    """Gradients by flat weights, in PyTorch's order, from those by the layers' weights."""
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    flat: list[torch.Tensor] = []
    for weights in layers:
        arrays = {name: _tensor(array) for name, array in weights.arrays.items()}
        for d in range(spec.directions):
            for name in ("layer", "iter"):
                flat.append(_rows(arrays[name][0, d].permute(1, 2, 0), order))
            if every >= 4:
                bias = arrays["bias"][0, d]
                of_x = _rows(bias[: len(order)], order)
                # Of two summands each has the gradient of the sum.
                of_h = _rows(bias[[0, 1, 3]], order) if len(bias) > len(order) else of_x.clone()
                flat += [of_x, of_h]
            if spec.projection_size is not None:
                flat.append(_laid(arrays["projection"][0, d].t()))
    return flat


def _tensor(array: Any) -> torch.Tensor:
    array.flags.writeable = True  # nobody else has it
    return torch.from_numpy(array)


def _rows(gates: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """(G, O, ...) in oneDNN's order -> (G*O, ...) in PyTorch's."""
    if list(order) == sorted(order):
        return _laid(gates).view(-1, *gates.shape[2:])
    out = gates.new_empty(gates.shape)
    for g, place in enumerate(order):
        out[place] = gates[g]
    return out.view(-1, *gates.shape[2:])


def _laid(turned: torch.Tensor) -> torch.Tensor:
    return turned.clone(memory_format=torch.contiguous_format)
