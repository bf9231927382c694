"""Operators over sentences: their offsets, padded and ragged, pooled, decoded."""

from __future__ import annotations

from typing import Any

from onernn.core.sizes import Shape, Size, volume
from onernn.emit.operators.operator_code import OperatorCode, rule
from onernn.emit.program import Code
from onernn.operators.rules import ONE
from onernn.operators.sequences import POOLS


@rule("SequenceLike")
def with_offsets_of(op: OperatorCode) -> None:
    op.source = op.read(0)
    op.same(op.shape()[0], op.sentences(1).words)


@rule("SequenceReset")
def with_offsets(op: OperatorCode) -> Code:
    """Other offsets, which come as numbers and are checked."""
    op.of("int", at=1)
    op.source = op.read(0)
    made = op.makes_sentences(volume(op.shape(1)) - 1, op.shape()[0])
    return op.code("offsets", given=op.read(1), made=made)


@rule("SequenceAppend", "SequenceConcat")
def append(op: OperatorCode) -> Code:
    """The sentences of all inputs in one batch, or sentence n of all of them as one sentence."""
    appends = op.node.op == "SequenceAppend"
    parts = [op.sentences(at) for at in range(len(op.node.inputs))]
    count = sum((part.count for part in parts), Size(())) if appends else parts[0].count
    for part in parts if not appends else ():
        op.same(count, part.count)
    made = op.makes_sentences(count, sum((part.words for part in parts), Size(())))
    named = [{"x": op.read(at), "lod": part} for at, part in enumerate(parts)]
    template = "append" if appends else "concat_sentences"
    return op.code(template, parts=named, made=made, inner=volume(op.out()[1][1:]))


@rule("SequenceUnpad")
def unpad(op: OperatorCode) -> Code:
    """Its offsets, and the number of its words, are known when it has run."""
    op.of("int", at=1)
    layout = _layout(op, op.shape())
    count, most = layout["count"], layout["time"] * layout["count"]
    op.same(volume(op.shape(1)), count)
    made = op.makes_sentences(count, None, most=most)
    return op.code("unpad", x=op.read(0), lengths=op.read(1), made=made, **layout)


def _layout(op: OperatorCode, shape: Shape) -> dict[str, Any]:
    """The sizes of a padded shape: all words of a sentence are needed at once."""
    major = bool(vars(op.at).get("time_major"))
    time, count = shape[:2] if major else shape[1::-1]
    op.mixes = [time]
    return {"time": time, "count": count, "inner": volume(shape[2:]), "time_major": major}


@rule("SequencePad")
def pad(op: OperatorCode) -> Code:
    if not op.node.input(1):
        op.refuse("padded to the longest sentence, which only a call tells")
    return _padded(op, value="", word=False)


@rule("SequenceFill")
def fill(op: OperatorCode) -> Code:
    """With one number, or one word, behind each sentence."""
    if op.at.time is None:
        op.refuse("padded to the longest sentence, which only a call tells")
    word = op.shape(1)
    if volume(word) != ONE and word != op.shape()[1:]:
        op.refuse("expected one number, or one word, to fill with")
    return _padded(op, value=op.read(1), word=volume(word) != ONE)


def _padded(op: OperatorCode, **more: object) -> Code:
    _, shape = op.out()
    return op.code("pad", x=op.read(0), lod=op.sentences(), **_layout(op, shape), **more)


@rule("SequenceLengths")
def lengths(op: OperatorCode) -> Code:
    return op.code("lengths", lod=op.sentences())


@rule("SequencePool")
def pool(op: OperatorCode) -> Code:
    if op.at.kind not in POOLS:
        op.refuse(f"attribute kind={op.at.kind!r}")
    return _word_by_word(op, "pool", kind=op.at.kind, empty=op.at.empty)


@rule("SequenceReverse")
def reverse(op: OperatorCode) -> Code:
    return _word_by_word(op, "reverse_sentences")


@rule("SequenceSoftmax")
def softmax(op: OperatorCode) -> Code:
    """Over the words of each sentence, of one number a word."""
    op.of("float")
    op.same(volume(op.shape()[1:]), 1)
    return _word_by_word(op, "sentence_softmax")


@rule("SequenceContext")
def context_window(op: OperatorCode) -> Code:
    """Neighbouring words side by side, zeros outside of the sentence."""
    return _word_by_word(op, "context", length=int(op.at.length), start=int(op.at.start))


def _word_by_word(op: OperatorCode, template: str, **more: object) -> Code:
    inner, real = volume(op.shape()[1:]), op.program.ctype(op.node.outputs[0])
    return op.code(template, x=op.read(0), lod=op.sentences(), inner=inner, real=real, **more)


@rule("SequenceExpand")
def expand(op: OperatorCode) -> Code:
    """Row n as often as sentence n of the other input has words."""
    if op.program.sentences(op.node.inputs[0]):
        op.refuse("sentences that are repeated: nobody bounds how many words that makes")
    like = op.sentences(1)
    op.same(op.shape()[0], like.count)
    op.same(op.made(0), like.words)
    return op.code("expand", x=op.read(0), lod=like, inner=volume(op.shape()[1:]))


@rule("CrfDecode")
def decode(op: OperatorCode) -> Code:
    """Viterbi's path; ties go to the lower tag. Formula: Paddle's operator crf_decoding."""
    emission, transition = op.shape(0), op.shape(1)
    op.of("float")
    if op.dtype(0) != op.dtype(1):
        op.refuse(f"of {op.dtype(0)} and {op.dtype(1)}")
    if len(emission) != 2 or len(transition) != 2:
        op.refuse("expected emission (W, K) and transition (K+2, K)")
    tags = emission[1]
    op.same(transition[0], tags + 2)
    op.same(transition[1], tags)
    best, came_from = op.keep("best", op.dtype(), (2, tags)), op.keep("from", "int64", emission)
    more = {"lod": op.sentences(), "tags": tags, "best": best, "came_from": came_from}
    real = op.program.ctype(op.node.inputs[0])
    return op.code("crf", emission=op.read(0), transition=op.read(1), real=real, **more)
