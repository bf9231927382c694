"""The reference: every cell in plain NumPy, forward and backward, in float32 or float64.

Equations: RNN developer guide of oneDNN; oneAPI specification 1.3, RNN (AUGRU cells); backward they
are differentiated by hand. It computes step by step, the input's products, too. Backward, a step
hands on what the step before it needs; the products for input and weights are taken over all words
at once. Layers, directions and packing are walked as everywhere (`LayerWalk`): what checks that is
the tests' own oracle, which shares nothing with the package (design/0026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from onernn.backend.arguments import State, checked_state
from onernn.backend.layer_walk import DirectionKernel, LayerWalk, PackedBatch, PackedGradient
from onernn.backend.stack import Stack, Trainer
from onernn.ir.activations import function
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.ragged import Ragged
from onernn.ir.rnn import Limits, why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights, Weights, layers_of
from onernn.reorders.lod import Packing

_Arrays = dict[str, Array]

NAME = "NumPy reference"
_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
_SLOPES: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: (y > 0).astype(y.dtype),
    "identity": np.ones_like,
}
"""Derivatives, in terms of the function's value."""
TRAINED = Limits(
    who="training",
    functions=tuple(_SLOPES),
    gate_clip=False,
)
"""Layers that have a backward, here and in the kernels."""


def reference_stack(spec: RnnSpec, weights: Weights, dtype: str = "f32", why: str = "") -> Stack:
    """A layer or stack on NumPy in f32 or f64; ``why`` says why not on something faster."""
    if dtype not in _DTYPES:
        raise UnsupportedError(f"dtype {dtype!r}: the reference computes in f32 or f64")
    layers, real = layers_of(spec, weights), _DTYPES[dtype]
    return Stack(
        spec,
        dtype,
        LayerWalk(spec, layers, partial(ReferenceKernel, dtype=real)),
        partial(reference_trainer, spec, layers, real, why),
        backend="reference",
        name=NAME,
        reads="copied step by step",
        why=why,
        real=real,
    )


def reference_instead(
    spec: RnnSpec, layers: tuple[RnnWeights, ...], error: UnsupportedError, strict: bool
) -> Stack:
    """The reference in place of a backend that cannot run, in the weights' own precision.

    ``error`` says why not the other one; where ``strict`` raises it, with what to do.
    """
    why = "; ".join(dict.fromkeys(each.reason for each in error.refusals))
    if strict:
        raise UnsupportedError(
            f"{why}; drop strict=True to run it on the reference", (Refusal(why),)
        ) from None
    precise = "f64" if layers[0].iter.dtype == np.float64 else "f32"
    return reference_stack(spec, layers, precise, why)


def reference_trainer(
    spec: RnnSpec, layers: Sequence[RnnWeights], dtype: np.dtype[Any], why: str
) -> Trainer:
    """Training on NumPy. Raises `UnsupportedError` for what has no backward."""
    if beyond := why_not(spec, layers, TRAINED):
        raise UnsupportedError(beyond)
    prepare = partial(ReferenceKernel, dtype=dtype, trains=True)
    return Trainer(LayerWalk(spec, layers, prepare), NAME, why)


