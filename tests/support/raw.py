"""oneDNN's RNN primitive called as its guide tells, with none of the package's precautions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn import RnnSpec, RnnWeights
from onernn.backend.onednn.kernels import Shape, descriptors, plain_weights, set_scales
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.memory import (
    _ELTWISE,
    Descriptor,
    Memory,
    argument,
    argument_order,
    bind,
    create,
    narrowed,
    new_attributes,
    new_primitive,
    new_stream,
    reordered,
    stored,
    widened,
)
from onernn.backend.onednn.precision import CREATORS, PRECISIONS, Precision
from onernn.ir.errors import UnsupportedError
from onernn.ir.weights import Scale

S8 = Precision("s8", "s8", "f32", "f32", "f32")
S8_SCALE = Scale(127.0, 0.0)


def run_raw(
    spec: RnnSpec,
    weights: RnnWeights,
    x: np.ndarray,
    state: tuple[np.ndarray, ...],
    precision: Precision,
    scale: Scale | None = None,
    *,
    dst_iter_is_src_iter: bool = False,
    dst_state: tuple[np.ndarray, ...] | None = None,
    own_scratchpad: bool = True,
    executed: Callable[[Callable[[], None]], None] = lambda execute: execute(),
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """(y, final state) of a layer on dense x (T, N, I).

    The weights are in the layouts that the primitive asks for. ``dst_state``: arrays like the final
    state, where that is not like the first one. ``executed`` may run its argument
    elsewhere. Raises `UnsupportedError` where the library has no such primitive.
    """
    library = load_library()
    lib, ffi = library.lib, library.ffi
    plain = plain_weights(library, spec, weights, precision)
    attributes = [new_attributes(library, own_scratchpad=own) for own in (own_scratchpad, False)]
    if scale is not None:
        for each in attributes:
            set_scales(library, each, weights, scale, per_channel=True)

    def tagged(shape: tuple[int, ...], dtype: str, tag: str) -> Descriptor:
        return Descriptor.tagged(library, shape, dtype, tag)

    out_shape = (*x.shape[:2], spec.output_size)
    wanted = {
        "src_layer": tagged(x.shape, precision.data, "tnc"),
        "dst_layer": tagged(out_shape, precision.out, "tnc"),
    }
    names = dict(zip(("iter", "iter_c"), state, strict=False))
    dtypes = {"iter": precision.data, "iter_c": precision.cell}
    for name, array in names.items():
        wanted[f"src_{name}"] = tagged(array.shape, dtypes[name], "ldnc")
    ends = dict(zip(names, dst_state or state, strict=True))
    for name, array in ends.items():
        wanted[f"dst_{name}"] = tagged(array.shape, dtypes[name], "ldnc")
    for name, memory in plain.items():
        narrow = name not in ("bias", "weights_peephole")
        dims = memory.descriptor.dims
        wanted[name] = tagged(dims, precision.weights, "any") if narrow else memory.descriptor

    pd = ffi.new("dnnl_primitive_desc_t *")
    both = spec.directions == 2
    creator = getattr(lib, f"dnnl_{CREATORS[spec.cell]}_forward_primitive_desc_create")
    function = _ELTWISE.get(spec.cell)
    status = creator(
        pd,
        library.engine,
        lib.dnnl_forward_inference,
        *([getattr(lib, function)] if function else []),
        getattr(lib, f"dnnl_{'' if both else 'unidirectional_'}{spec.direction}"),
        *(wanted[n].handle if n in wanted else ffi.NULL for n in argument_order(spec.cell)),
        lib.dnnl_rnn_flags_undef,
        *([0.0, 0.0] if function else []),
        attributes[0],
    )
    if status == lib.dnnl_unimplemented:
        raise UnsupportedError(f"no {spec.cell.name} in {precision.data}")
    library.check(status, "primitive descriptor")
    described = ffi.gc(pd[0], lib.dnnl_primitive_desc_destroy)

    def chosen(name: str) -> Descriptor:
        number = argument(library, name)
        found = lib.dnnl_primitive_desc_query_md(described, lib.dnnl_query_exec_arg_md, number)
        return Descriptor.copied(library, found)

    def quantized(array: np.ndarray, dtype: str) -> np.ndarray:
        if dtype == "s8":
            return np.clip(np.rint(array * 127), -128, 127).astype(np.int8)
        return narrowed(array, dtype, *([scale] if scale else [])).copy()

    memories = {"src_layer": Memory(chosen("src_layer"), quantized(x, precision.data))}
    memories["dst_layer"] = Memory.empty(chosen("dst_layer"))
    for name, array in names.items():
        source = Memory(chosen(f"src_{name}"), quantized(array, dtypes[name]))
        memories[f"src_{name}"] = source
        fresh = Memory.empty(chosen(f"dst_{name}"))
        memories[f"dst_{name}"] = source if dst_iter_is_src_iter else fresh
    for name, memory in plain.items():
        layout = chosen(name)
        same = memory.descriptor == layout
        memories[name] = memory if same else reordered(memory, layout, attributes[1])
    if own_scratchpad:
        memories["scratchpad"] = Memory.empty(chosen("scratchpad"))

    primitive, stream = new_primitive(library, described), new_stream(library)
    arguments = bind(library, {argument(library, n): m for n, m in memories.items()})

    def execute() -> None:
        status = lib.dnnl_primitive_execute(primitive, stream, len(memories), arguments)
        library.check(status, "execution")

    executed(execute)

    def result(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        raw = memories[name].data.view(np.int8 if dtype == "s8" else stored(dtype))
        array = raw[: np.prod(shape)].reshape(shape)
        if dtype == "s8":
            return array.astype(np.float32) / 127
        return widened(array, dtype, *([scale] if scale else []))

    y = result("dst_layer", precision.out, out_shape)
    return y, tuple(result(f"dst_{n}", dtypes[n], a.shape) for n, a in ends.items())


def raw_augru_gradient(
    spec: RnnSpec,
    weights: RnnWeights,
    x: np.ndarray,
    h: np.ndarray,
    attention: np.ndarray,
    dy: np.ndarray,
) -> np.ndarray:
    """The gradient by x (T, N, I) of sum(y * dy), from the primitives' own forward and backward."""
    library = load_library()
    precision, (time, batch, _) = PRECISIONS["f32"], x.shape
    plain = plain_weights(library, spec, weights, precision)
    shape = Shape(time, batch, spec.input_size, spec.recurrent_size)
    wanted = descriptors(library, spec, plain, precision, shape)
    tags = {3: "tnc", 4: "ldnc", 5: "ldigo"}
    for name, layout in list(wanted.items()):
        rows = Descriptor.tagged(library, layout.dims, "f32", tags[len(layout.dims)])
        wanted[f"diff_{name}"] = rows
    attributes = new_attributes(library, own_scratchpad=True)
    inputs = {n: d for n, d in wanted.items() if not n.startswith("diff_")}
    forward = create(library, spec, "forward_training", inputs, attributes)
    backward = create(library, spec, "backward", wanted, attributes, forward)
    given = {"src_layer": x, "src_iter": h, "augru_attention": attention, "diff_dst_layer": dy}
    made: dict[str, Memory] = {}
    stream = new_stream(library)
    for primitive in (forward, backward):
        for name, layout in primitive.layouts.items():
            if name in plain:
                same = plain[name].descriptor == layout
                made[name] = plain[name] if same else reordered(plain[name], layout)
            elif name in given:
                made[name] = Memory(layout, np.ascontiguousarray(given[name]))
            elif name not in made or name == "scratchpad":
                made[name] = Memory(layout, np.zeros(layout.nbytes, np.uint8))
        used = {argument(library, name): made[name] for name in primitive.layouts}
        status = library.lib.dnnl_primitive_execute(
            primitive.handle, stream, len(used), bind(library, used)
        )
        library.check(status, "execution")
    return made["diff_src_layer"].data.view(np.float32)[: x.size].reshape(x.shape)
