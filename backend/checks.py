"""What every backend checks before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import RnnSpec

State = tuple[Array, ...]


def _numbers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype not in (np.float32, np.float64):
        raise ShapeError(f"{name}: expected {dtype} numbers, got {array.dtype}")
    return array.astype(dtype, copy=False)


def checked_input(
    spec: RnnSpec,
    x: Ragged | Array,
    state: State | None,
    attention: Ragged | Array | None,
    dtype: np.dtype[Any],
) -> tuple[Ragged | Array, State, Ragged | Array | None]:
    """(x, state, attention) in ``dtype``, the state filled with zeros where there is none.

    x: `Ragged` (W, I) or dense (T, N, I). state: (h,) or (h, c), each ldnc. attention, for AUGRU
    cells: (W, 1) or (T, N, 1) like x. Raises `ShapeError` naming the argument.
    """
    words, ragged = data_of(x), isinstance(x, Ragged)
    axes = "(W, {})" if ragged else "(T, N, {})"
    if words.ndim != (2 if ragged else 3) or words.shape[-1] != spec.input_size:
        raise ShapeError(f"x: expected {axes.format(spec.input_size)}, got {words.shape}")
    sentences = len(x) if isinstance(x, Ragged) else words.shape[1]
    words = _numbers("x", words, dtype)

    stack = (spec.layers, spec.directions, sentences)
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    names = spec.cell.states
    if state is None:
        state = tuple(np.zeros((*stack, widths[name]), dtype) for name in names)
    if len(state) != len(names):
        raise ShapeError(f"state: expected ({', '.join(names)}), got {len(state)} arrays")
    states = []
    for name, array in zip(names, map(np.asarray, state), strict=True):
        if array.shape != (*stack, widths[name]):
            expected = (*stack, widths[name])
            raise ShapeError(f"state {name}: expected (L, D, N, O) = {expected}, got {array.shape}")
        states.append(_numbers(f"state {name}", array, dtype))

    if (attention is not None) != spec.cell.has_attention:
        needs = "needs" if spec.cell.has_attention else "takes no"
        raise ShapeError(f"attention: {spec.cell.name} {needs} attention")
    if attention is not None:
        scale = data_of(attention)
        if scale.shape != (*words.shape[:-1], 1) or isinstance(attention, Ragged) != ragged:
            raise ShapeError(
                f"attention: expected {(*words.shape[:-1], 1)}, like x, got {scale.shape}"
            )
        scale = _numbers("attention", scale, dtype)
        attention = x.with_data(scale) if isinstance(x, Ragged) else scale
    return (x.with_data(words) if isinstance(x, Ragged) else words), tuple(states), attention
