"""The rules of PyTorch's recurrent operators.

Formulas and layouts: documentation of torch.nn.RNN, LSTM and GRU, and of their cells.
"""

from __future__ import annotations

from onernn.adapters.lowering import Results
from onernn.adapters.torch.lower.builder import WEIGHTS
from onernn.adapters.torch.lower.operator import TorchOperator, rule
from onernn.core.errors import UnsupportedError
from onernn.reorders import torch
from onernn.reorders.layers import PivotLayer


@rule("lstm.input gru.input rnn_tanh.input rnn_relu.input")
def _layer(op: TorchOperator) -> Results:
    """Outputs y (T, N, D*R), h (L*D, N, R) and, of an LSTM, c (L*D, N, O)."""
    layer = _stack(op)
    x, first = op.value("input"), op.attribute("batch_first", False)
    _check_inference(op)
    x = op.emit("Transpose", x, perm=(1, 0, 2)) if first else x
    y, *finals = _run(op, layer, x, op.variables("hx"))
    return op.emit("Transpose", y, perm=(1, 0, 2)) if first else y, *finals


@rule("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def _cell(op: TorchOperator) -> Results:
    """A step: h (N, O) and, of an LSTM, c (N, O)."""
    slots = ("w_ih", "w_hh", "b_ih", "b_hh")
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    state = {
        name: op.array(slot) for name, slot in zip(names, slots, strict=True) if op.given(slot)
    }
    relu = {"nonlinearity": "relu"} if "relu" in op.at.type else {}
    layer = torch.read(state, **relu)
    x = op.emit("Unsqueeze", op.value("input"), op.ints(0))
    _, *finals = _run(op, layer, x, op.variables("hx"))
    return tuple(op.emit("Squeeze", final, op.ints(0)) for final in finals)


def _stack(op: TorchOperator) -> PivotLayer:
    """The layers of an operator: its parameters come layer by layer, forwards and backwards."""
    names = op.variables("params")
    arrays = [op.builder.array(op.builder.value(name), "params") for name in names]
    layers = op.attribute("num_layers", 1)
    sides = ["", "_reverse"] if op.attribute("bidirectional", False) else [""]
    kinds = ["weight_ih", "weight_hh"]
    if op.attribute("has_biases", True):
        kinds += ["bias_ih", "bias_hh"]
    if layers < 1 or len(arrays) % (layers * len(sides)):
        raise UnsupportedError(f"{len(arrays)} parameters of {layers} layers")
    if len(arrays) == layers * len(sides) * (len(kinds) + 1):
        kinds.append("weight_hr")
    wanted = [f"{kind}_l{at}{side}" for at in range(layers) for side in sides for kind in kinds]
    if len(wanted) != len(arrays):
        raise UnsupportedError(f"{len(arrays)} parameters, expected {', '.join(wanted[:6])}, ...")
    relu = {"nonlinearity": "relu"} if "relu" in op.at.type else {}
    return torch.read(dict(zip(wanted, arrays, strict=True)), **relu)


def _check_inference(op: TorchOperator) -> None:
    dropout, training = op.attribute("dropout", 0.0), op.attribute("train", False)
    if training and dropout:
        raise UnsupportedError("exported for training, with dropout; call model.eval() before")


def _run(op: TorchOperator, layer: PivotLayer, x: str, states: list[str]) -> tuple[str, ...]:
    """y (T, N, D*R) and the last states (L*D, N, R or O)."""
    spec = layer.spec
    rows, dtype = spec.layers * spec.directions, layer.weights[0].iter.dtype
    op.builder.tie(op.builder.free_in(x, op.rank(x) - 1), WEIGHTS)
    if op.dtype_of(x) != dtype:
        raise UnsupportedError(f"its weights are {dtype}, its input is {op.dtype_of(x)}")
    if len(states) not in (0, len(spec.cell.states)):
        raise UnsupportedError(f"{len(states)} initial states of an {spec.cell.name}")
    widths = (spec.recurrent_size, spec.hidden_size)
    given = []
    for variable, width in zip(states, widths, strict=False):
        value = op.builder.value(variable)
        if op.builder.is_zeros(value):
            given.append("")  # of any batch, whatever size the program gives them
        else:
            state = op.read(value)
            op.builder.tie(op.builder.free_in(state, op.rank(state) - 1), WEIGHTS)
            if op.rank(state) == 3:
                op.builder.tie(op.builder.free_in(state, 0), WEIGHTS)
            given.append(
                op.emit("Reshape", state, op.ints(spec.layers, spec.directions, -1, width))
            )
    weights = layer.weights if len(layer.weights) > 1 else layer.weights[0]
    count = 1 + len(spec.cell.states)
    y, *finals = op.emit_many("Rnn", count, x, *given, spec=spec, weights=weights)
    return y, *(
        op.emit("Reshape", final, op.ints(rows, -1, width))
        for final, width in zip(finals, widths, strict=False)
    )
