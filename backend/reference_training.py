"""Backpropagation through time in plain NumPy, for every cell, in float32 or float64.

Equations: RNN developer guide of oneDNN, attention: oneAPI specification 1.3, RNN; differentiated
by hand. A step hands on what the step before it needs; the products for input and weights are
taken over all words at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onernn.backend.training import Schedule, StackTraining
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Packing
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import function

_Arrays = dict[str, Array]

_SLOPES: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: (y > 0).astype(y.dtype),
    "identity": np.ones_like,
}
"""Derivatives, in terms of the function's value."""


def reference_training(
    spec: RnnSpec, layers: Sequence[RnnWeights], dtype: np.dtype[Any], kernel: str, why: str
) -> StackTraining:
    """Training on NumPy. Raises `UnsupportedError` for what has no backward."""
    for name, *_ in spec.functions:
        if name not in _SLOPES:
            raise UnsupportedError(f"activation {name}: training knows {', '.join(_SLOPES)}")
    if spec.gate_clip is not None or spec.cell_clip is not None:
        raise UnsupportedError("a clip has no derivative at its bounds: it is not trained through")
    directions = [
        [
            _Direction(spec, w.part(0, d), dtype, d == 1 or spec.direction == "right2left")
            for d in range(spec.directions)
        ]
        for w in layers
    ]
    return StackTraining(spec, layers, directions, dtype, kernel, why, Schedule())


