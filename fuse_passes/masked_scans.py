"""A scan over a cell that keeps its state where a mask is false becomes a layer of other words.

Keras writes it: a masked step neither moves the state nor the output, which is the last one again.
"""

from __future__ import annotations

from dataclasses import replace

from onernn.fuse_passes.bodies import sized, source_of
from onernn.fuse_passes.rewriting import orders
from onernn.fuse_passes.scanned_cells import FuseScannedCells, Scanned, attention_of
from onernn.fuse_passes.stacked_steps import Stacker
from onernn.fuse_passes.unrolled_cells import add_layer
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ops.control import scan_attributes


@dataclass(frozen=True, eq=False)
class Row:
    """An output of the scan that is made of rows of h. Where the mask is false it repeats the last
    one, and before that it is ``begin``; or, where it does not repeat any, it is ``begin``.

    ``last``: it is the state behind the last step, not all of them.
    """

    name: str
    begin: str
    repeats: bool
    last: bool


@dataclass(frozen=True, eq=False)
class Masked:
    """``layer``: of the scan without its mask; ``slots``: which states of the scan it carries.

    ``scanned``: what the scan goes through beside ``mask``.
    """

    scan: Node
    layer: Scanned
    slots: tuple[int, ...]
    rows: tuple[Row, ...]
    scanned: tuple[str, ...]
    mask: str


