"""Turns recurrent cells that a model contains once per step into one layer.

The cells are recognized by their structure, not by names (design/0011).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from onernn.fuse_passes.affine import Columns
from onernn.fuse_passes.cell_formulas import Reading, Step, step_of
from onernn.fuse_passes.rewriting import Pass, Tape, depends_on, fresh, rewrite
from onernn.fuse_passes.stacked_steps import Stacker, piece_of
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal
from onernn.ir.graph import Graph, Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders.gates import GateLayout


@dataclass(frozen=True, eq=False)
class Chain:
    """Consecutive steps, each of which reads the previous step's state, and one reading of each
    step. All readings have equal constants.
    """

    steps: tuple[Step, ...]
    readings: tuple[Reading, ...]


_Chains = WeakKeyDictionary[Graph, dict[str, Chain]]
_CHAINS: _Chains = WeakKeyDictionary()


@rewrite("unrolled_cells")
def fuse_unrolled_cells(graph: Graph, node: Node) -> Graph | Refusal | None:
    """Turns h1 = cell(x1, h0), h2 = cell(x2, h1), ... into an ``Rnn`` over the stacked inputs."""
    return _fuse_cells(graph, node, _CHAINS, {})


def unrolled_cells(states: Mapping[str, str]) -> Pass:
    """Returns the pass `fuse_unrolled_cells` for a model of one step.

    ``states``: for each input that is a state, the output that is the next state.
    """
    known: _Chains = WeakKeyDictionary()
    return rewrite("unrolled_cells")(partial(_fuse_cells, known=known, states=states))


def _fuse_cells(
    graph: Graph, node: Node, known: _Chains, states: Mapping[str, str]
) -> Graph | Refusal | None:
    if graph not in known:
        known[graph] = {chain.steps[0].h: chain for chain in chains(graph, states)}
    chain = known[graph].get(node.outputs[0])
    if chain is None:
        return None
    reason = obstacle(graph, chain)
    if not reason and not graph.is_dense(*_read(chain)):
        reason = "its input or state may be ragged"
    return Refusal(reason, chain.steps[-1].h) if reason else fuse_chain(graph, chain)


def fuse_chain(graph: Graph, chain: Chain) -> Graph:
    """Returns the graph with one layer in place of the steps."""
    (first, *_), (*_, last), reading = chain.steps, chain.steps, chain.readings[0]
    origin = {op for step in chain.steps for node in step.nodes for op in node.origin}
    stacker = Stacker(graph, last.h, tuple(sorted(origin)))
    x = stacker.stack(tuple(each.x for each in chain.readings))
    assert x is not None  # because `strict` is False
    spec, weights = layer(graph, first, reading)
    spec = replace(spec, direction="right2left" if x.backwards else "left2right")
    names, attention = (reading.h, *((first.c_before,) if first.c else ())), ""
    if first.attention:
        scales = (each.attention.name for each in chain.steps if each.attention)
        stacked = stacker.stack(tuple(scales))
        assert stacked is not None
        attention = stacked.name
        if stacked.backwards != x.backwards:
            attention = stacker.reverse(attention, 0)
        attention = attend(stacker, attention, first.attention.keeps, weights.iter.dtype)
    layout = find_projected_layout(graph, reading)
    ends = ("", last.c)
    rnn = add_layer(stacker, spec, weights, x.name, names, ends, layout, attention=attention)
    axis, rows, count = stacker.constant([0]), [rnn.y], len(chain.steps)
    if count > 1:
        rows = [fresh(graph, f"{last.h}/step{t}") for t in range(count)]
        split = Node("Split", (rnn.y,), tuple(rows), {"axis": 0}, stacker.origin)
        stacker.nodes.append(split)
    steps = chain.steps[::-1] if x.backwards else chain.steps
    for row, step in zip(rows, steps, strict=True):
        stacker.emit("Squeeze", row, axis, output=step.h)
    return stacker.replace(*(node for step in chain.steps for node in step.nodes))


def attend(stacker: Stacker, name: str, keeps: bool, dtype: np.dtype[Any]) -> str:
    """Returns the attention a as oneDNN's guide defines it, where 1 - a scales u."""
    if not keeps:
        return name
    # The layer of the opposite direction may have added this node.
    for user in stacker.graph.users(name):
        if user.op == "Sub" and user.inputs[1] == name and is_one(stacker.graph, user.inputs[0]):
            return user.outputs[0]
    return stacker.emit("Sub", stacker.constant(1, dtype), name)


def is_one(graph: Graph, name: str) -> bool:
    """Returns whether a value is the scalar constant 1."""
    one = graph.constants.get(name)
    return one is not None and one.shape == () and bool(one == 1)


