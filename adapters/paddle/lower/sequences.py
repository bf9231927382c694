"""The rules of Paddle's operators over the sentences of a LoD.

Slots, defaults and the LoD of outputs: sequence_ops/ of 2.6, measured with 2.6.2.
"""

from __future__ import annotations

from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.table import rule
from onernn.core.errors import UnsupportedError

POOLS = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")


def _ragged(op: PaddleOperator, slot: str, *, levels: int | None = None) -> str:
    value = op.value(slot)
    depth = op.builder.depth.get(value, 0)
    if not depth:
        raise UnsupportedError(f"input {slot} carries no LoD")
    if levels not in (None, depth):
        raise UnsupportedError(f"input {slot}: {depth} LoD levels, only {levels} is supported")
    return value


@rule("sequence_pool")
def _pool(op: PaddleOperator) -> None:
    """One row a sentence: the levels above stay."""
    x, kind = _ragged(op, "X"), op.attribute("pooltype", "AVERAGE")
    if kind not in POOLS:
        raise UnsupportedError(f"attribute pooltype={kind!r}: expected one of {POOLS}")
    attributes = {"kind": kind.lower(), "empty": op.attribute("pad_value", 0.0)}
    op.give("Out", op.emit("SequencePool", x, depth=op.builder.depth[x] - 1, **attributes))


@rule("sequence_softmax")
def _softmax(op: PaddleOperator) -> None:
    op.attribute("data_format", "AnyLayout")
    op.give("Out", op.emit("SequenceSoftmax", _ragged(op, "X")))


@rule("sequence_reverse")
def _reverse(op: PaddleOperator) -> None:
    op.give("Y", op.emit("SequenceReverse", _ragged(op, "X")))


@rule("sequence_conv")
def _conv(op: PaddleOperator) -> None:
    """A window of words around each one, times the filter; zeros stand outside of the sentence."""
    op.only("contextStride", 1)
    op.only("paddingTrainable", False)
    if op.optional("PaddingData"):
        raise UnsupportedError("input PaddingData: trained padding")
    length, start = op.attribute("contextLength", 1), op.attribute("contextStart", 0)
    if not 0 < length <= 2**10 or abs(start) > 2**10:
        raise UnsupportedError(f"attributes contextLength={length}, contextStart={start}")
    window = op.emit("SequenceContext", _ragged(op, "X"), length=length, start=start)
    op.give("Out", op.emit("MatMul", window, op.value("Filter")))


@rule("sequence_expand")
def _expand(op: PaddleOperator) -> None:
    """Sentence n of X as often as element n of a level of Y has parts."""
    x, like, level = op.value("X"), _ragged(op, "Y"), op.attribute("ref_level", -1)
    depth, own = op.builder.depth[like], op.builder.depth.get(x, 0)
    if not -1 <= level < depth or own > 1:
        raise UnsupportedError(f"attribute ref_level={level}: X has {own} LoD levels, Y {depth}")
    out = op.emit("SequenceExpand", x, like, depth=own, level=level % depth)
    op.give("Out", out)


@rule("sequence_expand_as")
def _expand_as(op: PaddleOperator) -> None:
    """Row n of X for each word of sentence n of Y, as ragged as Y."""
    x, like = op.value("X"), _ragged(op, "Y", levels=1)
    rows = op.emit("SequenceExpand", op.dense(x), like, depth=0, level=0)
    op.give("Out", op.emit("SequenceLike", rows, like, depth=1))


@rule("sequence_concat")
def _concat(op: PaddleOperator) -> None:
    """Sentence n of all inputs, one behind the other."""
    values = [op.builder.value(name) for name in op.variables("X")]
    if any(op.builder.depth.get(value, 0) != 1 for value in values):
        raise UnsupportedError("inputs X: one LoD level each is supported")
    op.give("Out", op.emit("SequenceConcat", *values, depth=1))


@rule("sequence_pad")
def _pad(op: PaddleOperator) -> None:
    """(N, T, ...), T the longest sentence or ``padded_length``, and the lengths (N,)."""
    x, value = _ragged(op, "X", levels=1), op.value("PadValue")
    time = op.attribute("padded_length", -1)
    attributes = {} if time == -1 else {"time": time}
    lengths = op.emit("SequenceLengths", x, depth=0)
    padded = op.emit("SequenceFill", x, value, depth=0, **attributes)
    op.give("Out", padded)
    op.give("Length", lengths)


@rule("sequence_unpad")
def _unpad(op: PaddleOperator) -> None:
    lengths = op.dense(op.value("Length"))
    op.give("Out", op.emit("SequenceUnpad", op.dense(op.value("X")), lengths, depth=1))
