"""RNN primitive descriptors: the C creators behind one call, arguments by the guide's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from onernn.backend.onednn.library import Library
from onernn.backend.onednn.limits import CREATORS
from onernn.backend.onednn.memory import Descriptor, new_descriptor, new_primitive
from onernn.ir.spec import Cell, RnnSpec

_ELTWISE = {
    Cell.RNN_TANH: "dnnl_eltwise_tanh",
    Cell.RNN_RELU: "dnnl_eltwise_relu",
    Cell.RNN_SIGMOID: "dnnl_eltwise_logistic",
}


class Primitive(NamedTuple):
    """A created primitive: its C object and its descriptor, kernel name, layouts by argument."""

    handle: Any
    described: Any
    kernel: str
    layouts: Mapping[str, Descriptor]


def argument(library: Library, name: str) -> int:
    """The number of an execution argument: dst_iter_c -> DNNL_ARG_DST_ITER_C."""
    return int(getattr(library.lib, f"DNNL_ARG_{name.upper()}"))


def argument_order(cell: Cell) -> list[str]:
    """The arguments of a cell as its C creators take them."""
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
    """A primitive of one layer and one direction.

    ``kind``: forward_inference, forward_training, or backward, which needs its forward primitive
    as ``hint``. ``wanted``: the descriptor of each argument, those of a backward's results under
    diff_NAME. Raises `UnsupportedError` where the library has no such kernel.
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
    layouts = {name: _chosen(library, described, name) for name in (*wanted, "scratchpad")}
    if kind != "forward_inference":
        layouts["workspace"] = _chosen(library, described, "workspace")
    return Primitive(
        new_primitive(library, described), described, kernel_name(library, described), layouts
    )


def _chosen(library: Library, described: Any, name: str) -> Descriptor:
    """The layout that a primitive settled on for an argument."""
    lib = library.lib
    found = lib.dnnl_primitive_desc_query_md(
        described, lib.dnnl_query_exec_arg_md, argument(library, name)
    )
    return Descriptor.copied(library, found)


def kernel_name(library: Library, described: Any) -> str:
    """What oneDNN calls the implementation: brgemm:avx512_core, ref, ..."""
    name = library.ffi.new("char **")
    status = library.lib.dnnl_primitive_desc_query(
        described, library.lib.dnnl_query_impl_info_str, 0, name
    )
    library.check(status, "kernel name")
    return str(library.ffi.string(name[0]).decode())


def new_attributes(library: Library, *, own_scratchpad: bool) -> Any:
    """Attributes; with a scratchpad of our own where any thread may execute the primitive.

    One with the library's scratchpad may only be used by the thread that created it.
    """
    lib, ffi = library.lib, library.ffi
    handle = ffi.new("dnnl_primitive_attr_t *")
    library.check(lib.dnnl_primitive_attr_create(handle), "attributes")
    owned = ffi.gc(handle[0], lib.dnnl_primitive_attr_destroy)
    if own_scratchpad:
        status = lib.dnnl_primitive_attr_set_scratchpad_mode(owned, lib.dnnl_scratchpad_mode_user)
        library.check(status, "scratchpad mode")
    return owned
