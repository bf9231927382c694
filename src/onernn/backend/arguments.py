"""Checks the arguments of a layer's run and backward pass: batches, states, gradients and tapes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, ShapeError
from onernn.ir.ragged import Batch, Ragged, as_array, convert, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights

State = tuple[Array, ...]
"""The state of a batch: (h,), or (h, c) for an LSTM, each (L, D, N, O)."""
Layout = Literal["tnc", "ntc"]
"""The axes of a dense batch: "tnc" for (T, N, C), "ntc" for (N, T, C)."""


def check_numbers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns a float32 or float64 array in ``dtype``. Raises `ShapeError` for other dtypes."""
    if array.dtype not in (np.float32, np.float64):
        raise ShapeError(f"{name}: expected {dtype} values, got {array.dtype}")
    return convert(array, dtype, name)


def check_input(
    spec: RnnSpec,
    x: Batch,
    state: State | None,
    attention: Batch | None,
    dtype: np.dtype[Any],
    layout: Layout = "tnc",
) -> tuple[Batch, State, Batch | None]:
    """Returns (x, state, attention) in ``dtype`` and tnc, with zeros for a missing state.

    x: `Ragged` (W, I), or dense: (T, N, I) in layout "tnc", (N, T, I) in "ntc". state: (h,) or
    (h, c), each (L, D, N, O). attention, for AUGRU cells: like x, with one channel. Raises
    `ShapeError` that names the argument.
    """
    if layout not in get_args(Layout):
        raise ShapeError(f"layout: expected one of {get_args(Layout)}, got {layout!r}")
    words, ragged = data_of(x), isinstance(x, Ragged)
    axes = "W" if ragged else "T, N" if layout == "tnc" else "N, T"
    if words.ndim != (2 if ragged else 3) or words.shape[-1] != spec.input_size:
        raise ShapeError(f"x: expected ({axes}, {spec.input_size}), got {words.shape}")
    sentences = len(x) if isinstance(x, Ragged) else words.shape[layout.index("n")]
    words = check_numbers("x", words, dtype)
    states = check_state(spec, state, sentences, dtype)
    if (attention is not None) != spec.cell.has_attention:
        expected = "one channel" if spec.cell.has_attention else "none"
        raise ShapeError(f"attention: expected {expected} for {spec.cell.name}")
    if attention is not None:
        scale = check_numbers("attention", _check_like("attention", attention, "x", x, 1), dtype)
        attention = x.with_data(scale) if isinstance(x, Ragged) else lay_out(scale, layout)
    if isinstance(x, Ragged):
        return x.with_data(words), states, attention
    return lay_out(words, layout), states, attention


def _check_like(name: str, batch: Batch, of: str, like: Batch, channels: int) -> Array:
    """Returns the array of a batch. Raises `ShapeError` unless the batch has ``channels`` channels,
    and sequences of the same lengths as ``like``.
    """
    data, expected = data_of(batch), (*data_of(like).shape[:-1], channels)
    if data.shape != expected or isinstance(batch, Ragged) != isinstance(like, Ragged):
        wanted, got = ("Ragged" * isinstance(each, Ragged) for each in (like, batch))
        raise ShapeError(f"{name}: expected {wanted}{expected}, like {of}, got {got}{data.shape}")
    if isinstance(batch, Ragged) and isinstance(like, Ragged):
        if not np.array_equal(batch.offsets, like.offsets):
            raise ShapeError(f"{name}: expected the offsets of {of}, got different ones")
    return data


def lay_out(dense: Array, layout: Layout) -> Array:
    """Returns a view of a dense array whose axes are permuted from "tnc" to ``layout``; the same
    call converts back.
    """
    return dense if layout == "tnc" else dense.swapaxes(0, 1)


def check_state(
    spec: RnnSpec,
    state: Sequence[Array | None] | None,
    sentences: int,
    dtype: np.dtype[Any],
    name: str = "state",
) -> State:
    """Returns a state in ``dtype``, with zeros for missing arrays.

    Raises `ShapeError` that names the array.
    """
    stack = (spec.layers, spec.directions, sentences)
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    parts = spec.cell.states
    given = (None,) * len(parts) if state is None else state
    if len(given) != len(parts):
        raise ShapeError(f"{name}: expected ({', '.join(parts)}), got {len(given)} arrays")
    states = []
    for part, one in zip(parts, given, strict=True):
        expected = (*stack, widths[part])
        array = np.zeros(expected, dtype) if one is None else as_array(one, part)
        if array.shape != expected:
            raise ShapeError(
                f"{name} {part}: expected (L, D, N, O) = {expected}, got {array.shape}"
            )
        states.append(check_numbers(f"{name} {part}", array, dtype))
    return tuple(states)


