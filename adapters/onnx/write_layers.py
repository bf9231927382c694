"""Recurrent layers as ONNX: operators of its own, or a Scan of steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.onnx.table import DTYPES
from onernn.adapters.onnx.writer import GraphWriter, PaddedGraph, ProtoGraph, Written, dense
from onernn.ir.activations import NAMES, completed
from onernn.ir.arrays import Array
from onernn.ir.cells import step
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.rnn import Limits, Recurrent, why_not
from onernn.ir.spec import Activation, Cell, RnnSpec
from onernn.ir.weights import LayerPrecision, RnnWeights, own_factors
from onernn.reorders import onnx

# A recurrent layer of one direction as a Scan: every cell, in any float.
#
# The formula is that of `ir.cells`.


class LayerInputs(NamedTuple):
    """What a layer is written from: x (T, N, I) or (T, N, G*O), lengths (N,) or "", its states.

    ``states`` are (D, N, O) each, "" where absent; ``attention`` (T, N, 1) likewise.
    """

    x: str
    lengths: str
    states: tuple[str, ...]
    attention: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(filter(None, (self.x, self.lengths, *self.states, self.attention)))


class LayerOutputs(NamedTuple):
    """What a layer gives: y (T, N, D*O), joined as its direction says, and states (D, N, O).

    ``cells``: c of every step (T, N, O) where it was asked for.
    """

    y: str
    states: tuple[str, ...]
    cells: str = ""


def scan_layer(
    w: PaddedGraph, spec: RnnSpec, weights: RnnWeights, layer: LayerInputs, *, cells: bool = False
) -> LayerOutputs:
    """One direction; behind the end of a sentence its states stay as they are."""
    running = ""
    if layer.lengths:
        mask = w.mask(layer.lengths, w.size(layer.x, 0))
        running = w.unsqueezed(w.transposed(mask, 1, 0), 2)
    x, dtype = layer.x, weights.iter.dtype
    if weights.layer is not None:
        matrix = weights.layer.reshape(weights.layer.shape[2], -1)
        x = w.emit("MatMul", x, w.constant(matrix))
    if weights.bias is not None:
        x = w.emit("Add", x, w.constant(weights.bias[0, 0, : spec.gates].reshape(-1)))
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    begin = [
        w.squeezed(given, 0) if given else _zeros(w, layer.x, widths[name], dtype)
        for name, given in zip(spec.cell.states, layer.states, strict=True)
    ]
    scanned = [tensor for tensor in (x, running, layer.attention) if tensor]
    body = _Step(w, spec, weights)
    body.write(bool(running), bool(layer.attention), cells)
    backwards = int(spec.direction == "right2left")
    ends = tuple(w.fresh("state") for _ in begin)
    collected = [w.fresh(name) for name in ("y", "cells")[: 1 + cells]]
    w.add(
        "Scan",
        *begin,
        *scanned,
        outputs=(*ends, *collected),
        body=body,
        num_scan_inputs=len(scanned),
        scan_input_directions=(backwards,) * len(scanned),
        scan_output_directions=(backwards,) * len(collected),
    )
    states = tuple(w.unsqueezed(state, 0) for state in ends)
    return LayerOutputs(collected[0], states, collected[1] if cells else "")


def _zeros(w: PaddedGraph, x: str, width: int, dtype: np.dtype[Any]) -> str:
    shape = w.joined(w.size(x, 1), [width])
    return w.emit("Expand", w.constant(0, str(dtype)), shape)


class _Step(ProtoGraph):
    """One step of a cell, as the body of a Scan."""

    def __init__(self, around: ProtoGraph, spec: RnnSpec, weights: RnnWeights) -> None:
        super().__init__(None, around)
        self.spec, self.weights, self.dtype = spec, weights, str(weights.iter.dtype)

    def number(self, value: float | Array) -> str:
        return self.constant(value, self.dtype)

    def write(self, masked: bool, attended: bool, cells: bool) -> None:
        states = [self.fresh(name) for name in self.spec.cell.states]
        x = self.fresh("x")
        inside = self.fresh("inside") if masked else ""
        attention = self.fresh("attention") if attended else ""
        self._gates = self._parts(x)
        self.attention = _Named(self, attention) if attention else None
        before = (_Named(self, state) for state in states)
        after = [state.name for state in step(self.spec, self, *before)]
        if masked:
            pairs = zip(after, states, strict=True)
            after = [self.emit("Where", inside, new, old) for new, old in pairs]
        collected = [self.emit("Identity", state) for state in after[: 1 + cells]]
        taken = [name for name in (*states, x, inside, attention) if name]
        self.faces(taken, (*after, *collected))

    def _parts(self, x: str) -> list[str]:
        """The gates of a projected input (N, G*O)."""
        outs = [self.fresh("gate") for _ in range(self.spec.gates)]
        if len(outs) == 1:
            return [x]
        sizes = self.ints(*[self.spec.hidden_size] * len(outs))
        self.add("Split", x, sizes, outputs=outs, axis=1)
        return outs

    def x(self, gate: int) -> _Named:
        return _Named(self, self._gates[gate])

    def h(self, gate: int, state: _Named) -> _Named:
        return self.make("MatMul", state, self.weights.iter[0, 0, :, gate])

    def inner(self, product: _Named) -> _Named:
        bias = self.weights.bias
        return product if bias is None else self.make("Add", product, bias[0, 0, 3])

    def gate(self, place: int, value: _Named) -> _Named:
        bound = self.spec.gate_clip
        return self.function(place, self.make("Clip", value, -bound, bound) if bound else value)

    def function(self, place: int, value: _Named) -> _Named:
        name, *numbers = completed(self.spec.functions[place])
        alpha, beta = (number or 0.0 for number in numbers)
        if name == "affine":
            return self.make("Add", self.make("Mul", value, alpha), beta)
        if name == "scaledtanh":
            return self.make("Mul", self.make("Tanh", self.make("Mul", value, beta)), alpha)
        pairs = zip(("alpha", "beta"), numbers, strict=True)
        return self.make(NAMES[name], value, **{k: v for k, v in pairs if v is not None})

    def peephole(self, row: int, state: _Named) -> _Named:
        assert self.weights.peephole is not None
        return self.make("Mul", state, self.weights.peephole[0, 0, row])

    def clip(self, state: _Named) -> _Named:
        assert self.spec.cell_clip is not None
        low, high = self.spec.cell_clip
        lost = low if self.spec.cell_clip_nan else state  # what becomes of NaN
        return self.make(
            "Where", self.make("IsNaN", state), lost, self.make("Clip", state, low, high)
        )

    def project(self, h: _Named) -> _Named:
        assert self.weights.projection is not None
        return self.make("MatMul", h, self.weights.projection[0, 0])

    def make(self, op: str, *values: _Named | float | Array, **attributes: Any) -> _Named:
        """Emits an operator over values and numbers."""
        names = (v.name if isinstance(v, _Named) else self.number(v) for v in values)
        return _Named(self, self.emit(op, *names, **attributes))


@dataclass(frozen=True)
class _Named:
    """A value of a step's graph, with the operators of `cells.step`."""

    graph: _Step
    name: str

    def __add__(self, other: Any) -> Any:
        return self.graph.make("Add", self, other)

    def __mul__(self, other: Any) -> Any:
        return self.graph.make("Mul", self, other)

    def __rsub__(self, number: int) -> Any:
        return self.graph.make("Sub", number, self)


