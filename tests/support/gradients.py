"""Gradients by name, compared with each other, and with the slopes of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import reference_stack
from support.arrays import uniform
from support.layers import (
    DIRECTIONS,
    LENGTHS,
    attention_for,
    prepare_on,
    random_ragged,
    random_state,
    random_weights,
    words,
)

AUGRUS = [Cell.AUGRU, Cell.LBR_AUGRU]


class Problem(NamedTuple):
    """All that a loss depends on, and the gradients by y and by the final states that define it."""

    spec: RnnSpec
    weights: list[RnnWeights]
    x: Any
    state: tuple[np.ndarray, ...]
    attention: Any
    dy: Any
    dstate: tuple[np.ndarray, ...]

    def float64(self) -> Problem:
        wide = [map_weights(w, lambda a: a.astype(np.float64)) for w in self.weights]
        return self._replace(
            weights=wide,
            x=_map(self.x, np.float64),
            state=tuple(s.astype(np.float64) for s in self.state),
            attention=None if self.attention is None else _map(self.attention, np.float64),
        )

    def on(self, backend: str, dtype: str = "f32", *, strict: bool = True, threads: int = 1) -> Any:
        """The layer on a backend."""
        options: Any = {"dtype": dtype, "strict": strict, "threads": threads}
        return prepare_on(backend, self.spec, self.weights, **options)

    def check(self, layer: Any, rtol: float = 1e-5) -> Any:
        """The tape of a run whose gradients are those of the reference."""
        tape, gradients = self.train(layer)
        assert_gradients(gradients, reference_gradients(self), rtol)
        return tape

    def train(self, layer: Any) -> tuple[Any, dict[str, np.ndarray]]:
        """The tape of a run, and the gradients that it gives."""
        *_, tape = layer.run_training(self.x, self.state, self.attention)
        return tape, by_name(layer.backward(tape, self.dy, self.dstate))


def _map(batch: Any, dtype: Any) -> Any:
    data = words(batch).astype(dtype)
    return batch.with_data(data) if isinstance(batch, Ragged) else data


def map_weights(weights: RnnWeights, change: Callable[[np.ndarray], np.ndarray]) -> RnnWeights:
    return replace(weights, **{name: change(array) for name, array in weights.arrays.items()})


def new_problem(
    spec: RnnSpec, weights: list[RnnWeights], x: Any, state: Any, attention: Any, seed: int
) -> Problem:
    """With normal random dy and dstate."""
    rng = np.random.default_rng(seed)
    shape = (*words(x).shape[:-1], spec.output_size)
    dy = rng.standard_normal(shape).astype(np.float32)
    dstate = tuple(rng.standard_normal(s.shape).astype(np.float32) for s in state)
    like = x.with_data(dy) if isinstance(x, Ragged) else dy
    return Problem(spec, weights, x, state, attention, like, dstate)


def by_name(gradients: Any) -> dict[str, np.ndarray]:
    found = {"x": words(gradients.x)}
    found |= {f"state {n}": s for n, s in enumerate(gradients.state)}
    for layer, weights in enumerate(gradients.layers):
        found |= {f"layer {layer} {name}": array for name, array in weights.arrays.items()}
    if gradients.attention is not None:
        found["attention"] = words(gradients.attention)
    return found


def assert_gradients(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], rtol: float
) -> None:
    """Within ``rtol`` of the largest gradient of all."""
    assert got.keys() == want.keys()
    largest = max(np.abs(a).max(initial=0) for a in want.values())
    for name, array in want.items():
        assert got[name].shape == array.shape, name
        worst = np.abs(got[name].astype(np.float64) - array).max(initial=0)
        assert worst <= rtol * largest, f"{name}: {worst} apart, the largest gradient is {largest}"


def assert_slopes(
    loss: Callable[[Problem], float], at: Problem, gradients: Mapping[str, np.ndarray], seed: int
) -> None:
    """Each gradient is the slope of the loss, by a central difference along a random direction.

    That is wrong by step**2 / 6 = 2e-11 times the third derivative, of order 100 or less here, and
    by roundings of the loss over the step, 1e-11: 1e-7 of the slope, or of 1, leaves room for both.
    """
    rng, step = np.random.default_rng(seed), 1e-5
    for name, array in gradients.items():
        way = rng.standard_normal(array.shape)
        high, low = (loss(_moved(at, name, sign * step * way)) for sign in (1, -1))
        slope, want = (high - low) / (2 * step), float((array * way).sum())
        assert abs(slope - want) <= 1e-7 * max(1, abs(slope)), f"{name}: {want}, slope {slope}"


def _moved(at: Problem, name: str, by: np.ndarray) -> Problem:
    kind, *more = name.split()
    if kind == "layer":
        layer, field = int(more[0]), more[1]
        weights = list(at.weights)
        moved = {field: getattr(weights[layer], field) + by}
        weights[layer] = replace(weights[layer], **moved)
        return at._replace(weights=weights)
    if kind == "state":
        states = list(at.state)
        states[int(more[0])] = states[int(more[0])] + by
        return at._replace(state=tuple(states))
    batch = getattr(at, kind)
    return at._replace(**{kind: batch.with_data(batch.data + by)})


def ragged_problem(spec: RnnSpec, lengths: list[int], seed: int, **more: Any) -> Problem:
    x = random_ragged(lengths, spec.input_size, seed)
    state = random_state(spec, len(lengths), seed)
    weights = random_weights(spec, seed, **more)
    return new_problem(spec, weights, x, state, attention_for(spec, x, seed), seed)


def reference_gradients(problem: Problem) -> dict[str, np.ndarray]:
    """In float64."""
    exact = problem.float64()
    return exact.train(reference_stack(exact.spec, exact.weights, "f64"))[1]


@st.composite
def problems(draw: st.DrawFn, cells: Any) -> Problem:
    """Ragged or dense, one layer or two."""
    cell, more = draw(st.sampled_from(cells))
    units = draw(st.sampled_from([2, 5, 16, 33]))
    if "projection_size" in more:
        more = more | {"projection_size": draw(st.integers(1, units))}
    spec = RnnSpec(
        cell,
        draw(st.sampled_from([1, 3, 16, 17])),
        units,
        layers=draw(st.integers(1, 2)),
        direction=draw(st.sampled_from(DIRECTIONS)),
        **more,
    )
    seed, dense = draw(st.integers(0, 99)), draw(st.booleans())
    if not dense:
        return ragged_problem(spec, draw(LENGTHS), seed)
    t, n = draw(st.integers(0, 12)), draw(st.integers(0, 4))
    x = uniform(t, n, spec.input_size, seed=seed, bound=2)
    scale = np.abs(uniform(t, n, 1, seed=seed)) if cell in AUGRUS else None
    state = random_state(spec, n, seed)
    return new_problem(spec, random_weights(spec, seed), x, state, scale, seed)
