"""Where time, sentences and directions stand in a model's outputs: found by marking one word.

A NaN put into what a recurrent layer gives at one time step of one sentence comes out where that
word went, through whatever transposes, reshapes and dense layers stand behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ops.elementwise import FLOATING
from onernn.verification.graph_changes import recurrent_layers
from onernn.verification.tracing import Values, run_nodes


@dataclass(frozen=True)
class Axes:
    """Axes of an output, None where it has none.

    ``time``: None where a value reads several steps, or a final state. ``direction``: the one whose
    halves are the directions of a bidirectional layer, counted from the last, which is -1.
    ``state``: it holds final states. ``lengths``: of sequences, None where all are equally long.
    """

    time: int | None
    batch: int | None
    direction: int | None
    state: bool
    lengths: Int64 | None


def axes_of(graph: Graph, values: Values) -> dict[str, Axes]:
    """Of each output of a traced graph that the last recurrent layer before it explains.

    Outputs that no single word reaches alone (pooled, decoded) are left out.
    """
    found: dict[str, Axes] = {}
    for rnn in reversed(recurrent_layers(graph).values()):
        for name in filter(None, (rnn.y, *rnn.finals)):
            if any(output.name not in found for output in graph.outputs):
                for output, axes in _probed(graph, rnn, name, values).items():
                    found.setdefault(output, axes)
    return found


def _probed(graph: Graph, rnn: Recurrent, name: str, values: Values) -> dict[str, Axes]:
    """The axes of the outputs that one value of a layer reaches: its y, or a final state."""
    made, x, state = values[name], values.get(rnn.x), name != rnn.y
    lengths = x.lengths if isinstance(x, Ragged) else None
    data = data_of(made)
    if isinstance(made, Ragged):
        n = int(np.argmax(made.lengths)) if len(made) else 0
        t = int(made.lengths[n]) - 1 if len(made) else -1
        if t == n and t > 0:
            t -= 1
        place: tuple[Any, ...] = (int(made.offsets[n]) + t,)
        size_t, size_n = int(made.lengths.max(initial=0)), len(made)
    elif not state:
        size_t, size_n = data.shape[:2]
        t, n = size_t - 1, 0 if size_t > 1 else size_n - 1
        place = (t, n)
    else:
        size_t, size_n = 0, data.shape[2]
        t, n = -1, size_n - 1
        place = (slice(None), slice(None), n)
    if t < 0 and not state or data.size == 0:
        return {}
    one, every = np.zeros(data.shape, bool), np.ones(data.shape, bool)
    one[(*place, ...)] = True
    marks = {k: mark for k, mark in marked(graph, values, {name: one}).items() if mark.any()}
    paired = rnn.y.endswith((".forward", ".backward"))  # see ExpandLayers
    halves = marked(graph, values, {name: every}) if paired else {}
    out: dict[str, Axes] = {}
    for output, mark in marks.items():
        sides = _sides(halves[output]) if output in halves else None
        value = values[output]
        if isinstance(value, Ragged):
            out[output] = Axes(None, 0, sides, False, value.lengths)
            continue
        axes: dict[str, int] = {}
        for what, index, size in (("time", t, size_t), ("batch", n, size_n)):
            for axis in range(mark.ndim):
                fits = size and mark.shape[axis] >= size and axis not in axes.values()
                if fits and np.flatnonzero(_hit(mark, axis)).tolist() == [index]:
                    axes[what] = axis
                    break
        if not state and not axes:
            continue  # something that mixes them all
        out[output] = Axes(axes.get("time"), axes.get("batch"), sides, state, lengths)
    return out


def _hit(mark: Array, axis: int) -> Array:
    """For each place along an axis: whether anything there is marked."""
    return np.asarray(np.moveaxis(mark, axis, 0).reshape(mark.shape[axis], -1).any(axis=1))


def marked(graph: Graph, values: Values, places: Mapping[str, Array]) -> dict[str, Array]:
    """For each output: which of its numbers become NaN where values of these names are NaN.

    ``places``: by the name of a value where it is NaN. Operators that decide by NaN let it through;
    outputs that stay integers all the same, or become another shape, are left out. Raises what a
    run raises.
    """
    changed, constants = dict(values), dict(graph.constants)
    for name, where in places.items():
        value, data = values[name], data_of(values[name])
        data = np.where(where, np.nan, data).astype(data.dtype)
        changed[name] = value.with_data(data) if isinstance(value, Ragged) else data
    reached, behind = set(places), []
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs) and reached.isdisjoint(node.outputs):
            behind.append(_floating(node, constants))
            reached.update(filter(None, node.outputs))
    with np.errstate(all="ignore"):
        outputs = run_nodes(replace(graph, constants=constants), behind, changed)
    marks = {}
    for name, value in outputs.items():
        was, now = data_of(values[name]), data_of(value)
        if name in reached and now.dtype.kind == "f" and now.shape == was.shape:
            marks[name] = np.isnan(now) & ~np.isnan(was)
    return marks


def _floating(node: Node, constants: dict[str, Array]) -> Node:
    op, inputs = FLOATING.get(node.op), node.inputs
    if op is None:
        return node
    if op not in ("ReduceMax", "ReduceMin"):
        return Node(op, inputs, node.outputs)
    axes = f"{node.outputs[0]}/axes"
    constants[axes] = np.array([node.at.axis])
    return Node(op, (inputs[0], axes), node.outputs, {"keepdims": node.at.keepdims})


def _sides(mark: Array) -> int | None:
    """The axis of which exactly one half is marked."""
    for axis in range(mark.ndim):
        size = mark.shape[axis]
        if size % 2 == 0 and size:
            first, second = np.split(_hit(mark, axis), 2)
            if first.all() != second.all() and first.any() != second.any():
                return axis - mark.ndim
    return None
