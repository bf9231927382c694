"""Gate orders and signs: the one description of how a framework lays out its gates."""

from __future__ import annotations

import numpy as np

from onernn.ir.arrays import Array, seal
from onernn.ir.errors import ShapeError
from onernn.ir.records import dataclass


@dataclass(frozen=True)
class GateLayout:
    """Gate g of oneDNN is ``signs[g]`` times gate ``permutation[g]`` of the framework."""

    permutation: tuple[int, ...]
    signs: tuple[int, ...]

    def __post_init__(self) -> None:
        gates = len(self.permutation)
        if sorted(self.permutation) != list(range(gates)) or len(self.signs) != gates:
            raise ValueError(f"GateLayout: {self.permutation} does not permute {self.signs}")

    @property
    def inverse(self) -> GateLayout:
        back = tuple(int(g) for g in np.argsort(self.permutation))
        return GateLayout(back, tuple(self.signs[g] for g in back))

    def split(self, array: Array) -> Array:
        """Returns (..., G*O) in the framework's gates -> (..., G, O) in oneDNN's, a copy."""
        gates = len(self.permutation)
        if array.shape[-1] % gates:
            raise ShapeError(f"gates: expected a multiple of {gates} columns, got {array.shape}")
        blocks = array.reshape(*array.shape[:-1], gates, array.shape[-1] // gates)
        out = np.empty(blocks.shape, array.dtype)  # np.take would copy a transposed array before
        for gate, place in enumerate(self.permutation):
            out[..., gate, :] = blocks[..., place, :]
        if -1 in self.signs:  # not np.negative in place: NumPy 2.4's is wrong 16 bytes apart
            out *= np.array(self.signs, out.dtype)[:, None]
        return out

    def __call__(self, array: Array) -> Array:
        """Returns (..., G*O) in the framework's gates -> (..., G*O) in oneDNN's, a copy."""
        return self.split(array).reshape(array.shape)


def input_layer(weight: Array, layout: GateLayout) -> Array:
    """Returns a projection (I, G*O) -> weights layer, ldigo (L=1, D=1, I, G, O)."""
    return seal(layout.split(weight)[None, None])


def input_layer_back(layer: Array, layout: GateLayout) -> Array:
    """weights layer (1, 1, I, G, O) -> the framework's (I, G*O)."""
    return layout.inverse(layer[0, 0].reshape(layer.shape[2], -1))


def summed_bias(layout: GateLayout, *biases: Array | None) -> Array | None:
    """Returns the sum of the biases that there are, (G*O) or (1, G*O) each -> ldgo (1, 1, G, O).

    None where there is none. Always a new array: the originals may be shared.
    """
    given = [b for b in biases if b is not None]
    if not given:
        return None
    if several := next((b.shape for b in given if b.shape[-1:] != (b.size,)), None):
        raise ShapeError(f"bias: expected (G*O) or (1, G*O), got {several}")
    flat = [b.reshape(-1) for b in given]
    if any(b.shape != flat[0].shape for b in flat):
        raise ShapeError(f"biases: expected equal sizes, got {[b.size for b in flat]}")
    return layout.split(np.sum(flat, axis=0, dtype=flat[0].dtype))[None, None]


def bias_back(bias: Array, layout: GateLayout) -> Array:
    """bias ldgo (1, 1, G, O) -> the framework's (1, G*O)."""
    return layout.inverse(bias.reshape(1, -1))
