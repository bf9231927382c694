"""u8 primitives of a layer and direction: one for each scale of its states and its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from onernn.backend.creation_lock import CREATION
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.precision import Precision, U8Options
from onernn.backend.onednn.primitive_direction import PrimitiveDirection
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import UNIT, RnnWeights, Scale

MOST = 2.0**15
"""The largest magnitude that inputs may have."""

BOUND = 1.0
"""Of the states of a layer without projection: |o * tanh(c)| <= 1."""


class ScaledPrimitives:
    """Primitives for states up to each of ``bounds``, and for inputs over each power of two."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: Precision,
        options: U8Options,
    ) -> None:
        self._library, self._spec, self._weights = library, spec, weights
        self._precision, self._options = precision, options
        self.bounds = [BOUND]
        if weights.projection is not None:
            worst = float(np.abs(weights.projection).sum(axis=2).max())
            while self.bounds[-1] < worst:
                self.bounds.append(2 * self.bounds[-1])
        self._made: dict[tuple[float, int], PrimitiveDirection] = {}

    def scale(self, bound: float) -> Scale:
        """Of states up to this bound."""
        return self._options.fixed or Scale(UNIT.factor / bound, UNIT.shift)

    def exponent(self, largest: float, bound: float) -> int:
        """By which power of two inputs up to ``largest`` are scaled to fit under the bound."""
        over = largest / bound
        return math.ceil(math.log2(over)) if over > 1 and not self._options.fixed else 0

    def direction(self, bound: float, exponent: int) -> PrimitiveDirection:
        """For states up to a bound and inputs over ``2**exponent``."""
        if (bound, exponent) not in self._made:
            with CREATION:
                if (bound, exponent) not in self._made:
                    self._made[bound, exponent] = self._new_direction(bound, exponent)
        return self._made[bound, exponent]

    def _new_direction(self, bound: float, exponent: int) -> PrimitiveDirection:
        weights = self._weights
        if exponent and weights.layer is not None:
            weights = replace(weights, layer=weights.layer * np.float32(2.0**exponent))
        scale, per_channel = self.scale(bound), self._options.per_channel
        (columns,) = self._options.scales
        return PrimitiveDirection(
            self._library, self._spec, weights, self._precision, scale, per_channel, columns
        )

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made."""
        return summed(made.cache_info() for made in self._made.values())


def summed(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Of (found, made) each."""
    hits, misses = zip((0, 0), *counts, strict=True)
    return sum(hits), sum(misses)
