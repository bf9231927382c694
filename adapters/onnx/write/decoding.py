"""Tag decoding as Scans."""

from __future__ import annotations

import numpy as np

from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.protobuf import ProtoGraph
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node


def crf_decode(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """Viterbi decoding by two Scans: best scores forwards, tags backwards.

    In the first step and beyond its end a sentence keeps its best scores, and points from every
    tag to itself. Ties go to the lower tag, as ArgMax has it.
    """
    emission = ragged(inputs[0], "the emission")
    transition = w.array(node.inputs[1], "the transition")
    tags = transition.shape[1] if transition.ndim == 2 else 0
    if emission.rank != 2 or transition.shape != (tags + 2, tags) or not tags:
        raise UnsupportedError(f"expected a transition (K+2, K), got {transition.shape}")
    start, stop, between = transition[0], transition[1], transition[2:]
    scores = w.emit("Transpose", emission.data, perm=(1, 0, 2))
    first = w.emit("Gather", scores, w.constant(0, "int64"), axis=0)
    begin = w.emit("Add", first, w.constant(start))
    running = _later(w, emission)
    body = ProtoGraph(around=w)
    best, here, on = (body.fresh(name) for name in ("best", "here", "on"))
    reach = body.emit("Add", body.emit("Unsqueeze", best, body.ints(2)), body.constant(between))
    came = body.emit("ArgMax", reach, axis=1, keepdims=0)
    reached = body.emit("Unsqueeze", came, body.ints(1))
    picked = body.emit("Squeeze", body.emit("GatherElements", reach, reached, axis=1), body.ints(1))
    better = body.emit("Where", on, body.emit("Add", picked, here), best)
    pointer = body.emit("Where", on, came, body.constant(np.arange(tags)[None]))
    body.faces((best, here, on), (better, pointer))
    final, pointers = (w.fresh(name) for name in ("best", "pointers"))
    w.add("Scan", begin, scores, running, outputs=(final, pointers), body=body, num_scan_inputs=2)
    ended = w.emit("Add", final, w.constant(stop))
    last = w.emit("ArgMax", ended, axis=1, keepdims=1)
    back = ProtoGraph(around=w)
    tag, pointed = back.fresh("tag"), back.fresh("pointed")
    before = back.emit("GatherElements", pointed, tag, axis=1)
    back.faces((tag, pointed), (before, back.emit("Identity", tag)))
    path = w.fresh("path")
    w.add(
        "Scan",
        last,
        pointers,
        outputs=(w.fresh("tag"), path),
        body=back,
        num_scan_inputs=1,
        scan_input_directions=(1,),
        scan_output_directions=(1,),
    )
    w.give(node, w.emit("Transpose", path, perm=(1, 0, 2)), emission.lengths)


def _later(w: GraphWriter, emission: OnnxValue) -> str:
    """(T, N, 1) bool: inside the sentences, but for the first step, before which there is none."""
    inside = w.emit("Transpose", w.mask_of(emission), perm=(1, 0))
    steps = w.steps(w.size(emission.data, 1))
    second = w.emit("Greater", w.emit("Unsqueeze", steps, w.ints(1)), w.ints(0))
    return w.emit("Unsqueeze", w.emit("And", inside, second), w.ints(2))
