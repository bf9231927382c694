"""What live layers share: how they compute, and what they make of their parameters.

Parameters are packed once, and again when their numbers have changed. Both classes compare memory
with a copy: trainers write in place, by ways that no framework counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from onernn.backend import Stack, open_backend
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.ir.arrays import Array, same_bytes
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Weights


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How live layers compute, as `onernn.Session` says it.

    What cannot be is refused at once: later the framework would run the layer without a word, and
    the first run may be when Python is ending, in its exit.
    """

    dtype: str = "f32"
    backend: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnsupportedError(unknown(self.dtype))
        open_backend(self.backend, threads=self.threads)

    def prepare(self, spec: RnnSpec, weights: Weights, *, strict: bool = False) -> Stack:
        """The layer on the chosen backend, in the chosen dtype."""
        engine = open_backend(self.backend, threads=self.threads)
        return engine.prepare(spec, weights, dtype=self.dtype, strict=strict)


def original(kind: Any) -> Any:
    """The class that a layer had before it became `derived`."""
    return kind.__mro__[1] if "onernn_options" in vars(kind) else kind


def derived(kind: Any, options: LiveOptions, **methods: Any) -> type:
    """A class like a framework's, of the same name, of which these methods are ours."""
    return type(kind.__name__, (kind,), {**methods, "onernn_options": options})


def joined_states(state: Array) -> Array:
    """A state (L, D, N, O) as frameworks have it: (L*D, N, O)."""
    return state.reshape(state.shape[0] * state.shape[1], *state.shape[2:])


Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class Repacked(Generic[Key, Made]):
    """Keeps what ``make(key, parameters)`` gave, for as long as the parameters' numbers stay.

    Every call compares them with a copy, because trainers change parameters in place. Where they
    are ``constant``, those of the first call count. Threads may share it.
    """

    def __init__(
        self, make: Callable[[Key, Sequence[Array]], Made], *, constant: bool = False
    ) -> None:
        self._make, self._constant, self._lock = make, constant, Lock()
        self._copies: list[Array] = []
        self._made: dict[Key, Made] = {}

    def __call__(self, key: Key, parameters: Sequence[Array]) -> Made:
        with self._lock:
            if not (self._constant and self._made) and not self._holds(parameters):
                self._made.clear()
                self._copies = [_copied(array) for array in parameters]
            if key not in self._made:
                self._made[key] = self._make(key, self._copies)
            return self._made[key]

    def _holds(self, parameters: Sequence[Array]) -> bool:
        return len(self._copies) == len(parameters) and all(
            map(same_bytes, self._copies, parameters)
        )


class Watched:
    """Memory beside a copy of it, which tells whether somebody wrote there.

    For calls of microseconds, which cannot compare all of it: each compares some of every part, so
    that the next call finds an update of most numbers, and later ones find any.
    """

    ALL = 1024
    """So many turns in a row compare every byte: see ``onernn_unchanged``."""

    def __init__(self, memory: Sequence[tuple[int, int]]) -> None:
        """``memory``: addresses and bytes, valid whenever they are compared."""
        self._copies = copies = [_bytes_at(*each) for each in memory]
        self._turn = 0
        try:
            kernels = load_kernels()
        except LibraryError:  # each call compares all
            self._compare: Any = lambda *_: copies == [_bytes_at(*each) for each in memory]
            return
        ffi = kernels.ffi
        pairs = zip(memory, map(ffi.from_buffer, copies), strict=True)
        told = [(ffi.cast("void *", at), copy, size) for (at, size), copy in pairs]
        told = ffi.new("onernn_copy[]", told)
        self._compare = partial(kernels.lib.onernn_unchanged, told, len(copies))

    def unchanged(self, turns: int) -> bool:
        """Whether the next ``turns`` of `ALL` slices of each part are as they were."""
        turn = self._turn
        self._turn = turn + turns
        return bool(self._compare(turn, turns))


def _bytes_at(address: int, count: int) -> bytes:
    return bytes((ctypes.c_char * count).from_address(address))


def _copied(array: Array) -> Array:
    out = array.copy()
    out.flags.writeable = False  # then nobody copies it again
    return out
