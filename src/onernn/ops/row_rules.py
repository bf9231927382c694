"""Where operators leave the rows of a batch: rules for `fuse_passes.row_independence`.

A rule ``rule(flow, node)`` returns a `State` for all outputs of a node, or a tuple with one for
each output. It raises `UnknownRows` if a row of the result may depend on other rows. Each rule
checks that constants do not tell one place in the batch from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onernn.ir.graph import Node
from onernn.ir.operator import OPERATORS
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import LodName, Size
from onernn.ops.rules import ONE, at_axis, integers


@dataclass(frozen=True)
class Rows:
    """The place of rows in a value: along ``axis``, entries [inner * n, inner * (n + 1)) belong to
    row n, and after the last row the first one may follow again.

    ``lod``: the value has one entry per step on axis 0, and these offsets say which steps are of
    one row; the outermost level has one entry per row.
    """

    axis: int
    inner: Size = ONE
    lod: tuple[LodName, ...] = ()


@dataclass(frozen=True)
class Alike:
    """A value that is the same for every row and for any number of rows.

    ``uniform``: all elements are equal. ``sized``: only then, the shape depends on the number of
    rows.
    """

    uniform: bool = False
    sized: bool = False


class UnknownRows(Exception):
    """No rule shows that rows are independent. ``certain``: the operator combines rows."""

    def __init__(self, where: Node | str, why: str, certain: bool = False) -> None:
        super().__init__(f"{where.label if isinstance(where, Node) else where} {why}")
        self.certain = certain


State = Rows | Alike
ALIKE, UNIFORM = Alike(), Alike(uniform=True)
SIZED = Alike(uniform=True, sized=True)


def stretched(flow: Any, node: Node, names: Iterable[str] | None = None) -> State:
    """The rows of values that broadcasting stretches to one shape."""
    names = [*filter(None, node.inputs)] if names is None else [*names]
    rank = flow.rank(node, node.outputs[0])
    states = {name: flow[name] for name in names}
    shift = {name: rank - flow.rank(node, name) for name in names}
    places = [
        Rows(state.axis + shift[name], state.inner, state.lod)
        for name, state in states.items()
        if isinstance(state, Rows)
    ]
    if not places:
        return spread(flow, node, {name: shift[name] for name in names})
    first = places[0]
    for place in places[1:]:
        if (place.axis, place.inner, not place.lod) != (first.axis, first.inner, not first.lod):
            raise UnknownRows(node, "combines values whose rows are on different axes")
        flow.meet(node, first.lod, place.lod)
    for name, state in states.items():
        if isinstance(state, Alike):
            flow.check_alike(node, name, first.axis - shift[name])
    return first


def spread(flow: Any, node: Node, shift: dict[str, int]) -> State:
    """Rows that an operator makes of values without rows, as Expand and sums with zeros do."""
    shape = flow.shape(node, node.outputs[0])
    axes = [axis for axis, size in enumerate(shape) if not flow.is_own(size)]
    if not axes:
        return UNIFORM if all(flow[name].uniform for name in shift) else ALIKE
    if len(axes) > 1 or shape[axes[0]] != flow.count:
        raise UnknownRows(node, "has the number of rows in its shape")
    for name, by in shift.items():
        flow.check_alike(node, name, axes[0] - by)
    return Rows(axes[0])


def _check_sizes(flow: Any, node: Node) -> None:
    """Raises `UnknownRows` if a row could choose the shape of the result."""
    if None in flow.shape(node, node.outputs[0]):
        flow.expect_alike(node, node.inputs[1:])


def view(flow: Any, node: Node) -> State:
    """The same elements in the same order under another shape."""
    x, out = node.inputs[0], node.outputs[0]
    state = flow[x]
    _check_sizes(flow, node)
    if isinstance(state, Alike):
        if state.uniform:
            return SIZED
        raise UnknownRows(node, "gives a constant a shape that depends on the number of rows")
    before, after = flow.shape(node, x), flow.shape(node, out)
    front = before[: state.axis + 1]
    if None not in front and after[: state.axis + 1] == front:
        return state
    stride = flow.volume(before[state.axis + 1 :])
    stride = None if stride is None or state.lod else stride * state.inner
    tail: Size | None = ONE
    for axis in reversed(range(len(after))):
        if stride is None or tail is None:
            break
        inner = quotient(stride, tail)
        if inner is not None and quotient(after[axis], inner * flow.count) is not None:
            return Rows(axis, inner)
        tail = None if after[axis] is None else tail * after[axis]
    raise UnknownRows(node, "changes the shape so that it is not known where the rows are")


def quotient(size: Size | None, by: Size) -> Size | None:
    """The exact quotient, None if it is not known to be a whole number."""
    if size is None or by == Size(()):
        return None
    if size == by:
        return ONE
    try:
        return size // by
    except ValueError:
        return None


def axes(flow: Any, node: Node) -> State:
    """An operator along axes of its first input: the rows must be on another axis."""
    operator, (x, *others) = OPERATORS[node.op], node.inputs
    state, rank = flow[x], flow.rank(node, x)
    flow.expect_alike(node, others)
    if state == SIZED and operator.kind == "moves":
        return SIZED
    if isinstance(state, Alike):
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    numbers = [flow.types[name].numbers if name else None for name in others]
    for place, (name, given) in enumerate(zip(others, numbers, strict=True), 1):
        if name and given is None and operator.slot(place).axes:
            raise UnknownRows(node, "works along axes that are computed at run time")
    mixed = operator.mixed(node.attrs, rank, *numbers)
    if mixed is None:
        raise UnknownRows(node, "works along axes that are computed at run time")
    along = {at_axis(int(axis), rank) for axis in mixed}
    if state.axis in along:
        dtype = flow.types[x].dtype or ""
        certain = operator.kind == "mixes" and dtype.startswith("float")
        raise UnknownRows(node, f"combines what is on axis {state.axis}, that of the rows", certain)
    left = flow.rank(node, next(filter(None, node.outputs)))
    if left == rank:
        return state
    if left != rank - len(along):
        raise UnknownRows(node, "has a result of another rank")
    return Rows(state.axis - sum(axis < state.axis for axis in along), state.inner, state.lod)


def normalized(flow: Any, node: Node) -> State:
    """`axes` of a LayerNormalization: scale and bias must not differ along the rows' axis."""
    x, *others = node.inputs
    state = axes(flow, node)
    if isinstance(state, Rows):
        for name in filter(None, others):
            flow.check_alike(node, name, state.axis - flow.rank(node, x) + flow.rank(node, name))
    return state


