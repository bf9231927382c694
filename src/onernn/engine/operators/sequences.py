"""Operators over sequences: their offsets, padded and ragged forms, pooling, decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onernn.engine.found_sizes import longest
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import (
    CTYPES,
    Call,
    Layer,
    LodLevel,
    Program,
    Run,
    RuntimeSize,
    State,
)
from onernn.ir.errors import UnsupportedError
from onernn.ir.rnn import Recurrent, check_cells, parts
from onernn.ir.types import Shape, Size, volume
from onernn.ops.rules import ONE
from onernn.ops.sequences import POOLS


def batch_of(program: Program, x: str) -> tuple[Size, Size | None, Size, LodLevel | None]:
    """Returns (steps of all sequences, T or None if ragged, N, LoD level) of a layer's input."""
    lod, shape = program.sentences(x), program.shape(x)
    if len(shape) != (2 if lod else 3):
        expected = "2 axes (W, I) for sequences" if lod else "3 axes (T, N, I)"
        raise UnsupportedError(f"x: expected {expected}, got {len(shape)}")
    if lod:
        return lod.words, None, lod.count, lod
    return shape[0] * shape[1], shape[0], shape[1], None


@rule("Rnn")
def recurrent(op: OperatorCode) -> Layer:
    rnn = Recurrent.of(op.node)
    spec, dtype = rnn.spec, rnn.layers[0].iter.dtype.name
    for index, name in enumerate(op.node.inputs):
        if name and op.dtype(index) != dtype:
            op.refuse(
                f"input {name!r}: expected {dtype}, as the weights are, got {op.dtype(index)}"
            )
    cells = rnn.cells if op.program.graph.is_read(rnn.cells) else ""
    if cells:
        check_cells(spec)
    words, time, count, lod = batch_of(op.program, rnn.x)
    shape = op.shape()
    op.same(shape[-1], spec.input_size)
    stack, widths = (spec.layers, spec.directions, count), (spec.recurrent_size, spec.hidden_size)
    states = []
    for index, (state, width) in enumerate(zip(spec.cell.states, widths, strict=False)):
        if rnn.states[index]:
            op.fits(1 + index, (*stack, width))
        held = op.keep(f"held_{state}", dtype, (*stack, width), held=True)
        final = rnn.finals[index] or op.keep(f"final_{state}", dtype, (*stack, width), held=True)
        states.append(State(state, op.read(1 + index), final, held, width))
    if rnn.attention:
        if op.program.sentences(rnn.attention) not in (None, lod):
            op.refuse("attention: expected the offsets of x, got different ones")
        op.fits(3, (*shape[:-1], 1))
    op.read(0)
    runs, attention = _runs(op, rnn, words), op.read(3)
    of = (words, time, count, lod, CTYPES[dtype], cells)
    return Layer(op.node, runs, tuple(states), attention, *of)


def _runs(op: OperatorCode, rnn: Recurrent, words: Size) -> tuple[Run, ...]:
    spec, layers = rnn.spec, rnn.layers
    dtype = layers[0].iter.dtype.name
    between: dict[tuple[int, int], str] = {}
    runs: list[Run] = []
    for part in parts(spec):
        layer, d = part.layer, part.direction
        # If directions are joined only after the last layer, each direction has its own values
        # between layers.
        joins, side = spec.joins(layer), "" if spec.stacking == "framework" else f"_{d}"
        concat = joins and spec.direction == "bidirectional_concat"
        width, y = spec.recurrent_size * (2 if concat else 1), rnn.y
        if layer < spec.layers - 1:
            y = op.keep(f"layer{layer}{side}", dtype, (words, width))
        title = f"layer {layer + 1} of {spec.layers}" if spec.layers > 1 else ""
        if spec.directions > 1:
            title += ", " * bool(title) + ("right to left" if d else "left to right")
        runs.append(
            Run(
                title,
                part.spec,
                layers[layer].part(0, d),
                x=between.get((layer, d), rnn.x),
                y=y,
                width=width,
                offset=d * spec.recurrent_size if concat else 0,
                backwards=part.backwards,
                added=joins and d == 1 and spec.direction == "bidirectional_sum",
                index=len(runs),
            )
        )
        between[layer + 1, d] = y
    return tuple(runs)


