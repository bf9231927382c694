"""oneDNN's kernels of a layer and direction: what runs a batch, and in which numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from onernn.backend.choosing import Choice, isa_of, kind_of
from onernn.backend.creation_lock import CREATION
from onernn.backend.kernels import BoundBatch, DirectionKernel, PackedBatch
from onernn.backend.layer_walk import magnitude
from onernn.backend.onednn.bound_batch import BoundFloatBatch
from onernn.backend.onednn.bound_u8 import BoundU8Batch, BoundU8Step
from onernn.backend.onednn.chain import BLOCK, ChainDirection
from onernn.backend.onednn.chain_program import program
from onernn.backend.onednn.data_types import LARGEST, narrowed, stored, widened
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.precision import PRECISIONS, Precision, U8Options
from onernn.backend.onednn.primitive_direction import PrimitiveDirection
from onernn.backend.onednn.scaled_primitives import (
    BOUND,
    MOST,
    ScaledPrimitives,
    summed,
)
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.precision import UNIT, Scale
from onernn.core.ragged import Packing
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights


class OneDnnKernel(DirectionKernel):
    """Data types in, and out as a layer below hands them on; states are float32 outside."""

    def __init__(self, library: Library, spec: RnnSpec, precision: Precision) -> None:
        self._library, self.spec, self.precision = library, spec, precision
        self.dtype = stored(precision.out)

    def converted(self, words: Array) -> Array:
        """See `DirectionKernel.converted`."""
        if words.dtype != np.float32:
            return words
        return narrowed(self._library, words, self.precision.data)

    def widened(self, y: Array) -> Array:
        """See `DirectionKernel.widened`."""
        return y if y.dtype == np.float32 else widened(self._library, y, self.precision.out)


class FloatKernel(OneDnnKernel):
    """f32, bf16 and f16: an RNN primitive, or a chain of products where that is faster."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        super().__init__(library, spec, PRECISIONS[dtype])
        self._dtype = dtype
        self._arguments = (library, spec, weights, PRECISIONS[dtype])
        # The primitive would multiply an input that is projected already by the identity.
        plain = not (spec.peephole or spec.projection_size)  # the chain knows neither
        self._projected = weights.layer is None and plain and bool(program(spec.cell, dtype))
        self._primitive = None if self._projected else PrimitiveDirection(*self._arguments)
        self._chain = ChainDirection(*self._arguments) if self._projected else None
        executor = self._chain or self._primitive
        self.name = executor.kernel if executor else ""
        # The identity makes NaN of infinity; a relu of the library makes 0 of NaN (3.2, 3.6); the
        # portable kernel pairs the last of an odd number of channels with a zero.
        identity = weights.layer is None and not self._projected
        pairs = self.name == "ref" and dtype == "bf16"
        if identity or pairs or spec.cell is Cell.RNN_RELU:
            self.exact_below = LARGEST[dtype]
        # Measured with one thread, and without what the chain does not know.
        chained = plain and self._primitive and program(spec.cell, dtype)
        isa = isa_of(library.effective_isa)
        self._choice = Choice("chain", isa, dtype, 1, spec) if chained else None
        if self._choice and self._choice.ever:
            self.name += " or a chain of matmul"

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """See `DirectionKernel.run`."""
        library, kinds = self._library, (self.precision.data, self.precision.cell)
        words, y, packing, begin, attention = batch
        if attention is not None:
            attention = narrowed(library, attention, self.precision.data)
        first = [narrowed(library, s, kind) for s, kind in zip(begin, kinds, strict=False)]
        executor = self._primitive_for(packing) or self._chain_of_products()
        ends = executor.run(PackedBatch(self.converted(words), y, packing, first, attention))
        return [widened(library, end, kind) for end, kind in zip(ends, kinds, strict=False)], None

    def converted(self, words: Array) -> Array:
        """See `DirectionKernel.converted`."""
        return words if self._projected else super().converted(words)

    def bind(
        self, stack: Sequence[FloatKernel], shape: tuple[int, ...], packing: Packing
    ) -> Callable[[], BoundBatch] | None:
        """See `DirectionKernel.bind`; not in f16, and not where a chain runs such a batch."""
        chosen = [kernel._primitive_for(packing) for kernel in stack]
        directions = [direction for direction in chosen if direction is not None]
        if self._dtype == "f16" or len(directions) < len(stack):
            return None
        return partial(BoundFloatBatch, self._library, directions, shape)

    def _primitive_for(self, packing: Packing) -> PrimitiveDirection | None:
        """The primitive for such a batch; None where a chain is faster."""
        sizes = packing.batch_sizes
        if self._choice is None or not len(sizes):
            return self._primitive
        largest = int(sizes[0])
        kind = kind_of(largest != int(sizes[-1]), largest * len(sizes), largest)
        return None if self._choice.prefers(kind, largest) else self._primitive

    def _chain_of_products(self) -> ChainDirection:
        if self._chain is None:
            with CREATION:
                self._chain = self._chain or ChainDirection(*self._arguments)
        return self._chain

    def cache_info(self) -> tuple[int, int]:
        """See `DirectionKernel.cache_info`."""
        return summed(each.cache_info() for each in (self._primitive, self._chain) if each)


def _largest(name: str, array: Array, most: float) -> float:
    found = magnitude(array)
    if not found <= most:
        raise UnsupportedError(f"{name}: u8 holds values in [-{most:g}, {most:g}], got {found}")
    return found


