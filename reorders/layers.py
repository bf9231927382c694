"""Conversion of recurrent layers between frameworks: array names, and the features of each
layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.rnn import Limits, why_not
from onernn.ir.spec import Activation, Cell, Direction, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, layers_of
from onernn.reorders.gates import GateLayout, input_layer, input_layer_back

Arrays = Mapping[str, Array]


class PivotLayer(NamedTuple):
    """A recurrent layer or stack in oneDNN's layout, which is the pivot of all conversions. It has
    one `RnnWeights` for each layer.
    """

    spec: RnnSpec
    weights: tuple[RnnWeights, ...]

    @classmethod
    def of(cls, spec: RnnSpec, weights: RnnWeights | Sequence[RnnWeights]) -> PivotLayer:
        """Returns a layer. Raises `ShapeError` for weights that do not fit the spec."""
        return cls(spec, layers_of(spec, weights))


SIMPLE = Limits(
    who="",
    directions=("left2right", "bidirectional_concat"),
    functions=(),
    replaces=False,
    gate_clip=False,
    cell_clip=False,
    input_forget=False,
    peephole=False,
    projection=False,
    projected=False,
    apart=False,
)
"""The features that every layout supports."""


@dataclass(frozen=True)
class Framework:
    """The layout of a framework's recurrent layers.

    ``gates``: for each supported cell, the framework's gate order, in oneDNN's letters.
    ``read(arrays, **options)`` returns a `PivotLayer`. ``arrays_of(layer, **options)`` returns the
    arrays by the framework's names. ``limits``: the features, apart from the cell, that the layout
    supports.
    """

    name: str
    title: str
    matrices: str
    biases: str
    gates: Mapping[Cell, str]
    read: Callable[..., PivotLayer]
    arrays_of: Callable[..., dict[str, Array]]
    signs: str = "+"
    limits: Limits = SIMPLE

    def check(self, layer: PivotLayer) -> None:
        """Raises `UnsupportedError` that names the first feature that the layout lacks."""
        limits = replace(self.limits, who=self.title, cells=tuple(self.gates))
        if reason := why_not(layer.spec, layer.weights, limits):
            raise UnsupportedError(reason)

    def write(self, layer: PivotLayer, **options: Any) -> dict[str, Array]:
        """Returns the arrays of a layer by the framework's names. Raises the errors of `check`."""
        self.check(layer)
        return self.arrays_of(layer, **options)


def gates_of(*, lstm: str, gru: str) -> dict[Cell, str]:
    """Returns the gate orders of a framework that has plain RNNs, LSTM and both kinds of GRU."""
    plain = dict.fromkeys((Cell.RNN_TANH, Cell.RNN_RELU, Cell.RNN_SIGMOID), "h")
    return {**plain, Cell.LSTM: lstm, Cell.GRU: gru, Cell.LBR_GRU: gru}


def gate_layout(cell: Cell, gates: str) -> GateLayout:
    """Returns the layout of a framework's gates; ``gates``: oneDNN's letters in the framework's
    order.
    """
    order = gates.split()
    return GateLayout(tuple(order.index(g) for g in cell.gates), (1,) * len(order))


def cell_of(gates: int, *, linear_before_reset: bool, function: str = "tanh") -> Cell:
    """Returns the cell with this number of gates; ``function`` is the activation of a cell with one
    gate. Raises `UnsupportedError` if there is none.
    """
    plain = {"tanh": Cell.RNN_TANH, "relu": Cell.RNN_RELU, "sigmoid": Cell.RNN_SIGMOID}
    if gates == 1 and function in plain:
        return plain[function]
    known = {3: Cell.LBR_GRU if linear_before_reset else Cell.GRU, 4: Cell.LSTM}
    if gates not in known:
        expected = "expected 3 or 4 gates, or 1 with tanh, relu or sigmoid"
        raise UnsupportedError(f"a cell of {gates} gates with {function}: {expected}")
    return known[gates]


def part_views(
    cell: Cell,
    order: Sequence[int],
    w_ih: Array,
    w_hh: Array,
    biases: Sequence[Array] = (),
    w_hr: Array | None = None,
) -> PartViews:
    """Returns views of the weights (G*O, I), (G*O, R), (R, O), and of two biases (G*O,) if there
    are any.

    ``order``: for each of oneDNN's gates, the index of the framework's gate. Raises `ShapeError`.
    """
    units = len(w_hh) // len(order)
    for array in (w_ih, w_hh, *biases):
        if len(array) != len(order) * units:
            count = len(order) * units
            raise ShapeError(f"weights and biases: expected {count} rows, got {array.shape}")

    def gates(array: Array) -> list[Array]:
        return [array[place * units : (place + 1) * units].T for place in order]

    rows = [list(pair) for pair in zip(*map(gates, biases), strict=True)]
    # the candidate's bias of h is a row of its own: it is inside r * (...)
    if rows and cell.linear_before_reset:
        rows[2:] = [[bias] for bias in rows[2]]
    return PartViews(gates(w_ih), gates(w_hh), rows, None if w_hr is None else w_hr.T)


