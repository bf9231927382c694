"""Operators of our own domain as Paddle's: gates, offsets, sentences, tags.

Paddle 3 has no sequence_pad, _unpad, _reverse and _concat any more: these are arithmetic on
offsets, and rows of lookup_table_v2, which both versions run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onernn.adapters.paddle.write.arithmetic import convolution
from onernn.adapters.paddle.write.emitting import Padded, Writing, only, rule
from onernn.adapters.paddle.write.program import Sizes
from onernn.adapters.paddle.write.shaping import filled
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.reorders.gates import GateLayout


def ragged(w: Writing, variable: str, levels: int = 1) -> str:
    """A variable that must carry so many LoD levels."""
    if (found := w.of(variable).depth) != levels:
        raise UnsupportedError(f"a value of {found} LoD levels, Paddle's operator takes {levels}")
    return variable


def laid_out(w: Writing, x: str, layout: GateLayout) -> str:
    """The columns of x, gate by gate, in another order and with another sign."""
    gates = len(layout.permutation)
    if layout == GateLayout(tuple(range(gates)), (1,) * gates):
        return x
    axis = w.rank(x) - 1
    sizes = (*w.of(x).sizes[:-1], None)
    numbers = {"axis": axis, "num": gates, "sections": list[int]()}
    parts = w.emit_many("split", {"X": x}, gates, sizes, attributes=numbers)
    minus = {"scale": -1.0, "bias": 0.0, "bias_after_scale": True}
    chosen = [
        parts[gate] if sign > 0 else w.emit("scale", {"X": parts[gate]}, attributes=minus)
        for gate, sign in zip(layout.permutation, layout.signs, strict=True)
    ]
    return w.concat(chosen, axis)


@rule("GateLayout")
def _gate_layout(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "layout")
    made = laid_out(w, inputs[0], node.attributes["layout"])
    w.give(node, made if made != inputs[0] else w.emit("assign", {"X": made}))


@rule("SequenceData")
def _sequence_data(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, w.dense(inputs[0]) if w.of(inputs[0]).depth else inputs[0])


@rule("SequenceLike")
def _sequence_like(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, w.under(*inputs))


@rule("SequenceReset")
def _sequence_reset(w: Writing, node: Node, inputs: list[str]) -> None:
    """Offsets as a list, or as int32 in a value."""
    only(node)
    x, offsets = inputs
    if node.inputs[1] in w.graph.constants:
        found = [int(number) for number in w.graph.constants[node.inputs[1]].reshape(-1)]
        made = w.emit(
            "lod_reset", {"X": x}, lod="", attributes={"target_lod": found, "append": False}
        )
        w.of(made).depth = 1
        return w.give(node, made)
    w.give(node, _with_offsets(w, x, offsets))


@rule("SequenceAppend")
def _sequence_append(w: Writing, node: Node, inputs: list[str]) -> None:
    """Of values with LoD Paddle's concat along the words joins the LoD, too."""
    only(node)
    w.give(node, w.concat(inputs, 0))


@rule("SequencePool")
def _pool(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "kind", "empty")
    w.give(node, pooled(w, inputs[0], node.attributes["kind"], node.attributes["empty"]))


def pooled(w: Writing, x: str, kind: str, empty: float = 0.0) -> str:
    """One row a sentence, under the LoD levels above."""
    numbers = {"pooltype": kind.upper(), "pad_value": float(empty), "is_test": True}
    made = w.emit("sequence_pool", {"X": x}, also=("MaxIndex",), attributes=numbers)
    w.of(made).depth = w.of(x).depth - 1
    return made


@rule("SequenceSoftmax")
def _softmax(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, w.emit("sequence_softmax", {"X": ragged(w, inputs[0])}))


@rule("SequenceReverse")
def _reverse(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, turned(w, inputs[0]))