@rule("SequenceLike")
def with_offsets_of(op: OperatorCode) -> None:
    op.view(op.read(0))
    op.same(op.shape()[0], op.sentences(1).words)


@rule("SequenceReset")
def with_offsets(op: OperatorCode) -> Call:
    """Returns the call that checks and copies new offsets, which an input holds."""
    op.of("int", index=1)
    op.view(op.read(0))
    (result,) = op.makes_sentences(volume(op.shape(1)) - 1, words=op.shape()[0])
    given, sizes = op.read(1), (result.count, result.words)
    return Call("take_offsets", result, given, *sizes, types=[op.dtype(1)], checks=True)


@rule("SequenceAppend")
def append(op: OperatorCode) -> list[Call]:
    """Returns the sequences of all inputs in one batch."""
    parts = [op.program.levels(name) for name in op.node.inputs]
    op.alike(*range(1, len(parts)))
    counts = [_sum(level.count for level in levels) for levels in zip(*parts, strict=True)]
    result = op.makes_sentences(*counts, words=_sum(part[-1].words for part in parts))
    calls, inner = [], volume(op.out()[1][1:])
    before = [Size(())] * (len(result) + 1)
    for index, part in enumerate(parts):
        for k, level in enumerate(part):
            calls.append(Call("append_offsets", result[k], level, *before[k : k + 2], level.count))
        rows = before[-1] * inner, part[-1].words * inner
        calls.append(op.move("append", op.read(index), *rows))
        sizes = [*(level.count for level in part), part[-1].words]
        before = [a + b for a, b in zip(before, sizes, strict=True)]
    return calls


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size(()))


@rule("SequenceConcat")
def concat(op: OperatorCode) -> list[Call]:
    """Joins sequence n of all inputs into one sequence."""
    parts = [op.sentences(index) for index in range(len(op.node.inputs))]
    op.alike(*range(1, len(parts)))
    count = parts[0].count
    for part in parts:
        op.same(count, part.count)
    (result,) = op.makes_sentences(count, words=_sum(part.words for part in parts))
    ends, sizes = op.keep("ends", "int64", (count,)), (count, volume(op.out()[1][1:]))
    begun, joined = [], []
    for index, part in enumerate(parts):
        begun.append(Call("add_offsets", result, part, count, index == 0))
        given = ends, result, op.read(index), part
        joined.append(op.move("join", *given, *sizes, index == 0))
    return begun + joined


@rule("SequenceUnpad")
def unpad(op: OperatorCode) -> Call:
    """Returns the call that also computes the offsets and the total number of steps."""
    op.of("int", index=1)
    time, count, *_ = layout = _layout(op, op.shape())
    op.holds(1, count)
    (result,) = op.makes_sentences(count, most=time * count)
    given = *op.read_first(2), result, RuntimeSize(result.words)
    return op.move("unpad", *given, *layout, by=1, checks=True)


def _layout(op: OperatorCode, shape: Shape) -> tuple[Any, ...]:
    """Returns (T, N, elements of a step, time_major) for the shape of padded sequences."""
    major = bool(vars(op.attrs).get("time_major"))
    time, count = shape[:2] if major else shape[1::-1]
    return time, count, volume(shape[2:]), major


@rule("SequencePad")
def pad(op: OperatorCode) -> list[Call]:
    axis = 0 if op.attrs.time_major else 1
    finds = [] if op.node.input(1) else _to_the_longest(op, axis)
    return [*finds, _pad(op, "", word=False)]


@rule("SequenceFill")
def fill(op: OperatorCode) -> list[Call]:
    """Fills the rows after each sequence with one number, or one step."""
    finds = _to_the_longest(op, 1) if op.attrs.time is None else []
    op.alike(1)
    word = op.shape(1)
    if volume(word) != ONE and word != op.shape()[1:]:
        op.refuse("fill value: expected one value, or one step")
    return [*finds, _pad(op, op.read(1), word=volume(word) != ONE)]


