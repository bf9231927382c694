"""Turns a scan whose body is one recurrent cell, or one step of a layer, into a layer."""

from __future__ import annotations

from onernn.fuse_passes.bodies import declare_sizes, source_of
from onernn.fuse_passes.cell_formulas import step_of
from onernn.fuse_passes.rewriting import fresh, rewrite
from onernn.fuse_passes.stacked_steps import Stacker, moving
from onernn.fuse_passes.unrolled_cells import (
    Chain,
    add_layer,
    attend,
    fits,
    fuse_chain,
    is_one,
    no_state,
)
from onernn.fuse_passes.views import Axis, Factor, move_axes, views_of
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.records import NamedTuple
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Direction, RnnSpec
from onernn.ir.types import Size
from onernn.ir.weights import RnnWeights
from onernn.reorders.gates import GateLayout


class Attended(NamedTuple):
    """The attention of a scanned cell: the scanned input with index ``at``.

    A step of this input has ``rank`` axes, all of size 1 except the axis ``batch``. ``keeps``: see
    `Attention`.
    """

    at: int
    rank: int
    batch: int
    keeps: bool


class Scanned(NamedTuple):
    """The layer that a scan computes.

    ``states``: the indices of the scan's inputs h and c. ``cells``: for each scanned output,
    whether it is c instead of h. ``x``: the index of the scanned input that the layer reads.
    ``flat``: whether the body flattens the steps of x to rows (N, I). ``layout``: the layout of the
    gates if x is projected already, else None.
    """

    spec: RnnSpec
    weights: RnnWeights
    states: tuple[int, ...]
    cells: tuple[bool, ...]
    x: int
    flat: bool
    layout: GateLayout | None
    attention: Attended | None
    origin: tuple[NativeOp, ...]