def chains(graph: Graph, states: Mapping[str, str] = NOTHING) -> Iterator[Chain]:
    """Yields the chains of a graph, each as long as possible; ``states``: see `unrolled_cells`."""
    steps = {step.h: step for node in graph.nodes if (step := step_of(graph, node))}
    after: dict[str, tuple[Step, Reading]] = {}
    for step in steps.values():
        for reading in step.readings:
            before = steps.get(reading.h)
            if before and before.h not in after and _continues(before, step, reading):
                after[before.h] = (step, reading)
                break
    ends = [*states.values()]
    # Appends the values from which views, slices and joins make the next states.
    for name in ends:
        if (node := graph.producer(name)) and node.op in OPERATORS and OPERATORS[node.op].keeps:
            ends += (each for each in node.inputs if each not in ends)
    followers = {step.h for step, _ in after.values()}
    inner = {step.nodes[-2].outputs[0] for step, read in after.values() if read.projection}
    inner |= {steps[name].nodes[-2].outputs[0] for name in after if after[name][1].projection}
    for step in steps.values():
        if step.h in followers | inner:
            continue
        members, readings = [step], []
        while members[-1].h in after:
            step, reading = after[members[-1].h]
            members.append(step)
            readings.append(reading)
        first = _first_reading(graph, members[0], readings, states if step.h in ends else ())
        if first is not None:
            yield Chain(tuple(members), (first, *readings))


def _continues(before: Step, step: Step, reading: Reading) -> bool:
    return (
        (before.cell, before.update, before.activations, before.cell_clip)
        == (step.cell, step.update, step.activations, step.cell_clip)
        and _keeps(before) == _keeps(step)
        and before.c == step.c_before
        and any(each.constants == reading.constants for each in before.readings)
    )


def _keeps(step: Step) -> bool | None:
    return step.attention and step.attention.keeps


def _first_reading(
    graph: Graph, step: Step, readings: list[Reading], states: Collection[str]
) -> Reading | None:
    """Returns the most likely reading of the first step for which `fits` is true; None if there is
    none, or if two are equally likely. If there are later steps, the reading has the constants of
    their ``readings``.

    ``states``: the inputs that are known to be states.
    """
    fitting = [r for r in step.readings if fits(graph, r) and r.x not in graph.constants]
    known = [r for r in fitting if _source(graph, r.h) in states]
    if readings:
        fitting = [r for r in fitting if r.constants == readings[0].constants]
    elif len(known) == 1:
        fitting = known
    elif len(step.cell.gates) == 1 or step.readings[0].projection:
        # The cell adds two projections, and nothing shows which one reads the state. Nor does
        # anything show that a projection of an LSTM's output is its state.
        return None
    else:  # h more likely comes from the same value as c, or from an input
        c = _source(graph, step.c_before) if step.c else ""
        sources = {reading.h: _source(graph, reading.h) for reading in fitting}
        fitting.sort(key=lambda r: (sources[r.h] == c) + (graph.producer(sources[r.h]) is None))
    return fitting[-1] if fitting else None


def _source(graph: Graph, name: str) -> str:
    """Returns the value whose elements operators only moved to make this value."""
    while (node := graph.producer(name)) is not None and node.op in OPERATORS:
        if not OPERATORS[node.op].keeps:
            break
        name = node.inputs[0]
    return name


def fits(graph: Graph, reading: Reading) -> bool:
    """Returns whether the state is as wide as each gate, or as the projection of h."""
    if not all(columns.constant for columns in reading.iter):
        return False
    widths = {columns.stop - columns.start for columns in (*reading.layer, *reading.iter)}
    rows = {len(columns.of(graph)) for columns in reading.iter}
    result, projection = widths, reading.projection
    if projection and {len(projection.of(graph))} == widths:
        result = {projection.stop - projection.start}
    inputs = {len(columns.of(graph)) for columns in reading.layer if columns.constant}
    alike = len(inputs) == 1 and all(columns.constant for columns in reading.layer)
    return (
        len(widths) == 1 and rows == result and bool(alike or find_projected_layout(graph, reading))
    )


