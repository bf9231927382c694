"""Matrix products with chains of post-ops: whole gates of a cell in one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onernn.backend.onednn.creation import kernel_name, new_attributes
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import Descriptor, Memory, bind, new_descriptor, new_primitive


class PostOp(NamedTuple):
    """``dst = function(dst)``, or ``dst = dst op operand`` elementwise with a dense tensor."""

    kind: str  # add, sub, mul; or tanh, logistic, relu, linear
    operand: str = ""
    alpha: float = 0.0
    beta: float = 0.0


class MatmulPrimitive(NamedTuple):
    """A created product: C object, kernel name, layouts, and the argument number of each name."""

    handle: Any
    kernel: str
    layouts: Mapping[str, Descriptor]
    numbers: Mapping[str, tuple[int, ...]]


_BINARY = {"add": "dnnl_binary_add", "sub": "dnnl_binary_sub", "mul": "dnnl_binary_mul"}


def create_matmul(
    library: Library,
    dims: tuple[int, int, int],
    dtypes: tuple[str, str, str],
    *,
    bias: bool,
    chain: Sequence[PostOp] = (),
    operands: Mapping[str, Descriptor] | None = None,
    scaled: bool = False,
) -> MatmulPrimitive:
    """(M, K) x (K, N) -> (M, N), rows dense, weights in whatever layout the kernel likes.

    ``dtypes`` of source, weights, destination. ``operands``: descriptors of the chain's tensors
    by name. ``scaled``: the source has a scale and a zero point, the weights a scale a column.
    Raises `UnsupportedError` where the library has no such kernel.
    """
    lib = library.lib
    m, k, n = dims
    layouts = {
        "src": Descriptor.tagged(library, (m, k), dtypes[0], "ab"),
        "weights": Descriptor.tagged(library, (k, n), dtypes[1], "any"),
        "dst": Descriptor.tagged(library, (m, n), dtypes[2], "ab"),
    }
    numbers: dict[str, tuple[int, ...]] = {
        "src": (lib.DNNL_ARG_SRC,),
        "weights": (lib.DNNL_ARG_WEIGHTS,),
        "dst": (lib.DNNL_ARG_DST,),
        "scratchpad": (lib.DNNL_ARG_SCRATCHPAD,),
    }
    if bias:
        layouts["bias"] = Descriptor.tagged(library, (1, n), "f32", "ab")
        numbers["bias"] = (lib.DNNL_ARG_BIAS,)
    attributes = new_attributes(library, own_scratchpad=True)
    if scaled:
        _set_scales(library, attributes, n, layouts, numbers)
    owned_chain = _post_ops(library, chain, operands or {})
    library.check(lib.dnnl_primitive_attr_set_post_ops(attributes, owned_chain), "post-ops")
    for place, op in enumerate(chain):
        if op.operand:
            number = lib.DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE * (place + 1) | lib.DNNL_ARG_SRC_1
            numbers[op.operand] = (*numbers.get(op.operand, ()), number)
    layouts.update(operands or {})
    described = new_descriptor(
        library,
        lambda: f"matmul {dims} in {'/'.join(dtypes)}",
        lib.dnnl_matmul_primitive_desc_create,
        library.engine,
        layouts["src"].handle,
        layouts["weights"].handle,
        layouts["bias"].handle if bias else library.ffi.NULL,
        layouts["dst"].handle,
        attributes,
    )
    for name, what in (("weights", lib.dnnl_query_weights_md),
                       ("scratchpad", lib.dnnl_query_scratchpad_md)):  # fmt: skip
        found = lib.dnnl_primitive_desc_query_md(described, what, 0)
        layouts[name] = Descriptor.copied(library, found)
    primitive = new_primitive(library, described)
    return MatmulPrimitive(primitive, kernel_name(library, described), layouts, numbers)


def create_tanh(library: Library, dims: tuple[int, int], dtype: str) -> MatmulPrimitive:
    """tanh of (M, N), elementwise; its arguments are bound as those of a product."""
    lib = library.lib
    layout = Descriptor.tagged(library, dims, dtype, "ab")
    described = new_descriptor(
        library,
        lambda: f"tanh {dims}",
        lib.dnnl_eltwise_forward_primitive_desc_create,
        library.engine,
        lib.dnnl_forward_inference,
        lib.dnnl_eltwise_tanh,
        layout.handle,
        layout.handle,
        0.0,
        0.0,
        new_attributes(library, own_scratchpad=True),
    )
    scratchpad = lib.dnnl_primitive_desc_query_md(described, lib.dnnl_query_scratchpad_md, 0)
    return MatmulPrimitive(
        new_primitive(library, described),
        kernel_name(library, described),
        {"src": layout, "dst": layout, "scratchpad": Descriptor.copied(library, scratchpad)},
        {
            "src": (lib.DNNL_ARG_SRC,),
            "dst": (lib.DNNL_ARG_DST,),
            "scratchpad": (lib.DNNL_ARG_SCRATCHPAD,),
        },
    )


def _set_scales(
    library: Library,
    attributes: Any,
    columns: int,
    layouts: dict[str, Descriptor],
    numbers: dict[str, tuple[int, ...]],
) -> None:
    lib = library.lib
    for name, argument, mask, size in (
        ("src_scale", lib.DNNL_ARG_SRC, 0, 1),
        ("weights_scale", lib.DNNL_ARG_WEIGHTS, 1 << 1, columns),
    ):
        status = lib.dnnl_primitive_attr_set_scales_mask(attributes, argument, mask)
        library.check(status, name)
        layouts[name] = Descriptor.tagged(library, (size,), "f32", "a")
        numbers[name] = (lib.DNNL_ARG_ATTR_SCALES | argument,)
    status = lib.dnnl_primitive_attr_set_zero_points_mask(attributes, lib.DNNL_ARG_SRC, 0)
    library.check(status, "zero point")
    layouts["src_zero_point"] = Descriptor.tagged(library, (1,), "s32", "a")
    numbers["src_zero_point"] = (lib.DNNL_ARG_ATTR_ZERO_POINTS | lib.DNNL_ARG_SRC,)


def _post_ops(library: Library, chain: Sequence[PostOp], operands: Mapping[str, Descriptor]) -> Any:
    lib, ffi = library.lib, library.ffi
    handle = ffi.new("dnnl_post_ops_t *")
    library.check(lib.dnnl_post_ops_create(handle), "post-ops")
    owned = ffi.gc(handle[0], lib.dnnl_post_ops_destroy)
    for op in chain:
        if op.operand:
            kind = getattr(lib, _BINARY[op.kind])
            status = lib.dnnl_post_ops_append_binary(owned, kind, operands[op.operand].handle)
        else:
            kind = getattr(lib, f"dnnl_eltwise_{op.kind}")
            status = lib.dnnl_post_ops_append_eltwise(owned, kind, op.alpha, op.beta)
        library.check(status, f"post-op {op.kind}")
    return owned


def bound_arguments(
    library: Library, primitive: MatmulPrimitive, memories: Mapping[str, Memory]
) -> Any:
    """The argument array of a product; keep the memories alive beside it."""
    pairs = ((number, name) for name, all_ in primitive.numbers.items() for number in all_)
    return bind(library, {number: memories[name] for number, name in pairs})