@rewrite("scanned_cells", "Scan")
def fuse_scanned_cells(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Scan(h0, x; body: h = cell(x, h))``, such as MXNet's foreach, into ``Rnn(x, h0)``.

    The body may compute the cell with elementwise operators, or be a layer with one step, which is
    how PyTorch exports an LSTMCell.
    """
    layer = find_layer(graph, node)
    if not isinstance(layer, Scanned):
        return layer
    count = len(layer.states)
    stacker = Stacker(graph, node.outputs[0], layer.origin)

    def scan(index: int) -> str:
        name = node.inputs[node.attributes["states"] + index]
        return stacker.move(name, node.attributes["input_axes"][index], 0)

    x = scan(layer.x)
    if layer.flat:
        x = stacker.emit("Reshape", x, [0, 0, -1])
    values = {}
    if layer.attention:
        values["attention"] = attention_of(stacker, scan(layer.attention.at), layer)
    if any(layer.cells):
        values["cells"] = fresh(graph, f"{node.outputs[0]}/cells")
    states, ends = ([names[at] for at in layer.states] for names in (node.inputs, node.outputs))
    rnn = add_layer(stacker, layer.spec, layer.weights, x, states, ends, layer.layout, **values)
    axes = node.attributes["output_axes"]
    for is_c, axis, name in zip(layer.cells, axes, node.outputs[count:], strict=True):
        rows = rnn.cells if is_c else rnn.y
        if axis == 0:
            stacker.emit("Identity", rows, output=name)
        else:
            stacker.emit("Einsum", rows, output=name, equation=moving(0, axis))
    return stacker.splice(node)


def find_layer(graph: Graph, node: Node) -> Scanned | str | None:
    """Returns the layer that a scan computes, or why there is none; None if the scan has more than
    two scanned inputs.
    """
    if node.attributes["scanned"] > 2:
        return None
    ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
    body = declare_sizes(graph, node, "body")
    result = _one_step(graph, node, *_with_layer(graph, node, body))
    if not isinstance(result, Scanned):
        return result or "its body is not one recurrent cell"
    if len(ways) > 1:
        return "it scans in two directions"
    direction: Direction = "right2left" if ways == {1} else "left2right"
    spec = result.spec.one_layer(result.spec.input_size, direction)
    return result._replace(spec=spec)


def _with_layer(graph: Graph, node: Node, body: Graph) -> tuple[Graph, tuple[NativeOp, ...]]:
    """Returns the body with a layer of one step in place of a cell of elementwise operators.

    Also returns the native operators that the layer replaces.
    """
    count = node.attributes["states"]
    carried = [value.name for value in body.inputs[:count]]
    result = [source_of(body, value.name) for value in body.outputs]
    for step in filter(None, (step_of(body, each) for each in body.nodes)):
        wanted = [step.h, *([step.c] if step.c else [])]
        if sorted(result[:count]) != sorted(wanted) or not {*result} <= {*wanted}:
            continue
        before = [carried[result.index(name)] for name in wanted]
        for reading in step.readings:
            if [reading.h, *([step.c_before] if step.c else [])] != before:
                continue
            batch = next(iter(body.types[reading.x].counts), None)
            scales = [step.attention.name] if step.attention else []
            if not fits(body, reading) or no_state(body, scales, batch, "attention"):
                continue
            if not no_state(graph, node.inputs[:count], batch):
                origin = (*node.origin, *(op for each in step.nodes for op in each.origin))
                return fuse_chain(body, Chain((step,), (reading,))), tuple(dict.fromkeys(origin))
    return body, node.origin


def _one_step(graph: Graph, node: Node, body: Graph, origin: tuple[NativeOp, ...]) -> Scanned | str:
    """Returns the layer of which a body computes one step, or why there is none; "" if the body has
    no cell.
    """
    count = node.attributes["states"]
    rnns = [Recurrent.of(each) for each in body.nodes if each.op == "Rnn"]
    if len(rnns) != 1:
        return f"a step runs {len(rnns)} cells" if rnns else ""
    (rnn,) = rnns
    spec, inputs = rnn.spec, [value.name for value in body.inputs]
    if spec.layers * spec.directions > 1 or rnn.cells or rnn.precision:
        return ""
    wide, deep = spec.recurrent_size, spec.hidden_size
    given = ((rnn.h, wide), (rnn.c, deep))
    states = [_source(body, name, 2, 4, width) for name, width in given if name]
    scanned = inputs[count : count + node.attributes["scanned"]]
    order = body.producer(rnn.x, "GateLayout")
    x, chain = views_of(body, order.inputs[0] if order else rnn.x)
    if x not in scanned or sorted(states) != sorted(inputs[:count]):
        return ""
    flat = bool(chain) and chain[0].op == "Flatten"
    rank = graph.types[node.inputs[count + scanned.index(x)]].rank
    # If the rank is not known, the Gemm of a cell shows that a step of x has two axes.
    if not flat and rank != 3 and (rank or origin == node.origin):
        return "it may scan a value of other axes than (T, N, I)"
    if not _makes(body, chain[flat:], 2, 3, spec.input_size) or count != len(spec.cell.states):
        return ""
    states_at = tuple(map(inputs.index, states))
    cells: tuple[bool, ...] = ()
    for at, value in enumerate(body.outputs):
        # Each state of the next step must be the layer's new state of the same kind.
        source = views_of(body, value.name)[0]
        is_c = states_at.index(at) == 1 if at < count else source == rnn.c_final != ""
        cells += (is_c,) if at >= count else ()
        ranks = {rnn.c_final: 4} if is_c else {rnn.y: 3, rnn.h_final: 4}
        rank = ranks.get(source, 0)
        if not rank or not _source(body, value.name, rank, 2, deep if is_c else wide):
            return "it collects a different value than the state" if at >= count else ""
    attention = rnn.attention and _find_attention(body, rnn.attention, scanned)
    if attention and isinstance(attention, str):
        return attention
    return Scanned(
        spec,
        rnn.layers[0],
        states_at,
        cells,
        scanned.index(x),
        flat,
        order.attributes["layout"] if order else None,
        attention or None,
        origin,
    )


def _source(body: Graph, name: str, before: int, after: int, width: int) -> str:
    """Returns the value that views reshape to ``name`` without a change of order, else "".

    The returned value has the rank ``before``, and ``name`` has the rank ``after``. Both values
    have the shape (N, width), preceded by axes of size 1.
    """
    source, chain = views_of(body, name)
    return source if _makes(body, chain, before, after, width) else ""


def _makes(body: Graph, chain: list[Node], before: int, after: int, width: int) -> bool:
    rows: list[Axis] = [(Factor("N", Size.of("N")),), (Factor("O", Size.of(width)),)]
    given, wanted = ([*[()] * (rank - 2), *rows] for rank in (before, after))
    return move_axes(body, chain, given) == move_axes(body, [], wanted)


def _find_attention(body: Graph, name: str, scanned: list[str]) -> Attended | str:
    """Returns the scanned input that is the attention, or why there is none.

    Views, and possibly a subtraction from 1, must convert each step of this input to the attention
    (1, N, 1).
    """
    turned = body.producer(name, "Sub")
    keeps = turned is not None and is_one(body, turned.inputs[0])
    source, chain = views_of(body, turned.inputs[1] if turned and keeps else name)
    if source not in scanned:
        return "its attention is not a scanned value"
    sizes = body.types[source].shape or ()
    wide = [index for index, size in enumerate(sizes) if size is None or size.number != 1]
    if not sizes or len(wide) > 1:
        return "its attention has different axes than the batch"
    batch = wide[0] if wide else 0
    axes: list[Axis] = [()] * len(sizes)
    axes[batch] = (Factor("N", sizes[batch] or Size.of("N")),)
    if move_axes(body, chain, axes) != move_axes(body, [], [(), axes[batch], ()]):
        return "its attention is reordered"
    return Attended(scanned.index(source), len(sizes), batch, keeps)


def attention_of(stacker: Stacker, name: str, layer: Scanned) -> str:
    """Returns the attention (T, N, 1) as in oneDNN's equations, from a scanned input with T on axis
    0.
    """
    assert layer.attention is not None
    _, rank, batch, keeps = layer.attention
    if batch:
        rest = (index for index in range(1, rank + 1) if index != batch + 1)
        name = stacker.emit("Transpose", name, perm=(0, batch + 1, *rest))
    if rank == 1:
        name = stacker.emit("Unsqueeze", name, [2])
    if rank > 2:
        name = stacker.emit("Squeeze", name, [*range(3, rank + 1)])
    return attend(stacker, name, keeps, layer.weights.iter.dtype)