def _to_the_longest(op: OperatorCode, axis: int) -> list[Call]:
    """Binds the output's size along ``axis`` to the length of the longest sequence. The caller
    passes this length for an input of the graph. For all further values, the returned call computes
    it.
    """
    level, program = op.sentences(), op.program
    inputs = {value.name for value in program.graph.inputs}
    if level.level == -1 and level.name in inputs:  # a call passes the longest of the steps only
        op.same(op.result_size(axis), program.longest_of(level))
        return []
    size = op.finds(op.result_size(axis), "longest", longest(program, op.node.inputs[0]))
    return [Call("find_longest", RuntimeSize(size), level, level.count)]


def _pad(op: OperatorCode, value: str, word: bool) -> Call:
    _, shape = op.out()
    given, layout = (op.read(0), op.sentences(), value, word), _layout(op, shape)
    return op.move("pad", *given, *layout, checks=True)


@rule("SequenceLengths")
def lengths(op: OperatorCode) -> Call:
    lod, (out, _) = op.sentences(), op.out()
    return op.call("lengths", lod, lod.count, types=[op.program.dtype(out)])


@rule("SequencePool")
def pool(op: OperatorCode) -> Call:
    if op.attrs.kind not in POOLS:
        op.refuse(f"attribute kind={op.attrs.kind!r}: expected one of {', '.join(POOLS)}")
    how = [*POOLS].index(op.attrs.kind), float(op.attrs.empty)
    return op.call("pool", *_words(op), _inner(op), *how)


@rule("SequenceReverse")
def reverse(op: OperatorCode) -> Call:
    return op.move("reverse_sentences", *_words(op), _inner(op))


@rule("SequenceSoftmax")
def softmax(op: OperatorCode) -> Call:
    """Takes one number per step; computes the softmax over the steps of each sequence."""
    op.of("float")
    op.same(_inner(op), 1)
    return op.call("sentence_softmax", *_words(op))


@rule("SequenceContext")
def context_window(op: OperatorCode) -> Call:
    """Joins neighbouring steps, with zeros outside of the sequence."""
    how = int(op.attrs.length), int(op.attrs.start)
    return op.move("context", *_words(op), _inner(op), *how)


def _words(op: OperatorCode) -> tuple[str, LodLevel, Size]:
    lod = op.sentences()
    return op.read(0), lod, lod.count


def _inner(op: OperatorCode) -> Size:
    return volume(op.shape()[1:])


@rule("SequenceExpand")
def expand(op: OperatorCode) -> Call:
    """Repeats row n once per step (or inner sequence) of sequence n of the other input."""
    if op.program.sentences(op.node.inputs[0]):
        op.refuse("the number of steps of repeated sequences has no known bound: expected rows")
    like = op.program.levels(op.node.inputs[1])[op.attrs.level]
    op.same(op.shape()[0], like.count)
    op.same(op.result_size(0), like.words)
    return op.move("expand", op.read(0), like, like.count, _inner(op))


@rule("CrfDecode")
def decode(op: OperatorCode) -> Call:
    """Finds the tags with the highest score (Viterbi). Of equal scores, the lower tag wins.
    Paddle's operator crf_decoding has the formula.
    """
    emission, transition = op.shape(0), op.shape(1)
    op.of("float")
    op.alike(1)
    if len(emission) != 2 or len(transition) != 2:
        expected = "expected emission (W, K) and transition (K+2, K)"
        op.refuse(f"{expected}, got {len(emission)} and {len(transition)} axes")
    tags = emission[1]
    op.same(transition[0], tags + 2)
    op.same(transition[1], tags)
    given, lod = op.read_first(2), op.sentences()
    best, came_from = op.keep("best", op.dtype(), (2, tags)), op.keep("from", "int32", emission)
    own = best, came_from
    return op.call("viterbi", *given, lod, lod.count, tags, *own)