def joined(flow: Any, node: Node) -> State:
    state = stretched(flow, node)
    if isinstance(state, Rows) and state.axis == at_axis(
        node.attrs.axis, flow.rank(node, node.inputs[0])
    ):
        raise UnknownRows(node, f"puts rows of axis {state.axis} at other places")
    return state


def batch(flow: Any, node: Node) -> tuple[State, ...]:
    """An operator that computes each entry of axis 0 by itself."""
    x, *others = node.inputs
    state = flow[x]
    flow.expect_alike(node, others)
    if isinstance(state, Alike):
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    if state.axis:
        raise UnknownRows(node, f"has its batch on axis 0, and rows on axis {state.axis}", True)
    return (state,)  # further outputs hold positions in the whole batch


def gates(flow: Any, node: Node) -> State:
    """Columns in another order."""
    state: State = flow[node.inputs[0]]
    if isinstance(state, Rows) and state.axis == flow.rank(node, node.inputs[0]) - 1:
        raise UnknownRows(node, "changes the order of the rows")
    return state


def quantized(flow: Any, node: Node) -> State:
    """Scales and zero points are one number each, or one for each entry of an axis."""
    x, *others = node.inputs
    state: State = flow[x]
    flow.expect_alike(node, others)
    single = all(flow.volume(flow.shape(node, name)) == ONE for name in filter(None, others))
    if isinstance(state, Alike) or single:
        return state
    if state.axis == at_axis(node.attrs.axis, flow.rank(node, x)):
        raise UnknownRows(node, "has a scale for each place in the batch", True)
    return state


