"""MXNet's RNN operator on arrays in memory: what the plug-in runs, without MXNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.lower.recurrent import input_shapes, stack_of
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.adapters.mxnet.read import attributes as parse
from onernn.adapters.repacking import Repacked
from onernn.backend import Stack, Tape, open_backend
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.ragged import Ragged, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent
from onernn.reorders import mxnet
from onernn.runtime.session import unsupported

FLOATS = ("float16", "float32", "float64")
"""What arrays of a layer may be; float16 is computed in float32."""


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
    lengths: Array | None = None


class Recorded(NamedTuple):
    """What `LiveRnn.run_training` leaves for one backward: a tape, and the layer that wrote it."""

    layer: Stack
    tape: Tape


class LiveRnn:
    """One RNN operator, its attributes strings as in a symbol.

    Weights are packed once, and again when the parameters' numbers have changed: they are
    compared in every call, with a copy. Raises `UnsupportedError` for attributes that cannot run.
    """

    def __init__(self, attributes: Mapping[str, str], options: Options) -> None:
        self.stack = stack_of(SymbolNode("RNN", "rnn", attributes))
        self._attributes, self._options = dict(attributes), options
        self.state_names = ("state", "state_cell")[: 1 + (self.stack.mode == "lstm")]
        self.takes_lengths = parse.is_set(attributes, "use_sequence_length")
        gives_states = parse.is_set(attributes, "state_outputs")
        names = ["output", "state_output", "statecell_output"]
        self.outputs = names[: 1 + len(self.state_names) * gives_states]
        self.masks = self.takes_lengths and options.semantics == "documented"
        dropout = parse.number(attributes.get("p", "0"))
        if dropout > 0 and self.stack.layers > 1 and options.semantics == "documented":
            raise UnsupportedError(
                f"dropout p={dropout:g} between layers is drawn in training, which ours does not"
                " do: pass semantics='mxnet-cpu' to leave it out, as MXNet's own CPU does in"
                " silence, or make the layer with p=0 (in gluon dropout=0)"
            )
        self._layers = Repacked(self._new_layer)

    @property
    def arguments(self) -> list[str]:
        """The slots of the operator, in its order."""
        lengths = ["sequence_length"] if self.takes_lengths else []
        return ["data", "parameters", *self.state_names, *lengths]

    def bound(self, arrays: Sequence[Array]) -> Arguments:
        """The arrays of `arguments`, in that order; all but the lengths of one float dtype."""
        for name, array in zip(self.arguments, arrays, strict=True):
            if name != "sequence_length" and array.dtype.name not in FLOATS:
                raise UnsupportedError(f"{name}: {array.dtype}, only {', '.join(FLOATS)} are run")
            if name != "sequence_length" and array.dtype != arrays[0].dtype:
                raise ShapeError(f"{name}: expected {arrays[0].dtype} as data, got {array.dtype}")
        states = tuple(arrays[2 : 2 + len(self.state_names)])
        return Arguments(arrays[0], arrays[1], states, arrays[-1] if self.takes_lengths else None)

    def shapes(self, given: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Of the arguments and the outputs, from the data's; unknown sizes are 0 or -1."""
        if len(given[0]) != 3:
            return [*map(list, given)], [[]] * len(self.outputs)
        t, n, channels = given[0]
        shapes: Any = input_shapes(self.stack, t, n, channels)
        if channels <= 0:
            shapes["parameters"] = given[1]
        states = [list(shapes[name]) for name in self.state_names]
        y = [t, n, self.stack.recurrent * self.stack.directions]
        outputs = [y, *states][: len(self.outputs)]
        return [list(shapes[name]) for name in self.arguments], outputs

    def types(self, given: Sequence[type | None]) -> tuple[list[type], list[type]]:
        """Of the arguments and the outputs: those of the data, and of the lengths their own."""
        known = next((each for each in given if each is not None), np.float32)
        types: list[type] = [known] * len(given)
        if self.takes_lengths and (own := given[-1]) is not None:
            types[-1] = own
        return types, [known] * len(self.outputs)

    def layer(self, parameters: Array) -> Stack:
        """The layer of these parameters, a vector; the same one while the numbers stay."""
        return self._layers((), [parameters])

    def _new_layer(self, _: tuple[()], parameters: Sequence[Array]) -> Stack:
        flat = computed(parameters[0])
        mxnet.split(flat, self.stack)  # raises what is wrong with its length
        symbol = _symbol(self._attributes, self.arguments)
        graph = lower(symbol, {"parameters": flat}, self._options.semantics)
        if refusals := unsupported(graph):
            raise UnsupportedError(refusals[0].reason)
        (rnn,) = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
        engine = open_backend(self._options.backend, threads=self._options.threads)
        return engine.prepare(rnn.spec, rnn.weights, dtype=self._options.dtype)

    def run(self, given: Arguments) -> tuple[Array, ...]:
        """y (T, N, D*R), then the final states (L*D, N, R), in the dtype of the data."""
        layer = self.layer(given.parameters)
        y, states = layer.run(self._words(given), self._states(given))
        return self._results(given, y, states)

    def run_training(self, given: Arguments) -> tuple[tuple[Array, ...], Recorded | str]:
        """What `run` gives, and what `backward` needs; or the reason why there can be none."""
        layer = self.layer(given.parameters)
        try:
            y, states, tape = layer.run_training(self._words(given), self._states(given))
        except UnsupportedError as error:
            return self.run(given), str(error)
        return self._results(given, y, states), Recorded(layer, tape)

    def backward(
        self, given: Arguments, recorded: Recorded | str, dy: Array, dstates: Sequence[Array]
    ) -> tuple[Array, ...]:
        """Gradients of `arguments` from those of the outputs."""
        if isinstance(recorded, str):
            raise UnsupportedError(f"no gradients: {recorded}")
        layer, tape = recorded
        incoming = self._masked(given, computed(dy))
        ends = tuple(mxnet.state(computed(d), self.stack) for d in dstates) or None
        grads = layer.backward(tape, incoming, ends)
        dx = data_of(grads.x)
        if isinstance(grads.x, Ragged):
            dx = grads.x.to_padded(time=len(dy), time_major=True)
        plain = replace(layer.spec, cell_clip=None, cell_clip_nan=False)  # told by attributes
        flat = mxnet.join(mxnet.gradients_back(plain, grads.layers), self.stack)
        found = (dx, flat, *map(mxnet.state_back, grads.state))
        dtyped = tuple(array.astype(given.data.dtype, copy=False) for array in found)
        return (*dtyped, np.zeros_like(given.lengths)) if given.lengths is not None else dtyped

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


def _symbol(attributes: Mapping[str, str], arguments: Sequence[str]) -> Symbol:
    """The operator alone."""
    variables = [SymbolNode(VARIABLE, name) for name in arguments]
    inputs = tuple(Entry(at) for at in range(len(variables)))
    rnn = SymbolNode("RNN", "rnn", attributes, inputs)
    return Symbol((*variables, rnn), (Entry(len(variables)),), {"mxnet_version": ["int", 10901]})
