"""MXNet's RNN operator on arrays in memory: what the plug-in runs, without MXNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.mxnet.live import linear
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.lower.recurrent import input_shapes, stack_of
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.read import attributes as parse
from onernn.adapters.repacking import Repacked
from onernn.backend import Stack, State, Tape, open_backend
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.ragged import Ragged, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent
from onernn.core.weights import RnnWeights
from onernn.reorders import mxnet
from onernn.runtime.session import unsupported

FLOATS = ("float16", "float32", "float64")
"""What arrays of a layer may be; float16 is computed in float32."""

LINEAR = "linear_"
"""What attributes of a FullyConnected begin with that is part of an RNN operator."""


def computed(array: Array) -> Array:
    """The array as it is computed with."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


@dataclass(frozen=True)
class Options:
    """How recurrent operators compute, as `onernn.Session` and `onernn.load` say it."""

    semantics: str = "documented"
    dtype: str = "f32"
    backend: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.semantics not in ("documented", "mxnet-cpu"):
            raise ValueError(f"semantics: documented or mxnet-cpu, got {self.semantics!r}")
        # Now, and not when the first layer runs: that may be when Python is ending, in its exit.
        open_backend(self.backend, threads=self.threads)


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


class LiveRnn:
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
        self._layers = Repacked(self._new_layers)

    @property
    def arguments(self) -> list[str]:
        """The slots of the operator, in its order."""
        lengths = ["sequence_length"] if self.takes_lengths else []
        seed = ["seed"] if self.dropout else []
        return ["data", "parameters", *self.state_names, *lengths, *self.linear, *seed]

    def bound(self, arrays: Sequence[Array]) -> Arguments:
        """The arrays of `arguments`, in that order; all but the lengths of one float dtype."""
        for name, array in zip(self.arguments, arrays, strict=True):
            if name in ("sequence_length", "seed"):
                continue
            if array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if array.dtype != arrays[0].dtype:
                raise ShapeError(f"{name}: expected {arrays[0].dtype} as data, got {array.dtype}")
        named = dict(zip(self.arguments, arrays, strict=True))
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

    def types(self, given: Sequence[type | None]) -> tuple[list[type], list[type]]:
        """Of the arguments and the outputs: those of the data; lengths and seed have their own."""
        known = next((each for each in given if each is not None), np.float32)
        types: list[type] = [known] * len(given)
        for at, (name, own) in enumerate(zip(self.arguments, given, strict=True)):
            if name == "seed":
                types[at] = np.float32
            elif name == "sequence_length" and own is not None:
                types[at] = own
        return types, [known] * len(self.outputs)

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
            flat = linear.folded(flat, projection, self.stack)
        own = [name for name in self.arguments if name not in (*self.linear, "seed")]
        symbol = _symbol(self._attributes, own)
        graph = lower(symbol, {"parameters": flat}, self._options.semantics)
        if refusals := unsupported(graph):
            raise UnsupportedError(refusals[0].reason)
        (rnn,) = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
        engine = open_backend(self._options.backend, threads=self._options.threads)
        dtype, spec = self._options.dtype, rnn.spec
        if how == "whole":
            return [engine.prepare(spec, rnn.weights, dtype=dtype)]
        return [
            engine.prepare(spec.one_layer(spec.reads(at), spec.direction), weights, dtype=dtype)
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
        whole = dx.to_padded(time=len(dy), time_major=True) if isinstance(dx, Ragged) else dx
        spec = self.stack.spec(recorded[0].layer.spec.input_size)
        named, projection = mxnet.gradients_back(spec, layers), list[Array]()
        if given.linear:
            arrays = [computed(array) for array in (given.parameters, *given.linear)]
            named, projection = linear.unfolded(named, arrays[0], arrays[1:], self.stack)
        states = [np.concatenate(each) for each in zip(*begins, strict=True)]
        flat = mxnet.join(named, self.stack)
        found = [whole, flat, *map(mxnet.state_back, states), *projection]
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
        whole = y.to_padded(time=len(given.data), time_major=True) if isinstance(y, Ragged) else y
        results = (whole, *map(mxnet.state_back, states))
        return tuple(array.astype(given.data.dtype, copy=False) for array in results)


def _entropy(seed: Array | None) -> list[int]:
    """What seeds a generator: the bits of two numbers of MXNet's own generator."""
    return [] if seed is None else np.asarray(seed, np.float32).view(np.uint32).tolist()


def _scaled(y: Ragged | Array, mask: Array) -> Any:
    return y.with_data(y.data * mask) if isinstance(y, Ragged) else y * mask


def _symbol(attributes: Mapping[str, str], arguments: Sequence[str]) -> Symbol:
    """The operator alone."""
    variables = [SymbolNode(VARIABLE, name) for name in arguments]
    inputs = tuple(Entry(at) for at in range(len(variables)))
    rnn = SymbolNode("RNN", "rnn", attributes, inputs)
    return Symbol((*variables, rnn), (Entry(len(variables)),), {"mxnet_version": ["int", 10901]})
