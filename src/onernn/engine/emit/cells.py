"""A recurrent cell as generated code sees it: what templates ask for, and its packed numbers."""

from __future__ import annotations

from onernn.backend.compiled.packing import BYTES, WIDE, CellMatrices, kernel_of
from onernn.engine.emit.rendering import number
from onernn.engine.emit.storing import Store
from onernn.ir.records import dataclass
from onernn.ir.spec import Activation, RnnSpec
from onernn.ir.weights import PartScales, RnnWeights
from onernn.ops.activations import completed

FUNCTIONS = ("gate", "candidate", "output")
"""Names in C++'s Traits of what a cell's activations are, in their order."""


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
        return kernel_of(self.spec.cell)

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

    def pack(self, weights: RnnWeights, store: Store, scales: PartScales) -> tuple[str, ...]:
        """C++ expressions of the fields of CellWeights; their numbers go into the weights file.

        ``weights``: of one layer and direction; ``scales``: of its bytes.
        """
        with store.storing(self.stored):
            places = CellMatrices.of(self.spec.cell, weights).pack(store, scales)
        kinds = {name: self.real if name in WIDE else self.stored for name in places}
        matrices = (
            "nullptr" if place is None else f"weights_.at<{kinds[name]}>({place})"
            for name, place in places.items()
        )
        rows = (
            f"{{{number(1 / scale.factor)}, {int(scale.shift)}}}" if scale else "{}"
            for scale in (scales.data, scales.state)
        )
        return (*matrices, *(rows if self.stored == BYTES else ()))
