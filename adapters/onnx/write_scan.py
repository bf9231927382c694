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

    Beyond its end a sentence keeps its best scores, and points from every tag to itself. Ties go
    to the lower tag, as ArgMax has it.
    """
    emission = ragged(inputs[0], "the emission")
    transition = w.constant(node.inputs[1], "the transition")
    tags = transition.shape[1] if transition.ndim == 2 else 0
    if emission.rank != 2 or transition.shape != (tags + 2, tags) or not tags:
        raise UnsupportedError(f"expected a transition (K+2, K), got {transition.shape}")
    start, stop, between = transition[0], transition[1], transition[2:]
    scores = w.emit("Transpose", emission.data, perm=(1, 0, 2))
    inside = w.emit("Unsqueeze", w.batches.mask_of(emission), w.ints(2))
    running = w.emit("Transpose", inside, perm=(1, 0, 2))
    first, rest = _first_and_rest(w, scores)
    _, later = _first_and_rest(w, running)
    # Step 0 has no transition before it: it is done outside, a sentence without words is cut off.
    begin = w.emit("Add", w.emit("Squeeze", first, w.ints(0)), w.graph.constant(start))
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
    w.graph.add("Scan", begin, rest, later, outputs=(final, pointers), body=body, num_scan_inputs=2)
    ended = w.emit("Add", final, w.graph.constant(stop))
    last = w.emit("ArgMax", ended, axis=1, keepdims=1)
    back = w.graph.body()
    tag, pointed = back.fresh("tag"), back.fresh("pointed")
    before = back.emit("GatherElements", pointed, tag, axis=1)
    again = back.emit("Identity", before)
    back.faces((tag, pointed), (before, again))
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
    whole = w.emit("Concat", path, w.emit("Unsqueeze", last, w.ints(0)), axis=0)
    w.give(node, w.emit("Transpose", whole, perm=(1, 0, 2)), emission.lengths)


def _first_and_rest(w: Writing, tensor: str) -> tuple[str, str]:
    """The first step (1, ...) and those behind it (T-1, ...)."""
    first = w.emit("Slice", tensor, w.ints(0), w.ints(1), w.ints(0))
    return first, w.emit("Slice", tensor, w.ints(1), w.ints(2**31), w.ints(0))
