"""A recurrent cell that a symbol writes out in its own operators: what the plug-in runs instead.

The weights stay the arrays that they are; a formula tells where in them the numbers of each gate
stand. Works on arrays in memory, without MXNet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.mxnet.live.execution import FLOATS, Options, Recorded, computed
from onernn.adapters.repacking import Repacked
from onernn.backend import Stack, open_backend
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.ragged import data_of
from onernn.core.records import dataclass
from onernn.core.spec import Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights


class Rows(NamedTuple):
    """Rows start ... stop of a weight (G*O, I) or a bias (G*O,), by its number."""

    array: int
    start: int
    stop: int


@dataclass(frozen=True)
class Formula:
    """A cell, and where its numbers stand; gates in the order of `Cell.gates`.

    ``rows``: how many each array has. ``biases``: for each row of the pivot those that are added
    up. ``signs``: -1 where a gate is computed with its sign turned. ``x_axis``, ``y_axis``: where
    input and output hold the time, 0 or 1. ``backwards``: from the last step to the first.
    ``projection``: what an LSTM's output is multiplied by, where that is its state.
    """

    cell: str
    rows: tuple[int, ...]
    layer: tuple[Rows, ...]
    iter: tuple[Rows, ...]
    biases: tuple[tuple[Rows, ...], ...]
    signs: tuple[int, ...]
    projection: Rows | None = None
    x_axis: int = 0
    y_axis: int = 0
    backwards: bool = False

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Formula:
        """The inverse of `text`."""
        found: dict[str, Any] = json.loads(text)
        for name in ("layer", "iter"):
            found[name] = tuple(Rows(*each) for each in found[name])
        found["biases"] = tuple(tuple(Rows(*each) for each in row) for row in found["biases"])
        found |= {name: tuple(found[name]) for name in ("rows", "signs")}
        found["projection"] = found["projection"] and Rows(*found["projection"])
        return cls(**found)

    @property
    def hidden(self) -> int:
        return self.iter[0].stop - self.iter[0].start

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the states, and of the output as the first of them."""
        made = self.projection
        return made.stop - made.start if made else self.hidden, self.hidden

    def shape(self, array: int, width: int) -> list[int]:
        """Of a weight or bias, where the input has ``width`` channels."""
        if any(array == each.array for each in self.layer):
            return [self.rows[array], width]
        if any(array == each.array for each in self.iter):
            return [self.rows[array], self.widths[0]]
        projects = self.projection and array == self.projection.array
        return [self.rows[array], self.hidden] if projects else [self.rows[array]]

    def pack(self, arrays: Sequence[Array]) -> tuple[RnnSpec, RnnWeights]:
        """The layer of these arrays."""

        def matrix(gates: Iterable[Rows]) -> Array:
            parts = [
                sign * arrays[at][start:stop].T
                for sign, (at, start, stop) in zip(self.signs, gates, strict=True)
            ]
            return np.stack(parts, axis=1)[None, None]

        layer, recurrent = matrix(self.layer), matrix(self.iter)
        bias = np.zeros((len(self.biases), self.hidden), layer.dtype)
        for row, added in zip(bias, self.biases, strict=True):
            for at, start, stop in added:
                row += arrays[at][start:stop]
        bias[: len(self.signs)] *= np.array(self.signs, bias.dtype)[:, None]
        direction: Direction = "right2left" if self.backwards else "left2right"
        projection, width = None, None
        if self.projection:
            at, start, stop = self.projection
            projection, width = arrays[at][start:stop].T[None, None], stop - start
        spec = RnnSpec(
            Cell(self.cell),
            layer.shape[2],
            self.hidden,
            direction=direction,
            projection_size=width,
        )
        return spec, RnnWeights(layer, recurrent, bias[None, None], projection=projection)

    def gradients(self, packed: RnnWeights, arrays: Sequence[Array]) -> list[Array]:
        """Those of the arrays, from those of what `pack` made."""
        found = [np.zeros(array.shape, np.float32) for array in arrays]
        assert packed.layer is not None and packed.bias is not None
        for matrix, gates in ((packed.layer, self.layer), (packed.iter, self.iter)):
            for at, (sign, rows) in enumerate(zip(self.signs, gates, strict=True)):
                found[rows.array][rows.start : rows.stop] += sign * matrix[0, 0, :, at].T
        if self.projection and packed.projection is not None:
            at, start, stop = self.projection
            found[at][start:stop] += packed.projection[0, 0].T
        signs = (*self.signs, 1)
        for at, added in enumerate(self.biases):
            for rows in added:
                found[rows.array][rows.start : rows.stop] += signs[at] * packed.bias[0, 0, at]
        return found


