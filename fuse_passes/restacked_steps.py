"""Steps that were cut from one value and put together again were never apart."""

from __future__ import annotations

from onernn.fuse_passes.rewriting import exchanged
from onernn.fuse_passes.stacked_steps import Stacker
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass


@dataclass(frozen=True, eq=False)
class Restacked:
    concat: Node
    axis: int
    backwards: bool
    name: str
    stacker: Stacker


class RestackSteps:
    """``Concat(Unsqueeze(y[0]), Unsqueeze(y[1]), ...)`` -> y with its time axis moved.

    Element-wise operators between, the same for all steps, run once over all of them.
    """

    name = "restacked_steps"

    def match(self, graph: Graph, node: Node) -> Restacked | Refusal | None:
        if node.op != "Concat":
            return None
        axis, steps = node.attributes["axis"], []
        for name in node.inputs:
            unsqueeze = graph.producer(name, "Unsqueeze")
            axes = graph.constants.get(unsqueeze.inputs[1]) if unsqueeze else None
            if unsqueeze is None or axes is None or axes.tolist() != [axis]:
                return None
            steps.append(unsqueeze.inputs[0])
        stacker = Stacker(graph, node.outputs[0], node.origin, strict=True)
        result = stacker.stack(tuple(steps))
        if result is None:
            return None
        return Restacked(node, axis, result.backwards, result.name, stacker)

    def rewrite(self, graph: Graph, match: Restacked) -> Graph:
        stacker = match.stacker
        moved = stacker.moved(match.name, 0, match.axis)
        if match.backwards:
            moved = stacker.reversed(moved, match.axis)
        last = Node("Identity", (moved,), match.concat.outputs, {}, match.concat.origin)
        new = (*stacker.nodes, last)
        return exchanged(graph, (match.concat,), new, stacker.constants).bypass((last,))