def product(flow: Any, node: Node) -> State:
    """A product of matrices, with axes of batches before the last two axes."""
    a, b, *others = node.inputs
    flow.expect_alike(node, others)
    for name in filter(None, others):
        if flow.volume(flow.shape(node, name)) != ONE:
            raise UnknownRows(node, "has a zero point for each row or column")
    ranks = {name: flow.rank(node, name) for name in (a, b)}
    rank, found = flow.rank(node, node.outputs[0]), list[tuple[int, Rows]]()
    for name, summed in ((a, 0), (b, 1 if ranks[b] > 1 else 0)):
        state = flow[name]
        if isinstance(state, Alike):
            continue
        behind = ranks[name] - 1 - state.axis
        if behind == summed:
            raise UnknownRows(node, "sums over the rows", True)
        if min(ranks.values()) < 2 and (name == b or behind != 1 or ranks[a] > 2):
            raise UnknownRows(node, "multiplies vectors")
        other = b if name == a else a
        if behind > 1 and isinstance(flow[other], Alike):
            flow.check_alike(node, other, ranks[other] - 1 - behind)
        found.append((behind - (ranks[b] == 1), state))
    if not found:
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    behind, first = found[0]
    if len(found) > 1 and (behind < 2 or found[1] != found[0] or first.lod):
        raise UnknownRows(node, "multiplies rows with each other", behind < 2)
    return Rows(rank - 1 - behind, first.inner, first.lod)


def gemm(flow: Any, node: Node) -> State:
    a, b, c = (*node.inputs, "")[:3]
    state = flow[a]
    flow.expect_alike(node, [b])
    if isinstance(state, Alike):
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    if state.axis != bool(node.attrs.transA):
        raise UnknownRows(node, "sums over the rows", True)
    result = Rows(0, state.inner, state.lod)
    if not c:
        return result
    if isinstance(added := flow[c], Alike):
        flow.check_alike(node, c, flow.rank(node, c) - 2)
    elif added != result or flow.rank(node, c) != 2:
        raise UnknownRows(node, "adds rows that are on another axis")
    else:
        flow.meet(node, result.lod, added.lod)
    return result


def gathered(flow: Any, node: Node) -> State:
    table, indices = node.inputs
    data, chosen = flow[table], flow[indices]
    axis = at_axis(node.attrs.axis, flow.rank(node, table))
    if flow.is_alike(table) and isinstance(chosen, Rows):
        if chosen.lod and axis:
            raise UnknownRows(node, "puts steps on another axis")
        return Rows(axis + chosen.axis, chosen.inner, chosen.lod)
    if isinstance(data, Rows) and flow.is_alike(indices) and data.axis != axis:
        more = flow.rank(node, indices) - 1
        return Rows(data.axis + more * (data.axis > axis), data.inner, data.lod)
    raise UnknownRows(node, "takes entries of the batch by their position")


def gathered_nd(flow: Any, node: Node) -> State:
    table, indices = node.inputs
    data, chosen = flow[table], flow[indices]
    batched = node.attrs.batch_dims
    if isinstance(chosen, Rows) and chosen.axis < flow.rank(node, indices) - 1:
        own = chosen.axis < batched and not chosen.lod
        if data == chosen if own else flow.is_alike(table):
            return chosen
    raise UnknownRows(node, "takes entries of the batch by their position")


def padded(flow: Any, node: Node) -> State:
    x, *others = node.inputs
    state: State = flow[x]
    flow.expect_alike(node, others)
    pads, rank = flow.types[node.inputs[1]].numbers, flow.rank(node, x)
    given = integers(flow.types[node.input(3)]) if node.input(3) else range(rank)
    around = {at_axis(axis, rank) for axis in given or ()}
    if pads is not None:
        pairs = zip(given or (), pads.reshape(2, -1).T, strict=True)
        around = {at_axis(axis, rank) for axis, pair in pairs if pair.any()}
    if isinstance(state, Alike) or state.axis in around:
        raise UnknownRows(node, "adds entries to the batch")
    return state


def expanded(flow: Any, node: Node) -> State:
    _check_sizes(flow, node)
    return stretched(flow, node, node.inputs[:1])


def filled(flow: Any, node: Node) -> State:
    return SIZED


