"""MXNet's recurrent parameters <-> the pivot.

Layout and formulas: documentation of MXNet's operator ``RNN`` (src/operator/rnn.cc); gluon's and
the legacy cells' names: python/mxnet/gluon/rnn and python/mxnet/rnn of 1.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from onernn.ir.arrays import Array, sealed
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights
from onernn.reorders.gates import GateLayout
from onernn.reorders.layers import matrix_back, part_views, rows, rows_back

CELLS = {
    "rnn_relu": Cell.RNN_RELU,
    "rnn_tanh": Cell.RNN_TANH,
    "lstm": Cell.LSTM,
    "gru": Cell.LBR_GRU,
}
MODES = {cell: mode for mode, cell in CELLS.items()}

LAYOUTS = {
    "rnn_relu": GateLayout((0,), (1,)),
    "rnn_tanh": GateLayout((0,), (1,)),
    "lstm": GateLayout((0, 1, 2, 3), (1, 1, 1, 1)),  # i, f, g, o
    "gru": GateLayout((1, 0, 2), (1, 1, 1)),  # r, z, n; z keeps the old state, as oneDNN's u does
}

LEGACY_GATES = {"lstm": ("i", "f", "c", "o"), "gru": ("r", "z", "o")}
"""The legacy cells' names of gates, in the order of the joined arrays."""


@dataclass(frozen=True)
class Stack:
    """The attributes of an RNN operator that describe its parameters."""

    mode: str
    hidden: int
    layers: int
    directions: int
    projection: int | None = None

    @property
    def gates(self) -> int:
        return len(LAYOUTS[self.mode].permutation)

    @property
    def recurrent(self) -> int:
        return self.hidden if self.projection is None else self.projection

    def elements(self, input_size: int) -> int:
        """How many numbers the parameter vector holds."""
        return sum(np.prod(shape, dtype=int) for _, shape in parts(self, input_size))

    def input_size(self, elements: int) -> int:
        """I, from the length of the parameter vector. Raises `ShapeError` where none fits."""
        column = self.directions * self.gates * self.hidden
        rest = elements - self.elements(0)
        if rest < column or rest % column:
            raise ShapeError(
                f"parameters: {elements} numbers fit no input size of {self}; expected"
                f" {self.elements(0)} and a multiple of {column}"
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
    """Name and shape of each part of the vector, in its order: all weights, then all biases."""
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
    """The parameter vector of an RNN operator -> its parts by gluon's names, views."""
    if flat.ndim != 1:
        raise ShapeError(f"parameters: expected a vector, got {flat.shape}")
    shapes = dict(parts(stack, stack.input_size(flat.size)))
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])
    pieces = np.split(flat, ends[:-1])
    return {name: p.reshape(shapes[name]) for name, p in zip(shapes, pieces, strict=True)}


def join(named: Mapping[str, Array], stack: Stack) -> Array:
    """Parts by gluon's names -> the parameter vector."""
    return np.concatenate([named[name].reshape(-1) for name in part_names(stack)])


def weights(named: Mapping[str, Array], stack: Stack) -> tuple[RnnWeights, ...]:
    """Parts by gluon's names -> one-layer weights of the pivot.

    i2h_weight (G*O, I) and h2h_weight (G*O, R) -> ldigo; h2r_weight (R, O) -> ldio; the biases
    (G*O,) are summed, but a GRU's h2h_bias of n stands inside r*(...): it is the row u'.
    """
    layout = LAYOUTS[stack.mode]

    def layer(index: int) -> RnnWeights:
        sides = [f"{side}{index}" for side in "lr"[: stack.directions]]

        def stacked(arrays: Sequence[Array]) -> Array:
            return np.stack(arrays)[None]

        def matrix(name: str) -> Array:
            result = [layout.split(named[f"{side}_{name}"].T) for side in sides]
            return sealed(stacked(result) if len(result) > 1 else result[0][None, None])

        biases = [[named[f"{side}_{name}_bias"] for name in ("i2h", "h2h")] for side in sides]
        projection = None
        if stack.projection:
            projection = stacked([named[f"{side}_h2r_weight"].T for side in sides])
        return RnnWeights(
            matrix("i2h_weight"),
            matrix("h2h_weight"),
            stacked([bias(stack.mode, *pair) for pair in biases]),
            projection=projection,
        )

    return tuple(layer(index) for index in range(stack.layers))


def views(named: Mapping[str, Array], stack: Stack) -> list[PartViews]:
    """Parts by gluon's names, see `weights`, without a copy."""
    return [
        part_views(
            CELLS[stack.mode],
            LAYOUTS[stack.mode].permutation,
            named[f"{place}_i2h_weight"],
            named[f"{place}_h2h_weight"],
            [named[f"{place}_i2h_bias"], named[f"{place}_h2h_bias"]],
            named.get(f"{place}_h2r_weight"),
        )
        for _, place in _places(stack)
    ]


