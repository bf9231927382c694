"""A recurrent cell as generated code sees it: what templates ask for, and its packed numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onernn.core.arrays import Array
from onernn.core.spec import Activation, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.emit.storing import Store
from onernn.operators.activations import completed

LANES = 16
"""Units a panel: what one AVX-512 register holds, two of AVX2."""
FUNCTIONS = ("gate", "candidate", "output")
"""Names in C++'s Traits of what a cell's activations are, in their order."""


def padded(size: int) -> int:
    """The next multiple of a panel's width."""
    return -(-size // LANES) * LANES


def panels(matrix: Array) -> Array:
    """(K, G, O) -> (panels, K, panels side by side, G, 16), zeros for units that are not there.

    `side_by_side` in kernels/products.hpp tells how many there are.
    """
    k, gates, units = matrix.shape
    wide = np.zeros((k, gates, padded(units)), matrix.dtype)
    wide[:, :, :units] = matrix
    count = wide.shape[2] // LANES
    beside = next(n for n in (4, 2, 1) if n * gates <= 4 and count % n == 0)
    split = wide.reshape(k, gates, -1, beside, LANES)
    return np.ascontiguousarray(split.transpose(2, 0, 3, 1, 4))


@dataclass(frozen=True)
class CellCode:
    """One layer that runs from left to right, without its numbers. ``real``, ``stored``: C++ types.

    Layers that agree in all of this share the code.
    """

    spec: RnnSpec
    has_input: bool
    real: str
    stored: str

    @property
    def kernel(self) -> str:
        """The header that the cell stands in."""
        cell = self.spec.cell
        if cell.is_gru:
            return "lbr_gru" if cell.linear_before_reset else "gru"
        return "lstm" if len(cell.states) == 2 else "rnn"

    @property
    def functions(self) -> dict[str, Activation]:
        """By their names in C++'s Traits."""
        return dict(zip(FUNCTIONS, map(completed, self.spec.functions), strict=False))

    @property
    def title(self) -> str:
        """What a reader of the code is told."""
        spec = self.spec
        parts = [f"{spec.cell.name}, {spec.input_size} -> {spec.recurrent_size} channels"]
        parts += [f"{spec.hidden_size} units"] if spec.projection_size else []
        parts += ["peepholes"] * spec.peephole + ["projected input"] * (not self.has_input)
        parts += [f"gates within {spec.gate_clip:g}"] if spec.gate_clip is not None else []
        parts += ["forget gate 1 - i"] * spec.input_forget
        named = ", ".join(map(str, self.functions.values()))
        return f"{', '.join(parts)}; {named}."

    def pack(self, weights: RnnWeights, store: Store) -> tuple[str, ...]:
        """C++ expressions of the fields of CellWeights; their numbers go into the weights file.

        ``weights``: of one layer and direction.
        """
        spec = self.spec
        recurrent, candidate = weights.iter[0, 0], None
        if self.kernel == "gru":  # the candidate waits for the reset gate: a product of its own
            recurrent, candidate = recurrent[:, :2], recurrent[:, 2:]
        bias = np.zeros((1, spec.cell.bias_rows, spec.hidden_size), recurrent.dtype)
        if weights.bias is not None:
            bias = weights.bias[0]
        peephole, projection = weights.peephole, weights.projection
        fields = (
            (bias, self.real),
            (None if weights.layer is None else weights.layer[0, 0], self.stored),
            (recurrent, self.stored),
            (candidate, self.stored),
            (None if peephole is None else peephole[0], self.real),
            (None if projection is None else projection[0, 0][:, None], self.stored),
        )
        return tuple(
            "nullptr"
            if matrix is None
            else f"weights_.at<{kind}>({store.add(panels(matrix), narrow=kind == self.stored)})"
            for matrix, kind in fields
        )
