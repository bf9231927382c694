"""The layouts of recurrent layers by name, and a table of them for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.spec import Cell
from onernn.ir.weights import RnnWeights
from onernn.reorders import keras, mxnet, onednn, onnx, paddle, torch
from onernn.reorders.gates import bias_back, input_layer, input_layer_back
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    PivotLayer,
    check_all_read,
    layer_of,
    need,
)


def _read_paddle_gru(arrays: Arrays, *, origin_mode: bool = False) -> PivotLayer:
    """Returns a layer from ``fusion_gru``'s WeightX (I, 3*O), WeightH in two blocks, and Bias (1,
    3*O) or none.
    """
    layout, _ = paddle.gru_layout(origin_mode=origin_mode, gate_activation="sigmoid")
    check_all_read(arrays, {"WeightX", "WeightH", "Bias"})
    x, h = (need(arrays, name, 2) for name in ("WeightX", "WeightH"))
    bias = need(arrays, "Bias", 2) if "Bias" in arrays else None
    return layer_of(Cell.GRU, [paddle.gru_weights(h, bias, layout, x)])


def _write_paddle_gru(layer: PivotLayer, *, origin_mode: bool = False) -> dict[str, Array]:
    layout, _ = paddle.gru_layout(origin_mode=origin_mode, gate_activation="sigmoid")
    (weights,) = layer.weights
    assert weights.layer is not None  # checked
    out = {"WeightX": input_layer_back(weights.layer, layout)}
    out["WeightH"] = paddle.weight_h_back(weights.iter, layout)
    if weights.bias is not None:
        out["Bias"] = bias_back(weights.bias, layout)
    return out


def _read_paddle_lstm(arrays: Arrays) -> PivotLayer:
    """Returns a layer from ``fusion_lstm``'s WeightX (I, 4*O), WeightH (O, 4*O), Bias (1, 4*O) or
    (1, 7*O).
    """
    check_all_read(arrays, {"WeightX", "WeightH", "Bias"})
    state, bias = need(arrays, "WeightH", 2), need(arrays, "Bias", 2)
    x, h = (input_layer(each, paddle.LSTM) for each in (need(arrays, "WeightX", 2), state))
    rows, seen = paddle.lstm_bias(bias, peephole=bias.size == 7 * len(state))
    return layer_of(Cell.LSTM, [RnnWeights(x, h, rows, seen)])


def _write_paddle_lstm(layer: PivotLayer) -> dict[str, Array]:
    (weights,) = layer.weights
    assert weights.layer is not None  # checked
    bias = weights.bias
    if bias is None:
        bias = np.zeros((1, 1, 4, layer.spec.hidden_size), weights.iter.dtype)
    return {
        "WeightX": input_layer_back(weights.layer, paddle.LSTM),
        "WeightH": input_layer_back(weights.iter, paddle.LSTM),
        "Bias": paddle.lstm_bias_back(bias, weights.peephole),
    }


def _read_mxnet_gluon(named: Arrays, *, function: str = "tanh") -> PivotLayer:
    """Returns a stack from gluon's l0_i2h_weight, l0_h2h_weight, l0_i2h_bias, ..., r0_... and
    l1_....
    """
    return mxnet.NAMES.read_stack(named, linear_before_reset=True, function=function)


def _read_mxnet(
    arrays: Arrays,
    *,
    mode: str,
    hidden: int,
    layers: int = 1,
    directions: int = 1,
    projection: int | None = None,
) -> PivotLayer:
    """Returns a stack from the vector ``parameters`` of the operator RNN, and the operator's
    attributes.
    """
    if mode not in mxnet.CELLS:
        raise UnsupportedError(f"mode {mode!r}: expected one of {', '.join(mxnet.CELLS)}")
    check_all_read(arrays, {"parameters"})
    stack = mxnet.Stack(mode, hidden, layers, directions, projection)
    flat = need(arrays, "parameters")
    return PivotLayer.of(
        stack.spec(stack.input_size(flat.size)), mxnet.weights(mxnet.split(flat, stack), stack)
    )


def _write_mxnet(layer: PivotLayer) -> dict[str, Array]:
    stack = mxnet.stack_of(layer.spec)
    return {"parameters": mxnet.join(mxnet.weights_back(*layer), stack)}


def _read_mxnet_gates(gates: Arrays, *, function: str = "tanh") -> PivotLayer:
    """Returns a stack from the legacy cells' arrays l0_i2h_i_weight, ..., one for each gate."""
    letters = {name.split("_")[2] for name in gates if name.count("_") == 3}
    mode = {"f": "lstm", "z": "gru"}.get(min(letters & {"f", "z"}, default=""), f"rnn_{function}")
    return _read_mxnet_gluon(mxnet.join_gates(gates, mode), function=function)


