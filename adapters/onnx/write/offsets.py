"""Operators of our own domain in ONNX: gates, offsets, tag sequences."""

from __future__ import annotations

import numpy as np

from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, Rules, dense, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node

RULES = Rules()


@RULES("GateLayout")
def _gate_layout(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A gather of columns, and a minus where a sign turns."""
    (x,) = inputs
    layout = node.attributes["layout"]
    if x is None or x.padded_rank < 2:
        raise UnsupportedError("expected columns")
    sizes = w.emit("Shape", x.data)
    blocks = w.emit("Slice", sizes, w.ints(0), w.ints(-1))
    gates = len(layout.permutation)
    apart = w.emit("Concat", blocks, w.ints(gates, -1), axis=0)
    out = w.emit("Gather", w.emit("Reshape", x.data, apart), w.ints(*layout.permutation), axis=-2)
    if min(layout.signs) < 0:
        signs = np.array(layout.signs, x.dtype)[:, None]
        out = w.emit("Mul", out, w.constant(signs))
    w.give(node, w.emit("Reshape", out, sizes), x.lengths)


@RULES("SequenceData")
def _sequence_data(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    (x,) = inputs
    if x is not None:
        w.give(node, w.words(x) if x.lengths else x.data)


@RULES("SequenceLike")
def _sequence_like(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, like = inputs[0], ragged(inputs[1], "what offsets are taken from")
    if x is None:
        raise UnsupportedError("its input is missing")
    words = w.words(x) if x.lengths else x.data
    if x.lengths == like.lengths:
        return w.give(node, x.data, x.lengths)
    time = w.size(like.data, 1)
    out = w.from_words(words, like.lengths, time, x.dtype, x.rank)
    w.give(node, out.data, out.lengths)


@RULES("SequenceReset")
def _sequence_reset(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, offsets = inputs
    if x is None:
        raise UnsupportedError("its input is missing")
    words = w.words(x) if x.lengths else x.data
    wide = w.emit("Cast", dense(offsets, "offsets"), to=7)
    ends = w.emit("Slice", wide, w.ints(1), w.ints(2**31))
    starts = w.emit("Slice", wide, w.ints(0), w.ints(-1))
    lengths = w.emit("Cast", w.emit("Sub", ends, starts), to=6)
    time = w.longest(lengths)
    out = w.from_words(words, lengths, time, x.dtype, x.rank)
    w.give(node, out.data, out.lengths)


@RULES("SequenceAppend")
def _sequence_append(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    parts = [ragged(each, "what is appended") for each in inputs]
    times = w.emit("Concat", *(w.size(each.data, 1) for each in parts), axis=0)
    time = w.reduce("ReduceMax", times, (0,), keepdims=1)
    padded = [w.with_time(each, time).data for each in parts]
    lengths = w.emit("Concat", *(each.lengths for each in parts), axis=0)
    w.give(node, w.emit("Concat", *padded, axis=0), lengths)


@RULES("SequenceUnpad")
def _sequence_unpad(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, lengths = dense(inputs[0], "what is padded"), dense(inputs[1], "lengths")
    if node.at.time_major and inputs[0] is not None:
        x = w.swapped(x, inputs[0].rank)
    flat = w.emit("Reshape", w.emit("Cast", lengths, to=6), w.ints(-1))
    w.give(node, x, flat)


@RULES("SequencePad")
def _sequence_pad(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, time_major = (
        ragged(inputs[0], "what is to be padded"),
        bool(node.at.time_major),
    )
    if len(inputs) > 1 and inputs[1] is not None:
        time = w.size(inputs[1].data, 0 if time_major and not inputs[1].lengths else 1)
    else:
        time = w.longest(x.lengths)
    out = w.filled(w.with_time(x, time))
    w.give(node, w.swapped(out, x.padded_rank) if time_major else out)
