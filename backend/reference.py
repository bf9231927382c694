"""The oracle: every cell in plain NumPy, one time step after the other.

Equations: RNN developer guide of oneDNN; oneAPI specification 1.3, RNN (AUGRU cells). Shares no
code with the fast path, takes no shortcut, and computes in float64 where asked.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from onernn.backend.checks import Layout, State, checked_input, explained, laid_out
from onernn.backend.gradients import Gradients, Tape
from onernn.backend.reference_training import reference_training
from onernn.backend.training import Once
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Ragged
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of
from onernn.operators.activations import function

_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


class ReferenceLayer:
    """A layer or stack on NumPy; safe to share between threads, it keeps nothing of a run."""

    kernel = "NumPy reference"

    def __init__(self, spec: RnnSpec, weights: Weights, dtype: str = "f32", why: str = "") -> None:
        if dtype not in _DTYPES:
            raise UnsupportedError(f"dtype {dtype!r}: the reference computes in f32 or f64")
        self.spec, self.dtype, self.why = spec, dtype, why
        self._layers = layers_of(spec, weights)
        self._dtype = _DTYPES[dtype]
        self._functions = [function(a) for a in spec.functions]
        self._training = Once(
            partial(reference_training, spec, self._layers, self._dtype, self.kernel, why)
        )

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        x, initial, attention = checked_input(self.spec, x, state, attention, self._dtype, layout)
        lengths, words = _sentences(x)
        scale = None if attention is None else _sentences(attention)[1]
        final = tuple(s.copy() for s in initial)

        def run_direction(words: Array, layer: int, direction: int) -> Array:
            backwards = direction == 1 or self.spec.direction == "right2left"
            weights = self._layers[layer].part(0, direction)
            begin = [s[layer, direction] for s in initial]
            y, end = self._direction(words, lengths, begin, scale, weights, backwards)
            for array, value in zip(final, end, strict=True):
                array[layer, direction] = value
            return y

        def joined(sides: list[Array]) -> Array:
            summed = self.spec.direction == "bidirectional_sum"
            return sides[0] + sides[1] if summed else np.concatenate(sides, axis=-1)

        directions, layers = range(self.spec.directions), range(self.spec.layers)
        if self.spec.stacking == "framework":
            for layer in layers:
                words = joined([run_direction(words, layer, d) for d in directions])
        else:
            sides = [words] * len(directions)
            for layer in layers:
                sides = [run_direction(sides[d], layer, d) for d in directions]
            words = joined(sides)
        if isinstance(x, Ragged):
            return x.with_data(words), final
        dense = words.reshape(x.shape[1], x.shape[0], words.shape[-1]).swapaxes(0, 1)
        return np.ascontiguousarray(laid_out(dense, layout)), final

    def explain(self) -> str:
        """See `PreparedLayer.explain`."""
        return explained(self.spec, self.dtype, self.kernel, self.why, "copied step by step")

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """See `PreparedLayer.run_training`."""
        return self._training().run(x, state, attention)

    def backward(
        self, tape: Tape, dy: Ragged | Array | None, dstate: State | None = None
    ) -> Gradients:
        """See `PreparedLayer.backward`."""
        return self._training().backward(tape, dy, dstate)

    def _direction(
        self,
        words: Array,
        lengths: Array,
        begin: list[Array],
        attention: Array | None,
        weights: RnnWeights,
        backwards: bool,
    ) -> tuple[Array, list[Array]]:
        starts = np.cumsum(lengths) - lengths
        states = [s.copy() for s in begin]
        y = np.empty((len(words), self.spec.recurrent_size), self._dtype)
        for t in range(lengths.max(initial=0)):
            running = np.flatnonzero(lengths > t)
            rows = starts[running] + (lengths[running] - 1 - t if backwards else t)
            a = None if attention is None else attention[rows]
            after = self._step(words[rows], [s[running] for s in states], a, weights)
            for array, value in zip(states, after, strict=True):
                array[running] = value
            y[rows] = after[0]
        return y, states

    def _step(
        self, x: Array, states: list[Array], attention: Array | None, weights: RnnWeights
    ) -> list[Array]:
        spec = self.spec
        gates, units = spec.gates, spec.hidden_size
        h = states[0]
        w_iter = weights.iter[0, 0].astype(self._dtype, copy=False)
        if weights.layer is None:
            projected = x.reshape(-1, gates, units)
        else:
            projected = np.einsum("ni,igo->ngo", x, weights.layer[0, 0].astype(self._dtype))
        b = np.zeros((spec.cell.bias_rows, units), self._dtype)
        if weights.bias is not None:
            b = weights.bias[0, 0].astype(self._dtype)
        from_x = [projected[:, g] + b[g] for g in range(gates)]

        if spec.cell is Cell.LSTM:
            return self._lstm(from_x, h, states[1], w_iter, weights)
        gate, candidate = (self._functions * 2)[:2]
        if not spec.cell.is_gru:
            return [gate(self._clip(from_x[0] + h @ w_iter[:, 0]))]
        u = gate(self._clip(from_x[0] + h @ w_iter[:, 0]))
        r = gate(self._clip(from_x[1] + h @ w_iter[:, 1]))
        if spec.cell.linear_before_reset:
            o = candidate(self._clip(from_x[2] + r * (h @ w_iter[:, 2] + b[3])))
        else:
            o = candidate(self._clip(from_x[2] + (r * h) @ w_iter[:, 2]))
        if attention is not None:
            u = (1 - attention) * u
        if spec.update == "replace":
            u = 1 - u
        return [u * h + (1 - u) * o]

    def _lstm(
        self, from_x: list[Array], h: Array, c: Array, w_iter: Array, weights: RnnWeights
    ) -> list[Array]:
        gate, candidate, cell = self._functions
        p = np.zeros((3, self.spec.hidden_size), self._dtype)
        if weights.peephole is not None:
            p = weights.peephole[0, 0].astype(self._dtype)
        i, f, g, o = (a + h @ w_iter[:, k] for k, a in enumerate(from_x))
        i = gate(self._clip(i + p[0] * c))
        f = 1 - i if self.spec.input_forget else gate(self._clip(f + p[1] * c))
        c = f * c + i * candidate(self._clip(g))
        if self.spec.cell_clip is not None:
            low, high = self.spec.cell_clip
            c = np.clip(np.fmax(c, low) if self.spec.cell_clip_nan else c, low, high)
        h = gate(self._clip(o + p[2] * c)) * cell(c)
        if weights.projection is not None:
            h = h @ weights.projection[0, 0].astype(self._dtype)
        return [h, c]

    def _clip(self, gate: Array) -> Array:
        bound = self.spec.gate_clip
        return gate if bound is None else np.clip(gate, -bound, bound)


def _sentences(x: Ragged | Array) -> tuple[Array, Array]:
    """(lengths (N,), words (W, I) sentence by sentence) of either kind of batch."""
    if isinstance(x, Ragged):
        return x.lengths, x.data
    t, n, channels = x.shape
    return np.full(n, t), x.swapaxes(0, 1).reshape(n * t, channels)
