"""A scan over a cell that keeps its state while a mask is false becomes a layer of other steps.

Keras writes it: a masked step repeats the state and the output of the step before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from onernn.fuse_passes.bodies import declare_sizes, source_of
from onernn.fuse_passes.rewriting import orders, rewrite
from onernn.fuse_passes.scanned_cells import Scanned, attention_of, scanned_layer
from onernn.fuse_passes.stacked_steps import Stacker
from onernn.fuse_passes.unrolled_cells import add_layer
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ops.control import scan_attributes


class Row(NamedTuple):
    """An output of the scan that consists of rows of h.

    While the mask is false it ``repeats`` the last row, which first is ``begin``; or it is
    ``begin``. ``last``: it is the state after the last step, not all of them.
    """

    name: str
    begin: str
    repeats: bool
    last: bool


@rewrite("masked_scans")
def fuse_masked_scans(graph: Graph, node: Node) -> Graph | Refusal | None:
    """``Scan(h0, mask, x; body: h = Where(mask, cell(x, h), h))`` -> an Rnn over some steps.

    Those for which the mask is true form a ragged batch. After the layer each step takes the
    row of the last of them so far, or what there was before the first one.
    """
    if node.op != "Scan" or node.attributes["scanned"] not in (2, 3):
        return None
    count, body = node.attributes["states"], declare_sizes(graph, node, "body")
    for index in range(node.attributes["scanned"]):
        chosen = [_find_chosen(body, v.name, body.inputs[count + index].name) for v in body.outputs]
        known = [one for one in chosen if one]
        if known and len(known) == len(chosen):
            return _fuse(graph, node, body, index, known)
    return None


def _fuse(
    graph: Graph, node: Node, body: Graph, index: int, chosen: list[tuple[str, str]]
) -> Graph | Refusal:
    """Rewrites a scan whose scanned value ``index`` is a mask that chooses all outputs."""
    count, where = node.attributes["states"], node.outputs[0]
    scanned = [*node.inputs[count : count + node.attributes["scanned"]]]
    mask = scanned.pop(index)
    masks = graph.types[mask]
    if masks.dtype != "bool" or masks.counts[2:] not in ((1,), ()) or len(masks.counts) < 2:
        return Refusal("its mask is not bool (T, N, 1) or (T, N)", where)
    if not graph.is_dense(mask, *scanned):
        return Refusal("it may go through sentences", where)
    ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
    if any(node.attributes["input_axes"]) or any(node.attributes["output_axes"]):
        return Refusal("it scans other axes", where)
    if len(ways) > 1:
        return Refusal("it scans in two directions", where)
    outside = dict(zip((value.name for value in body.inputs), node.inputs, strict=True))
    carried = [value.name for value in body.inputs[:count]]
    moving = [value.name for value in body.inputs[: count + 1 + len(scanned)]]
    new = [one for one, _ in chosen]
    read = {name for each in _cell_nodes(body, new) for name in each.inputs}
    slots = tuple(k for k in range(count) if carried[k] in read)
    if not slots or any(chosen[k][1] != carried[k] for k in slots):
        return Refusal("no state stays where the mask is false", where)
    layer = scanned_layer(graph, _without_mask(node, body, new, slots, index))
    if not isinstance(layer, Scanned) or layer.flat:
        return layer if isinstance(layer, Refusal) else Refusal("no cell is masked", where)
    if graph.types[scanned[layer.x]].rank != 3:
        return Refusal("it goes through another value than (T, N, I)", where)
    h, rows = new[slots[layer.states[0]]], []
    for k, (name, (one, other)) in enumerate(zip(node.outputs, chosen, strict=True)):
        if k in slots or not graph.is_read(name):
            continue
        # A state that repeats what this one is has the same rows.
        alike = range(count) if k >= count else (k,)
        repeats = any((one, other) == (new[j], carried[j]) == chosen[j] for j in alike)
        fixed = k >= count and other in outside and other not in moving
        if one != h or not (repeats or fixed):
            return Refusal("it repeats, or collects, something else than h", where)
        rows.append(Row(name, outside[other], repeats, k < count))
    to = Stacker(graph, where, layer.origin)
    _add_masked(to, node, layer, slots, rows, scanned, mask)
    return graph.splice((node,), to.nodes, to.constants)


def _add_masked(
    to: Stacker,
    node: Node,
    layer: Scanned,
    slots: tuple[int, ...],
    rows: list[Row],
    scanned: list[str],
    mask: str,
) -> None:
    """Adds the layer over the steps that a mask leaves, and the rows of each output.

    ``slots``: which states of the scan the layer carries; ``scanned``: all but the mask.
    """
    emit, constant = to.emit, to.constant
    zero, one = constant([0]), constant([1])
    flags = emit("Squeeze", (mask, constant([2]))) if to.graph.types[mask].rank == 3 else mask
    flags = emit("Transpose", (flags,), perm=(1, 0))
    chosen = emit("Reshape", (flags, constant([-1])))
    # How many steps a sequence has so far, and where it begins among all steps.
    some = emit("Cast", (flags,), to="int64")
    backwards = layer.spec.direction == "right2left"
    far = emit("CumSum", (some, one), reverse=int(backwards))
    counts = emit("ReduceSum", (some, one), keepdims=0)
    ends = emit("CumSum", (counts, zero))
    offsets = emit("Concat", (zero, ends), axis=0)

    x, width = scanned[layer.x], layer.spec.input_size
    projection: list[tuple[str, str]] = []
    if layer.layout:  # only the steps that are left are projected
        x, projection = _projection(to.graph, x)
        width = len(to.graph.constants[projection[0][1]]) if projection else width
    if layer.attention:  # joined to x: so it has its offsets
        x = emit("Concat", (x, attention_of(to, scanned[layer.attention.at], layer)), axis=2)
    steps = emit("Transpose", (x,), perm=(1, 0, 2))
    steps = emit("Reshape", (steps, constant([-1, width + bool(layer.attention)])))
    x = emit("SequenceReset", (emit("Compress", (steps, chosen), axis=0), offsets))
    attention = ""
    if layer.attention:
        cuts = [constant([at]) for at in (0, width, width + 1, 1)]
        attention = emit("Slice", (x, *cuts[1:]))
        x = emit("Slice", (x, *cuts[:2], cuts[3]))
    for op, parameter in projection:
        x = emit(op, (x, parameter))
    slots = tuple(slots[at] for at in layer.states)
    states = [node.inputs[slot] for slot in slots]
    of_layer = (layer.spec, layer.weights, x, states, layer.layout)
    rnn = add_layer(to, *of_layer, attention=attention)
    for slot, final in zip(slots, rnn.finals, strict=True):
        if node.outputs[slot]:
            emit("Squeeze", (final, constant([0, 1])), node.outputs[slot])
    # Row n of a table is what sequence n begins with, the steps come after these.
    data, size = emit("SequenceData", (rnn.y,)), emit("Shape", (counts,))
    if backwards:
        first = emit("Add", (ends, size))
    else:
        first = emit("Add", (emit("Sub", (ends, counts)), emit("Sub", (size, one))))
    own = emit("CumSum", (emit("Expand", (one, size)), zero))
    own = emit("Sub", (own, one))
    for row in rows:
        wide = emit("Concat", (size, constant([layer.spec.recurrent_size])), axis=0)
        table = emit("Concat", (emit("Expand", (row.begin, wide)), data), axis=0)
        so_far, start, begin = counts, first, own
        if not row.last:
            start, begin = (emit("Unsqueeze", (value, one)) for value in (first, own))
            so_far = far
        place = emit("Sub" if backwards else "Add", (start, so_far))
        some_yet = emit("Greater", (so_far, zero)) if row.repeats else flags
        at = emit("Where", (some_yet, place, begin))
        result = emit("Gather", (table, at), row.name * row.last, axis=0)
        if not row.last:
            emit("Transpose", (result,), row.name, perm=(1, 0, 2))


def _projection(graph: Graph, name: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns the x of x @ W, or x @ W + b, and the operators with their constants."""
    result: list[tuple[str, str]] = []
    source = name
    for product, bias in orders(graph.producer(name, "Add")):
        if bias in graph.constants and graph.constants[bias].ndim == 1:
            result, source = [("Add", bias)], product
    node = graph.producer(source, "MatMul")
    weight = graph.constants.get(node.inputs[1]) if node else None
    if node is None or weight is None or weight.ndim != 2:
        return name, []
    return node.inputs[0], [("MatMul", node.inputs[1]), *result]


