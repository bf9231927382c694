"""Rules that find the rows of a batch in an operator's results, for `fuse_passes.row_independence`.

`follow` derives the rows from an operator's paths (see `onernn.ir.operator.Path`). A rule
``rule(flow, node)`` returns a `State` for all outputs of a node, or a tuple with one for each
output. It raises `UnknownRows` if a row of the result may depend on other rows of the batch. Each
rule checks that constants are the same for every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onernn.ir.graph import Node, input_types
from onernn.ir.operator import OPERATORS, Path, at_axis
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import LodName, Size
from onernn.ops.rules import ONE, quotient, volume


@dataclass(frozen=True)
class Rows:
    """A value with rows along ``axis``: entries [inner * n, inner * (n + 1)) belong to row n.

    The axis may contain all rows several times, one copy after another. ``lod``: if not (), axis
    0 has one entry per step, and these offsets divide the steps into rows; the outermost level has
    one entry per row.
    """

    axis: int
    inner: Size = ONE
    lod: tuple[LodName, ...] = ()


@dataclass(frozen=True)
class Alike:
    """A value that is the same for every row and for any number of rows.

    ``uniform``: all elements are equal. ``sized``: the shape depends on the number of rows, which
    requires ``uniform``.
    """

    uniform: bool = False
    sized: bool = False


class UnknownRows(Exception):
    """Raised if no rule shows that the rows of a result are independent. ``certain``: whether the
    operator is known to combine rows.
    """

    def __init__(self, where: Node | str, why: str, certain: bool = False) -> None:
        super().__init__(f"{where.label if isinstance(where, Node) else where} {why}")
        self.certain = certain


State = Rows | Alike
ALIKE, UNIFORM = Alike(), Alike(uniform=True)
SIZED = Alike(uniform=True, sized=True)


def follow(flow: Any, node: Node) -> tuple[State, ...]:
    """Returns a `State` for each output of a node, derived from its operator's paths. Raises
    `UnknownRows` if the paths do not show the rows.
    """
    operator, (x, *_) = OPERATORS[node.op], node.inputs
    types = input_types(flow.types, node)
    known = operator.paths and operator.paths(node.attrs, *types)
    if known is None:
        raise UnknownRows(node, f"is a {node.op} whose axes are not known before a run")
    paths: list[tuple[str, Path]] = []
    rows, certain = list[Rows](), operator.kind == "mixes" and _computes(flow, x)
    for index, name in enumerate(node.inputs):
        path = known[index] if index < len(known) else ()
        if not name or operator.slot(index).shape and None not in flow.shape(node, node.outputs[0]):
            continue
        paths.append((name, path))
        state = flow[name]
        if isinstance(state, Rows):
            to = path[state.axis] if path else None
            if to is None or state.lod and to:
                where = f"on axis {state.axis}, the axis of the rows"
                raise UnknownRows(
                    node, f"combines or moves elements {where}", certain and bool(path)
                )
            rows.append(Rows(to, state.inner, state.lod))
    spreads = operator.kind == "elementwise" or any(slot.shape for slot in operator.slots)
    if not rows and spreads:
        return (spread(flow, node, paths),) * len(node.outputs)
    if not rows and flow[x] == SIZED and operator.kind in ("view", "moves"):
        return (SIZED,) * len(node.outputs)
    if not rows:
        raise UnknownRows(node, "reads a value whose shape depends on the number of rows")
    first = rows[0]
    for each in rows[1:]:
        if (each.axis, each.inner, not each.lod) != (first.axis, first.inner, not first.lod):
            raise UnknownRows(node, "combines values whose rows are on different axes", certain)
        flow.meet(node, first.lod, each.lod)
    for name, path in paths:
        if isinstance(flow[name], Alike) and first.axis in path:
            flow.check_alike(node, name, path.index(first.axis))
        elif isinstance(flow[name], Alike):
            flow.expect_alike(node, [name])
    ranks = [flow.types[name].rank if name else None for name in node.outputs]
    # Broadcasting aligns the last axes.
    shifts = ((ranks[0] or 0) - (rank or ranks[0] or 0) for rank in ranks)
    return tuple(Rows(first.axis - shift, first.inner, first.lod) for shift in shifts)


def _computes(flow: Any, name: str) -> bool:
    """Returns whether a value has a known dtype other than bool, int32 and int64, the dtypes of
    conditions and sizes.
    """
    return flow.types[name].dtype not in (None, "bool", "int32", "int64")


def spread(flow: Any, node: Node, paths: Sequence[tuple[str, Path]]) -> State:
    """Returns the `State` of a result, such as Expand's, whose inputs are the same for all rows."""
    shape = flow.shape(node, node.outputs[0])
    axes = [axis for axis, size in enumerate(shape) if not flow.is_own(size)]
    if not axes:
        return UNIFORM if all(flow[name].uniform for name, _ in paths) else ALIKE
    if len(axes) > 1 or shape[axes[0]] != flow.count:
        raise UnknownRows(node, "has the number of rows in its shape")
    for name, path in paths:
        if axes[0] in path:
            flow.check_alike(node, name, path.index(axes[0]))
    return Rows(axes[0])