def reversed_steps(flow: Any, node: Node) -> State:
    x, lengths = node.inputs
    state = flow[x]
    if not isinstance(state, Rows) or state.axis != node.attrs.batch_axis:
        raise UnknownRows(node, "reverses along the axis of the rows", isinstance(state, Rows))
    flow.expect_batch(node, lengths, 0, state)
    return state


def one_hot(flow: Any, node: Node) -> State:
    indices, *others = node.inputs
    state = flow[indices]
    flow.expect_alike(node, others)
    if isinstance(state, Alike):
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    new = at_axis(node.attrs.axis, flow.rank(node, indices) + 1)
    return Rows(state.axis + (state.axis >= new), state.inner, state.lod)


def same_data(flow: Any, node: Node) -> State:
    """The first input's values: Identity, and steps without their offsets."""
    state: State = flow[node.inputs[0]]
    return state


# Sequences: the outermost level of offsets has one entry per row.


def _words(flow: Any, node: Node, name: str) -> Rows:
    state = flow[name]
    if isinstance(state, Rows) and state.lod:
        return state
    raise UnknownRows(node, "reads offsets that are not those of the rows")


def each_sequence(flow: Any, node: Node) -> State:
    """An operator within the sequences of its first input."""
    x, *others = node.inputs
    flow.expect_alike(node, others)
    return _words(flow, node, x)


def like_words(flow: Any, node: Node) -> State:
    x, like = (_words(flow, node, name) for name in node.inputs)
    flow.meet(node, x.lod, like.lod)
    return like


def pooled(flow: Any, node: Node) -> State:
    return Rows(0, ONE, _words(flow, node, node.inputs[0]).lod[:-1])


def unpadded(flow: Any, node: Node) -> State:
    padded, lengths = node.inputs
    state, major = flow[padded], 1 if node.attrs.time_major else 0
    if not isinstance(state, Rows) or state.axis != major or state.inner != ONE or state.lod:
        raise UnknownRows(node, "has sequences that are not the rows")
    flow.expect_batch(node, lengths, 0, state)
    return Rows(0, ONE, flow.types[node.outputs[0]].lod or ())


def padded_words(flow: Any, node: Node) -> State:
    """Steps as rows of one length; that of the longest row is not a row's own."""
    x, like = (*node.inputs, "")[:2]
    lod, major = _words(flow, node, x).lod, 1 if node.attrs.__dict__.get("time_major") else 0
    shape = flow.shape(node, node.outputs[0])
    if len(lod) > 1 or shape[1 - major] is None or not flow.is_own(shape[1 - major]):
        raise UnknownRows(node, "pads rows to the longest one of the batch")
    if node.op == "SequencePad" and like:
        flow.expect_batch(node, like, major, Rows(major))
    elif node.op == "SequenceFill":
        flow.expect_alike(node, [like])
    return Rows(major)


def expanded_words(flow: Any, node: Node) -> State:
    x, like = node.inputs
    rows, words = flow[x], _words(flow, node, like)
    if len(words.lod) > 1 or rows != Rows(0):
        raise UnknownRows(node, "repeats sequences")
    return words


def joined_words(flow: Any, node: Node) -> State:
    for name in node.inputs:
        if len(_words(flow, node, name).lod) > 1:
            raise UnknownRows(node, "joins sequences of several levels")
    return Rows(0, ONE, flow.types[node.outputs[0]].lod or ())


# Layers and control flow.


def layer(flow: Any, node: Node) -> tuple[State, ...]:
    rnn = Recurrent.of(node)
    state = flow[rnn.x]
    if not isinstance(state, Rows):
        raise UnknownRows(node, "reads a value that has no rows")
    if len(state.lod) > 1 or bool(state.lod) != bool(flow.types[rnn.x].lod):
        raise UnknownRows(node, "has sequences that are not the rows")
    if not state.lod and state.axis != 1:
        raise UnknownRows(node, f"has its batch on axis 1, and rows on axis {state.axis}", True)
    for name in filter(None, (rnn.h, rnn.c)):
        flow.expect_batch(node, name, 2, state)
    if rnn.attention:
        flow.expect_batch(node, rnn.attention, state.axis, state)
    final = Rows(2, state.inner)
    return tuple(final if name in rnn.finals else state for name in node.outputs)