@rule("SequenceContext")
def _context(w: Writing, node: Node, inputs: list[str]) -> None:
    """A convolution with the identity; a product behind it takes its own matrix instead."""
    only(node, "length", "start")
    width = w.of(inputs[0]).sizes[-1]
    if width is None:
        raise UnsupportedError("a window of words of unknown width")
    filter_ = np.eye(width * node.attributes["length"], dtype=w.of(inputs[0]).dtype)
    w.give(node, convolution(w, node, w.constant(filter_)))


@rule("SequenceExpand")
def _expand(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "level")
    x, like = inputs
    depth = w.of(x).depth
    made = w.emit(
        "sequence_expand", {"X": x, "Y": like}, attributes={"ref_level": node.attributes["level"]}
    )
    if not depth and w.types[node.outputs[0]].depth:
        raise UnsupportedError("repeated rows under a LoD")
    w.of(made).depth = depth
    w.give(node, made)


# Numbers of words and places, int64: (N, 1), or (1,) and (1, T).


def number(w: Writing, value: int) -> str:
    return w.constant(np.full(1, value), "number")


def _count(w: Writing, x: str, axis: int) -> str:
    """A size as (1,) int64."""
    sizes = w.emit("shape", {"Input": x}, (w.rank(x),), "int32", lod="")
    return w.cast(w.take(sizes, {0: (axis, axis + 1)}, []), "int64")


def _summed(w: Writing, x: str, axis: int) -> str:
    """What stands before each element along an axis.

    Not an exclusive cumsum: of a single element Paddle gives the element itself.
    """
    x = w.dense(x)
    numbers = {"axis": axis, "flatten": False, "exclusive": False, "reverse": False}
    return _minus(w, w.emit("cumsum", {"X": x}, attributes=numbers), x)


def _ones(w: Writing, sizes: Sequence[str]) -> str:
    """Of a shape given by (1,) int64 each."""
    return filled(w, w.concat(sizes, 0), np.ones((), np.int64), len(sizes))


def lengths_of(w: Writing, x: str) -> str:
    """(N, 1) of a ragged variable: ones are summed, exact below 2**24."""
    words = filled(w, w.concat([_count(w, x, 0), number(w, 1)], 0), np.ones((), np.float32), 2)
    return w.cast(pooled(w, w.under(words, ragged(w, x)), "sum"), "int64")


def _minus(w: Writing, x: str, y: str) -> str:
    return w.add(x, y, "elementwise_sub")


def _times(w: Writing, x: str, y: str) -> str:
    return w.add(x, y, "elementwise_mul")


def _chosen(w: Writing, truth: str, x: str, y: str) -> str:
    """x where truth holds, else y."""
    chosen = w.cast(truth, "int64")
    return w.add(_times(w, chosen, x), _times(w, _minus(w, number(w, 1), chosen), y))


def _words(w: Writing, lengths: str) -> str:
    """(W, 1) ones under the LoD of these lengths (N, 1)."""
    ends = w.reshape(w.add(_summed(w, lengths, 0), lengths), [-1])
    count = w.emit(
        "reduce_sum", {"X": lengths}, 1, lod="", attributes={"dim": [0], "keep_dim": False}
    )
    words = _ones(w, [count, number(w, 1)])
    return _with_offsets(w, words, w.concat([number(w, 0), ends], 0))


def _with_offsets(w: Writing, x: str, offsets: str) -> str:
    slots = {"X": x, "Y": w.cast(w.dense(offsets), "int32")}
    made = w.emit("lod_reset", slots, lod="", attributes={"append": False})
    w.of(made).depth = 1
    return made


def _of_words(w: Writing, x: str, words: str) -> str:
    """(N, 1) as (W, 1): for each word what its sentence has."""
    made = w.emit("sequence_expand", {"X": x, "Y": words}, attributes={"ref_level": 0})
    w.of(made).depth = 0  # Paddle gives none to rows that had none
    return made


