"""Code for live layers, which are layers of a framework that onernn runs inside the framework.

A framework passes its parameters as arrays, with a function that returns the weights as views of
the arrays. Trainers write to parameters in place, and no framework records every such write. So
each call reads the parameters in place, and nothing that is computed from them is kept after the
call, unless they are frozen. If a layer cannot be read in place, `Repacked` compares all parameters
with a copy in each call.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from onernn.adapters.common.plugins import DISABLED
from onernn.backend import Stack, State, Tape, open_backend
from onernn.backend.auto import AutoBackend
from onernn.backend.compiled.backend import READ_IN_PLACE, KernelsBackend
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.ir.arrays import Array, same_bytes, seal
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import PartViews, RnnWeights, Weights, shapes_of

_log = logging.getLogger("onernn")


class SessionOptions(TypedDict, total=False):
    """The options that plug-ins have in common with `onernn.Session`."""

    dtype: str
    backend: str
    threads: int | None


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """The options of live layers, with the same meaning as in `onernn.Session`.

    Unsupported options raise an error immediately. If the first run of a layer raised the error,
    the framework would run the layer silently instead.
    """

    dtype: str = "f32"
    backend: str = "auto"
    threads: int | None = None
    frozen: bool = False
    """Whether layers keep the weights packed in their first call and ignore later changes."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnsupportedError(unknown(self.dtype))
        open_backend(self.backend, threads=self.threads)

    @property
    def strict(self) -> bool:
        """Whether onernn refuses layers that no fast backend can run, so that the framework runs
        them.
        """
        return False

    @property
    def may_leave(self) -> bool:
        """Whether the framework may run the layers that it runs faster than onernn. This is true if
        the caller requested no backend and no dtype.
        """
        return self.backend == "auto" and self.dtype == "f32"

    def prepare(self, spec: RnnSpec, weights: Weights) -> Stack:
        """Returns the stack of layers for the chosen backend and dtype."""
        engine = open_backend(self.backend, threads=self.threads)
        return engine.prepare(spec, weights, dtype=self.dtype, strict=self.strict)


@lru_cache(64)
def kernels_in_place(backend: str, dtype: str, threads: int | None) -> KernelsBackend | None:
    """Returns the kernels if they run layers of this dtype with weights in the framework's memory,
    else None.
    """
    if dtype not in READ_IN_PLACE:
        return None
    engine: Any = open_backend(backend, threads=threads)
    if isinstance(engine, AutoBackend):
        engine = engine.find_preferred(dtype)
    return engine if isinstance(engine, KernelsBackend) else None


@dataclass(frozen=True)
class Slower(Refusal):
    """The refusal of a layer that its framework runs, because measurements showed that the
    framework is faster.
    """


class Explained(NamedTuple):
    """A report on the recurrent layers of a model.

    ``replaced``: a line or a name for each layer that onernn runs. ``refusals``: the reasons why it
    does not run the remaining layers.
    """

    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]

    def text(self, host: str) -> str:
        """Returns a line for each layer; ``host``: the framework."""
        return "\n".join([*self.replaced, *(stays(host, refusal) for refusal in self.refusals)])

    @property
    def is_possible(self) -> bool:
        """Whether a layer was replaced, or could be replaced but is faster in its framework."""
        return bool(self.replaced) or any(isinstance(refusal, Slower) for refusal in self.refusals)


MOST_PLACES = 16
"""The number of parameter addresses that are remembered for each live layer."""

NOT_SEEN = "optimize() has not seen it"
NOT_CALLED = "it has not been called yet"
"""A reason why the framework runs a layer, like `NOT_SEEN`; the adapters of all frameworks use both
texts.
"""


def stays(host: str, refusal: Refusal) -> str:
    """Returns the message about a layer that its framework runs."""
    return f"{refusal.where or 'model'}: stays with {host}: {refusal.reason}"


def warn_of_left(host: str, refusals: Iterable[Refusal]) -> None:
    """Logs one warning about all layers that the framework runs; it contains each reason once."""
    where: dict[str, list[str]] = {}
    for refusal in refusals:
        if refusal.reason != DISABLED:  # the caller asked for this
            where.setdefault(refusal.reason, []).append(refusal.where or "model")
    if where:
        parts = [
            f"{places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}: {reason}"
            for reason, places in where.items()
        ]
        _log.warning("stays with %s: %s", host, "; ".join(parts))


