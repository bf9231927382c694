"""A layer's direction for whatever input comes: as it is, narrowed, or scaled to fit into u8."""

from __future__ import annotations

import math
from dataclasses import replace
from threading import Lock

import numpy as np

from onernn.backend.onednn.direction import Direction
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.numbers import PRECISIONS, UNIT, Scale, narrowed
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights

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


class Family:
    """The directions that serve one layer and direction; just one, but for u8."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        dtype: str,
        options: U8Options | None,
    ) -> None:
        self.library, self._spec, self._weights = library, spec, weights
        self.precision, self._options = PRECISIONS[dtype], options
        self.scale = UNIT
        if options is not None:
            # |o * tanh(c)| <= 1, and a projection adds up at most its columns' magnitudes.
            self.bound = 1.0
            if weights.projection is not None:
                self.bound = max(1.0, float(np.abs(weights.projection).sum(axis=2).max()))
            self.scale = options.fixed or Scale(UNIT.factor / self.bound, UNIT.shift)
        self._made: dict[int, Direction] = {}
        self._lock = Lock()
        self.first = self._with_exponent(0)

    def take(self, words: Array) -> tuple[Direction, Array]:
        """The direction for this input (W, I), and the input as it wants it."""
        if self._options is None:
            if words.dtype == np.float32:
                words = narrowed(self.library, words, self.precision.data)
            return self.first, words
        if self._options.fixed is not None:
            return self.first, self._u8(words, "x", None)
        largest = float(np.abs(words).max(initial=0))
        over = largest / self.bound
        exponent = math.ceil(math.log2(over)) if 1 < over < math.inf else 0
        if not over <= 2**_LARGEST_EXPONENT:
            raise UnsupportedError(
                f"x: u8 takes finite values up to {self.bound * 2**_LARGEST_EXPONENT:g},"
                f" got {largest}"
            )
        return self._with_exponent(exponent), self._u8(words * np.float32(0.5**exponent), "x", None)

    def states(self, states: list[Array]) -> list[Array]:
        """float32 states as the primitive's; an LSTM's c stays float32."""
        h, *c = states
        if self._options is not None:
            return [self._u8(h, "state h", self.bound), *(s.copy() for s in c)]
        h = narrowed(self.library, h, self.precision.data)
        return [h, *(narrowed(self.library, s, self.precision.cell) for s in c)]

    def _u8(self, array: Array, name: str, bound: float | None) -> Array:
        largest = float(np.abs(array).max(initial=0))
        fits = largest <= bound if bound is not None else largest < math.inf
        if not fits:
            limit = "finite values" if bound is None else f"[-{bound:g}, {bound:g}]"
            raise UnsupportedError(f"{name}: u8 holds {limit}, got {largest}")
        return narrowed(self.library, array, "u8", self.scale)

    def _with_exponent(self, exponent: int) -> Direction:
        with self._lock:
            if exponent not in self._made:
                weights = self._weights
                if exponent and weights.layer is not None:
                    weights = replace(weights, layer=weights.layer * np.float32(2.0**exponent))
                u8 = self._options is not None
                self._made[exponent] = Direction(
                    self.library,
                    self._spec,
                    weights,
                    self.precision,
                    self.scale if u8 else None,
                    self._options.per_channel if self._options else True,
                )
            return self._made[exponent]
