"""Inference on oneDNN's RNN primitives: one layer in one direction, in floating point or u8."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.backend.layer_walk import (
    DirectionKernel,
    PackedBatch,
    Segment,
    magnitude,
    segments,
    single_steps,
)
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.memory import (
    LARGEST,
    Descriptor,
    Memory,
    Primitive,
    argument,
    bind,
    create,
    find_buffer_dtype,
    narrow,
    new_attributes,
    new_stream,
    reorder,
    widen,
)
from onernn.backend.onednn.precision import OWN_LAYOUTS, PRECISIONS, Precision, U8Options, reason
from onernn.backend.process import (
    CREATION,
    LARGEST_KEPT,
    Buffers,
    UsualNeed,
    allocate_aligned,
    take_idle,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import NOTHING
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import NO_SCALES, UNIT, PartScales, RnnWeights, Scale, own_factors

_PER_GATE_AND_OUTPUT = (1 << 3) | (1 << 4)  # axes g and o of ldigo
_PER_OUTPUT = 1 << 3  # axis o of ldio


def set_scales(
    library: Library,
    attributes: Any,
    weights: RnnWeights,
    scale: Scale,
    per_channel: bool,
    columns: PartScales = NO_SCALES,
) -> None:
    """Sets the scales of data, weights and projection in a primitive's attributes.

    The weights of x and the weights of h have the same scales, because their products are added as
    integers. There is one scale per output channel of each gate, or one for all. ``columns``:
    scales to use; without them, a scale is 127 / the largest weight.
    """
    lib, ffi = library.lib, library.ffi
    status = lib.dnnl_primitive_attr_set_rnn_data_qparams(attributes, *scale)
    library.check(status, "data scale")

    def set_columns(name: str, matrix: Array, given: Array | None, mask: int) -> None:
        values = _factors(matrix, per_channel, given)
        mask, pointer = mask * (values.size > 1), ffi.cast("float *", values.ctypes.data)
        set_qparams = getattr(lib, f"dnnl_primitive_attr_set_rnn_{name}_qparams")
        library.check(set_qparams(attributes, values.size, mask, pointer), f"{name} scale")

    both = [a[0, 0] for a in (weights.layer, weights.iter) if a is not None]
    set_columns("weights", np.concatenate(both), columns.layer, _PER_GATE_AND_OUTPUT)
    if weights.projection is not None:
        matrix = weights.projection[0, 0]
        set_columns("weights_projection", matrix, columns.projection, _PER_OUTPUT)


def _factors(matrix: Array, per_channel: bool, given: Array | None) -> Array:
    if given is not None:
        return given.reshape(-1)
    factors = own_factors(matrix, 0).reshape(-1)
    return factors if per_channel else factors.min(keepdims=True)


# The inference primitives of one layer and direction, and the weights packed for them.

PACKED_BYTES = 64 << 20
"""The maximum number of bytes for packed copies of the bf16, f16 or int8 weights of one direction,
apart from the first copy.