_LEFT: WeakKeyDictionary[Any, dict[str, Refusal]] = WeakKeyDictionary()


def leave(layer: Any, host: str, reason: str, name: Callable[[], str]) -> None:
    """Warns that the framework runs calls of a layer, once per layer and reason."""
    left = _LEFT.get(layer)
    if left is None:
        left = _LEFT[layer] = {}
    if reason not in left:
        left[reason] = Refusal(reason, name())
        warn_of_left(host, [left[reason]])


def left_of(layer: Any) -> tuple[Refusal, ...]:
    """Returns the reasons why the framework ran calls of a layer."""
    return tuple(_LEFT.get(layer, {}).values())


def original(kind: Any) -> Any:
    """Returns the class that a layer had before `derive` replaced it."""
    return kind.__mro__[1] if "onernn_options" in vars(kind) else kind


def derive(kind: Any, options: Any, made_by: type[type] = type, **members: Any) -> type:
    """Returns a subclass of a framework's class, with the same name and with ``members`` in place
    of the class's own.
    """
    return made_by(kind.__name__, (kind,), {**members, "onernn_options": options})


def array_at(address: int, shape: Sequence[int], dtype: Any, owner: Any) -> Array:
    """Returns the array at an address, without a copy; the array keeps ``owner`` alive."""
    dtype = np.dtype(dtype)
    if not (count := math.prod(shape)):
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, dtype).reshape(shape)


def join_states(state: Array) -> Array:
    """Returns a state (L, D, N, O) in the frameworks' shape (L*D, N, O)."""
    return state.reshape(state.shape[0] * state.shape[1], *state.shape[2:])


def place_of(array: Array) -> tuple[Any, ...]:
    """Returns a key of an array's address, shape, strides and dtype."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def widen_float16(array: Array) -> Array:
    """Returns the array in the dtype of computation: float32 for float16."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


class Recorded(NamedTuple):
    """The record of a training run, which `LiveLayer.backward` uses once."""

    stack: Stack
    tape: Tape


class ViewedWeights:
    """Weights that are views of a framework's parameters.

    ``views(parameters)`` returns the specification and the weights of each layer and direction; a
    weight is None if it must be computed. Packing copies the views. Gradients are written to views
    of arrays that ``new(shape, dtype)`` makes.
    """

    def __init__(
        self,
        views: Callable[[Sequence[Array]], tuple[RnnSpec, list[PartViews]]],
        new: Callable[..., Array] = np.empty,
    ) -> None:
        self.views, self._new = views, new

    def pack(self, parameters: Sequence[Array]) -> tuple[RnnSpec, list[RnnWeights]]:
        """Returns the specification and the layers. Raises `ShapeError` for a wrong shape."""
        spec, parts = self.views(parameters)
        layers = list[dict[str, Array]]()
        for k in range(spec.layers):
            shapes = shapes_of(spec.one_layer(spec.reads(k), spec.direction))
            shapes["bias"] = shapes["bias"] if parts[0].bias else None
            real = parts[0].recurrent[0].dtype
            layers.append({name: np.empty(shape, real) for name, shape in shapes.items() if shape})
        for place, views in _places(spec, parts, layers):
            for view in views:
                if view.shape != place.shape:
                    raise ShapeError(f"expected a weight {place.shape}, got {view.shape}")
            place[...] = views[0]
            for view in views[1:]:
                place += view
        sealed = [{name: seal(array) for name, array in layer.items()} for layer in layers]
        return spec, [RnnWeights(**layer) for layer in sealed]

    def unpack(self, parameters: Sequence[Array], layers: Sequence[RnnWeights]) -> list[Array]:
        """Returns the gradients of the parameters from the gradients of the weights. If a weight is
        a sum of parameters, each gets the gradient of the sum.
        """
        gradients = [self._new(each.shape, layers[0].iter.dtype) for each in parameters]
        spec, parts = self.views(gradients)
        for place, views in _places(spec, parts, [layer.arrays for layer in layers]):
            for view in views:
                view[...] = place
        return gradients


def _places(
    spec: RnnSpec, parts: Sequence[PartViews], layers: Sequence[Mapping[str, Array]]
) -> Iterator[tuple[Array, Sequence[Array]]]:
    """Yields parts of the packed weights, each with the views whose sum it contains."""
    for at, part in enumerate(parts):
        k, d = divmod(at, spec.directions)
        arrays = {name: array[0, d] for name, array in layers[k].items()}
        for name, gates in (("layer", part.input), ("iter", part.recurrent)):
            for g, gate in enumerate(gates):
                yield arrays[name][:, g], [gate]
        yield from zip(arrays.get("bias", ()), part.bias, strict=True)
        if part.projection is not None:
            yield arrays["projection"], [part.projection]


