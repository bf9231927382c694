"""Turns a scan over a masked cell into a layer over the steps whose mask is true.

Keras writes these scans: if the mask is false, a step repeats the state and the output of the
previous step.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.fuse_passes.bodies import declare_sizes, source_of
from onernn.fuse_passes.rewriting import orders, rewrite
from onernn.fuse_passes.scanned_cells import Scanned, attention_of, find_layer
from onernn.fuse_passes.stacked_steps import Stacker
from onernn.fuse_passes.unrolled_cells import add_layer
from onernn.fuse_passes.views import is_view, is_zeros
from onernn.ir.graph import Graph, Node
from onernn.ir.records import NamedTuple
from onernn.ops.control import scan_attributes


class Row(NamedTuple):
    """An output of the scan that contains h of some steps.

    In a step with a false mask, the output is the previous row if ``repeats``, otherwise ``begin``.
    Before the first step, the previous row is ``begin``. ``last``: whether the output is only the
    state after the last step.
    """

    name: str
    begin: str
    repeats: bool
    last: bool


@rewrite("masked_scans", "Scan")
def fuse_masked_scans(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Scan(h0, mask, x; body: h = Where(mask, cell(x, h), h))`` into an Rnn of fewer steps.

    The steps with a true mask form a ragged batch, which the layer reads. Each step with a false
    mask then gets h of the last step before it that has a true mask, or the initial value (see
    `Row`).
    """
    if node.attributes["scanned"] not in (2, 3):
        return None
    body = declare_sizes(graph, node, "body")
    index = find_mask(node, body)
    return None if index is None else _fuse(graph, node, body, index)


def find_mask(node: Node, body: Graph) -> int | None:
    """Returns the index of the scanned input that is the mask of all outputs; None if there is
    none.
    """
    count = node.attributes["states"]
    for index in range(node.attributes["scanned"]):
        mask = body.inputs[count + index].name
        if all(find_chosen(body, value.name, mask) for value in body.outputs):
            return index
    return None


def _fuse(graph: Graph, node: Node, body: Graph, index: int) -> Graph | str:
    count = node.attributes["states"]
    flags = body.inputs[count + index].name
    chosen = [each for v in body.outputs if (each := find_chosen(body, v.name, flags))]
    scanned = [*node.inputs[count : count + node.attributes["scanned"]]]
    mask = scanned.pop(index)
    masks = graph.types[mask]
    if masks.dtype != "bool" or masks.counts[2:] not in ((1,), ()) or len(masks.counts) < 2:
        return "its mask is not bool (T, N, 1) or (T, N)"
    if not graph.is_dense(mask, *scanned):
        return "it may iterate over sequences"
    ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
    if any(node.attributes["input_axes"]) or any(node.attributes["output_axes"]):
        return "it scans a different axis than T"
    if len(ways) > 1:
        return "it scans in two directions"
    outside = dict(zip((value.name for value in body.inputs), node.inputs, strict=True))
    carried = [value.name for value in body.inputs[:count]]
    moving = [value.name for value in body.inputs[: count + 1 + len(scanned)]]
    new = [one for one, _ in chosen]
    read = {name for each in _cell_nodes(body, new) for name in each.inputs}
    slots = tuple(k for k in range(count) if carried[k] in read)
    if not slots or any(chosen[k][1] != carried[k] for k in slots):
        return "no state keeps its value while the mask is false"
    layer = find_layer(graph, _without_mask(node, body, new, slots, index))
    if not isinstance(layer, Scanned) or layer.flat:
        return layer if isinstance(layer, str) else "no cell is masked"
    if graph.types[scanned[layer.x]].rank != 3:
        return "it scans a different value than (T, N, I)"
    h, rows = new[slots[layer.states[0]]], []
    to = Stacker(graph, node.outputs[0], layer.origin)
    for k, (name, (one, other)) in enumerate(zip(node.outputs, chosen, strict=True)):
        if k in slots or not graph.is_read(name):
            continue
        # A state may only repeat its own previous value; a scanned output may repeat any state.
        alike = range(count) if k >= count else (k,)
        repeats = any((one, other) == (new[j], carried[j]) == chosen[j] for j in alike)
        fixed = k >= count and other not in moving and (other in outside or other in body.constants)
        if one != h or not (repeats or fixed):
            return "it repeats or collects a different value than h"
        if other in body.constants:
            outside[other] = to.constant(body.constants[other], body.constants[other].dtype)
        rows.append(Row(name, outside[other], repeats, k < count))
    _add_masked(to, node, layer, slots, rows, scanned, mask)
    return to.splice(node)