def quantized_layer(flow: Any, node: Node) -> tuple[State, ...]:
    x, w, r, b, lengths, h, c, *others = node.inputs
    state = flow[x]
    flow.expect_alike(node, [w, r, b, *others])
    if not isinstance(state, Rows) or state.axis != 1 or node.attrs.together:
        raise UnknownRows(node, "has one scale for several rows", True)
    for name, axis in ((lengths, 0), (h, 1), (c, 1)):
        if name:
            flow.expect_batch(node, name, axis, state)
    return (Rows(2, state.inner), *(Rows(1, state.inner),) * (len(node.outputs) - 1))


def scan(flow: Any, node: Node) -> tuple[State, ...]:
    attrs, count = node.attrs, node.attrs.states
    end = count + attrs.scanned
    elements = list[State]()
    for name, axis in zip(node.inputs[count:end], attrs.input_axes, strict=True):
        state, along = flow[name], at_axis(axis, flow.rank(node, name))
        if not flow.is_own(flow.shape(node, name)[along]):
            raise UnknownRows(node, "takes as many turns as there are rows", True)
        if isinstance(state, Rows):
            if state.axis == along:
                raise UnknownRows(node, "goes from row to row", True)
            state = Rows(state.axis - (state.axis > along), state.inner, state.lod)
        elements.append(state)
    rest = [flow[name] for name in node.inputs[end:]]
    states, result = _turns(flow, node, 0, [], node.inputs[:count], [*elements, *rest])
    pairs = zip(result, attrs.output_axes, strict=True)
    return (*states, *(_stacked(flow, node, each, axis) for each, axis in pairs))


def loop(flow: Any, node: Node) -> tuple[State, ...]:
    flow.expect_alike(node, node.inputs[:2])
    end = 2 + node.attrs.carried
    rest = [flow[name] for name in node.inputs[end:]]
    states, result = _turns(flow, node, 1, [ALIKE, ALIKE], node.inputs[2:end], rest)
    return (*states, *(_stacked(flow, node, each, 0) for each in result))


def branches(flow: Any, node: Node) -> tuple[State, ...]:
    flow.expect_alike(node, node.inputs[:1])
    taken = 1 + node.attrs.then_taken
    given = [flow[name] for name in node.inputs]
    then = flow.inside(node, "then_branch", given[1:taken])
    if then != flow.inside(node, "else_branch", given[taken:]):
        raise UnknownRows(node, "has rows on different axes in its branches")
    return tuple(then)


def _turns(
    flow: Any, node: Node, skip: int, front: list[State], begin: Sequence[str], rest: list[State]
) -> tuple[list[State], list[State]]:
    """Where the values have rows that every turn hands on, and those that are gathered.

    A value is handed on with its rows on one axis; the first one may be alike for all rows. The
    first ``skip`` outputs of the body say whether another turn follows.
    """
    states = [flow[name] for name in begin]
    for _ in range(len(states) + 2):
        result = flow.inside(node, "body", [*front, *states, *rest])
        if any(each not in (ALIKE, UNIFORM) for each in result[:skip]):
            raise UnknownRows(node, "goes on for as long as the rows together say")
        handed = result[skip : skip + len(states)]
        if handed == states:
            return states, result[skip + len(states) :]
        for index, (name, after) in enumerate(zip(begin, handed, strict=True)):
            if after != states[index] and isinstance(after, Rows):
                flow.expect_batch(node, name, after.axis, after)
                states[index] = after
    raise UnknownRows(node, "hands rows on to different axes")


def _stacked(flow: Any, node: Node, state: State, axis: int) -> State:
    if isinstance(state, Alike):
        return state
    if axis < 0 or state.lod:
        raise UnknownRows(node, "gathers rows on an axis that is not known")
    return Rows(state.axis + (state.axis >= axis), state.inner)


FAMILIES: dict[str, Callable[[Any, Node], State | tuple[State, ...]]] = {
    "stretched": stretched,
    "view": view,
    "axes": axes,
    "joined": joined,
    "batch": batch,
}
