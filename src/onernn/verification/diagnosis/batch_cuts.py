"""A batch cut to few of its sentences: a search runs on them, the rest may prove what it finds.

No file says which axis counts sequences. Axes are tried: they are the right ones where the model
gives, on some of the sentences, those rows of what it gives on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.verification.comparing import Tolerance, compare, differences, in_one_form
from onernn.verification.tracing import Values, fast_backend, trace

_FEW = 3
"""Sentences that a search runs on, at most."""
_LONG = 3
"""Steps of a sequence on which faults of the recurrence differ."""
_COMBINATIONS = 24
_SAME = Tolerance(1e-5, 1e-4)
"""The same rows in a batch of another size: sums are rounded in another order."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Some sentences of a batch.

    ``values``: the model's, in a run on them; ``expected``: the right outputs; ``tolerances``:
    absolute, as on the whole batch. ``proves``: whether other sentences are wrong, too, and long
    enough.
    """

    all_inputs: Mapping[str, Batch]
    values: Values
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    proves: bool


@dataclass(frozen=True, eq=False)
class _Axes:
    """``inputs``: by name the axis of sentences, None for an input without one."""

    count: int
    inputs: Mapping[str, int | None]

    def cut(self, batches: Mapping[str, Batch], chosen: Int64) -> dict[str, Batch]:
        return {name: _taken(b, chosen, self.inputs[name]) for name, b in batches.items()}


def cut_batch(
    graph: Graph,
    all_inputs: Mapping[str, Batch],
    outputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    tolerances: Mapping[str, Tolerance],
) -> Cut | None:
    """Few sentences on which a graph's outputs are wrong; None if it cannot be cut.

    ``all_inputs``: by name, also those that the graph does not take. ``outputs``: the graph's, of
    the whole batch.
    """
    names = {value.name for value in graph.inputs}
    read = {name for node in graph.nodes for name in node.inputs}
    for axes in _possible(all_inputs, read):
        lengths = _lengths(all_inputs, axes.count)
        chosen = _some(lengths, np.arange(axes.count))
        for _ in range(2):  # which sentences are wrong is known once the outputs' axes are
            feed = {k: v for k, v in axes.cut(all_inputs, chosen).items() if k in names}
            try:
                with np.errstate(all="ignore"):
                    values = trace(graph, feed, fast_backend())
            except (OnernnError, ValueError, IndexError):
                break
            forms = {k: in_one_form(outputs[k], want) for k, want in expected.items()}
            result = {
                k: _rows(mine, values[k], chosen, axes.count) for k, (mine, _) in forms.items()
            }
            if any(rows is None for rows in result.values()):
                break
            wrong = np.zeros(axes.count, bool)
            part: dict[str, Batch] = {}
            allowed: dict[str, Tolerance] = {}
            for name, (mine, want) in forms.items():
                rows = result[name]
                assert rows is not None
                if not _alike(mine, want):
                    return None
                part[name] = rows.of(want, chosen)
                top = np.abs(data_of(want)[np.isfinite(data_of(want))]).max(initial=0)
                atol = tolerances[name].atol + tolerances[name].rtol * float(top)
                allowed[name] = Tolerance(atol, 0.0)
                wrong |= rows.wrong(mine, want, axes.count, atol)
            best = _some(lengths, np.flatnonzero(wrong))
            if len(best) and np.array_equal(best, chosen):
                left = np.setdiff1d(np.flatnonzero(wrong), chosen)
                longest = lengths[chosen].max()
                proves = bool((lengths[left] >= min(_LONG, longest)).any())
                whole = axes.cut(all_inputs, chosen)
                return Cut(whole, values, part, allowed, proves)
            if not len(best):
                break
            chosen = best
    return None


def _some(lengths: Int64, wrong: Int64) -> Int64:
    """Some of the wrong sentences, not all; the shortest that are long enough first."""
    long = [n for n in wrong if lengths[n] >= _LONG] or list(wrong)
    ordered = sorted(long, key=lambda n: (lengths[n], n))
    most = min(_FEW, max(1, (len(ordered) + 1) // 2 if len(ordered) > 2 else 1))
    return np.sort(np.array(ordered[:most], np.int64))


def _possible(all_inputs: Mapping[str, Batch], read: Container[str]) -> Iterator[_Axes]:
    """Axes that may count sentences: of equal size in each input that has one.

    Of an input that is not read no run shows the axis: it may have one at most.
    """
    batches = [batch for batch in all_inputs.values() if isinstance(batch, Ragged)]
    ragged = {len(batch) for batch in batches}
    if len(ragged) > 1 or any(batch.outer for batch in batches):
        return
    arrays = {k: np.asarray(b) for k, b in all_inputs.items() if not isinstance(b, Ragged)}
    vectors = [len(a) for a in arrays.values() if a.ndim == 1 and a.dtype.kind in "iu"]
    sizes = [size for array in arrays.values() for size in array.shape]
    often = sorted(sizes, key=lambda size: -sizes.count(size))
    for count in dict.fromkeys(ragged or [*vectors, *often]):
        places: dict[str, list[int | None]] = {
            name: [axis for axis, size in enumerate(array.shape) if size == count] or [None]
            for name, array in arrays.items()
        }
        if count < 2 or any(
            len(options) > 1 for name, options in places.items() if name not in read
        ):
            continue
        for axes in itertools.islice(itertools.product(*places.values()), _COMBINATIONS):
            inputs: dict[str, int | None] = dict.fromkeys(all_inputs)
            yield _Axes(count, inputs | dict(zip(places, axes, strict=True)))


def _lengths(all_inputs: Mapping[str, Batch], count: int) -> Int64:
    """The lengths of the sentences; equal ones if no input has lengths."""
    for batch in all_inputs.values():
        if isinstance(batch, Ragged):
            return batch.lengths
    for batch in all_inputs.values():
        array = np.asarray(batch)
        if array.shape == (count,) and array.dtype.kind in "iu" and array.min(initial=0) >= 0:
            return array.astype(np.int64)
    return np.full(count, _LONG, np.int64)


def _taken(batch: Batch, chosen: Int64, axis: int | None) -> Batch:
    if isinstance(batch, Ragged):
        return Ragged.from_list([batch.to_list()[n] for n in chosen])
    return batch if axis is None else np.take(batch, chosen, axis)


def _alike(mine: Batch, want: Batch) -> bool:
    same = isinstance(mine, Ragged) == isinstance(want, Ragged)
    return same and data_of(mine).shape == data_of(want).shape


@dataclass(frozen=True)
class _Rows:
    """The axis of sentences of an output: None if it is ragged."""

    axis: int | None
    shape: Sequence[int]

    def of(self, batch: Batch, chosen: Int64) -> Batch:
        taken = _taken(batch, chosen, self.axis)
        if isinstance(taken, Ragged):
            return taken
        return taken[tuple(slice(size) for size in self.shape)]

    def wrong(self, mine: Batch, want: Batch, count: int, atol: float) -> Array:
        """Which sentences differ."""
        apart = np.asarray(differences(data_of(mine), data_of(want)) > atol)
        if isinstance(mine, Ragged):
            words = np.asarray(apart.reshape(len(apart), -1).any(axis=1))
            return np.array([words[a:b].any() for a, b in itertools.pairwise(mine.offsets)])
        assert self.axis is not None
        return np.asarray(np.moveaxis(apart, self.axis, 0).reshape(count, -1).any(axis=1))


def _rows(whole: Batch, part: Batch, chosen: Int64, count: int) -> _Rows | None:
    """The rows of an output in which the result of a run on some sentences stands."""
    shape = data_of(part).shape
    if isinstance(whole, Ragged):
        same = isinstance(part, Ragged) and compare("", part, _taken(whole, chosen, None), _SAME)
        return _Rows(None, shape) if same and same.passed else None
    if isinstance(part, Ragged):
        return None
    array = np.asarray(whole)
    for axis in range(array.ndim):
        sizes = array.shape[axis], len(shape) == array.ndim and shape[axis]
        if sizes != (count, len(chosen)):
            continue
        rows = _Rows(axis, shape)
        if compare("", part, rows.of(array, chosen), _SAME).passed:
            return rows
    return None
