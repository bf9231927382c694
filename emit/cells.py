"""A recurrent cell as generated code sees it: what templates ask for, and its packed numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.spec import Activation, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import completed

LANES = 16
"""Units a panel: what one AVX-512 register holds, two of AVX2."""


def padded(size: int) -> int:
    """The next multiple of a panel's width."""
    return -(-size // LANES) * LANES


def panels(matrix: Array, side_by_side: int = 1) -> Array:
    """(K, G, O) -> (panels, K, side_by_side, G, 16), zeros for units that are not there."""
    k, gates, units = matrix.shape
    wide = np.zeros((k, gates, padded(units)), matrix.dtype)
    wide[:, :, :units] = matrix
    split = wide.reshape(k, gates, -1, side_by_side, LANES)
    return np.ascontiguousarray(split.transpose(2, 0, 3, 1, 4))


def side_by_side(gates: int, count: int) -> int:
    """Panels of 16 units that a product takes at once.

    Each number of h is read again for every panel: with four sums or more to add it to, that costs
    less than reading the panel.
    """
    return next(n for n in (4, 2, 1) if n * gates <= 4 and count % n == 0)


@dataclass(frozen=True)
class CellCode:
    """One layer that runs from left to right, without its numbers. ``real``, ``stored``: C++ types.

    Layers that agree in all of this share the code. What it does not have itself is its spec's.
    """

    spec: RnnSpec
    has_input: bool
    real: str
    stored: str

    def __getattr__(self, field: str) -> Any:
        return getattr(self.spec, field)

    @property
    def factor(self) -> str:
        """What its matrices are multiplied by."""
        return "BrainFactor" if self.stored == "BrainPair" else self.real

    @property
    def inputs(self) -> int:
        return self.spec.input_size

    @property
    def units(self) -> int:
        return self.spec.hidden_size

    @property
    def width(self) -> int:
        return self.spec.recurrent_size

    @property
    def panels(self) -> int:
        return padded(self.units) // LANES

    @property
    def width_panels(self) -> int:
        return padded(self.width) // LANES

    @property
    def gate_names(self) -> str:
        return ", ".join(self.spec.cell.gates)

    @property
    def bias_rows(self) -> int:
        return self.spec.cell.bias_rows

    @property
    def is_gru(self) -> bool:
        return self.spec.cell.is_gru

    @property
    def is_lstm(self) -> bool:
        return len(self.spec.cell.states) == 2

    @property
    def lbr(self) -> bool:
        return self.spec.cell.linear_before_reset

    @property
    def together(self) -> int:
        """Gates whose products with h come first: a GRU's candidate waits for its reset gate."""
        return 2 if self.is_gru and not self.lbr else self.gates

    @property
    def beside(self) -> int:
        """Panels side by side in the products with h."""
        return side_by_side(self.together, self.panels)

    @property
    def candidates_beside(self) -> int:
        return side_by_side(1, self.panels)

    @property
    def narrow_beside(self) -> int:
        """Of the projection."""
        return side_by_side(1, self.width_panels)

    @property
    def attention(self) -> bool:
        return self.spec.cell.has_attention

    @property
    def replaces(self) -> bool:
        return self.spec.update == "replace"

    @property
    def projection(self) -> bool:
        return self.spec.projection_size is not None

    @property
    def functions(self) -> tuple[Activation, ...]:
        return tuple(map(completed, self.spec.functions))

    @property
    def title(self) -> str:
        """What a reader of the code is told."""
        parts = [f"{self.spec.cell.name}, {self.inputs} -> {self.width} channels"]
        parts += [f"{self.units} units"] * self.projection + ["peepholes"] * self.peephole
        parts += ["projected input"] * (not self.has_input)
        parts += [f"gates within {self.gate_clip:g}"] if self.gate_clip is not None else []
        parts += ["forget gate 1 - i"] * self.input_forget
        named = ", ".join(map(str, self.functions))
        return f"{', '.join(parts)}; {named}."

    def part(self, weights: RnnWeights) -> dict[str, tuple[Array, bool]]:
        """The fields of C++'s Part in order, each with whether it is stored narrow.

        ``weights``: of one layer and direction.
        """
        fields: dict[str, tuple[Array, bool]] = {}
        recurrent = weights.iter[0, 0]
        bias = np.zeros((self.bias_rows, self.units), recurrent.dtype)
        if weights.bias is not None:
            bias = weights.bias[0, 0]
        fields["bias"] = panels(bias[None])[:, 0], False
        if weights.layer is not None:
            fields["input"] = panels(weights.layer[0, 0]), True
        fields["recurrent"] = panels(recurrent[:, : self.together], self.beside), True
        if self.together < self.gates:
            fields["candidate"] = (
                panels(recurrent[:, self.together :], self.candidates_beside),
                True,
            )
        if weights.peephole is not None:
            fields["peephole"] = panels(weights.peephole[0, 0][None])[:, 0], False
        if weights.projection is not None:
            fields["projection"] = (
                panels(weights.projection[0, 0][:, None], self.narrow_beside),
                True,
            )
        return fields