# A layer in bytes, as ONNX says it: QuantizeLinear and DequantizeLinear around the operator.


def has_two_inputs(rnn: Recurrent) -> bool:
    """Whether directions round their common input in two ways: they become two operators."""
    D, parts = rnn.spec.directions, rnn.precision.parts
    rows = (parts[at : at + D] for at in range(0, len(parts), D))
    return any(len({part.data for part in row}) > 1 for row in rows)


def with_factors(precision: LayerPrecision, weights: RnnWeights) -> LayerPrecision:
    """The precision with the factors of all columns, those that a kernel would find among them."""
    parts = []
    for d, part in enumerate(precision.parts):
        assert weights.layer is not None  # `refuse`
        if part.layer is None:
            part = replace(part, layer=own_factors(weights.layer[0, d], 0))
        if part.iter is None:
            part = replace(part, iter=own_factors(weights.iter[0, d], 0))
        parts.append(part)
    return replace(precision, parts=tuple(parts))


def refuse(rnn: Recurrent, reason: str) -> None:
    """Raises `UnsupportedError` where a layer with a precision is none of ONNX's operators.

    ``reason``: why it is none, "" where it is one.
    """
    if rnn.spec.input_forget or rnn.layers[0].layer is None:
        reason = reason or "its gates are made of others, or its input is projected already"
    if reason or rnn.precision.dtype not in DTYPES:
        rnn.precision.refuse(f"an ONNX file{f' ({reason})' * bool(reason)}")


