"""A recurrent layer in an MXNet graph that ours runs: its options, its arrays, its cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.live import LiveOptions, Repacked
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.layers import input_shapes, stack_of
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.backend import Stack, State, Tape
from onernn.engine.session import unsupported
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders import mxnet

# A FullyConnected in front of an RNN operator: its numbers in the layer's, and gradients back.


def folded(flat: Array, linear: Sequence[Array], stack: mxnet.Stack) -> Array:
    """The parameter vector of the layer over what the projection reads.

    ``linear``: weight (P, I), and bias (P,) if there is one. Made in float64 and rounded once.
    """
    weight, *bias = (array.astype(np.float64) for array in linear)
    named = dict(mxnet.split(flat, stack))
    for side in "lr"[: stack.directions]:
        of_x = named[f"{side}0_i2h_weight"].astype(np.float64)
        named[f"{side}0_i2h_weight"] = (of_x @ weight).astype(flat.dtype)
        for added in bias:
            moved = named[f"{side}0_i2h_bias"] + of_x @ added
            named[f"{side}0_i2h_bias"] = moved.astype(flat.dtype)
    return mxnet.join(named, stack)


def unfolded(
    gradients: Mapping[str, Array], flat: Array, linear: Sequence[Array], stack: mxnet.Stack
) -> tuple[dict[str, Array], list[Array]]:
    """Gradients of the layer's own parts and of ``linear``, from those of the parts `folded`."""
    (weight, *bias), named = linear, mxnet.split(flat, stack)
    own, of_linear = dict(gradients), [np.zeros_like(array) for array in linear]
    for side in "lr"[: stack.directions]:
        of_x = named[f"{side}0_i2h_weight"]
        d_of_x, d_bias = (gradients[f"{side}0_i2h_{kind}"] for kind in ("weight", "bias"))
        own[f"{side}0_i2h_weight"] = d_of_x @ weight.T
        of_linear[0] += of_x.T @ d_of_x
        for added in bias:
            own[f"{side}0_i2h_weight"] += np.outer(d_bias, added)
            of_linear[1] += of_x.T @ d_bias
    return own, of_linear


# MXNet's RNN operator on arrays in memory: what the plug-in runs, without MXNet.

FLOATS = ("float16", "float32", "float64")
"""What arrays of a layer may be; float16 is computed in float32."""

_OWN_TYPES = ("sequence_length", "seed")
"""Arguments that are of another type than the data."""

LINEAR = "linear_"
"""What attributes of a FullyConnected begin with that is part of an RNN operator."""


def computed(array: Array) -> Array:
    """The array as it is computed with."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


@dataclass(frozen=True, kw_only=True)
class Options(LiveOptions):
    """How recurrent operators compute, and which of their meanings, as `onernn.load` says it."""

    semantics: str = "documented"

    def __post_init__(self) -> None:
        if self.semantics not in ("documented", "mxnet-cpu"):
            raise ValueError(f"semantics: documented or mxnet-cpu, got {self.semantics!r}")
        super().__post_init__()


class Arguments(NamedTuple):
    """The arrays in front of an RNN operator."""

    data: Array
    parameters: Array
    states: tuple[Array, ...]
    linear: tuple[Array, ...] = ()
    lengths: Array | None = None
    seed: Array | None = None


class Recorded(NamedTuple):
    """What a training run leaves for one backward: a layer, its tape, the mask of its input."""

    layer: Stack
    tape: Tape
    mask: Array | None = None


class LiveOperator:
    """What MXNet asks of each operator: the order of its arrays, and their types."""

    arguments: list[str]
    outputs: list[str]

    def named(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """The arrays by `arguments`; raises errors for those that are not of the data's dtype."""
        named = dict(zip(self.arguments, arrays, strict=True))
        for name, array in named.items():
            if name in _OWN_TYPES:
                continue
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if array.dtype != arrays[0].dtype:
                raise ShapeError(f"{name}: expected {arrays[0].dtype} as data, got {array.dtype}")
        return named

    def types(self, given: Sequence[type | None]) -> tuple[list[type], list[type]]:
        """Of the arguments and the outputs: those of the data; lengths and seed have their own."""
        known = next((each for each in given if each is not None), np.float32)
        types: list[type] = [known] * len(given)
        for at, (name, own) in enumerate(zip(self.arguments, given, strict=True)):
            if name == "seed":
                types[at] = np.float32
            elif name in _OWN_TYPES and own is not None:
                types[at] = own
        return types, [known] * len(self.outputs)


