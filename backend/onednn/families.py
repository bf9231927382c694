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
from onernn.backend.onednn.numbers import PRECISIONS, UNIT, Scale, narrowed
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
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
        self.scale = UNIT
        if options is not None:
            # |o * tanh(c)| <= 1, and a projection adds up at most its columns' magnitudes.
            self.bound = 1.0
            if weights.projection is not None:
                self.bound = max(1.0, float(np.abs(weights.projection).sum(axis=2).max()))
            self.scale = Scale(UNIT.factor / self.bound, UNIT.shift)
            if options.fixed and not chained:
                self.scale = options.fixed
            if options.fixed and chained and options.fixed.shift != UNIT.shift:
                raise UnsupportedError(f"u8 {spec.cell.name} runs with data_shift {UNIT.shift:g}")
        self._made: dict[int, Executor] = {}
        self._lock = Lock()
        self.first = self._with_exponent(0)

    def take(self, words: Array) -> Taken:
        """The executor for this input (W, I)."""
        if self._options is None or words.dtype == np.uint8:
            if words.dtype == np.float32 and not self._projected:
                words = narrowed(self.library, words, self.precision.data)
            return Taken(self.first, words, 1 / UNIT.factor)
        largest = float(np.abs(words).max(initial=0))
        if not largest < self.bound * 2**_LARGEST_EXPONENT:
            most = self.bound * 2**_LARGEST_EXPONENT
            raise UnsupportedError(f"x: u8 takes finite values below {most:g}, got {largest}")
        fixed = self._options.fixed
        if self._kind is ChainDirection:
            if self._projected:
                return Taken(self.first, words, 1.0)
            scale = fixed or Scale(UNIT.factor / (largest or 1.0), UNIT.shift)
            x = narrowed(self.library, words, "u8", scale)
            return Taken(self.first, x, 1 / scale.factor)
        over = largest / self.bound
        exponent = math.ceil(math.log2(over)) if over > 1 and not fixed else 0
        x = narrowed(self.library, words * np.float32(0.5**exponent), "u8", self.scale)
        return Taken(self._with_exponent(exponent), x, 1.0)

    def states(self, states: list[Array]) -> list[Array]:
        """float32 states as the executor's; an LSTM's c stays float32."""
        h, *c = states
        if self._options is not None:
            largest = float(np.abs(h).max(initial=0))
            if not largest <= self.bound:
                limit = f"[-{self.bound:g}, {self.bound:g}]"
                raise UnsupportedError(f"state h: u8 holds {limit}, got {largest}")
        h = narrowed(self.library, h, self.precision.data, self.scale)
        return [h.copy(), *(narrowed(self.library, s, self.precision.cell).copy() for s in c)]

    def _with_exponent(self, exponent: int) -> Executor:
        with self._lock:
            if exponent not in self._made:
                weights, u8 = self._weights, self._options
                if exponent and weights.layer is not None:
                    weights = replace(weights, layer=weights.layer * np.float32(2.0**exponent))
                arguments = (self.library, self._spec, weights, self.precision)
                if self._kind is Direction and u8 is not None:
                    made: Executor = Direction(*arguments, self.scale, u8.per_channel)
                else:
                    made = self._kind(*arguments)
                self._made[exponent] = made
            return self._made[exponent]

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made."""
        counts = [made.cache_info() for made in self._made.values()]
        return sum(hits for hits, _ in counts), sum(misses for _, misses in counts)
