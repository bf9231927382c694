"""oneDNN's memory descriptors and memories, freed with their Python objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from onernn.backend.making import MAKING
from onernn.backend.onednn.library import Library
from onernn.core.arrays import Array

_T = TypeVar("_T")

ALIGNMENT = 64  # a cache line, and the widest vector

DTYPES = {
    "f32": "dnnl_f32",
    "bf16": "dnnl_bf16",
    "f16": "dnnl_f16",
    "s8": "dnnl_s8",
    "s32": "dnnl_s32",
    "u8": "dnnl_u8",
}


def aligned(nbytes: int) -> Array:
    """Uninitialised bytes that start on a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


LARGEST_KEPT = 1 << 24
"""Bytes of the largest array that is used again: larger ones would hold much, and get huge pages."""


class Room:
    """Arrays of one execution at a time, used again by the next one.

    The allocator returns some MB to the system at the end of a call, and asks for them again, page
    by page, in the next: 2 of 10 ms for 1028 words and 256 units.
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Uninitialised; it overwrites what this name was before."""
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if nbytes > LARGEST_KEPT:
            return np.empty(shape, dtype)
        held = self._held.get(name)
        if held is None or len(held) < nbytes:
            held = self._held[name] = aligned(nbytes)
        return held[:nbytes].view(dtype).reshape(shape)

    def taken(self, name: str, words: Array, rows: Array) -> Array:
        """``words[rows]``, each of them (W, C); the rows are in range."""
        out = self.array(name, (len(rows), words.shape[1]), words.dtype)
        return np.take(words, rows, axis=0, out=out, mode="clip")


ROOMS: deque[Room] = deque(maxlen=8)
"""Rooms that nobody has now, for any layer: the last one is in the cache still."""


@contextmanager
def borrowed(idle: deque[_T], make: Callable[[], _T]) -> Iterator[_T]:
    """One that nobody else has, or a new one; it waits for the next one afterwards."""
    try:
        one = idle.pop()
    except IndexError:
        one = make()
    try:
        yield one
    finally:
        idle.append(one)


