"""Runs compiled files. The library does all the work: Python reads no model, infers no types and
packs no weights.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.backend.compiled.library import load_kernels
from onernn.backend.process import (
    UsualNeed,
    check_count,
    take_idle,
    usable_cpus,
    usable_threads,
)
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
from onernn.ir.feeds import Feed, check_feed
from onernn.ir.graph import Value
from onernn.ir.ragged import Ragged, data_of


class _Stream:
    """A stream of the library, with states; only one thread at a time may use it.

    ``need``: the number of elements of the largest array in the last run; ``largest``: the maximum
    of ``need`` over all runs.
    """

    def __init__(self, model: CompiledModel) -> None:
        self._model, self._ffi, self._lib = model, model.ffi, model.lib
        self.need = self.largest = 0
        handle = self._ffi.new("onernn_stream **")
        model.check(self._lib.onernn_stream_open(model.handle, handle))
        self._stream = self._ffi.gc(handle[0], self._lib.onernn_stream_close)
        model.check(self._lib.onernn_limit(self._stream, *model.limits))
        self._memory = self._ffi.new("void *[]", len(model.inputs) + len(model.outputs))
        self._given: list[tuple[int, ...] | None] = [None for _ in model.inputs]
        self._shapes: list[tuple[int, ...]] | None = None  # of outputs, -1 for unknown sizes

    def reset(self) -> None:
        self._model.check(self._lib.onernn_reset(self._stream))

    def run(self, expected: tuple[Value, ...], inputs: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs by name.

        The library checks sizes. ``expected``: the inputs that the caller passes; the library uses
        the previous run's states unless ``expected`` contains them. Raises `ShapeError`.
        """
        outputs = (
            self._run(inputs) if type(inputs) is dict and len(inputs) == len(expected) else None
        )
        if outputs is None:  # `check_feed` converts inputs, or raises a detailed error
            outputs = self._run(check_feed(expected, inputs))
        return outputs or {}

    def _run(self, feed: Feed) -> dict[str, Any] | None:
        """Returns the outputs; None if an input is missing or unknown, or if its type differs from
        the type in the model.
        """
        ffi, lib, model, stream = self._ffi, self._lib, self._model, self._stream
        address, memory = ffi.from_buffer, self._memory
        kept = list[Any]()  # keeps alive the arrays that the library reads and writes
        found = 0
        for name, number, dtype, rank, levels in model.takes:
            value: Any = feed.get(name)
            if value is None:
                if name not in model.states:
                    return None
                memory[number] = ffi.NULL
                continue
            found += 1
            array = value
            if levels:
                if type(value) is not Ragged or len(value.outer) + 1 != levels:
                    return None
                array, self._shapes = value.data, None
                for level, offsets in enumerate((*value.outer, value.offsets)):
                    kept.append(at := address("int64_t[]", offsets))
                    of = stream, number, level, at, len(offsets) - 1
                    model.check(lib.onernn_give_offsets(*of))
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != rank:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                array = np.require(array, requirements=("C", "A"))
            memory[number] = at = address(array)
            kept.append(at)
            if array.shape != self._given[number]:
                self._given[number] = self._shapes = None
                dims = ffi.new("int64_t[]", array.shape)
                model.check(lib.onernn_give(stream, number, at, dims))
                self._given[number] = array.shape
        if found < len(feed):
            return None
        shapes = self._shapes
        is_new = shapes is None
        if shapes is None:
            model.check(lib.onernn_prepare(stream))
            shapes = [self._shape(number, rank) for _, number, _, rank, _ in model.makes]
        outputs = dict[str, Any]()
        late = []
        for each, shape in zip(model.makes, shapes, strict=True):
            name, number, dtype, _, levels = each
            if -1 in shape:  # the run determines the sizes
                outputs[name], memory[number] = None, ffi.NULL
            else:
                outputs[name] = array = np.empty(shape, dtype)
                memory[number] = at = address(array)
                kept.append(at)
                if is_new:
                    model.check(lib.onernn_take(stream, number, at, array.nbytes))
            if levels or -1 in shape:
                late.append(each)
        self._shapes = shapes  # only now, as `np.empty` and an interrupt may raise before
        if status := lib.onernn_run_on(stream, memory):
            model.check(status)
        for name, number, dtype, rank, levels in late:
            array = outputs[name]
            if array is None:
                array = np.empty(self._shape(number, rank), dtype)
                ffi.memmove(address(array), lib.onernn_numbers(stream, number), array.nbytes)
            outputs[name] = self._ragged(number, levels, array, feed) if levels else array
        if is_new:
            both = (*feed.values(), *outputs.values())
            self.need = max([data_of(value).size for value in both], default=0)
            self.largest = max(self.largest, self.need)
        return outputs

    def _shape(self, number: int, rank: int) -> tuple[int, ...]:
        return tuple([self._lib.onernn_size(self._stream, number, axis) for axis in range(rank)])

    def _ragged(self, number: int, levels: int, array: Array, feed: Feed) -> Ragged:
        ffi, lib, stream, owners = self._ffi, self._lib, self._stream, self._model.owners
        if number not in owners:  # in all runs, an output has the offsets of the same input
            at = [lib.onernn_offsets(stream, number, level) for level in range(levels)]
            same = [
                name
                for name, value in feed.items()
                if isinstance(value, Ragged)
                and [ffi.from_buffer("int64_t[]", o) for o in (*value.outer, value.offsets)] == at
            ]
            if len(same) < 2:  # otherwise several inputs share these offsets
                owners[number] = same[0] if same else ""
        if owner := owners.get(number):
            value: Any = feed[owner]
            result: Ragged = value.with_data(array)
            return result
        made = []
        for level in range(levels):
            size = 8 * (lib.onernn_sequences(stream, number, level) + 1)
            words = ffi.buffer(lib.onernn_offsets(stream, number, level), size)
            made.append(np.frombuffer(words, np.int64))
        return Ragged.from_lod(array, made)


