"""Recurrent layers as RNN, GRU and LSTM of ONNX.

What these cannot say becomes a Scan: see `scanned_layer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.adapters.onnx.write.padding import PaddedGraph
from onernn.adapters.onnx.write.quantized import (
    has_two_inputs,
    refuse,
    rounded_input,
    rounded_matrix,
    told,
)
from onernn.adapters.onnx.write.scanned_layer import LayerInputs, LayerOutputs, scan_layer
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, dense
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.limits import Limits, why_not
from onernn.core.precision import LayerPrecision
from onernn.core.rnn import Recurrent
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import NAMES, completed
from onernn.reorders import onnx

DOMAIN = "onernn"
_DIRECTIONS = {"left2right": "forward", "right2left": "reverse"}


_LIMITS = Limits(
    who="ONNX",
    cells=tuple(onnx.GATES),
    replaces=False,
    cell_clip=False,
    projection=False,
    dtypes=("float32",),  # of what ONNX Runtime runs
)
"""What ONNX's RNN, GRU and LSTM can say."""


def has_one_direction(rnn: Recurrent) -> bool:
    """Whether a layer's directions become operators of their own: a Scan has one direction."""
    return bool(why_not(rnn.spec, rnn.layers, _LIMITS)) or has_two_inputs(rnn)


def rnn(w: GraphWriter, node: Node, _: Inputs) -> None:
    """One layer, one direction of those that become a Scan: `ExpandLayers` took stacks apart."""
    rnn = Recurrent.of(node)
    spec, (weights,) = rnn.spec, rnn.layers
    x, lengths = w.value(rnn.x).data, w.value(rnn.x).lengths
    states = tuple(
        s and w.emit("Squeeze", dense(w.value(s), "a state"), w.ints(0)) for s in rnn.states
    )
    attention = rnn.attention and w.value(rnn.attention).data
    if lengths:
        x = w.swapped(x, 3)
        attention = attention and w.swapped(attention, 3)
    layer = LayerInputs(x, lengths, states, attention)
    reason = why_not(spec, rnn.layers, _LIMITS)
    if rnn.precision:
        refuse(rnn, reason or "a cell state of every word" * (rnn.cells in w.wanted))
    if rnn.cells in w.wanted:
        written = scan_layer(w, spec, weights, layer, cells=True)
    elif not reason:
        written = _standard(w, spec, weights, layer, told(rnn.precision, weights))
    elif not spec.cell.has_attention:
        written = scan_layer(w, spec, weights, layer)
    elif w.functions is None:
        raise UnsupportedError(f"{reason}; allow functions, and it becomes one")
    else:
        written = _function(w, w.functions, spec, weights, layer)
    for at, tensor in ((0, written.y), (3, written.cells)):
        if tensor:
            w.give(node, w.swapped(tensor, 3) if lengths else tensor, lengths, at)
    finals = zip(rnn.finals, _kept(w, written.states, layer), strict=True)
    for at, (name, state) in enumerate(finals, 1):
        if name in w.wanted:
            w.give(node, w.emit("Unsqueeze", state, w.ints(0)), at=at)


def _function(
    w: GraphWriter,
    functions: dict[str, Any],
    spec: RnnSpec,
    weights: RnnWeights,
    layer: LayerInputs,
) -> LayerOutputs:
    """A call of a function of the model's own, whose body is standard ONNX."""
    inner, named = PaddedGraph(), zip(spec.cell.states, layer.states, strict=True)
    formal = LayerInputs(
        "X",
        layer.lengths and "lengths",
        tuple(actual and f"initial_{name}" for name, actual in named),
        layer.attention and "attention",
    )
    for name in formal.tensors:
        inner.fresh(name)
    written = scan_layer(inner, spec, weights, formal)
    name, given = f"{spec.cell.name}_{len(functions) + 1}", (written.y, *written.states)
    functions[name] = inner.function(name, DOMAIN, formal.tensors, given, w.opset)
    y, *states = (w.fresh(out) for out in given)
    w.add(name, *layer.tensors, outputs=(y, *states), domain=DOMAIN)
    return LayerOutputs(y, tuple(states))


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
    w: GraphWriter,
    spec: RnnSpec,
    weights: RnnWeights,
    layer: LayerInputs,
    precision: LayerPrecision,
) -> LayerOutputs:
    cell, units, d = spec.cell, spec.hidden_size, spec.directions
    op = "LSTM" if cell is Cell.LSTM else "GRU" if cell.is_gru else "RNN"
    source = weights.layer
    if source is None:  # the input is projected already: a product with the identity
        wide = spec.gates * units
        one = np.eye(wide, dtype=weights.iter.dtype).reshape(1, 1, wide, spec.gates, units)
        source = np.broadcast_to(one, (1, d, *one.shape[2:]))
    x, names = rounded_input(w, layer.x, precision), []
    for key, role, matrix in (("W", "layer", source), ("R", "iter", weights.iter)):
        name, factors = f"{op}/{key}", [getattr(part, role) for part in precision.parts]
        if factors:
            names.append(rounded_matrix(w, matrix, factors, cell, name))
        else:
            names.append(w.constant(onnx.matrix_back(matrix, cell), name=name))
    names.append(_optional(w, None if weights.bias is None else onnx.bias_back(weights.bias, cell)))
    names += [layer.lengths, *layer.states]
    if spec.peephole and weights.peephole is not None:
        names.append(_optional(w, onnx.peephole_back(weights.peephole)))
    while not names[-1]:
        names.pop()
    outs = [w.fresh(f"{op}/{name}") for name in ("Y", "Y_h", "Y_c")[: 1 + len(cell.states)]]
    w.add(op, x, *names, outputs=outs, **_attributes(spec))
    if precision:
        w.precisions[outs[0]] = precision
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
    return NAMES[name], tuple(number for number in numbers if number is not None)