class NarrowKernel(OneDnnKernel):
    """u8: `run` looks at words and states before it converts them."""

    def converted(self, words: Array) -> Array:
        """See `DirectionKernel.converted`."""
        return words


class U8ChainKernel(NarrowKernel):
    """u8 data through products: LBR_GRU, which the RNN primitive does not have in u8."""

    def __init__(
        self, library: Library, spec: RnnSpec, weights: RnnWeights, options: U8Options
    ) -> None:
        super().__init__(library, spec, PRECISIONS["u8"]._replace(out="u8"))
        self._fixed, self._projected = options.fixed, weights.layer is None
        if self._projected:
            self.exact_below = LARGEST["u8"]
        if options.fixed and options.fixed.shift != UNIT.shift:
            raise UnsupportedError(f"u8 {spec.cell.name} runs with data_shift {UNIT.shift:g}")
        if options.scales[0].state not in (None, UNIT):
            raise UnsupportedError(f"u8 {spec.cell.name} has states in steps of 1 / 127")
        self.chain = ChainDirection(library, spec, weights, self.precision, *options.scales)
        self.name = self.chain.kernel

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """See `DirectionKernel.run`."""
        words, (h,) = batch.words, batch.begin
        scale = UNIT  # of the layer before, whose states are u8 already
        if words.dtype == np.float32 and not self._projected:
            most = _largest("x", words, MOST)
            scale = self.scale(most)
            words = narrowed(self._library, words, "u8", scale)
        _largest("state h", h, 1.0)
        first = narrowed(self._library, h, "u8")
        (end,) = self.chain.run(batch._replace(words=words, begin=[first]), 1 / scale.factor)
        return [widened(self._library, end, "u8")], None

    def bind(
        self, stack: Sequence[U8ChainKernel], shape: tuple[int, ...], packing: Packing
    ) -> Callable[[], BoundBatch] | None:
        """See `DirectionKernel.bind`; one step only: each would have memories of its own."""
        if shape[0] > 1 or shape[1] > BLOCK or any(kernel._projected for kernel in stack):
            return None
        chains = [kernel.chain for kernel in stack]
        return partial(BoundU8Step, self._library, self.spec, chains, self.scale, shape)

    def scale(self, largest: float) -> Scale:
        """Of inputs up to ``largest``."""
        return self._fixed or Scale(UNIT.factor / (largest or 1.0), UNIT.shift)

    def cache_info(self) -> tuple[int, int]:
        """See `DirectionKernel.cache_info`."""
        return self.chain.cache_info()


class U8Kernel(NarrowKernel):
    """u8 data through RNN primitives: LSTM and GRU.

    States are exact to a step of bound/127. |o * tanh(c)| <= 1 is the bound; a projection may add
    up to its columns' magnitudes, but rarely does: where an output reaches the bound it may have
    been cut off, and the run is repeated under twice the bound.
    """

    def __init__(
        self, library: Library, spec: RnnSpec, weights: RnnWeights, options: U8Options
    ) -> None:
        super().__init__(library, spec, PRECISIONS["u8"])
        if options.fixed is None and options.scales[0].layer is not None:
            raise UnsupportedError("weights_scales: oneDNN takes them beside a data_scale")
        self._scaled = ScaledPrimitives(library, spec, weights, self.precision, options)
        self.name = self._scaled.direction(BOUND, 0).kernel

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """See `DirectionKernel.run`."""
        scaled, (words, y, packing, (h, *c), _) = self._scaled, batch
        largest_h = _largest("state h", h, scaled.bounds[-1])
        largest_x = _largest("x", words, MOST)
        for bound in scaled.bounds:
            if largest_h > bound:
                continue
            scale, exponent = scaled.scale(bound), scaled.exponent(largest_x, bound)
            of_x = Scale(scale.factor * 0.5**exponent, scale.shift)
            x = narrowed(self._library, words, "u8", of_x)
            first = [narrowed(self._library, h, "u8", scale), *map(np.ascontiguousarray, c)]
            ends = scaled.direction(bound, exponent).run(PackedBatch(x, y, packing, first))
            if bound is scaled.bounds[-1] or np.abs(y).max(initial=0) < bound * 126.5 / 127:
                break
        # The output is float32, and no coarser than the u8 state that went on.
        backwards = self.spec.direction == "right2left"
        return [y[: len(packing.last)] if backwards else y[packing.last], *ends[1:]], None

    def bind(
        self, stack: Sequence[U8Kernel], shape: tuple[int, ...], packing: Packing
    ) -> Callable[[], BoundBatch] | None:
        """See `DirectionKernel.bind`."""
        if self._scaled.scale(BOUND).shift % 1:  # a reorder's zero point is an integer
            return None
        scaled = [kernel._scaled for kernel in stack]
        if len({each.scale(BOUND) for each in scaled}) > 1:
            return None
        return partial(BoundU8Batch, self._library, self.spec, scaled, shape)

    def cache_info(self) -> tuple[int, int]:
        """See `DirectionKernel.cache_info`."""
        return self._scaled.cache_info()


def new_kernel(
    spec: RnnSpec,
    weights: RnnWeights,
    options: U8Options | None = None,
    *,
    library: Library,
    dtype: str,
) -> OneDnnKernel:
    """The kernel for a data type; ``options``: of this layer and direction alone.

    Raises `UnsupportedError` where the library has none.
    """
    if options is None:
        return FloatKernel(library, spec, weights, dtype)
    kind = U8ChainKernel if spec.cell is Cell.LBR_GRU else U8Kernel
    return kind(library, spec, weights, options)
