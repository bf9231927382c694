"""The specification of a recurrent layer: what it computes, without its weights."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from enum import Enum
from numbers import Integral
from typing import Any, Literal, get_args

from onernn.ir.errors import ShapeError
from onernn.ir.records import NamedTuple, dataclass

Direction = Literal["left2right", "right2left", "bidirectional_concat", "bidirectional_sum"]
Stacking = Literal["framework", "onednn"]
Update = Literal["keep", "replace"]


class Activation(NamedTuple):
    """An activation function: its ONNX name in lower case, and its alpha and beta if it has them.

    ONNX's operators RNN, LSTM and GRU define the formulas and the meaning of alpha and beta.

    >>> str(onernn.Activation("leakyrelu", alpha=0.1))
    'leakyrelu(0.1)'
    """

    name: str
    alpha: float | None = None
    beta: float | None = None

    def __str__(self) -> str:
        numbers = [f"{v:g}" for v in (self.alpha, self.beta) if v is not None]
        return f"{self.name}({', '.join(numbers)})" if numbers else self.name


class Cell(Enum):
    """A recurrent cell, with the equations of oneDNN's RNN developer guide.

    ``gates`` are in oneDNN's order. In a GRU, u is the share of the old state h' that is kept: h =
    u h' + (1-u) o. AUGRU cells scale u by 1-attention. LBR cells ("linear before reset") have a
    fourth bias row u', inside r*(...).

    >>> onernn.Cell.LSTM.gates, onernn.Cell("lbr_gru").bias_rows
    (('i', 'f', 'c', 'o'), 4)
    """

    RNN_TANH = "rnn_tanh"
    RNN_RELU = "rnn_relu"
    RNN_SIGMOID = "rnn_sigmoid"
    LSTM = "lstm"
    GRU = "gru"
    LBR_GRU = "lbr_gru"
    AUGRU = "augru"
    LBR_AUGRU = "lbr_augru"

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of the gates, in oneDNN's order."""
        if self is Cell.LSTM:
            return ("i", "f", "c", "o")
        return ("u", "r", "o") if self.is_gru else ("h",)

    @property
    def is_gru(self) -> bool:
        """Whether the cell is a GRU, with or without attention."""
        return self.value.endswith("gru")

    @property
    def linear_before_reset(self) -> bool:
        """Whether the reset gate r scales the product of h and its weights, as in PyTorch, instead
        of h itself.
        """
        return self.value.startswith("lbr_")

    @property
    def has_attention(self) -> bool:
        """Whether the cell takes an attention value for each step."""
        return self in (Cell.AUGRU, Cell.LBR_AUGRU)

    @property
    def bias_rows(self) -> int:
        """The number of bias rows G': one for each gate, and u' of LBR cells."""
        return len(self.gates) + self.linear_before_reset

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states: (h,), or (h, c) for an LSTM."""
        return ("h", "c") if self is Cell.LSTM else ("h",)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The default activations: (gate, candidate) of GRUs, (gate, candidate, cell) of LSTM."""
        if self is Cell.LSTM:
            names: tuple[str, ...] = ("sigmoid", "tanh", "tanh")
        else:
            names = ("sigmoid", "tanh") if self.is_gru else (self.value.removeprefix("rnn_"),)
        return tuple(map(Activation, names))


