"""The labels in a model's outputs: which rows count, of which sequences, and how many change.

Rows of one sequence depend on each other, so sequences are the sample: design/0061 derives the
bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import OnernnError, UnsupportedError, did_you_mean
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.rnn import Recurrent
from onernn.ops import OPERATORS
from onernn.verification.output_axes import marked
from onernn.verification.tracing import Values, trace

Outputs = Mapping[str, Batch]
CONFIDENCE = 0.95
ENOUGH = 30
"""Labels that a budget should allow to change, for the share that does to be known well."""
_PRIOR = 3
"""Changed labels that are assumed in sequences that changed as a whole; see design/0061."""


def upper_bound(changed: float, total: float, effect: float) -> float:
    """The share of labels that changes on new data is below it with a probability of `CONFIDENCE`.

    Poisson's exact upper limit in Byar's form, of ``changed / effect`` independent changes.
    """
    more = changed / effect + 1
    z = NormalDist().inv_cdf(CONFIDENCE)
    limit = more * (1 - 1 / (9 * more) + z / (3 * np.sqrt(more))) ** 3
    return min(1.0, float(limit * effect / max(total, 1)))


def design_effect(changed: Array, counts: Array) -> float:
    """How many dependent labels (K,) of K sequences tell as much as one independent label.

    The variance between sequences over that of independent labels; few changes tell little of it,
    so `_PRIOR` of them are added for which a sequence changes as a whole.
    """
    total, found, number = counts.sum(), changed.sum(), len(counts)
    whole = float(np.square(counts).sum() / total)
    rate = found / total
    if number < 2 or rate in (0, 1):
        return whole
    between = np.square(changed - rate * counts).sum() * number / (number - 1)
    effect = between / (total * rate * (1 - rate))
    return float(max(1.0, (_PRIOR * whole + found * effect) / (_PRIOR + found)))


class Labels:
    """The labels of held-out batches, and how many of them change.

    ``exact``, ``narrowest``: the outputs of each batch, in float32 and all in u8, which tells how
    changes gather in sequences. ``names``: see `score_outputs`. Raises `UnsupportedError` where
    there are no labels.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Sequence[Mapping[str, Batch]],
        exact: Sequence[Outputs],
        narrowest: Sequence[Outputs],
        names: Sequence[str],
        backend: str,
    ) -> None:
        self._names = score_outputs(graph, exact[0], names)
        self._unknown: dict[str, None] = {}
        owners = []
        for batch, (feed, outputs) in enumerate(zip(batches, exact, strict=True)):
            dense = [name for name in self._names if not isinstance(outputs[name], Ragged)]
            values = trace(graph, feed, backend) if dense else {}
            found = _follow(graph, values, dense, self._unknown) if dense else {}
            found |= {n: _of_ragged(outputs[n]) for n in self._names if n not in found}
            owners += [np.where(found[n] < 0, -1, found[n] + (batch << 32)) for n in self._names]
        known, sequences = np.unique(np.concatenate([[-1], *owners]), return_inverse=True)
        if len(known) == 1:
            text = f"budget labels: {', '.join(self._names)}: the batches have no steps"
            raise UnsupportedError(text)
        self._sequences = sequences.reshape(-1)[1:]  # 0: padding
        self._exact = self._read(exact)
        self._counts = np.bincount(self._sequences)[1:]
        self._effect = design_effect(self._changed(narrowest), self._counts)
        self.total = int(self._counts.sum())

    def _read(self, outputs: Sequence[Outputs]) -> Int64:
        """(labels,) of all batches: integers as they are, else the largest of each row."""
        arrays = (data_of(each[name]) for each in outputs for name in self._names)
        labels = [a if a.dtype.kind in "biu" else a.argmax(axis=-1) for a in arrays]
        return np.concatenate([each.ravel().astype(np.int64) for each in labels])

    def _changed(self, outputs: Sequence[Outputs]) -> Int64:
        """(K,): how many labels of each sequence change; all where there are others."""
        labels = self._read(outputs)
        if labels.shape != self._exact.shape:
            return self._counts
        different = self._sequences[labels != self._exact]
        return np.bincount(different, minlength=len(self._counts) + 1)[1:]

    def of(self, outputs: Sequence[Outputs]) -> tuple[float, float]:
        """The share of labels that change, and its upper bound on new data."""
        changed = float(self._changed(outputs).sum())
        return changed / self.total, upper_bound(changed, self.total, self._effect)

    @property
    def unchanged(self) -> float:
        """The upper bound where no label changed."""
        return upper_bound(0, self.total, self._effect)

    def __str__(self) -> str:
        names = ", ".join(map(repr, self._names))
        return f"{self.total:,} labels of {names} in {len(self._counts):,} sequences"

    def notes(self, limit: float) -> Iterator[str]:
        """What is unknown, and whether these are few labels for a budget."""
        if limit and self.total * limit < ENOUGH:
            yield (
                f"{self.total:,} labels are few for a budget of {limit:.3%}: give"
                f" {ENOUGH / limit:,.0f} held-out labels or more ({ENOUGH} / budget)"
            )
        yield from self._unknown