class LiveLayer:
    """A recurrent layer whose weights are a framework's arrays; threads may share it.

    ``weights``: makes the weights from the parameters, see `ViewedWeights`. Methods raise
    `ShapeError` that names the array, and `UnsupportedError` if the chosen backend does not run the
    layer.
    """

    def __init__(self, weights: Any, options: LiveOptions) -> None:
        self._weights, self._options = weights, options
        self._compared = Repacked(self._new_stack)
        self._kept: dict[Any, Stack] = {}

    @cached_property
    def _kernels(self) -> KernelsBackend | None:
        chosen = self._options
        return kernels_in_place(chosen.backend, chosen.dtype, chosen.threads)

    def stack(self, where: Hashable, parameters: Callable[[], Sequence[Array]]) -> Stack:
        """Returns the stack that runs with the parameters; ``where`` is a key of their addresses.

        A stack that reads the parameters in place, or is frozen, is kept by this key. Otherwise all
        parameters are compared with a copy. A forked child makes a new stack, because it does not
        have its parent's threads.
        """
        process, frozen = os.getpid(), self._options.frozen
        if (stack := self._kept.get((process, where))) is not None:
            return stack
        arrays = parameters()
        made = self._new_stack(process, arrays) if frozen else self._reading(process, arrays)
        if made is None:
            return self._compared(process, arrays)
        if len(self._kept) >= MOST_PLACES and not frozen:
            self._kept.clear()
        return self._kept.setdefault((process, where), made)

    def _reading(self, process: int, parameters: Sequence[Array]) -> Stack | None:
        if self._kernels is None or parameters[0].dtype == np.float16:
            return None
        if (views := self._weights.views(parameters)) is None:
            return None
        spec, parts = views
        kept = [(key, stack) for key, stack in [*self._kept.items()] if stack.spec == spec]
        like = next((stack for key, stack in kept if key[0] == process), None)
        with suppress(UnsupportedError):  # the elements of a bias are not adjacent
            return self._kernels.live_stack(spec, parts, self._options.dtype, like)
        return None

    def _new_stack(self, _: int, parameters: Sequence[Array]) -> Stack:
        return self._options.prepare(*self._weights.pack([*map(widen_float16, parameters)]))

    def run_training(
        self, parameters: Sequence[Array], words: Ragged | Array, begin: State | None
    ) -> tuple[Ragged | Array, State, Recorded]:
        """Runs forward. Returns y, the final states (L, D, N, O), and the record for `backward`."""
        if self._kernels is None or parameters[0].dtype == np.float64:
            stack = self._compared(os.getpid(), parameters)
        else:
            spec, layers = self._weights.pack([*map(widen_float16, parameters)])
            stack = self._kernels.training_stack(spec, layers, self._options.dtype)
        y, ends, tape = stack.run_training(words, begin)
        if tape.why and self._options.strict:
            raise UnsupportedError(tape.why)
        return y, ends, Recorded(stack, tape)

    def backward(
        self,
        recorded: Recorded,
        dy: Ragged | Array | None,
        dends: State | None,
        parameters: Sequence[Array],
    ) -> tuple[Ragged | Array, State, list[Array]]:
        """Returns the gradients of x, the states and the parameters; None for ``dy`` or ``dends``
        means zeros.
        """
        result = recorded.stack.backward(recorded.tape, dy, dends)
        parameters = [*map(widen_float16, parameters)]
        return result.x, result.state, self._weights.unpack(parameters, result.layers)


Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Repacked(Generic[Key, Result]):
    """A cache of ``make(key, parameters)``, valid until the values of the parameters change.

    Every call compares all parameters with a copy, because trainers change them in place. With
    ``constant`` the values of the first call are used. Threads may share the cache.
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
                self._copies = [seal(array.copy()) for array in parameters]
            if key not in self._results:
                self._results[key] = self._make(key, self._copies)
            return self._results[key]

    def _holds(self, parameters: Sequence[Array]) -> bool:
        return len(self._copies) == len(parameters) and all(
            map(same_bytes, self._copies, parameters)
        )