For float32, the maximum is 0: kernels are as fast with unpacked weights, of which one copy stays in
the cache (measured on 3.2: ragged 512->512 GRUs 36.2 ms unpacked, 37.6 ms with 12 copies of 6 MB).
"""


class Shape(NamedTuple):
    """The shape of a primitive: T, N, and the strides between the rows of x and of y, in
    elements.
    """

    time: int
    batch: int
    x: int
    y: int


WEIGHTS = {
    "weights_layer": "ldigo",
    "weights_iter": "ldigo",
    "bias": "ldgo",
    "weights_peephole": "ldgo",
    "weights_projection": "ldio",
}
"""The weight arguments and their canonical layouts, in the order of `RnnWeights`."""


class PackedWeights:
    """Packed copies of weights, one for each requested layout; threads share them."""

    def __init__(self, plain: Mapping[str, Memory], attributes: Any = None) -> None:
        self._plain, self._attributes = plain, attributes
        self._packed: dict[str, list[Memory]] = {name: [] for name in plain}

    def get(self, name: str, layout: Descriptor) -> Memory:
        """Returns a weight in a layout, which the first call packs."""
        with CREATION:
            for memory in self._packed[name]:
                if memory.descriptor == layout:
                    return memory
            plain = self._plain[name]
            same = plain.descriptor == layout
            memory = plain if same else reorder(plain, layout, self._attributes)
            self._packed[name].append(memory)
            return memory

    def affords(self, layouts: Mapping[str, Descriptor], budget: int) -> bool:
        """Returns whether packed copies in these layouts fit into a budget of bytes.

        The first copy of a weight does not count. The gemm-based kernels of LBR cells choose
        another layout for every T and N (measured on 3.2): all copies would take the memory of
        hundreds of layers.
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
    """Returns the memory descriptors of the forward arguments.

    x and y have the strides in ``shape``. The primitive chooses the layouts of the weight matrices,
    unless ``plain_layouts`` requires the canonical ones.
    """
    time, batch = shape.time, shape.batch
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}

    def rows(channels: int, dtype: str, apart: int) -> Descriptor:
        strides = (batch * apart, apart, 1)
        return Descriptor.from_strides(library, (time, batch, channels), dtype, strides)

    out = {
        "src_layer": rows(spec.input_size, precision.data, shape.x),
        "dst_layer": rows(spec.recurrent_size, precision.out, shape.y),
    }
    for state in spec.cell.states:
        name, dtype = ("iter", precision.data) if state == "h" else ("iter_c", precision.cell)
        for side in ("src", "dst"):
            dims = (1, 1, batch, widths[state])
            out[f"{side}_{name}"] = Descriptor.from_tag(library, dims, dtype, "ldnc")
    if spec.cell.has_attention:
        out["augru_attention"] = rows(1, precision.data, 1)
    # With plain layouts, oneDNN selects a slow kernel. "any" lets the primitive choose the layout.
    for name, memory in plain.items():
        layout = WEIGHTS[name] if plain_layouts else "any"
        if name in ("bias", "weights_peephole"):
            out[name] = memory.descriptor
        else:
            out[name] = Descriptor.from_tag(
                library, memory.descriptor.dims, precision.weights, layout
            )
    return out


def plain_weights(
    library: Library, spec: RnnSpec, weights: RnnWeights, precision: Precision
) -> dict[str, Memory]:
    """Returns the weights in their canonical layouts: float32, and the bias in the precision's
    type.
    """
    layer, bias = weights.layer, weights.bias
    if layer is None:  # x is projected already: the identity matrix leaves it unchanged
        eye = np.eye(spec.input_size, dtype=np.float32)
        layer = eye.reshape(1, 1, spec.input_size, spec.gates, spec.hidden_size)
    if bias is None:  # oneDNN requires a bias
        bias = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), np.float32)
    arrays: tuple[Array | None, ...]
    arrays = (layer, weights.iter, bias, weights.peephole, weights.projection)
    out: dict[str, Memory] = {}
    for (name, tag), array in zip(WEIGHTS.items(), arrays, strict=True):
        if array is None:
            continue
        dtype = precision.bias if name == "bias" else "f32"
        layout = Descriptor.from_tag(library, array.shape, dtype, tag)
        out[name] = Memory(layout, narrow(array, dtype))
    return out


# One layer in one direction: runs the segments of a packed batch in order.


class _Workspace(threading.local):
    """Memory that each thread reuses: the states between segments, and the scratchpad."""

    def __init__(self) -> None:
        self.buffers, self._usual = Buffers(), UsualNeed(LARGEST_KEPT)
        self._scratchpad, self._address = allocate_aligned(0), 0

    def scratchpad(self, nbytes: int) -> int:
        if nbytes > len(self._scratchpad):
            self._scratchpad = allocate_aligned(nbytes)
            self._address = self._scratchpad.ctypes.data
        return self._address

    def end_run(self, nbytes: int) -> None:
        """Frees the scratchpad if it is much larger than runs usually need."""
        self._usual.note(nbytes)
        if not self._usual.keeps(len(self._scratchpad)):
            self._scratchpad = allocate_aligned(0)


