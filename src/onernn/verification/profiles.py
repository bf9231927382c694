"""Errors of an output by step, by sequence length and by direction of recurrent layers.

To find an output's axes, a NaN is put into a recurrent layer's output at one step of one sequence.
Transposes, reshapes and dense layers pass the NaN on, so its index in the model's output shows the
axes of time and batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ops.elementwise import FLOATING
from onernn.verification.comparing import differences, map_data
from onernn.verification.tracing import Values, recurrent_layers, run_nodes


@dataclass(frozen=True)
class Axes:
    """The axes of an output; an axis is None if the output does not have it.

    ``time``: also None if a value depends on several steps, and for a final state. ``direction``:
    the negative index of the axis that holds both directions of a bidirectional layer. ``state``:
    whether the output holds final states. ``lengths``: the lengths of sequences, None if all are
    equal.
    """

    time: int | None
    batch: int | None
    direction: int | None
    state: bool
    lengths: Int64 | None


def axes_of(graph: Graph, values: Values) -> dict[str, Axes]:
    """Returns the axes of each output of a traced graph, found from the last layer before the
    output.

    Outputs whose values all depend on every step are omitted.
    """
    result: dict[str, Axes] = {}
    for rnn in reversed(recurrent_layers(graph).values()):
        for name in filter(None, (rnn.y, *rnn.finals)):
            if any(output.name not in result for output in graph.outputs):
                for output, axes in _probe(graph, rnn, name, values).items():
                    result.setdefault(output, axes)
    return result


def _probe(graph: Graph, rnn: Recurrent, name: str, values: Values) -> dict[str, Axes]:
    """Returns the axes of the outputs that depend on a layer's y or final state ``name``."""
    reached, x, state = values[name], values.get(rnn.x), name != rnn.y
    lengths = x.lengths if isinstance(x, Ragged) else None
    data = data_of(reached)
    if isinstance(reached, Ragged):
        n = int(np.argmax(reached.lengths)) if len(reached) else 0
        t = int(reached.lengths[n]) - 1 if len(reached) else -1
        if t == n and t > 0:
            t -= 1
        place: tuple[Any, ...] = (int(reached.offsets[n]) + t,)
        size_t, size_n = int(reached.lengths.max(initial=0)), len(reached)
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
    marks = {k: m for k, m in mark_reached(graph, values, {name: one}).items() if m.any()}
    paired = rnn.y.endswith((".forward", ".backward"))  # `ExpandLayers` made this name
    halves = mark_reached(graph, values, {name: every}) if paired else {}
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
            continue  # each value depends on all steps
        out[output] = Axes(axes.get("time"), axes.get("batch"), sides, state, lengths)
    return out


def _hit(mark: Array, axis: int) -> Array:
    """Returns for each index along an axis whether any element at this index is marked."""
    return np.asarray(np.moveaxis(mark, axis, 0).reshape(mark.shape[axis], -1).any(axis=1))


def mark_reached(graph: Graph, values: Values, places: Mapping[str, Array]) -> dict[str, Array]:
    """Returns masks of the elements of each output that become NaN if values have NaN where
    ``places`` is true.

    Operators that stop NaN, such as comparisons, are replaced. Integer outputs and outputs whose
    shape changes are omitted. Raises the errors of a run.
    """
    changed, constants = dict(values), dict(graph.constants)
    for name, where in places.items():
        changed[name] = map_data(values[name], partial(_insert_nan, where=where))
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


def _insert_nan(array: Array, where: Array) -> Array:
    return np.where(where, np.nan, array).astype(array.dtype)


def _floating(node: Node, constants: dict[str, Array]) -> Node:
    op, inputs = FLOATING.get(node.op), node.inputs
    if op is None:
        return node
    if op not in ("ReduceMax", "ReduceMin"):
        return Node(op, inputs, node.outputs)
    axes = f"{node.outputs[0]}/axes"
    constants[axes] = np.array([node.attrs.axis])
    return Node(op, (inputs[0], axes), node.outputs, {"keepdims": node.attrs.keepdims})


def _sides(mark: Array) -> int | None:
    """Returns the negative index of the axis along which exactly one half is marked, or None."""
    for axis in range(mark.ndim):
        size = mark.shape[axis]
        if size % 2 == 0 and size:
            first, second = np.split(_hit(mark, axis), 2)
            if first.all() != second.all() and first.any() != second.any():
                return axis - mark.ndim
    return None


# --- errors of outputs, and their distribution over steps, lengths and directions


_SMALL = 1e-3
"""Relative errors ignore elements smaller than this part of the largest element."""


@dataclass(frozen=True)
class Errors:
    """Errors of one output: |a - b|, |a - b| / |b| over elements that are not small, and the
    cosine.

    ``max_rel`` is max|a - b| / max|b|, the same as in `OutputComparison`. An error is NaN if no
    element is finite in both arrays.
    """

    max_abs: float = math.nan
    mean_abs: float = math.nan
    median_abs: float = math.nan
    p99_abs: float = math.nan
    max_rel: float = math.nan
    mean_rel: float = math.nan
    median_rel: float = math.nan
    p99_rel: float = math.nan
    cosine: float = math.nan