# Objects of training: gradients, and the tape that a training run passes to `backward`.


class TapeError(OnernnError, ValueError):
    """Raised for a tape that was used already, or that another layer recorded.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> from onernn.backend import open_backend
    >>> stack = open_backend("reference").prepare(spec, weights)
    >>> y, state, tape = stack.run_training(np.ones((4, 1, 2), "f4"))
    >>> gradients = stack.backward(tape, y)
    >>> stack.backward(tape, y)
    Traceback (most recent call last):
    onernn.backend.arguments.TapeError: ...
    """


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a loss with respect to the inputs and weights of a run, each in the shape of
    this input or weight.

    ``layers``: one read-only `RnnWeights` (1, D, ...) for each layer of the stack, in the canonical
    layouts, with None for arrays that the weights lack. It is () if `Stack.backward` added the
    gradients to the caller's arrays. ``attention``: None except for AUGRU cells. The arrays are
    float32 (float64 for a reference layer in f64).

    `Stack.backward` returns it, with an example.
    """

    x: Ragged | Array
    state: State
    layers: tuple[RnnWeights, ...]
    attention: Ragged | Array | None = None


WeightGradients = Sequence[Mapping[str, Array]]
"""For each layer of a stack: the arrays to which `Stack.backward` adds, by the names of
`RnnWeights`.
"""


class Tape:
    """The record of a training run, for one `backward`; later changes of the caller's arrays have
    no effect.

    ``kernel`` names the implementation that ran forward and runs backward. ``why`` says why this
    implementation is not oneDNN ("" if no reason is needed).

    `Stack.run_training` returns it; `Stack.backward` has an example.
    """

    def __init__(self, maker: object, kernel: str, why: str, frame: Ragged | Array, kept: Any):
        self.kernel, self.why = kernel, why
        self.frame = frame
        """A batch without channels that has the lengths of x. The gradients of x and y have the
        same lengths.
        """
        self._maker, self._kept = maker, deque([kept])

    def check_maker(self, maker: object) -> None:
        """Raises `TapeError` if another layer recorded the tape."""
        if self._maker is not maker:
            raise TapeError("tape: expected a tape that this layer recorded, got a different one")

    def take(self) -> Any:
        """Returns the record. Raises `TapeError` from the second call on."""
        try:
            return self._kept.pop()
        except IndexError:
            raise TapeError(
                "tape: used already; call run_training again, each tape serves one backward"
            ) from None


def check_sums(into: WeightGradients, zeros: WeightGradients) -> None:
    """Raises `ShapeError` unless the arrays ``into`` have the names, shapes and dtypes of
    ``zeros``, and are writable.
    """
    if len(into) != len(zeros):
        raise ShapeError(
            f"into: expected a mapping for each of {len(zeros)} layers, got {len(into)}"
        )
    for layer, (sums, like) in enumerate(zip(into, zeros, strict=True)):
        if sums.keys() != like.keys():
            expected, got = (", ".join(sorted(names)) or "none" for names in (like, sums))
            raise ShapeError(f"into: layer {layer} has {expected}, got {got}")
        for name, array in sums.items():
            what, want = f"into: layer {layer} {name}", like[name]
            if not isinstance(array, np.ndarray):
                raise ShapeError(f"{what}: expected an array, got {type(array).__name__}")
            if (array.shape, array.dtype) != (want.shape, want.dtype):
                expected, got = (f"{a.dtype} {a.shape}" for a in (want, array))
                raise ShapeError(f"{what}: expected {expected}, got {got}")
            repeats = any(not s for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
            if not array.flags.writeable or repeats:
                how = "one whose elements share memory" if repeats else "a read-only one"
                raise ShapeError(f"{what}: expected an array to add to, got {how}")


def check_gradient(dy: Batch | None, frame: Batch, channels: int, dtype: np.dtype[Any]) -> Array:
    """Returns the steps (W, O) of dy, the gradient of the output y; zeros if dy is None. Raises
    `ShapeError` if dy does not match y.
    """
    if dy is None:
        return np.zeros((math.prod(data_of(frame).shape[:-1]), channels), dtype)
    data = _check_like("dy", dy, "y", frame, channels)
    return check_numbers("dy", data, dtype).reshape(-1, channels)