_WORKSPACE = _Workspace()


class Bound(NamedTuple):
    """A stream, memories and the argument array, which one execution at a time uses.

    ``handles``: the memories whose addresses change between executions. ``places``: their current
    addresses.
    """

    stream: Any
    memories: Mapping[str, Memory]
    arguments: Any
    handles: Sequence[Any]
    places: list[int]


class Executable:
    """A primitive that several threads may execute at once: each execution has its own arguments.

    ``fixed``: memories whose addresses never change. The other arguments get an address for each
    execution.
    """

    def __init__(
        self,
        library: Library,
        primitive: Primitive,
        fixed: Mapping[str, Memory] = NOTHING,
    ) -> None:
        self.layouts, self.name = primitive.layouts, primitive.kernel
        self._library, self._handle, self._fixed = library, primitive.handle, fixed
        self._moving = [name for name in self.layouts if name not in {*fixed, "scratchpad"}]
        self._scratchpad = self.layouts["scratchpad"].nbytes
        self._idle: deque[Bound] = deque()

    def _bind(self) -> Bound:
        library = self._library
        memories = {
            name: self._fixed[name] if name in self._fixed else Memory(layout)
            for name, layout in self.layouts.items()
        }
        numbered = {argument(library, name): memory for name, memory in memories.items()}
        handles = [memories[name].handle for name in (*self._moving, "scratchpad")]
        arguments = bind(library, numbered)
        return Bound(new_stream(library), memories, arguments, handles, [0] * len(handles))

    def execute(self, addresses: Mapping[str, int]) -> None:
        """Runs the primitive; ``addresses`` has the addresses of all arguments that are not
        fixed.
        """
        lib, cast = self._library.lib, self._library.ffi.cast
        bound = take_idle(self._idle, self._bind)
        wanted = [addresses[name] for name in self._moving]
        wanted.append(_WORKSPACE.scratchpad(self._scratchpad))
        for k, address in enumerate(wanted):
            if bound.places[k] != address:  # this comparison saves a slower call of C
                lib.dnnl_memory_set_data_handle(bound.handles[k], cast("void *", address))
                bound.places[k] = address
        status = lib.dnnl_primitive_execute(
            self._handle, bound.stream, len(bound.memories), bound.arguments
        )
        self._idle.append(bound)
        _WORKSPACE.end_run(self._scratchpad)
        if status:
            self._library.check(status, "execution of an RNN primitive")


def addresses(array: Array, rows: Iterable[int]) -> list[int]:
    """Returns the address of each row of an array whose index is in ``rows``."""
    start, step = int(array.ctypes.data), array.strides[0]
    return [start + row * step for row in rows]


def state_addresses(
    spec: RnnSpec, states: Sequence[Array], turns: Sequence[int], of: str = ""
) -> dict[str, list[int]]:
    """Returns the addresses of the initial and final states of each segment.

    Segment k reads buffer turns[k] of the states (K, N, O) and writes buffer turns[k + 1]. ``of``:
    the prefix "diff_" for gradients.
    """
    table = dict[str, list[int]]()
    for name, state in zip(spec.cell.states, states, strict=True):
        places, suffix = addresses(state, turns), "" if name == "h" else "_c"
        table |= {
            f"{of}src_iter{suffix}": places[:-1],
            f"{of}dst_iter{suffix}": places[1:],
        }
    return table