class FuseMaskedScans:
    """``Scan(h0, mask, x; body: h = Where(mask, cell(x, h), h))`` -> an Rnn over words.

    Those where the mask is true stand behind one another as a ragged batch. Behind the layer each
    step takes the row of the last of its words so far, or what there was before the first one.
    """

    name = "masked_scans"

    def match(self, graph: Graph, node: Node) -> Masked | Refusal | None:
        if node.op != "Scan" or node.attributes["scanned"] not in (2, 3):
            return None
        count, body = node.attributes["states"], sized(graph, node, "body")
        for index in range(node.attributes["scanned"]):
            chosen = [_chosen(body, v.name, body.inputs[count + index].name) for v in body.outputs]
            known = [one for one in chosen if one]
            if known and len(known) == len(chosen):
                return self._layer(graph, node, body, index, known)
        return None

    def _layer(
        self, graph: Graph, node: Node, body: Graph, index: int, chosen: list[tuple[str, str]]
    ) -> Masked | Refusal:
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
        read = {name for each in _cell(body, new) for name in each.inputs}
        slots = tuple(k for k in range(count) if carried[k] in read)
        if not slots or any(chosen[k][1] != carried[k] for k in slots):
            return Refusal("no state stays where the mask is false", where)
        layer = FuseScannedCells().match(graph, _without_mask(node, body, new, slots, index))
        if not isinstance(layer, Scanned) or layer.flat:
            return layer if isinstance(layer, Refusal) else Refusal("no cell is masked", where)
        if graph.types[scanned[layer.x]].rank != 3:
            return Refusal("it goes through another value than (T, N, I)", where)
        h, rows = new[slots[layer.states[0]]], []
        for k, (name, (one, other)) in enumerate(zip(node.outputs, chosen, strict=True)):
            used = name and (graph.is_output(name) or graph.users(name))
            if k in slots or not used:
                continue
            # A state that repeats what this one is has the same rows.
            alike = range(count) if k >= count else (k,)
            repeats = any((one, other) == (new[j], carried[j]) == chosen[j] for j in alike)
            fixed = k >= count and other in outside and other not in moving
            if one != h or not (repeats or fixed):
                return Refusal("it repeats, or collects, something else than h", where)
            rows.append(Row(name, outside[other], repeats, k < count))
        return Masked(node, layer, slots, tuple(rows), tuple(scanned), mask)

    def rewrite(self, graph: Graph, match: Masked) -> Graph:
        scan, layer = match.scan, match.layer
        to = Stacker(graph, scan.outputs[0], layer.origin)
        flags = match.mask
        if graph.types[flags].rank == 3:
            flags = to.emit("Squeeze", (flags, to.constant([2])))
        flags = to.emit("Transpose", (flags,), perm=(1, 0))
        chosen = to.emit("Reshape", (flags, to.constant([-1])))
        # How many words a sentence has so far, and where it begins among all words.
        some = to.emit("Cast", (flags,), to="int64")
        backwards = layer.spec.direction == "right2left"
        far = to.emit("CumSum", (some, to.constant([1])), reverse=int(backwards))
        counts = to.emit("ReduceSum", (some, to.constant([1])), keepdims=0)
        ends = to.emit("CumSum", (counts, to.constant([0])))
        offsets = to.emit("Concat", (to.constant([0]), ends), axis=0)

        x, width = match.scanned[layer.x], layer.spec.input_size
        projection: list[tuple[str, str]] = []
        if layer.layout:  # only the words that are left are projected
            x, projection = _projection(graph, x)
            width = len(graph.constants[projection[0][1]]) if projection else width
        parts = [x]
        if layer.attention:  # beside x: so it has its offsets
            parts.append(attention_of(to, match.scanned[layer.attention.at], layer))
            x = to.emit("Concat", tuple(parts), axis=2)
        rows = to.emit("Transpose", (x,), perm=(1, 0, 2))
        rows = to.emit("Reshape", (rows, to.constant([-1, width + len(parts) - 1])))
        words = to.emit("Compress", (rows, chosen), axis=0)
        x, attention = to.emit("SequenceReset", (words, offsets)), ""
        if layer.attention:
            cuts = [to.constant([at]) for at in (0, width, width + 1, 1)]
            attention = to.emit("Slice", (x, *cuts[1:]))
            x = to.emit("Slice", (x, *cuts[:2], cuts[3]))
        for op, constant in projection:
            x = to.emit(op, (x, constant))
        slots = [match.slots[at] for at in layer.states]
        states = [scan.inputs[slot] for slot in slots]
        of_layer = (layer.spec, layer.weights, x, states, layer.layout)
        rnn = add_layer(to, *of_layer, attention=attention)
        made = dict(zip(slots, rnn.finals, strict=True))
        nodes = [
            Node(
                "Squeeze", (made[slot], to.constant([0, 1])), (scan.outputs[slot],), {}, rnn.origin
            )
            for slot in slots
            if scan.outputs[slot]
        ]
        # Row n of a table is what sentence n begins with, the words come behind.
        data = to.emit("SequenceData", (rnn.y,))
        size = to.emit("Shape", (counts,))
        if backwards:
            first = to.emit("Add", (ends, size))
        else:
            before_first = to.emit("Sub", (size, _one(to)))
            first = to.emit("Add", (to.emit("Sub", (ends, counts)), before_first))
        own = to.emit("CumSum", (to.emit("Expand", (_one(to), size)), to.constant([0])))
        own = to.emit("Sub", (own, _one(to)))
        for row in match.rows:
            wide = to.emit("Concat", (size, to.constant([layer.spec.recurrent_size])), axis=0)
            before = to.emit("Expand", (row.begin, wide))
            table = to.emit("Concat", (before, data), axis=0)
            so_far, start, begin = counts, first, own
            if not row.last:
                column = to.constant([1])
                start, begin = (to.emit("Unsqueeze", (v, column)) for v in (first, own))
                so_far = far
            place = to.emit("Sub" if backwards else "Add", (start, so_far))
            some_yet = to.emit("Greater", (so_far, to.constant([0]))) if row.repeats else flags
            at = to.emit("Where", (some_yet, place, begin))
            if row.last:
                nodes.append(Node("Gather", (table, at), (row.name,), {"axis": 0}, rnn.origin))
            else:
                result = to.emit("Gather", (table, at), axis=0)
                perm = {"perm": (1, 0, 2)}
                nodes.append(Node("Transpose", (result,), (row.name,), perm, rnn.origin))
        return graph.splice((scan,), (*to.nodes, *nodes), to.constants)


def _projection(graph: Graph, name: str) -> tuple[str, list[tuple[str, str]]]:
    """The x of x @ W, or x @ W + b, and the operators with their constants."""
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


def _one(to: Stacker) -> str:
    return to.constant([1])


def _chosen(body: Graph, name: str, mask: str) -> tuple[str, str] | None:
    """The values that one is where the mask is true, and where it is false.

    A Where, or, as exporters write it, mask * a + (not mask) * b.
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
    """1 for the mask, -1 for what is true where the mask is not, 0 for others."""
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


def _cell(body: Graph, new: list[str]) -> list[Node]:
    """The nodes that compute what states become."""
    wanted, result = set(new), list[Node]()
    for node in reversed(body.nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            result.append(node)
    return result


def _without_mask(
    node: Node, body: Graph, new: list[str], slots: tuple[int, ...], index: int
) -> Node:
    """The scan of the cell alone, which collects h."""
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
