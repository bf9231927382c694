"""A recurrent layer in an MXNet graph that onernn runs: its options, its arrays, its cells."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from onernn.adapters.common.live import LiveLayer, LiveOptions, ViewedWeights, place_of, widen
from onernn.adapters.mxnet import attributes as parse
from onernn.backend import Stack
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, shapes_of
from onernn.reorders import mxnet

# Folds a FullyConnected in front of an RNN operator into the layer, and gradients back.


class FoldedWeights:
    """Weights over the input of a projection, computed from those of both, for `LiveLayer`."""

    def __init__(self, weights: ViewedWeights, stack: mxnet.Stack) -> None:
        self._weights, self._stack = weights, stack

    def views(self, parameters: Sequence[Array]) -> None:
        """Nothing: the product of both matrices is computed once."""

    def pack(self, parameters: Sequence[Array]) -> tuple[RnnSpec, list[RnnWeights]]:
        """See `ViewedWeights.pack`."""
        flat, *linear = parameters
        parts = fold(mxnet.split(flat, self._stack), linear, self._stack)
        return self._weights.pack([mxnet.join(parts, self._stack)])

    def unpack(self, parameters: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """See `ViewedWeights.unpack`."""
        flat, *linear = parameters
        vector = np.empty(self._stack.elements(linear[0].shape[1]))
        gradients, parts = (
            mxnet.split(each, self._stack)
            for each in (*self._weights.unpack([vector], layers), flat)
        )
        own, of_linear = unfold(gradients, parts, linear, self._stack)
        return [mxnet.join(own, self._stack), *of_linear]


def fold(
    parts: Mapping[str, Array], linear: Sequence[Array], stack: mxnet.Stack
) -> dict[str, Array]:
    """Returns the parts of the layer's parameters over what the projection reads.

    ``linear``: weight (P, I), and bias (P,) if there is one. Computed in float64 and rounded once.
    """
    weight, *bias = (array.astype(np.float64) for array in linear)
    result = dict(parts)
    for side in "lr"[: stack.directions]:
        of_x, of_bias = (parts[f"{side}0_i2h_{kind}"] for kind in ("weight", "bias"))
        wide = of_x.astype(np.float64)
        result[f"{side}0_i2h_weight"] = (wide @ weight).astype(of_x.dtype)
        for linear_bias in bias:
            result[f"{side}0_i2h_bias"] = (of_bias + wide @ linear_bias).astype(of_bias.dtype)
    return result


def unfold(
    gradients: Mapping[str, Array],
    parts: Mapping[str, Array],
    linear: Sequence[Array],
    stack: mxnet.Stack,
) -> tuple[dict[str, Array], list[Array]]:
    """Gradients of the layer's own parts and of ``linear``, from those of the parts `fold`."""
    weight, *bias = linear
    own, of_linear = dict(gradients), [np.zeros_like(array) for array in linear]
    for side in "lr"[: stack.directions]:
        of_x = parts[f"{side}0_i2h_weight"]
        d_of_x, d_bias = (gradients[f"{side}0_i2h_{kind}"] for kind in ("weight", "bias"))
        own[f"{side}0_i2h_weight"] = d_of_x @ weight.T
        of_linear[0] += of_x.T @ d_of_x
        for linear_bias in bias:
            own[f"{side}0_i2h_weight"] += np.outer(d_bias, linear_bias)
            of_linear[1] += of_x.T @ d_bias
    return own, of_linear


# MXNet's RNN operator on arrays in memory: what the plug-in runs, without MXNet.

FLOATS = ("float16", "float32", "float64")
"""Dtypes of a layer's arrays; float16 is computed in float32."""

_LENGTHS = "sequence_length"
"""The argument that is of another type than the data."""

_OPEN = (-1, -1, -1)
"""The sizes of data of unknown shape. MXNet crashes if an output has no axes."""

LINEAR = "linear_"
"""Prefix of the attributes of a FullyConnected that is part of an RNN operator."""

Arrays = Mapping[str, Array]
Sizes = list[int]


@dataclass(frozen=True, kw_only=True)
class Options(LiveOptions):
    """How recurrent operators compute; ``semantics`` as of `onernn.load`."""

    semantics: str = "documented"

    def __post_init__(self) -> None:
        if self.semantics not in ("documented", "mxnet-cpu"):
            raise ValueError(f"semantics: documented or mxnet-cpu, got {self.semantics!r}")
        super().__post_init__()