def view(flow: Any, node: Node) -> State:
    """Returns the `State` of a result that has the input's elements in the same order, in another
    shape.
    """
    x, out = node.inputs[0], node.outputs[0]
    state = flow[x]
    if None in flow.shape(node, out):  # the data of a row could determine the shape of the result
        flow.expect_alike(node, node.inputs[1:])
    if isinstance(state, Alike):
        if state.uniform:
            return SIZED
        raise UnknownRows(node, "reshapes a constant by the number of rows")
    before, after = flow.shape(node, x), flow.shape(node, out)
    front = before[: state.axis + 1]
    if None not in front and after[: state.axis + 1] == front:
        return state
    stride = volume(before[state.axis + 1 :])
    stride = None if stride is None or state.lod else stride * state.inner
    tail: Size | None = ONE
    for axis in reversed(range(len(after))):
        if stride is None or tail is None:
            break
        inner = quotient(stride, tail)
        if inner is not None and quotient(after[axis], inner * flow.count) is not None:
            return Rows(axis, inner)
        tail = None if after[axis] is None else tail * after[axis]
    raise UnknownRows(node, "changes the shape so that the axis of the rows is not known")


# Sequences: the outermost level of offsets has one entry per row.


def _words(flow: Any, node: Node, name: str) -> Rows:
    state = flow[name]
    if isinstance(state, Rows) and state.lod:
        return state
    raise UnknownRows(node, "reads offsets that differ from the rows' offsets")


def each_sequence(flow: Any, node: Node) -> State:
    """Returns the `State` of the result of an operator that works within each sequence of its first
    input.
    """
    x, *others = node.inputs
    flow.expect_alike(node, others)
    return _words(flow, node, x)


def like_words(flow: Any, node: Node) -> State:
    x, like = (_words(flow, node, name) for name in node.inputs)
    flow.meet(node, x.lod, like.lod)
    return like


def pool(flow: Any, node: Node) -> State:
    return Rows(0, ONE, _words(flow, node, node.inputs[0]).lod[:-1])


def unpad(flow: Any, node: Node) -> State:
    padded, lengths = node.inputs
    state, major = flow[padded], 1 if node.attrs.time_major else 0
    if not isinstance(state, Rows) or state.axis != major or state.inner != ONE or state.lod:
        raise UnknownRows(node, "has sequences that are not the rows")
    flow.expect_batch(node, lengths, 0, state)
    return Rows(0, ONE, flow.types[node.outputs[0]].lod or ())


def pad(flow: Any, node: Node) -> State:
    """Returns the `State` of a padded array. Raises `UnknownRows` for padding to the batch's
    longest row.
    """
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


def expand(flow: Any, node: Node) -> State:
    x, like = node.inputs
    rows, words = flow[x], _words(flow, node, like)
    if len(words.lod) > 1 or rows != Rows(0):
        raise UnknownRows(node, "repeats sequences")
    return words


def join(flow: Any, node: Node) -> State:
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
        raise UnknownRows(node, f"has its batch on axis 1, but rows on axis {state.axis}", True)
    for name in filter(None, (rnn.h, rnn.c)):
        flow.expect_batch(node, name, 2, state)
    if rnn.attention:
        flow.expect_batch(node, rnn.attention, state.axis, state)
    final = Rows(2, state.inner)
    return tuple(final if name in rnn.finals else state for name in node.outputs)


def turns(flow: Any, node: Node) -> tuple[State, ...]:
    """Returns a `State` for each output of a Loop or a Scan."""
    from onernn.ops.control import Turns  # control imports this module

    own = Turns.of(node.attrs)
    front, begin, scanned, rest = own.parts(node.inputs)
    flow.expect_alike(node, front)
    elements = list[State]()
    for name, axis in zip(scanned, own.input_axes, strict=True):
        state, along = flow[name], at_axis(axis, len(flow.shape(node, name)))
        if not flow.is_own(flow.shape(node, name)[along]):
            raise UnknownRows(node, "runs one iteration per row", True)
        if isinstance(state, Rows):
            if state.axis == along:
                raise UnknownRows(node, "iterates over the rows", True)
            state = Rows(state.axis - (state.axis > along), state.inner, state.lod)
        elements.append(state)
    more = [*elements, *(flow[name] for name in rest)]
    states, result = _turns(flow, node, own.skip, [ALIKE] * own.front, begin, more)
    pairs = zip(result, own.output_axes, strict=True)
    return (*states, *(_stack(flow, node, each, axis) for each, axis in pairs))


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
    """Returns the `State` of each value that iterations pass on, and of each gathered value.

    A state must have its rows on the same axis in all iterations; only its initial value may be the
    same for all rows. The first ``skip`` outputs of the body tell whether another iteration
    follows.
    """
    states = [flow[name] for name in begin]
    for _ in range(len(states) + 2):
        result = flow.inside(node, "body", [*front, *states, *rest])
        if any(each not in (ALIKE, UNIFORM) for each in result[:skip]):
            raise UnknownRows(node, "repeats until a condition over all rows holds")
        handed = result[skip : skip + len(states)]
        if handed == states:
            return states, result[skip + len(states) :]
        for index, (name, after) in enumerate(zip(begin, handed, strict=True)):
            if after != states[index] and isinstance(after, Rows):
                flow.expect_batch(node, name, after.axis, after)
                states[index] = after
    raise UnknownRows(node, "moves rows to different axes in each iteration")


def _stack(flow: Any, node: Node, state: State, axis: int) -> State:
    if isinstance(state, Alike):
        return state
    if axis < 0 or state.lod:
        raise UnknownRows(node, "gathers rows on an axis that is not known")
    return Rows(state.axis + (state.axis >= axis), state.inner)
