"""A recurrent layer in an MXNet graph that onernn runs: its options, its arrays, its cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from onernn.adapters.common.live import Call, LiveLayer, LiveOptions, Recorded
from onernn.adapters.mxnet import attributes as parse
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, Weights
from onernn.reorders import mxnet

# Folds a FullyConnected in front of an RNN operator into the layer, and gradients back.


def folded(
    parts: Mapping[str, Array], linear: Sequence[Array], stack: mxnet.Stack
) -> dict[str, Array]:
    """The parts of the layer's parameters over what the projection reads.

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


def unfolded(
    gradients: Mapping[str, Array],
    parts: Mapping[str, Array],
    linear: Sequence[Array],
    stack: mxnet.Stack,
) -> tuple[dict[str, Array], list[Array]]:
    """Gradients of the layer's own parts and of ``linear``, from those of the parts `folded`."""
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

    def types(self, inputs: Mapping[str, type | None]) -> tuple[dict[str, type], list[type]]:
        """Types of the arguments and the outputs: the data's; lengths have their own."""
        dtype = next((kind for kind in inputs.values() if kind is not None), np.float32)
        types: dict[str, type] = {**dict.fromkeys(inputs, dtype)}
        if own := inputs.get(_LENGTHS):
            types[_LENGTHS] = own
        return types, [dtype] * len(self.outputs)

    def shapes(self, inputs: Mapping[str, Sequence[int]]) -> tuple[dict[str, Sizes], list[Sizes]]:
        """Shapes of the arguments and the outputs from the data's; unknown sizes are 0 or -1."""
        raise NotImplementedError

    def run(self, arrays: Arrays) -> list[Array]:
        """The outputs, in the dtype of the data.

        Raises `UnsupportedError` and `ShapeError` naming the array that cannot run.
        """
        return self._shown(self.layer.run(self._checked(arrays)))

    def run_training(self, arrays: Arrays) -> tuple[list[Array], Recorded | str]:
        """The results of `run`, and the record for `backward`, or the reason why there is none."""
        try:
            results, recorded = self.layer.run_training(self._checked(arrays))
        except UnsupportedError as error:
            return self.run(arrays), str(error)
        return self._shown(results), recorded

    def backward(
        self, arrays: Arrays, recorded: Recorded | str, grads: Sequence[Array]
    ) -> dict[str, Array]:
        """Gradients of the arguments from those of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        parameters = [arrays[name] for name in self.parameters]
        result = self.layer.backward(recorded, self._hidden(grads), parameters)
        gradients = dict(zip(("data", *self.states, *self.parameters), result, strict=True))
        zeros = {name: np.zeros_like(a) for name, a in arrays.items() if name == _LENGTHS}
        return zeros | {
            name: grad.astype(arrays[name].dtype, copy=False).reshape(arrays[name].shape)
            for name, grad in gradients.items()
        }

    def _checked(self, arrays: Arrays) -> Call:
        dtype = arrays["data"].dtype
        for name, array in arrays.items():
            if name == _LENGTHS:
                continue
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if array.dtype != dtype:
                raise ShapeError(f"{name}: expected {dtype} as data, got {array.dtype}")
        return self._call(arrays)

    def _call(self, arrays: Arrays) -> Call:
        states, parameters = (
            [arrays[k] for k in names] for names in (self.states, self.parameters)
        )
        return Call(arrays["data"], states, parameters)

    def _shown(self, results: list[Array]) -> list[Array]:
        """The layer's results as MXNet's operator gives them."""
        return results

    def _hidden(self, grads: Sequence[Array]) -> Sequence[Array]:
        """The inverse of `_shown`."""
        return grads


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
        self.layer = LiveLayer(self._pack, self._unpack, options, views=self._views)

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

    def _call(self, arrays: Arrays) -> Call:
        lengths = arrays[_LENGTHS] if self._masks else None
        return super()._call(arrays)._replace(lengths=lengths)

    def _shown(self, results: list[Array]) -> list[Array]:
        return results[: len(self.outputs)]

    def _pack(self, parameters: Sequence[Array]) -> tuple[RnnSpec, Weights]:
        flat, *linear = parameters
        parts = mxnet.split(flat, self.stack)
        if linear:
            parts = folded(parts, linear, self.stack)
        layers = mxnet.weights(parts, self.stack)
        return self._spec(parts), layers if layers[1:] else layers[0]

    def _views(self, parameters: Sequence[Array]) -> tuple[RnnSpec, list[PartViews]] | None:
        if self.linear:  # its product is computed once
            return None
        parts = mxnet.split(parameters[0], self.stack)
        return self._spec(parts), mxnet.views(parts, self.stack)

    def _spec(self, parts: Arrays) -> RnnSpec:
        spec = self.stack.spec(parts["l0_i2h_weight"].shape[1])
        return replace(spec, cell_clip=self._clip, cell_clip_nan=self._stops_nan)

    def _unpack(self, parameters: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        flat, *linear = parameters
        assert layers[0].layer is not None
        gradients = mxnet.gradients_back(self.stack.spec(layers[0].layer.shape[2]), layers)
        back = list[Array]()
        if linear:
            parts = mxnet.split(flat, self.stack)
            gradients, back = unfolded(gradients, parts, linear, self.stack)
        return [mxnet.join(gradients, self.stack), *back]


def checked(name: str, attributes: Mapping[str, Any], options: Options) -> LiveRnn:
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
        """The inverse of `text`."""

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
        """The shape of a weight or bias, where the input has ``width`` channels."""
        projection = (self.projection,) if self.projection else ()
        columns = ((self.layer, width), (self.iter, self.widths[0]), (projection, self.hidden))
        for parts, count in columns:
            if any(array == part[0] for part in parts):
                return [self.rows[array], count]
        return [self.rows[array]]

    def pack(self, arrays: Sequence[Array]) -> tuple[RnnSpec, RnnWeights]:
        """The layer of these arrays."""
        width, gates = arrays[self.layer[0][0]].shape[1], len(self.signs)
        shapes = {
            "layer": (width, gates, self.hidden),
            "iter": (self.widths[0], gates, self.hidden),
            "bias": (len(self.biases), self.hidden),
            "projection": (self.hidden, self.widths[0]),
        }
        if not self.projection:
            del shapes["projection"]
        parts = {name: np.zeros((1, 1, *s), arrays[0].dtype) for name, s in shapes.items()}
        for (array, start, stop), sign, place in self._places(parts):
            place += sign * arrays[array][start:stop]
        direction: Direction = "right2left" if self.backwards else "left2right"
        projected = self.widths[0] if self.projection else None
        cell = Cell(self.cell)
        spec = RnnSpec(cell, width, self.hidden, direction=direction, projection_size=projected)
        return spec, RnnWeights(**parts)

    def gradients(self, arrays: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """Gradients of the arrays, from those of the packed weights."""
        result = [np.zeros(array.shape, np.float32) for array in arrays]
        for (array, start, stop), sign, place in self._places(layers[0].arrays):
            result[array][start:stop] += sign * place
        return result

    def _places(self, parts: Mapping[str, Array]) -> Iterator[tuple[Rows, int, Array]]:
        """Rows of the arrays, their sign, and where in a layer's weights they are added up."""
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

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        self._formula = formula = Formula.of(attributes["formula"])
        self.states, self.parameters = Cell(formula.cell).states, formula.weights
        self.arguments = formula.arguments
        self.outputs = ["output", *(f"final_{name}" for name in self.states)]
        self.layer = LiveLayer(formula.pack, formula.gradients, options)

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

    def _call(self, arrays: Arrays) -> Call:
        call = super()._call(arrays)
        data = call.x.reshape(*call.x.shape[:2], -1)
        states = [state[None] for state in call.states]
        return call._replace(x=data, states=states, time_major=not self._formula.x_axis)

    def _shown(self, results: list[Array]) -> list[Array]:
        y, *states = results
        return [self._turned(y), *(state[0] for state in states)]

    def _hidden(self, grads: Sequence[Array]) -> Sequence[Array]:
        dy, *dstates = grads
        return [self._turned(dy), *(state[None] for state in dstates)]

    def _turned(self, y: Array) -> Array:
        """From the axes of the data to those of the output, or back again."""
        return y if self._formula.x_axis == self._formula.y_axis else y.swapaxes(0, 1)