def _places(w: Writing, words: str) -> str:
    """(W, 1): 0, 1, 2, ...."""
    return _summed(w, _ones(w, [_count(w, words, 0), number(w, 1)]), 0)


def rows(w: Writing, x: str, index: str) -> str:
    """Rows of (R, ...) in floats, by an index of any shape, which comes in the row's place."""
    held, table = w.of(x), w.dense(x)
    dtype = held.dtype if held.dtype in ("float32", "float64") else "float64"
    inner = [size or 0 for size in held.sizes[1:]]
    if held.dtype == "int64" or len(inner) > 1 and 0 in inner:
        raise UnsupportedError(f"words of {held.dtype} {held.sizes[1:]} are not moved")
    if len(inner) != 1:
        table = w.reshape(table, [0, -1], (None, math.prod(inner)))
    slots = {"W": w.cast(table, dtype), "Ids": index}
    sizes = (*w.of(index).sizes, *w.of(table).sizes[1:])
    made = w.emit("lookup_table_v2", slots, sizes, dtype, lod=index, attributes={"padding_idx": -1})
    if len(inner) != 1:
        shape = [*[0] * w.rank(index), *inner]
        made = w.reshape(made, shape, (*w.of(index).sizes, *inner))
    return w.cast(made, held.dtype)


def turned(w: Writing, x: str) -> str:
    """The words of each sentence from its end."""
    lengths = lengths_of(w, x)
    sums = w.add(_times(w, _summed(w, lengths, 0), number(w, 2)), lengths)
    mirrored = _of_words(w, w.add(sums, number(w, -1)), x)
    index = w.reshape(_minus(w, mirrored, _places(w, x)), [-1])
    return w.under(rows(w, x, index), x)


