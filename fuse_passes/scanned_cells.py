"""A scan whose body is one recurrent cell becomes an rnn."""

from __future__ import annotations

from dataclasses import dataclass

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, Node
from onernn.fuse_passes.cells import Reading, Step, step_of
from onernn.fuse_passes.ordering import fresh
from onernn.fuse_passes.steps import Stacker
from onernn.fuse_passes.unrolled_cells import fits, layer, no_state, zero_or_state


@dataclass(frozen=True, eq=False)
class Scanned:
    """``states``: which inputs of the scan are h and c; ``backwards``: it begins at the end."""

    scan: Node
    step: Step
    reading: Reading
    states: tuple[int, ...]
    backwards: bool


class FuseScannedCells:
    """``Scan(h0, x; body: h = cell(x, h))`` -> ``Rnn(x, h0)``: MXNet's foreach over a cell."""

    name = "scanned_cells"

    def match(self, graph: Graph, node: Node) -> Scanned | Refusal | None:
        if node.op != "Scan" or node.attributes["scanned"] != 1:
            return None
        body: Graph = node.attributes["body"]
        states = node.attributes["states"]
        inputs = [value.name for value in body.inputs]
        x, carried = inputs[states], inputs[:states]
        made = [_source(body, value.name) for value in body.outputs]
        for step in filter(None, (step_of(body, each) for each in body.nodes)):
            wanted = [step.h, *([step.c] if step.c else [])]
            if sorted(made[:states]) != sorted(wanted):
                continue
            order = tuple(made.index(name) for name in wanted)
            before = [carried[at] for at in order]
            for reading in step.readings:
                if [reading.h, *([step.c_before] if step.c else [])] != before:
                    continue
                if not fits(body, reading):
                    continue
                reason = _obstacle(node, body, reading, x, made[states:], step)
                batch = next(iter(graph.types[node.inputs[states]].counts[1:]), None)
                reason = reason or no_state(graph, node.inputs[:states], batch)
                if reason:
                    return Refusal(reason, node.outputs[0])
                backwards = tuple(node.attributes["input_directions"]) == (1,)
                return Scanned(node, step, reading, order, backwards)
        return Refusal("its body is not one recurrent cell", node.outputs[0])

    def rewrite(self, graph: Graph, match: Scanned) -> Graph:
        scan, count = match.scan, len(match.states)
        body: Graph = scan.attributes["body"]
        origin = scan.origin + tuple(op for node in match.step.nodes for op in node.origin)
        stacker = Stacker(graph, scan.outputs[0], tuple(dict.fromkeys(origin)))
        x = scan.inputs[scan.attributes["states"]]
        if match.reading.x != body.inputs[scan.attributes["states"]].name:  # flattened in the body
            x = stacker.emit("Reshape", (x, stacker.constant([0, 0, -1])))
        spec, weights = layer(body, match.step.cell, match.reading, match.backwards)
        initial = [zero_or_state(stacker, graph, scan.inputs[at]) for at in match.states]
        ends = ("y", "h", "c")[: 1 + count]
        y, *finals = (fresh(graph, f"{scan.outputs[0]}/{name}") for name in ends)
        attributes = {"spec": spec, "weights": weights}
        made = [Node("Rnn", (x, *initial), (y, *finals), attributes, stacker.origin)]
        axes = stacker.constant([0, 1])
        for at, name in zip(match.states, finals, strict=True):
            made.append(Node("Squeeze", (name, axes), (scan.outputs[at],), {}, stacker.origin))
        results = scan.outputs[count:]
        made += [Node("Identity", (y,), (name,), {}, stacker.origin) for name in results]
        return graph.splice((scan,), (*stacker.nodes, *made), stacker.constants)


def _source(body: Graph, name: str) -> str:
    while (node := body.producer(name)) is not None and node.op == "Identity":
        name = node.inputs[0]
    return name


def _obstacle(
    node: Node, body: Graph, reading: Reading, x: str, results: list[str], step: Step
) -> str:
    attributes = node.attributes
    flat = body.producer(reading.x)
    source = flat.inputs[0] if flat is not None and flat.op == "Flatten" else reading.x
    if source != x:
        return "its cell reads something else than the scanned value"
    if any(name != step.h for name in results):
        return "it collects something else than the state"
    directions = {*attributes["input_directions"], *attributes["output_directions"]}
    if any((*attributes["input_axes"], *attributes["output_axes"])) or len(directions) > 1:
        return "it scans other axes, or in two directions"
    return ""