@dataclass(frozen=True)
class RnnSpec:
    """A recurrent layer or stack without its weights; hashable.

    ``input_size`` is I. ``hidden_size`` is the number of units; the recurrent width R, the width of
    h, is ``projection_size`` if there is a projection. ``activations`` are strings or `Activation`,
    in the order of `Cell.activations`; None means the cell's own activations. ``update`` says what
    the update gate of a GRU scales: the old state ("keep"), or the new one ("replace").
    ``gate_clip`` bounds every gate before its activation to [-gate_clip, gate_clip] (ONNX).
    ``cell_clip`` = (min, max) bounds an LSTM's cell state, and with ``cell_clip_nan`` a NaN there
    becomes the lower bound (MXNet). With ``input_forget`` an LSTM's forget gate is 1 - i (ONNX).

    Raises `ShapeError` for sizes below 1 and `ValueError` for fields that contradict the cell.

    >>> spec = onernn.RnnSpec(onernn.Cell.LSTM, 80, 256, direction="bidirectional_concat")
    >>> spec.gates, spec.directions, spec.output_size
    (4, 2, 512)
    """

    cell: Cell
    input_size: int
    hidden_size: int
    _: KW_ONLY
    layers: int = 1
    direction: Direction = "left2right"
    stacking: Stacking = "framework"
    projection_size: int | None = None
    peephole: bool = False
    activations: tuple[Activation, ...] | None = None
    update: Update = "keep"
    gate_clip: float | None = None
    cell_clip: tuple[float, float] | None = None
    cell_clip_nan: bool = False
    input_forget: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.cell, Cell):
            raise ValueError(f"RnnSpec.cell: expected a Cell, got {self.cell!r}")
        for name in ("input_size", "hidden_size", "layers", "projection_size"):
            size = getattr(self, name)
            if size is None and name == "projection_size":
                continue
            if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
                raise ShapeError(f"RnnSpec.{name}: expected an int of at least 1, got {size!r}")
            object.__setattr__(self, name, int(size))
        for name, kinds in (("direction", Direction), ("stacking", Stacking), ("update", Update)):
            if getattr(self, name) not in get_args(kinds):
                got = getattr(self, name)
                raise ValueError(f"RnnSpec.{name}: expected one of {get_args(kinds)}, got {got!r}")
        if self.cell is not Cell.LSTM:
            for name in ("projection_size", "peephole", "cell_clip", "input_forget"):
                if getattr(self, name):
                    raise ValueError(
                        f"RnnSpec.{name}: expected only with LSTM, got {self.cell.name}"
                    )
        if self.update == "replace" and not self.cell.is_gru:
            raise ValueError(f"RnnSpec.update: expected a GRU cell for it, got {self.cell.name}")
        if self.gate_clip is not None and not self.gate_clip > 0:
            raise ValueError(f"RnnSpec.gate_clip: expected a positive bound, got {self.gate_clip}")
        if self.cell_clip is not None:
            low, high = map(float, self.cell_clip)
            if not low <= high:
                raise ValueError(f"RnnSpec.cell_clip: expected (min, max), got {self.cell_clip}")
            object.__setattr__(self, "cell_clip", (low, high))
        elif self.cell_clip_nan:
            raise ValueError("RnnSpec.cell_clip_nan=True: expected a cell_clip, got None")
        if self.activations is not None:
            object.__setattr__(self, "activations", self._normal(self.activations))

    def _normal(self, activations: tuple[Any, ...]) -> tuple[Activation, ...] | None:
        chosen = tuple(Activation(a) if isinstance(a, str) else Activation(*a) for a in activations)
        default = self.cell.activations
        if len(chosen) != len(default):
            raise ValueError(
                f"RnnSpec.activations: expected {len(default)} for {self.cell.name}, got"
                f" {len(chosen)}"
            )
        return None if chosen == default else chosen

    @property
    def functions(self) -> tuple[Activation, ...]:
        """The activations that the layer applies: ``activations``, or the cell's defaults."""
        return self.activations or self.cell.activations

    @property
    def directions(self) -> int:
        """The number of directions D: 1 or 2."""
        return 2 if self.direction.startswith("bidirectional") else 1

    @property
    def recurrent_size(self) -> int:
        """The width R that h and each direction's output have."""
        return self.projection_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """The number of output channels of a layer whose directions are joined."""
        return self.recurrent_size * (2 if self.direction == "bidirectional_concat" else 1)

    @property
    def gates(self) -> int:
        """The number of gates G of the cell."""
        return len(self.cell.gates)

    def reads(self, layer: int) -> int:
        """Returns the number of input channels of a layer of the stack."""
        if layer == 0:
            return self.input_size
        return self.output_size if self.stacking == "framework" else self.recurrent_size

    def joins(self, layer: int) -> bool:
        """Returns whether the outputs of both directions are joined after this layer."""
        return self.stacking == "framework" or layer == self.layers - 1

    def one_layer(self, input_size: int, direction: Direction) -> RnnSpec:
        """Returns the same cell as one layer with this input size and direction."""
        return replace(self, input_size=input_size, direction=direction, layers=1)
