"""Parts of Paddle's programs and layers of paddle.nn on arrays in memory, without Paddle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onernn.adapters.paddle.live.replaceable_parts import ReplaceablePart
from onernn.adapters.repacking import Repacked
from onernn.backend import Stack, Tape, open_backend
from onernn.backend.onednn.precision import DTYPES
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.ragged import Ragged
from onernn.core.records import dataclass
from onernn.core.spec import RnnSpec
from onernn.reorders import paddle
from onernn.runtime.session import Session

Batch = Ragged | Array


@dataclass(frozen=True)
class Options:
    """How recurrent layers compute, as `onernn.Session` says it.

    Raises what cannot be at once: at run time, what ours refuses stays with Paddle.
    """

    dtype: str = "f32"
    backend: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnsupportedError(f"dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        open_backend(self.backend, threads=self.threads)

    @property
    def strict(self) -> bool:
        """What our backends lack stays with Paddle, whose kernels are faster than NumPy."""
        return self.backend != "reference"

    @property
    def may_leave(self) -> bool:
        """Whether Paddle may run what it is faster for: nobody asked for a kernel or a type."""
        return self.backend == "auto" and self.dtype == "f32"


class LivePart:
    """A part of a program, made ready to run for parameters as they are at each call.

    ``constant``: as they are at the first one, as a predictor's stay.
    """

    def __init__(self, part: ReplaceablePart, options: Options, *, constant: bool = False) -> None:
        self.part, self.constant, self._options = part, constant, options
        self._sessions = Repacked(self._new_session, constant=constant)

    def session(self, depths: Sequence[int], parameters: Sequence[Array]) -> Session:
        """For inputs of so many LoD levels. Raises `UnsupportedError` where that cannot run."""
        return self._sessions(tuple(depths), parameters)

    def run(self, data: Sequence[Batch], parameters: Sequence[Array]) -> list[Batch]:
        """The part's outputs for its data and parameters, in its order."""
        depths = [len(x.outer) + 1 if isinstance(x, Ragged) else 0 for x in data]
        session = self.session(depths, parameters)
        outputs = session.run(dict(zip(self.part.data, data, strict=True)))
        return [outputs[value.name] for value in session.graph.outputs]

    def _new_session(self, depths: tuple[int, ...], parameters: Sequence[Array]) -> Session:
        named = dict(zip(self.part.parameters, parameters, strict=True))
        graph = self.part.graph(depths, named)
        if graph.notes:  # that may be said of a file, but this program is right beside it
            raise UnsupportedError("; ".join(graph.notes))
        chosen = self._options
        return Session(graph, chosen.dtype, chosen.threads, chosen.backend, chosen.strict)


class LayerKind(NamedTuple):
    """What a layer of paddle.nn is, but for its numbers."""

    mode: str
    input_size: int
    hidden_size: int
    layers: int
    directions: int

    @property
    def spec(self) -> RnnSpec:
        return RnnSpec(
            paddle.RNN_CELLS[self.mode][0],
            self.input_size,
            self.hidden_size,
            layers=self.layers,
            direction="bidirectional_concat" if self.directions == 2 else "left2right",
        )


class Arguments(NamedTuple):
    """What a layer is called with: x (T, N, I) or (N, T, I), states (L*D, N, O), WeightList."""

    x: Array
    states: tuple[Array, ...]
    weights: Sequence[Array]
    lengths: Array | None = None
    time_major: bool = False

    @property
    def time(self) -> int:
        return self.x.shape[0 if self.time_major else 1]

    def words(self) -> Batch:
        """x as (T, N, I), or without what stands behind the lengths."""
        if self.lengths is None:
            return self.x if self.time_major else self.x.swapaxes(0, 1)
        lengths = self.lengths.astype(np.int64)
        return Ragged.from_padded(self.x, lengths, time_major=self.time_major)

    def padded(self, y: Batch) -> Array:
        """y in the axes of x, zeros behind the lengths."""
        if isinstance(y, Ragged):
            return y.to_padded(time=self.time, time_major=self.time_major)
        return y if self.time_major else y.swapaxes(0, 1)


class Recorded(NamedTuple):
    """What `LiveLayer.run_training` leaves for one backward: a tape, and its layer."""

    layer: Stack
    tape: Tape


class LiveLayer:
    """SimpleRNN, LSTM or GRU of paddle.nn. Raises `UnsupportedError` for what cannot run."""

    def __init__(self, kind: LayerKind, options: Options) -> None:
        self.kind, self._options = kind, options
        self._layers = Repacked(self._new_layer)

    def layer(self, weights: Sequence[Array]) -> Stack:
        """The layer of these weights; the same one while the numbers stay.

        A forked child makes its own: threads of its parent's are not there.
        """
        return self._layers(os.getpid(), weights)

    def run(self, given: Arguments) -> tuple[Array, ...]:
        """y with the axes of x, then the final states (L*D, N, O)."""
        y, states = self.layer(given.weights).run(given.words(), self._states(given))
        return (given.padded(y), *map(_rows, states))

    def run_training(self, given: Arguments) -> tuple[tuple[Array, ...], Recorded]:
        """What `run` gives, and what `backward` needs."""
        layer = self.layer(given.weights)
        y, states, tape = layer.run_training(given.words(), self._states(given))
        if tape.why and self._options.strict:
            raise UnsupportedError(tape.why)
        return (given.padded(y), *map(_rows, states)), Recorded(layer, tape)

    def backward(
        self, recorded: Recorded, outputs: Arguments
    ) -> tuple[Array, list[Array], list[Array]]:
        """Gradients of x, of the states and of the weights, from those of the outputs.

        ``outputs`` holds the gradient of y as x, and those of the final states.
        """
        layer, tape = recorded
        grads = layer.backward(tape, outputs.words(), self._states(outputs))
        weights = paddle.rnn_gradients_back(grads.layers, self.kind.mode)
        return outputs.padded(grads.x), [*map(_rows, grads.state)], weights

    def _new_layer(self, _: int, weights: Sequence[Array]) -> Stack:
        kind, chosen = self.kind, self._options
        stack = paddle.rnn_weights(weights, kind.mode, kind.layers, kind.directions)
        engine = open_backend(chosen.backend, threads=chosen.threads)
        return engine.prepare(kind.spec, stack, dtype=chosen.dtype, strict=chosen.strict)

    def _states(self, given: Arguments) -> tuple[Array, ...]:
        kind, batch = self.kind, given.x.shape[1 if given.time_major else 0]
        rows = (kind.layers * kind.directions, batch, kind.hidden_size)
        for array in given.states:
            if array.shape != rows:
                raise ShapeError(f"initial_states: expected {rows}, got {array.shape}")
        shape = (kind.layers, kind.directions, batch, kind.hidden_size)
        return tuple(array.reshape(shape) for array in given.states)


def _rows(state: Array) -> Array:
    return state.reshape(state.shape[0] * state.shape[1], *state.shape[2:])
