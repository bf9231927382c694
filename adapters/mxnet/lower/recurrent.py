"""The rules of MXNet's recurrent operator, and of those that work along sequences.

Formulas: documentation of MXNet 1.9.1's operators of the same names.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.adapters.mxnet.lower.shaping import sliced
from onernn.adapters.mxnet.read import SymbolNode
from onernn.adapters.mxnet.read import attributes as parse
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Cell, RnnSpec
from onernn.reorders import mxnet

_SHORTEST = -(2**62)


def stack_of(node: SymbolNode) -> mxnet.Stack:
    """What an RNN operator's attributes say of its parameters. Raises `UnsupportedError`."""
    read = node.attributes
    mode = read.get("mode", "")
    if mode not in mxnet.CELLS:
        raise UnsupportedError(f"attribute mode={mode!r}: expected one of {', '.join(mxnet.CELLS)}")

    def whole(name: str) -> int:
        try:
            return parse.integer(read.get(name, "0"))
        except UnsupportedError as error:
            raise UnsupportedError(f"attribute {name}: {error}") from None

    projected = read.get("projection_size", "None") != "None"
    stack = mxnet.Stack(
        mode,
        whole("state_size"),
        whole("num_layers"),
        2 if parse.flag(read.get("bidirectional", "False")) else 1,
        whole("projection_size") if projected else None,
    )
    if projected and mode != "lstm":
        raise UnsupportedError(f"attribute projection_size for mode={mode!r}: of LSTMs only")
    sizes = (stack.hidden, stack.recurrent)
    if not (all(0 < size < 2**31 for size in sizes) and 0 < stack.layers < 2**10):
        raise UnsupportedError(
            f"attributes state_size={stack.hidden}, num_layers={stack.layers},"
            f" projection_size={stack.projection}: expected sizes from 1 to 2147483647,"
            " and 1 to 1023 layers"
        )
    return stack


Shape = tuple[int | None, ...]


def input_shapes(
    stack: mxnet.Stack, time: int | None, batch: int | None, width: int | None
) -> dict[str, Shape]:
    """The shape of each input of an RNN operator by its slot, in order; lengths come last."""
    rows = stack.layers * stack.directions
    shapes: dict[str, Shape] = {
        "data": (time, batch, width),
        "parameters": (stack.elements(width) if width else None,),
        "state": (rows, batch, stack.recurrent),
    }
    if stack.mode == "lstm":
        shapes["state_cell"] = (rows, batch, stack.hidden)
    return {**shapes, "sequence_length": (batch,)}


@rule("RNN", "data parameters? state? state_cell? sequence_length?", inferred="none")
def _rnn(op: MxnetOperator, x: str) -> tuple[str, ...]:
    """Outputs y (T, N, D*R) and, with ``state_outputs``, h (L*D, N, R) and c (L*D, N, O)."""
    stack = stack_of(op.node)
    for name in ("mode", "state_size", "num_layers", "bidirectional", "projection_size"):
        op.attribute(name, None)
    p = op.number("p", 0.0)
    if not 0 <= p <= 1:
        raise UnsupportedError(f"attribute p={p:g}: expected 0 <= p <= 1")
    if p:
        op.note(f"dropout p={p:g} between layers has no effect in inference")
    flat = op.array("parameters")
    if op.is_inferred(x):
        raise UnsupportedError("input data: its size is inferred")
    if flat.dtype.name not in ("float32", "float64"):
        raise UnsupportedError(f"its parameters are {flat.dtype}")
    slots = ["state", "state_cell"][: 1 + (stack.mode == "lstm")]
    # The operator has no input state_cell unless it is an LSTM: lengths come right behind state.
    states = [_state(op, stack, slot) for slot in slots]
    spec = _clipped(op, stack.spec(stack.input_size(flat.size)))
    lengths = _lengths(op, "state_cell" if stack.mode != "lstm" else "sequence_length")
    like = x
    if lengths:
        x = op.emit("SequenceUnpad", x, lengths, time_major=True)
    layers = mxnet.weights(mxnet.split(flat, stack), stack)
    weights = layers if len(layers) > 1 else layers[0]
    wanted = op.flag("state_outputs")
    count = 1 + len(slots)
    y, *finals = op.emit_many("Rnn", count, x, *states, spec=spec, weights=weights)
    if lengths:
        y = op.emit("SequencePad", y, like, time_major=True)
    if not wanted:
        return (y,)
    widths = (stack.recurrent, stack.hidden)
    rows = stack.layers * stack.directions
    return y, *(
        op.emit("Reshape", final, op.ints(rows, -1, width))
        for final, width in zip(finals, widths, strict=False)
    )