class LiveCells:
    """One unrolled cell or loop over a cell; see `LiveRnn`, which has the same interface."""

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        self._formula, self._options = Formula.of(attributes["formula"]), options
        self._states = Cell(self._formula.cell).states
        self._layers = Repacked(self._new_layer)
        count = len(self._formula.rows)
        self.arguments = ["data", *(f"weight{at}" for at in range(count)), *self._states]
        self.outputs = ["output", *(f"final_{name}" for name in self._states)]

    def shapes(self, given: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Of the arguments and of all outputs, from the data's; unknown sizes are 0 or -1."""
        formula, sizes = self._formula, list(given[0])
        if len(sizes) < 3:
            return [*map(list, given)], [[]] * len(self.outputs)
        time, batch = sizes[formula.x_axis], sizes[1 - formula.x_axis]
        width = int(np.prod(sizes[2:])) if min(sizes[2:]) > 0 else 0
        shapes = [sizes]
        for at, known in enumerate(given[1 : 1 + len(formula.rows)]):
            shape = formula.shape(at, width)
            shapes.append(list(known) if len(shape) > 1 and not shape[1] else shape)
        states = [[batch, size] for size, _ in zip(formula.widths, self._states, strict=False)]
        y = [time, batch] if formula.y_axis == 0 else [batch, time]
        return [*shapes, *states], [[*y, formula.widths[0]], *states]

    def types(self, given: Sequence[type | None]) -> tuple[list[type], list[type]]:
        known = next((each for each in given if each is not None), np.float32)
        return [known] * len(given), [known] * len(self.outputs)

    def bound(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays of `arguments`, in that order, all of one float dtype."""
        for name, array in zip(self.arguments, arrays, strict=True):
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if array.dtype != arrays[0].dtype:
                raise ShapeError(f"{name}: expected {arrays[0].dtype} as data, got {array.dtype}")
        return arrays

    def _new_layer(self, _: tuple[()], arrays: Sequence[Array]) -> Stack:
        spec, weights = self._formula.pack([computed(array) for array in arrays])
        engine = open_backend(self._options.backend, threads=self._options.threads)
        return engine.prepare(spec, weights, dtype=self._options.dtype)

    def _taken(self, given: Sequence[Array]) -> tuple[Stack, Array, tuple[Array, ...]]:
        """The layer, its input (T, N, I), its initial states."""
        data, ends = given[0], len(given) - len(self._states)
        x = _time_major(computed(data), self._formula.x_axis)
        states = tuple(computed(state)[None, None] for state in given[ends:])
        return self._layers((), given[1:ends]), x.reshape(*x.shape[:2], -1), states

    def run(self, given: Sequence[Array]) -> tuple[Array, ...]:
        """y with the time on its axis, then the final states (N, O)."""
        layer, x, states = self._taken(given)
        return self._results(*layer.run(x, states))

    def run_training(self, given: Sequence[Array]) -> tuple[tuple[Array, ...], Recorded | str]:
        """What `run` gives, and what `backward` needs; or the reason why there can be none."""
        layer, x, states = self._taken(given)
        try:
            y, finals, tape = layer.run_training(x, states)
        except UnsupportedError as error:
            return self.run(given), str(error)
        return self._results(y, finals), Recorded(layer, tape)

    def backward(
        self,
        given: Sequence[Array],
        recorded: Recorded | str,
        dy: Array,
        dstates: Sequence[Array],
    ) -> tuple[Array, ...]:
        """Gradients of `arguments` from those of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        layer, tape, _ = recorded
        dy = _time_major(computed(dy), self._formula.y_axis)
        grads = layer.backward(tape, dy, tuple(computed(d)[None, None] for d in dstates))
        weights = given[1 : len(given) - len(self._states)]
        (one,) = grads.layers
        dx = _time_major(data_of(grads.x), self._formula.x_axis).reshape(given[0].shape)
        return dx, *self._formula.gradients(one, weights), *(d[0, 0] for d in grads.state)

    def _results(self, y: object, finals: Sequence[Array]) -> tuple[Array, ...]:
        whole = _time_major(np.asarray(y), self._formula.y_axis)
        return whole, *(final[0, 0] for final in finals)


def _time_major(array: Array, axis: int) -> Array:
    """The array with the time in front, from ``axis``; or back again."""
    return array.swapaxes(0, 1) if axis else array
