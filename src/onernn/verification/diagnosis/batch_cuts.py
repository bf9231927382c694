"""A batch cut to few of its sentences: a search runs on them, the rest may prove what it finds.

No file says which axis counts sequences. Axes are tried: they are the right ones where the model
gives, on some of the sentences, those rows of what it gives on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import OnernnError
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.verification.comparing import Tolerance, compare, differences, in_one_form
from onernn.verification.tracing import Trial, fast_backend, trace

_FEW = 3
"""Sentences that a search runs on, at most."""
_LONG = 3
"""Steps of a sequence on which faults of the recurrence differ."""
_COMBINATIONS = 24
_SAME = Tolerance(1e-5, 1e-4)
"""The same rows in a batch of another size: sums are rounded in another order."""

Axes = Mapping[str, int | None]
"""By the name of an input its axis of sentences, None for an input without one."""


def cut_batch(trial: Trial) -> tuple[Trial, bool] | None:
    """The trial on few sentences on which its outputs are wrong, with absolute tolerances as on
    the whole batch; and whether other sentences are wrong, too, and long enough. None if the batch
    cannot be cut.
    """
    graph, names = trial.graph, {value.name for value in trial.graph.inputs}
    read = {name for node in graph.nodes for name in node.inputs}
    forms = {k: in_one_form(trial.values[k], want) for k, want in trial.expected.items()}
    allowed = {}
    for name, (mine, want) in forms.items():
        if data_of(mine).shape != data_of(want).shape:
            return None
        top = np.abs(data_of(want)[np.isfinite(data_of(want))]).max(initial=0)
        asked = trial.tolerances[name]
        allowed[name] = Tolerance(asked.atol + asked.rtol * float(top), 0.0)
    for count, axes in _possible(trial.all_inputs, read):
        lengths = _lengths(trial.all_inputs, count)
        chosen = _some(lengths, np.arange(count))
        for _ in range(2):  # which sentences are wrong is known once the outputs' axes are
            few = {name: _taken(b, chosen, axes[name]) for name, b in trial.all_inputs.items()}
            try:
                with np.errstate(all="ignore"):
                    feed = {name: batch for name, batch in few.items() if name in names}
                    values = trace(graph, feed, fast_backend())
            except (OnernnError, ValueError, IndexError):
                break
            wrong, expected = np.zeros(count, bool), dict[str, Batch]()
            for name, (mine, want) in forms.items():
                axis = _axis_of(mine, values[name], chosen, count)
                if axis is None:
                    break
                shape = data_of(values[name]).shape
                expected[name] = _rows(want, chosen, axis, shape)
                wrong |= _wrong(mine, want, axis, allowed[name].atol)
            best = _some(lengths, np.flatnonzero(wrong))
            if len(expected) < len(forms) or not len(best):
                break
            if np.array_equal(best, chosen):
                left = np.setdiff1d(np.flatnonzero(wrong), chosen)
                proves = (lengths[left] >= min(_LONG, lengths[chosen].max())).any()
                cut = replace(
                    trial, values=values, expected=expected, tolerances=allowed, all_inputs=few
                )
                return cut, bool(proves)
            chosen = best
    return None


def _some(lengths: Int64, wrong: Int64) -> Int64:
    """Some of the wrong sentences, not all; the shortest that are long enough first."""
    long = [n for n in wrong if lengths[n] >= _LONG] or list(wrong)
    ordered = sorted(long, key=lambda n: (lengths[n], n))
    most = min(_FEW, max(1, (len(ordered) + 1) // 2 if len(ordered) > 2 else 1))
    return np.sort(np.array(ordered[:most], np.int64))


def _possible(all_inputs: Mapping[str, Batch], read: Container[str]) -> Iterator[tuple[int, Axes]]:
    """Numbers of sentences, and axes that may count them: of that size in inputs that have one.

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
        unknown = [name for name, axes in places.items() if len(axes) > 1 and name not in read]
        if count < 2 or unknown:
            continue
        for chosen in itertools.islice(itertools.product(*places.values()), _COMBINATIONS):
            yield count, dict.fromkeys(all_inputs) | dict(zip(places, chosen, strict=True))


def _lengths(all_inputs: Mapping[str, Batch], count: int) -> Int64:
    """The lengths of the sentences; equal ones if no input has lengths."""
    for batch in sorted(all_inputs.values(), key=lambda each: not isinstance(each, Ragged)):
        if isinstance(batch, Ragged):
            return batch.lengths
        array = np.asarray(batch)
        if array.shape == (count,) and array.dtype.kind in "iu" and array.min(initial=0) >= 0:
            return array.astype(np.int64)
    return np.full(count, _LONG, np.int64)


def _taken(batch: Batch, chosen: Int64, axis: int | None) -> Batch:
    if isinstance(batch, Ragged):
        return Ragged.from_list([batch.to_list()[n] for n in chosen])
    return batch if axis is None else np.take(batch, chosen, axis)


def _rows(batch: Batch, chosen: Int64, axis: int, shape: tuple[int, ...]) -> Batch:
    """Some sentences of an output, as long as the longest of a run on these is."""
    taken = _taken(batch, chosen, axis)
    return taken if isinstance(taken, Ragged) else taken[tuple(map(slice, shape))]


def _axis_of(whole: Batch, part: Batch, chosen: Int64, count: int) -> int | None:
    """The axis of sentences of an output, by its values in a run on some; 0 if it is ragged."""
    shape = data_of(part).shape
    for axis in [0] if isinstance(whole, Ragged) else range(np.ndim(whole)):
        if not isinstance(whole, Ragged):
            sizes = whole.shape[axis], shape[axis] if len(shape) == whole.ndim else 0
            if isinstance(part, Ragged) or sizes != (count, len(chosen)):
                continue
        if compare("", part, _rows(whole, chosen, axis, shape), _SAME).passed:
            return axis
    return None


def _wrong(mine: Batch, want: Batch, axis: int, atol: float) -> Array:
    """Which sentences differ."""
    apart = np.asarray(differences(data_of(mine), data_of(want)) > atol)
    rows = np.moveaxis(apart, axis, 0).reshape(apart.shape[axis], -1)
    ends = mine.offsets if isinstance(mine, Ragged) else np.arange(len(rows) + 1)
    return np.array([rows[a:b].any() for a, b in itertools.pairwise(ends)])
