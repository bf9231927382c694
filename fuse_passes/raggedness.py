"""Which values carry offsets."""

from __future__ import annotations

from onernn.core.graph import Graph

_RAGGED = frozenset({"SequenceUnpad", "SequenceReset", "SequenceLike", "SequenceAppend"})
_DENSE = frozenset(
    {"SequencePad", "SequenceData", "SequencePool", "SequenceFill", "SequenceLengths"}
    | {"Shape", "Size", "Einsum", "ConstantOfShape"}
)


def is_ragged(graph: Graph, name: str) -> bool:
    """Whether a value is ragged: made of a ragged one, with nothing between that drops offsets."""
    inputs = {value.name: value.lod_depth > 0 for value in graph.inputs}
    waiting, seen = [name], set()
    while waiting:
        at = waiting.pop()
        node = graph.producer(at)
        if inputs.get(at, False) or (node is not None and node.op in _RAGGED):
            return True
        if node is None or node.op in _DENSE or at in seen:
            continue
        seen.add(at)
        if node.op != "Rnn":
            waiting += node.inputs
        elif at == node.outputs[0]:  # its final states are dense
            waiting.append(node.inputs[0])
    return False
