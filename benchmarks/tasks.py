"""What is measured: one recurrent stack on one batch, as every contender gets it. NumPy only."""

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
    """A contender cannot do this task; the message tells why."""


class Takes(NamedTuple):
    """What a contender's mode can be asked for: kinds, dtypes and cells, blanks between them."""

    kinds: str
    dtypes: str = "f32"
    cells: str = "lbr_gru gru lstm"


class Prepared(NamedTuple):
    """``call()`` is timed; ``read(result)`` gives its words (W, D*O) as float32, or the list of a
    whole model's outputs."""

    call: Callable[[], Any]
    read: Callable[[Any], Array | list[Array]]
    note: str = ""


@dataclass(frozen=True)
class Task:
    """A stack of recurrent layers and the lengths of the sentences that it runs over.

    ``kind``: ragged; dense (equal lengths); stream (one sentence, a call a step, the state handed
    on); training (of any lengths: forward, then backward from `dy`). Weights and words are in
    ``file``.
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
        """Whether there is padding to be saved; a batch of kind ragged may happen to have none."""
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
        """(T,): how many sentences still run at each step."""
        return np.sum(np.asarray(self.lengths)[:, None] > np.arange(self.time), axis=0)

    @property
    def input_sizes(self) -> list[int]:
        """I of each layer."""
        return [self.input_size] + [self.hidden_size * self.directions] * (self.layers - 1)

    @property
    def flops(self) -> int:
        """Of the matrix products, without padding; backward costs two forwards."""
        columns = GATES[self.cell] * self.hidden_size * self.directions
        once = sum(2 * sum(self.lengths) * (i + self.hidden_size) for i in self.input_sizes)
        return once * columns * (3 if self.kind == "training" else 1)


class Numbers:
    """The arrays of a task, and what the contenders make of them."""

    def __init__(self, task: Task) -> None:
        self.task = task
        with np.load(task.file) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self.words: Array = self._arrays["words"]
        """(W, I) float32, sentence by sentence, in [-1, 1]."""

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def weights(self, layer: int) -> tuple[Array, Array, Array]:
        """ldigo, ldigo and ldgo of a layer: (1, D, I, G, O), (1, D, O, G, O), (1, D, G', O)."""
        return self[f"layer{layer}"], self[f"iter{layer}"], self[f"bias{layer}"]

    def rows(
        self, order: Sequence[int], layer: int, direction: int
    ) -> tuple[Array, Array, Array, Array]:
        """(w_ih (G*O, I), w_hh (G*O, O), b_ih (G*O,), b_hh (G*O,)): how most frameworks hold them.

        ``order``: the framework's gates by their place in oneDNN's. Biases are b_ih's, but for the
        row u' of LBR cells, which stands inside r * (...).
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
        """(layer, direction, rows), layer by layer."""
        for layer in range(self.task.layers):
            for direction in range(self.task.directions):
                yield layer, direction, self.rows(order, layer, direction)

    @property
    def sentences(self) -> list[Array]:
        return np.split(self.words, np.cumsum(self.task.lengths)[:-1])

    @property
    def padded(self) -> Array:
        """(T, N, I), zeros behind the sentences."""
        return self._padded(self.words)

    @property
    def padded_dy(self) -> Array:
        """(T, N, D*O): what training is given as the gradient of its output, zeros behind it."""
        return self._padded(self["dy"])

    def from_rows(
        self, rows: Callable[[int, int], Sequence[Array]], order: Sequence[int]
    ) -> dict[str, Array]:
        """Gradients of what `rows` gives, by layer and direction -> those of `weights`, by name."""
        back, gates = np.argsort(order), len(order)
        out = {}
        for layer in range(self.task.layers):
            sides = [rows(layer, d) for d in range(self.task.directions)]
            for k, name in enumerate(("layer", "iter")):
                split = [side[k].reshape(gates, -1, side[k].shape[1])[back] for side in sides]
                out[f"{name}{layer}"] = np.stack([m.transpose(2, 0, 1) for m in split])[None]
            biases = [[b.reshape(gates, -1)[back] for b in side[2:]] for side in sides]
            extra = slice(2, 3 if self.task.cell == "lbr_gru" else 2)  # the row u', or none
            joined = [np.concatenate([b_x, b_h[extra]]) for b_x, b_h in biases]
            out[f"bias{layer}"] = np.stack(joined)[None]
        return out

    def slopes(self, gradients: Mapping[str, Array]) -> Array:
        """(K,): of the loss, along each of K random directions in all arrays at once.

        ``gradients``: of the words (W, I), and of `weights` by name.
        """
        along = [
            np.tensordot(self[f"along_{name}"], gradient.astype(np.float64), gradient.ndim)
            for name, gradient in gradients.items()
        ]
        return np.sum(along, axis=0)

    def unpadded(self, y: Array) -> Array:
        """(T, N, C) -> words (W, C)."""
        return y.swapaxes(0, 1)[self._valid]

    def _padded(self, words: Array) -> Array:
        out = np.zeros((self.task.batch, self.task.time, words.shape[1]), np.float32)
        out[self._valid] = words
        return np.ascontiguousarray(out.swapaxes(0, 1))

    @property
    def _valid(self) -> Array:
        return np.arange(self.task.time) < np.asarray(self.task.lengths)[:, None]


def named(path: Path | str) -> str:
    """What a contender is called: the name of its file."""
    return Path(path).stem
