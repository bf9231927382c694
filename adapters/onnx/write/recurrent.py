"""Recurrent layers as RNN, GRU and LSTM of ONNX, one for each layer of a stack.

What these cannot say becomes a Scan: see `write_scan`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.adapters.onnx.write.padding import OnnxValue, PaddedGraph
from onernn.adapters.onnx.write.scanned_layer import LayerInputs, LayerOutputs, scan_layer
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, dense, ragged
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.operators.activations import completed
from onernn.reorders import onnx

_NAMES = {
    name.lower(): name
    for name in "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu"
    " Softsign Softplus".split()
}
DOMAIN = "onernn"
_DIRECTIONS = {"left2right": "forward", "right2left": "reverse"}


def obstacle(spec: RnnSpec, weights: RnnWeights) -> str:
    """What ONNX's operators, or ONNX Runtime's, cannot say of a layer; "" where they can."""
    if spec.cell.has_attention:
        return f"{spec.cell.name}: ONNX has no attention gate"
    if spec.projection_size:
        return "ONNX's LSTM has no projection"
    if spec.cell_clip is not None:
        return "ONNX's LSTM does not clip its cell state"
    if spec.update == "replace":
        return "ONNX's GRU keeps with its update gate"
    if weights.iter.dtype != np.float32:
        return f"ONNX Runtime runs no {weights.iter.dtype} recurrent operators"
    return ""


def rnn(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """The rule of Rnn: layer by layer, each reading what the one before it gave."""
    spec: RnnSpec = node.attributes["spec"]
    layers = layers_of(spec, node.attributes["weights"])
    if spec.stacking == "onednn" and spec.layers > 1:
        raise UnsupportedError("stacking='onednn': each direction would have a stack of its own")
    x, *more = [*inputs, None, None, None][:4]
    if x is None:
        raise UnsupportedError("its input is missing")
    given = [dense(state, "a state") if state else "" for state in more[:2]]
    states = given[: len(spec.cell.states)]
    tensor = w.emit("Transpose", x.data, perm=(1, 0, 2)) if x.lengths else x.data
    attention = _attention(w, more[2], bool(x.lengths))
    width, ends = spec.input_size, []
    cells = len(node.outputs) > 3 and node.outputs[3] in w.wanted
    for at, weights in enumerate(layers):
        own = tuple(
            w.emit("Gather", s, w.constant(at, "int64"), axis=0) if s else "" for s in states
        )
        layer = LayerInputs(tensor, x.lengths, own, attention)
        one = spec.one_layer(width, spec.direction)
        if cells:  # c of every word: one layer in one direction only
            written = scan_layer(w, one, weights, layer, cells=True)
        else:
            written = _layer(w, one, weights, layer)
        tensor, width = written.y, spec.output_size
        ends.append(_kept(w, written.states, layer))
    y = w.emit("Transpose", tensor, perm=(1, 0, 2)) if x.lengths else tensor
    w.give(node, y, x.lengths)
    if cells:
        c = w.emit("Transpose", written.cells, perm=(1, 0, 2)) if x.lengths else written.cells
        w.give(node, c, x.lengths, at=3)
    for at, of_layers in enumerate(zip(*ends, strict=True), 1):
        if at < len(node.outputs) and node.outputs[at] in w.wanted:
            parts = [w.emit("Unsqueeze", state, w.ints(0)) for state in of_layers]
            w.give(node, w.emit("Concat", *parts, axis=0), at=at)


def _layer(w: GraphWriter, spec: RnnSpec, weights: RnnWeights, layer: LayerInputs) -> LayerOutputs:
    reason = obstacle(spec, weights)
    if not reason:
        return _standard(w, spec, weights, layer)
    if not spec.cell.has_attention:
        return scan_layer(w, spec, weights, layer)
    if w.functions is None:
        raise UnsupportedError(f"{reason}; allow functions, and it becomes one")
    return _function(w, spec, weights, layer)


def _function(
    w: GraphWriter, spec: RnnSpec, weights: RnnWeights, layer: LayerInputs
) -> LayerOutputs:
    """A call of a function of the model's own, whose body is standard ONNX."""
    inner = PaddedGraph()
    names = LayerInputs(
        "X", "lengths", tuple(f"initial_{k}" for k in spec.cell.states), "attention"
    )
    formal = LayerInputs(*(_present(n, a) for n, a in zip(names, layer, strict=True)))
    actual = [name for name in (layer.x, layer.lengths, *layer.states, layer.attention) if name]
    taken = [name for name in (formal.x, formal.lengths, *formal.states, formal.attention) if name]
    for name in taken:
        inner.fresh(name)
    written = scan_layer(inner, spec, weights, formal)
    name = f"{spec.cell.name}_{len(w.functions or {}) + 1}"
    given = [written.y, *written.states]
    if w.functions is not None:
        w.functions[name] = inner.function(name, DOMAIN, taken, given, w.opset)
    outs = [w.fresh(out) for out in given]
    w.add(name, *actual, outputs=outs, domain=DOMAIN)
    return LayerOutputs(outs[0], tuple(outs[1:]))


