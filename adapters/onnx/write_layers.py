"""Writes recurrent layers as ONNX's recurrent operators, or as a Scan over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.signatures import refuse
from onernn.adapters.onnx.table import DTYPES
from onernn.adapters.onnx.writer import GraphWriter, OnnxValue, ProtoGraph, WrittenModel
from onernn.ir.activations import NAMES, complete
from onernn.ir.arrays import Array
from onernn.ir.cells import step
from onernn.ir.rnn import Limits, Recurrent, why_not
from onernn.ir.spec import Activation, Cell, RnnSpec
from onernn.ir.weights import LayerPrecision, RnnWeights, own_factors
from onernn.reorders import onnx

# A recurrent layer of one direction as a Scan: all cells, all float dtypes.
#
# The formula of a step is in `ir.cells`.


class LayerInputs(NamedTuple):
    """The inputs of a recurrent layer, None if absent.

    ``x``: the input (T, N, I), or the projected input (T, N, G*O). ``lengths``: (N,). ``states``:
    the initial states, each (D, N, O). ``attention``: (T, N, 1).
    """

    x: OnnxValue
    lengths: OnnxValue | None
    states: Sequence[OnnxValue | None]
    attention: OnnxValue | None


class LayerOutputs(NamedTuple):
    """The outputs of a recurrent layer.

    ``y``: (T, N, D*O), or the sum of the directions (T, N, O). ``states``: the final states, each
    (D, N, O). ``cells``: the cell states of all steps (T, N, O), if requested.
    """

    y: OnnxValue
    states: Sequence[OnnxValue]
    cells: OnnxValue | None = None


def scan_layer(
    w: ProtoGraph, spec: RnnSpec, weights: RnnWeights, layer: LayerInputs, *, cells: bool = False
) -> LayerOutputs:
    """Writes one direction of a layer as a Scan. After the end of a sequence its states do not
    change.
    """
    x, dtype, running = layer.x, str(weights.iter.dtype), None
    if layer.lengths:
        running = layer.lengths.mask(x.size(0)).transpose(1, 0).unsqueeze(2)
    sizes = x.size(1)
    if weights.layer is not None:
        x = x.MatMul(weights.layer.reshape(weights.layer.shape[2], -1))
    if weights.bias is not None:
        x = x.Add(weights.bias[0, 0, : spec.gates].reshape(-1))
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    begin = [
        state.squeeze(0)
        if state
        else x.constant(np.array(0, dtype)).Expand(sizes.join([widths[n]]))
        for n, state in zip(spec.cell.states, layer.states, strict=True)
    ]
    scanned = [each for each in (x, running, layer.attention) if each]
    body = ProtoGraph(w.model)
    states = [body.input(name, dtype) for name in spec.cell.states]
    source = body.input("x", dtype)
    inside = body.input("inside", "bool") if running else None
    attention = body.input("attention", dtype) if layer.attention else None
    after = step(spec, _Cell(spec, weights, source, attention), *states)
    if inside:
        after = [inside.Where(new, old) for new, old in zip(after, states, strict=True)]
    body.output(*after, *(state.Identity() for state in after[: 1 + cells]))
    names = ["state"] * len(begin) + ["y", "cells"][: 1 + cells]
    ends = w.scan(body, begin, scanned, names, int(spec.direction == "right2left"))
    collected = ends[len(begin) :]
    states = [state.unsqueeze(0) for state in ends[: len(begin)]]
    return LayerOutputs(collected[0], states, collected[1] if cells else None)


class _Cell:
    """The operations of one step, which `ir.cells.step` calls; the projected input is (N, G*O)."""

    def __init__(
        self, spec: RnnSpec, weights: RnnWeights, x: OnnxValue, attention: OnnxValue | None
    ) -> None:
        self.spec, self.weights, self.attention = spec, weights, attention
        sizes = [spec.hidden_size] * spec.gates
        self._gates = x.Split(sizes, axis=1, outputs=spec.gates) if spec.gates > 1 else [x]

    def x(self, gate: int) -> OnnxValue:
        return self._gates[gate]

    def h(self, gate: int, state: OnnxValue) -> OnnxValue:
        return state.MatMul(self.weights.iter[0, 0, :, gate])

    def inner(self, product: OnnxValue) -> OnnxValue:
        bias = self.weights.bias
        return product if bias is None else product.Add(bias[0, 0, 3])

    def gate(self, place: int, value: OnnxValue) -> OnnxValue:
        bound = self.spec.gate_clip
        return self.apply(place, value if bound is None else value.Clip(-bound, bound))

    def apply(self, place: int, value: OnnxValue) -> OnnxValue:
        name, *numbers = complete(self.spec.functions[place])
        alpha, beta = (number or 0.0 for number in numbers)
        if name == "affine":
            return value.Mul(alpha).Add(beta)
        if name == "scaledtanh":
            return value.Mul(beta).Tanh().Mul(alpha)
        pairs = zip(("alpha", "beta"), numbers, strict=True)
        return getattr(value, NAMES[name])(**{k: v for k, v in pairs if v is not None})

    def peephole(self, row: int, state: OnnxValue) -> OnnxValue:
        assert self.weights.peephole is not None
        return state.Mul(self.weights.peephole[0, 0, row])

    def clip(self, state: OnnxValue) -> OnnxValue:
        assert self.spec.cell_clip is not None
        low, high = map(state.scalar, self.spec.cell_clip)
        lost = low if self.spec.cell_clip_nan else state  # the result for NaN
        return state.IsNaN().Where(lost, state.Clip(low, high))

    def project(self, h: OnnxValue) -> OnnxValue:
        assert self.weights.projection is not None
        return h.MatMul(self.weights.projection[0, 0])


# A quantized layer in ONNX: QuantizeLinear and DequantizeLinear around the operator.


def has_two_inputs(rnn: Recurrent) -> bool:
    """Returns whether the directions quantize their input with different scales; they then become
    two operators.
    """
    D, parts = rnn.spec.directions, rnn.precision.parts
    rows = (parts[at : at + D] for at in range(0, len(parts), D))
    return any(len({part.data for part in row}) > 1 for row in rows)


def with_factors(precision: LayerPrecision, weights: RnnWeights) -> LayerPrecision:
    """Returns the precision with the scale factors of all weights; missing factors are computed."""
    parts = []
    for d, part in enumerate(precision.parts):
        roles = [role for role in ("layer", "iter") if getattr(part, role) is None]
        own: dict[str, Any] = {role: own_factors(getattr(weights, role)[0, d], 0) for role in roles}
        parts.append(replace(part, **own))
    return replace(precision, parts=tuple(parts))


def refuse_precision(rnn: Recurrent, reason: str) -> None:
    """Raises `UnsupportedError` if a layer with a precision cannot be one of ONNX's operators.

    ``reason``: why ONNX's operators cannot express the layer, "" if they can.
    """
    if rnn.spec.input_forget or rnn.layers[0].layer is None:
        reason = reason or "its gates are coupled, or its input is projected before the layer"
    if reason or rnn.precision.dtype not in DTYPES:
        rnn.precision.refuse(f"an ONNX file{f' ({reason})' * bool(reason)}")


def round_input(x: OnnxValue, precision: LayerPrecision) -> OnnxValue:
    """Returns x, quantized and dequantized if the precision has a fixed scale for it."""
    data = precision.parts[0].data if precision.parts else None
    if data is None:
        return x
    scale = x.constant(np.float32(1 / data.factor)), x.constant(np.array(data.shift, np.uint8))
    return x.QuantizeLinear(*scale).DequantizeLinear(*scale)


def quantize_matrix(
    w: GraphWriter, ldigo: Array, factors: list[Array], cell: Cell, name: str
) -> str:
    """Writes W or R as int8 with one scale per row, and returns the dequantized matrix.

    ``factors``: an array (G, O) for each direction.
    """
    steps = np.reciprocal(np.stack(factors)[None, :, None], dtype=np.float32)
    whole = np.rint(ldigo / steps).clip(-128, 127)
    data = onnx.matrix_back(whole, cell).astype(np.int8)
    D, rows, inputs = data.shape
    scales = onnx.matrix_back(steps, cell).reshape(-1)
    flat = w.constant(data.reshape(D * rows, inputs), name=f"{name}/bytes")
    floats = w.emit("DequantizeLinear", flat, w.constant(scales, name=f"{name}/scale"), axis=0)
    return w.emit("Reshape", floats, (D, rows, inputs))


# Recurrent layers as ONNX's RNN, GRU and LSTM.
#
# Layers that these operators cannot express become a Scan: see `scan_layer`.

DOMAIN = "onernn"
_DIRECTIONS = {"left2right": "forward", "right2left": "reverse"}


_LIMITS = Limits(
    who="ONNX",
    cells=tuple(onnx.GATES),
    replaces=False,
    cell_clip=False,
    projection=False,
    dtypes=("float32",),  # ONNX Runtime's operators take no other dtype
)
"""The features that ONNX's RNN, GRU and LSTM can express."""