def _of_ragged(value: Batch) -> Int64:
    """(labels,): the outermost sequence of each."""
    assert isinstance(value, Ragged)
    ends = value.offsets
    for level in reversed(value.outer):
        ends = ends[level]
    steps = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    rows = np.prod(_label_shape(value), dtype=int)
    return np.repeat(steps, rows // max(len(steps), 1))


def _label_shape(value: Batch) -> tuple[int, ...]:
    array = data_of(value)
    return array.shape if array.dtype.kind in "biu" else array.shape[:-1]


def score_outputs(graph: Graph, outputs: Outputs, names: Sequence[str] = ()) -> list[str]:
    """The outputs whose labels count: those named, else integers that layers decide.

    Without integers the scores: rows of several numbers that are computed from what layers give;
    without these what layers give at each step. A layer's states are none.
    Raises `UnsupportedError` for a name that is no output of labels, and where nothing counts.
    """
    arrays = {name: data_of(value) for name, value in outputs.items()}
    whole = {name for name, each in arrays.items() if each.dtype.kind in "biu"}
    rows = {name for name, each in arrays.items() if each.ndim and each.shape[-1] > 1} | whole
    for name in names:
        if name not in outputs:
            hint = did_you_mean(name, outputs)
            raise UnsupportedError(f"labels of {name!r}: expected one of {[*outputs]}{hint}")
        if name not in rows:
            raise UnsupportedError(
                f"labels of {name!r}: it has one number a row, {arrays[name].dtype};"
                " expected integers, or a score for each label"
            )
    kinds: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            kinds |= dict.fromkeys(rnn.finals, "state") | {rnn.cells: "state", rnn.y: "step"}
        elif read := [kinds[name] for name in node.inputs if name and name in kinds]:
            moves = OPERATORS[node.op].keeps or node.op == "Where"
            kinds |= dict.fromkeys(node.outputs, min(read) if moves else "score")
    for group in (
        list(dict.fromkeys(names)),
        [name for name in outputs if name in whole and name in kinds],
        [name for name in outputs if name in rows and kinds.get(name) == "score"],
        [name for name in outputs if name in rows and kinds.get(name) == "step"],
    ):
        if group:
            return group
    raise UnsupportedError(
        "budget labels: no output has integers or scores that a recurrent layer decides (its states"
        " are none); name outputs by --labels-of (labels_of=), or take max_abs or rmse"
    )


def _follow(
    graph: Graph, values: Values, names: Sequence[str], notes: dict[str, None]
) -> dict[str, Int64]:
    """(labels,) for each of these dense outputs: the sequence of each label, -1 for padding.

    Every step of every sequence has a number. For each bit of it NaN replaces what layers give at
    the steps where that bit is 1, then where it is 0: the operators behind them are run, and tell
    by NaN which labels these steps reach. A label that repeats a step, as masks do, counts once;
    where every step has a label that reads it only, those that read several do not count.
    ``values``: of a run. ``notes`` gets what is unknown.
    """
    layers = [Recurrent.of(node) for node in graph.nodes if node.op == "Rnn"]
    steps = {n: _steps(rnn, n, values[n]) for rnn in layers for n in _made(rnn)}
    low = max(1, max(int(step.max(initial=0)) for _, step in steps.values()).bit_length())
    numbers = {name: (sequence << low) | step for name, (sequence, step) in steps.items()}
    every = np.unique(np.concatenate([numbers[rnn.y].ravel() for rnn in layers if rnn.y]))
    part = replace(graph, outputs=tuple(map(Value, names)))
    reached: list[list[dict[str, Array]]] = [[], []]
    for bit in range(max(1, int(every.max(initial=0)).bit_length())):
        for side, runs in enumerate(reached):
            places = {n: number >> bit & 1 == side for n, number in numbers.items()}
            try:
                runs.append(marked(part, values, places))
            except OnernnError:
                runs.append({})
    found = {}
    for name in names:
        shape = _label_shape(values[name])
        if any(name not in each for runs in reached for each in runs):
            text = "no step could be followed to its labels; padding may be among them"
            notes[f"output {name!r}: each batch counts as one sequence, as {text}"] = None
            found[name] = np.zeros(int(np.prod(shape)), np.int64)
            continue
        whole = data_of(values[name]).dtype.kind in "biu"
        off, on = (
            np.array([each[name] if whole else each[name].any(axis=-1) for each in runs], bool)
            for runs in reached
        )
        exact, touched = off ^ on, (off | on).any(axis=0)
        number = (on << np.arange(len(on)).reshape(-1, *(1,) * len(shape))).sum(axis=0)
        sequence = np.where(touched, number >> low, -1)
        if not exact[low:, touched].all():
            notes[f"output {name!r}: each batch counts as one sequence, as labels read several"] = (
                None
            )
            sequence = np.where(touched, 0, -1)
        single = touched & exact.all(axis=0)
        if np.isin(every, number[single]).all():  # each step has a label: others are masked steps
            sequence, touched = np.where(single, sequence, -1), single
        mixed = sequence[touched & ~single]
        inputs = (values[rnn.x] for rnn in layers if rnn.x in values)
        padded = any(isinstance(x, Ragged) and len(set(x.lengths.tolist())) > 1 for x in inputs)
        if padded and len(mixed) > len(np.unique(mixed)):
            text = "labels read several steps, so padding may be among them"
            notes[f"output {name!r}: {text}"] = None
        kept = ~single | _first(np.where(single, number, -1))
        found[name] = np.where(kept, sequence, -1).ravel()
    return found


def _made(rnn: Recurrent) -> Iterator[str]:
    return filter(None, (rnn.y, rnn.cells, *rnn.finals))


def _steps(rnn: Recurrent, name: str, value: Any) -> tuple[Int64, Int64]:
    """(sequence, step) of each number of what a layer gives, in shapes that spread to its."""
    if isinstance(value, Ragged):
        sequence = np.repeat(np.arange(len(value)), value.lengths)
        step = np.arange(len(sequence)) - value.offsets[sequence]
        return sequence[:, None], step[:, None]
    batch = np.arange(value.shape[-2])[:, None]  # (T, N, O), states (L, D, N, O)
    return batch, np.asarray(0 if name in rnn.finals else np.arange(len(value))[:, None, None])


def _first(number: Int64) -> Array:
    """Where a number is there for the first time; along axes that all have the same, in each."""
    place = np.zeros(number.shape, np.int64)
    for axis, size in enumerate(number.shape):
        if (number == number.take([0], axis)).all():
            index = np.arange(size).reshape(-1, *(1,) * (number.ndim - axis - 1))
            place = place * size + index
    first = np.zeros(number.size, bool)
    key = number * (place.max(initial=0) + 1) + place
    first[np.unique(key.ravel(), return_index=True)[1]] = True
    return first.reshape(number.shape)
