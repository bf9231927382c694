"""Tasks of the benchmarks: one stack of recurrent layers on one batch, the same for each contender.

This module needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GATES = {"lbr_gru": 3, "gru": 3, "lstm": 4}
KINDS = ("ragged", "dense", "stream", "training")
DTYPES = ("f32", "bf16", "u8")


class LeftOut(Exception):
    """An error if a contender cannot run a task. The message says why."""


class Takes(NamedTuple):
    """The kinds, dtypes and cells of tasks that a contender's mode can run, separated by spaces."""

    kinds: str
    dtypes: str = "f32"
    cells: str = "lbr_gru gru lstm"


class Prepared(NamedTuple):
    """A prepared task. ``call()`` runs it, and its time is measured. ``read`` turns the result of
    ``call`` into an array of all steps (W, D*O) in float32, or into the list of a model's outputs.
    ``note``: text for the result."""

    call: Callable[[], Any]
    read: Callable[[Any], Array | list[Array]]
    note: str = ""


@dataclass(frozen=True)
class Task:
    """A stack of recurrent layers, and the lengths of the sequences that it runs on.

    ``kind``: "ragged"; "dense", with equal lengths; "stream", one sequence with a call for each
    step, which passes on the state; or "training", sequences of any lengths that run forward, and
    then backward from the gradient `dy`. ``file``: an ``.npz`` of the weights and inputs.
    """

    kind: str
    cell: str
    input_size: int
    hidden_size: int
    lengths: tuple[int, ...]
    layers: int = 1
    directions: int = 1
    dtype: str = "f32"
    threads: int = 1
    file: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Task:
        return cls(**{**fields, "lengths": tuple(fields["lengths"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def with_(self, **fields: Any) -> Task:
        return replace(self, **fields)

    def taken_by(self, mode: Takes) -> bool:
        wanted = ((self.kind, mode.kinds), (self.dtype, mode.dtypes), (self.cell, mode.cells))
        return all(value in listed.split() for value, listed in wanted)

    def __str__(self) -> str:
        sizes = f"{self.input_size}->{self.hidden_size}"
        if self.kind == "stream":
            sizes = f"{self.time} single steps {sizes}"
        elif not self.ragged:
            sizes = f"{self.time}x{self.batch}x{self.input_size}x{self.hidden_size}"
        stack = f" {self.layers}-layer" * (self.layers > 1) + " bidirectional" * self.bidirectional
        return f"{self.cell.upper()} {sizes}{stack}"

    @property
    def ragged(self) -> bool:
        """Whether the task is of kind "ragged" or has sequences of different lengths."""
        return self.kind == "ragged" or len(set(self.lengths)) > 1

    @property
    def bidirectional(self) -> bool:
        return self.directions == 2

    @property
    def time(self) -> int:
        return max(self.lengths)

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def running(self) -> Array:
        """The number of sequences that are longer than t, for each step t (T)."""
        return np.sum(np.asarray(self.lengths)[:, None] > np.arange(self.time), axis=0)

    @property
    def input_sizes(self) -> list[int]:
        """The input size of each layer."""
        return [self.input_size] + [self.hidden_size * self.directions] * (self.layers - 1)

    @property
    def flops(self) -> int:
        """The floating point operations of the matrix products, without padding. A backward pass
        counts as two forward passes.
        """
        columns = GATES[self.cell] * self.hidden_size * self.directions
        once = sum(2 * sum(self.lengths) * (i + self.hidden_size) for i in self.input_sizes)
        return once * columns * (3 if self.kind == "training" else 1)


class Numbers:
    """The arrays of a task, and their conversions to and from the layouts of contenders."""

    def __init__(self, task: Task) -> None:
        self.task = task
        with np.load(task.file) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self.words: Array = self._arrays["words"]
        """The inputs of all steps (W, I) in float32, one sequence after another, in [-1, 1]."""

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def weights(self, layer: int) -> tuple[Array, Array, Array]:
        """Returns the input weights (1, D, I, G, O), recurrent weights (1, D, O, G, O) and biases
        (1, D, G', O) of a layer. G' is G, plus 1 for LBR_GRU.
        """
        return self[f"layer{layer}"], self[f"iter{layer}"], self[f"bias{layer}"]

    def rows(
        self, order: Sequence[int], layer: int, direction: int
    ) -> tuple[Array, Array, Array, Array]:
        """Returns the weights of one layer and direction in the layout of most frameworks: w_ih
        (G*O, I), w_hh (G*O, O), b_ih (G*O,) and b_hh (G*O,).

        ``order``: for each gate of the framework, the gate's index in oneDNN's order. b_hh holds
        only the bias of LBR_GRU that the reset gate multiplies; b_ih holds all other biases.
        """
        w, u, b = (array[0, direction] for array in self.weights(layer))
        of_x, of_h = b[: len(order)], np.zeros_like(b[: len(order)])
        of_h[2] = b[3] if self.task.cell == "lbr_gru" else 0
        picked = list(order)

        def flat(matrix: Array) -> Array:
            return np.ascontiguousarray(
                matrix[:, picked].transpose(1, 2, 0).reshape(-1, len(matrix))
            )

        return flat(w), flat(u), of_x[picked].reshape(-1), of_h[picked].reshape(-1)

    def all_rows(
        self, order: Sequence[int]
    ) -> Iterator[tuple[int, int, tuple[Array, Array, Array, Array]]]:
        """Yields (layer, direction, result of `rows`) for each layer and direction."""
        for layer in range(self.task.layers):
            for direction in range(self.task.directions):
                yield layer, direction, self.rows(order, layer, direction)

    @property
    def sentences(self) -> list[Array]:
        return np.split(self.words, np.cumsum(self.task.lengths)[:-1])

    @property
    def padded(self) -> Array:
        """The padded inputs (T, N, I), with zeros after the end of each sequence."""
        return self._padded(self.words)

    @property
    def padded_dy(self) -> Array:
        """The padded gradient of the outputs in training (T, N, D*O), with zeros after the end of
        each sequence.
        """
        return self._padded(self["dy"])

    def from_rows(
        self, rows: Callable[[int, int], Sequence[Array]], order: Sequence[int]
    ) -> dict[str, Array]:
        """Returns the gradients of the arrays in `weights` by name.

        ``rows``: a function from layer and direction to the gradients of the arrays in `rows`.
        """
        back, gates = np.argsort(order), len(order)
        out = {}
        for layer in range(self.task.layers):
            sides = [rows(layer, d) for d in range(self.task.directions)]
            for k, name in enumerate(("layer", "iter")):
                split = [side[k].reshape(gates, -1, side[k].shape[1])[back] for side in sides]
                out[f"{name}{layer}"] = np.stack([m.transpose(2, 0, 1) for m in split])[None]
            biases = [[b.reshape(gates, -1)[back] for b in side[2:]] for side in sides]
            extra = slice(2, 3 if self.task.cell == "lbr_gru" else 2)  # LBR_GRU's fourth bias
            joined = [np.concatenate([b_x, b_h[extra]]) for b_x, b_h in biases]
            out[f"bias{layer}"] = np.stack(joined)[None]
        return out

    def slopes(self, gradients: Mapping[str, Array]) -> Array:
        """Returns the slope of the loss along each of K random directions (K). A direction changes
        all arrays together.

        ``gradients``: the gradients of the inputs (W, I) and of the arrays in `weights`, by name.
        """
        along = [
            np.tensordot(self[f"along_{name}"], gradient.astype(np.float64), gradient.ndim)
            for name, gradient in gradients.items()
        ]
        return np.sum(along, axis=0)

    def unpadded(self, y: Array) -> Array:
        """Returns the steps (W, C) of a padded array (T, N, C)."""
        return y.swapaxes(0, 1)[self._valid]

    def _padded(self, words: Array) -> Array:
        out = np.zeros((self.task.batch, self.task.time, words.shape[1]), np.float32)
        out[self._valid] = words
        return np.ascontiguousarray(out.swapaxes(0, 1))

    @property
    def _valid(self) -> Array:
        return np.arange(self.task.time) < np.asarray(self.task.lengths)[:, None]


def named(path: Path | str) -> str:
    """Returns a contender's name: the name of its file without the suffix."""
    return Path(path).stem
