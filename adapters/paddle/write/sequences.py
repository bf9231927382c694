"""Operators of our own domain as Paddle's: gates, offsets, sentences, tags."""

from __future__ import annotations

import numpy as np

from onernn.adapters.paddle.write import offsets
from onernn.adapters.paddle.write.arithmetic import convolution
from onernn.adapters.paddle.write.emitting import Padded, Writing, Written, only, ragged, rule
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.reorders.gates import GateLayout


def laid_out(w: Writing, x: str, layout: GateLayout) -> str:
    """The columns of x, gate by gate, in another order and with another sign."""
    gates = len(layout.permutation)
    if layout == GateLayout(tuple(range(gates)), (1,) * gates):
        return x
    axis = w.rank(x) - 1
    parts = w.split(x, axis, gates)
    chosen = [
        parts[gate] if sign > 0 else w.scaled(parts[gate], -1)
        for gate, sign in zip(layout.permutation, layout.signs, strict=True)
    ]
    return w.concat(chosen, axis)


@rule("GateLayout")
def _gate_layout(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "layout")
    made = laid_out(w, inputs[0], node.at.layout)
    return made if made != inputs[0] else w.copy(made)


@rule("SequenceData")
def _sequence_data(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.dense(inputs[0])


@rule("SequenceLike")
def _sequence_like(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.under(*inputs)


@rule("SequenceReset")
def _sequence_reset(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Offsets as a list, or as int32 in a value."""
    only(node)
    x, given = inputs
    if node.inputs[1] not in w.graph.constants:
        return offsets.with_offsets(w, x, given)
    found = [int(number) for number in w.graph.constants[node.inputs[1]].reshape(-1)]
    return w.emit("lod_reset", {"X": x}, target_lod=found, append=False)


@rule("SequenceAppend")
def _sequence_append(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Of values with LoD Paddle's concat along the words joins the LoD, too."""
    only(node)
    return w.concat(inputs, 0)


@rule("SequencePool")
def _pool(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "kind", "empty")
    return offsets.pooled(w, inputs[0], node.at.kind, node.at.empty)


@rule("SequenceReverse")
def _reverse(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return offsets.reversed_words(w, inputs[0])


@rule("SequenceContext")
def _context(w: Writing, node: Node, inputs: list[str]) -> Written:
    """A convolution with the identity; a product behind it takes its own matrix instead."""
    only(node, "length", "start")
    width = w.sizes(inputs[0])[-1]
    if width is None:
        raise UnsupportedError("a window of words of unknown width")
    filter_ = np.eye(width * node.at.length, dtype=w.dtype(inputs[0]))
    return convolution(w, node, w.constant(filter_))


@rule("SequenceExpand")
def _expand(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "level")
    x, like = inputs
    if not w.of(x).depth and w.types[node.outputs[0]].depth:
        raise UnsupportedError("repeated rows under a LoD")
    return w.emit("sequence_expand", {"X": x, "Y": like}, ref_level=node.at.level)


@rule("SequenceConcat")
def _sequence_concat(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    whole, *others = inputs
    for other in others:
        whole = offsets.joined(w, whole, other)
    return whole if others else w.copy(whole)


@rule("SequenceLengths")
def _lengths(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return offsets.padded(w, inputs[0])[1]


@rule("SequenceFill")
def _fill(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "time")
    time = "" if node.at.time is None else offsets.number(w, node.at.time)
    return offsets.padded(w, inputs[0], inputs[1], time)[0]


@rule("SequenceUnpad")
def _sequence_unpad(w: Writing, node: Node, inputs: list[str]) -> Written:
    """What came padded is remembered so, for operators and users that want it padded."""
    only(node, "time_major")
    x = inputs[0]
    lengths = w.cast(w.reshape(inputs[1], [-1]), "int64")
    turned = offsets.swapped(w, x)
    steps, rows = (x, turned) if node.at.time_major else (turned, x)
    w.padded[node.outputs[0]] = Padded(steps, lengths, node.inputs[0])
    return offsets.unpadded(w, rows, lengths)


@rule("SequencePad")
def _sequence_pad(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "time_major")
    time_major, like = bool(node.at.time_major), node.input(1)
    known = w.padded.get(node.inputs[0])
    if known is not None and like == known.like:
        return w.copy(known.data if time_major else offsets.swapped(w, known.data))
    time = offsets.size_of(w, inputs[1], 0 if time_major else 1) if like else ""
    made, _ = offsets.padded(w, inputs[0], time=time)
    return offsets.swapped(w, made) if time_major else made


@rule("CrfDecode")
def _crf_decode(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    slots = {"Emission": ragged(w, inputs[0]), "Transition": inputs[1]}
    return w.emit("crf_decoding", slots, out="ViterbiPath")
