"""Small batches in u8: every call's range is looked at, as anywhere, and decides the scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.backend.onednn.bound_batch import Call, FixedBatch
from onernn.backend.onednn.chain import ChainDirection
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.scaled_primitives import BOUND, MOST, ScaledPrimitives
from onernn.core.precision import UNIT, Scale
from onernn.core.spec import RnnSpec


class U8Batch(FixedBatch):
    """The magnitudes of x and h are looked at first."""

    def __init__(self, library: Library, spec: RnnSpec, depth: int, shape: Any) -> None:
        super().__init__(library, spec, depth, shape)
        self._looked = self._given[: self._starts[1] + self._begin[0].size]
        self._sizes, self._places = np.empty_like(self._looked), self._starts[:2]

    def _computed(self) -> bool:
        np.absolute(self._looked, self._sizes)
        x, h = np.maximum.reduceat(self._sizes, self._places).tolist()
        return x <= MOST and h <= BOUND and self._ran(x)  # NaN is not less either

    def _ran(self, largest: float) -> bool:
        """`_computed` for an x of this magnitude."""
        raise NotImplementedError


class BoundU8Batch(U8Batch):
    """LSTM and GRU. The first layer is bound for each power of two that inputs are scaled by."""

    def __init__(
        self, library: Library, spec: RnnSpec, stack: Sequence[ScaledPrimitives], shape: Any
    ) -> None:
        self._scaled = stack[0]
        super().__init__(library, spec, len(stack), shape)
        h, *c = self._begin
        c_end = [np.zeros_like(s) for s in c]
        self._scale = stack[0].scale(BOUND)
        self._outputs = self.buffer((len(stack), *shape[:2], spec.recurrent_size), "f32")
        # Beyond it the ordinary way scales, or repeats the run under the next bound.
        repeats = any(len(scaled.bounds) > 1 for scaled in stack)
        self._most = 0.99 * BOUND if repeats else BOUND
        narrow = self.buffer(self._looked.shape, "u8")
        words = narrow[: self._x.size].reshape(self._x.shape)
        begin = narrow[self._starts[1] :].reshape(h.shape)
        self._both = self.copy(self._looked, narrow, self._scale)
        self._apart = self.copy(h, begin, self._scale), self.copy(self._x, words, self._scale)
        self._ways: dict[int, list[Call]] = {}
        self._exponent, self._first = -1, list[Call]()
        self._later: list[list[Call]] = []
        for layer, (scaled, y) in enumerate(zip(stack, self._outputs, strict=True)):
            over = {"src_layer": words, "dst_layer": y, "src_iter": begin[layer]}
            for s, end in zip(c, c_end, strict=True):
                over |= {"src_iter_c": s[layer], "dst_iter_c": end[layer]}
            if layer:
                copy = self.copy(self._outputs[layer - 1], words, self._scale)
                self._later.append([copy.call, self.bound(scaled.direction(BOUND, 0), over)])
            else:
                self._over = over
            words = self.buffer(y.shape, "u8")
        last = 0 if spec.direction == "right2left" else -1
        self._y, self._end = self._outputs[-1], [self._outputs[:, last, None], *c_end]

    def _ran(self, largest: float) -> bool:
        exponent = self._scaled.exponent(largest, BOUND)
        if exponent != self._exponent:
            self._first, self._exponent = self._first_calls(exponent), exponent
        self.execute(self._first)
        for y, calls in zip(self._outputs, self._later, strict=False):
            if not np.abs(y).max() <= self._most:
                return False
            self.execute(calls)
        return self._most == BOUND or bool(np.abs(self._y).max() <= self._most)

    def _first_calls(self, exponent: int) -> list[Call]:
        """The calls up to the first layer's, for inputs over 2**exponent."""
        calls = self._ways.get(exponent)
        if calls is None:
            call = self.bound(self._scaled.direction(BOUND, exponent), self._over)
            copies = self._apart if exponent else (self._both,)
            calls = self._ways[exponent] = [*(copy.call for copy in copies), call]
        self._apart[1].factor[0] = self._scale.factor * 0.5**exponent
        return calls


class BoundU8Step(U8Batch):
    """One step of LBR_GRU, whose u8 states the next layer reads as they are."""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        stack: Sequence[ChainDirection],
        scale: Callable[[float], Scale],
        shape: Any,
    ) -> None:
        _, batch, _ = shape
        super().__init__(library, spec, len(stack), shape)
        words = self.buffer(shape[1:], "u8")
        copy = self.copy(self._x, words)
        self._scale_of, self._calls, self._factor = scale, [copy.call], copy.factor
        wide = self.buffer((len(stack), 1, batch, spec.hidden_size), "f32")
        steps = []
        for h, chain, y in zip(self._begin[0], stack, wide, strict=True):
            steps.append(step := chain.bound_step(words))
            widen = self.copy(step.h_next, y, Scale(1 / UNIT.factor, UNIT.shift))
            self._calls += [self.copy(h, step.h).call, *step.calls, widen.call]
            for factor in step.x_factors:
                factor[0] = 1 / UNIT.factor
            words = step.h_next
        self._kept.append(steps)
        self._x_factors = steps[0].x_factors
        self._found = sum(len(step.calls) for step in steps)
        self.hits = -self._found  # binding them was none of a call
        self._y, self._end = wide[-1], [wide]

    def _ran(self, largest: float) -> bool:
        scale = self._scale_of(largest)
        self._factor[0] = scale.factor
        for factor in self._x_factors:
            factor[0] = 1 / scale.factor
        self.execute(self._calls)
        return True
