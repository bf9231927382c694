"""Converts the weights of MXNet's recurrent operators to the pivot layout, and back.

Layout and formulas: documentation of MXNet's operator ``RNN`` (src/operator/rnn.cc). Names in gluon
and the legacy cells: python/mxnet/gluon/rnn and python/mxnet/rnn of 1.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights
from onernn.reorders.layers import NamedArrays, PivotLayer, check_all_read, need

CELLS = {
    "rnn_relu": Cell.RNN_RELU,
    "rnn_tanh": Cell.RNN_TANH,
    "lstm": Cell.LSTM,
    "gru": Cell.LBR_GRU,
}
MODES = {cell: mode for mode, cell in CELLS.items()}

GATES = {
    **dict.fromkeys((Cell.RNN_RELU, Cell.RNN_TANH), "h"),
    Cell.LSTM: "i f c o",
    Cell.LBR_GRU: "r u o",  # MXNet's z multiplies the old state, the same as oneDNN's u
}
NAMES = NamedArrays(
    GATES,
    lambda name, layer, direction, *_: f"{'lr'[direction]}{layer}_{name}",
    ("i2h_weight", "h2h_weight"),
    ("i2h_bias", "h2h_bias"),
    "h2r_weight",
)

LEGACY_GATES = {"lstm": ("i", "f", "c", "o"), "gru": ("r", "z", "o")}
"""The letters of the gates in array names of the legacy cells, in gluon's gate order."""


@dataclass(frozen=True)
class Stack:
    """The attributes of an RNN operator that determine the parts of its parameter vector."""

    mode: str
    hidden: int
    layers: int
    directions: int
    projection: int | None = None

    @property
    def gates(self) -> int:
        return len(CELLS[self.mode].gates)

    @property
    def recurrent(self) -> int:
        return self.hidden if self.projection is None else self.projection

    def elements(self, input_size: int) -> int:
        """Returns the length of the parameter vector."""
        return sum(prod(shape) for _, shape in parts(self, input_size))

    def input_size(self, elements: int) -> int:
        """Returns the input size I for the length of a parameter vector. Raises `ShapeError` if no
        I results in this length.
        """
        column = self.directions * self.gates * self.hidden
        rest = elements - self.elements(0)
        if rest < column or rest % column:
            raise ShapeError(
                f"parameters: expected {self.elements(0)} elements and a multiple of {column}, got"
                f" {elements} for {self}"
            )
        return rest // column

    def spec(self, input_size: int) -> RnnSpec:
        return RnnSpec(
            CELLS[self.mode],
            input_size,
            self.hidden,
            layers=self.layers,
            direction="bidirectional_concat" if self.directions == 2 else "left2right",
            projection_size=self.projection,
        )


def _places(stack: Stack) -> Iterator[tuple[int, str]]:
    for layer in range(stack.layers):
        for side in "lr"[: stack.directions]:
            yield layer, f"{side}{layer}"


def parts(stack: Stack, input_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and the shape of each part of the parameter vector: all weights, then all
    biases.
    """
    rows, width = stack.gates * stack.hidden, stack.recurrent
    for layer, place in _places(stack):
        yield f"{place}_i2h_weight", (rows, width * stack.directions if layer else input_size)
        yield f"{place}_h2h_weight", (rows, width)
        if stack.projection:
            yield f"{place}_h2r_weight", (stack.projection, stack.hidden)
    for _, place in _places(stack):
        yield f"{place}_i2h_bias", (rows,)
        yield f"{place}_h2h_bias", (rows,)


def part_names(stack: Stack) -> list[str]:
    return [name for name, _ in parts(stack, 0)]


def split(flat: Array, stack: Stack) -> dict[str, Array]:
    """Splits the parameter vector of an RNN operator into views of its parts, by gluon's names."""
    if flat.ndim != 1:
        raise ShapeError(f"parameters: expected a vector, got {flat.shape}")
    shapes = dict(parts(stack, stack.input_size(flat.size)))
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])
    pieces = np.split(flat, ends[:-1])
    return {name: p.reshape(shapes[name]) for name, p in zip(shapes, pieces, strict=True)}


def join(named: Mapping[str, Array], stack: Stack) -> Array:
    """Returns the parameter vector that consists of parts with gluon's names."""
    return np.concatenate([named[name].reshape(-1) for name in part_names(stack)])


def weights(named: Mapping[str, Array], stack: Stack) -> tuple[RnnWeights, ...]:
    """Converts arrays with gluon's names to one `RnnWeights` for each layer.

    i2h_weight (G*O, I) and h2h_weight (G*O, R) become ldigo, h2r_weight (R, O) becomes ldio. The
    biases (G*O,) are summed. But a GRU candidate's h2h_bias becomes a row of its own, u', because
    it is inside r*(...).
    """
    return tuple(NAMES.read(named, CELLS[stack.mode], stack.layers, stack.directions))


def views(named: Mapping[str, Array], stack: Stack) -> list[PartViews]:
    """Returns the weights of each layer and direction as views of arrays with gluon's names."""
    return NAMES.views(named, CELLS[stack.mode], stack.layers, stack.directions)


def weights_back(spec: RnnSpec, layers: Sequence[RnnWeights]) -> dict[str, Array]:
    """Converts one `RnnWeights` for each layer to arrays with gluon's names; summed biases become
    i2h's.
    """
    return NAMES.write(PivotLayer(spec, tuple(_with_bias(spec, one) for one in layers)))


def _with_bias(spec: RnnSpec, one: RnnWeights) -> RnnWeights:
    rows = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    return one if one.bias is not None else replace(one, bias=np.zeros(rows, one.iter.dtype))


def stack_of(spec: RnnSpec) -> Stack:
    """Returns the attributes of the RNN operator for this spec."""
    mode = MODES[spec.cell]
    return Stack(mode, spec.hidden_size, spec.layers, spec.directions, spec.projection_size)


def split_gates(named: Mapping[str, Array], stack: Stack) -> dict[str, Array]:
    """Splits arrays with gluon's names into the legacy cells' arrays per gate,
    ``l0_i2h_i_weight``.
    """
    letters = LEGACY_GATES.get(stack.mode)
    if letters is None:
        return dict(named)
    out = {}
    if stack.projection:
        raise UnsupportedError("projection: expected none, because the legacy cells lack it")
    for name, array in named.items():
        head, kind = name.rsplit("_", 1)
        for letter, gate in zip(letters, np.split(array, len(letters)), strict=True):
            out[f"{head}_{letter}_{kind}"] = gate
    return out


def join_gates(gates: Mapping[str, Array], mode: str) -> dict[str, Array]:
    """Joins the legacy cells' arrays per gate, the inverse of `split_gates`.

    Raises `ShapeError` that names an array.
    """
    if mode not in LEGACY_GATES:
        return dict(gates)
    axes, read, joined = {"weight": 2, "bias": 1}, set[str](), dict[str, Array]()
    for name in gates:
        head, letter, kind = (*name.rsplit("_", 2), "", "")[:3]
        if letter == LEGACY_GATES[mode][0]:
            names = [f"{head}_{each}_{kind}" for each in LEGACY_GATES[mode]]
            parts = [need(gates, each, axes.get(kind)) for each in names]
            joined[f"{head}_{kind}"] = np.concatenate(parts)
            read.update(names)
    check_all_read(gates, read)
    return joined