def has_one_direction(rnn: Recurrent) -> bool:
    """Returns whether each direction of a layer must become its own operator."""
    return bool(why_not(rnn.spec, rnn.layers, _LIMITS)) or has_two_inputs(rnn)


def rnn(w: GraphWriter) -> list[OnnxValue | None]:
    """Writes a layer, and returns its outputs. `ExpandLayers` has already split stacks, and
    bidirectional layers that become Scans.
    """
    rnn = Recurrent.of(w.node)
    spec, (weights,) = rnn.spec, rnn.layers
    x, attention = w.value(rnn.x), w.value(rnn.attention) if rnn.attention else None
    lengths = x.lengths
    states = [w.value(name).dense.squeeze(0) if name else None for name in rnn.states]
    if lengths:
        x, attention = x.swap_time(3), attention and attention.swap_time(3)
    layer = LayerInputs(x, lengths, states, attention)
    reason, reads_cells = why_not(spec, rnn.layers, _LIMITS), w.graph.is_read(rnn.cells)
    if rnn.precision:
        refuse_precision(rnn, reason or "the cell state of each step is read" * reads_cells)
    if not (reason or reads_cells):
        written = _standard(w, spec, weights, layer, with_factors(rnn.precision, weights))
    elif not spec.cell.has_attention:
        written = scan_layer(w, spec, weights, layer, cells=reads_cells)
    elif w.model.functions is None:
        refuse(f"{reason}; pass --allow-functions (allow_functions=True) to write a function")
    else:
        written = _function_call(w, w.model.functions, spec, weights, layer)
    y, cells = (
        each.swap_time(3).under(lengths) if lengths and each else each
        for each in (written.y, written.cells)
    )
    ends: list[OnnxValue | None] = [None, None]
    for at, (name, end, state) in enumerate(zip(rnn.finals, written.states, states, strict=True)):
        if w.graph.is_read(name):
            if lengths and state:  # a sequence of length zero keeps its state; ONNX outputs zeros
                end = lengths.cast("bool").unsqueeze(1).Where(end, state)
            ends[at] = end.unsqueeze(0)
    return [y, *ends, cells]


