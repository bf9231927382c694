"""oneDNN's memory descriptors and memories, freed with their Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onernn.backend.buffers import aligned
from onernn.backend.creation_lock import CREATION
from onernn.backend.onednn.library import Library
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError

DTYPES = {
    "f32": "dnnl_f32",
    "bf16": "dnnl_bf16",
    "f16": "dnnl_f16",
    "s8": "dnnl_s8",
    "s32": "dnnl_s32",
    "u8": "dnnl_u8",
}


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
    create, engine = library.lib.dnnl_reorder_primitive_desc_create, library.engine
    both = (source.handle, engine, target.handle, engine)
    attributes = attributes or library.ffi.NULL
    described = new_descriptor(library, lambda: "reorder", create, *both, attributes)
    return new_primitive(library, described)


def new_descriptor(library: Library, what: Callable[[], str], create: Any, *arguments: Any) -> Any:
    """The primitive descriptor that a C creator makes of its arguments; ``what`` names it.

    Raises `UnsupportedError` where the library has no such kernel.
    """
    lib, ffi = library.lib, library.ffi
    pd = ffi.new("dnnl_primitive_desc_t *")
    status = create(pd, *arguments)
    if status == lib.dnnl_unimplemented:
        raise UnsupportedError(
            f"oneDNN {library.version} on {library.effective_isa} has no {what()}"
        )
    if status:
        library.check(status, what())
    return ffi.gc(pd[0], lib.dnnl_primitive_desc_destroy)


def new_primitive(library: Library, described: Any) -> Any:
    """The primitive of a primitive descriptor."""
    handle = library.ffi.new("dnnl_primitive_t *")
    with CREATION:
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