def rows(layout: GateLayout, of_x: Array, of_h: Array | None, cell: Cell) -> Array:
    """Converts the biases (G*O,) of x and of h to (G', O).

    The two biases are summed. An LBR cell's candidate keeps both, because its bias of h is inside
    r*(...).
    """
    if of_h is not None and of_x.shape != of_h.shape:
        shapes = f"{of_x.shape} and {of_h.shape}"
        raise ShapeError(f"biases of input and state: expected equal shapes, got {shapes}")
    x = layout.split(of_x)
    h = np.zeros_like(x) if of_h is None else layout.split(of_h)
    if cell.linear_before_reset:
        return np.concatenate([x[:2] + h[:2], x[2:], h[2:]])
    return x if of_h is None else x + h


def rows_back(bias: Array, layout: GateLayout, gates: int) -> tuple[Array, Array]:
    """Converts (G', O) to the biases (G*O,) of x and of h; a summed bias becomes the bias of x."""
    of_h = np.zeros_like(bias[:gates])
    if len(bias) > gates:
        of_h[-1] = bias[-1]
    return layout.inverse(bias[:gates].reshape(-1)), layout.inverse(of_h.reshape(-1))


def layer_of(
    cell: Cell,
    layers: Sequence[RnnWeights],
    direction: Direction | None = None,
    activations: tuple[Activation, ...] | None = None,
) -> PivotLayer:
    """Returns a layer or stack with these weights; the sizes in its spec follow from their
    shapes.
    """
    if not layers:
        raise ShapeError("arrays: expected recurrent weights, got none")
    first = layers[0]
    if direction is None:
        direction = "bidirectional_concat" if first.iter.shape[1] == 2 else "left2right"
    spec = RnnSpec(
        cell,
        first.layer.shape[2] if first.layer is not None else first.iter[0, 0, 0].size,
        first.iter.shape[4],
        layers=len(layers),
        direction=direction,
        projection_size=None if first.projection is None else first.projection.shape[3],
        peephole=first.peephole is not None,
        activations=activations,
    )
    return PivotLayer.of(spec, layers)


def prefixes_of(arrays: Arrays) -> list[str]:
    """Returns the prefixes of array names: 0/, 1/, ... for the layers of a stack, or only ""."""
    count = len({name.split("/")[0] for name in arrays if "/" in name})
    return [f"{layer}/" for layer in range(count)] or [""]


def need(arrays: Arrays, name: str, axes: int | None = None) -> Array:
    """Returns the array of this name. Raises `ShapeError` if it is missing or does not have
    ``axes`` axes.
    """
    if name not in arrays:
        got = ", ".join(sorted(arrays)) or "none"
        raise ShapeError(f"{name} is missing: expected it among the arrays, got {got}")
    result = np.asarray(arrays[name])
    if axes is not None and (result.ndim != axes or not result.size):
        raise ShapeError(f"{name}: expected {axes} axes and some elements, got {result.shape}")
    return result


def check_all_read(arrays: Arrays, read: Sequence[str] | set[str]) -> None:
    """Raises `ShapeError` if there are arrays whose names are not in ``read``."""
    if unknown := sorted(set(arrays) - set(read)):
        raise ShapeError(f"arrays: expected only arrays of this layout, got {', '.join(unknown)}")


