"""What operators become that several frameworks have, once a rule has read its attributes.

Values are (N, C, ...) where they have channels; attributes are those of ONNX's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onernn.adapters.common.lowering import NativeOperator
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, RnnWeights


def recurrent_stack(
    op: NativeOperator,
    x: str,
    states: Sequence[str],
    spec: RnnSpec,
    weights: Sequence[RnnWeights],
    lengths: str = "",
    batch_major: bool = False,
    precision: LayerPrecision = OWN,
) -> tuple[str, ...]:
    """y (T, N, D*R), then the last states (L*D, N, R), and (L*D, N, O) of an LSTM's cells.

    ``states``: the first ones, of the same shapes, "" where they are zeros of any batch.
    ``lengths``: steps behind them do not run, and give zeros. ``batch_major``: x and y have the
    batch before the time, (N, T, ...).
    """
    widths = (spec.recurrent_size, spec.hidden_size)

    def apart(state: str, width: int) -> str:
        if spec.layers == 1:
            return op.unsqueezed(state, 0)
        return op.reshaped(state, spec.layers, spec.directions, -1, width)

    pairs = zip(states, widths, strict=False)
    begin = [state and apart(state, width) for state, width in pairs]
    words = x
    if lengths:
        words = op.emit("SequenceUnpad", x, lengths, time_major=not batch_major)
    elif batch_major:
        words = op.transposed(x, 1, 0, 2)
    own: dict[str, Any] = {"precision": precision} if precision else {}
    packed = weights if len(weights) > 1 else weights[0]
    count = 1 + len(spec.cell.states)
    y, *ends = op.emit_many("Rnn", count, words, *begin, spec=spec, weights=packed, **own)
    if lengths:
        y = op.emit("SequencePad", y, x, time_major=not batch_major)
    elif batch_major:
        y = op.transposed(y, 1, 0, 2)
    if spec.layers == 1:
        return y, *(op.squeezed(end, 0) for end in ends)
    rows = spec.layers * spec.directions
    return y, *(op.reshaped(end, rows, -1, width) for end, width in zip(ends, widths, strict=False))


def pool_windows(
    op: NativeOperator,
    x: str,
    kind: str,
    kernel: Sequence[int],
    *,
    counts_pads: bool = False,
    **windows: Any,
) -> str:
    """Returns the largest ("max") or the mean ("avg") of what a window sees; ``counts_pads``: of a
    mean.

    Raises `UnsupportedError` for windows at an end that may see nothing but pads.
    """
    numbers = zip(kernel, windows["strides"], windows.get("pads", [0] * len(kernel)), strict=False)
    if windows.get("ceil_mode") and any(size < stride + pad for size, stride, pad in numbers):
        raise UnsupportedError("sizes rounded up: windows that may see nothing but pads")
    if kind == "max":
        return op.emit("MaxPool", x, kernel_shape=tuple(kernel), **windows)
    windows["count_include_pad"] = int(counts_pads)
    return op.emit("AveragePool", x, kernel_shape=tuple(kernel), **windows)


def pooled_whole(op: NativeOperator, x: str, kind: str) -> str:
    """Returns the largest ("max") or the mean ("avg") of each channel."""
    return op.emit("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)


def remainder(op: NativeOperator, x: str, y: str) -> str:
    """Returns what the quotient towards minus infinity leaves of floats: it has the sign of the
    divisor.
    """
    rest, zero = op.emit("Mod", x, y, fmod=1), op.scalar(0, x)
    apart = op.emit("Xor", op.emit("Less", rest, zero), op.emit("Less", y, zero))
    wrong = op.emit("And", apart, op.emit("Not", op.emit("Equal", rest, zero)))
    return op.emit("Where", wrong, op.emit("Add", rest, y), rest)


NEAREST = {
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
    "mode": "nearest",
}
"""A Resize that repeats elements, or leaves some out."""

PAD_MODES = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
"""What stands in pads, by the names of PyTorch and Paddle."""
