"""Where time, sentences and directions stand in a model's outputs: found by marking one word.

A NaN put into what a recurrent layer gives at one time step of one sentence comes out where that
word went, through whatever transposes, reshapes and dense layers stand behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.graph import Graph
from onernn.core.ragged import Ragged, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent
from onernn.verification.graph_changes import recurrent_layers
from onernn.verification.tracing import Values, run_nodes


@dataclass(frozen=True)
class Axes:
    """Axes of an output, None where it has none.

    ``direction``: the one whose halves are the directions of a bidirectional layer, counted from
    the last, which is -1. ``state``: it holds final states. ``lengths``: those of the sentences,
    None where all are equally long.
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
        place: tuple[int, ...] = (int(made.offsets[n]) + t,)
        size_t, size_n = int(made.lengths.max(initial=0)), len(made)
    elif not state:
        size_t, size_n = data.shape[:2]
        t, n = size_t - 1, 0 if size_t > 1 else size_n - 1
        place = (t, n)
    else:
        size_t, size_n = 0, data.shape[2]
        t, n = -1, size_n - 1
        place = (slice(None), slice(None), n)  # type: ignore[assignment]
    if t < 0 and not state or data.size == 0:
        return {}
    marked = _marked(graph, name, values, (*place, ...))
    paired = rnn.y.endswith((".forward", ".backward"))  # see ExpandLayers
    halves = _marked(graph, name, values, ...) if paired else {}
    out: dict[str, Axes] = {}
    for output, mark in marked.items():
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
        if not state and "time" not in axes:
            continue  # a pooled sentence, or something that mixes them all
        out[output] = Axes(axes.get("time"), axes.get("batch"), sides, state, lengths)
    return out


def _hit(mark: Array, axis: int) -> Array:
    """For each place along an axis: whether anything there is marked."""
    return np.asarray(np.moveaxis(mark, axis, 0).reshape(mark.shape[axis], -1).any(axis=1))


def _marked(graph: Graph, name: str, values: Values, at: Any) -> dict[str, Array]:
    """For each output that is reached: where it is NaN if ``at`` is, in the value of that name."""
    made = values[name]
    data = np.array(data_of(made), copy=True)
    data[at] = np.nan
    told = made.with_data(data) if isinstance(made, Ragged) else data
    reached, behind = {name}, []
    for each in graph.nodes:
        if not reached.isdisjoint(each.inputs):
            behind.append(each)
            reached.update(filter(None, each.outputs))
    with np.errstate(all="ignore"):
        outputs = run_nodes(graph, behind, {**values, name: told})
    marks = {}
    for output, value in outputs.items():
        array = data_of(value)
        if output in reached and array.dtype.kind == "f":
            mark = np.isnan(array) & ~np.isnan(data_of(values[output]))
            if mark.any():
                marks[output] = mark
    return marks


def _sides(mark: Array) -> int | None:
    """The axis of which exactly one half is marked."""
    for axis in range(mark.ndim):
        size = mark.shape[axis]
        if size % 2 == 0 and size:
            first, second = np.split(_hit(mark, axis), 2)
            if first.all() != second.all() and first.any() != second.any():
                return axis - mark.ndim
    return None
