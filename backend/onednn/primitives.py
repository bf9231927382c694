"""RNN primitives for one layer and one direction, and the weights packed for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import Descriptor, Memory, reordered
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights

CAPACITY = 512
"""Most primitives that a direction keeps; about 0.2 MB each."""


class Shape(NamedTuple):
    """What a primitive is made for: T, N, and the strides of T and N in x and in y."""

    time: int
    batch: int
    x_strides: tuple[int, int]
    y_strides: tuple[int, int]


class Primitive(NamedTuple):
    """A created primitive: its C object, kernel name, and descriptors by argument name."""

    handle: Any
    kernel: str
    descriptors: Mapping[str, Descriptor]


_CREATE = {
    Cell.RNN_TANH: "vanilla_rnn",
    Cell.RNN_RELU: "vanilla_rnn",
    Cell.RNN_SIGMOID: "vanilla_rnn",
    Cell.LSTM: "lstm",
    Cell.GRU: "gru",
    Cell.LBR_GRU: "lbr_gru",
    Cell.AUGRU: "augru",
    Cell.LBR_AUGRU: "lbr_augru",
}
_ELTWISE = {
    Cell.RNN_TANH: "dnnl_eltwise_tanh",
    Cell.RNN_RELU: "dnnl_eltwise_relu",
    Cell.RNN_SIGMOID: "dnnl_eltwise_logistic",
}
WEIGHTS = ("weights_layer", "weights_iter", "bias", "weights_peephole", "weights_projection")


class DirectionPrimitives:
    """The primitives of one layer and direction: made once a shape, weights packed once a layout.

    Safe to use from several threads.
    """

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights) -> None:
        self.library, self.spec = library, spec
        self._plain = _plain_weights(library, spec, weights)
        self._packed: list[tuple[str, Memory]] = []
        self._made: OrderedDict[Shape, Primitive] = OrderedDict()
        self._lock = Lock()
        self._attributes = _attributes(library)

    def get(self, shape: Shape) -> Primitive:
        """The primitive for a shape. Raises `UnsupportedError` where the library has none."""
        with self._lock:
            found = self._made.get(shape)
            if found is None:
                found = self._made[shape] = self._create(shape)
                if len(self._made) > CAPACITY:
                    self._made.popitem(last=False)
            else:
                self._made.move_to_end(shape)
            return found

    def weights(self, name: str, descriptor: Descriptor) -> Memory:
        """A weight in the layout that a primitive asks for; packed once, then shared."""
        with self._lock:
            for packed, memory in self._packed:
                if packed == name and memory.descriptor == descriptor:
                    return memory
            plain = self._plain[name]
            memory = plain if plain.descriptor == descriptor else reordered(plain, descriptor)
            self._packed.append((name, memory))
            return memory

    def _create(self, shape: Shape) -> Primitive:
        library, spec = self.library, self.spec
        lib, ffi = library.lib, library.ffi
        wanted = self._descriptors(shape)
        middle = [wanted[n].handle if n in wanted else ffi.NULL for n in _argument_order(spec.cell)]
        activation = [getattr(lib, _ELTWISE[spec.cell])] if spec.cell in _ELTWISE else []
        slope = [0.0, 0.0] if spec.cell in _ELTWISE else []
        pd = ffi.new("dnnl_primitive_desc_t *")
        status = getattr(lib, f"dnnl_{_CREATE[spec.cell]}_forward_primitive_desc_create")(
            pd,
            library.engine,
            lib.dnnl_forward_inference,
            *activation,
            getattr(lib, f"dnnl_unidirectional_{spec.direction}"),
            *middle,
            lib.dnnl_rnn_flags_undef,
            *slope,
            self._attributes,
        )
        if status == lib.dnnl_unimplemented:
            raise UnsupportedError(f"oneDNN {library.version} has no {spec.cell.name} of this kind")
        library.check(status, f"{spec.cell.name} primitive for {shape}")
        described = ffi.gc(pd[0], lib.dnnl_primitive_desc_destroy)
        handle = ffi.new("dnnl_primitive_t *")
        library.check(lib.dnnl_primitive_create(handle, described), "primitive")
        names = (*wanted, "scratchpad")
        return Primitive(
            ffi.gc(handle[0], lib.dnnl_primitive_destroy),
            _kernel(library, described),
            {name: self._chosen(described, name) for name in names},
        )

    def _chosen(self, described: Any, name: str) -> Descriptor:
        """The layout that the primitive settled on for an argument."""
        lib = self.library.lib
        number = getattr(lib, argument(name))
        found = lib.dnnl_primitive_desc_query_md(described, lib.dnnl_query_exec_arg_md, number)
        return Descriptor.copied(self.library, found)

    def _descriptors(self, shape: Shape) -> dict[str, Descriptor]:
        spec, n = self.spec, shape.batch
        plain, strided = Descriptor.tagged, Descriptor.strided
        lib = self.library
        sizes = {"h": spec.recurrent_size, "c": spec.hidden_size}
        x, y = (shape.time, n, spec.input_size), (shape.time, n, spec.recurrent_size)
        out = {
            "src_layer": strided(lib, x, "f32", (*shape.x_strides, 1)),
            "dst_layer": strided(lib, y, "f32", (*shape.y_strides, 1)),
        }
        for state in spec.cell.states:
            suffix = "" if state == "h" else "_c"
            for side in ("src", "dst"):
                dims = (1, 1, n, sizes[state])
                out[f"{side}_iter{suffix}"] = plain(lib, dims, "f32", "ldnc")
        if spec.cell.has_attention:
            out["augru_attention"] = plain(lib, (shape.time, n, 1), "f32", "tnc")
        for name, memory in self._plain.items():
            # Plain layouts would select a slow kernel; bias and peephole have no other.
            free = name in ("weights_layer", "weights_iter", "weights_projection")
            dims = memory.data.shape if memory.data is not None else ()
            out[name] = plain(lib, dims, "f32", "any") if free else memory.descriptor
        return out


def argument(name: str) -> str:
    """oneDNN's name of an execution argument: dst_iter_c -> DNNL_ARG_DST_ITER_C."""
    return f"DNNL_ARG_{name.upper()}"


