"""A layer's direction for whatever batch comes: which executor runs it, in which numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from onernn.backend.making import MAKING
from onernn.backend.onednn.chain import ChainDirection
from onernn.backend.onednn.chain_program import program
from onernn.backend.onednn.choosing import prefers_chain, rules_for
from onernn.backend.onednn.direction import Direction
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.numbers import (
    PRECISIONS,
    UNIT,
    Precision,
    Scale,
    magnitude,
    narrowed,
    widened,
)
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Packing
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights

Executor = Direction | ChainDirection


class Family(Protocol):
    """One layer and direction, ready for any batch; shared between threads."""

    spec: RnnSpec
    precision: Precision
    kernel: str
    loses_nan: bool
    """Whether NaN or infinity in its input comes out elsewhere, or not at all."""

    def run(
        self,
        words: Array,
        y: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
    ) -> list[Array]:
        """Runs words (W, I), float32 or what the layer before gave, into y (W, O).

        ``initial``: float32 (N, O), sorted. Gives the final states of the sentences that have
        words, float32 (n, O), sorted.
        """

    def taken(self, words: Array) -> Array:
        """Words as `run` takes them, float32 or narrowed beforehand, in any order."""

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made."""


class FloatFamily:
    """f32, bf16 and f16: an RNN primitive, or a chain of products where that is faster."""

    def __init__(self, library: Library, spec: RnnSpec, weights: RnnWeights, dtype: str) -> None:
        self._library, self._dtype = library, dtype
        self._arguments = (library, spec, weights, PRECISIONS[dtype])
        self.spec, self.precision = spec, PRECISIONS[dtype]
        # The primitive would multiply an input that is projected already by the identity.
        plain = not (spec.peephole or spec.projection_size)  # the chain knows neither
        self._projected = weights.layer is None and plain and bool(program(spec.cell, dtype))
        # The identity makes NaN of infinity; a relu of the library makes 0 of NaN (3.2, 3.6).
        identity = weights.layer is None and not self._projected
        self.loses_nan = identity or spec.cell is Cell.RNN_RELU
        self._primitive = None if self._projected else Direction(*self._arguments)
        self._chain = ChainDirection(*self._arguments) if self._projected else None
        executor = self._chain or self._primitive
        self.kernel = executor.kernel if executor else ""
        # The portable kernel pairs the last of an odd number of channels with a zero.
        self.loses_nan |= self.kernel == "ref" and dtype == "bf16"
        if self._primitive and rules_for(spec, dtype, library.effective_isa):
            self.kernel += " or a chain of matmul"

    def run(
        self,
        words: Array,
        y: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
    ) -> list[Array]:
        library, kinds = self._library, (self.precision.data, self.precision.cell)
        begin = [narrowed(library, s, kind) for s, kind in zip(initial, kinds, strict=False)]
        executor = self._executor(packing)
        ends = executor.run(self.taken(words), y, packing, begin, attention)
        return [widened(library, end, kind) for end, kind in zip(ends, kinds, strict=False)]

    def taken(self, words: Array) -> Array:
        """See `Family.taken`."""
        if words.dtype != np.float32 or self._projected:
            return words
        return narrowed(self._library, words, self.precision.data)

    def primitive(self, packing: Packing) -> Direction | None:
        """The primitive that runs such a batch; None where a chain does, or for f16."""
        found = self._executor(packing)
        return found if isinstance(found, Direction) and self._dtype != "f16" else None

    def _executor(self, packing: Packing) -> Executor:
        chained = prefers_chain(self.spec, self._dtype, self._library.effective_isa, packing)
        if self._primitive is not None and not chained:
            return self._primitive
        if self._chain is None:
            with MAKING:
                self._chain = self._chain or ChainDirection(*self._arguments)
        return self._chain

    def cache_info(self) -> tuple[int, int]:
        counts = [e.cache_info() for e in (self._primitive, self._chain) if e]
        return sum(hits for hits, _ in counts), sum(misses for _, misses in counts)


class U8Options:
    """How u8 data is scaled: q = x * data_scale + data_shift, for data and states alike.

    Without a scale every batch's own range decides: x / 2**k fits [-1, 1], and 2**k moves into
    the input weights before they are rounded, so that the states keep the whole range.
    """

    def __init__(self, data_scale: float | None, data_shift: float, per_channel: bool) -> None:
        if data_scale is not None and not 0 < data_scale < math.inf:
            raise ValueError(f"data_scale: expected a positive number, got {data_scale}")
        if not 0 <= data_shift <= 255:
            raise ValueError(f"data_shift: expected 0 to 255, got {data_shift}")
        self.per_channel = per_channel
        self.fixed = None if data_scale is None else Scale(data_scale, data_shift)


MOST = 2.0**15
"""The largest magnitude that inputs may have."""


def _largest(name: str, array: Array, most: float) -> float:
    found = magnitude(array)
    if not found <= most:
        raise UnsupportedError(f"{name}: u8 holds values in [-{most:g}, {most:g}], got {found}")
    return found