class LiveRnn(LiveOperator):
    """One RNN operator, its attributes strings as in a symbol.

    Weights are packed once, and again when the parameters' numbers have changed: they are
    compared in every call, with a copy. ``dropout``: what part of each layer's output but the
    last's is dropped in training; two numbers in [0, 1), the input ``seed``, choose which, and what
    stays is divided by 1 - p. Where attributes tell of a projection in front (`LINEAR`), its weight
    and bias are inputs, too, and part of the layer. Raises `UnsupportedError` for attributes that
    cannot run.
    """

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        units = attributes.get(f"{LINEAR}num_hidden")
        self._units = None if units is None else parse.integer(units)
        no_bias = parse.is_set(attributes, f"{LINEAR}no_bias")
        slots = ("linear_weight", *([] if no_bias else ["linear_bias"]))
        self.linear = slots if self._units else ()
        attributes = {k: v for k, v in attributes.items() if not k.startswith(LINEAR)}
        self.stack = stack_of(SymbolNode("RNN", "rnn", attributes))
        self._attributes, self._options = dict(attributes), options
        self.state_names = ("state", "state_cell")[: 1 + (self.stack.mode == "lstm")]
        self.takes_lengths = parse.is_set(attributes, "use_sequence_length")
        gives_states = parse.is_set(attributes, "state_outputs")
        names = ["output", "state_output", "statecell_output"]
        self.outputs = names[: 1 + len(self.state_names) * gives_states]
        self.masks = self.takes_lengths and options.semantics == "documented"
        dropout = parse.number(attributes.get("p", "0"))
        if not 0 <= dropout < 1:
            raise UnsupportedError(f"dropout p={dropout:g}: expected 0 <= p < 1")
        between = self.stack.layers > 1 and options.semantics == "documented"
        self.dropout = dropout if between else 0.0
        clips = attributes.get("lstm_state_clip_min", "None") != "None"
        documented = options.semantics == "documented"
        # What MXNet ignores or what ends its process: no speed makes up for that.
        self.only_ours = bool(
            self.masks or self.dropout or self.stack.projection or (clips and documented)
        )
        lengths, seed = ["sequence_length"] * self.takes_lengths, ["seed"] * bool(self.dropout)
        self.arguments = ["data", "parameters", *self.state_names, *lengths, *self.linear, *seed]
        self._layers = Repacked(self._new_layers)

    def bound(self, arrays: Sequence[Array]) -> Arguments:
        """The arrays of `arguments`, in that order; all but the lengths of one float dtype."""
        named = self.named(arrays)
        states = tuple(named[name] for name in self.state_names)
        projection = tuple(named[name] for name in self.linear)
        more = named.get("sequence_length"), named.get("seed")
        return Arguments(arrays[0], arrays[1], states, projection, *more)

    def shapes(self, given: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Of the arguments and the outputs, from the data's; unknown sizes are 0 or -1."""
        if len(given[0]) != 3:
            return [*map(list, given)], [[]] * len(self.outputs)
        t, n, channels = given[0]
        shapes: Any = {**input_shapes(self.stack, t, n, channels), "seed": (2,)}
        if self._units:
            shapes["parameters"] = (self.stack.elements(self._units),)
            shapes |= {"linear_weight": (self._units, channels), "linear_bias": (self._units,)}
        elif channels <= 0:
            shapes["parameters"] = given[1]
        states = [list(shapes[name]) for name in self.state_names]
        y = [t, n, self.stack.recurrent * self.stack.directions]
        outputs = [y, *states][: len(self.outputs)]
        return [list(shapes[name]) for name in self.arguments], outputs

    def layer(self, parameters: Array) -> Stack:
        """The layer of these parameters, a vector; the same one while the numbers stay."""
        return self._layers("whole", [parameters])[0]

    def _packed(self, how: str, given: Arguments) -> list[Stack]:
        return self._layers(how, [given.parameters, *given.linear])

    def _new_layers(self, how: str, parameters: Sequence[Array]) -> list[Stack]:
        """The stack as a "whole", or its layers "apart"."""
        flat, *projection = map(computed, parameters)
        mxnet.split(flat, self.stack)  # raises what is wrong with its length
        if projection:
            flat = folded(flat, projection, self.stack)
        own = [name for name in self.arguments if name not in (*self.linear, "seed")]
        symbol = _symbol(self._attributes, own)
        graph = lower(symbol, {"parameters": flat}, self._options.semantics)
        if refusals := unsupported(graph):
            raise UnsupportedError(refusals[0].reason)
        (rnn,) = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
        prepare, spec = self._options.prepare, rnn.spec
        if how == "whole":
            return [prepare(spec, rnn.weights)]
        return [
            prepare(spec.one_layer(spec.reads(at), spec.direction), weights)
            for at, weights in enumerate(rnn.layers)
        ]

    def run(self, given: Arguments) -> tuple[Array, ...]:
        """y (T, N, D*R), then the final states (L*D, N, R), in the dtype of the data."""
        (layer,) = self._packed("whole", given)
        y, states = layer.run(self._words(given), self._states(given))
        return self._results(given, y, states)

    def run_training(self, given: Arguments) -> tuple[tuple[Array, ...], list[Recorded] | str]:
        """What `run` gives, and what `backward` needs; or the reason why there can be none."""
        drops = given.seed is not None
        layers = self._packed("apart" if drops else "whole", given)
        random, y = np.random.default_rng(_entropy(given.seed)), self._words(given)
        begins, ends, recorded = self._states(given), [], list[Recorded]()
        try:
            for at, layer in enumerate(layers):
                mask = self._mask(random, y) if at else None
                y = y if mask is None else _scaled(y, mask)
                begin = tuple(state[at : at + 1] for state in begins) if drops else begins
                y, states, tape = layer.run_training(y, begin)
                ends.append(states)
                recorded.append(Recorded(layer, tape, mask))
        except UnsupportedError as error:
            if drops:
                raise  # a run would drop nothing
            return self.run(given), str(error)
        finals = [np.concatenate(each) for each in zip(*ends, strict=True)]
        return self._results(given, y, finals), recorded

    def backward(
        self,
        given: Arguments,
        recorded: list[Recorded] | str,
        dy: Array,
        dstates: Sequence[Array],
    ) -> tuple[Array, ...]:
        """Gradients of `arguments` from those of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        ends = [mxnet.state(computed(d), self.stack) for d in dstates]
        dx: Any = self._masked(given, computed(dy))
        layers, begins = list[RnnWeights](), list[State]()
        for at, (layer, tape, mask) in reversed(list(enumerate(recorded))):
            own = ends if len(recorded) == 1 else [end[at : at + 1] for end in ends]
            grads = layer.backward(tape, dx, tuple(own) or None)
            dx = grads.x if mask is None else _scaled(grads.x, mask)
            layers[:0] = grads.layers
            begins.insert(0, grads.state)
        spec = self.stack.spec(recorded[0].layer.spec.input_size)
        named, projection = mxnet.gradients_back(spec, layers), list[Array]()
        if given.linear:
            arrays = [computed(array) for array in (given.parameters, *given.linear)]
            named, projection = unfolded(named, arrays[0], arrays[1:], self.stack)
        states = [np.concatenate(each) for each in zip(*begins, strict=True)]
        flat = mxnet.join(named, self.stack)
        found = [_padded(given, dx), flat, *map(mxnet.state_back, states), *projection]
        found = [array.astype(given.data.dtype, copy=False) for array in found]
        if given.lengths is not None:
            found.insert(2 + len(states), np.zeros_like(given.lengths))
        return *found, *([] if given.seed is None else [np.zeros_like(given.seed)])

    def _mask(self, random: np.random.Generator, y: Ragged | Array) -> Array:
        """What the words of a layer are multiplied by: 0, or 1 / (1 - p)."""
        kept = random.random(data_of(y).shape, np.float32) >= self.dropout
        return kept * np.float32(1 / (1 - self.dropout))

    def _words(self, given: Arguments) -> Ragged | Array:
        return self._masked(given, computed(given.data))

    def _masked(self, given: Arguments, padded: Array) -> Ragged | Array:
        if not self.masks or given.lengths is None:
            return padded
        lengths = given.lengths.astype(np.int64)
        return Ragged.from_padded(padded, lengths, time_major=True)

    def _states(self, given: Arguments) -> tuple[Array, ...]:
        for name, array in zip(self.state_names, given.states, strict=True):
            if array.ndim != 3 or array.shape[1] != given.data.shape[1]:
                raise ShapeError(f"{name}: expected (L*D, N, R) with N of data, got {array.shape}")
        return tuple(mxnet.state(computed(array), self.stack) for array in given.states)

    def _results(
        self, given: Arguments, y: Ragged | Array, states: Sequence[Array]
    ) -> tuple[Array, ...]:
        results = (_padded(given, y), *map(mxnet.state_back, states))
        return tuple(array.astype(given.data.dtype, copy=False) for array in results)


def _entropy(seed: Array | None) -> list[int]:
    """What seeds a generator: the bits of two numbers of MXNet's own generator."""
    return [] if seed is None else np.asarray(seed, np.float32).view(np.uint32).tolist()


def _padded(given: Arguments, y: Ragged | Array) -> Array:
    """y in the axes of the data, zeros behind the lengths."""
    return y.to_padded(time=len(given.data), time_major=True) if isinstance(y, Ragged) else y


def _scaled(y: Ragged | Array, mask: Array) -> Any:
    return y.with_data(y.data * mask) if isinstance(y, Ragged) else y * mask


def _symbol(attributes: Mapping[str, str], arguments: Sequence[str]) -> Symbol:
    """The operator alone."""
    variables = [SymbolNode(VARIABLE, name) for name in arguments]
    inputs = tuple(Entry(at) for at in range(len(variables)))
    rnn = SymbolNode("RNN", "rnn", attributes, inputs)
    return Symbol((*variables, rnn), (Entry(len(variables)),), {"mxnet_version": ["int", 10901]})


# A recurrent cell that a symbol writes out in its own operators: what the plug-in runs instead.
#
# The weights stay the arrays that they are; a formula tells where in them the numbers of each gate
# stand. Works on arrays in memory, without MXNet.


class Rows(NamedTuple):
    """Rows start ... stop of a weight (G*O, I) or a bias (G*O,), by its number."""

    array: int
    start: int
    stop: int


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
    def arguments(self) -> list[str]:
        """The inputs of the operator."""
        return ["data", *(f"weight{at}" for at in range(len(self.rows))), *Cell(self.cell).states]

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Formula:
        """The inverse of `text`."""
        found: dict[str, Any] = json.loads(text)
        for name in ("layer", "iter"):
            found[name] = tuple(Rows(*each) for each in found[name])
        found["biases"] = tuple(tuple(Rows(*each) for each in row) for row in found["biases"])
        found |= {name: tuple(found[name]) for name in ("rows", "signs")}
        found["projection"] = found["projection"] and Rows(*found["projection"])
        return cls(**found)

    @property
    def hidden(self) -> int:
        return self.iter[0].stop - self.iter[0].start

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the states, and of the output as the first of them."""
        made = self.projection
        return made.stop - made.start if made else self.hidden, self.hidden

    def shape(self, array: int, width: int) -> list[int]:
        """Of a weight or bias, where the input has ``width`` channels."""
        if any(array == each.array for each in self.layer):
            return [self.rows[array], width]
        if any(array == each.array for each in self.iter):
            return [self.rows[array], self.widths[0]]
        projects = self.projection and array == self.projection.array
        return [self.rows[array], self.hidden] if projects else [self.rows[array]]

    def pack(self, arrays: Sequence[Array]) -> tuple[RnnSpec, RnnWeights]:
        """The layer of these arrays."""

        def matrix(gates: Iterable[Rows]) -> Array:
            parts = [
                sign * arrays[at][start:stop].T
                for sign, (at, start, stop) in zip(self.signs, gates, strict=True)
            ]
            return np.stack(parts, axis=1)[None, None]

        layer, recurrent = matrix(self.layer), matrix(self.iter)
        bias = np.zeros((len(self.biases), self.hidden), layer.dtype)
        for row, added in zip(bias, self.biases, strict=True):
            for at, start, stop in added:
                row += arrays[at][start:stop]
        bias[: len(self.signs)] *= np.array(self.signs, bias.dtype)[:, None]
        direction: Direction = "right2left" if self.backwards else "left2right"
        projection, width = None, None
        if self.projection:
            at, start, stop = self.projection
            projection, width = arrays[at][start:stop].T[None, None], stop - start
        spec = RnnSpec(
            Cell(self.cell),
            layer.shape[2],
            self.hidden,
            direction=direction,
            projection_size=width,
        )
        return spec, RnnWeights(layer, recurrent, bias[None, None], projection=projection)

    def gradients(self, packed: RnnWeights, arrays: Sequence[Array]) -> list[Array]:
        """Those of the arrays, from those of what `pack` made."""
        found = [np.zeros(array.shape, np.float32) for array in arrays]
        assert packed.layer is not None and packed.bias is not None
        for matrix, gates in ((packed.layer, self.layer), (packed.iter, self.iter)):
            for at, (sign, rows) in enumerate(zip(self.signs, gates, strict=True)):
                found[rows.array][rows.start : rows.stop] += sign * matrix[0, 0, :, at].T
        if self.projection and packed.projection is not None:
            at, start, stop = self.projection
            found[at][start:stop] += packed.projection[0, 0].T
        signs = (*self.signs, 1)
        for at, added in enumerate(self.biases):
            for rows in added:
                found[rows.array][rows.start : rows.stop] += signs[at] * packed.bias[0, 0, at]
        return found


class LiveCells(LiveOperator):
    """One unrolled cell or loop over a cell; see `LiveRnn`, which has the same interface."""

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        self._formula, self._options = Formula.of(attributes["formula"]), options
        self._states = Cell(self._formula.cell).states
        self._layers = Repacked(self._new_layer)
        self.arguments = self._formula.arguments
        self.outputs = ["output", *(f"final_{name}" for name in self._states)]

    def shapes(self, given: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Of the arguments and of all outputs, from the data's; unknown sizes are 0 or -1."""
        formula, sizes = self._formula, list(given[0])
        if len(sizes) < 3:
            return [*map(list, given)], [[]] * len(self.outputs)
        time, batch = sizes[formula.x_axis], sizes[1 - formula.x_axis]
        width = int(np.prod(sizes[2:])) if min(sizes[2:]) > 0 else 0
        shapes = [sizes]
        for at, known in enumerate(given[1 : 1 + len(formula.rows)]):
            shape = formula.shape(at, width)
            shapes.append(list(known) if len(shape) > 1 and not shape[1] else shape)
        states = [[batch, size] for size, _ in zip(formula.widths, self._states, strict=False)]
        y = [time, batch] if formula.y_axis == 0 else [batch, time]
        return [*shapes, *states], [[*y, formula.widths[0]], *states]

    def bound(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays of `arguments`, in that order, all of one float dtype."""
        return [*self.named(arrays).values()]

    def _new_layer(self, _: tuple[()], arrays: Sequence[Array]) -> Stack:
        spec, weights = self._formula.pack([computed(array) for array in arrays])
        return self._options.prepare(spec, weights)

    def _taken(self, given: Sequence[Array]) -> tuple[Stack, Array, tuple[Array, ...]]:
        """The layer, its input (T, N, I), its initial states."""
        data, ends = given[0], len(given) - len(self._states)
        x = _time_major(computed(data), self._formula.x_axis)
        states = tuple(computed(state)[None, None] for state in given[ends:])
        return self._layers((), given[1:ends]), x.reshape(*x.shape[:2], -1), states

    def run(self, given: Sequence[Array]) -> tuple[Array, ...]:
        """y with the time on its axis, then the final states (N, O)."""
        layer, x, states = self._taken(given)
        return self._results(*layer.run(x, states))

    def run_training(self, given: Sequence[Array]) -> tuple[tuple[Array, ...], Recorded | str]:
        """What `run` gives, and what `backward` needs; or the reason why there can be none."""
        layer, x, states = self._taken(given)
        try:
            y, finals, tape = layer.run_training(x, states)
        except UnsupportedError as error:
            return self.run(given), str(error)
        return self._results(y, finals), Recorded(layer, tape)

    def backward(
        self,
        given: Sequence[Array],
        recorded: Recorded | str,
        dy: Array,
        dstates: Sequence[Array],
    ) -> tuple[Array, ...]:
        """Gradients of `arguments` from those of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        layer, tape, _ = recorded
        dy = _time_major(computed(dy), self._formula.y_axis)
        grads = layer.backward(tape, dy, tuple(computed(d)[None, None] for d in dstates))
        weights = given[1 : len(given) - len(self._states)]
        (one,) = grads.layers
        dx = _time_major(data_of(grads.x), self._formula.x_axis).reshape(given[0].shape)
        return dx, *self._formula.gradients(one, weights), *(d[0, 0] for d in grads.state)

    def _results(self, y: object, finals: Sequence[Array]) -> tuple[Array, ...]:
        whole = _time_major(np.asarray(y), self._formula.y_axis)
        return whole, *(final[0, 0] for final in finals)


def _time_major(array: Array, axis: int) -> Array:
    """The array with the time in front, from ``axis``; or back again."""
    return array.swapaxes(0, 1) if axis else array