def _function_call(
    w: GraphWriter,
    functions: dict[str, Any],
    spec: RnnSpec,
    weights: RnnWeights,
    layer: LayerInputs,
) -> LayerOutputs:
    inner = ProtoGraph(WrittenModel(w.model.opset))
    initial = [f"initial_{name}" for name in spec.cell.states]
    given = {"X": layer.x, "lengths": layer.lengths}
    given |= {**dict(zip(initial, layer.states, strict=True)), "attention": layer.attention}
    taken = {name: value for name, value in given.items() if value}
    formal = {name: OnnxValue(inner, inner.fresh(name)) for name in taken}
    states = [formal.get(name) for name in initial]
    source = LayerInputs(formal["X"], formal.get("lengths"), states, formal.get("attention"))
    written = scan_layer(inner, spec, weights, source)
    name = f"{spec.cell.name}_{len(functions) + 1}"
    results = [written.y.name, *(state.name for state in written.states)]
    functions[name] = inner.function(name, DOMAIN, [*formal], results)
    outs = [w.fresh(out) for out in results]
    w.add(name, *(value.name for value in taken.values()), outputs=outs, domain=DOMAIN)
    y, *ends = map(layer.x.new, outs)
    return LayerOutputs(y, ends)


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
    if source is None:  # the input is already projected: multiply by the identity
        wide = spec.gates * units
        one = np.eye(wide, dtype=weights.iter.dtype).reshape(1, 1, wide, spec.gates, units)
        source = np.broadcast_to(one, (1, d, *one.shape[2:]))
    names = [round_input(layer.x, precision).name]
    for key, role, matrix in (("W", "layer", source), ("R", "iter", weights.iter)):
        factors = [getattr(part, role) for part in precision.parts]
        names.append(
            quantize_matrix(w, matrix, factors, cell, f"{op}/{key}")
            if factors
            else w.constant(onnx.matrix_back(matrix, cell), name=f"{op}/{key}")
        )
    names.append("" if weights.bias is None else w.constant(onnx.bias_back(weights.bias, cell)))
    names += [each.name if each else "" for each in (layer.lengths, *layer.states)]
    if spec.peephole and weights.peephole is not None:
        names.append(w.constant(onnx.peephole_back(weights.peephole)))
    outs = [w.fresh(f"{op}/{name}") for name in ("Y", "Y_h", "Y_c")[: 1 + len(cell.states)]]
    w.add(op, *names, outputs=outs, **_attributes(spec))
    if precision:
        w.model.precisions[outs[0]] = precision
    y, *final = map(layer.x.new, outs)
    if spec.direction == "bidirectional_sum":
        y = y.reduce("ReduceSum", 1, keepdims=0)
    elif d == 1:
        y = y.squeeze(1)
    else:
        y = y.transpose(0, 2, 1, 3).reshape(0, 0, -1)
    return LayerOutputs(y, final)


def _attributes(spec: RnnSpec) -> dict[str, Any]:
    d = spec.directions
    attributes: dict[str, Any] = {"hidden_size": spec.hidden_size}
    attributes["direction"] = _DIRECTIONS.get(spec.direction, "bidirectional")
    if spec.cell.is_gru:
        attributes["linear_before_reset"] = int(spec.cell.linear_before_reset)
    if spec.gate_clip is not None:
        attributes["clip"] = float(spec.gate_clip)
    if spec.input_forget:
        attributes["input_forget"] = 1
    chosen = [_name(each) for each in spec.functions] * d
    attributes["activations"] = [name for name, *_ in chosen]
    for k, key in enumerate(("activation_alpha", "activation_beta"), 1):
        if numbers := [float(values[k]) for values in chosen if len(values) > k]:
            attributes[key] = numbers
    return attributes


def _name(chosen: Activation) -> tuple[Any, ...]:
    name, *numbers = complete(chosen)
    if name == "identity":
        return "Affine", 1.0, 0.0
    return NAMES[name], *(number for number in numbers if number is not None)
