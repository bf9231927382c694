"""Scans that ONNX's cannot say as Loops."""

from __future__ import annotations

from onernn.adapters.onnx.write.padding import OnnxValue
from onernn.adapters.onnx.write.writer import GraphWriter, Inputs, dense
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node, Value


def loop_of_scan(w: GraphWriter, node: Node, inputs: Inputs) -> tuple[Node, Inputs]:
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
    axis = w.constant(at["input_axes"][0], "int64")
    turns = OnnxValue(w.emit("Gather", sizes, axis, axis=0), "int64", 0)
    given = ("turns", "", *node.inputs)
    return Node("Loop", given, node.outputs, {"body": loop, "carried": states}, node.origin), [
        turns,
        None,
        *inputs,
    ]
