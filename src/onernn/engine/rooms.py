"""Memory in which plans run: one thread at a time has a room, and rooms are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from onernn.backend.compiled.library import Kernels
from onernn.engine.encoded import Encoded
from onernn.ir.errors import LibraryError

_PATIENCE = 1000
"""Calls of a plan: a room that was too large for all of them is given back."""


class Room:
    """Memory for runs of a plan by one thread at a time, bound to the last sizes.

    It has grown to what the largest inputs take. ``is_full``: those of now are at least a quarter
    of these; ``was_needed``: so were those of a call since `Rooms` has looked.
    """

    def __init__(self, kernels: Kernels, encoded: Encoded, plan: Any, threads: int) -> None:
        ffi, lib = kernels.ffi, kernels.lib
        self.stacks = [stack.handle() for stack in encoded.stacks]
        self._handles = ffi.new("onernn_stack *[]", self.stacks)
        made = ffi.new("onernn_room **")
        if lib.onernn_room_new(plan, threads, self._handles, made):
            raise LibraryError("kernels: the system has no memory, or no thread, for a plan")
        self.handle = kernels.own(made[0], lib.onernn_room_free)
        self.sizes = lib.onernn_room_sizes(self.handle)
        self.places = lib.onernn_room_places(self.handle)
        self.told = ffi.new("int64_t[]", max(len(encoded.dims), 1))
        self.step = ffi.new("int32_t[2]")
        self.costs = ffi.new("int32_t[]", max(len(encoded.steps), 1))
        self.bound: list[int] | None = None
        self.largest, self.is_full, self.was_needed = 0, True, True
        self.shapes: list[Any] = []
        self.stopped = False

    def note(self, taken: int) -> None:
        """The bytes of inputs that it is about to be bound to."""
        self.largest = max(self.largest, taken)
        self.is_full = 4 * taken >= self.largest


class Rooms:
    """The rooms of a plan that no thread uses now; safe to share between threads.

    There are as many as threads have run the plan at the same time. A thread takes the one that was
    put back last, so that rooms which nobody needs stay where they are.
    """

    def __init__(self, new: Callable[[], Room]) -> None:
        self._new, self._calls = new, 0
        self._idle = deque([new()])  # what cannot be made is told now

    def take(self) -> Room:
        try:
            return self._idle.pop()
        except IndexError:
            return self._new()

    def put_back(self, room: Room) -> None:
        """After a call, however that ended."""
        if room.is_full:
            room.was_needed = True
        self._idle.append(room)
        self._calls += 1
        if self._calls % _PATIENCE == 0:
            self._drop()

    def _drop(self) -> None:
        """Drops the rooms that were too large for all calls since the last time, or not used."""
        for _ in range(len(self._idle)):
            try:
                room = self._idle.popleft()
            except IndexError:
                return  # other threads have taken them
            if room.was_needed:
                room.was_needed = False
                self._idle.append(room)
