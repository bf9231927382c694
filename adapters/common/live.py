"""What live layers of all frameworks share: options, packed parameters, calls forward and backward.

A framework brings its arrays as a `Call`, and its functions: ``views`` finds the weights in its
parameters, ``pack`` copies them, ``unpack`` makes gradients of the parameters from those of the
weights. Trainers write to parameters in place, by ways that no framework counts. So each call reads
them where they are; nothing that is made of them outlives the call, unless they are frozen. If a
layer cannot be read in place, `Repacked` compares all parameters with a copy in each call.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from onernn.adapters.common.plugins import DISABLED
from onernn.backend import Stack, State, Tape, open_backend
from onernn.backend.auto import AutoBackend
from onernn.backend.compiled.backend import READ_IN_PLACE, KernelsBackend
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.ir.arrays import Array, same_bytes
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, Weights, layers_of

_log = logging.getLogger("onernn")


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How live layers compute: options as of `onernn.Session`.

    Unsupported options are refused at once: later the framework would run the layer silently, and
    the first run may be while Python exits.
    """

    dtype: str = "f32"
    backend: str = "auto"
    threads: int | None = None
    frozen: bool = False
    """Whether layers keep what they pack in their first call, and see no later change."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnsupportedError(unknown(self.dtype))
        open_backend(self.backend, threads=self.threads)

    @property
    def strict(self) -> bool:
        """Whether a layer that no fast backend runs is refused, so that the framework runs it."""
        return False

    @property
    def may_leave(self) -> bool:
        """Whether the framework may run what it is faster at: no kernel or type was asked for."""
        return self.backend == "auto" and self.dtype == "f32"

    def prepare(self, spec: RnnSpec, weights: Weights) -> Stack:
        """The layer on the chosen backend, in the chosen dtype."""
        engine = open_backend(self.backend, threads=self.threads)
        return engine.prepare(spec, weights, dtype=self.dtype, strict=self.strict)


@lru_cache(64)
def kernels_in_place(backend: str, dtype: str, threads: int | None) -> KernelsBackend | None:
    """The kernels, if they run layers of this dtype and each call can read a layer's weights where
    its framework keeps them."""
    if dtype not in READ_IN_PLACE:
        return None
    engine: Any = open_backend(backend, threads=threads)
    if isinstance(engine, AutoBackend):
        engine = engine.preferred(dtype)
    return engine if isinstance(engine, KernelsBackend) else None


@dataclass(frozen=True)
class Slower(Refusal):
    """A layer that stays with its framework, which was measured as faster."""


class Explained(NamedTuple):
    """The layers that onernn runs, a line or a name each, and why not the others."""

    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]

    def text(self, host: str) -> str:
        """A line for each layer; ``host``: the framework."""
        return "\n".join([*self.replaced, *(stays(host, refusal) for refusal in self.refusals)])

    @property
    def is_possible(self) -> bool:
        """Whether some layer was replaced, or could be but is faster in its framework."""
        return bool(self.replaced) or any(isinstance(refusal, Slower) for refusal in self.refusals)


MOST_PLACES = 16
"""So many addresses of parameters are remembered for each live layer."""

NOT_SEEN = "optimize() has not seen it"
NOT_CALLED = "it has not been called yet"
"""Reasons that all frameworks share for layers that stay."""


def stays(host: str, refusal: Refusal) -> str:
    """The message about a layer that its framework runs."""
    return f"{refusal.where or 'model'}: stays with {host}: {refusal.reason}"


def warn_of_left(host: str, refusals: Iterable[Refusal]) -> None:
    """One warning of all layers that a framework keeps, each reason once."""
    where: dict[str, list[str]] = {}
    for refusal in refusals:
        if refusal.reason != DISABLED:  # as the caller wants it
            where.setdefault(refusal.reason, []).append(refusal.where or "model")
    if where:
        parts = [
            f"{places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}: {reason}"
            for reason, places in where.items()
        ]
        _log.warning("stays with %s: %s", host, "; ".join(parts))


_LEFT: WeakKeyDictionary[Any, dict[str, Refusal]] = WeakKeyDictionary()


def leave(layer: Any, host: str, reason: str, name: Callable[[], str]) -> None:
    """Warns of a call that stays with the framework, once for each reason."""
    left = _LEFT.get(layer)
    if left is None:
        left = _LEFT[layer] = {}
    if reason not in left:
        left[reason] = Refusal(reason, name())
        warn_of_left(host, [left[reason]])


def left_of(layer: Any) -> tuple[Refusal, ...]:
    """Why calls of a layer stayed with the framework."""
    return tuple(_LEFT.get(layer, {}).values())


def original(kind: Any) -> Any:
    """The class that a layer had before it became `derived`."""
    return kind.__mro__[1] if "onernn_options" in vars(kind) else kind


def derived(kind: Any, options: Any, made_by: type[type] = type, **members: Any) -> type:
    """A class like a framework's, of the same name, in which these members are replaced."""
    return made_by(kind.__name__, (kind,), {**members, "onernn_options": options})