def _find_chosen(body: Graph, name: str, mask: str) -> tuple[str, str] | None:
    """Returns the values that one takes if the mask is true, and if it is false.

    It is a Where, or, as exporters write it, mask * a + (not mask) * b.
    """
    name = source_of(body, name)
    if node := body.producer(name, "Where"):
        one, other = (source_of(body, each) for each in node.inputs[1:])
        sign = _sign(body, node.inputs[0], mask)
        return ((one, other) if sign > 0 else (other, one)) if sign else None
    total = body.producer(name, "Add")
    result: dict[int, str] = {}
    for term in total.inputs if total else ():
        for factor, value in orders(body.producer(term, "Mul")):
            if sign := _sign(body, factor, mask):
                result[sign] = source_of(body, value)
    return (result[1], result[-1]) if len(result) == 2 else None


def _sign(body: Graph, name: str, mask: str) -> int:
    """Returns 1 for the mask, -1 for its opposite, 0 for others."""
    sign = 1
    while (name := source_of(body, name)) != mask:
        node = body.producer(name, "Cast", "Not", "Unsqueeze")
        if node is None:
            return 0
        if node.op == "Unsqueeze" and body.types[node.outputs[0]].counts[1:] != (1,):
            return 0  # a row, and not one number a sentence
        sign = -sign if node.op == "Not" else sign
        name = node.inputs[0]
    return sign


def _cell_nodes(body: Graph, new: list[str]) -> list[Node]:
    """Returns the nodes that compute the new states."""
    wanted, result = set(new), list[Node]()
    for node in reversed(body.nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            result.append(node)
    return result


def _without_mask(
    node: Node, body: Graph, new: list[str], slots: tuple[int, ...], index: int
) -> Node:
    """Returns the scan of the cell alone, without its mask."""
    count = node.attributes["states"]
    kept = [*slots, *(k for k in range(count, len(body.inputs)) if k != count + index)]
    outputs = tuple(replace(body.outputs[k], name=new[k]) for k in slots)
    inner = replace(body, outputs=outputs).pruned()
    inner = replace(inner, inputs=tuple(body.inputs[k] for k in kept))
    scanned, way = node.attributes["scanned"] - 1, node.attributes["input_directions"][0]
    attributes = scan_attributes(inner, len(slots), scanned, backwards=way)
    inputs = tuple(node.inputs[k] for k in kept)
    results = tuple(f"{node.outputs[0]}/unmasked{k}" for k in slots)
    return Node("Scan", inputs, results, attributes, node.origin)
