"""Arguments of a layer, checked: batches and states, gradients and tapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, ShapeError
from onernn.ir.ragged import Ragged, as_array, convert, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights

State = tuple[Array, ...]
Layout = Literal["tnc", "ntc"]


def checked_numbers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype not in (np.float32, np.float64):
        raise ShapeError(f"{name}: expected {dtype} numbers, got {array.dtype}")
    return convert(array, dtype, name)


def checked_input(
    spec: RnnSpec,
    x: Ragged | Array,
    state: State | None,
    attention: Ragged | Array | None,
    dtype: np.dtype[Any],
    layout: Layout = "tnc",
) -> tuple[Ragged | Array, State, Ragged | Array | None]:
    """Returns (x, state, attention) in ``dtype`` and tnc, zeros for a state that is not there.

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
    state: Sequence[Array | None] | None,
    sentences: int,
    dtype: np.dtype[Any],
    name: str = "state",
) -> State:
    """Returns a state in ``dtype``, zeros where there is none of it or of a part.

    Raises `ShapeError` naming the array.
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
        states.append(checked_numbers(f"{name} {part}", array, dtype))
    return tuple(states)


# What training passes around: gradients, and the tape between a run and its `backward`.


class TapeError(OnernnError, ValueError):
    """A tape that was used already, or that another layer recorded."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a loss by all that a run read, each shaped like what it belongs to.

    ``layers``: one `RnnWeights` (1, D, ...) for each layer of the stack, in the canonical layouts,
    read-only, None where the weights have None; () where `Stack.backward` added them to arrays of
    the caller. ``attention``: None but for AUGRU cells. float32 (float64 on a reference layer in
    f64).
    """

    x: Ragged | Array
    state: State
    layers: tuple[RnnWeights, ...]
    attention: Ragged | Array | None = None


WeightGradients = Sequence[Mapping[str, Array]]
"""For each layer of a stack arrays by the names of `RnnWeights`, which `Stack.backward` fills."""


class Tape:
    """The record of a training run for one `backward`, in copies: the caller's arrays may change.

    ``kernel`` names what ran forward and runs backward, ``why`` says why not oneDNN ("" where it
    does).
    """

    def __init__(self, maker: object, kernel: str, why: str, frame: Ragged | Array, kept: Any):
        self.kernel, self.why = kernel, why
        self.frame = frame
        """The batch with no channels: what gradients by x and y are shaped like."""
        self._maker, self._kept = maker, deque([kept])

    def check_maker(self, maker: object) -> None:
        """Nothing, or `TapeError` where another layer recorded it."""
        if self._maker is not maker:
            raise TapeError("tape: another layer recorded it; only that one can go backward on it")

    def take(self) -> Any:
        """Returns the record, once; `TapeError` from the second call on."""
        try:
            return self._kept.pop()
        except IndexError:
            raise TapeError(
                "tape: used already; call run_training again, each tape serves one backward"
            ) from None


def check_sums(into: WeightGradients, zeros: WeightGradients) -> None:
    """Nothing, or `ShapeError` for what cannot take gradients shaped like ``zeros``."""
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
                how = "one whose numbers share memory" if repeats else "a read-only one"
                raise ShapeError(f"{what}: expected an array to add to, got {how}")


def checked_gradient(
    dy: Ragged | Array | None, frame: Ragged | Array, channels: int, dtype: np.dtype[Any]
) -> Array:
    """Returns the words (W, O) of dy, zeros for None. Raises `ShapeError` where it is not like
    y.
    """
    expected = (*data_of(frame).shape[:-1], channels)
    if dy is None:
        return np.zeros(expected, dtype).reshape(-1, channels)
    data = data_of(dy)
    if data.shape != expected or isinstance(dy, Ragged) != isinstance(frame, Ragged):
        wanted, got = ("Ragged" * isinstance(batch, Ragged) for batch in (frame, dy))
        raise ShapeError(f"dy: expected {wanted}{expected}, like y, got {got}{data.shape}")
    if isinstance(dy, Ragged) and isinstance(frame, Ragged):
        if not np.array_equal(dy.offsets, frame.offsets):
            raise ShapeError("dy: expected the offsets of y, got others")
    return checked_numbers("dy", data, dtype).reshape(-1, channels)