def array_at(address: int, shape: Sequence[int], dtype: Any, owner: Any) -> Array:
    """The numbers at an address, without a copy; ``owner`` lives as long as the array does."""
    dtype = np.dtype(dtype)
    if not (count := math.prod(shape)):
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, dtype).reshape(shape)


def joined_states(state: Array) -> Array:
    """A state (L, D, N, O) as frameworks have it: (L*D, N, O)."""
    return state.reshape(state.shape[0] * state.shape[1], *state.shape[2:])


def computed(array: Array) -> Array:
    """The array in the dtype of computation: float32 for float16."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


class Call(NamedTuple):
    """The arguments of a layer's call, in a framework's axes.

    ``x``: (T, N, I), or (N, T, I) where not ``time_major``. ``states``: the initial ones,
    (L*D, N, O) each. ``lengths``: how many steps of each sequence there are; None: all.
    """

    x: Array
    states: Sequence[Array]
    parameters: Sequence[Array] = ()
    lengths: Array | None = None
    time_major: bool = True

    def batch(self, x: Array) -> Ragged | Array:
        """An array in the axes of x as (T, N, ...), without the steps behind the lengths."""
        if self.lengths is not None:
            lengths = self.lengths.astype(np.int64)
            return Ragged.from_padded(computed(x), lengths, time_major=self.time_major)
        return computed(x) if self.time_major else computed(x).swapaxes(0, 1)

    def padded(self, y: Ragged | Array) -> Array:
        """The inverse of `batch`, in the dtype of x; zeros behind the lengths."""
        if isinstance(y, Ragged):
            time = self.x.shape[0 if self.time_major else 1]
            y = y.to_padded(time=time, time_major=self.time_major)
        elif not self.time_major:
            y = y.swapaxes(0, 1)
        return y.astype(self.x.dtype, copy=False)


class Part(NamedTuple):
    """A stack, or one layer of it, that ran forward; ``mask`` multiplied its input."""

    stack: Stack
    tape: Tape
    mask: Array | None


class Recorded(NamedTuple):
    """The record of a training run for one backward. ``zeros``: like each of its results."""

    parts: list[Part]
    call: Call
    zeros: list[Array]


class LiveLayer:
    """A recurrent layer on a framework's arrays; may be shared between threads.

    ``pack(parameters)``: its specification and weights. ``views(parameters)``: its specification,
    and the weights of each layer and direction as views of the parameters; None if these have to be
    computed. ``unpack(parameters, layers)``: gradients of the parameters, from those of the weights
    of each layer. ``state``: how messages call an initial state. Methods raise `ShapeError` naming
    the array, and `UnsupportedError` for what the chosen backend does not run.
    """

    def __init__(
        self,
        pack: Callable[[Sequence[Array]], tuple[RnnSpec, Weights]],
        unpack: Callable[[Sequence[Array], Sequence[RnnWeights]], list[Array]],
        options: LiveOptions,
        state: str = "state",
        views: Callable[[Sequence[Array]], tuple[RnnSpec, list[PartViews]] | None] | None = None,
    ) -> None:
        self._pack, self._unpack, self._options, self._state = pack, unpack, options, state
        self._views = views
        self._stacks = Repacked(self._new_stacks)
        self._in_place: dict[Any, Stack] = {}
        self._frozen: dict[Any, list[Stack]] = {}

    @cached_property
    def _kernels(self) -> KernelsBackend | None:
        chosen = self._options
        if chosen.frozen:
            return None
        return kernels_in_place(chosen.backend, chosen.dtype, chosen.threads)

    def stack(self, parameters: Sequence[Array]) -> Stack:
        """The stack of these parameters.

        A forked child makes its own: it lacks its parent's threads.
        """
        return self._reading(parameters) or self._packed(parameters, False)[0]

    def _reading(self, parameters: Sequence[Array]) -> Stack | None:
        """The stack that reads these parameters in place; None if there is none.

        It is made for their addresses only, so it is kept while these stay.
        """
        kernels = self._kernels
        if kernels is None or self._views is None or parameters[0].dtype == np.float16:
            return None
        where = os.getpid(), kernels.threads, *map(_place, parameters)
        if (known := self._in_place.get(where)) is not None:
            return known
        if (views := self._views(parameters)) is None:
            return None
        spec, parts = views
        known = next(
            (s for k, s in [*self._in_place.items()] if (k[:2], s.spec) == (where[:2], spec)), None
        )
        with suppress(UnsupportedError):  # a bias with gaps
            stack = kernels.live_stack(spec, parts, self._options.dtype, known)
            if len(self._in_place) >= MOST_PLACES:
                self._in_place.clear()
            return self._in_place.setdefault(where, stack)
        return None

    def _training(self, parameters: Sequence[Array], apart: bool) -> list[Stack]:
        """Stacks for a training run: all layers or, if ``apart``, one each."""
        if self._kernels is None or parameters[0].dtype == np.float64:
            return self._packed(parameters, apart)
        prepare = partial(self._kernels.training_stack, dtype=self._options.dtype)
        return self._each(self._pack([*map(computed, parameters)]), apart, prepare)

    def _packed(self, parameters: Sequence[Array], apart: bool) -> list[Stack]:
        """Stacks that are kept: while the numbers stay or, if frozen, while their addresses do."""
        key = os.getpid(), apart
        if not self._options.frozen:
            return self._stacks(key, parameters)
        where = *key, *map(_place, parameters)
        if where not in self._frozen:
            self._frozen[where] = self._new_stacks(key, parameters)
        return self._frozen[where]

    def _new_stacks(self, key: tuple[int, bool], parameters: Sequence[Array]) -> list[Stack]:
        packed = self._pack([*map(computed, parameters)])
        return self._each(packed, key[1], self._options.prepare)

    def _each(
        self, packed: tuple[RnnSpec, Weights], apart: bool, prepare: Callable[..., Stack]
    ) -> list[Stack]:
        spec, weights = packed
        if not apart:
            return [prepare(spec, weights)]
        return [
            prepare(spec.one_layer(spec.reads(k), spec.direction), layer)
            for k, layer in enumerate(layers_of(spec, weights))
        ]

    def run(self, call: Call) -> list[Array]:
        """y in the axes of x, then the final states (L*D, N, O), in the dtype of x."""
        stack = self.stack(call.parameters)
        y, ends = stack.run(call.batch(call.x), self._states([stack], call, call.states))
        return _results(call, y, ends)

    def run_training(
        self, call: Call, mask: Callable[[tuple[int, ...]], Array] | None = None
    ) -> tuple[list[Array], Recorded]:
        """The results of `run`, and the record for `backward`.

        ``mask(shape)``: factors for the words between two layers, as of dropout.
        """
        stacks = self._training(call.parameters, mask is not None)
        begins, y = self._states(stacks, call, call.states), call.batch(call.x)
        parts, ends = list[Part](), []
        for k, stack in enumerate(stacks):
            factor = mask(data_of(y).shape) if mask and k else None
            begin = tuple(state[k : k + stack.spec.layers] for state in begins)
            y, end, tape = stack.run_training(_scaled(y, factor), begin)
            if tape.why and self._options.strict:
                raise UnsupportedError(tape.why)
            parts.append(Part(stack, tape, factor))
            ends.append(end)
        results = _results(call, y, _joined(ends))
        zeros = [np.broadcast_to(result.dtype.type(0), result.shape) for result in results]
        # Later changes of x and lengths do not reach the record.
        lengths = None if call.lengths is None else call.lengths.copy()
        frame = np.empty((*call.x.shape[:-1], 0), call.x.dtype)
        left = call._replace(x=frame, states=(), parameters=(), lengths=lengths)
        return results, Recorded(parts, left, zeros)

    def backward(
        self, recorded: Recorded, grads: Sequence[Array | None], parameters: Sequence[Array] = ()
    ) -> list[Array]:
        """Gradients of x, the states and the parameters from those of the results, None: zeros."""
        call, stacks = recorded.call, [part.stack for part in recorded.parts]
        pairs = zip_longest(grads, recorded.zeros)
        dy, *dends = [zeros if grad is None else grad for grad, zeros in pairs]
        dstates, dx = self._states(stacks, call, dends), call.batch(dy)
        begins, layers, k = list[State](), list[RnnWeights](), len(dstates[0])
        for stack, tape, mask in reversed(recorded.parts):
            k -= stack.spec.layers
            own = tuple(state[k : k + stack.spec.layers] for state in dstates)
            result = stack.backward(tape, dx, own)
            dx = _scaled(result.x, mask)
            begins.insert(0, result.state)
            layers[:0] = result.layers
        weights = self._unpack([*map(computed, parameters)], layers)
        return [*_results(call, dx, _joined(begins)), *weights]

    def _states(
        self, stacks: Sequence[Stack], call: Call, states: Sequence[Array]
    ) -> tuple[Array, ...]:
        """States (L*D, N, O) as (L, D, N, O)."""
        spec, layers = stacks[0].spec, sum(stack.spec.layers for stack in stacks)
        batch = call.x.shape[1 if call.time_major else 0]
        for array, width in zip(states, (spec.recurrent_size, spec.hidden_size), strict=False):
            expected = (layers * spec.directions, batch, width)
            if array.shape != expected:
                raise ShapeError(f"{self._state}: expected {expected}, got {array.shape}")
        shape = layers, spec.directions, batch
        return tuple(computed(array).reshape(*shape, array.shape[-1]) for array in states)


def _place(array: Array) -> tuple[Any, ...]:
    """What tells where the numbers of an array are."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def _results(call: Call, y: Ragged | Array, states: Sequence[Array]) -> list[Array]:
    ends = [joined_states(state).astype(call.x.dtype, copy=False) for state in states]
    return [call.padded(y), *ends]