def by_piece(table: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Converts the addresses of all segments by argument to one dict of addresses for each
    segment.
    """
    return [dict(zip(table, column, strict=True)) for column in zip(*table.values(), strict=True)]


def carry(
    order: Sequence[Segment],
    begin: Sequence[Array],
    states: Sequence[Array],
    execute: Callable[[int], None],
) -> list[Array]:
    """Runs consecutive segments. Returns the state of each sequence after its last segment.

    ``states``: a ring of buffers (K, N, O); segment k reads buffer k and writes buffer k + 1.
    """
    ends = [s.copy() for s in begin]
    for ring, first in zip(states, begin, strict=True):
        ring[0] = first
    for k, piece in enumerate(order):
        execute(k)
        batch, left = piece.batch, order[k + 1].batch if k + 1 < len(order) else 0
        for ring, end, first in zip(states, ends, begin, strict=True):
            after = ring[(k + 1) % len(ring)]
            # Sequences that end store their final state; sequences that start get their initial
            # state.
            if left < batch:
                end[left:batch] = after[left:batch]
            elif left > batch:
                after[batch:left] = first[batch:left]
    return ends


class PrimitiveDirection:
    """The primitives of one layer and direction, one for each shape; threads share them.

    Weights are packed once for each layout. The number of primitives is limited. All of them are
    made for the same number of threads inside.
    """

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: Precision,
        scale: Scale | None = None,
        per_channel: bool = True,
        columns: PartScales = NO_SCALES,
    ) -> None:
        self._library, self._precision = library, precision
        self._backwards = spec.direction == "right2left"
        # oneDNN's AUGRU cells run left to right only, so a layer in the opposite direction runs as
        # single steps in reverse order.
        self._stepwise = self._backwards and spec.cell.has_attention
        self._spec = replace(spec, direction="left2right") if self._stepwise else spec
        self.plain = plain_weights(library, spec, weights, precision)
        self._attributes = new_attributes(library, own_scratchpad=True)
        reordering = new_attributes(library, own_scratchpad=False)
        for attributes in (self._attributes, reordering):
            if scale is not None:
                set_scales(library, attributes, weights, scale, per_channel, columns)
        self.packed = PackedWeights(self.plain, reordering)
        self.hits = self.misses = 0
        self._made: dict[Shape, Executable] = {}
        self.kernel = self.get(Shape(1, 1, spec.input_size, spec.recurrent_size)).name

    def get(self, shape: Shape) -> Executable:
        """Returns the primitive for a shape. Raises `UnsupportedError` if oneDNN has none."""
        if (result := self._made.get(shape)) is not None:
            self.hits += 1
            return result
        with CREATION:
            if shape not in self._made:
                self.misses += 1
                primitive = self._create(shape)
                budget = 0 if self._precision.weights == "f32" else PACKED_BYTES
                if not self.packed.affords(primitive.layouts, budget):
                    with suppress(UnsupportedError):  # u8 primitives exist only for packed layouts
                        primitive = self._create(shape, plain=True)
                layouts = primitive.layouts
                weights = {name: self.packed.get(name, layouts[name]) for name in self.plain}
                made = Executable(self._library, primitive, weights)
                if len(self._made) >= self._library.cache_capacity:
                    del self._made[next(iter(self._made))]  # removes the oldest primitive
                self._made[shape] = made
            return self._made[shape]

    def _create(self, shape: Shape, *, plain: bool = False) -> Primitive:
        plain = plain or bool(reason(OWN_LAYOUTS, self._spec, self._precision.weights))
        wanted = descriptors(
            self._library, self._spec, self.plain, self._precision, shape, plain_layouts=plain
        )
        return create(self._library, self._spec, "forward_inference", wanted, self._attributes)

    def run(self, batch: PackedBatch) -> list[Array]:
        """Returns the final states (n, O) of the sequences that have steps.

        The states have the data types in ``precision``.
        """
        x, y, packing, initial, attention = batch
        pieces = segments(packing)
        if self._stepwise:
            pieces = single_steps(pieces)
        order = pieces[::-1] if self._backwards else pieces
        rows = [piece.row for piece in order]
        table = {"src_layer": addresses(x, rows), "dst_layer": addresses(y, rows)}
        if attention is not None:
            table["augru_attention"] = addresses(attention, rows)
        # The states alternate between two buffers, because oneDNN may not write the memory that it
        # reads.
        states = [
            _WORKSPACE.buffers.array(name, (2 * len(s), s.shape[1]), s.dtype).reshape(2, *s.shape)
            for name, s in zip(self._spec.cell.states, initial, strict=True)
        ]
        turns = [k % 2 for k in range(len(order) + 1)]
        places = by_piece(table | state_addresses(self._spec, states, turns))
        strides = (x.strides[0] // x.itemsize, y.strides[0] // y.itemsize)

        def execute(k: int) -> None:
            _, time, count = order[k]
            self.get(Shape(time, count, *strides)).execute(places[k])

        ends = carry(order, initial, states, execute)
        return [end[: len(packing.last)] for end in ends]


# The kernels of one layer and direction. A u8 kernel has primitives for each scale of states and
# inputs.

MOST = 2.0**15
"""The largest magnitude that inputs of u8 layers may have."""

BOUND = 1.0
"""The bound of h in a layer without projection: |o * tanh(c)| <= 1."""


class OneDnnKernel(DirectionKernel):
    """A kernel whose inputs and outputs may have the precision's data types; callers pass states in
    float32.
    """

    def __init__(self, library: Library, spec: RnnSpec, precision: Precision) -> None:
        self._library, self.spec, self.precision = library, spec, precision
        self._kinds = (precision.data, precision.cell)
        self.dtype = find_buffer_dtype(precision.out)
        self._made: dict[Any, PrimitiveDirection] = {}

    def cache_info(self) -> tuple[int, int]:
        """Implements `DirectionKernel.cache_info`."""
        made = [*self._made.values()]
        return sum(each.hits for each in made), sum(each.misses for each in made)

    def read(self, words: Array) -> Array:
        """Returns steps in the type that the primitive reads; the output of another layer already
        has it.
        """
        return words if words.dtype != np.float32 else narrow(words, self.precision.data)

    def narrow_states(self, states: Sequence[Array]) -> list[Array]:
        """Converts states to the types that the primitive reads."""
        return [narrow(s, kind) for s, kind in zip(states, self._kinds, strict=False)]

    def widen_states(self, states: Sequence[Array]) -> list[Array]:
        """Converts states to float32."""
        return [widen(s, kind) for s, kind in zip(states, self._kinds, strict=False)]

    def widen(self, y: Array) -> Array:
        """Implements `DirectionKernel.widen`."""
        return y if y.dtype == np.float32 else widen(y, self.precision.out)


class FloatKernel(OneDnnKernel):
    """A kernel that computes in f32, bf16 or f16."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        super().__init__(library, spec, PRECISIONS[dtype])
        self._direction = PrimitiveDirection(library, spec, weights, self.precision)
        self._made[dtype] = self._direction
        self.name = self._direction.kernel
        # For a projected x, the weights are the identity, whose product with infinity has NaN.
        # oneDNN's relu returns 0 for NaN (3.2, 3.6). In bf16, oneDNN's reference kernel multiplies
        # the last of an odd number of channels by 0, and infinity becomes NaN.
        identity = weights.layer is None
        pairs = self.name == "ref" and dtype == "bf16"
        if identity or pairs or spec.cell is Cell.RNN_RELU:
            self.exact_below = LARGEST[dtype]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """Implements `DirectionKernel.run`."""
        words, y, packing, begin, attention = batch
        if attention is not None:
            attention = narrow(attention, self.precision.data)
        read = PackedBatch(self.read(words), y, packing, self.narrow_states(begin), attention)
        return self.widen_states(self._direction.run(read)), None


def _check_magnitude(name: str, array: Array, most: float) -> float:
    result = magnitude(array)
    if not result <= most:
        raise UnsupportedError(
            f"{name}: expected values in [-{most:g}, {most:g}] for u8, got {result}"
        )
    return result


class U8Kernel(OneDnnKernel):
    """A kernel for LSTM and GRU in u8, which checks x and states before it converts them.

    States are rounded with an error of up to bound/127. The bound of h is 1, because |o * tanh(c)|
    <= 1. With a projection, the bound is the largest sum of magnitudes in a column of the
    projection matrix, but h rarely exceeds 1. A run starts with the smallest bound that the initial
    h allows. If an output reaches the bound, it may have been cut off, and the run is repeated with
    twice the bound. Inputs whose magnitude exceeds the bound are divided by a power of two. Each
    pair of a bound and a power has its own primitives.
    """

    def __init__(
        self, library: Library, spec: RnnSpec, weights: RnnWeights, options: U8Options
    ) -> None:
        super().__init__(library, spec, PRECISIONS["u8"])
        if options.fixed is None and options.scales[0].layer is not None:
            raise UnsupportedError("weights_scales: expected a data_scale too on oneDNN, got None")
        self._weights, self._options = weights, options
        self._bounds = [BOUND]
        if weights.projection is not None:
            worst = float(np.abs(weights.projection).sum(axis=2).max())
            while self._bounds[-1] < worst:
                self._bounds.append(2 * self._bounds[-1])
        self.name = self._direction(BOUND, 0).kernel

    def _scale(self, bound: float) -> Scale:
        return self._options.fixed or Scale(UNIT.factor / bound, UNIT.shift)

    def _direction(self, bound: float, exponent: int) -> PrimitiveDirection:
        if (bound, exponent) not in self._made:
            with CREATION:
                if (bound, exponent) not in self._made:
                    weights = self._weights
                    if exponent and weights.layer is not None:
                        layer = weights.layer * np.float32(2.0**exponent)
                        weights = replace(weights, layer=layer)
                    self._made[bound, exponent] = PrimitiveDirection(
                        self._library,
                        self.spec,
                        weights,
                        self.precision,
                        self._scale(bound),
                        self._options.per_channel,
                        self._options.scales[0],
                    )
        return self._made[bound, exponent]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """Implements `DirectionKernel.run`."""
        words, y, packing, (h, *c), _ = batch
        largest_h = _check_magnitude("state h", h, self._bounds[-1])
        largest_x = _check_magnitude("x", words, MOST)
        for bound in self._bounds:
            if largest_h > bound:
                continue
            scale, over = self._scale(bound), largest_x / bound
            # The smallest power of two by which inputs must be divided so that none exceeds the
            # bound.
            exponent = math.ceil(math.log2(over)) if over > 1 and not self._options.fixed else 0
            x = narrow(words, "u8", Scale(scale.factor * 0.5**exponent, scale.shift))
            first = [narrow(h, "u8", scale), *map(np.ascontiguousarray, c)]
            ends = self._direction(bound, exponent).run(PackedBatch(x, y, packing, first))
            if bound is self._bounds[-1] or np.abs(y).max(initial=0) < bound * 126.5 / 127:
                break
        # The final h comes from the float32 output, which is at least as exact as the u8 state.
        backwards = self.spec.direction == "right2left"
        return [y[: len(packing.last)] if backwards else y[packing.last], *ends[1:]], None


def new_kernel(
    spec: RnnSpec,
    weights: RnnWeights,
    options: U8Options | None = None,
    *,
    library: Library,
    dtype: str,
) -> OneDnnKernel:
    """Returns the kernel for a data type; ``options``: the u8 options of this layer and direction.

    Raises `UnsupportedError` if oneDNN has no such kernel.
    """
    if options is None:
        return FloatKernel(library, spec, weights, dtype)
    return U8Kernel(library, spec, weights, options)
