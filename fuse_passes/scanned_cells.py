"""A scan whose body is one recurrent cell, or one step of a layer, becomes a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from onernn.fuse_passes.bodies import sized, source_of
from onernn.fuse_passes.cell_formulas import Attention, Reading, Step, step_of
from onernn.fuse_passes.rewriting import fresh
from onernn.fuse_passes.stacked_steps import Stacker, moving
from onernn.fuse_passes.unrolled_cells import (
    add_layer,
    attended,
    fits,
    layer,
    no_state,
    projected,
)
from onernn.fuse_passes.views import Axis, Factor, moved, views_behind
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Direction, RnnSpec
from onernn.ir.types import Size
from onernn.ir.weights import RnnWeights
from onernn.reorders.gates import GateLayout


class Attended(NamedTuple):
    """Which of the scanned values the attention is. A step of it has ``rank`` axes, of 1 but for
    the axis ``batch``. ``keeps``: see `Attention`.
    """

    at: int
    rank: int
    batch: int
    keeps: bool


@dataclass(frozen=True, eq=False)
class Scanned:
    """``states``: which inputs of the scan are h and c; ``flat``: a step's rows have more axes.

    ``cells``: whether c is what is collected, of each result. ``x``: which of the scanned values
    the layer reads; ``layout``: of its gates, where they are projected already.
    """

    scan: Node
    spec: RnnSpec
    weights: RnnWeights
    states: tuple[int, ...]
    cells: tuple[bool, ...]
    flat: bool = False
    origin: tuple[NativeOp, ...] = ()
    x: int = 0
    layout: GateLayout | None = None
    attention: Attended | None = None


class FuseScannedCells:
    """``Scan(h0, x; body: h = cell(x, h))`` -> ``Rnn(x, h0)``: MXNet's foreach over a cell.

    The cell may be written out, or be a layer of one step, as PyTorch exports an LSTMCell.
    """

    name = "scanned_cells"

    def match(self, graph: Graph, node: Node) -> Scanned | Refusal | None:
        if node.op != "Scan" or node.attributes["scanned"] > 2:
            return None
        body = sized(graph, node, "body")
        result = _written_out(graph, node, body) or _one_step(graph, node, body)
        if not isinstance(result, Scanned):
            return Refusal(result or "its body is not one recurrent cell", node.outputs[0])
        ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
        if len(ways) > 1:
            return Refusal("it scans in two directions", node.outputs[0])
        direction: Direction = "right2left" if ways == {1} else "left2right"
        return replace(result, spec=replace(result.spec, direction=direction))

    def rewrite(self, graph: Graph, match: Scanned) -> Graph:
        scan, count = match.scan, len(match.states)
        stacker = Stacker(graph, scan.outputs[0], match.origin)
        x = _scanned(stacker, scan, match.x)
        if match.flat:
            x = stacker.emit("Reshape", (x, stacker.constant([0, 0, -1])))
        attention = match.attention and attention_of(
            stacker, _scanned(stacker, scan, match.attention.at), match
        )
        states = [scan.inputs[at] for at in match.states]
        values = {"attention": attention or ""}
        if any(match.cells):
            values["cells"] = fresh(graph, f"{scan.outputs[0]}/cells")
        rnn = add_layer(stacker, match.spec, match.weights, x, states, match.layout, **values)
        result, front = list[Node](), stacker.constant([0, 1])
        for at, name in zip(match.states, rnn.finals, strict=True):
            result.append(Node("Squeeze", (name, front), (scan.outputs[at],), {}, stacker.origin))
        axes = scan.attributes["output_axes"]
        for is_c, axis, name in zip(match.cells, axes, scan.outputs[count:], strict=True):
            result.append(collected(rnn.cells if is_c else rnn.y, axis, name, stacker.origin))
        return graph.splice((scan,), (*stacker.nodes, *result), stacker.constants)


def _written_out(graph: Graph, node: Node, body: Graph) -> Scanned | str:
    """The layer whose cell a body computes, or why there is none; "" where there is no cell."""
    count = node.attributes["states"]
    carried = [value.name for value in body.inputs[:count]]
    result = [source_of(body, value.name) for value in body.outputs]
    for step in filter(None, (step_of(body, each) for each in body.nodes)):
        wanted = [step.h, *([step.c] if step.c else [])]
        if sorted(result[:count]) != sorted(wanted):
            continue
        order = tuple(result.index(name) for name in wanted)
        before = [carried[index] for index in order]
        for reading in step.readings:
            if [reading.h, *([step.c_before] if step.c else [])] != before:
                continue
            if not fits(body, reading):
                continue
            if any(name not in wanted for name in result[count:]):
                return "it collects something else than the state"
            cells = tuple(name == step.c for name in result[count:])
            return _of_step(graph, node, body, step, reading, order, cells)
    return ""


def _of_step(
    graph: Graph,
    node: Node,
    body: Graph,
    step: Step,
    reading: Reading,
    order: tuple[int, ...],
    cells: tuple[bool, ...],
) -> Scanned | str:
    count = node.attributes["states"]
    scanned = [value.name for value in body.inputs[count : count + node.attributes["scanned"]]]
    flat = body.producer(reading.x, "Flatten")
    x = flat.inputs[0] if flat else reading.x
    if x not in scanned:
        return "its cell reads something else than the scanned value"
    at = scanned.index(x)
    axis = node.attributes["input_axes"][at]
    sizes = [*graph.types[node.inputs[count + at]].counts]
    if sizes:
        del sizes[axis]
    batch = sizes[0] if sizes else None
    if reason := no_state(graph, node.inputs[:count], batch):
        return reason
    attention = step.attention and _attended(body, step.attention, scanned)
    if isinstance(attention, str):
        return attention
    if step.attention and (reason := no_state(body, [step.attention.name], batch, "attention")):
        return reason
    spec, weights = layer(body, step, reading)
    origin = node.origin + tuple(op for each in step.nodes for op in each.origin)
    return Scanned(
        node,
        spec,
        weights,
        order,
        cells,
        reading.x != x,
        tuple(dict.fromkeys(origin)),
        at,
        projected(body, reading),
        attention,
    )


def _attended(
    body: Graph, attention: Attention, scanned: list[str], rank: int = 2
) -> Attended | str:
    """Which scanned value is the attention (N, 1), or (1, N, 1), behind views of each step."""
    source, chain = views_behind(body, attention.name)
    if source not in scanned:
        return "its attention is something else than a scanned value"
    sizes = body.types[source].shape or ()
    wide = [index for index, size in enumerate(sizes) if size is None or size.number != 1]
    if not sizes or len(wide) > 1:
        return "its attention has other axes than the batch's"
    batch = wide[0] if wide else 0
    axes: list[Axis] = [()] * len(sizes)
    axes[batch] = (Factor("N", sizes[batch] or Size.of("N")),)
    wanted: list[Axis] = [*[()] * (rank - 2), axes[batch], ()]
    if moved(body, chain, axes) != moved(body, [], wanted):
        return "its attention changes places"
    return Attended(scanned.index(source), len(sizes), batch, attention.keeps)


def attention_of(stacker: Stacker, name: str, match: Scanned) -> str:
    """(T, N, 1) of what is scanned along axis 0, as the guide's equations have it."""
    assert match.attention is not None
    _, rank, batch, keeps = match.attention
    if batch:
        rest = (index for index in range(1, rank + 1) if index != batch + 1)
        name = stacker.emit("Transpose", (name,), perm=(0, batch + 1, *rest))
    if rank == 1:
        name = stacker.emit("Unsqueeze", (name, stacker.constant([2])))
    if rank > 2:
        name = stacker.emit("Squeeze", (name, stacker.constant([*range(3, rank + 1)])))
    return attended(stacker, name, keeps, match.weights.iter.dtype)


