"""Moves iteration counters, and masks computed from them, out of scans.

Models that TensorFlow's dynamic_rnn exports contain such scans: iteration t changes a state only if
t is less than the length of the sequence.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.fuse_passes.bodies import declare_sizes, numbers, source_of
from onernn.fuse_passes.rewriting import Tape, fresh, orders, rewrite
from onernn.fuse_passes.scanned_loops import WIDE
from onernn.ir.graph import Graph, Node, Value

_SIDES = {
    "Less": (0, True),
    "Greater": (1, True),
    "GreaterOrEqual": (0, False),
    "LessOrEqual": (1, False),
}
"""For each operator that compares an iteration t with a length: the index of the operand t, and
whether the result is true for iterations before the length.
"""


@rewrite("counted_scans", "Scan")
def count_outside(graph: Graph, node: Node) -> Graph | None:
    """Turns ``Scan(0, x, lengths; body: t < lengths, t + 1, ...)`` into ``Scan(x, mask; ...)``."""
    if not graph.is_dense(*node.inputs):
        return None
    body: Graph = declare_sizes(graph, node, "body")
    declared = {value.name: value for value in node.attributes["body"].inputs}
    states, end = node.attributes["states"], node.attributes["states"] + node.attributes["scanned"]
    counters = [index for index in range(states) if _counts(graph, node, body, index)]
    if not counters:
        return None
    kept = [index for index in range(len(node.outputs)) if index not in counters]
    body = replace(body, outputs=tuple(body.outputs[index] for index in kept)).prune()
    turns = {body.inputs[index].name for index in counters}
    taken = {v.name: name for v, name in zip(body.inputs[end:], node.inputs[end:], strict=True)}

    to = Tape(graph, f"{next(filter(None, node.outputs))}/turns", node.origin)
    axis = node.attributes["input_axes"][0]
    rank = graph.types[node.inputs[states]].rank
    if rank is None:
        return None
    sizes = to.emit("Shape", node.inputs[states], start=axis % rank, end=axis % rank + 1)
    number = to.emit("Squeeze", sizes, [0])
    every = to.emit("Range", to.constant(0), number, to.constant(1))
    scanned: list[tuple[Value, str]] = []
    nodes: list[Node] = []
    for each in body.nodes:
        side, is_before = _SIDES.get(each.op, (0, False))
        turn, length = (_cast_from(body, name) for name in (each.inputs * 2)[side : side + 2])
        if each.op in _SIDES and turn in turns and length in taken and _are_lengths(body, length):
            column = to.emit("Unsqueeze", every, [1])
            known = to.emit("Min", to.emit("Cast", taken[length], to="int64"), sizes)
            known = to.emit("Max", known, [0])  # clipped to 0 to T, which does not change the mask
            value = Value(
                fresh(body, f"{each.outputs[0]}/before"), "bool", body.types[length].counts
            )
            scanned.append((value, to.emit("Less", column, known)))
            op = "Identity" if is_before else "Not"
            each = Node(op, (value.name,), each.outputs, {}, each.origin)
        nodes.append(each)
    inputs = (*body.inputs, *(value for value, _ in scanned))
    body = replace(body, inputs=inputs, nodes=tuple(nodes)).prune()
    for index in counters:
        value = body.inputs[index]
        if body.is_read(value.name):
            scanned.append((value, to.emit("CastLike", every, node.inputs[index])))
    own = [index for index in range(end) if index not in counters]
    left = [v for v in body.inputs[end:] if v.name in taken and body.is_read(v.name)]
    inputs = (*(body.inputs[index] for index in own), *(value for value, _ in scanned), *left)
    more = (0,) * len(scanned)
    attributes = {
        **node.attributes,
        "body": replace(body, inputs=tuple(declared.get(v.name, v) for v in inputs)),
        "states": states - len(counters),
        "scanned": end - states + len(scanned),
        "input_axes": (*node.attributes["input_axes"], *more),
        "input_directions": (*node.attributes["input_directions"], *more),
    }
    outside = (*(node.inputs[index] for index in own), *(name for _, name in scanned))
    given = (*outside, *(taken[value.name] for value in left))
    results = tuple(node.outputs[index] for index in kept)
    to.nodes.append(Node("Scan", given, results, attributes, node.origin))
    for index in counters:
        if node.outputs[index]:
            to.emit("CastLike", number, node.inputs[index], output=node.outputs[index])
    return to.splice(node)


def _cast_from(body: Graph, name: str) -> str:
    """Returns the value before all casts to the types in `WIDE`, which represent step counts
    exactly.
    """
    while node := body.producer(name, "Cast", "Identity"):
        if node.op == "Cast" and node.attrs.to not in WIDE:
            break
        name = node.inputs[0]
    return name


def _are_lengths(body: Graph, name: str) -> bool:
    return body.types[name].rank == 1 and body.types[name].dtype in WIDE[:2]


def _counts(graph: Graph, node: Node, body: Graph, index: int) -> bool:
    """Returns whether a state of a scan equals t in iteration t."""
    state, first = body.inputs[index].name, numbers(graph, node.inputs[index])
    if first is None or first.dtype.kind != "i" or first.shape or first != 0:
        return False
    added = body.producer(source_of(body, body.outputs[index].name), "Add")
    return any(
        source_of(body, one) == state
        and (step := body.constants.get(other)) is not None
        and step.shape == ()
        and bool(step == 1)
        for one, other in orders(added)
    )