def _write_mxnet_gates(layer: PivotLayer) -> dict[str, Array]:
    return mxnet.split_gates(mxnet.weights_back(*layer), mxnet.stack_of(layer.spec))


_ONE_DIRECTION = replace(SIMPLE, directions=("left2right", "right2left"), stacks=False)
_MXNET_BIASES = "i2h_bias, h2h_bias (G*O,)"
_ALL: Sequence[Framework] = (
    *onednn.FRAMEWORKS.values(),
    onnx.FRAMEWORK,
    torch.FRAMEWORK,
    keras.FRAMEWORK,
    Framework(
        "paddle-gru",
        "Paddle's gru and fusion_gru",
        "WeightX (I, 3*O), WeightH: (O, 2*O), then (O, O)",
        "Bias (1, 3*O)",
        {Cell.GRU: "u r o"},
        _read_paddle_gru,
        _write_paddle_gru,
        signs="u turned, unless origin_mode",
        limits=_ONE_DIRECTION,
    ),
    Framework(
        "paddle-lstm",
        "Paddle's lstm and fusion_lstm",
        "WeightX (I, 4*O), WeightH (O, 4*O)",
        "Bias (1, 4*O), (1, 7*O) with peepholes i f o",
        {Cell.LSTM: paddle.LSTM_GATES},
        _read_paddle_lstm,
        _write_paddle_lstm,
        limits=replace(_ONE_DIRECTION, peephole=True),
    ),
    Framework(
        "paddle-rnn",
        "Paddle's rnn (paddle.nn)",
        torch.FRAMEWORK.matrices.replace(", weight_hr (R, O)", ""),
        torch.FRAMEWORK.biases,
        torch.GATES,  # paddle.nn has PyTorch's array names and gate orders
        torch.read,
        torch.NAMES.write,
    ),
    Framework(
        "mxnet",
        "MXNet's RNN",
        "parameters: all i2h (G*O, I), h2h (G*O, R), h2r (R, O) of l0, r0, l1, ...",
        "after all matrices, i2h and h2h (G*O,)",
        mxnet.GATES,
        _read_mxnet,
        _write_mxnet,
        limits=replace(SIMPLE, projection=True),
    ),
    Framework(
        "mxnet-gluon",
        "MXNet's gluon layers",
        "i2h_weight (G*O, I), h2h_weight (G*O, R), h2r_weight (R, O)",
        _MXNET_BIASES,
        mxnet.GATES,
        _read_mxnet_gluon,
        lambda layer: mxnet.weights_back(*layer),
        limits=replace(SIMPLE, projection=True),
    ),
    Framework(
        "mxnet-gates",
        "MXNet's legacy cells, unpacked",
        "i2h_i_weight (O, I), h2h_i_weight (O, O), ...: one per gate",
        "i2h_i_bias, h2h_i_bias (O,), ...",
        mxnet.GATES,
        _read_mxnet_gates,
        _write_mxnet_gates,
    ),
)
FRAMEWORKS: Mapping[str, Framework] = {each.name: each for each in _ALL}
"""All layouts, by the names that `convert_weights` accepts."""


def framework(name: str) -> Framework:
    """Returns the layout of this name. Raises `UnsupportedError` that lists all names."""
    if name not in FRAMEWORKS:
        hint = did_you_mean(name, FRAMEWORKS)
        raise UnsupportedError(f"layout {name!r}: expected one of {', '.join(FRAMEWORKS)}{hint}")
    return FRAMEWORKS[name]


def table() -> str:
    """Returns all layouts as a table in Markdown."""
    lines = [
        "| layout | matrices | biases | LSTM | GRU, reset before | GRU, reset behind | signs |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for each in _ALL:
        orders = [each.gates.get(cell, "no") for cell in (Cell.LSTM, Cell.GRU, Cell.LBR_GRU)]
        lines.append(
            " | ".join(("| `" + each.name + "`", each.matrices, each.biases, *orders, each.signs))
            + " |"
        )
    return "\n".join(lines) + "\n"
