"""What a live layer makes of its parameters: once, and again when their numbers have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from onernn.core.arrays import Array, same_bytes

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


def _copied(array: Array) -> Array:
    out = array.copy()
    out.flags.writeable = False  # then nobody copies it again
    return out