def _scanned(stacker: Stacker, scan: Node, index: int) -> str:
    """A scanned value, with the steps along axis 0."""
    name = scan.inputs[scan.attributes["states"] + index]
    return stacker.moved(name, scan.attributes["input_axes"][index], 0)


def collected(y: str, axis: int, name: str, origin: tuple[NativeOp, ...]) -> Node:
    """The node that makes the value that a scan collects along an axis."""
    if axis == 0:
        return Node("Identity", (y,), (name,), {}, origin)
    return Node("Einsum", (y,), (name,), {"equation": moving(0, axis)}, origin)


def _one_step(graph: Graph, node: Node, body: Graph) -> Scanned | str:
    """The layer of which a body runs one step, or why there is none, as above."""
    count = node.attributes["states"]
    rnns = [Recurrent.of(each) for each in body.nodes if each.op == "Rnn"]
    if len(rnns) != 1:
        return ""
    (rnn,) = rnns
    spec, inputs = rnn.spec, [value.name for value in body.inputs]
    if spec.layers * spec.directions > 1 or rnn.cells or rnn.precision:
        return ""
    wide, deep = spec.recurrent_size, spec.hidden_size
    x = _behind(body, rnn.x, 2, 3, spec.input_size)
    given = ((rnn.h, wide), (rnn.c, deep))
    states = [_behind(body, name, 2, 4, width) for name, width in given if name]
    scanned = inputs[count : count + node.attributes["scanned"]]
    if x not in scanned or sorted(states) != sorted(inputs[:count]):
        return ""
    if count != len(spec.cell.states):
        return ""
    order = tuple(map(inputs.index, states))
    cells: tuple[bool, ...] = ()
    for at, value in enumerate(body.outputs):
        # A state of the next step is the layer's new one of the same kind.
        source = views_behind(body, value.name)[0]
        is_c = order.index(at) == 1 if at < count else source == rnn.c_final != ""
        cells += (is_c,) if at >= count else ()
        ranks = {rnn.c_final: 4} if is_c else {rnn.y: 3, rnn.h_final: 4}
        rank = ranks.get(source, 0)
        if not rank or not _behind(body, value.name, rank, 2, deep if is_c else wide):
            return "it collects something else than the state" if at >= count else ""
    at = scanned.index(x)
    if graph.types[node.inputs[count + at]].rank != 3:
        return "it may scan a value of other axes than (T, N, I)"
    attention = rnn.attention and _attended(body, _unturned(body, rnn.attention), scanned, 3)
    if attention and isinstance(attention, str):
        return attention
    given_to = (node, spec, rnn.layers[0], order, cells)
    return Scanned(*given_to, origin=node.origin, x=at, attention=attention or None)


def _unturned(body: Graph, name: str) -> Attention:
    """The attention that a layer reads, or that of which 1 - it is read."""
    node = body.producer(name, "Sub")
    one = body.constants.get(node.inputs[0]) if node else None
    if node is None or one is None or one.shape or one != 1:
        return Attention(name, keeps=False)
    return Attention(node.inputs[1], keeps=True)


def _behind(body: Graph, name: str, before: int, after: int, width: int) -> str:
    """The value that views make ``name`` of: (1, ..., N, width) with other numbers of ones."""
    source, chain = views_behind(body, name)
    rows: list[Axis] = [(Factor("N", Size.of("N")),), (Factor("O", Size.of(width)),)]
    given, wanted = ([*[()] * (rank - 2), *rows] for rank in (before, after))
    return source if moved(body, chain, given) == moved(body, [], wanted) else ""
