"""A scan whose body is one recurrent cell, or one step of a layer, becomes a layer."""

from __future__ import annotations

from dataclasses import replace

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, NativeOp, Node
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent
from onernn.core.sizes import Size
from onernn.core.spec import Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.fuse_passes.bodies import sized
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.rewriting import fresh
from onernn.fuse_passes.stacked_steps import Stacker
from onernn.fuse_passes.unrolled_cells import fits, layer, no_state, zero_or_state
from onernn.fuse_passes.views import Axis, Factor, moved, views_behind


@dataclass(frozen=True, eq=False)
class Scanned:
    """``states``: which inputs of the scan are h and c; ``flat``: a step's rows have more axes."""

    scan: Node
    spec: RnnSpec
    weights: RnnWeights
    states: tuple[int, ...]
    flat: bool = False
    origin: tuple[NativeOp, ...] = ()


class FuseScannedCells:
    """``Scan(h0, x; body: h = cell(x, h))`` -> ``Rnn(x, h0)``: MXNet's foreach over a cell.

    The cell may be written out, or be a layer of one step, as PyTorch exports an LSTMCell.
    """

    name = "scanned_cells"

    def match(self, graph: Graph, node: Node) -> Scanned | Refusal | None:
        if node.op != "Scan" or node.attributes["scanned"] != 1:
            return None
        body = sized(graph, node, "body")
        found = _written_out(graph, node, body) or _one_step(graph, node, body)
        if not isinstance(found, Scanned):
            return Refusal(found or "its body is not one recurrent cell", node.outputs[0])
        axes = (*node.attributes["input_axes"], *node.attributes["output_axes"])
        ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
        if any(axes) or len(ways) > 1:
            return Refusal("it scans other axes, or in two directions", node.outputs[0])
        direction: Direction = "right2left" if ways == {1} else "left2right"
        return replace(found, spec=replace(found.spec, direction=direction))

    def rewrite(self, graph: Graph, match: Scanned) -> Graph:
        scan, count = match.scan, len(match.states)
        stacker = Stacker(graph, scan.outputs[0], match.origin)
        x = scan.inputs[count]
        if match.flat:
            x = stacker.emit("Reshape", (x, stacker.constant([0, 0, -1])))
        initial = [zero_or_state(stacker, graph, scan.inputs[at]) for at in match.states]
        ends = ("y", "h", "c")[: 1 + count]
        y, *finals = (fresh(graph, f"{scan.outputs[0]}/{name}") for name in ends)
        rnn = Recurrent(match.spec, match.weights, x, y, origin=stacker.origin)
        made = [rnn.with_states(tuple(initial), tuple(finals)).node()]
        axes = stacker.constant([0, 1])
        for at, name in zip(match.states, finals, strict=True):
            made.append(Node("Squeeze", (name, axes), (scan.outputs[at],), {}, stacker.origin))
        results = scan.outputs[count:]
        made += [Node("Identity", (y,), (name,), {}, stacker.origin) for name in results]
        return graph.splice((scan,), (*stacker.nodes, *made), stacker.constants)


def _written_out(graph: Graph, node: Node, body: Graph) -> Scanned | str:
    """The layer whose cell a body computes, or why there is none; "" where there is no cell."""
    count = node.attributes["states"]
    carried = [value.name for value in body.inputs[:count]]
    made = [_source(body, value.name) for value in body.outputs]
    for step in filter(None, (step_of(body, each) for each in body.nodes)):
        wanted = [step.h, *([step.c] if step.c else [])]
        if sorted(made[:count]) != sorted(wanted):
            continue
        order = tuple(made.index(name) for name in wanted)
        before = [carried[at] for at in order]
        for reading in step.readings:
            if [reading.h, *([step.c_before] if step.c else [])] != before:
                continue
            if not fits(body, reading):
                continue
            if any(name != step.h for name in made[count:]):
                return "it collects something else than the state"
            return _of_step(graph, node, body, step, reading, order)
    return ""


def _of_step(
    graph: Graph, node: Node, body: Graph, step: Step, reading: Reading, order: tuple[int, ...]
) -> Scanned | str:
    count = node.attributes["states"]
    x = body.inputs[count].name
    flat = body.producer(reading.x)
    if reading.x != x and (flat is None or flat.op != "Flatten" or flat.inputs[0] != x):
        return "its cell reads something else than the scanned value"
    batch = next(iter(graph.types[node.inputs[count]].counts[1:]), None)
    if reason := no_state(graph, node.inputs[:count], batch):
        return reason
    spec, weights = layer(body, step.cell, reading, False)
    origin = node.origin + tuple(op for each in step.nodes for op in each.origin)
    return Scanned(node, spec, weights, order, reading.x != x, tuple(dict.fromkeys(origin)))


def _source(body: Graph, name: str) -> str:
    while (node := body.producer(name)) is not None and node.op == "Identity":
        name = node.inputs[0]
    return name


def _one_step(graph: Graph, node: Node, body: Graph) -> Scanned | str:
    """The layer of which a body runs one step, or why there is none, as above."""
    count = node.attributes["states"]
    rnns = [Recurrent.of(each) for each in body.nodes if each.op == "Rnn"]
    if len(rnns) != 1:
        return ""
    (rnn,) = rnns
    spec, inputs = rnn.spec, [value.name for value in body.inputs]
    if spec.layers * spec.directions > 1 or rnn.attention or rnn.cells:
        return ""
    wide, deep = spec.recurrent_size, spec.hidden_size
    x = _behind(body, rnn.x, 2, 3, spec.input_size)
    given = ((rnn.h, wide), (rnn.c, deep))
    states = [_behind(body, name, 2, 4, width) for name, width in given if name]
    if x != inputs[count] or sorted(states) != sorted(inputs[:count]):
        return ""
    if count != len(spec.cell.states):
        return ""
    order = tuple(map(inputs.index, states))
    for at, value in enumerate(body.outputs):
        # A state of the next step is the layer's new one of the same kind; h is what is collected.
        is_c = at < count and order.index(at) == 1
        ranks = {rnn.c_final: 4} if is_c else {rnn.y: 3, rnn.h_final: 4}
        rank = ranks.get(views_behind(body, value.name)[0], 0)
        if not rank or not _behind(body, value.name, rank, 2, deep if is_c else wide):
            return "it collects something else than the state" if at >= count else ""
    if graph.types[node.inputs[count]].rank != 3:
        return "it may scan a value of other axes than (T, N, I)"
    return Scanned(node, spec, rnn.layers[0], order, origin=node.origin)


def _behind(body: Graph, name: str, before: int, after: int, width: int) -> str:
    """The value that views make ``name`` of: (1, ..., N, width) with other numbers of ones."""
    source, chain = views_behind(body, name)
    rows: list[Axis] = [(Factor("N", Size.of("N")),), (Factor("O", Size.of(width)),)]
    given, wanted = ([*[()] * (rank - 2), *rows] for rank in (before, after))
    return source if moved(body, chain, given) == moved(body, [], wanted) else ""