def _add_masked(
    to: Stacker,
    node: Node,
    layer: Scanned,
    slots: tuple[int, ...],
    rows: list[Row],
    scanned: list[str],
    mask: str,
) -> None:
    """Adds a layer over the steps with a true mask, and nodes for each output of the scan.

    ``slots``: the indices of the scan's states that become states of the layer. ``scanned``: all
    scanned inputs except the mask.
    """
    lengths = _find_lengths(to.graph, mask)
    slots = tuple(slots[at] for at in layer.states)
    states, finals = ([names[slot] for slot in slots] for names in (node.inputs, node.outputs))
    if lengths and not layer.attention and all(_pads_with_zeros(to, row) for row in rows):
        return _add_ragged(to, layer, states, finals, rows, scanned[layer.x], lengths)
    emit, zero, one = to.emit, to.constant([0]), to.constant([1])
    flags = emit("Squeeze", mask, [2]) if to.graph.types[mask].rank == 3 else mask
    flags = emit("Transpose", flags, perm=(1, 0))
    chosen = emit("Reshape", flags, [-1])
    # ``far``: the number of true steps of each sequence up to a step. ``offsets``: the offsets of
    # the sequences in the ragged batch, which contains only the true steps.
    some = emit("Cast", flags, to="int64")
    backwards = layer.spec.direction == "right2left"
    far = emit("CumSum", some, one, reverse=int(backwards))
    counts = emit("ReduceSum", some, one, keepdims=0)
    ends = emit("CumSum", counts, zero)
    offsets = emit("Concat", zero, ends, axis=0)

    x, width = scanned[layer.x], layer.spec.input_size
    projection: list[tuple[str, str]] = []
    if layer.layout:  # moves the projection after the mask, to project fewer steps
        x, projection = _projection(to.graph, x)
        width = len(to.graph.constants[projection[0][1]]) if projection else width
    if layer.attention:  # concatenates attention with x, so that both get the same offsets
        x = emit("Concat", x, attention_of(to, scanned[layer.attention.at], layer), axis=2)
    steps = emit("Transpose", x, perm=(1, 0, 2))
    steps = emit("Reshape", steps, [-1, width + bool(layer.attention)])
    x = emit("SequenceReset", emit("Compress", steps, chosen, axis=0), offsets)
    attention = ""
    if layer.attention:
        attention = emit("Slice", x, [width], [width + 1], one)
        x = emit("Slice", x, zero, [width], one)
    for op, parameter in projection:
        x = emit(op, x, parameter)
    cell = layer.spec, layer.weights
    rnn = add_layer(to, *cell, x, states, finals, layer.layout, attention=attention)
    # Row n of ``table`` is the initial value of sequence n; the steps follow these rows.
    data, size = emit("SequenceData", rnn.y), emit("Shape", counts)
    if backwards:
        first = emit("Add", ends, size)
    else:
        first = emit("Add", emit("Sub", ends, counts), emit("Sub", size, one))
    own = emit("CumSum", emit("Expand", one, size), zero)
    own = emit("Sub", own, one)
    for row in rows:
        wide = emit("Concat", size, [layer.spec.recurrent_size], axis=0)
        table = emit("Concat", emit("Expand", row.begin, wide), data, axis=0)
        so_far, start, begin = counts, first, own
        if not row.last:
            start, begin = (emit("Unsqueeze", value, one) for value in (first, own))
            so_far = far
        place = emit("Sub" if backwards else "Add", start, so_far)
        some_yet = emit("Greater", so_far, zero) if row.repeats else flags
        at = emit("Where", some_yet, place, begin)
        result = emit("Gather", table, at, output=row.name * row.last, axis=0)
        if not row.last:
            emit("Transpose", result, output=row.name, perm=(1, 0, 2))