class U8ChainFamily:
    """u8 data through products: LBR_GRU, which the RNN primitive does not have in u8."""

    def __init__(
        self, library: Library, spec: RnnSpec, weights: RnnWeights, options: U8Options
    ) -> None:
        self._library, self.spec, self._fixed = library, spec, options.fixed
        self.projected = self.loses_nan = weights.layer is None
        if options.fixed and options.fixed.shift != UNIT.shift:
            raise UnsupportedError(f"u8 {spec.cell.name} runs with data_shift {UNIT.shift:g}")
        self.precision = PRECISIONS["u8"]._replace(out="u8")
        self.chain = ChainDirection(library, spec, weights, self.precision)
        self.kernel = self.chain.kernel

    def run(
        self,
        words: Array,
        y: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
    ) -> list[Array]:
        scale = UNIT  # of the layer before, whose states are u8 already
        if words.dtype == np.float32 and not self.projected:
            most = _largest("x", words, MOST)
            scale = self.scale(most)
            words = narrowed(self._library, words, "u8", scale)
        _largest("state h", initial[0], 1.0)
        begin = narrowed(self._library, initial[0], "u8")
        (end,) = self.chain.run(words, y, packing, [begin], attention, 1 / scale.factor)
        return [widened(self._library, end, "u8")]

    def taken(self, words: Array) -> Array:
        """See `Family.taken`."""
        return words

    def scale(self, largest: float) -> Scale:
        """Of inputs up to ``largest``."""
        return self._fixed or Scale(UNIT.factor / (largest or 1.0), UNIT.shift)

    def cache_info(self) -> tuple[int, int]:
        return self.chain.cache_info()


class U8Family:
    """u8 data through RNN primitives, one for each power of two that inputs are scaled by.

    States are exact to a step of bound/127. |o * tanh(c)| <= 1 is the bound; a projection may add
    up to its columns' magnitudes, but rarely does: where an output reaches the bound it may have
    been cut off, and the run is repeated under twice the bound.
    """

    loses_nan = False  # it refuses them

    def __init__(
        self, library: Library, spec: RnnSpec, weights: RnnWeights, options: U8Options
    ) -> None:
        self._library, self.spec, self._weights = library, spec, weights
        self._options, self.precision = options, PRECISIONS["u8"]
        self.bounds = [1.0]
        if weights.projection is not None:
            worst = float(np.abs(weights.projection).sum(axis=2).max())
            while self.bounds[-1] < worst:
                self.bounds.append(2 * self.bounds[-1])
        self._made: dict[tuple[float, int], Direction] = {}
        self.kernel = self.direction(1.0, 0).kernel

    def run(
        self,
        words: Array,
        y: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
    ) -> list[Array]:
        h, *c = initial
        largest_h = _largest("state h", h, self.bounds[-1])
        largest_x = _largest("x", words, MOST)
        for bound in self.bounds:
            if largest_h > bound:
                continue
            scale, exponent = self.scale(bound), self.exponent(largest_x, bound)
            of_x = Scale(scale.factor * 0.5**exponent, scale.shift)
            x = narrowed(self._library, words, "u8", of_x)
            begin = [narrowed(self._library, h, "u8", scale), *(np.ascontiguousarray(s) for s in c)]
            ends = self.direction(bound, exponent).run(x, y, packing, begin, attention)
            if bound is self.bounds[-1] or np.abs(y).max(initial=0) < bound * 126.5 / 127:
                break
        # The output is float32, and no coarser than the u8 state that went on.
        backwards = self.spec.direction == "right2left"
        return [y[: len(packing.last)] if backwards else y[packing.last], *ends[1:]]

    def taken(self, words: Array) -> Array:
        """See `Family.taken`."""
        return words

    def scale(self, bound: float) -> Scale:
        """Of states up to this bound."""
        return self._options.fixed or Scale(UNIT.factor / bound, UNIT.shift)

    def exponent(self, largest: float, bound: float) -> int:
        """By which power of two inputs up to ``largest`` are scaled to fit under the bound."""
        over = largest / bound
        return math.ceil(math.log2(over)) if over > 1 and not self._options.fixed else 0

    def direction(self, bound: float, exponent: int) -> Direction:
        if (bound, exponent) not in self._made:
            with MAKING:
                if (bound, exponent) not in self._made:
                    self._made[bound, exponent] = self._new_direction(bound, exponent)
        return self._made[bound, exponent]

    def _new_direction(self, bound: float, exponent: int) -> Direction:
        weights = self._weights
        if exponent and weights.layer is not None:
            weights = replace(weights, layer=weights.layer * np.float32(2.0**exponent))
        scale, per_channel = self.scale(bound), self._options.per_channel
        return Direction(self._library, self.spec, weights, self.precision, scale, per_channel)

    def cache_info(self) -> tuple[int, int]:
        counts = [made.cache_info() for made in self._made.values()]
        return sum(hits for hits, _ in counts), sum(misses for _, misses in counts)


def new_family(
    library: Library,
    spec: RnnSpec,
    weights: RnnWeights,
    dtype: str,
    options: U8Options | None,
) -> Family:
    """The family for a data type. Raises `UnsupportedError` where the library has no kernel."""
    if options is None:
        return FloatFamily(library, spec, weights, dtype)
    kind = U8ChainFamily if spec.cell is Cell.LBR_GRU else U8Family
    return kind(library, spec, weights, options)