def _present(name: Any, actual: Any) -> Any:
    """The formal names of those that the call has."""
    if isinstance(name, tuple):
        return tuple(n if a else "" for n, a in zip(name, actual, strict=True))
    return name if actual else ""


def _attention(w: GraphWriter, attention: OnnxValue | None, is_ragged: bool) -> str:
    if attention is None:
        return ""
    if is_ragged:
        return w.emit("Transpose", ragged(attention, "the attention").data, perm=(1, 0, 2))
    return dense(attention, "the attention")


def _kept(w: GraphWriter, states: tuple[str, ...], layer: LayerInputs) -> tuple[str, ...]:
    """A sentence without words keeps its initial state; ONNX gives zeros."""
    if not layer.lengths:
        return states
    some = w.emit("Unsqueeze", w.emit("Cast", layer.lengths, to=9), w.ints(1))
    return tuple(
        w.emit("Where", some, state, given) if given else state
        for state, given in zip(states, layer.states, strict=True)
    )


def _standard(
    w: GraphWriter, spec: RnnSpec, weights: RnnWeights, layer: LayerInputs
) -> LayerOutputs:
    cell, units, d = spec.cell, spec.hidden_size, spec.directions
    op = "LSTM" if cell is Cell.LSTM else "GRU" if cell.is_gru else "RNN"
    source = weights.layer
    if source is None:  # the input is projected already: a product with the identity
        wide = spec.gates * units
        one = np.eye(wide, dtype=weights.iter.dtype).reshape(1, 1, wide, spec.gates, units)
        source = np.broadcast_to(one, (1, d, *one.shape[2:]))
    constants = [onnx.matrix_back(source, cell), onnx.matrix_back(weights.iter, cell)]
    names = [w.constant(a, name=f"{op}/{k}") for a, k in zip(constants, "WR", strict=True)]
    names.append(_optional(w, None if weights.bias is None else onnx.bias_back(weights.bias, cell)))
    names += [layer.lengths, *layer.states]
    if spec.peephole and weights.peephole is not None:
        names.append(_optional(w, onnx.peephole_back(weights.peephole)))
    while not names[-1]:
        names.pop()
    outs = [w.fresh(f"{op}/{name}") for name in ("Y", "Y_h", "Y_c")[: 1 + len(cell.states)]]
    w.add(op, layer.x, *names, outputs=outs, **_attributes(spec))
    y, *final = outs
    if spec.direction == "bidirectional_sum":
        y = w.reduce("ReduceSum", y, (1,), keepdims=0)
    elif d == 1:
        y = w.emit("Squeeze", y, w.ints(1))
    else:
        y = w.emit("Reshape", w.emit("Transpose", y, perm=(0, 2, 1, 3)), w.ints(0, 0, -1))
    return LayerOutputs(y, tuple(final))


def _optional(w: GraphWriter, array: Array | None) -> str:
    return "" if array is None else w.constant(array)


def _attributes(spec: RnnSpec) -> dict[str, Any]:
    d = spec.directions
    found: dict[str, Any] = {"hidden_size": spec.hidden_size}
    found["direction"] = _DIRECTIONS.get(spec.direction, "bidirectional")
    if spec.cell.is_gru:
        found["linear_before_reset"] = int(spec.cell.linear_before_reset)
    if spec.gate_clip is not None:
        found["clip"] = float(spec.gate_clip)
    if spec.input_forget:
        found["input_forget"] = 1
    chosen = [_named(each) for each in spec.functions] * d
    found["activations"] = [name for name, _ in chosen]
    for k, key in enumerate(("activation_alpha", "activation_beta")):
        numbers = [values[k] for _, values in chosen if len(values) > k]
        if numbers:
            found[key] = [float(number) for number in numbers]
    return found


def _named(chosen: Activation) -> tuple[str, tuple[float, ...]]:
    """ONNX's name and numbers; what a function takes is written out, defaults too."""
    name, *numbers = completed(chosen)
    if name == "identity":
        return "Affine", (1.0, 0.0)
    return _NAMES[name], tuple(number for number in numbers if number is not None)