@dataclass(frozen=True)
class NamedArrays:
    """The names of the arrays of each layer and direction, from which `read` and `write` are
    derived.

    ``place(name, layer, direction, layers, directions)`` returns the name of an array in a stack.
    ``matrices``: the names of the weights of x and h. The shapes are (G*O, I) and (G*O, R) if
    ``turned``, otherwise (I, G*O) and (R, G*O). ``biases``: the names of the biases of x and h,
    (G*O,) each; or one name of their sum (G*O,), which is (2, G*O) for LBR cells. ``projection``:
    the name of the projection matrix, which is (R, O).
    """

    gates: Mapping[Cell, str]
    place: Callable[..., str]
    matrices: tuple[str, str]
    biases: tuple[str, ...]
    projection: str = ""
    turned: bool = True

    def sizes(self, arrays: Arrays) -> tuple[int, int, int]:
        """Returns how many layers, directions and gates a stack has. Raises `ShapeError`."""
        state = self.matrices[1]
        deep = any(self.place(state, 1, 0, 2, sides) in arrays for sides in (1, 2))
        sides = 1 + any(self.place(state, 0, 1, layers, 2) in arrays for layers in (1, 2))
        layers = 1 + deep
        while deep and self.place(state, layers, 0, layers + 1, sides) in arrays:
            layers += 1
        matrix = need(arrays, self.place(state, 0, 0, layers, sides), 2)
        rows, units = matrix.shape if self.turned else matrix.shape[::-1]
        narrow = self.place(self.projection, 0, 0, layers, sides)
        if self.projection and narrow in arrays:
            units = need(arrays, narrow, 2).shape[1]
        return layers, sides, rows // units

    def read_stack(
        self, arrays: Arrays, *, linear_before_reset: bool, function: str, **of_layer: Any
    ) -> PivotLayer:
        """Returns the stack; its sizes follow from the shapes of the arrays. Raises `ShapeError` or
        `UnsupportedError`.

        ``linear_before_reset``: whether a GRU's reset gate acts after the recurrent product.
        ``function``: the activation that a plain RNN uses. ``of_layer``: see `layer_of`.
        """
        layers, sides, gates = self.sizes(arrays)
        cell = cell_of(gates, linear_before_reset=linear_before_reset, function=function)
        if cell not in self.gates:
            expected = "expected a cell of this framework"
            raise UnsupportedError(f"a cell of {gates} gates with {function}: {expected}")
        return layer_of(cell, self.read(arrays, cell, layers, sides), **of_layer)

    def read(self, arrays: Arrays, cell: Cell, layers: int, sides: int) -> list[RnnWeights]:
        """Returns the weights of each layer. Raises `ShapeError`."""
        layout, parts = gate_layout(cell, self.gates[cell]), []
        for w, u, biases, projection in self._parts(arrays, cell, layers, sides):
            bias = rows(layout, biases[0], biases[1], cell)[None, None] if biases else None
            narrow = None if projection is None else projection[None, None]
            layer, recurrent = (input_layer(each, layout) for each in (w, u))
            parts.append(RnnWeights(layer, recurrent, bias, projection=narrow))
        return [
            RnnWeights.join(parts[first : first + sides], 1)
            for first in range(0, len(parts), sides)
        ]

    def views(self, arrays: Arrays, cell: Cell, layers: int, sides: int) -> list[PartViews]:
        """Returns the weights of each layer and direction as views of the arrays."""
        order = gate_layout(cell, self.gates[cell]).permutation
        return [
            part_views(cell, order, w.T, u.T, biases, None if hr is None else hr.T)
            for w, u, biases, hr in self._parts(arrays, cell, layers, sides)
        ]

    def _parts(self, arrays: Arrays, cell: Cell, layers: int, sides: int) -> Iterator[Any]:
        """Yields the weights (I, G*O) and (R, G*O), the biases of x and h or (), and the projection
        (O, R) or None, for each layer and direction.
        """
        kinds, seen = [*filter(None, (*self.matrices, *self.biases, self.projection))], set[str]()
        for at in np.ndindex(layers, sides):
            names = {name: self.place(name, *at, layers, sides) for name in kinds}
            seen.update(names.values())
            w, u = (need(arrays, names[name], 2) for name in self.matrices)
            biases: Sequence[Array | None] = ()
            narrow = None
            if any(names[name] in arrays for name in self.biases):
                axes = 1 + (len(self.biases) == 1 and cell.linear_before_reset)
                given = [need(arrays, names[name], axes) for name in self.biases]
                expected = (2, u.shape[not self.turned])[2 - axes :]
                for name, each in zip(self.biases, given, strict=True):
                    if each.shape != expected:
                        raise ShapeError(f"{names[name]}: expected {expected}, got {each.shape}")
                biases = tuple(given[0]) if axes == 2 else (*given, None)[:2]
            if names.get(self.projection) in arrays:
                narrow = need(arrays, names[self.projection], 2).T
            yield (w.T, u.T, biases, narrow) if self.turned else (w, u, biases, narrow)
        check_all_read(arrays, seen)

    def write(self, layer: PivotLayer) -> dict[str, Array]:
        """Returns the arrays of a layer; a summed bias becomes the bias of x."""
        spec, out = layer.spec, dict[str, Array]()
        layout = gate_layout(spec.cell, self.gates[spec.cell])
        for k, d in np.ndindex(spec.layers, spec.directions):
            weights = layer.weights[k].part(0, d)
            arrays = [weights.layer, weights.iter]
            given = {
                name: input_layer_back(array, layout)
                for name, array in zip(self.matrices, arrays, strict=True)
                if array is not None
            }
            if self.turned:
                given = {name: array.T.copy() for name, array in given.items()}
            if weights.bias is not None:
                both: Any = rows_back(weights.bias[0, 0], layout, spec.gates)
                if len(self.biases) == 1:
                    both = [np.stack(both) if spec.cell.linear_before_reset else both[0]]
                given |= zip(self.biases, both, strict=True)
            if weights.projection is not None:
                given[self.projection] = weights.projection[0, 0].T.copy()
            place = (k, d, spec.layers, spec.directions)
            out |= {self.place(name, *place): array for name, array in given.items()}
        return out
