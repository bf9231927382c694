"""Layers in u8 that give bytes: dst_layer in u8, as oneDNN's guide allows it beside f32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.backend.onednn.precision import U8Options
from onernn.backend.run_arguments import Layout, State
from onernn.backend.stack import Stack
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.precision import Scale
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.spec import RnnSpec


class ByteStack(Stack):
    """A stack whose y is uint8, q = y * data_scale + data_shift; states stay float32."""

    def __init__(self, *given: Any, scale: Scale, **named: Any) -> None:
        super().__init__(*given, **{**named, "compiled": None})
        self._scale = scale

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """See `Stack.run`. y is rounded to the nearest, halves to even, and saturates."""
        y, final = super().run(x, state, attention, layout)
        data = data_of(y)
        if data.dtype == np.uint8:  # of another stack of this kind
            return y, final
        out = data * np.float32(self._scale.factor)
        out += np.float32(self._scale.shift)
        out = np.clip(np.rint(out, out=out), 0, 255, out=out).astype(np.uint8)
        return (y.with_data(out) if isinstance(y, Ragged) else out), final


def kind_of_stack(spec: RnnSpec, options: U8Options | None) -> Callable[..., Stack]:
    """What makes the stack: `Stack`, or `ByteStack` where bytes are asked for.

    Raises `UnsupportedError` for two directions that are summed, whose sums do not fit.
    """
    if options is None or options.output == "f32" or options.fixed is None:
        return Stack
    if spec.direction == "bidirectional_sum":
        raise UnsupportedError("output='u8': the sum of two states does not fit into a byte")
    return partial(ByteStack, scale=options.fixed)