class Descriptor:
    """A memory descriptor: dims, data type, and strides, a tag's layout, or any."""

    def __init__(self, library: Library, handle: Any) -> None:
        self.library = library
        self.handle = library.ffi.gc(handle, library.lib.dnnl_memory_desc_destroy)

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(self._query("dnnl_query_dims", "dnnl_dims_t **")[0 : self._ndims])

    @property
    def dtype(self) -> str:
        number = self._query("dnnl_query_data_type", "dnnl_data_type_t *")
        names = {int(getattr(self.library.lib, c)): name for name, c in DTYPES.items()}
        return names.get(int(number), "undefined")

    @property
    def _ndims(self) -> int:
        return int(self._query("dnnl_query_ndims_s32", "int *"))

    def _query(self, what: str, kind: str) -> Any:
        out = self.library.ffi.new(kind)
        number = getattr(self.library.lib, what)
        status = self.library.lib.dnnl_memory_desc_query(self.handle, number, out)
        self.library.check(status, what)
        return out[0] if kind != "dnnl_dims_t **" else out[0][0]

    @classmethod
    def tagged(cls, library: Library, dims: Sequence[int], dtype: str, tag: str) -> Descriptor:
        """``tag`` by oneDNN's name: ldnc, ldigo, any, ..."""
        lib = library.lib
        layout = lib.dnnl_format_tag_any if tag == "any" else getattr(lib, f"dnnl_{tag}")
        create = lib.dnnl_memory_desc_create_with_tag
        return cls._create(library, create, dims, dtype, layout)

    @classmethod
    def strided(
        cls, library: Library, dims: Sequence[int], dtype: str, strides: Sequence[int]
    ) -> Descriptor:
        layout = library.ffi.new("dnnl_dims_t", list(strides))
        create = library.lib.dnnl_memory_desc_create_with_strides
        return cls._create(library, create, dims, dtype, layout)

    @classmethod
    def _create(
        cls, library: Library, create: Any, dims: Sequence[int], dtype: str, layout: Any
    ) -> Descriptor:
        handle = library.ffi.new("dnnl_memory_desc_t *")
        sizes = library.ffi.new("dnnl_dims_t", list(dims))
        kind = getattr(library.lib, DTYPES[dtype])
        status = create(handle, len(dims), sizes, kind, layout)
        library.check(status, f"memory descriptor {tuple(dims)} {dtype}")
        return cls(library, handle[0])

    @classmethod
    def copied(cls, library: Library, borrowed: Any) -> Descriptor:
        """A descriptor of our own from one that belongs to a primitive descriptor."""
        handle = library.ffi.new("dnnl_memory_desc_t *")
        library.check(library.lib.dnnl_memory_desc_clone(handle, borrowed), "memory descriptor")
        return cls(library, handle[0])

    @property
    def nbytes(self) -> int:
        return int(self.library.lib.dnnl_memory_desc_get_size(self.handle))

    def __eq__(self, other: object) -> bool:
        equal = self.library.lib.dnnl_memory_desc_equal
        return isinstance(other, Descriptor) and bool(equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


class Memory:
    """A memory over an array's bytes, which it keeps alive; or over nothing yet."""

    def __init__(self, descriptor: Descriptor, data: Array | None = None) -> None:
        library = descriptor.library
        self.descriptor, self.data = descriptor, data
        self.address = 0 if data is None else int(data.ctypes.data)
        handle = library.ffi.new("dnnl_memory_t *")
        pointer = library.ffi.cast("void *", self.address)
        status = library.lib.dnnl_memory_create(handle, descriptor.handle, library.engine, pointer)
        library.check(status, "memory")
        self.handle = library.ffi.gc(handle[0], library.lib.dnnl_memory_destroy)

    @classmethod
    def empty(cls, descriptor: Descriptor) -> Memory:
        return cls(descriptor, aligned(descriptor.nbytes))


def reordered(source: Memory, target: Descriptor, attributes: Any = None) -> Memory:
    """The same numbers in another layout or data type; ``attributes`` hold scales."""
    library = target.library
    lib = library.lib
    out = Memory.empty(target)
    primitive = reorder_primitive(source.descriptor, target, attributes)
    arguments = bind(library, {lib.DNNL_ARG_SRC: source, lib.DNNL_ARG_DST: out})
    stream = new_stream(library)
    library.check(lib.dnnl_primitive_execute(primitive, stream, 2, arguments), "reorder")
    return out


def reorder_primitive(source: Descriptor, target: Descriptor, attributes: Any = None) -> Any:
    """The primitive that copies one layout or data type into another."""
    library = target.library
    lib, ffi, engine = library.lib, library.ffi, library.engine
    pd = ffi.new("dnnl_primitive_desc_t *")
    status = lib.dnnl_reorder_primitive_desc_create(
        pd, source.handle, engine, target.handle, engine, attributes or ffi.NULL
    )
    library.check(status, "reorder")
    return new_primitive(library, ffi.gc(pd[0], lib.dnnl_primitive_desc_destroy))


def new_primitive(library: Library, described: Any) -> Any:
    """The primitive of a primitive descriptor."""
    handle = library.ffi.new("dnnl_primitive_t *")
    with MAKING:
        status = library.lib.dnnl_primitive_create(handle, described)
    library.check(status, "primitive")
    return library.ffi.gc(handle[0], library.lib.dnnl_primitive_destroy)


def bind(library: Library, memories: dict[int, Memory]) -> Any:
    """The argument array of an execution; keep the memories alive beside it."""
    arguments = library.ffi.new("dnnl_exec_arg_t[]", len(memories))
    for argument, (number, memory) in zip(arguments, memories.items(), strict=True):
        argument.arg, argument.memory = number, memory.handle
    return arguments


def new_stream(library: Library) -> Any:
    handle = library.ffi.new("dnnl_stream_t *")
    lib = library.lib
    status = lib.dnnl_stream_create(handle, library.engine, lib.dnnl_stream_default_flags)
    library.check(status, "stream")
    return library.ffi.gc(handle[0], lib.dnnl_stream_destroy)
