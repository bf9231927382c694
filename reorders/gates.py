"""Gate orders and signs, which describe the layouts of gates in all frameworks."""

from __future__ import annotations

import numpy as np

from onernn.ir.arrays import Array, seal
from onernn.ir.errors import ShapeError
from onernn.ir.records import dataclass


@dataclass(frozen=True)
class GateLayout:
    """A framework's layout: oneDNN's gate g is ``signs[g]`` times gate ``permutation[g]`` of the
    framework.
    """

    permutation: tuple[int, ...]
    signs: tuple[int, ...]

    def __post_init__(self) -> None:
        gates = len(self.permutation)
        if sorted(self.permutation) != list(range(gates)) or len(self.signs) != gates:
            raise ValueError(
                f"GateLayout: expected each of {gates} gates once and as many signs, got"
                f" {self.permutation} and {self.signs}"
            )

    @property
    def inverse(self) -> GateLayout:
        back = tuple(int(g) for g in np.argsort(self.permutation))
        return GateLayout(back, tuple(self.signs[g] for g in back))

    def split(self, array: Array) -> Array:
        """Copies (..., G*O) in the framework's layout to (..., G, O) in oneDNN's layout."""
        gates = len(self.permutation)
        if array.shape[-1] % gates:
            raise ShapeError(f"gates: expected a multiple of {gates} columns, got {array.shape}")
        blocks = array.reshape(*array.shape[:-1], gates, array.shape[-1] // gates)
        # not np.take, which would first copy a transposed array
        out = np.empty(blocks.shape, array.dtype)
        for gate, place in enumerate(self.permutation):
            out[..., gate, :] = blocks[..., place, :]
        if -1 in self.signs:  # np.negative in place is wrong in NumPy 2.4 for strides of 16 bytes
            out *= np.array(self.signs, out.dtype)[:, None]
        return out

    def __call__(self, array: Array) -> Array:
        """Copies (..., G*O) in the framework's layout to (..., G*O) in oneDNN's layout."""
        return self.split(array).reshape(array.shape)


def input_layer(weight: Array, layout: GateLayout) -> Array:
    """Converts a projection (I, G*O) to input weights ldigo (L=1, D=1, I, G, O)."""
    return seal(layout.split(weight)[None, None])


def input_layer_back(layer: Array, layout: GateLayout) -> Array:
    """Converts input weights (1, 1, I, G, O) to the framework's (I, G*O)."""
    return layout.inverse(layer[0, 0].reshape(layer.shape[2], -1))


def split_bias(bias: Array | None, layout: GateLayout) -> Array | None:
    """Converts a bias (G*O,) or (1, G*O) to a new array ldgo (1, 1, G, O)."""
    if bias is None:
        return None
    if bias.shape[-1:] != (bias.size,):
        raise ShapeError(f"bias: expected (G*O) or (1, G*O), got {bias.shape}")
    return layout.split(bias.reshape(-1))[None, None]


def bias_back(bias: Array, layout: GateLayout) -> Array:
    """Converts a bias ldgo (1, 1, G, O) to the framework's (1, G*O)."""
    return layout.inverse(bias.reshape(1, -1))