def _argument_order(cell: Cell) -> list[str]:
    """The descriptors as the C creators of the forward primitives take them."""
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


def _plain_weights(library: Library, spec: RnnSpec, weights: RnnWeights) -> dict[str, Memory]:
    layer, bias = weights.layer, weights.bias
    if layer is None:  # the input is projected already: times one, exactly
        layer = np.eye(spec.input_size, dtype=np.float32).reshape(
            1, 1, spec.input_size, spec.gates, spec.hidden_size
        )
    if bias is None:  # oneDNN asks for one
        bias = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), np.float32)
    arrays = (layer, weights.iter, bias, weights.peephole, weights.projection)
    tags = ("ldigo", "ldigo", "ldgo", "ldgo", "ldio")
    return {
        name: Memory(Descriptor.tagged(library, array.shape, "f32", tag), array)
        for name, array, tag in zip(WEIGHTS, arrays, tags, strict=True)
        if array is not None
    }


def _attributes(library: Library) -> Any:
    """A scratchpad of our own: the library's own may only be used by the thread that created it."""
    lib, ffi = library.lib, library.ffi
    handle = ffi.new("dnnl_primitive_attr_t *")
    library.check(lib.dnnl_primitive_attr_create(handle), "attributes")
    owned = ffi.gc(handle[0], lib.dnnl_primitive_attr_destroy)
    status = lib.dnnl_primitive_attr_set_scratchpad_mode(owned, lib.dnnl_scratchpad_mode_user)
    library.check(status, "scratchpad mode")
    return owned


def _kernel(library: Library, described: Any) -> str:
    lib, ffi = library.lib, library.ffi
    name = ffi.new("char **")
    status = lib.dnnl_primitive_desc_query(described, lib.dnnl_query_impl_info_str, 0, name)
    library.check(status, "kernel name")
    return ffi.string(name[0]).decode()
