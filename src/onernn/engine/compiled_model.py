"""Runs compiled files: no model is read, typed or packed here, the library does all of it."""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.backend.compiled.library import load_kernels
from onernn.backend.process import UsualNeed, borrow, team_of, usable_threads
from onernn.ir.arrays import Array
from onernn.ir.budget import STEPS, return_freed_memory, usable_memory
from onernn.ir.errors import (
    BudgetError,
    LibraryError,
    ModelFormatError,
    OnernnError,
    ShapeError,
    UnsupportedError,
)
from onernn.ir.feeds import Feed, checked_feed
from onernn.ir.graph import Value
from onernn.ir.ragged import Ragged, data_of


class _Stream:
    """A stream of the library, for one thread at a time."""

    def __init__(self, model: CompiledModel) -> None:
        self._model, self._ffi, self._lib = model, model.ffi, model.lib
        self.largest = 0  # the number of elements of the largest array that it ran on
        handle = self._ffi.new("onernn_stream **")
        model.check(self._lib.onernn_stream_open(model.handle, handle))
        self._stream = self._ffi.gc(handle[0], self._lib.onernn_stream_close)
        model.check(self._lib.onernn_limit(self._stream, *model.limits))

    def reset(self) -> None:
        """Back to the first states."""
        self._model.check(self._lib.onernn_reset(self._stream))

    def run(self, feed: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs by name; states that the feed leaves out are those of the run
        before.
        """
        ffi, lib, model, stream = self._ffi, self._lib, self._model, self._stream
        buffers = []
        for number, value in enumerate(model.inputs):
            data = feed.get(value.name)
            if data is None:
                model.check(lib.onernn_give(stream, number, ffi.NULL, ffi.NULL))
                continue
            array = np.require(data_of(data), requirements=("C", "A"))
            memory, dims = ffi.from_buffer(array), ffi.new("int64_t[]", array.shape)
            buffers.append(memory)
            model.check(lib.onernn_give(stream, number, memory, dims))
            if isinstance(data, Ragged):
                for level, offsets in enumerate((*data.outer, data.offsets)):
                    memory = ffi.from_buffer("int64_t[]", offsets)
                    buffers.append(memory)
                    of = stream, number, level, memory, len(offsets) - 1
                    model.check(lib.onernn_give_offsets(*of))
        model.check(lib.onernn_prepare(stream))
        result: dict[str, Any] = {}
        for number, value in enumerate(model.outputs, len(model.inputs)):
            shape = self._shape(number, value)
            memory, size = ffi.NULL, 0
            if -1 not in shape:
                result[value.name] = array = np.empty(shape, value.dtype)
                memory, size = ffi.from_buffer(array), array.nbytes
                buffers.append(memory)
            model.check(lib.onernn_take(stream, number, memory, size))
        model.check(lib.onernn_run(stream))
        return {
            value.name: self._output(number, value, result.get(value.name))
            for number, value in enumerate(model.outputs, len(model.inputs))
        }

    def _shape(self, number: int, value: Value) -> tuple[int, ...]:
        axes = range(len(value.shape or ()))
        return tuple([self._lib.onernn_size(self._stream, number, axis) for axis in axes])

    def _output(self, number: int, value: Value, array: Array | None) -> Ragged | Array:
        ffi, lib, stream = self._ffi, self._lib, self._stream
        if array is None:
            array = np.empty(self._shape(number, value), value.dtype)
            ffi.memmove(ffi.from_buffer(array), lib.onernn_numbers(stream, number), array.nbytes)
        levels = []
        for level in range(value.lod_depth):
            size = 8 * (lib.onernn_sequences(stream, number, level) + 1)
            words = ffi.buffer(lib.onernn_offsets(stream, number, level), size)
            levels.append(np.frombuffer(words, np.int64).copy())
        return Ragged.from_lod(array, levels) if levels else array


class CompiledModel:
    """A compiled file made ready to run; safe to share between threads.

    It has the methods of a `Session` that need no graph. Raises `ModelFormatError` for a file that
    `onernn compile` did not write, or that has changed since.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int | None = None,
        *,
        max_bytes: int | None = None,
        max_steps: int = STEPS,
    ) -> None:
        self._options = path, threads, max_bytes, max_steps
        self._path, kernels = Path(path), load_kernels()
        self.ffi, self.lib, self._isa = kernels.ffi, kernels.lib, kernels.isa
        self.limits = usable_memory() if max_bytes is None else max_bytes, max_steps
        handle = self.ffi.new("onernn_model **")
        team = team_of(threads or usable_threads())
        self.check(self.lib.onernn_open(os.fsencode(path), team, handle))
        self.handle = self.ffi.gc(handle[0], self.lib.onernn_close)
        inputs = self.lib.onernn_inputs(self.handle)
        self.inputs = tuple(map(self._value, range(inputs)))
        outputs = range(inputs, inputs + self.lib.onernn_outputs(self.handle))
        self.outputs = tuple(map(self._value, outputs))
        self.states = {
            value.name: self.outputs[after - inputs].name
            for number, value in enumerate(self.inputs)
            if (after := self.lib.onernn_next(self.handle, number)) >= 0
        }
        self._idle, self._usual = deque([_Stream(self)]), UsualNeed()

    def __reduce__(self) -> Any:
        path, threads, max_bytes, max_steps = self._options
        return _open_model, (path, threads, max_bytes, max_steps)

    def _value(self, number: int) -> Value:
        ffi, lib, handle = self.ffi, self.lib, self.handle
        name, dtype = (
            ffi.string(read(handle, number)).decode(errors="backslashreplace")
            for read in (lib.onernn_name, lib.onernn_dtype)
        )
        axes = range(lib.onernn_rank(handle, number))
        sizes = [lib.onernn_dim(handle, number, axis) for axis in axes]
        shape = tuple([None if size < 0 else size for size in sizes])
        return Value(name, dtype, shape, lib.onernn_levels(handle, number))

    def check(self, status: int) -> None:
        """Raises the error of a call that did not succeed."""
        if not status:
            return
        lib, why = self.lib, self.ffi.string(self.lib.onernn_message()).decode(errors="replace")
        if status == lib.ONERNN_NO_FILE:
            raise FileNotFoundError(why) if not self._path.exists() else ModelFormatError(why)
        kinds: dict[int, type[OnernnError]] = {
            lib.ONERNN_NO_MEMORY: BudgetError,
            lib.ONERNN_TOO_MUCH: BudgetError,
            lib.ONERNN_DAMAGED: ModelFormatError,
            lib.ONERNN_UNKNOWN: UnsupportedError,
            lib.ONERNN_UNSOUND: LibraryError,
        }
        raise kinds.get(status, ShapeError)(why)

    def run(self, inputs: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs by name, for inputs by name, states among them: see `Session.run`."""
        feed = checked_feed(self.inputs, inputs)
        with borrow(self._idle, partial(_Stream, self), self._keeps) as stream:
            outputs = stream.run(feed)
            need = max((data_of(v).size for v in (*feed.values(), *outputs.values())), default=0)
            stream.largest = max(stream.largest, need)
            self._usual.note(need)
        is_spare = not self._keeps(stream)
        del stream
        if is_spare:
            return_freed_memory()
        return outputs

    def _keeps(self, stream: _Stream) -> bool:
        return self._usual.keeps(stream.largest)

    def steps(self) -> Steps:
        """Returns a stream at its beginning, which keeps the states."""
        return Steps(self)

    def explain(self) -> str:
        """Returns what runs it."""
        states = "".join(f"\nstate: {after} into {name}" for name, after in self.states.items())
        return (
            f"compiled: {self._path}\ngraph: one call of the library, kernels {self._isa}{states}"
        )


class Steps:
    """A stream of a compiled model, for one thread at a time."""

    def __init__(self, model: CompiledModel) -> None:
        self._inputs = tuple(v for v in model.inputs if v.name not in model.states)
        self._hidden = {*model.states.values()}
        self._stream = _Stream(model)

    def run(self, frame: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs of the next step, but for its states."""
        outputs = self._stream.run(checked_feed(self._inputs, frame))
        return {name: value for name, value in outputs.items() if name not in self._hidden}

    def reset(self) -> None:
        """Back to the beginning."""
        self._stream.reset()


def _open_model(
    path: str, threads: int | None, max_bytes: int | None, max_steps: int
) -> CompiledModel:
    return CompiledModel(path, threads, max_bytes=max_bytes, max_steps=max_steps)
