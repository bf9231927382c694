"""The recurrent layers of an MXNet graph that onernn runs: their options, arrays and cells."""

from __future__ import annotations

import math
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from onernn.adapters.common.live import (
    LiveLayer,
    LiveOptions,
    ViewedWeights,
    place_of,
    widen_float16,
)
from onernn.adapters.mxnet import attributes as parse
from onernn.backend import Stack, State
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, shapes_of
from onernn.reorders import mxnet

# Merges a FullyConnected before an RNN operator into the layer, and splits the gradients again.


class FoldedWeights:
    """The weights of a layer, merged with the projection before it, for `LiveLayer`.

    ``parameters``: the layer's vector, the projection's weight (P, I), and its bias (P,) if it has
    one.
    """

    def __init__(self, weights: ViewedWeights, stack: mxnet.Stack) -> None:
        self._weights, self._stack = weights, stack

    def views(self, parameters: Sequence[Array]) -> None:
        """Returns None, because the merged weights are a product and not views of the arrays."""

    def pack(self, parameters: Sequence[Array]) -> tuple[RnnSpec, list[RnnWeights]]:
        """Returns the layer that reads the projection's input. The product of the matrices is
        computed in float64, and rounded once.
        """
        parts = mxnet.split(parameters[0], self._stack)
        weight, *bias = (array.astype(np.float64) for array in parameters[1:])
        for of_x, of_bias in self._names():
            wide, dtype = parts[of_x].astype(np.float64), parts[of_x].dtype
            parts[of_x] = (wide @ weight).astype(dtype)
            for linear_bias in bias:
                parts[of_bias] = (parts[of_bias] + wide @ linear_bias).astype(dtype)
        return self._weights.pack([mxnet.join(parts, self._stack)])

    def unpack(self, parameters: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """Returns the gradients of the parameters from the gradients of the packed weights."""
        flat, weight, *bias = parameters
        (vector,) = self._weights.unpack([np.empty(self._stack.elements(weight.shape[1]))], layers)
        gradients, parts = (mxnet.split(each, self._stack) for each in (vector, flat))
        of_linear = [np.zeros_like(array) for array in parameters[1:]]
        for of_x, of_bias in self._names():
            product, of_input = gradients[of_x], parts[of_x].T
            gradients[of_x] = product @ weight.T
            of_linear[0] += of_input @ product
            for linear_bias in bias:
                gradients[of_x] += np.outer(gradients[of_bias], linear_bias)
                of_linear[1] += of_input @ gradients[of_bias]
        return [mxnet.join(gradients, self._stack), *of_linear]

    def _names(self) -> list[tuple[str, str]]:
        """Returns, for each direction, the names of the weight and bias that the layer applies to
        its input.
        """
        sides = "lr"[: self._stack.directions]
        return [(f"{side}0_i2h_weight", f"{side}0_i2h_bias") for side in sides]


# MXNet's RNN operator on arrays in memory. The plug-in calls this code, which does not use MXNet.

FLOATS = ("float16", "float32", "float64")
"""Dtypes of a layer's arrays; float16 is computed in float32."""

_LENGTHS = "sequence_length"
"""The argument whose dtype may differ from the dtype of the data."""

_OPEN = (-1, -1, -1)
"""Three unknown sizes, used for data of unknown shape. MXNet would crash on an output without axes.
"""

LINEAR = "linear_"
"""The prefix of the attributes of a FullyConnected that is merged into an RNN operator."""

Arrays = Mapping[str, Array]
Sizes = list[int]


@dataclass(frozen=True, kw_only=True)
class Options(LiveOptions):
    """The options of recurrent operators; for ``semantics`` see `onernn.load`."""

    semantics: str = "documented"

    def __post_init__(self) -> None:
        if self.semantics not in ("documented", "mxnet-cpu"):
            raise ValueError(f"semantics: expected documented or mxnet-cpu, got {self.semantics!r}")
        super().__post_init__()


class LiveOperator:
    """An operator of onernn in MXNet's graph; its methods take arrays by name.

    ``arguments``, ``outputs``: their names in MXNet's order. ``parameters``, ``states``: the names
    of the arguments that are weights and initial states. ``drops``: whether MXNet's documentation
    says that training applies dropout between these layers. Neither MXNet on the CPU nor onernn
    applies it.
    """

    arguments: Sequence[str]
    outputs: Sequence[str]
    parameters: Sequence[str]
    states: Sequence[str]
    layer: LiveLayer
    drops = False
    x_axis = y_axis = 0
    """The time axes of the data and of the output."""
    sides = 1, 1
    """The number of layers and of directions."""
    widths: tuple[int, int]
    is_stack = True
    """Whether states have an axis of layers and directions."""

    def types(self, inputs: Mapping[str, type | None]) -> tuple[dict[str, type], list[type]]:
        """Returns the dtypes of arguments and outputs: all have the dtype of the data, except the
        lengths.
        """
        dtype = next((kind for kind in inputs.values() if kind is not None), np.float32)
        types: dict[str, type] = {**dict.fromkeys(inputs, dtype)}
        if own := inputs.get(_LENGTHS):
            types[_LENGTHS] = own
        return types, [dtype] * len(self.outputs)

    def run(self, arrays: Arrays) -> list[Array]:
        """Returns the outputs, in the dtype of the data.

        Raises `UnsupportedError` or `ShapeError` that names an array of a wrong dtype or shape.
        """
        words, begin = self._inputs(arrays, self._lengths(arrays))
        return self._results(arrays, *self.prepare(arrays).run(words, begin))

    def prepare(self, arrays: Arrays) -> Stack:
        """Returns the stack that runs with these parameters."""
        parameters = self._parameters(arrays)
        return self.layer.stack(tuple(map(place_of, parameters)), lambda: parameters)

    def run_training(self, arrays: Arrays) -> tuple[list[Array], Any]:
        """Returns the results of `run`, and the record for `backward`, or else the reason why
        nothing was recorded.
        """
        lengths = self._lengths(arrays)
        words, begin = self._inputs(arrays, lengths)
        try:
            y, ends, recorded = self.layer.run_training(self._parameters(arrays), words, begin)
        except UnsupportedError as error:
            return self.run(arrays), str(error)
        # The caller may change the array of lengths before `backward`.
        kept = None if lengths is None else lengths.copy()
        return self._results(arrays, y, ends), (recorded, kept)

    def backward(self, arrays: Arrays, recorded: Any, grads: Sequence[Array]) -> dict[str, Array]:
        """Returns the gradients of the arguments from the gradients of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        (record, lengths), (dy, *dends) = recorded, grads
        ends = self._split(arrays, dends) if dends else None
        heads, parameters = self._words(dy, self.y_axis, lengths), self._parameters(arrays)
        dx, dstates, dweights = self.layer.backward(record, heads, ends, parameters)
        result = self._pad(dx, self.x_axis, arrays), *dstates, *dweights
        gradients = dict(zip(("data", *self.states, *self.parameters), result, strict=True))
        zeros = {name: np.zeros_like(a) for name, a in arrays.items() if name == _LENGTHS}
        return zeros | {
            name: grad.astype(arrays[name].dtype, copy=False).reshape(arrays[name].shape)
            for name, grad in gradients.items()
        }

    def _inputs(self, arrays: Arrays, lengths: Array | None) -> tuple[Ragged | Array, State]:
        dtype = arrays["data"].dtype
        for name, array in arrays.items():
            if name == _LENGTHS:
                continue
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(
                    f"{name}: expected one of {', '.join(FLOATS)}, got {array.dtype}; cast it"
                )
            if array.dtype != dtype:
                raise ShapeError(f"{name}: expected {dtype}, the dtype of data, got {array.dtype}")
        words = self._words(arrays["data"], self.x_axis, lengths)
        return words, self._split(arrays, [arrays[name] for name in self.states])

    def _parameters(self, arrays: Arrays) -> list[Array]:
        return [arrays[name] for name in self.parameters]

    def _lengths(self, arrays: Arrays) -> Array | None:
        """Returns the number of steps of each sequence, None if all have the full length."""
        return None

    def _split(self, arrays: Arrays, states: Sequence[Array]) -> State:
        """Returns states (L*D, N, O), or states (N, O) of a cell, in the shape (L, D, N, O)."""
        result, rows = list[Array](), arrays["data"].shape[1 - self.x_axis]
        for name, state, width in zip(self.states, states, self.widths, strict=False):
            expected = (*[math.prod(self.sides)] * self.is_stack, rows, width)
            if state.shape != expected:
                raise ShapeError(f"{name}: expected {expected}, got {state.shape}")
            result.append(widen_float16(state).reshape(*self.sides, rows, width))
        return tuple(result)

    def _words(self, x: Array, axis: int, lengths: Array | None) -> Ragged | Array:
        """Returns x, whose time axis is ``axis``, in the layout (T, N, ...). With ``lengths``,
        drops the steps after the end of each sequence.
        """
        if not self.is_stack:
            x = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        x = widen_float16(x.swapaxes(0, axis))
        if lengths is None:
            return x
        return Ragged.from_padded(x, lengths.astype(np.int64), time_major=True)

    def _pad(self, y: Ragged | Array, axis: int, arrays: Arrays) -> Array:
        """Returns y, whose layout is (T, N, ...), with the time axis ``axis``. Steps after the end
        of a sequence are zeros.
        """
        if isinstance(y, Ragged):
            y = y.to_padded(time=arrays["data"].shape[self.x_axis], time_major=True)
        return y.swapaxes(0, axis).astype(arrays["data"].dtype, copy=False)

    def _results(self, arrays: Arrays, y: Ragged | Array, ends: Sequence[Array]) -> list[Array]:
        states = [
            end.reshape(arrays[name].shape).astype(arrays[name].dtype, copy=False)
            for name, end in zip(self.states, ends, strict=True)
        ]
        return [self._pad(y, self.y_axis, arrays), *states][: len(self.outputs)]


class LiveRnn(LiveOperator):
    """An RNN operator with the attributes that a symbol has for it, as strings.

    If attributes describe a projection before it (`LINEAR`), the projection is part of the layer,
    and its weight and bias are also inputs. Raises `UnsupportedError` for attributes that are not
    supported.
    """

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        units = attributes.get(f"{LINEAR}num_hidden")
        self._units = None if units is None else parse.integer(units)
        no_bias = parse.is_set(attributes, f"{LINEAR}no_bias")
        self.linear = ("linear_weight", "linear_bias")[: 2 - no_bias] if self._units else ()
        attributes = {k: v for k, v in attributes.items() if not k.startswith(LINEAR)}
        self.stack = parse.stack_of(attributes)
        self.states = ("state", "state_cell")[: 1 + (self.stack.mode == "lstm")]
        self.parameters = ("parameters", *self.linear)
        takes_lengths = parse.is_set(attributes, "use_sequence_length")
        gives_states = parse.is_set(attributes, "state_outputs")
        names = ["output", "state_output", "statecell_output"]
        self.outputs = names[: 1 + len(self.states) * gives_states]
        documented = options.semantics == "documented"
        self._masks = takes_lengths and documented
        dropout = parse.number(attributes.get("p", "0"))
        if not 0 <= dropout < 1:
            raise UnsupportedError(f"dropout p={dropout:g}: expected 0 <= p < 1")
        self.drops = documented and dropout > 0 and self.stack.layers > 1
        self._clip = clip = parse.cell_clip(attributes) if documented else None
        self._stops_nan = clip is not None and parse.is_set(attributes, parse.CLIPS[2])
        # MXNet ignores these features or crashes, so onernn runs them even if it is slower.
        self.only_ours = bool(self._masks or self.stack.projection or clip)
        lengths = [_LENGTHS] * takes_lengths
        self.arguments = ["data", "parameters", *self.states, *lengths, *self.linear]
        weights = ViewedWeights(self._views)
        self.layer = LiveLayer(
            FoldedWeights(weights, self.stack) if self.linear else weights, options
        )
        self.sides = self.stack.layers, self.stack.directions
        self.widths = self.stack.recurrent, self.stack.hidden

    def shapes(self, inputs: Mapping[str, Sequence[int]]) -> tuple[dict[str, Sizes], list[Sizes]]:
        t, n, channels = inputs["data"] if len(inputs["data"]) == 3 else _OPEN
        shapes: Any = {**parse.input_shapes(self.stack, t, n, channels)}
        if self._units:
            shapes["parameters"] = (self.stack.elements(self._units),)
            shapes |= {"linear_weight": (self._units, channels), "linear_bias": (self._units,)}
        elif channels <= 0:
            shapes["parameters"] = inputs["parameters"]
        y = [t, n, self.stack.recurrent * self.stack.directions]
        outputs = [y, *(list(shapes[name]) for name in self.states)][: len(self.outputs)]
        return {name: list(shapes[name]) for name in inputs}, outputs

    def _lengths(self, arrays: Arrays) -> Array | None:
        return arrays[_LENGTHS] if self._masks else None

    def _views(self, parameters: Sequence[Array]) -> tuple[RnnSpec, list[PartViews]]:
        parts = mxnet.split(parameters[0], self.stack)
        spec = self.stack.spec(parts["l0_i2h_weight"].shape[1])
        spec = replace(spec, cell_clip=self._clip, cell_clip_nan=self._stops_nan)
        return spec, mxnet.views(parts, self.stack)


def check_rnn(name: str, attributes: Mapping[str, Any], options: Options) -> LiveRnn:
    """Returns a layer's operator. Raises `UnsupportedError` that names the layer for attributes
    that are not supported.
    """
    try:
        return LiveRnn({key: str(value) for key, value in attributes.items()}, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name} (RNN): {error}") from None


# A recurrent cell that a symbol builds from simple operators.
#
# The symbol keeps its weights. A formula says which of their rows belong to each gate. This code
# works on arrays in memory, without MXNet.

Rows = tuple[int, int, int]
"""A range of rows: the index of a weight (G*O, I) or a bias (G*O,), and the range's start and
end.
"""


@dataclass(frozen=True)
class Formula:
    """A cell, and the rows of weights that belong to each of its gates, in the order of
    `Cell.gates`.

    ``rows``: the number of rows of each array. ``layer``, ``iter``: the rows of the input weights
    and recurrent weights of each gate. ``biases``: for each bias of the layer, the ranges of rows
    whose sum is the bias. ``signs``: -1 for a gate that is computed with the opposite sign.
    ``x_axis``, ``y_axis``: the time axis of input and output, 0 or 1. ``backwards``: whether the
    cell runs from the last step to the first. ``projection``: the rows of the matrix that projects
    an LSTM's output, if there is one.
    """

    cell: str
    rows: tuple[int, ...]
    layer: tuple[Rows, ...]
    iter: tuple[Rows, ...]
    biases: tuple[tuple[Rows, ...], ...]
    signs: tuple[int, ...]
    projection: Rows | None = None
    x_axis: int = 0
    y_axis: int = 0
    backwards: bool = False

    @property
    def weights(self) -> list[str]:
        """The names of the weights and biases in onernn's operator."""
        return [f"weight{k}" for k in range(len(self.rows))]

    @property
    def arguments(self) -> list[str]:
        """The names of the inputs of onernn's operator."""
        return ["data", *self.weights, *Cell(self.cell).states]

    @property
    def text(self) -> str:
        return str(astuple(self))

    @classmethod
    def of(cls, text: str) -> Formula:
        """Returns the formula from its `text`."""
        return cls(*literal_eval(text))

    @property
    def hidden(self) -> int:
        return _count(self.iter[0])

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the states; the first one is also the width of the output."""
        return _count(self.projection) if self.projection else self.hidden, self.hidden

    def shape(self, array: int, width: int) -> list[int]:
        """Returns the shape of a weight or bias if the input has ``width`` channels."""
        projection = (self.projection,) if self.projection else ()
        columns = ((self.layer, width), (self.iter, self.widths[0]), (projection, self.hidden))
        for parts, count in columns:
            if any(array == part[0] for part in parts):
                return [self.rows[array], count]
        return [self.rows[array]]

    def pack(self, arrays: Sequence[Array]) -> tuple[RnnSpec, list[RnnWeights]]:
        """Returns the layer whose weights are in these arrays."""
        direction: Direction = "right2left" if self.backwards else "left2right"
        spec = RnnSpec(
            Cell(self.cell),
            arrays[self.layer[0][0]].shape[1],
            self.hidden,
            direction=direction,
            projection_size=self.widths[0] if self.projection else None,
        )
        shapes = shapes_of(spec).items()
        parts = {name: np.zeros(shape, arrays[0].dtype) for name, shape in shapes if shape}
        for (array, start, stop), sign, place in self._places(parts):
            place += sign * arrays[array][start:stop]
        return spec, [RnnWeights(**parts)]

    def views(self, arrays: Sequence[Array]) -> None:
        """Returns None, because the layer's weights may have the opposite sign and are not views of
        the arrays.
        """

    def unpack(self, arrays: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """Returns the gradients of the arrays from the gradients of the packed weights."""
        result = [np.zeros(array.shape, np.float32) for array in arrays]
        for (array, start, stop), sign, place in self._places(layers[0].arrays):
            result[array][start:stop] += sign * place
        return result

    def _places(self, parts: Mapping[str, Array]) -> Iterator[tuple[Rows, int, Array]]:
        """Yields (rows, sign, array) for each range of rows. ``parts``: the weights of a layer.
        ``array``, one of them, is a sum that contains the rows times the sign.
        """
        for name, gates in (("layer", self.layer), ("iter", self.iter)):
            for k, rows in enumerate(gates):
                yield rows, self.signs[k], parts[name][0, 0, :, k].T
        for k, (summands, sign) in enumerate(zip(self.biases, (*self.signs, 1), strict=False)):
            for rows in summands:
                yield rows, sign, parts["bias"][0, 0, k]
        if self.projection:
            yield self.projection, 1, parts["projection"][0, 0].T


def _count(rows: Rows) -> int:
    return rows[2] - rows[1]


class LiveCells(LiveOperator):
    """An unrolled cell, or a loop over a cell; its states are (N, O)."""

    is_stack = False

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        self._formula = formula = Formula.of(attributes["formula"])
        self.states, self.parameters = Cell(formula.cell).states, formula.weights
        self.arguments = formula.arguments
        self.outputs = ["output", *(f"final_{name}" for name in self.states)]
        self.layer = LiveLayer(formula, options)
        self.x_axis, self.y_axis, self.widths = formula.x_axis, formula.y_axis, formula.widths

    def shapes(self, inputs: Mapping[str, Sequence[int]]) -> tuple[dict[str, Sizes], list[Sizes]]:
        formula = self._formula
        sizes = inputs["data"] if len(inputs["data"]) > 2 else _OPEN
        time, batch = sizes[formula.x_axis], sizes[1 - formula.x_axis]
        width = int(np.prod(sizes[2:])) if min(sizes[2:]) > 0 else 0
        states = [[batch, size] for size, _ in zip(formula.widths, self.states, strict=False)]
        sizes_of = {"data": list(inputs["data"]), **dict(zip(self.states, states, strict=True))}
        for k, name in enumerate(self.parameters):
            shape = formula.shape(k, width)
            sizes_of[name] = shape if all(shape) else list(inputs[name])
        y = [time, batch] if formula.y_axis == 0 else [batch, time]
        return {name: sizes_of[name] for name in inputs}, [[*y, formula.widths[0]], *states]
