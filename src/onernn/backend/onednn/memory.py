"""Python objects for oneDNN's memories, primitives and conversions, which free the C objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.onednn.library import Library
from onernn.backend.onednn.precision import CREATORS
from onernn.backend.process import CREATION, allocate_aligned
from onernn.ir.arrays import Array, bfloat16_bits, widen_bfloat16
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import UNIT, Scale

_STORED = {
    "f32": np.float32,
    "bf16": np.uint16,
    "f16": np.float16,
    "u8": np.uint8,
    "s8": np.int8,
}
"""NumPy's dtypes for buffers of oneDNN's data types; an uint16 holds the bits of a bfloat16."""


def new_handle(
    library: Library, kind: str, *arguments: Any, create: str = "create", what: str = ""
) -> Any:
    """Returns a new C object, such as a "stream", which Python's garbage collector frees.

    ``create``: how the C function's name ends. Raises `LibraryError` that names ``what``.
    """
    lib, handle = library.lib, library.ffi.new(f"dnnl_{kind}_t *")
    status = getattr(lib, f"dnnl_{kind}_{create}")(handle, *arguments)
    library.check(status, what or kind)
    return library.ffi.gc(handle[0], getattr(lib, f"dnnl_{kind}_destroy"))


class Descriptor:
    """A memory descriptor, which has a shape, a data type and a layout. "any" lets a primitive
    choose the layout.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        self.library, self.handle = library, handle

    @property
    def dims(self) -> tuple[int, ...]:
        count = int(self._query("dnnl_query_ndims_s32", "int *"))
        return tuple(self._query("dnnl_query_dims", "dnnl_dims_t **")[0][0:count])

    @property
    def dtype(self) -> str:
        number = self._query("dnnl_query_data_type", "dnnl_data_type_t *")
        names = {int(getattr(self.library.lib, f"dnnl_{name}")): name for name in _STORED}
        return names.get(int(number), "undefined")

    def _query(self, what: str, kind: str) -> Any:
        out = self.library.ffi.new(kind)
        number = getattr(self.library.lib, what)
        status = self.library.lib.dnnl_memory_desc_query(self.handle, number, out)
        self.library.check(status, what)
        return out[0]

    @classmethod
    def from_tag(cls, library: Library, dims: Sequence[int], dtype: str, tag: str) -> Descriptor:
        """Returns a descriptor with a layout that oneDNN names, such as ldnc or ldigo, or with
        "any".
        """
        name = "dnnl_format_tag_any" if tag == "any" else f"dnnl_{tag}"
        return cls._create(library, dims, dtype, "tag", getattr(library.lib, name))

    @classmethod
    def from_strides(
        cls, library: Library, dims: Sequence[int], dtype: str, strides: Sequence[int]
    ) -> Descriptor:
        layout = library.ffi.new("dnnl_dims_t", list(strides))
        return cls._create(library, dims, dtype, "strides", layout)

    @classmethod
    def _create(
        cls, library: Library, dims: Sequence[int], dtype: str, by: str, layout: Any
    ) -> Descriptor:
        sizes, kind = library.ffi.new("dnnl_dims_t", list(dims)), f"dnnl_{dtype}"
        given = len(dims), sizes, getattr(library.lib, kind), layout
        create, what = f"create_with_{by}", f"memory descriptor {tuple(dims)} {dtype}"
        handle = new_handle(library, "memory_desc", *given, create=create, what=what)
        return cls(library, handle)

    @classmethod
    def copy(cls, library: Library, borrowed: Any) -> Descriptor:
        """Returns a copy of a descriptor that belongs to a primitive descriptor."""
        return cls(library, new_handle(library, "memory_desc", borrowed, create="clone"))

    @property
    def nbytes(self) -> int:
        return int(self.library.lib.dnnl_memory_desc_get_size(self.handle))

    def __eq__(self, other: object) -> bool:
        equal = self.library.lib.dnnl_memory_desc_equal
        return isinstance(other, Descriptor) and bool(equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


class Memory:
    """oneDNN's memory object. It keeps its array alive. If it has no array, each execution sets its
    address.
    """

    def __init__(self, descriptor: Descriptor, data: Array | None = None) -> None:
        library = descriptor.library
        self.descriptor, self.data = descriptor, data
        self.address = 0 if data is None else int(data.ctypes.data)
        pointer = library.ffi.cast("void *", self.address)
        given = descriptor.handle, library.engine, pointer
        self.handle = new_handle(library, "memory", *given)

    @classmethod
    def empty(cls, descriptor: Descriptor) -> Memory:
        return cls(descriptor, allocate_aligned(descriptor.nbytes))


def reorder(source: Memory, target: Descriptor, attributes: Any = None) -> Memory:
    """Returns a copy of a memory in another layout or data type; ``attributes`` hold its scales."""
    library, out = target.library, Memory.empty(target)
    lib, engine = library.lib, library.engine
    described = new_descriptor(
        library,
        lambda: "reorder",
        lib.dnnl_reorder_primitive_desc_create,
        *(source.descriptor.handle, engine, target.handle, engine),
        attributes or library.ffi.NULL,
    )
    primitive = new_primitive(library, described)
    arguments = bind(library, {lib.DNNL_ARG_SRC: source, lib.DNNL_ARG_DST: out})
    stream = new_stream(library)
    library.check(lib.dnnl_primitive_execute(primitive, stream, 2, arguments), "reorder")
    return out


def new_descriptor(library: Library, what: Callable[[], str], create: Any, *arguments: Any) -> Any:
    """Returns the primitive descriptor that the C function ``create`` makes; ``what`` returns its
    name.

    Raises `UnsupportedError` if oneDNN has no such kernel.
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
    """Returns a primitive, made from its primitive descriptor."""
    with CREATION:
        return new_handle(library, "primitive", described)


def bind(library: Library, memories: dict[int, Memory]) -> Any:
    """Returns the C array of an execution's arguments; the caller must keep the memories alive."""
    arguments = library.ffi.new("dnnl_exec_arg_t[]", len(memories))
    for argument, (number, memory) in zip(arguments, memories.items(), strict=True):
        argument.arg, argument.memory = number, memory.handle
    return arguments


def new_stream(library: Library) -> Any:
    return new_handle(library, "stream", library.engine, library.lib.dnnl_stream_default_flags)


# RNN primitives: `create` calls the C function of a cell; arguments have the names of oneDNN's
# guide.

_ELTWISE = {
    Cell.RNN_TANH: "dnnl_eltwise_tanh",
    Cell.RNN_RELU: "dnnl_eltwise_relu",
    Cell.RNN_SIGMOID: "dnnl_eltwise_logistic",
}


class Primitive(NamedTuple):
    """A primitive: its C object and primitive descriptor, its kernel's name, and the layout of each
    argument.
    """

    handle: Any
    described: Any
    kernel: str
    layouts: Mapping[str, Descriptor]


def argument(library: Library, name: str) -> int:
    """Returns the number of an execution argument: DNNL_ARG_DST_ITER_C for "dst_iter_c"."""
    return int(getattr(library.lib, f"DNNL_ARG_{name.upper()}"))


def argument_order(cell: Cell) -> list[str]:
    """Returns a cell's arguments in the order in which the C functions take them."""
    lstm = cell is Cell.LSTM
    return [
        "src_layer",
        "src_iter",
        *(["src_iter_c"] if lstm else []),
        *(["augru_attention"] if cell.has_attention else []),
        "weights_layer",
        "weights_iter",
        *(["weights_peephole", "weights_projection"] if lstm else []),
        "bias",
        "dst_layer",
        "dst_iter",
        *(["dst_iter_c"] if lstm else []),
    ]


def create(
    library: Library,
    spec: RnnSpec,
    kind: str,
    wanted: Mapping[str, Descriptor],
    attributes: Any,
    hint: Primitive | None = None,
) -> Primitive:
    """Returns a primitive of one layer and one direction.

    ``kind``: forward_inference, forward_training, or backward, which needs its forward primitive as
    ``hint``. ``wanted``: the descriptor of each argument; a gradient is named diff_NAME. Raises
    `UnsupportedError` if oneDNN has no such kernel.
    """
    lib = library.lib
    way = "backward" if kind == "backward" else "forward"
    names = argument_order(spec.cell)
    if hint is not None:
        names += [f"diff_{name}" for name in names]
    vanilla = spec.cell in _ELTWISE

    def what() -> str:
        types = "/".join(dict.fromkeys(d.dtype for d in wanted.values()))
        return f"{spec.cell.name} {kind.replace('_', ' ')} in {types}"

    described = new_descriptor(
        library,
        what,
        getattr(lib, f"dnnl_{CREATORS[spec.cell]}_{way}_primitive_desc_create"),
        library.engine,
        getattr(lib, f"dnnl_{kind}"),
        *([getattr(lib, _ELTWISE[spec.cell])] if vanilla else []),
        getattr(lib, f"dnnl_unidirectional_{spec.direction}"),
        *(wanted[name].handle if name in wanted else library.ffi.NULL for name in names),
        lib.dnnl_rnn_flags_undef,
        *([0.0, 0.0] if vanilla else []),
        *([] if hint is None else [hint.described]),
        attributes,
    )
    layouts = {
        name: _read_chosen_layout(library, described, name) for name in (*wanted, "scratchpad")
    }
    if kind != "forward_inference":
        layouts["workspace"] = _read_chosen_layout(library, described, "workspace")
    return Primitive(
        new_primitive(library, described), described, kernel_name(library, described), layouts
    )


def _read_chosen_layout(library: Library, described: Any, name: str) -> Descriptor:
    lib = library.lib
    result = lib.dnnl_primitive_desc_query_md(
        described, lib.dnnl_query_exec_arg_md, argument(library, name)
    )
    return Descriptor.copy(library, result)


def kernel_name(library: Library, described: Any) -> str:
    """Returns oneDNN's name of a primitive's implementation, such as brgemm:avx512_core or ref."""
    name = library.ffi.new("char **")
    status = library.lib.dnnl_primitive_desc_query(
        described, library.lib.dnnl_query_impl_info_str, 0, name
    )
    library.check(status, "kernel name")
    return str(library.ffi.string(name[0]).decode())


def new_attributes(library: Library, *, own_scratchpad: bool) -> Any:
    """Returns attributes of a primitive. With ``own_scratchpad``, the caller provides the
    scratchpad.

    With the library's scratchpad, only the thread that created a primitive may execute it.
    """
    attributes, lib = new_handle(library, "primitive_attr", what="attributes"), library.lib
    if own_scratchpad:
        mode = lib.dnnl_scratchpad_mode_user
        status = lib.dnnl_primitive_attr_set_scratchpad_mode(attributes, mode)
        library.check(status, "scratchpad mode")
    return attributes


# Buffers for the arguments of a primitive: conversions from and to float32.


def find_buffer_dtype(dtype: str) -> np.dtype[Any]:
    """Returns NumPy's dtype for buffers of a oneDNN data type."""
    return np.dtype(_STORED[dtype])


LARGEST = {"f32": 2.0**128, "bf16": 2.0**128 - 2.0**119, "f16": 65520.0, "u8": 2.0**128}
"""For each data type of a layer, a limit: numbers of smaller magnitude stay finite when oneDNN
converts them.
"""


def narrow(array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """Converts float32 to a buffer of ``dtype``; contiguous float32 is not copied.

    u8 is rounded to nearest, ties to even, and saturates. u8 has no NaN, so the caller must check
    for NaN.
    """
    array = np.ascontiguousarray(array, np.float32)
    if dtype == "u8":
        out = array * np.float32(scale.factor)
        out += np.float32(scale.shift)
        return np.clip(np.rint(out, out=out), 0, 255, out=out).astype(np.uint8)
    if dtype == "bf16":
        return bfloat16_bits(array)
    with np.errstate(over="ignore"):  # larger values become infinity
        return array.astype(find_buffer_dtype(dtype), copy=False)


def widen(array: Array, dtype: str, scale: Scale = UNIT) -> Array:
    """Converts a buffer of ``dtype`` to float32.

    For u8, 1/factor is rounded to float32 before the multiplication; oneDNN uses the same rounded
    factor.
    """
    if dtype == "u8":
        return (array.astype(np.float32) - np.float32(scale.shift)) * np.float32(1 / scale.factor)
    return widen_bfloat16(array) if dtype == "bf16" else array.astype(np.float32, copy=False)
