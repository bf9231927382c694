"""What every backend checks before it runs."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.spec import RnnSpec

State = tuple[Array, ...]
Layout = Literal["tnc", "ntc"]


def checked_numbers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype not in (np.float32, np.float64):
        raise ShapeError(f"{name}: expected {dtype} numbers, got {array.dtype}")
    return array.astype(dtype, copy=False)


def checked_input(
    spec: RnnSpec,
    x: Ragged | Array,
    state: State | None,
    attention: Ragged | Array | None,
    dtype: np.dtype[Any],
    layout: Layout = "tnc",
) -> tuple[Ragged | Array, State, Ragged | Array | None]:
    """(x, state, attention) in ``dtype`` and tnc, zeros for a state that is not there.

    x: `Ragged` (W, I), or dense: (T, N, I), in ``layout`` ntc (N, T, I). state: (h,) or (h, c),
    each ldnc. attention, for AUGRU cells: one channel, else like x. Raises `ShapeError` naming
    the argument.
    """
    if layout not in get_args(Layout):
        raise ShapeError(f"layout: expected one of {get_args(Layout)}, got {layout!r}")
    words, ragged = data_of(x), isinstance(x, Ragged)
    axes = "W" if ragged else "T, N" if layout == "tnc" else "N, T"
    if words.ndim != (2 if ragged else 3) or words.shape[-1] != spec.input_size:
        raise ShapeError(f"x: expected ({axes}, {spec.input_size}), got {words.shape}")
    sentences = len(x) if isinstance(x, Ragged) else words.shape[layout.index("n")]
    words = checked_numbers("x", words, dtype)
    states = checked_state(spec, state, sentences, dtype)
    if (attention is not None) != spec.cell.has_attention:
        needs = "needs" if spec.cell.has_attention else "takes no"
        raise ShapeError(f"attention: {spec.cell.name} {needs} attention")
    if attention is not None:
        scale = data_of(attention)
        if scale.shape != (*words.shape[:-1], 1) or isinstance(attention, Ragged) != ragged:
            raise ShapeError(
                f"attention: expected {(*words.shape[:-1], 1)}, like x, got {scale.shape}"
            )
        if isinstance(x, Ragged) and isinstance(attention, Ragged):
            if not np.array_equal(attention.offsets, x.offsets):
                raise ShapeError("attention: expected the offsets of x, got others")
        scale = checked_numbers("attention", scale, dtype)
        attention = x.with_data(scale) if isinstance(x, Ragged) else laid_out(scale, layout)
    words = words if ragged else laid_out(words, layout)
    return (x.with_data(words) if isinstance(x, Ragged) else words), states, attention


def laid_out(dense: Array, layout: Layout) -> Array:
    """tnc to or from ``layout``: a view of the same numbers."""
    return dense if layout == "tnc" else dense.swapaxes(0, 1)


def checked_state(
    spec: RnnSpec,
    state: State | None,
    sentences: int,
    dtype: np.dtype[Any],
    name: str = "state",
) -> State:
    """A state in ``dtype``, zeros where there is none. Raises `ShapeError` naming the array."""
    stack = (spec.layers, spec.directions, sentences)
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    parts = spec.cell.states
    if state is None:
        return tuple(np.zeros((*stack, widths[part]), dtype) for part in parts)
    if len(state) != len(parts):
        raise ShapeError(f"{name}: expected ({', '.join(parts)}), got {len(state)} arrays")
    states = []
    for part, array in zip(parts, map(np.asarray, state), strict=True):
        expected = (*stack, widths[part])
        if array.shape != expected:
            raise ShapeError(
                f"{name} {part}: expected (L, D, N, O) = {expected}, got {array.shape}"
            )
        states.append(checked_numbers(f"{name} {part}", array, dtype))
    return tuple(states)
