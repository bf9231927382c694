"""The rules of Paddle's operators over the sentences of a LoD.

Slots, defaults and the LoD of outputs: sequence_ops/ of 2.6, measured with 2.6.2.
"""

from __future__ import annotations

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError

POOLS = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")


@rule("sequence_pool")
def _pool(op: PaddleOperator) -> Results:
    """One row a sentence: the levels above stay."""
    x, kind = op.ragged("X"), op.attribute("pooltype", "AVERAGE")
    if kind not in POOLS:
        raise UnsupportedError(f"attribute pooltype={kind!r}: expected one of {POOLS}")
    attributes = {"kind": kind.lower(), "empty": op.attribute("pad_value", 0.0)}
    return op.emit("SequencePool", x, **attributes)


@rule("sequence_conv")
def _conv(op: PaddleOperator) -> Results:
    """A window of words around each one, times the filter; zeros stand outside of the sentence."""
    op.only("contextStride", 1)
    op.only("paddingTrainable", False)
    if op.optional("PaddingData"):
        raise UnsupportedError("input PaddingData: trained padding")
    length, start = op.attribute("contextLength", 1), op.attribute("contextStart", 0)
    if not 0 < length <= 2**10 or abs(start) > 2**10:
        raise UnsupportedError(f"attributes contextLength={length}, contextStart={start}")
    window = op.emit("SequenceContext", op.ragged("X"), length=length, start=start)
    return op.emit("MatMul", window, op.value("Filter"))


@rule("sequence_expand")
def _expand(op: PaddleOperator) -> Results:
    """Sentence n of X as often as element n of a level of Y has parts."""
    x, like, level = op.value("X"), op.ragged("Y"), op.attribute("ref_level", -1)
    depth, own = op.depth(like), op.depth(x)
    if not -1 <= level < depth or own > 1:
        raise UnsupportedError(f"attribute ref_level={level}: X has {own} LoD levels, Y {depth}")
    return op.emit("SequenceExpand", x, like, level=level % depth)


@rule("sequence_expand_as")
def _expand_as(op: PaddleOperator) -> Results:
    """Row n of X for each word of sentence n of Y, as ragged as Y."""
    x, like = op.value("X"), op.ragged("Y", 1)
    rows = op.emit("SequenceExpand", op.dense(x), like, level=0)
    return op.emit("SequenceLike", rows, like)


@rule("sequence_concat")
def _concat(op: PaddleOperator) -> Results:
    """Sentence n of all inputs, one behind the other."""
    values = op.values("X")
    if any(op.depth(value) != 1 for value in values):
        raise UnsupportedError("inputs X: one LoD level each is supported")
    return op.emit("SequenceConcat", *values)


@rule("sequence_pad")
def _pad(op: PaddleOperator) -> Results:
    """(N, T, ...), T the longest sentence or ``padded_length``, and the lengths (N,)."""
    x, value = op.ragged("X", 1), op.value("PadValue")
    time = op.attribute("padded_length", -1)
    attributes = {} if time == -1 else {"time": time}
    lengths = op.emit("SequenceLengths", x)
    padded = op.emit("SequenceFill", x, value, **attributes)
    return {"Out": padded, "Length": lengths}


@rule("sequence_unpad")
def _unpad(op: PaddleOperator) -> Results:
    lengths = op.dense(op.value("Length"))
    return op.emit("SequenceUnpad", op.dense(op.value("X")), lengths)


@rule("lod_reset")
def _lod_reset(op: PaddleOperator) -> Results:
    op.only("append", False)
    x, like, target = op.value("X"), op.optional("Y"), op.attribute("target_lod", ())
    if like and op.is_ragged(like):  # Y comes before target_lod
        return op.under(x, like)
    if like and op.dtype("Y").kind != "i":
        raise UnsupportedError("input Y carries no LoD, and no offsets as numbers")
    if not like and not target:
        raise UnsupportedError("neither input Y nor attribute target_lod")
    return op.emit("SequenceReset", x, like or op.ints(target))


@rule("crf_decoding")
def _crf_decoding(op: PaddleOperator) -> Results:
    if op.optional("Length"):
        raise UnsupportedError("input Length: padded emissions are not supported")
    path = op.emit("CrfDecode", op.ragged("Emission"), op.value("Transition"))
    if label := op.optional("Label"):  # then the output tells where the path agrees with it
        agreed = op.emit("Equal", path, op.emit("Reshape", op.dense(label), op.ints([-1, 1])))
        path = op.emit("Cast", agreed, to="int64")
    return {"ViterbiPath": path}