def _joined(states: Sequence[Sequence[Array]]) -> list[Array]:
    """The states of a stack from those of its parts."""
    return [
        each[0] if len(each) == 1 else np.concatenate(each) for each in zip(*states, strict=True)
    ]


def _scaled(y: Ragged | Array, mask: Array | None) -> Any:
    if mask is None:
        return y
    return y.with_data(y.data * mask) if isinstance(y, Ragged) else y * mask


Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Repacked(Generic[Key, Result]):
    """Caches ``make(key, parameters)`` until the parameters' numbers change.

    Every call compares all of them with a copy, because trainers change parameters in place. If
    they are ``constant``, those of the first call count. Threads may share it.
    """

    def __init__(
        self, make: Callable[[Key, Sequence[Array]], Result], *, constant: bool = False
    ) -> None:
        self._make, self._constant, self._lock = make, constant, Lock()
        self._copies: list[Array] = []
        self._results: dict[Key, Result] = {}

    def __call__(self, key: Key, parameters: Sequence[Array]) -> Result:
        with self._lock:
            if not (self._constant and self._results) and not self._holds(parameters):
                self._results.clear()
                self._copies = [_copied(array) for array in parameters]
            if key not in self._results:
                self._results[key] = self._make(key, self._copies)
            return self._results[key]

    def _holds(self, parameters: Sequence[Array]) -> bool:
        return len(self._copies) == len(parameters) and all(
            map(same_bytes, self._copies, parameters)
        )


def _copied(array: Array) -> Array:
    out = array.copy()
    out.flags.writeable = False  # then it is not copied again
    return out