class LiveOperator:
    """An operator in MXNet's graph on arrays by name.

    ``arguments`` and ``outputs`` are in MXNet's order; ``parameters`` and ``states`` are arguments.
    ``drops``: whether training would drop a part of a layer's output, which neither MXNet on the
    CPU nor onernn does.
    """

    arguments: Sequence[str]
    outputs: Sequence[str]
    parameters: Sequence[str]
    states: Sequence[str]
    layer: LiveLayer
    drops = False
    x_axis = y_axis = 0
    """The axes of the time in the data and in the output."""
    sides = 1, 1
    """How many layers and directions there are."""
    widths: tuple[int, int]
    is_stack = True
    """Whether states have an axis of layers and directions."""

    def types(self, inputs: Mapping[str, type | None]) -> tuple[dict[str, type], list[type]]:
        """Returns types of the arguments and the outputs: the data's; lengths have their own."""
        dtype = next((kind for kind in inputs.values() if kind is not None), np.float32)
        types: dict[str, type] = {**dict.fromkeys(inputs, dtype)}
        if own := inputs.get(_LENGTHS):
            types[_LENGTHS] = own
        return types, [dtype] * len(self.outputs)

    def shapes(self, inputs: Mapping[str, Sequence[int]]) -> tuple[dict[str, Sizes], list[Sizes]]:
        """Shapes of the arguments and the outputs from the data's; unknown sizes are 0 or -1."""
        raise NotImplementedError

    def run(self, arrays: Arrays) -> list[Array]:
        """Returns the outputs, in the dtype of the data.

        Raises `UnsupportedError` and `ShapeError` naming the array that cannot run.
        """
        self._check(arrays)
        words = self._words(arrays["data"], self.x_axis, self._lengths(arrays))
        return self._results(arrays, *self.prepare(arrays).run(words, self._begin(arrays)))

    def prepare(self, arrays: Arrays) -> Stack:
        """Returns the stack that runs with these parameters."""
        parameters = self._parameters(arrays)
        return self.layer.stack(tuple(map(place_of, parameters)), lambda: parameters)

    def run_training(self, arrays: Arrays) -> tuple[list[Array], Any]:
        """Returns the results of `run`, and the record for `backward`, or why there is none."""
        self._check(arrays)
        lengths = self._lengths(arrays)
        words, begin = self._words(arrays["data"], self.x_axis, lengths), self._begin(arrays)
        try:
            y, ends, recorded = self.layer.run_training(self._parameters(arrays), words, begin)
        except UnsupportedError as error:
            return self.run(arrays), str(error)
        # Later changes of the lengths do not reach the record.
        kept = None if lengths is None else lengths.copy()
        return self._results(arrays, y, ends), (recorded, kept)

    def backward(self, arrays: Arrays, recorded: Any, grads: Sequence[Array]) -> dict[str, Array]:
        """Returns gradients of the arguments from those of the outputs."""
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

    def _check(self, arrays: Arrays) -> None:
        dtype = arrays["data"].dtype
        for name, array in arrays.items():
            if name == _LENGTHS:
                continue
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if array.dtype != dtype:
                raise ShapeError(f"{name}: expected {dtype} as data, got {array.dtype}")

    def _parameters(self, arrays: Arrays) -> list[Array]:
        return [arrays[name] for name in self.parameters]

    def _lengths(self, arrays: Arrays) -> Array | None:
        """Returns how many steps each sequence has, None if it has all."""
        return None

    def _begin(self, arrays: Arrays) -> tuple[Array, ...]:
        return self._split(arrays, [arrays[name] for name in self.states])

    def _split(self, arrays: Arrays, states: Sequence[Array]) -> tuple[Array, ...]:
        """Returns states (L*D, N, O), or (N, O) of a cell, as (L, D, N, O)."""
        result, rows = list[Array](), arrays["data"].shape[1 - self.x_axis]
        for name, state, width in zip(self.states, states, self.widths, strict=False):
            expected = (*[math.prod(self.sides)] * self.is_stack, rows, width)
            if state.shape != expected:
                raise ShapeError(f"{name}: expected {expected}, got {state.shape}")
            result.append(widen(state).reshape(*self.sides, rows, width))
        return tuple(result)

    def _words(self, x: Array, axis: int, lengths: Array | None) -> Ragged | Array:
        """Returns an array whose time is this axis as (T, N, ...), without steps after lengths."""
        if not self.is_stack:
            x = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        x = widen(x.swapaxes(0, axis))
        if lengths is None:
            return x
        return Ragged.from_padded(x, lengths.astype(np.int64), time_major=True)

    def _pad(self, y: Ragged | Array, axis: int, arrays: Arrays) -> Array:
        """Returns the inverse of `_words`; zeros after the lengths."""
        if isinstance(y, Ragged):
            y = y.to_padded(time=arrays["data"].shape[self.x_axis], time_major=True)
        return y.swapaxes(0, axis).astype(arrays["data"].dtype, copy=False)

    def _results(self, arrays: Arrays, y: Ragged | Array, ends: Sequence[Array]) -> list[Array]:
        """Returns what MXNet's operator outputs."""
        states = [
            end.reshape(arrays[name].shape).astype(arrays[name].dtype, copy=False)
            for name, end in zip(self.states, ends, strict=True)
        ]
        return [self._pad(y, self.y_axis, arrays), *states][: len(self.outputs)]