def _add_ragged(
    to: Stacker,
    layer: Scanned,
    states: list[str],
    finals: list[str],
    rows: list[Row],
    scanned: str,
    lengths: str,
) -> None:
    """Adds a layer over the valid steps of each sequence, and pads its output with zeros."""
    emit = to.emit
    x, projection = _projection(to.graph, scanned) if layer.layout else (scanned, [])
    words = emit("SequenceUnpad", x, lengths, time_major=1)
    for op, parameter in projection:
        words = emit(op, words, parameter)
    rnn = add_layer(to, layer.spec, layer.weights, words, states, finals, layer.layout)
    for row in rows:
        emit("SequencePad", rnn.y, x, output=row.name, time_major=1)


def _find_lengths(graph: Graph, mask: str) -> str:
    """Returns the lengths (N,) if a mask (T, N) is true exactly for the steps before them, else "".

    `counted_scans` writes these masks, for lengths from 0 to T.
    """
    less = graph.producer(mask, "Less")
    column = less and graph.producer(less.inputs[0], "Unsqueeze")
    turns = column and graph.producer(column.inputs[0], "Range")
    inner = less and graph.producer(less.inputs[1], "Max")
    if less is None or column is None or turns is None or inner is None:
        return ""
    bounded = graph.producer(inner.inputs[0], "Min")
    first, end, step = turns.inputs
    size = bounded and graph.types[bounded.inputs[1]].value
    known = size and size == (graph.types[end].value,) and graph.types[mask].counts[:1]
    axis, low = graph.number(column.inputs[1]), graph.number(inner.inputs[1])
    numbers = (graph.number(first), graph.number(step), axis, low)
    return less.inputs[1] if known is not None and numbers == (0, 1, 1, 0) else ""


def _pads_with_zeros(to: Stacker, row: Row) -> bool:
    own = to.constants.get(row.begin)
    zeros = is_zeros(to.graph, row.begin) if own is None else not own.any()
    return not row.repeats and not row.last and zeros


def _projection(graph: Graph, name: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns the input x of a projection x @ W or x @ W + b, and (operator, constant) for each of
    its nodes.
    """
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


def find_chosen(body: Graph, name: str, mask: str) -> tuple[str, str] | None:
    """Returns (value if the mask is true, value if it is false) for a value that the mask selects,
    otherwise None.

    Exporters write the selection as Where, or as mask * a + (not mask) * b.
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
    """Returns 1 if a value is the mask, -1 if it is the negated mask, else 0."""
    sign = 1
    while (name := source_of(body, name)) != mask:
        node = body.producer(name, "Cast", "Not", "Unsqueeze", "Reshape", "Slice")
        if node is None or node.op == "Slice" and not _takes_all(body, node):
            return 0
        if is_view(node.op) and body.types[node.outputs[0]].counts[1:] != (1,):
            return 0  # not one element per sequence
        sign = -sign if node.op == "Not" else sign
        name = node.inputs[0]
    return sign


_TO_THE_END = 10**9
"""The smallest end of a slice that means the end of the axis; exporters write such numbers."""


def _takes_all(body: Graph, node: Node) -> bool:
    """Returns whether a Slice (such as TensorFlow's mask[:, None]) returns its whole input."""
    starts, ends, steps = (body.constants.get(node.input(k)) for k in (1, 2, 4))
    if starts is None or ends is None or (steps is None and node.input(4)):
        return False
    forwards = steps is None or bool((steps == 1).all())
    return forwards and not starts.any() and bool((ends >= _TO_THE_END).all())


def _cell_nodes(body: Graph, new: list[str]) -> list[Node]:
    wanted, result = set(new), list[Node]()
    for node in reversed(body.nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            result.append(node)
    return result


def _without_mask(
    node: Node, body: Graph, new: list[str], slots: tuple[int, ...], index: int
) -> Node:
    count = node.attributes["states"]
    kept = [*slots, *(k for k in range(count, len(body.inputs)) if k != count + index)]
    outputs = tuple(replace(body.outputs[k], name=new[k]) for k in slots)
    inner = replace(body, outputs=outputs).prune()
    inner = replace(inner, inputs=tuple(body.inputs[k] for k in kept))
    scanned, way = node.attributes["scanned"] - 1, node.attributes["input_directions"][0]
    attributes = scan_attributes(inner, len(slots), scanned, backwards=way)
    inputs = tuple(node.inputs[k] for k in kept)
    results = tuple(f"{node.outputs[0]}/unmasked{k}" for k in slots)
    return Node("Scan", inputs, results, attributes, node.origin)
