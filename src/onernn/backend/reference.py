"""The reference backend computes every cell in NumPy, forward and backward, in float32 or float64.

`onernn.ir.cells` has the formulas. The backward pass reads a tape, which records the result of each
operation (design/0085). The reference computes step by step, including the products with x. In the
backward pass, each step computes the gradients of the previous step's states. The gradients of x
and of the weights come from one product over all steps. `LayerWalk` runs layers and directions, as
for other backends. The tests have their own formulas, which share no code with the package
(design/0026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from onernn.backend.arguments import State, check_state
from onernn.backend.layer_walk import (
    DirectionGradients,
    DirectionKernel,
    LayerWalk,
    PackedBatch,
    PackedGradient,
)
from onernn.backend.stack import Stack, Trainer
from onernn.ir.activations import function
from onernn.ir.arrays import Array
from onernn.ir.budget import time_limit
from onernn.ir.cells import step
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.ragged import Batch, Ragged
from onernn.ir.rnn import Limits, why_not
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights, Weights, layers_of
from onernn.reorders.lod import Packing

NAME = "NumPy reference"
_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
_SLOPES: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: (y > 0).astype(y.dtype),
    "identity": np.ones_like,
}
"""The derivative of each activation, as a function of the activation's result."""
TRAINED = Limits(
    who="training",
    functions=tuple(_SLOPES),
    gate_clip=False,
)
"""The layers that the reference and the kernels can train."""


