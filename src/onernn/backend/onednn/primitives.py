"""The inference primitives of one layer and direction, and the weights packed for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.creation_lock import CREATION
from onernn.backend.onednn.creation import Primitive, create, new_attributes
from onernn.backend.onednn.data_types import narrowed
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import Descriptor, Memory, reordered
from onernn.backend.onednn.precision import Precision
from onernn.backend.onednn.quantization import set_scales
from onernn.backend.onednn.wrong_kernels import OWN_LAYOUTS, reason
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import NO_SCALES, PartScales, RnnWeights, Scale

PACKED_BYTES = 64 << 20
"""Most that a direction keeps of narrow weights packed more than once.

Kernels of float32 are as fast over plain ones, of which one copy stays in the cache (measured: 3.2,
ragged 512->512 GRUs 36.2 ms plain, 37.6 over 12 packs of 6 MB).
"""


class Shape(NamedTuple):
    """What a primitive is made for: T, N, and the strides of T and N in x and in y, in elements."""

    time: int
    batch: int
    x_strides: tuple[int, int]
    y_strides: tuple[int, int]

    @classmethod
    def packed(cls, time: int, batch: int, x: int, y: int) -> Shape:
        """For packed rows that are x and y elements apart."""
        return cls(time, batch, (batch * x, x), (batch * y, y))


WEIGHTS = {
    "weights_layer": "ldigo",
    "weights_iter": "ldigo",
    "bias": "ldgo",
    "weights_peephole": "ldgo",
    "weights_projection": "ldio",
}
"""Weight arguments and their canonical layouts, in the order of `RnnWeights`."""


class PrimitiveCache:
    """The primitives of one layer and direction: made once a shape, weights packed once a layout.

    Bounded, and safe to use from several threads; everything under one thread count.
    """

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: Precision,
        *,
        scale: Scale | None = None,
        per_channel: bool = True,
        columns: PartScales = NO_SCALES,
    ) -> None:
        self.library, self.spec, self.precision = library, spec, precision
        self.plain = plain_weights(library, spec, weights, precision)
        self.attributes = new_attributes(library, own_scratchpad=True)
        reordering = new_attributes(library, own_scratchpad=False)
        for attributes in (self.attributes, reordering):
            if scale is not None:
                set_scales(library, attributes, weights, scale, per_channel, columns)
        self.hits = self.misses = 0
        self._packed = PackedWeights(self.plain, reordering)
        self._made: OrderedDict[Shape, Primitive] = OrderedDict()

    def get(self, shape: Shape) -> Primitive:
        """The primitive for a shape. Raises `UnsupportedError` where the library has none."""
        with CREATION:
            found = self._made.get(shape)
            if found is not None:
                self.hits += 1
                self._made.move_to_end(shape)
                return found
            self.misses += 1
            found = self._create(shape)
            budget = 0 if self.precision.weights == "f32" else PACKED_BYTES
            if not self._packed.affords(found.layouts, budget):
                with suppress(UnsupportedError):  # u8 has packed layouts only, and one of them
                    found = self._create(shape, plain=True)
            self._made[shape] = found
            if len(self._made) > self.library.cache_capacity:
                self._made.popitem(last=False)
            return found

    def _create(self, shape: Shape, *, plain: bool = False) -> Primitive:
        plain = plain or bool(reason(OWN_LAYOUTS, self.spec, self.precision.weights))
        wanted = descriptors(
            self.library, self.spec, self.plain, self.precision, shape, plain_layouts=plain
        )
        return create(self.library, self.spec, "forward_inference", wanted, self.attributes)

    def weights(self, name: str, layout: Descriptor) -> Memory:
        """A weight in the layout that a primitive asks for."""
        return self._packed.get(name, layout)


class PackedWeights:
    """Weights in every layout that was asked for; packed once, then shared between threads."""

    def __init__(self, plain: Mapping[str, Memory], attributes: Any = None) -> None:
        self._plain, self._attributes = plain, attributes
        self._packed: dict[str, list[Memory]] = {name: [] for name in plain}

    def get(self, name: str, layout: Descriptor) -> Memory:
        """A weight in a layout; ``attributes`` hold the scales of narrower types."""
        with CREATION:
            for memory in self._packed[name]:
                if memory.descriptor == layout:
                    return memory
            plain = self._plain[name]
            same = plain.descriptor == layout
            memory = plain if same else reordered(plain, layout, self._attributes)
            self._packed[name].append(memory)
            return memory

    def affords(self, layouts: Mapping[str, Descriptor], budget: int) -> bool:
        """Whether these layouts are there, are the first, or leave so many bytes unexceeded.

        The gemm-based kernels of LBR cells, above all, pack anew for every T and N (measured:
        3.2), which would take the memory of hundreds of layers.
        """
        with CREATION:
            missing = [
                layouts[name].nbytes
                for name, packed in self._packed.items()
                if packed and not any(memory.descriptor == layouts[name] for memory in packed)
            ]
            more = (m.descriptor.nbytes for packed in self._packed.values() for m in packed[1:])
            return not missing or sum(missing) + sum(more) <= budget


def descriptors(
    library: Library,
    spec: RnnSpec,
    plain: Mapping[str, Memory],
    precision: Precision,
    shape: Shape,
    *,
    plain_layouts: bool = False,
) -> dict[str, Descriptor]:
    """The forward arguments' descriptors: data strided, states plain, weights as they like it.

    ``plain_layouts``: weights in their canonical layouts instead.
    """
    time, batch = shape.time, shape.batch
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}

    def strided(channels: int, dtype: str, strides: tuple[int, int]) -> Descriptor:
        return Descriptor.strided(library, (time, batch, channels), dtype, (*strides, 1))

    out = {
        "src_layer": strided(spec.input_size, precision.data, shape.x_strides),
        "dst_layer": strided(spec.recurrent_size, precision.out, shape.y_strides),
    }
    for state in spec.cell.states:
        name, dtype = ("iter", precision.data) if state == "h" else ("iter_c", precision.cell)
        for side in ("src", "dst"):
            dims = (1, 1, batch, widths[state])
            out[f"{side}_{name}"] = Descriptor.tagged(library, dims, dtype, "ldnc")
    if spec.cell.has_attention:
        out["augru_attention"] = strided(1, precision.data, (batch, 1))
    # Plain layouts would select a slow kernel: "any" lets the primitive choose.
    for name, memory in plain.items():
        layout = WEIGHTS[name] if plain_layouts else "any"
        if name in ("bias", "weights_peephole"):
            out[name] = memory.descriptor
        else:
            out[name] = Descriptor.tagged(
                library, memory.descriptor.dims, precision.weights, layout
            )
    return out


def plain_weights(
    library: Library, spec: RnnSpec, weights: RnnWeights, precision: Precision
) -> dict[str, Memory]:
    """The weights in their canonical layouts, as float32, and the bias in its own type."""
    layer, bias = weights.layer, weights.bias
    if layer is None:  # the input is projected already: times one, exactly
        eye = np.eye(spec.input_size, dtype=np.float32)
        layer = eye.reshape(1, 1, spec.input_size, spec.gates, spec.hidden_size)
    if bias is None:  # oneDNN asks for one
        bias = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), np.float32)
    arrays: tuple[Array | None, ...]
    arrays = (layer, weights.iter, bias, weights.peephole, weights.projection)
    out: dict[str, Memory] = {}
    for (name, tag), array in zip(WEIGHTS.items(), arrays, strict=True):
        if array is None:
            continue
        dtype = precision.bias if name == "bias" else "f32"
        layout = Descriptor.tagged(library, array.shape, dtype, tag)
        out[name] = Memory(layout, narrowed(library, array, dtype))
    return out