def bias(mode: str, input_bias: Array, recurrent_bias: Array) -> Array:
    """i2h_bias and h2h_bias, (G*O,) each -> the rows of the pivot, (G', O)."""
    return rows(LAYOUTS[mode], input_bias, recurrent_bias, CELLS[mode])


def weights_back(spec: RnnSpec, layers: Sequence[RnnWeights]) -> dict[str, Array]:
    """One-layer weights of the pivot -> parts by gluon's names; summed biases are i2h's.

    Raises `UnsupportedError` for what the RNN operator cannot say.
    """
    obstacle = _obstacle(spec, layers)
    if obstacle:
        raise UnsupportedError(f"MXNet's RNN has no {obstacle}")
    layout = LAYOUTS[MODES[spec.cell]]
    named: dict[str, Array] = {}
    for index, one in enumerate(layers):
        for d, side in enumerate("lr"[: spec.directions]):
            place = f"{side}{index}"
            assert one.layer is not None
            for name, matrix in (("i2h", one.layer[0, d]), ("h2h", one.iter[0, d])):
                named[f"{place}_{name}_weight"] = matrix_back(matrix, layout).T.copy()
            if one.projection is not None:
                named[f"{place}_h2r_weight"] = one.projection[0, d].T.copy()
            both = rows_back(_rows(one, spec, d), layout, spec.gates)
            named[f"{place}_i2h_bias"], named[f"{place}_h2h_bias"] = both
    return named


def _rows(one: RnnWeights, spec: RnnSpec, direction: int) -> Array:
    if one.bias is None:
        return np.zeros((spec.cell.bias_rows, spec.hidden_size), one.iter.dtype)
    return one.bias[0, direction]


def _obstacle(spec: RnnSpec, layers: Sequence[RnnWeights]) -> str:
    clipped_state = "clipped cell state in its parameters: write lstm_state_clip_min and _max"
    obstacles = {
        f"{spec.cell.name} cell": spec.cell not in MODES,
        f"direction {spec.direction}": spec.direction in ("right2left", "bidirectional_sum"),
        "other gate functions": spec.activations is not None or spec.update != "keep",
        "peepholes": spec.peephole,
        "clipped gates": spec.gate_clip is not None,
        clipped_state: spec.cell_clip is not None,
        "coupled forget gate": spec.input_forget,
        "stacking='onednn'": spec.stacking == "onednn" and spec.layers > 1 and spec.directions > 1,
        "input that is projected already": any(one.layer is None for one in layers),
    }
    return next((name for name, there in obstacles.items() if there), "")


def stack_of(spec: RnnSpec) -> Stack:
    """The attributes of the RNN operator that runs this specification."""
    mode = MODES[spec.cell]
    return Stack(mode, spec.hidden_size, spec.layers, spec.directions, spec.projection_size)


def split_gates(named: Mapping[str, Array], stack: Stack) -> dict[str, Array]:
    """Parts by gluon's names -> an array a gate, ``l0_i2h_i_weight``, as legacy cells unpack."""
    letters = LEGACY_GATES.get(stack.mode)
    if letters is None:
        return dict(named)
    out = {}
    if stack.projection:
        raise UnsupportedError("the legacy cells have no projection")
    for name, array in named.items():
        head, kind = name.rsplit("_", 1)
        for letter, gate in zip(letters, np.split(array, len(letters)), strict=True):
            out[f"{head}_{letter}_{kind}"] = gate
    return out


def join_gates(gates: Mapping[str, Array], stack: Stack) -> dict[str, Array]:
    """The inverse of `split_gates`."""
    letters = LEGACY_GATES.get(stack.mode)
    if letters is None:
        return dict(gates)
    names = [name.rsplit("_", 1) for name in part_names(stack)]
    return {
        f"{head}_{kind}": np.concatenate([gates[f"{head}_{letter}_{kind}"] for letter in letters])
        for head, kind in names
    }


def state(array: Array, stack: Stack) -> Array:
    """A state of the RNN operator, (L*D, N, R) -> ldnc (L, D, N, R)."""
    if array.ndim != 3 or len(array) != stack.layers * stack.directions:
        raise ShapeError(
            f"state: expected ({stack.layers * stack.directions}, N, R), got {array.shape}"
        )
    return array.reshape(stack.layers, stack.directions, *array.shape[1:])


def state_back(ldnc: Array) -> Array:
    """ldnc (L, D, N, R) -> (L*D, N, R)."""
    return ldnc.reshape(-1, *ldnc.shape[2:])