def errors(actual: Array, reference: Array) -> Errors:
    """Returns the errors of two arrays over all elements that are finite in both."""
    if actual.shape != reference.shape or actual.size == 0:
        return Errors()
    one, other = (np.asarray(a, np.float64).reshape(-1) for a in (actual, reference))
    kept = np.isfinite(one) & np.isfinite(other)
    one, other = one[kept], other[kept]
    if not kept.any():
        return Errors()
    apart, size = np.abs(one - other), np.abs(other)
    largest = float(size.max())
    sizeable = size > _SMALL * largest
    relative = apart[sizeable] / size[sizeable] if sizeable.any() else np.array([math.nan])
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    worst = float(apart.max())
    return Errors(
        worst,
        *_middle(apart),
        worst / largest if largest else (math.inf if worst else 0.0),
        *_middle(relative),
        float(one @ other) / norms if norms else (math.nan if worst else 1.0),
    )


def _middle(values: Array) -> tuple[float, float, float]:
    median, high = np.percentile(values, (50, 99))
    return float(values.mean()), float(median), float(high)


_Rows = tuple[tuple[str, float, float], ...]


PLACES = {
    "steps": "time step",
    "lengths": "sentence length",
    "directions": "direction",
    "ends": "place",
}
"""The fields of a `Profile` that hold rows, and what each row stands for."""


@dataclass(frozen=True)
class Profile:
    """The errors of one output in tables, whose rows are (place, max|a - b|, mean|a - b|).

    A place is a step in ``steps``, a sequence length in ``lengths``, a direction in ``directions``,
    and "inside" or "beyond the end" of sequences in ``ends``. A table is empty if the output has no
    such axis. ``state``: whether the output is a final state.
    """

    name: str
    state: bool
    steps: _Rows = ()
    lengths: _Rows = ()
    directions: _Rows = ()
    ends: _Rows = ()

    def as_json(self) -> dict[str, object]:
        """Returns the fields; each row is {"at", "max_abs", "mean_abs"}."""
        keys = ("at", "max_abs", "mean_abs")
        rows = {
            kind: [dict(zip(keys, row, strict=True)) for row in getattr(self, kind)]
            for kind in PLACES
        }
        return {**vars(self), **rows}


def profile(name: str, actual: Batch, reference: Batch, axes: Axes | None) -> Profile | None:
    """Returns the errors of one output by step, length and direction; None if its axes are unknown.

    ``axes``: see `axes_of`.
    """
    step: Int64 | None = None
    lengths: Int64 | None = None
    state, ends = False, _Rows()
    if isinstance(reference, Ragged):
        if not isinstance(actual, Ragged) or actual.data.shape != reference.data.shape:
            return None
        apart = differences(actual.data, reference.data)
        lengths = np.repeat(reference.lengths, reference.lengths)
        step = np.arange(len(apart)) - np.repeat(reference.offsets[:-1], reference.lengths)
        cells = apart.reshape(len(apart), -1)
    else:
        actual, reference = np.asarray(actual), np.asarray(reference)
        if axes is None or actual.shape != reference.shape or axes.time is None and not axes.state:
            return None
        apart, state = differences(actual, reference), axes.state
        known = axes.lengths
        if axes.batch is None or known is None or len(known) != apart.shape[axes.batch]:
            known = None
        place = [a for a in (axes.batch if known is not None else None, axes.time) if a is not None]
        grid = np.moveaxis(apart, place, range(len(place)))
        count = math.prod(grid.shape[: len(place)])
        at = np.indices(grid.shape[: len(place)]).reshape(len(place), count)
        cells = grid.reshape(count, -1)
        step = None if axes.time is None else at[-1]
        lengths = None if known is None else known[at[0]]
        if step is not None and lengths is not None:
            inside = step < lengths
            names = (("inside", inside), ("beyond the end", ~inside))
            ends = tuple((where, *_worst(cells[chosen])) for where, chosen in names if chosen.any())
            cells, step, lengths = cells[inside], step[inside], lengths[inside]
    by_step, by_length = _rows(cells, step), _rows(cells, lengths)
    return Profile(name, state, by_step, by_length, _halves(apart, axes), ends)


def _worst(values: Array) -> tuple[float, float]:
    return (float(values.max()), float(values.mean())) if values.size else (0.0, 0.0)


def _rows(cells: Array, key: Int64 | None) -> _Rows:
    """Returns one row of errors per distinct value of ``key`` (K,), the time steps or lengths of
    the K ``cells``.
    """
    if key is None:
        return ()
    return tuple((str(each), *_worst(cells[key == each])) for each in np.unique(key))


def _halves(apart: Array, axes: Axes | None) -> _Rows:
    side = axes.direction if axes else None
    if side is None or -side > apart.ndim or apart.shape[side] % 2:
        return ()
    forward, backward = np.split(apart, 2, side)
    return (("forward", *_worst(forward)), ("backward", *_worst(backward)))