@rule("SequenceConcat")
def _sequence_concat(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    whole, *others = inputs
    for other in others:
        whole = _joined(w, whole, other)
    w.give(node, whole if others else w.emit("assign", {"X": whole}))


def _joined(w: Writing, x: str, y: str) -> str:
    """Sentence n of y behind sentence n of x."""
    first, second = (lengths_of(w, each) for each in (x, y))
    words = _words(w, w.add(first, second))
    at = _minus(w, _places(w, words), _of_words(w, _summed(w, w.add(first, second), 0), words))
    own = _of_words(w, first, words)
    starts = [_of_words(w, _summed(w, each, 0), words) for each in (first, second)]
    behind = w.add(w.add(starts[1], _minus(w, at, own)), _count(w, x, 0))
    index = _chosen(w, w.add(at, own, "less_than", "bool"), w.add(starts[0], at), behind)
    table = w.concat([w.dense(x), w.dense(y)], 0)
    return w.under(rows(w, table, w.reshape(index, [-1])), words)


def padded(w: Writing, x: str, value: str = "", time: str = "") -> tuple[str, str]:
    """(N, T, ...) and the lengths (N,) of a ragged variable.

    T is the longest, or at least ``time``, (1,). ``value``: one number, or one word, for what
    stands behind; zero unless told.
    """
    lengths = lengths_of(w, x)
    longest = w.emit(
        "reduce_max", {"X": lengths}, 1, lod="", attributes={"dim": [0], "keep_dim": False}
    )
    longest = w.add(longest, time, "elementwise_max") if time else longest
    at = _summed(w, _ones(w, [number(w, 1), longest]), 1)
    index = _chosen(
        w,
        w.add(at, lengths, "less_than", "bool"),
        w.add(at, _summed(w, lengths, 0)),
        _count(w, x, 0),  # the row behind all words
    )
    sizes = [number(w, 1), *(_count(w, x, axis) for axis in range(1, w.rank(x)))]
    behind = w.cast(_minus(w, _ones(w, sizes), number(w, 1)), w.of(x).dtype)
    table = w.concat([w.dense(x), w.add(behind, value) if value else behind], 0)
    w.of(table).sizes = (None, *w.of(x).sizes[1:])
    return rows(w, table, index), w.reshape(lengths, [-1])


def shaped(w: Writing, x: str, parts: Sequence[str], known: Sizes) -> str:
    """Reshaped to sizes that are (1,) int64 each."""
    slots = {"X": x, "Shape": w.cast(w.concat(parts, 0), "int32")}
    attributes = {"shape": [-1] * len(known)}
    return w.emit("reshape2", slots, known, also=("XShape",), attributes=attributes)


def of_one_length(w: Writing, x: str) -> str:
    """The words of (T, N, I): sentences of one length."""
    steps, sentences, width = (_count(w, x, axis) for axis in range(3))
    known = (None, w.of(x).sizes[2])
    table = shaped(w, swapped(w, x), [number(w, -1), width], known)
    places = _summed(w, _ones(w, [w.add(sentences, number(w, 1))]), 0)
    return _with_offsets(w, table, _times(w, places, steps))


def steps_of(w: Writing, words: str, x: str) -> str:
    """(T, N, ...) of words as `of_one_length` made them of ``x``."""
    sizes = [_count(w, x, 1), _count(w, x, 0), _count(w, words, 1)]
    known = (None, None, w.of(words).sizes[1])
    return swapped(w, shaped(w, w.dense(words), sizes, known))


def unpadded(w: Writing, x: str, lengths: str) -> str:
    """The words of (N, T, ...) and lengths (N,) int64."""
    lengths = w.reshape(lengths, [-1, 1])
    words = _words(w, lengths)
    sentences = _summed(w, _ones(w, [_count(w, lengths, 0), number(w, 1)]), 0)
    starts = _minus(w, _times(w, sentences, _count(w, x, 1)), _summed(w, lengths, 0))
    index = w.add(_of_words(w, starts, words), _places(w, words))
    sizes = [number(w, -1), *(_count(w, x, axis) for axis in range(2, w.rank(x)))]
    table = shaped(w, x, sizes, (None, *w.of(x).sizes[2:]))
    return w.under(rows(w, table, w.reshape(index, [-1])), words)


@rule("SequenceLengths")
def _lengths(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, padded(w, inputs[0])[1])


@rule("SequenceFill")
def _fill(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "time")
    time = number(w, node.attributes["time"]) if "time" in node.attributes else ""
    w.give(node, padded(w, inputs[0], inputs[1], time)[0])


def swapped(w: Writing, x: str) -> str:
    """With the first two axes exchanged: batch and time."""
    return w.transpose(x, [1, 0, *range(2, w.rank(x))])


@rule("SequenceUnpad")
def _sequence_unpad(w: Writing, node: Node, inputs: list[str]) -> None:
    """What came padded is remembered so, for operators and users that want it padded."""
    only(node, "time_major")
    x, time_major = inputs[0], bool(node.attributes.get("time_major"))
    lengths = w.cast(w.reshape(inputs[1], [-1]), "int64")
    turned = swapped(w, x)
    steps, rows = (x, turned) if time_major else (turned, x)
    w.padded[node.outputs[0]] = Padded(steps, lengths, node.inputs[0])
    w.give(node, unpadded(w, rows, lengths))


@rule("SequencePad")
def _sequence_pad(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "time_major")
    time_major, like = bool(node.attributes.get("time_major")), node.input(1)
    known = w.padded.get(node.inputs[0])
    if known is not None and like == known.like:
        made = known.data if time_major else swapped(w, known.data)
        return w.give(node, w.emit("assign", {"X": made}))
    time = _count(w, inputs[1], 0 if time_major else 1) if like else ""
    made, _ = padded(w, inputs[0], time=time)
    w.give(node, swapped(w, made) if time_major else made)


@rule("CrfDecode")
def _crf_decode(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    slots = {"Emission": ragged(w, inputs[0]), "Transition": inputs[1]}
    w.give(node, w.emit("crf_decoding", slots, (None, 1), "int64", out="ViterbiPath"))