def reference_stack(spec: RnnSpec, weights: Weights, dtype: str = "f32", why: str = "") -> Stack:
    """Returns a layer or stack that runs on NumPy in f32 or f64.

    ``why``: why no faster backend is used. The layer follows the equations of oneDNN's RNN
    developer guide step by step. Raises `ShapeError` for weights that do not fit the spec, and
    `UnsupportedError` for other dtypes.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> from onernn.backend import reference_stack
    >>> y, state = reference_stack(spec, weights, "f64").run(np.ones((4, 1, 2)))
    >>> y.dtype.name, y.shape
    ('float64', (4, 1, 3))
    """
    if dtype not in _DTYPES:
        raise UnsupportedError(f"dtype {dtype!r}: expected f32 or f64 on the reference")
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
    """Returns the reference in place of a backend that cannot run the layer, in the weights'
    precision.

    ``error``: why the other backend cannot run the layer. With ``strict``, raises this error with
    advice.
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
    """Returns a trainer on NumPy. Raises `UnsupportedError` for layers without a backward pass."""
    if beyond := why_not(spec, layers, TRAINED):
        raise UnsupportedError(beyond)
    prepare = partial(ReferenceKernel, dtype=dtype, trains=True)
    return Trainer(LayerWalk(spec, layers, prepare), NAME, why)


class ReferenceKernel(DirectionKernel):
    """A kernel that runs one layer in one direction; it records a tape if ``trains`` is true."""

    name = NAME

    def __init__(
        self, spec: RnnSpec, weights: RnnWeights, dtype: np.dtype[Any], trains: bool = False
    ) -> None:
        self.spec, self.dtype, self._trains = spec, dtype, trains
        self._backwards = spec.direction == "right2left"
        self.functions = [function(each) for each in spec.functions]
        bias = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), dtype)
        given = {"bias": bias, **weights.arrays}
        self.weights = {name: each[0, 0].astype(dtype, copy=False) for name, each in given.items()}

    def _steps(
        self, packing: Packing, states: Sequence[Array], *, reverse: bool = False
    ) -> Iterator[tuple[slice, list[Array]]]:
        """Yields the packed rows of each step, and the states of the sequences that have this
        step.
        """
        at, sizes = packing.step_offsets.tolist(), packing.batch_sizes.tolist()
        steps = [(slice(at[t], at[t + 1]), size) for t, size in enumerate(sizes)]
        for rows, size in steps[:: -1 if self._backwards != reverse else 1] or [(slice(0, 0), 0)]:
            yield rows, [s[:size] for s in states]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """Implements `DirectionKernel.run`."""
        words, y, packing, begin, attention = batch
        states, tapes = [s.copy() for s in begin], list[_Tape]()
        limit = time_limit()
        for rows, running in self._steps(packing, states):
            if limit:
                limit.check()
            values = (self, words[rows], None if attention is None else attention[rows])
            with np.errstate(invalid="ignore", over="ignore"):  # infinity and NaN are results
                if self._trains:
                    tapes.append(_Tape(*values, running))
                    after = [state.value for state in tapes[-1].after]
                else:
                    after = step(self.spec, _Arrays(*values), *running)
            for state, value in zip(running, after, strict=True):
                state[...] = value
            y[rows] = after[0]
        return states, (words, tapes) if self._trains else None

    def backward(self, batch: PackedGradient) -> DirectionGradients:
        """Implements `DirectionKernel.backward`."""
        (words, tapes), packing, dy, dend, into = batch
        states, diff, left = [s.copy() for s in dend], dict[str, Array](), dict[str, Array]()
        for (rows, running), tape in zip(
            self._steps(packing, states, reverse=True), reversed(tapes), strict=True
        ):
            first, *others = running
            before = tape.backward([first + dy[rows], *others])
            _collect(diff, {name: each.grad for name, each in tape.named.items()}, rows, len(dy))
            _collect(left, tape.factors, rows, len(dy))
            for state, value in zip(running, before, strict=True):
                state[...] = value
        gates = np.stack([diff[f"x {place}"] for place in range(self.spec.gates)], axis=1)
        for name in left:
            kind, _, place = name.partition(" ")
            if kind == "h":
                into["iter"][:, int(place)] += left[name].T @ diff[name]
            elif kind == "peephole" and kind in into:
                into[kind][int(place)] += (left[name] * diff[name]).sum(0)
            elif kind == "projection" and kind in into:
                into[kind][...] += left[name].T @ diff[name]
        if "layer" in into:
            into["layer"][...] += (words.T @ _flat(gates)).reshape(into["layer"].shape)
        if "bias" in into:
            into["bias"][: self.spec.gates] += gates.sum(0)
            if "inner" in diff:
                into["bias"][3] += diff["inner"].sum(0)
        whole = self.weights.get("layer")
        dx = _flat(gates) if whole is None else _flat(gates) @ _flat(whole).T
        return dx, states, diff.get("attention")


class _Arrays:
    """The builder for `step` that computes on NumPy arrays; ``of`` holds the weights."""

    def __init__(self, of: ReferenceKernel, x: Array, attention: Array | None) -> None:
        spec, w = of.spec, of.weights.get("layer")
        self.spec, self.weights, self.functions = spec, of.weights, of.functions
        self.attention: Any = attention
        # One product per gate, because BLAS computes small products in the calling thread, but
        # large products with several threads, which wait for each other.
        whole = (
            x.reshape(len(x), spec.gates, spec.hidden_size)
            if w is None
            else np.matmul(x, w.swapaxes(0, 1)).swapaxes(0, 1)
        )
        self.gates = whole + of.weights["bias"][: spec.gates]

    def x(self, gate: int) -> Any:
        return self.gates[:, gate]

    def h(self, gate: int, state: Any) -> Any:
        return state @ self.weights["iter"][:, gate]

    def inner(self, product: Any) -> Any:
        return product + self.weights["bias"][3]

    def apply(self, place: int, value: Any) -> Any:
        return self.functions[place](value)

    def gate(self, place: int, value: Any) -> Any:
        bound = self.spec.gate_clip
        return self.apply(place, value if bound is None else np.clip(value, -bound, bound))

    def peephole(self, row: int, state: Any) -> Any:
        return self.weights["peephole"][row] * state

    def clip(self, state: Any) -> Any:
        assert self.spec.cell_clip is not None
        low, high = self.spec.cell_clip
        return np.clip(np.fmax(state, low) if self.spec.cell_clip_nan else state, low, high)

    def project(self, h: Any) -> Any:
        return h @ self.weights["projection"]


class _Value:
    """An array on a tape, and the functions that map its gradient to the gradients of its
    operands.
    """

    __array_ufunc__ = None

    def __init__(self, tape: list[_Value], value: Array) -> None:
        self.tape, self.value, self.grad = tape, value, np.zeros_like(value)
        self.parents: list[tuple[_Value, Callable[[Array], Array]]] = []
        tape.append(self)

    def derive(self, value: Array, *parents: tuple[_Value, Callable[[Array], Array]]) -> _Value:
        """Returns the tape entry of an operation's result. ``parents``: for each operand, its entry
        and the function that maps the result's gradient to the operand's gradient.
        """
        result = _Value(self.tape, value)
        result.parents += parents
        return result

    def __add__(self, other: _Value) -> _Value:
        return self.derive(self.value + other.value, (self, _same), (other, _same))

    def __mul__(self, other: _Value) -> _Value:
        one, two = self.value, other.value
        return self.derive(
            one * two, (self, lambda d: _product(d, two)), (other, lambda d: _product(d, one))
        )

    def __rsub__(self, number: int) -> _Value:
        return self.derive(number - self.value, (self, np.negative))


def _same(gradient: Array) -> Array:
    return gradient


def _product(gradient: Array, factor: Array) -> Array:
    """Returns the product, or 0 for a gradient of 0, even if the factor is NaN."""
    return np.where(gradient == 0, gradient, gradient * factor)


class _Tape(_Arrays):
    """Records the operations of one step in their order, for the backward pass.

    ``named``: the results whose gradients determine the gradients of weights and inputs.
    ``factors``: the arrays that are multiplied by weights, by the same names.
    """

    def __init__(
        self, of: ReferenceKernel, x: Array, attention: Array | None, states: Sequence[Array]
    ) -> None:
        super().__init__(of, x, attention)
        self.values: list[_Value] = []
        self.named: dict[str, _Value] = {}
        self.factors: dict[str, Array] = {}
        for place in range(self.spec.gates):
            self.named[f"x {place}"] = _Value(self.values, self.gates[:, place])
        if attention is not None:
            self.attention = self.named["attention"] = _Value(self.values, attention)
        self.before = [_Value(self.values, state.copy()) for state in states]
        self.after = step(self.spec, self, *self.before)

    def backward(self, gradients: Sequence[Array]) -> list[Array]:
        """Returns the gradients of the states before the step, computed from the gradients of the
        states after the step.
        """
        for state, gradient in zip(self.after, gradients, strict=True):
            state.grad = state.grad + gradient
        for value in reversed(self.values):
            for parent, back in value.parents:
                gradient = back(value.grad)
                if gradient.shape != parent.value.shape:
                    gradient = gradient.sum(1, keepdims=True)
                parent.grad = parent.grad + gradient
        return [state.grad for state in self.before]

    def _note(self, name: str, value: _Value, result: Array, back: Callable[[Array], Array]) -> Any:
        self.factors[name] = value.value
        self.named[name] = value.derive(result, (value, back))
        return self.named[name]

    def x(self, gate: int) -> Any:
        return self.named[f"x {gate}"]

    def h(self, gate: int, state: Any) -> Any:
        weights = self.weights["iter"][:, gate]
        return self._note(f"h {gate}", state, super().h(gate, state.value), lambda d: d @ weights.T)

    def inner(self, product: Any) -> Any:
        result = product.derive(super().inner(product.value), (product, _same))
        self.named["inner"] = result
        return result

    def apply(self, place: int, value: Any) -> Any:
        result, slope = super().apply(place, value.value), self.spec.functions[place].name
        return value.derive(result, (value, lambda d: d * _SLOPES[slope](result)))

    def gate(self, place: int, value: Any) -> Any:
        # layers with clipped gates cannot be trained: see `TRAINED`
        return self.apply(place, value)

    def peephole(self, row: int, state: Any) -> Any:
        weights = self.weights["peephole"][row]
        result = super().peephole(row, state.value)
        return self._note(f"peephole {row}", state, result, lambda d: d * weights)

    def clip(self, state: Any) -> Any:
        assert self.spec.cell_clip is not None
        low, high = self.spec.cell_clip
        inside = (state.value >= low) & (state.value <= high)  # the slope at the bounds is 1
        return state.derive(super().clip(state.value), (state, lambda d: d * inside))

    def project(self, h: Any) -> Any:
        weights = self.weights["projection"]
        return self._note("projection 0", h, super().project(h.value), lambda d: d @ weights.T)


def _collect(arrays: dict[str, Array], step: Mapping[str, Array], rows: slice, count: int) -> None:
    for name, array in step.items():
        if name not in arrays:
            arrays[name] = np.empty((count, *array.shape[1:]), array.dtype)
        arrays[name][rows] = array


def _flat(gates: Array) -> Array:
    return gates.reshape(len(gates), gates.shape[1] * gates.shape[2])


# The cell state of every step: no oneDNN primitive outputs it.


def cell_sequence(spec: RnnSpec, weights: RnnWeights, x: Batch, state: State | None) -> Batch:
    """Returns the cell state c of every step of an LSTM of one layer and direction: (W, O) or (T,
    N, O).

    ``state``: the initial h and c, which have the layout ldnc.
    """
    dtype = weights.iter.dtype
    walk = LayerWalk(spec, [weights], partial(ReferenceKernel, dtype=dtype, trains=True))
    sentences = len(x) if isinstance(x, Ragged) else x.shape[1]
    initial = check_state(spec, state, sentences, dtype)
    _, _, shares = walk.run_training(x, initial, None)
    _, tapes = shares[0][0][0]  # there is only one share, layer and direction
    if spec.direction == "right2left":
        tapes.reverse()
    cells = np.concatenate([tape.after[1].value for tape in tapes])
    if isinstance(x, Ragged):
        return x.with_data(Packing.of(x.offsets).unpack(cells))
    return cells.reshape(*x.shape[:2], spec.hidden_size)
