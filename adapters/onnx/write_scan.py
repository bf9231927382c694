"""Cells that RNN, GRU and LSTM of ONNX cannot say, and tag decoding, as Scan."""

from __future__ import annotations

import numpy as np

from onernn.adapters.onnx.batches import Batch
from onernn.adapters.onnx.writing import Writing, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node

Inputs = list[Batch | None]


def crf_decode(w: Writing, node: Node, inputs: Inputs) -> None:
    """Viterbi decoding by two Scans: best scores forwards, tags backwards.

    In the first step and beyond its end a sentence keeps its best scores, and points from every
    tag to itself. Ties go to the lower tag, as ArgMax has it.
    """
    emission = ragged(inputs[0], "the emission")
    transition = w.constant(node.inputs[1], "the transition")
    tags = transition.shape[1] if transition.ndim == 2 else 0
    if emission.rank != 2 or transition.shape != (tags + 2, tags) or not tags:
        raise UnsupportedError(f"expected a transition (K+2, K), got {transition.shape}")
    start, stop, between = transition[0], transition[1], transition[2:]
    scores = w.emit("Transpose", emission.data, perm=(1, 0, 2))
    first = w.emit("Gather", scores, w.graph.constant(0, "int64"), axis=0)
    begin = w.emit("Add", first, w.graph.constant(start))
    running = _later(w, emission)
    body = w.graph.body()
    best, here, on = (body.fresh(name) for name in ("best", "here", "on"))
    reach = body.emit("Add", body.emit("Unsqueeze", best, body.ints(2)), body.constant(between))
    came = body.emit("ArgMax", reach, axis=1, keepdims=0)
    reached = body.emit("Unsqueeze", came, body.ints(1))
    picked = body.emit("Squeeze", body.emit("GatherElements", reach, reached, axis=1), body.ints(1))
    better = body.emit("Where", on, body.emit("Add", picked, here), best)
    pointer = body.emit("Where", on, came, body.constant(np.arange(tags)[None]))
    body.faces((best, here, on), (better, pointer))
    final, pointers = (w.graph.fresh(name) for name in ("best", "pointers"))
    w.graph.add(
        "Scan", begin, scores, running, outputs=(final, pointers), body=body, num_scan_inputs=2
    )
    ended = w.emit("Add", final, w.graph.constant(stop))
    last = w.emit("ArgMax", ended, axis=1, keepdims=1)
    back = w.graph.body()
    tag, pointed = back.fresh("tag"), back.fresh("pointed")
    before = back.emit("GatherElements", pointed, tag, axis=1)
    back.faces((tag, pointed), (before, back.emit("Identity", tag)))
    path = w.graph.fresh("path")
    w.graph.add(
        "Scan",
        last,
        pointers,
        outputs=(w.graph.fresh("tag"), path),
        body=back,
        num_scan_inputs=1,
        scan_input_directions=(1,),
        scan_output_directions=(1,),
    )
    w.give(node, w.emit("Transpose", path, perm=(1, 0, 2)), emission.lengths)


def _later(w: Writing, emission: Batch) -> str:
    """(T, N, 1) bool: inside the sentences, but for the first step, before which there is none."""
    inside = w.emit("Transpose", w.batches.mask_of(emission), perm=(1, 0))
    steps = w.batches.steps(w.batches.size(emission.data, 1))
    second = w.emit("Greater", w.emit("Unsqueeze", steps, w.ints(1)), w.ints(0))
    return w.emit("Unsqueeze", w.emit("And", inside, second), w.ints(2))