def _state(op: MxnetOperator, stack: mxnet.Stack, slot: str) -> str:
    """(L*D, N, R) -> ldnc; absent where the state is a constant of zeros, of any batch."""
    given = op.value(slot)
    array = op.builder.constants.get(given)
    if array is not None and not array.any():
        return ""
    if op.is_inferred(given):
        raise UnsupportedError(f"input {slot}: a state of inferred size that is not zero")
    width = stack.hidden if slot == "state_cell" else stack.recurrent
    return op.emit("Reshape", given, op.ints(stack.layers, stack.directions, -1, width))


def _lengths(op: MxnetOperator, slot: str) -> str:
    if not op.flag("use_sequence_length"):
        return ""
    given = op.value(slot)
    masks = op.as_documented("sequence lengths mask", "sequence lengths are ignored")
    return op.cast(given, np.int64) if masks else ""


def _clipped(op: MxnetOperator, spec: RnnSpec) -> RnnSpec:
    """The cell state's range: both ends or none; NaN is only stopped where there is a range."""
    low, high = (op.optional_number(f"lstm_state_clip_{end}") for end in ("min", "max"))
    stops_nan = op.flag("lstm_state_clip_nan")
    if (low is None) != (high is None):
        raise UnsupportedError("lstm_state_clip_min and lstm_state_clip_max go together")
    if low is None or high is None or spec.cell is not Cell.LSTM:
        return spec
    if not low <= high:
        raise UnsupportedError(f"lstm_state_clip_min={low:g} is above lstm_state_clip_max={high:g}")
    clips = f"the cell state is clipped to [{low:g}, {high:g}]"
    if not op.as_documented(clips, "the cell state is not clipped"):
        return spec
    return replace(spec, cell_clip=(low, high), cell_clip_nan=stops_nan)


def _sequence(op: MxnetOperator) -> tuple[int, str]:
    """(time axis, lengths or ""): data is (T, N, ...) or (N, T, ...)."""
    axis = op.integer("axis", 0)
    if axis not in (0, 1):
        raise UnsupportedError(f"attribute axis={axis}")
    given = op.optional("sequence_length")
    lengths = op.cast(given, np.int64) if op.flag("use_sequence_length") else ""
    if lengths and not given:
        raise UnsupportedError("input sequence_length is missing")
    return axis, lengths


@rule("SequenceMask", "data sequence_length?")
def _sequence_mask(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    value = op.number("value", 0.0)
    if not lengths:
        return x
    ragged = op.emit("SequenceUnpad", x, lengths, time_major=not axis)
    masked = op.emit("SequencePad", ragged, x, time_major=not axis)
    if not value:
        return masked
    # Where a mask of ones comes out as zeros, the value stands.
    ones = np.ones(1, op.dtype_of(x))
    whole = op.emit("ConstantOfShape", op.sizes_of(x), value=ones)
    inside = op.emit("SequenceUnpad", whole, lengths, time_major=not axis)
    inside = op.emit("SequencePad", inside, x, time_major=not axis)
    kept = op.emit("Cast", inside, to="bool")
    return op.emit("Where", kept, masked, op.scalar(value, x))


@rule("SequenceLast", "data sequence_length?")
def _sequence_last(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    if not lengths:
        last = op.constant(np.array(-1), "last")
        return op.emit("Gather", x, last, axis=axis)
    batch_major = x if axis else op.swapped(x, 0, 1)
    at = op.emit("Unsqueeze", op.emit("Sub", lengths, op.ints(1)), op.ints(-1))
    return op.emit("GatherND", batch_major, at, batch_dims=1, non_negative=True)


@rule("SequenceReverse", "data sequence_length?")
def _sequence_reverse(op: MxnetOperator, x: str) -> str:
    axis, lengths = _sequence(op)
    if axis:
        raise UnsupportedError(f"attribute axis={axis}")
    if not lengths:
        return sliced(op, x, [-1], [_SHORTEST], [0], [-1])
    return op.emit("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)