class LiveRnn(LiveOperator):
    """One RNN operator, its attributes strings as in a symbol.

    Where attributes name a projection in front (`LINEAR`), its weight and bias are inputs, too, and
    part of the layer. Raises `UnsupportedError` for attributes that cannot run.
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
        # MXNet ignores these or crashes: no speed makes up for that.
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
    """Raises `UnsupportedError`, with the layer's name, for attributes that cannot run."""
    try:
        return LiveRnn({key: str(value) for key, value in attributes.items()}, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name} (RNN): {error}") from None


# Runs a recurrent cell that a symbol writes out in its own operators.
#
# The weights stay as they are; a formula says where in them the numbers of each gate stand. Works
# on arrays in memory, without MXNet.

Rows = tuple[int, int, int]
"""The index of a weight (G*O, I) or a bias (G*O,), and the start and end of a range of its rows."""


@dataclass(frozen=True)
class Formula:
    """A cell, and where its numbers stand; gates in the order of `Cell.gates`.

    ``rows``: how many each array has. ``biases``: for each row of the pivot those that are added
    up. ``signs``: -1 where a gate is computed with its sign turned. ``x_axis``, ``y_axis``: where
    input and output hold the time, 0 or 1. ``backwards``: from the last step to the first.
    ``projection``: what an LSTM's output is multiplied by, where that is its state.
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
        """The operator's names of the arrays."""
        return [f"weight{k}" for k in range(len(self.rows))]

    @property
    def arguments(self) -> list[str]:
        """The inputs of the operator."""
        return ["data", *self.weights, *Cell(self.cell).states]

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Formula:
        """Returns the inverse of `text`."""

        def tuples(value: Any) -> Any:
            return tuple(map(tuples, value)) if isinstance(value, list) else value

        return cls(**{name: tuples(value) for name, value in json.loads(text).items()})

    @property
    def hidden(self) -> int:
        return _count(self.iter[0])

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the states; the first is the output's."""
        return _count(self.projection) if self.projection else self.hidden, self.hidden

    def shape(self, array: int, width: int) -> list[int]:
        """Returns the shape of a weight or bias, where the input has ``width`` channels."""
        projection = (self.projection,) if self.projection else ()
        columns = ((self.layer, width), (self.iter, self.widths[0]), (projection, self.hidden))
        for parts, count in columns:
            if any(array == part[0] for part in parts):
                return [self.rows[array], count]
        return [self.rows[array]]

    def pack(self, arrays: Sequence[Array]) -> tuple[RnnSpec, list[RnnWeights]]:
        """Returns the layer of these arrays."""
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
        """Nothing: summands may have another sign."""

    def unpack(self, arrays: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """Gradients of the arrays, from those of the packed weights."""
        result = [np.zeros(array.shape, np.float32) for array in arrays]
        for (array, start, stop), sign, place in self._places(layers[0].arrays):
            result[array][start:stop] += sign * place
        return result

    def _places(self, parts: Mapping[str, Array]) -> Iterator[tuple[Rows, int, Array]]:
        """Yields rows of the arrays, their sign, and where in a layer's weights they are added
        up.
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
    """One unrolled cell or loop over a cell: states (N, O)."""

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
        shapes = {"data": list(inputs["data"])}
        for k, name in enumerate(self.parameters):
            shape = formula.shape(k, width)
            shapes[name] = list(inputs[name]) if len(shape) > 1 and not shape[1] else shape
        states = [[batch, size] for size, _ in zip(formula.widths, self.states, strict=False)]
        y = [time, batch] if formula.y_axis == 0 else [batch, time]
        sizes_of = {**shapes, **dict(zip(self.states, states, strict=True))}
        return {name: sizes_of[name] for name in inputs}, [[*y, formula.widths[0]], *states]