class _Direction:
    """One layer in one direction.

    A step holds arrays by name: x, a (the attention), h and c before it, its gates, and what its
    cell adds; ``kept`` holds the same of all words, in packed order.
    """

    def __init__(
        self, spec: RnnSpec, weights: RnnWeights, dtype: np.dtype[Any], backwards: bool
    ) -> None:
        self._spec, self._dtype, self._backwards = spec, dtype, backwards
        self._functions = [function(a) for a in spec.functions]
        self._slopes = [_SLOPES[a.name] for a in spec.functions]
        # The candidate of GRU multiplies its weights by r*h, every other gate its own by h.
        self._of_h = 2 if spec.cell in (Cell.GRU, Cell.AUGRU) else spec.gates

        def part(array: Array | None, *missing: int) -> Array:
            return np.zeros(missing, dtype) if array is None else array[0, 0].astype(dtype)

        units = spec.hidden_size
        self._w = None if weights.layer is None else part(weights.layer)  # (I, G, O)
        self._u = part(weights.iter)  # (R, G, O)
        self._b = part(weights.bias, spec.cell.bias_rows, units)
        self._p = part(weights.peephole, 3, units)
        self._v = None if weights.projection is None else part(weights.projection)  # (O, R)

    def _steps(self, packing: Packing) -> list[tuple[slice, int]]:
        """Rows and running sentences of each step; one step of none where there is no word."""
        at, sizes = packing.step_offsets.tolist(), packing.batch_sizes.tolist()
        steps = [(slice(at[t], at[t + 1]), size) for t, size in enumerate(sizes)]
        return (steps[::-1] if self._backwards else steps) or [(slice(0, 0), 0)]

    def forward(
        self, words: Array, packing: Packing, begin: Sequence[Array], attention: Array | None
    ) -> tuple[Array, Sequence[Array], Any]:
        states = [s.copy() for s in begin]
        y = np.empty((len(words), self._spec.recurrent_size), self._dtype)
        kept: _Arrays = {}
        for rows, batch in self._steps(packing):
            running = [s[:batch] for s in states]
            step = {"x": words[rows], **dict(zip("hc", running, strict=False))}
            if attention is not None:
                step["a"] = attention[rows]
            after = self._forward(step)
            _collect(kept, step, rows, len(words))
            for state, value in zip(running, after, strict=True):
                state[...] = value
            y[rows] = after[0]
        return y, states, kept

    def _forward(self, step: _Arrays) -> list[Array]:
        """The states after a step; the step gets its gates."""
        spec, x, h = self._spec, step["x"], step["h"]
        shape = (len(x), spec.gates, spec.hidden_size)
        a = x.reshape(shape) if self._w is None else _times(x, self._w)
        a = a + self._b[: spec.gates]
        from_h = _times(h, self._u[:, : self._of_h])
        if spec.cell is Cell.LSTM:
            return self._lstm_forward(step, a + from_h)
        gate, candidate = (self._functions * 2)[:2]
        if not spec.cell.is_gru:
            step["gates"] = gate(a + from_h)
            return [step["gates"][:, 0]]
        u, r = (gate(a[:, g] + from_h[:, g]) for g in (0, 1))
        if spec.cell.linear_before_reset:
            step["inner"] = from_h[:, 2] + self._b[3]
            o = candidate(a[:, 2] + r * step["inner"])
        else:
            o = candidate(a[:, 2] + (r * h) @ self._u[:, 2])
        step["gates"] = np.stack([u, r, o], axis=1)
        keep = self._keep(step)
        return [keep * h + (1 - keep) * o]

    def _keep(self, step: _Arrays) -> Array:
        """How much of the old state a GRU keeps, from its update gate."""
        u = step["gates"][:, 0]
        keep = (1 - step["a"]) * u if "a" in step else u
        return 1 - keep if self._spec.update == "replace" else keep

    def _lstm_forward(self, step: _Arrays, a: Array) -> list[Array]:
        gate, candidate, cell = self._functions
        c, p = step["c"], self._p
        i, g = gate(a[:, 0] + p[0] * c), candidate(a[:, 2])
        f = 1 - i if self._spec.input_forget else gate(a[:, 1] + p[1] * c)
        step["after"] = f * c + i * g
        o = gate(a[:, 3] + p[2] * step["after"])
        step["shown"] = cell(step["after"])
        step["gates"] = np.stack([i, f, g, o], axis=1)
        h = o * step["shown"]
        return [h if self._v is None else h @ self._v, step["after"]]

    def backward(
        self,
        kept: Any,
        packing: Packing,
        dy: Array,
        dend: Sequence[Array],
        into: Mapping[str, Array],
    ) -> tuple[Array, Sequence[Array], Array | None]:
        states = [s.copy() for s in dend]
        diff: _Arrays = {}
        for rows, batch in reversed(self._steps(packing)):
            running = [s[:batch] for s in states]
            step = {name: array[rows] for name, array in kept.items()}
            found = {"h": running[0] + dy[rows]}
            before = self._backward(step, found, *running[1:])
            _collect(diff, found, rows, len(dy))
            for state, value in zip(running, before, strict=True):
                state[...] = value
        self._add_weights(kept, diff, into)
        gates = diff["gates"]
        dx = _flat(gates) if self._w is None else _back(gates, self._w)
        return dx, states, diff.get("a")

    def _backward(self, step: _Arrays, found: _Arrays, *dc: Array) -> list[Array]:
        """The gradients by the states before a step.

        ``found`` has that by h after it, and gets those by what the activations take, by the
        products with h in it where these differ, and by the attention.
        """
        cell, slopes = self._spec.cell, self._slopes
        if cell is Cell.LSTM:
            return self._lstm_backward(step, found, *dc)
        if not cell.is_gru:
            found["gates"] = found["h"][:, None] * slopes[0](step["gates"])
            return [_back(found["gates"], self._u)]
        dh, h, keep = found["h"], step["h"], self._keep(step)
        u, r, o = np.moveaxis(step["gates"], 1, 0)
        du = dh * (h - o)
        if self._spec.update == "replace":
            du = -du
        if "a" in step:
            found["a"] = -(du * u).sum(1, keepdims=True)
            du = du * (1 - step["a"])
        do = dh * (1 - keep) * slopes[1](o)
        dh = dh * keep
        if cell.linear_before_reset:
            dr = do * step["inner"]
        else:
            inside = do @ self._u[:, 2].T
            dr = inside * h
            dh = dh + inside * r
        found["gates"] = np.stack([du * slopes[0](u), dr * slopes[0](r), do], axis=1)
        found["products"] = found["gates"].copy()
        if cell.linear_before_reset:
            found["products"][:, 2] *= r
        return [dh + _back(found["products"][:, : self._of_h], self._u[:, : self._of_h])]

    def _lstm_backward(self, step: _Arrays, found: _Arrays, dc: Array) -> list[Array]:
        (gate, candidate, cell), p = self._slopes, self._p
        i, f, g, o = np.moveaxis(step["gates"], 1, 0)
        dh = found["h"] if self._v is None else found["h"] @ self._v.T
        do = dh * step["shown"] * gate(o)
        dc = dc + dh * o * cell(step["shown"]) + do * p[2]
        di, df = dc * g, dc * step["c"]
        if self._spec.input_forget:
            di, df = di - df, np.zeros_like(df)
        di, df, dg = di * gate(i), df * gate(f), dc * i * candidate(g)
        found["gates"] = np.stack([di, df, dg, do], axis=1)
        return [_back(found["gates"], self._u), dc * f + di * p[0] + df * p[1]]

    def _add_weights(self, kept: _Arrays, diff: _Arrays, into: Mapping[str, Array]) -> None:
        spec, gates, h = self._spec, diff["gates"], kept["h"]
        products = diff.get("products", gates)
        into["iter"][:, : self._of_h] += _outer(h, products[:, : self._of_h])
        if self._of_h < spec.gates:
            into["iter"][:, 2:] += _outer(kept["gates"][:, 1] * h, gates[:, 2:])
        if "layer" in into:
            into["layer"][...] += _outer(kept["x"], gates)
        if "bias" in into:
            into["bias"][: spec.gates] += gates.sum(0)
            if spec.cell.linear_before_reset:
                into["bias"][3] += products[:, 2].sum(0)
        if "peephole" in into:
            seen = ((0, kept["c"]), (1, kept["c"]), (3, kept["after"]))
            into["peephole"][...] += [(gates[:, g] * c).sum(0) for g, c in seen]
        if "projection" in into:
            into["projection"][...] += (kept["gates"][:, 3] * kept["shown"]).T @ diff["h"]


def _collect(arrays: _Arrays, step: _Arrays, rows: slice, count: int) -> None:
    """Puts the arrays of a step into their rows of those of all steps."""
    for name, array in step.items():
        if name not in arrays:
            arrays[name] = np.empty((count, *array.shape[1:]), array.dtype)
        arrays[name][rows] = array


def _times(a: Array, weights: Array) -> Array:
    """(N, I) x (I, G, O) -> (N, G, O)."""
    return (a @ _flat(weights)).reshape(len(a), *weights.shape[1:])


def _back(gates: Array, weights: Array) -> Array:
    """(N, G, O) x (I, G, O) -> (N, I)."""
    return _flat(gates) @ _flat(weights).T


def _outer(a: Array, gates: Array) -> Array:
    """(N, I) x (N, G, O) -> (I, G, O)."""
    return (a.T @ _flat(gates)).reshape(a.shape[1], *gates.shape[1:])


def _flat(gates: Array) -> Array:
    """(N, G, O) -> (N, G*O)."""
    return gates.reshape(len(gates), gates.shape[1] * gates.shape[2])
