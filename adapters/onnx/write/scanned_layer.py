"""A recurrent layer of one direction as a Scan: every cell, in any float.

Equations: RNN developer guide of oneDNN, as in `backend.reference`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.onnx.write.padding import PaddedGraph
from onernn.adapters.onnx.write.protobuf import ProtoGraph
from onernn.core.arrays import Array
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import NAMES, completed


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
        running = w.emit("Unsqueeze", w.emit("Transpose", mask, perm=(1, 0)), w.ints(2))
    x, dtype = layer.x, weights.iter.dtype
    if weights.layer is not None:
        matrix = weights.layer.reshape(weights.layer.shape[2], -1)
        x = w.emit("MatMul", x, w.constant(matrix))
    if weights.bias is not None:
        x = w.emit("Add", x, w.constant(weights.bias[0, 0, : spec.gates].reshape(-1)))
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    begin = [
        w.emit("Squeeze", given, w.ints(0)) if given else _zeros(w, layer.x, widths[name], dtype)
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
    states = tuple(w.emit("Unsqueeze", state, w.ints(0)) for state in ends)
    return LayerOutputs(collected[0], states, collected[1] if cells else "")


def _zeros(w: PaddedGraph, x: str, width: int, dtype: np.dtype[Any]) -> str:
    shape = w.emit("Concat", w.size(x, 1), w.ints(width), axis=0)
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
        after = self._step(self._parts(x), states, attention)
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

    def _times(self, h: str, gate: int) -> str:
        return self.emit("MatMul", h, self.number(self.weights.iter[0, 0, :, gate]))

    def _through(self, chosen: Activation, a: str) -> str:
        """A gate, clipped, through its function."""
        if self.spec.gate_clip is not None:
            bound = self.spec.gate_clip
            a = self.emit("Clip", a, self.number(-bound), self.number(bound))
        return self._function(chosen, a)

    def _function(self, chosen: Activation, a: str) -> str:
        name, *numbers = completed(chosen)
        alpha, beta = (number or 0.0 for number in numbers)
        if name == "affine":
            return self.emit("Add", self.emit("Mul", a, self.number(alpha)), self.number(beta))
        if name == "scaledtanh":
            inner = self.emit("Tanh", self.emit("Mul", a, self.number(beta)))
            return self.emit("Mul", inner, self.number(alpha))
        told: dict[str, Any] = dict(zip(("alpha", "beta"), numbers, strict=True))
        return self.emit(NAMES[name], a, **{k: v for k, v in told.items() if v is not None})

    def _step(self, x: list[str], states: list[str], attention: str) -> list[str]:
        spec, h = self.spec, states[0]
        if spec.cell is Cell.LSTM:
            return self._lstm(x, h, states[1])
        gate, candidate = (spec.functions * 2)[:2]

        def summed(k: int, state: str = h) -> str:
            return self.emit("Add", x[k], self._times(state, k))

        if not spec.cell.is_gru:
            return [self._through(gate, summed(0))]
        u, r = self._through(gate, summed(0)), self._through(gate, summed(1))
        if spec.cell.linear_before_reset:
            inner = self._times(h, 2)
            if self.weights.bias is not None:
                inner = self.emit("Add", inner, self.number(self.weights.bias[0, 0, 3]))
            o = self.emit("Add", x[2], self.emit("Mul", r, inner))
        else:
            o = summed(2, self.emit("Mul", r, h))
        o = self._through(candidate, o)
        one = self.number(1)
        if attention:
            u = self.emit("Mul", self.emit("Sub", one, attention), u)
        kept, new = (o, h) if spec.update == "replace" else (h, o)
        rest = self.emit("Sub", one, u)
        return [self.emit("Add", self.emit("Mul", u, kept), self.emit("Mul", rest, new))]

    def _lstm(self, x: list[str], h: str, c: str) -> list[str]:
        gate, candidate, cell = self.spec.functions
        i, f, g, o = (self.emit("Add", part, self._times(h, k)) for k, part in enumerate(x))

        def seen(part: str, k: int, state: str) -> str:
            if self.weights.peephole is None:
                return part
            peephole = self.number(self.weights.peephole[0, 0, k])
            return self.emit("Add", part, self.emit("Mul", peephole, state))

        i = self._through(gate, seen(i, 0, c))
        if self.spec.input_forget:
            f = self.emit("Sub", self.number(1), i)
        else:
            f = self._through(gate, seen(f, 1, c))
        taken = self.emit("Mul", i, self._through(candidate, g))
        new = self.emit("Add", self.emit("Mul", f, c), taken)
        if self.spec.cell_clip is not None:
            low, high = map(self.number, self.spec.cell_clip)
            lost = low if self.spec.cell_clip_nan else new  # what becomes of NaN
            new = self.emit(
                "Where", self.emit("IsNaN", new), lost, self.emit("Clip", new, low, high)
            )
        o = self._through(gate, seen(o, 2, new))
        out = self.emit("Mul", o, self._function(cell, new))
        if self.weights.projection is not None:
            out = self.emit("MatMul", out, self.number(self.weights.projection[0, 0]))
        return [out, new]
