"""Tag decoding as Scans, and Scans that ONNX's cannot say as Loops."""

from __future__ import annotations

import numpy as np

from onernn.adapters.onnx.write.padding import Batch
from onernn.adapters.onnx.write.writer import Writing, dense, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node, Value

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


def loop_of_scan(w: Writing, node: Node, inputs: Inputs) -> tuple[Node, Inputs]:
    """A Loop that does what a Scan does, and its inputs: its states may change their shapes."""
    at = node.attributes
    states, scanned, body = at["states"], at["scanned"], at["body"]
    if any((*at["input_directions"], *at["output_axes"], *at["output_directions"])):
        raise UnsupportedError(
            "its states change their shapes, and it does not go plainly forwards"
        )
    known = {*body.constants, *(value.name for value in body.inputs)}
    known.update(name for each in body.nodes for name in each.outputs)

    def fresh(hint: str) -> str:
        while hint in known:
            hint += "'"
        known.add(hint)
        return hint

    turn, going = fresh("turn"), fresh("going")
    elements = [value.name for value in body.inputs[states : states + scanned]]
    sources = [fresh(name) for name in elements]
    steps = [
        Node("Gather", (source, turn), (name,), {"axis": axis})
        for source, name, axis in zip(sources, elements, at["input_axes"], strict=True)
    ]
    taken = body.inputs[states + scanned :]
    loop = Graph(
        body.name,
        (Value(turn), Value(going), *body.inputs[:states], *map(Value, sources), *taken),
        (Value(going), *body.outputs),
        (*steps, *body.nodes),
        body.constants,
    )
    sizes = w.emit("Shape", dense(inputs[states], "what it goes through"))
    axis = w.graph.constant(at["input_axes"][0], "int64")
    turns = Batch(w.emit("Gather", sizes, axis, axis=0), "int64", 0)
    given = ("turns", "", *node.inputs)
    return Node("Loop", given, node.outputs, {"body": loop, "carried": states}, node.origin), [
        turns,
        None,
        *inputs,
    ]
