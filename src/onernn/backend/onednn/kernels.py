"""oneDNN's kernels of a layer and direction: what runs a batch, and in which numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.backend.kernels import DirectionKernel, PackedBatch
from onernn.backend.layer_walk import magnitude
from onernn.backend.onednn.data_types import LARGEST, narrowed, stored, widened
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.precision import PRECISIONS, Precision, U8Options
from onernn.backend.onednn.primitive_direction import PrimitiveDirection
from onernn.backend.onednn.scaled_primitives import (
    BOUND,
    MOST,
    ScaledPrimitives,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights, Scale


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
    """f32, bf16 and f16."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        super().__init__(library, spec, PRECISIONS[dtype])
        self._direction = PrimitiveDirection(library, spec, weights, PRECISIONS[dtype])
        self.name = self._direction.kernel
        # The identity that stands for the weights of a projected input makes NaN of infinity; a
        # relu of the library makes 0 of NaN (3.2, 3.6); the portable kernel pairs the last of an
        # odd number of channels with a zero.
        identity = weights.layer is None
        pairs = self.name == "ref" and dtype == "bf16"
        if identity or pairs or spec.cell is Cell.RNN_RELU:
            self.exact_below = LARGEST[dtype]

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], None]:
        """See `DirectionKernel.run`."""
        library, kinds = self._library, (self.precision.data, self.precision.cell)
        words, y, packing, begin, attention = batch
        if attention is not None:
            attention = narrowed(library, attention, self.precision.data)
        first = [narrowed(library, s, kind) for s, kind in zip(begin, kinds, strict=False)]
        ends = self._direction.run(PackedBatch(self.converted(words), y, packing, first, attention))
        return [widened(library, end, kind) for end, kind in zip(ends, kinds, strict=False)], None

    def cache_info(self) -> tuple[int, int]:
        """See `DirectionKernel.cache_info`."""
        return self._direction.cache_info()


def _largest(name: str, array: Array, most: float) -> float:
    found = magnitude(array)
    if not found <= most:
        raise UnsupportedError(f"{name}: u8 holds values in [-{most:g}, {most:g}], got {found}")
    return found


class U8Kernel(OneDnnKernel):
    """u8: LSTM and GRU. `run` looks at words and states before it converts them.

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

    def converted(self, words: Array) -> Array:
        """See `DirectionKernel.converted`."""
        return words

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
    return U8Kernel(library, spec, weights, options)
