"""Operators over whole sentences in ONNX: pooled, reversed, repeated, joined, padded."""

from __future__ import annotations

import numpy as np

from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.protobuf import number_of
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, Rules, dense, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node

RULES = Rules()


def _sentences(inputs: Inputs) -> OnnxValue:
    return ragged(inputs[0], "its input")


@RULES("SequencePool")
def _pool(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, kind = _sentences(inputs), node.attributes["kind"]
    if w.types[node.outputs[0]].depth:
        raise UnsupportedError("rows under upper LoD levels are not written")
    out = _pooled(w, x, kind)
    some = _column(w, w.emit("Cast", x.lengths, to=9), x)
    w.give(node, w.emit("Where", some, out, w.constant(node.attributes["empty"], x.dtype)))


def _column(w: GraphWriter, numbers: str, x: OnnxValue) -> str:
    """(N,) as (N, 1, ...), to stand beside one row a sentence."""
    return w.emit("Unsqueeze", numbers, w.ints(*range(1, x.rank))) if x.rank > 1 else numbers


def _pooled(w: GraphWriter, x: OnnxValue, kind: str) -> str:
    """(N, ...); anything for a sentence without words."""
    if kind == "max":
        least = -np.inf if np.dtype(x.dtype).kind == "f" else np.iinfo(x.dtype).min
        return w.reduce("ReduceMax", w.filled(x, least), (1,), keepdims=0)
    if kind in ("first", "last"):
        if kind == "first":
            return w.emit("Gather", x.data, w.constant(0, "int64"), axis=1)
        last = w.emit("Sub", w.emit("Cast", x.lengths, to=7), w.ints(1))
        place = w.emit("Unsqueeze", w.emit("Max", last, w.ints(0)), w.ints(1))
        return w.emit("GatherND", x.data, place, batch_dims=1)
    total = w.reduce("ReduceSum", w.filled(x), (1,), keepdims=0)
    if kind == "sum":
        return total
    count = _column(w, w.emit("Cast", x.lengths, to=number_of(x.dtype)), x)
    return w.emit("Div", total, w.emit("Sqrt", count) if kind == "sqrt" else count)


@RULES("SequenceSoftmax")
def _softmax(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x = _sentences(inputs)
    w.give(node, w.emit("Softmax", w.filled(x, -np.inf), axis=1), x.lengths)


@RULES("SequenceReverse")
def _reverse(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x = _sentences(inputs)
    lengths = w.emit("Cast", x.lengths, to=7)
    out = w.emit("ReverseSequence", x.data, lengths, batch_axis=0, time_axis=1)
    w.give(node, out, x.lengths)


@RULES("SequenceContext")
def _context(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, length, start = _sentences(inputs), node.attributes["length"], node.attributes["start"]
    before, after = max(0, -start), max(0, start + length - 1)
    time = w.size(x.data, 1)
    wide = w.emit("Pad", w.filled(x), w.ints(0, before, 0, 0, after, 0))
    parts = []
    for k in range(before + start, before + start + length):
        end = w.emit("Add", time, w.ints(k))
        parts.append(w.emit("Slice", wide, w.ints(k), end, w.ints(1)))
    w.give(node, w.emit("Concat", *parts, axis=2), x.lengths)


@RULES("SequenceExpand")
def _expand(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    like = ragged(inputs[1], "what is counted")
    x, level = dense(inputs[0], "what is repeated"), node.attributes["level"]
    if level not in (-1, w.types[node.inputs[1]].depth - 1):
        raise UnsupportedError("upper LoD levels are not written")
    rank = inputs[0].rank if inputs[0] else 0
    sizes = w.emit("Shape", x)
    inner = w.emit("Slice", sizes, w.ints(1), w.ints(2**31))
    outer = w.emit("Slice", w.emit("Shape", like.data), w.ints(0), w.ints(2))
    shape = w.emit("Concat", outer, inner, axis=0)
    wide = w.emit("Expand", w.emit("Unsqueeze", x, w.ints(1)), shape)
    w.give(node, w.words(OnnxValue(wide, like.dtype, rank, like.lengths)))


@RULES("SequenceConcat")
def _concat(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """Side by side in time; a place beyond the end of one goes on where the next one starts."""
    parts = [ragged(each, "what is joined") for each in inputs]
    whole = w.emit("Concat", *(each.data for each in parts), axis=1)
    lengths = parts[0].lengths
    for each in parts[1:]:
        lengths = w.emit("Add", lengths, each.lengths)
    time = w.longest(lengths)
    steps = w.emit("Unsqueeze", w.steps(time), w.ints(0))
    at, ends = steps, ""
    for each in parts:
        wide = w.emit("Unsqueeze", w.emit("Cast", each.lengths, to=7), w.ints(1))
        ends = w.emit("Add", ends, wide) if ends else wide
        beyond = w.emit("Cast", w.emit("GreaterOrEqual", steps, ends), to=7)
        unused = w.emit("Sub", w.size(each.data, 1), wide)
        at = w.emit("Add", at, w.emit("Mul", beyond, unused))
    last = w.emit("Sub", w.size(whole, 1), w.ints(1))
    places = w.emit("Unsqueeze", w.emit("Min", at, last), w.ints(2))
    w.give(node, w.emit("GatherND", whole, places, batch_dims=1), lengths)


@RULES("SequenceLengths")
def _lengths(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    w.give(node, w.emit("Cast", _sentences(inputs).lengths, to=7))


@RULES("SequenceFill")
def _fill(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, value = _sentences(inputs), dense(inputs[1], "what stands behind")
    fixed = node.at.time
    time = w.longest(x.lengths) if fixed is None else w.ints(fixed)
    padded = w.with_time(x, time)
    mask = w.mask_of(padded)
    if x.rank > 1:
        mask = w.emit("Unsqueeze", mask, w.ints(*range(2, x.padded_rank)))
    if inputs[1] is not None and inputs[1].rank >= x.rank:
        value = w.emit("Reshape", value, w.ints(1))
    w.give(node, w.emit("Where", mask, padded.data, value))