class CompiledModel:
    """A compiled file made ready to run; safe to share between threads.

    This class has the methods of a `Session` that need no graph. `Session` describes ``threads``,
    ``max_bytes`` and ``max_steps``. ``states`` maps each input that takes a state to the output
    that is the next state. Raises `ModelFormatError` if `onernn compile` did not write the file, or
    if the file has changed since; `FileNotFoundError` if the file does not exist.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> notes = onernn.compile_model(model, "relu.onernn")
    >>> compiled = onernn.CompiledModel("relu.onernn")
    >>> compiled.run({"x": np.array([[-1, 2]], "f4")})["y"].tolist()
    [[0.0, 2.0]]
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
        check_count("threads", threads)
        most = min(threads or usable_threads(), usable_cpus())
        self.check(self.lib.onernn_open(os.fsencode(path), most, handle))
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
        values = [*enumerate((*self.inputs, *self.outputs))]
        types = [
            (v.name, at, np.dtype(v.dtype), len(v.shape or ()), v.lod_depth) for at, v in values
        ]
        self.takes, self.makes = types[:inputs], types[inputs:]
        self.owners = dict[int, str]()  # the input whose offsets an output has, "" if none
        self._idle, self._usual = deque([_Stream(self)]), UsualNeed()

    def __reduce__(self) -> Any:
        path, threads, max_bytes, max_steps = self._options
        made = partial(CompiledModel, max_bytes=max_bytes, max_steps=max_steps)
        return made, (path, threads)

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
        """Raises the error of a call of the library that did not succeed."""
        if not status:
            return
        lib, why = self.lib, self.ffi.string(self.lib.onernn_message()).decode(errors="replace")
        if status == lib.ONERNN_NO_FILE:
            raise FileNotFoundError(why) if not self._path.exists() else ModelFormatError(why)
        kinds: dict[int, type[OnernnError]] = {
            lib.ONERNN_NO_MEMORY: BudgetError,
            lib.ONERNN_TOO_MUCH: BudgetError,
            lib.ONERNN_TOO_LARGE: BudgetError,
            lib.ONERNN_DAMAGED: ModelFormatError,
            lib.ONERNN_UNKNOWN: UnsupportedError,
            lib.ONERNN_UNSOUND: LibraryError,
        }
        raise kinds.get(status, ShapeError)(why)

    def run(self, inputs: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs by name, for inputs by name, states included: see `Session.run`."""
        stream = take_idle(self._idle, partial(_Stream, self))
        try:
            return stream.run(self.inputs, inputs)
        finally:
            self._usual.note(stream.need)
            if self._usual.keeps(stream.largest):
                self._idle.append(stream)
            else:
                del stream
                return_freed_memory()

    def steps(self) -> Steps:
        """Returns a `Steps` object: the first run starts from the initial states, and each run
        passes its states to the next one.
        """
        return Steps(self)

    def explain(self) -> str:
        """Returns a description of what runs the model."""
        states = "".join(f"\nstate: {after} into {name}" for name, after in self.states.items())
        return (
            f"compiled: {self._path}\ngraph: one call of the library, kernels {self._isa}{states}"
        )


class Steps:
    """Runs of a compiled model, each of which continues from the states after the previous run.

    Only one thread at a time may use an object of this class.

    >>> x, s, after, y = (onernn.Value(name, "float32", (1,)) for name in ("x", "s", "after", "y"))
    >>> add = onernn.Node("Add", ("x", "s"), ("after",))
    >>> relu = onernn.Node("Relu", ("after",), ("y",))
    >>> model = onernn.Graph("sum", (x, s), (after, y), (add, relu), {})
    >>> notes = onernn.compile_model(model, "sum.onernn", states={"s": "after"})
    >>> steps = onernn.CompiledModel("sum.onernn").steps()
    >>> [steps.run({"x": np.array([number], "f4")})["y"].item() for number in (1, 2)]
    [1.0, 3.0]
    """

    def __init__(self, model: CompiledModel) -> None:
        self._inputs = tuple(v for v in model.inputs if v.name not in model.states)
        self._hidden = {*model.states.values()}
        self._stream = _Stream(model)

    def run(self, frame: Feed) -> dict[str, Ragged | Array]:
        """Returns the outputs of the next step, without the states. Raises the same errors as
        `Session.run`.
        """
        outputs = self._stream.run(self._inputs, frame)
        return {name: value for name, value in outputs.items() if name not in self._hidden}

    def reset(self) -> None:
        """Sets the states to the states before the first step."""
        self._stream.reset()