def find_projected_layout(graph: Graph, reading: Reading) -> GateLayout | None:
    """Returns the layout of the gates if the input is projected already, else None."""
    if any(columns.constant for columns in reading.layer):
        return None
    first, gates = reading.layer[0], len(reading.layer)
    width = first.stop - first.start
    places = [columns.start for columns in reading.layer]
    if sorted(places) != [*range(0, gates * width, width)]:
        return None
    if graph.types[reading.x].counts[1:] != (gates * width,):
        return None
    signs = (c.sign * s for c, s in zip(reading.layer, reading.signs, strict=True))
    return GateLayout(tuple(start // width for start in places), tuple(signs))


def _read(chain: Chain) -> list[str]:
    xs = [reading.x for reading in chain.readings]
    xs += [step.attention.name for step in chain.steps if step.attention]
    return [*xs, chain.readings[0].h, chain.steps[0].c_before]


def obstacle(graph: Graph, chain: Chain) -> str:
    """Returns why a chain of dense values cannot become one layer, or "" if it can."""
    arrays = [columns.of(graph) for columns in _columns(chain.readings[0])]
    if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype.kind != "f":
        return "its constants have different dtypes"
    inside = {id(node) for step in chain.steps for node in step.nodes}
    free = {step.h for step in chain.steps} | {chain.steps[-1].c}
    for step in chain.steps:
        for node in step.nodes:
            for name in node.outputs:
                if name in free:
                    continue
                if graph.is_output(name) or any(id(u) not in inside for u in graph.users(name)):
                    return f"{name!r} has another user"
    result = {step.h for step in chain.steps} | {step.c for step in chain.steps if step.c}
    if depends_on(graph, _read(chain), result):
        return "its input depends on its own output"
    fed = {value.name for value in graph.inputs}
    if not all(depends_on(graph, [reading.x], fed) for reading in chain.readings):
        return "its input depends on constants only"  # the input may have one row for all sequences
    first = chain.readings[0]
    piece = piece_of(graph, first.x)
    shape = [*graph.types[piece[0] if piece else first.x].counts]
    if piece and len(shape) > 1:
        del shape[piece[1]]
    batch = shape[0] if shape else None
    scales = [step.attention.name for step in chain.steps if step.attention]
    return no_state(graph, (first.h, chain.steps[0].c_before), batch) or no_state(
        graph, scales, batch, "attention"
    )


def no_state(graph: Graph, names: Iterable[str], batch: int | None, what: str = "state") -> str:
    """Returns why a value cannot be a state (N, O) of ``batch`` sequences, or "" if all values can.

    An operator broadcasts one row, but a layer needs a row for each sequence. A state of zeros may
    have one row, because the layer then gets no initial state.
    """
    for name in filter(None, names):
        array, known = graph.constants.get(name), graph.types[name].counts
        rank = graph.types[name].rank
        if rank not in (None, 2):
            return f"{name!r} has {rank} axes, a state has (N, O)"
        zeros = array is not None and not array.any()
        if known[:1] == (1,) and batch != 1 and not zeros:
            return f"{name!r} is one {what} for all sequences"
        if batch == 1 and known[:1] != (1,) and not (zeros and len(known) < 2):
            return f"{name!r} may hold several {what}s for one sequence"
    return ""


def _columns(reading: Reading) -> list[Columns]:
    projection = [reading.projection] if reading.projection else []
    biases = [columns for row in reading.biases for columns in row]
    layer = [columns for columns in reading.layer if columns.constant]
    return [*layer, *reading.iter, *biases, *projection, *reading.peephole]


def layer(graph: Graph, step: Step, reading: Reading) -> tuple[RnnSpec, RnnWeights]:
    """Returns the spec and the weights of the layer that repeats this step, in the direction
    left2right.
    """

    def matrix(columns: Iterable[Columns]) -> Array:
        gates = [s * c.of(graph) for s, c in zip(reading.signs, columns, strict=True)]
        return np.stack(gates, axis=1)[None, None]

    recurrent = matrix(reading.iter)
    whole = None if find_projected_layout(graph, reading) else matrix(reading.layer)
    hidden = recurrent.shape[-1]
    rows = np.zeros((len(reading.biases), hidden), recurrent.dtype)
    for row, biases in zip(rows, reading.biases, strict=True):
        for columns in biases:
            row += columns.of(graph)[0]
    rows[: len(reading.signs)] *= np.array(reading.signs, rows.dtype)[:, None]
    projection = reading.projection and reading.projection.of(graph)[None, None]
    width = None if projection is None else projection.shape[-1]
    inputs = len(reading.layer) * hidden if whole is None else whole.shape[2]
    spec = RnnSpec(
        step.cell,
        inputs,
        hidden,
        projection_size=width,
        peephole=bool(reading.peephole),
        activations=step.activations,
        update=step.update,
        cell_clip=step.cell_clip,
    )
    rows_of_c = [columns.of(graph)[0] for columns in reading.peephole]
    peephole = np.stack(rows_of_c)[None, None] if rows_of_c else None
    weights = RnnWeights(whole, recurrent, rows[None, None], peephole, projection)
    weights.check(spec)
    return spec, weights


def add_layer(
    to: Tape,
    spec: RnnSpec,
    weights: RnnWeights,
    x: str,
    states: Iterable[str],
    ends: Iterable[str],
    layout: GateLayout | None,
    **values: str,
) -> Recurrent:
    """Adds a layer over x.

    ``states``: the initial states (N, O); zeros are omitted. ``ends``: names for the final states.
    ``layout``: the gates' layout of an x that is projected already.
    """

    def initial(name: str) -> str:
        array = to.graph.constants.get(name)
        if array is not None and not array.any():
            return ""
        return to.emit("Unsqueeze", name, [0, 1])

    x = to.emit("GateLayout", x, layout=layout) if layout else x
    begin = tuple(map(initial, states))
    y, *finals = (fresh(to.graph, f"{to.stem}/{name}") for name in "yhc"[: 1 + len(begin)])
    rnn = Recurrent(spec, weights, x, y, origin=to.origin, **values)  # type: ignore[arg-type]
    rnn = rnn.with_states(begin, tuple(finals))
    to.nodes.append(rnn.node())
    for end, final in zip(ends, rnn.finals, strict=False):
        if end:
            to.emit("Squeeze", final, [0, 1], output=end)
    return rnn