class ReferenceKernel(DirectionKernel):
    """One layer in one direction.

    A step holds arrays by name: x, a (the attention), h and c before it, its gates, and what its
    cell adds; where the kernel trains it keeps the same of all words, in packed order.
    """

    name = NAME

    def __init__(
        self, spec: RnnSpec, weights: RnnWeights, dtype: np.dtype[Any], trains: bool = False
    ) -> None:
        self._spec, self.dtype, self._trains = spec, dtype, trains
        self._backwards = spec.direction == "right2left"
        self._functions = [function(a) for a in spec.functions]
        # The candidate of GRU multiplies its weights by r*h, every other gate its own by h.
        self._of_h = 2 if spec.cell in (Cell.GRU, Cell.AUGRU) else spec.gates

        def part(array: Array | None, *missing: int) -> Array:
            if array is None:
                return np.zeros(missing, dtype)
            return array[0, 0].astype(dtype, copy=False)

        units = spec.hidden_size
        self._w = None if weights.layer is None else part(weights.layer)  # (I, G, O)
        self._u = part(weights.iter)  # (R, G, O)
        self._b = part(weights.bias, spec.cell.bias_rows, units)
        self._p = part(weights.peephole, 3, units)
        self._v = None if weights.projection is None else part(weights.projection)  # (O, R)

    def _steps(
        self, packing: Packing, states: Sequence[Array], *, reverse: bool = False
    ) -> Iterator[tuple[slice, list[Array]]]:
        """Rows of each step, and its running sentences' states; one of none where is no word."""
        at, sizes = packing.step_offsets.tolist(), packing.batch_sizes.tolist()
        steps = [(slice(at[t], at[t + 1]), size) for t, size in enumerate(sizes)]
        for rows, size in steps[:: -1 if self._backwards != reverse else 1] or [(slice(0, 0), 0)]:
            yield rows, [s[:size] for s in states]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """See `DirectionKernel.run`."""
        words, y, packing, begin, attention = batch
        states = [s.copy() for s in begin]
        kept: _Arrays = {}
        for rows, running in self._steps(packing, states):
            step = {"x": words[rows], **dict(zip("hc", running, strict=False))}
            if attention is not None:
                step["a"] = attention[rows]
            with np.errstate(invalid="ignore", over="ignore"):  # infinity and NaN are results
                after = self._forward(step)
            if self._trains:
                _collect(kept, step, rows, len(words))
            for state, value in zip(running, after, strict=True):
                state[...] = value
            y[rows] = after[0]
        return states, kept if self._trains else None

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
            step["gates"] = gate(self._clipped(a + from_h))
            return [step["gates"][:, 0]]
        u, r = (gate(self._clipped(a[:, g] + from_h[:, g])) for g in (0, 1))
        if spec.cell.linear_before_reset:
            step["inner"] = from_h[:, 2] + self._b[3]
            o = candidate(self._clipped(a[:, 2] + r * step["inner"]))
        else:
            o = candidate(self._clipped(a[:, 2] + (r * h) @ self._u[:, 2]))
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
        c, clipped = step["c"], self._clipped

        def seen(at: int, state: Array) -> Array:  # 0 * inf would be NaN
            return a[:, at] + self._p[min(at, 2)] * state if self._spec.peephole else a[:, at]

        i, g = gate(clipped(seen(0, c))), candidate(clipped(a[:, 2]))
        f = 1 - i if self._spec.input_forget else gate(clipped(seen(1, c)))
        after = f * c + i * g
        if self._spec.cell_clip is not None:
            low, high = self._spec.cell_clip
            step["inside"] = (after >= low) & (after <= high)
            if self._spec.cell_clip_nan:
                after = np.fmax(after, low)
                # A bound that replaced a NaN has no slope: 0 * NaN must not make one of it.
                i, f, g, step["c"] = (np.where(step["inside"], kept, 0) for kept in (i, f, g, c))
            after = np.clip(after, low, high)
        o = gate(clipped(seen(3, after)))
        step["after"], step["shown"] = after, cell(after)
        step["gates"] = np.stack([i, f, g, o], axis=1)
        h = o * step["shown"]
        return [h if self._v is None else h @ self._v, after]

    def _clipped(self, gate: Array) -> Array:
        bound = self._spec.gate_clip
        return gate if bound is None else np.clip(gate, -bound, bound)

    def backward(self, batch: PackedGradient) -> tuple[Array, Sequence[Array], Array | None]:
        """See `DirectionKernel.backward`."""
        kept, packing, dy, dend, into = batch
        states = [s.copy() for s in dend]
        diff: _Arrays = {}
        for rows, running in self._steps(packing, states, reverse=True):
            step = {name: array[rows] for name, array in kept.items()}
            result = {"h": running[0] + dy[rows]}
            before = self._gradient(step, result, *running[1:])
            _collect(diff, result, rows, len(dy))
            for state, value in zip(running, before, strict=True):
                state[...] = value
        self._add_weights(kept, diff, into)
        gates = diff["gates"]
        dx = _flat(gates) if self._w is None else _back(gates, self._w)
        return dx, states, diff.get("a")

    def _gradient(self, step: _Arrays, found: _Arrays, *dc: Array) -> list[Array]:
        """The gradients by the states before a step.

        ``found`` has that by h after it, and gets those by what the activations take, by the
        products with h in it where these differ, and by the attention.
        """
        cell, slopes = self._spec.cell, self._slopes()
        if cell is Cell.LSTM:
            return self._lstm_gradient(step, found, *dc)
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

    def _slopes(self) -> list[Callable[[Array], Array]]:
        """The derivative of each of the cell's functions."""
        return [_SLOPES[a.name] for a in self._spec.functions]

    def _lstm_gradient(self, step: _Arrays, found: _Arrays, dc: Array) -> list[Array]:
        (gate, candidate, cell), p = self._slopes(), self._p
        i, f, g, o = np.moveaxis(step["gates"], 1, 0)
        dh = found["h"] if self._v is None else found["h"] @ self._v.T
        do = dh * step["shown"] * gate(o)
        dc = dc + dh * o * cell(step["shown"]) + do * p[2]
        if "inside" in step:  # the slope of a clip, 1 at its bounds, too
            dc = dc * step["inside"]
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
    """(N, I) x (I, G, O) -> (N, G, O).

    A product a gate: BLAS runs small ones in this thread, and larger ones would wait for others.
    """
    return np.matmul(a, weights.swapaxes(0, 1)).swapaxes(0, 1)


def _back(gates: Array, weights: Array) -> Array:
    """(N, G, O) x (I, G, O) -> (N, I)."""
    return _flat(gates) @ _flat(weights).T


def _outer(a: Array, gates: Array) -> Array:
    """(N, I) x (N, G, O) -> (I, G, O)."""
    return (a.T @ _flat(gates)).reshape(a.shape[1], *gates.shape[1:])


def _flat(gates: Array) -> Array:
    """(N, G, O) -> (N, G*O)."""
    return gates.reshape(len(gates), gates.shape[1] * gates.shape[2])


# The cell state of every word, which no primitive hands out.


def cell_sequence(
    spec: RnnSpec, weights: RnnWeights, x: Ragged | Array, state: State | None
) -> Ragged | Array:
    """c of every word of an LSTM of one layer and direction: (W, O) or (T, N, O), like x.

    ``state``: the initial (h, c), each ldnc.
    """
    dtype = weights.iter.dtype
    walk = LayerWalk(spec, [weights], partial(ReferenceKernel, dtype=dtype, trains=True))
    sentences = len(x) if isinstance(x, Ragged) else x.shape[1]
    initial = checked_state(spec, state, sentences, dtype)
    _, _, shares = walk.run_training(x, initial, None)
    kept = shares[0][0][0]  # of one share, layer and direction
    if isinstance(x, Ragged):
        return x.with_data(Packing.of(x.offsets).unpack(kept["after"]))
    return np.asarray(kept["after"].reshape(*x.shape[:2], spec.hidden_size))