def rounded_input(w: GraphWriter, x: str, precision: LayerPrecision) -> str:
    """x as its bytes hold it, where it is rounded by one scale."""
    data = precision.parts[0].data if precision.parts else None
    if data is None:
        return x
    scale = w.constant(1 / data.factor, "float32"), w.constant(data.shift, "uint8")
    return w.emit("DequantizeLinear", w.emit("QuantizeLinear", x, *scale), *scale)


def rounded_matrix(
    w: GraphWriter, ldigo: Array, factors: list[Array], cell: Cell, name: str
) -> str:
    """W or R in signed bytes, a scale for each of its rows; ``factors`` (G, O), by direction."""
    steps = np.reciprocal(np.stack(factors)[None, :, None], dtype=np.float32)
    whole = np.rint(ldigo / steps).clip(-128, 127)
    data = onnx.matrix_back(whole, cell).astype(np.int8)
    D, rows, inputs = data.shape
    scales = onnx.matrix_back(steps, cell).reshape(-1)
    flat = w.constant(data.reshape(D * rows, inputs), name=f"{name}/bytes")
    floats = w.emit("DequantizeLinear", flat, w.constant(scales, name=f"{name}/scale"), axis=0)
    return w.reshaped(floats, D, rows, inputs)


# Recurrent layers as RNN, GRU and LSTM of ONNX.
#
# What these cannot say becomes a Scan: see `scanned_layer`.

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


def rnn(w: GraphWriter) -> Written:
    """One layer, one direction of those that become a Scan: `ExpandLayers` took stacks apart."""
    rnn = Recurrent.of(w.node)
    spec, (weights,) = rnn.spec, rnn.layers
    x, lengths = w.value(rnn.x).data, w.value(rnn.x).lengths
    states = tuple(s and w.squeezed(dense(w.value(s), "a state"), 0) for s in rnn.states)
    attention = rnn.attention and w.value(rnn.attention).data
    if lengths:
        x = w.swapped(x, 3)
        attention = attention and w.swapped(attention, 3)
    layer = LayerInputs(x, lengths, states, attention)
    reason = why_not(spec, rnn.layers, _LIMITS)
    if rnn.precision:
        refuse(rnn, reason or "a cell state of every word" * w.graph.is_read(rnn.cells))
    if w.graph.is_read(rnn.cells):
        written = scan_layer(w, spec, weights, layer, cells=True)
    elif not reason:
        written = _standard(w, spec, weights, layer, with_factors(rnn.precision, weights))
    elif not spec.cell.has_attention:
        written = scan_layer(w, spec, weights, layer)
    elif w.functions is None:
        raise UnsupportedError(f"{reason}; allow functions, and it becomes one")
    else:
        written = _function(w, w.functions, spec, weights, layer)
    y, cells = (
        w.swapped(tensor, 3) if lengths and tensor else tensor
        for tensor in (written.y, written.cells)
    )
    finals = zip(rnn.finals, _kept(w, written.states, layer), strict=True)
    ends = [w.graph.is_read(name) and w.unsqueezed(state, 0) or "" for name, state in finals]
    w.give(["", *ends])
    return [y, "", "", cells], lengths


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
    some = w.unsqueezed(w.cast(layer.lengths, "bool"), 1)
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
        y = w.squeezed(y, 1)
    else:
        y = w.reshaped(w.transposed(y, 0, 2, 1, 3), 0, 0, -1)
    return LayerOutputs(y, tuple(final))


def _optional(w: GraphWriter, array: Array | None) -> str:
    return "" if array is None else w.constant(array)


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
    chosen = [_named(each) for each in spec.functions] * d
    attributes["activations"] = [name for name, _ in chosen]
    for k, key in enumerate(("activation_alpha", "activation_beta")):
        numbers = [values[k] for _, values in chosen if len(values) > k]
        if numbers:
            attributes[key] = [float(number) for number in numbers]
    return attributes


def _named(chosen: Activation) -> tuple[str, tuple[float, ...]]:
    """ONNX's name and numbers; what a function takes is written out, defaults too."""
    name, *numbers = completed(chosen)
    if name == "identity":
        return "Affine", (1.0, 0.0)
    return NAMES[name], tuple(number for number in numbers if number is not None)
