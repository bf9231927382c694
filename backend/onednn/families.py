"""A layer's direction for whatever input comes: as it is, narrowed, or scaled to fit into u8."""

from __future__ import annotations

import math
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import numpy as np

from onernn.backend.onednn.chain import ChainDirection, program
from onernn.backend.onednn.direction import Direction
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.numbers import PRECISIONS, UNIT, Scale, narrowed, widened
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.ragged import Packing
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights

Executor = Direction | ChainDirection

_LARGEST_EXPONENT = 15


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


class Taken(NamedTuple):
    """Who runs an input, the input as it wants it, and what a step of u8 data is worth."""

    executor: Executor
    x: Array
    x_factor: float


class Family:
    """The executors that serve one layer and direction; just one, but for u8 primitives."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        dtype: str,
        options: U8Options | None,
    ) -> None:
        self.library, self._spec, self._weights = library, spec, weights
        self._options, self._projected = options, weights.layer is None
        self.precision = PRECISIONS[dtype]
        # The primitive has no u8 LBR_GRU, and multiplies an input that is projected already.
        chained = bool(program(spec.cell, dtype)) and (self._projected or dtype == "u8")
        self._kind = ChainDirection if chained else Direction
        if chained:
            self.precision = self.precision._replace(out=self.precision.data)
        # |o * tanh(c)| <= 1; a projection may add up to its columns' magnitudes, but rarely does.
        self.bounds = [1.0]
        if options is not None and weights.projection is not None:
            worst = float(np.abs(weights.projection).sum(axis=2).max())
            while self.bounds[-1] < worst:
                self.bounds.append(2 * self.bounds[-1])
        if options and options.fixed and chained and options.fixed.shift != UNIT.shift:
            raise UnsupportedError(f"u8 {spec.cell.name} runs with data_shift {UNIT.shift:g}")
        self._made: dict[tuple[float, int], Executor] = {}
        self._lock = Lock()
        self.first = self._get(1.0, 0)

    def run(
        self,
        words: Array,
        y: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
        backwards: bool,
    ) -> list[Array]:
        """Runs words (W, I) into y (W, O); float32 states in, final ones of running sentences out.

        u8 states are exact to a step of bound/127; where an output reaches the bound it may have
        been cut off, and the run is repeated under twice the bound.
        """
        for bound in self.bounds:
            scale = self._scale(bound)
            if self._options is None:
                executor, x, factor = self._taken(words)
            else:
                largest = float(np.abs(initial[0]).max(initial=0))
                if not largest <= bound:
                    continue
                executor, x, factor = self._taken_u8(words, bound)
            h, *c = initial
            begin = [narrowed(self.library, h, self.precision.data, scale)]
            begin += [narrowed(self.library, s, self.precision.cell) for s in c]
            ends = [s.copy() for s in begin]
            executor.run(x, y, packing, begin, ends, attention, factor)
            if bound is self.bounds[-1] or np.abs(y).max(initial=0) < bound * 126.5 / 127:
                break
        else:
            raise UnsupportedError(
                f"state h: u8 holds [-{self.bounds[-1]:g}, {self.bounds[-1]:g}], got {largest}"
            )
        running = len(packing.last)
        kinds = (self.precision.data, self.precision.cell)
        final = [
            widened(self.library, end[:running], kind, scale)
            for end, kind in zip(ends, kinds, strict=False)
        ]
        if self._options is not None and self.precision.out == "f32":  # finer than the u8 state
            final[0] = y[:running] if backwards else y[packing.last]
        return final

    def _taken(self, words: Array) -> Taken:
        if words.dtype == np.float32 and not self._projected:
            words = narrowed(self.library, words, self.precision.data)
        return Taken(self.first, words, 1.0)

    def _taken_u8(self, words: Array, bound: float) -> Taken:
        if words.dtype == np.uint8:  # states of the layer before
            return Taken(self.first, words, 1 / UNIT.factor)
        if self._projected:
            return Taken(self.first, words, 1.0)
        largest = float(np.abs(words).max(initial=0))
        if not largest < 2**_LARGEST_EXPONENT:
            raise UnsupportedError(
                f"x: u8 takes finite values below {2**_LARGEST_EXPONENT}, got {largest}"
            )
        fixed = self._options.fixed if self._options else None
        if self._kind is ChainDirection:
            scale = fixed or Scale(UNIT.factor / (largest or 1.0), UNIT.shift)
            x = narrowed(self.library, words, "u8", scale)
            return Taken(self.first, x, 1 / scale.factor)
        over = largest / bound
        exponent = math.ceil(math.log2(over)) if over > 1 and not fixed else 0
        x = narrowed(self.library, words * np.float32(0.5**exponent), "u8", self._scale(bound))
        return Taken(self._get(bound, exponent), x, 1.0)

    def _scale(self, bound: float) -> Scale:
        fixed = self._options.fixed if self._options and self._kind is Direction else None
        return fixed or Scale(UNIT.factor / bound, UNIT.shift)

    def _get(self, bound: float, exponent: int) -> Executor:
        with self._lock:
            if (bound, exponent) not in self._made:
                weights, u8 = self._weights, self._options
                if exponent and weights.layer is not None:
                    weights = replace(weights, layer=weights.layer * np.float32(2.0**exponent))
                arguments = (self.library, self._spec, weights, self.precision)
                if self._kind is Direction and u8 is not None:
                    made: Executor = Direction(*arguments, self._scale(bound), u8.per_channel)
                else:
                    made = self._kind(*arguments)
                self._made[bound, exponent] = made
            return self._made[bound, exponent]

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made."""
        counts = [made.cache_info() for made in self._made.values()]
        return sum(hits for hits, _ in counts), sum(misses for _, misses in counts)
