"""A model of which as many layers compute in bytes as a budget allows: see `quantize`.

Rows of one sequence depend on each other, so a budget of labels counts sequences: design/0061
derives its bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from os import PathLike
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.joined_layers import StackLayers
from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import Refusal, UnsupportedError, did_you_mean
from onernn.ir.feeds import checked_feed
from onernn.ir.graph import Graph, Node, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Part, Recurrent, parts, with_precision
from onernn.ir.spec import Cell
from onernn.ir.weights import UNIT, LayerPrecision, PartScales, Scale
from onernn.ops import OPERATORS
from onernn.verification.comparing import differences, json_text
from onernn.verification.profiles import axes_of
from onernn.verification.recording import INPUTS, opened, read_inputs
from onernn.verification.tracing import recurrent_layers, trace

Feed = Mapping[str, Batch]
Outputs = Mapping[str, Batch]
Progress = Callable[[str, int, int], None]
_LEVELS = ("u8", "u8 rows", "bf16", "f32")
"""The dtypes of a layer from the narrowest on. u8: calibrated scales; u8 rows: one for each row."""
_ROUNDS = 3
CONFIDENCE = 0.95
ENOUGH = 30
"""A budget that allows fewer labels to change does not measure their share well."""
_PRIOR = 3
"""Changed labels that are assumed in sequences that changed as a whole; see design/0061."""
_SMALLEST, _LARGEST = 2.0**-10, 65504.0
"""Between these magnitudes float16 has eleven bits of every number of a range."""
_ENDS = np.linspace(1.0, 0.2, 41).tolist()
"""Parts of a range's ends that are tried."""


# --- budgets


class Budget(NamedTuple):
    """At most ``limit`` by the measure of this ``name``: labels, max_abs or rmse."""

    name: str
    limit: float

    @classmethod
    def of(cls, text: str) -> Budget:
        """ "labels 0.1%": the share of labels that change. "max_abs 0.02": of any output.

        "rmse 0.001": the root of the mean square over the numbers of all outputs. For labels see
        `score_outputs`. Raises `UnsupportedError` for other texts.
        """
        match = re.fullmatch(r"\s*(labels|max_abs|rmse)\s+([0-9.eE+-]+)\s*(%?)\s*", text)
        name, number, percent = match.groups() if match else ("", "", "")
        try:
            limit = float(number) / (100 if percent else 1)
        except ValueError:
            limit = -1.0
        if not 0 <= limit < np.inf or (percent and name != "labels"):
            expected = "expected 'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'"
            raise UnsupportedError(f"budget {text!r}: {expected}")
        if name == "labels" and not percent:
            hint = f"labels are counted in percent; write 'labels {number}%'"
            raise UnsupportedError(f"budget {text!r}: {hint}")
        return cls(name, limit)

    def shown(self, amount: float) -> str:
        """An amount of it in words."""
        return f"{amount:.3%}" if self.name == "labels" else f"{amount:.3g}"


class Errors:
    """How far outputs are from the exact ones by max_abs or rmse; new data may have more.

    ``counted``: what was compared, in words; ``notes``: what a reader should know of it;
    ``least``: the bound where nothing differs.
    """

    notes: tuple[str, ...] = ()
    least = 0.0

    def __init__(self, measure: str, exact: Sequence[Outputs]) -> None:
        self._measure, self._exact = measure, exact
        sizes = (data_of(value).size for each in exact for value in each.values())
        self.counted = f"{sum(sizes):,} numbers"

    def of(self, outputs: Sequence[Outputs]) -> tuple[float, float]:
        """The error, and what the budget limits; infinite for other shapes."""
        pairs = [
            (data_of(one[name]), data_of(want))
            for one, other in zip(outputs, self._exact, strict=True)
            for name, want in other.items()
        ]
        if any(a.shape != b.shape for a, b in pairs):
            return np.inf, np.inf
        apart = np.concatenate([np.zeros(1), *(differences(a, b).ravel() for a, b in pairs)])
        squares = np.square(apart).sum() / max(apart.size - 1, 1)
        error = float(np.sqrt(squares) if self._measure == "rmse" else apart.max())
        return error, error


# --- labels


def upper_bound(changed: float, total: float, effect: float) -> float:
    """The share of labels that changes on new data is below it with a probability of `CONFIDENCE`.

    Poisson's exact upper limit in Byar's form, of ``changed / effect`` independent changes.
    """
    more = changed / effect + 1
    z = NormalDist().inv_cdf(CONFIDENCE)
    limit = more * (1 - 1 / (9 * more) + z / (3 * np.sqrt(more))) ** 3
    return min(1.0, float(limit * effect / max(total, 1)))


def design_effect(changed: Array, counts: Array) -> float:
    """How many dependent labels (K,) of K sequences say as much as one independent label.

    The variance between sequences over that of independent labels; few changes say little of it,
    so `_PRIOR` of them are added for which a sequence changes as a whole.
    """
    total, result, number = counts.sum(), changed.sum(), len(counts)
    whole = float(np.square(counts).sum() / total)
    rate = result / total
    if number < 2 or rate in (0, 1):
        return whole
    between = np.square(changed - rate * counts).sum() * number / (number - 1)
    effect = between / (total * rate * (1 - rate))
    return float(max(1.0, (_PRIOR * whole + result * effect) / (_PRIOR + result)))


class Labels(Errors):
    """How many labels of held-out batches change, and how many of new data at most.

    ``exact``, ``narrowest``: the outputs of each batch in float32, and all in u8, which shows how
    changes gather in sequences. ``names``: see `score_outputs`. Raises `UnsupportedError` if
    there are no labels.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Sequence[Feed],
        exact: Sequence[Outputs],
        narrowest: Sequence[Outputs],
        names: Sequence[str],
        limit: float,
        backend: str,
    ) -> None:
        self._names = score_outputs(graph, exact[0], names)
        shown, unknown = ", ".join(map(repr, self._names)), dict[str, None]()
        owners = [np.array([-1])]
        for batch, (feed, outputs) in enumerate(zip(batches, exact, strict=True)):
            for own in _owners(graph, feed, outputs, self._names, backend, unknown):
                owners.append(np.where(own < 0, -1, own + (batch << 32)))
        known, places = np.unique(np.concatenate(owners), return_inverse=True)
        if len(known) == 1:
            raise UnsupportedError(f"budget labels: {shown}: the batches have no steps")
        self._sequences = places.reshape(-1)[1:]  # 0: padding
        self._labels = self._read(exact)
        self._counts = np.bincount(self._sequences)[1:]
        self._effect = design_effect(self._changed(narrowest), self._counts)
        self._total = int(self._counts.sum())
        self.counted = f"{self._total:,} labels of {shown} in {len(self._counts):,} sequences"
        self.least = upper_bound(0, self._total, self._effect)
        few = (
            f"{self._total:,} labels are few for a budget of {limit:.3%}: give"
            f" {ENOUGH / (limit or 1):,.0f} held-out labels or more ({ENOUGH} / budget)"
        )
        self.notes = (*([few] if limit and self._total * limit < ENOUGH else ()), *unknown)

    def _read(self, outputs: Sequence[Outputs]) -> Int64:
        """(labels,) of all batches: integers as they are, else the largest of each row."""
        arrays = (data_of(each[name]) for each in outputs for name in self._names)
        labels = [a if a.dtype.kind in "biu" else a.argmax(axis=-1) for a in arrays]
        return np.concatenate([each.ravel().astype(np.int64) for each in labels])

    def _changed(self, outputs: Sequence[Outputs]) -> Int64:
        """(K,): how many labels of each sequence change; all where there are others."""
        labels = self._read(outputs)
        if labels.shape != self._labels.shape:
            return self._counts
        different = self._sequences[labels != self._labels]
        return np.bincount(different, minlength=len(self._counts) + 1)[1:]

    def of(self, outputs: Sequence[Outputs]) -> tuple[float, float]:
        """The share of labels that change, and its upper bound on new data."""
        changed = float(self._changed(outputs).sum())
        return changed / self._total, upper_bound(changed, self._total, self._effect)


def _owners(
    graph: Graph,
    feed: Feed,
    outputs: Outputs,
    names: Sequence[str],
    backend: str,
    unknown: dict[str, None],
) -> Iterator[Int64]:
    """(labels,) of each output: the sequence of each, -1 for padding. Adds to ``unknown``."""
    dense = any(not isinstance(outputs[name], Ragged) for name in names)
    every = axes_of(graph, trace(graph, feed, backend)) if dense else {}
    for name in names:
        value, axes, shape = outputs[name], every.get(name), _label_shape(outputs[name])
        if isinstance(value, Ragged):
            ends = value.offsets
            for level in reversed(value.outer):
                ends = ends[level]  # of the outermost sequences
            steps = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            yield np.repeat(steps, np.prod(shape, dtype=int) // max(len(steps), 1))
        elif axes is None or axes.batch is None or axes.batch >= len(shape):
            text = "each batch counts as one sequence, as labels read several"
            unknown[f"output {name!r}: {text}; padding may be among them"] = None
            yield np.zeros(int(np.prod(shape)), np.int64)
        else:
            places, lengths = np.indices(shape), axes.lengths
            sequence, real = places[axes.batch], np.ones(shape, bool)
            if lengths is not None and not axes.state:  # an empty sentence has a state, too
                stepped = axes.time is not None and axes.time < len(shape)
                real = (places[axes.time] if stepped else 0) < lengths[sequence]
                if axes.time is None and len(shape) > 1 and np.ptp(lengths) > 0:
                    text = "labels read several steps, so padding may be among them"
                    unknown[f"output {name!r}: {text}"] = None
            yield np.where(real, sequence, -1).ravel()


def _label_shape(value: Batch) -> tuple[int, ...]:
    array = data_of(value)
    return array.shape if array.dtype.kind in "biu" else array.shape[:-1]


def score_outputs(graph: Graph, outputs: Outputs, names: Sequence[str] = ()) -> list[str]:
    """The outputs whose labels count: those named, else integers that layers decide.

    Without integers the scores: rows of several numbers that are computed from what layers give;
    without these what layers give at each step. A layer's states do not count.
    Raises `UnsupportedError` for a name that is no output of labels, and if nothing counts.
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
        *([n for n in outputs if n in rows and kinds.get(n) == k] for k in ("score", "step")),
    ):
        if group:
            return group
    raise UnsupportedError(
        "budget labels: no output has integers or scores that a recurrent layer decides (its states"
        " are none); name outputs by --labels-of (labels_of=), or take max_abs or rmse"
    )


# --- ranges and scales


class Histogram:
    """Counts of numbers by the nearest float16, and their ends.

    Counts are added: neither the order of batches nor how they are cut changes anything.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(2**16, np.int64)
        self.ends = 0.0, 0.0
        """The least and the largest number, 0 among them."""

    def add(self, numbers: Array) -> None:
        """``numbers``: finite float32 of any shape."""
        low, high = self.ends
        self.ends = float(numbers.min(initial=low)), float(numbers.max(initial=high))
        halves = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float16)
        self.counts += np.bincount(halves.view(np.uint16).ravel(), minlength=2**16)

    def sorted(self) -> tuple[Array, Array]:
        """float64 values in order, and how often each was there."""
        values = np.arange(2**16, dtype=np.uint16).view(np.float16)
        there = np.flatnonzero(self.counts)
        order = there[np.argsort(values[there], kind="stable")]
        return values[order].astype(np.float64), self.counts[order]


def scale_of(seen: Histogram) -> Scale | None:
    """The scale of bytes with the least mean square error; None if only zeros were.

    Ranges that float16 counts too coarsely keep all numbers.
    """
    low, high = seen.ends
    if low == high:
        return None
    if not _SMALLEST <= max(-low, high) <= _LARGEST:
        return scale_over(low, high)
    values, counts = seen.sorted()

    def error(ends: tuple[float, float]) -> float:
        factor, shift = scale_over(low * ends[0], high * ends[1])
        q = np.clip(np.rint(values * factor) + shift, 0, 255)
        return float(np.dot((values - (q - shift) / factor) ** 2, counts))

    best = min(((each, each) for each in _ENDS), key=error)
    best = min(((each, best[1]) for each in _ENDS), key=error)
    best = min(((best[0], each) for each in _ENDS), key=error)
    return scale_over(low * best[0], high * best[1])


def scale_over(low: float, high: float) -> Scale:
    """From low <= 0 to high >= 0, which fit; 0 is a byte, whole, so one end may have room."""
    shift = float(np.rint(-low / (high - low) * 255))
    steps = [count / end for count, end in ((shift, -low), (255 - shift, high)) if count and end]
    return Scale(min(*steps, float(np.finfo(np.float32).max)), shift)


@dataclass(frozen=True, eq=False)
class PartSeen:
    """The inputs ``x`` of one layer and direction, and its states ``h``, given and computed."""

    name: str
    part: Part
    x: Histogram = field(default_factory=Histogram)
    h: Histogram = field(default_factory=Histogram)

    @property
    def scales(self) -> PartScales:
        """States that cannot leave [-1, 1] have that range, whatever was seen.

        Where nothing but zeros was read, each row has its own step.
        """
        spec, (low, high) = self.part.spec, self.h.ends
        natural = spec.activations is None and spec.cell is not Cell.RNN_RELU
        bounded = natural and not spec.projection_size and -1 <= low <= high <= 1
        return PartScales(scale_of(self.x), UNIT if bounded else scale_of(self.h))


def observed(
    graph: Graph, batches: Sequence[Feed], progress: Progress, backend: str
) -> dict[str, list[PartSeen]]:
    """By the y of each recurrent node outside of loops: the values of its parts in float32.

    Raises `UnsupportedError` naming the batch and the layer whose numbers are not finite.
    """
    apart = fuse(graph, (ExpandLayers(),)).model
    nodes = recurrent_layers(apart)
    seen = {
        y: [PartSeen(part_name(rnn, part), part) for part in parts(rnn.spec)]
        for y, rnn in recurrent_layers(graph).items()
    }
    every = [(each, nodes[each.name]) for layer in seen.values() for each in layer]
    for index, feed in enumerate(batches):
        progress("calibrating", index, len(batches))
        values = {**apart.constants, **trace(apart, feed, backend)}
        for each, rnn in every:
            where = f"batch {index}: layer {each.name!r} reads or gives"
            for histogram, name in ((each.x, rnn.x), (each.h, rnn.y), (each.h, rnn.h)):
                if name:
                    histogram.add(_finite(values[name], where))
    return seen


def _finite(value: Batch, where: str) -> Array:
    """The numbers of a batch. Raises `UnsupportedError` if one is not finite."""
    numbers = data_of(value)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UnsupportedError(f"{where} NaN or infinity; calibrate without it")
    return numbers


class _SplitStacks(ExpandLayers):
    """Only stacks without states: those of others would be cut, and joined anew."""

    def match(self, graph: Graph, node: Node) -> Recurrent | Refusal | None:
        rnn = super().match(graph, node)
        stateful = isinstance(rnn, Recurrent) and (
            any(rnn.states) or any(map(graph.is_read, rnn.finals))
        )
        return None if stateful else rnn


def separated(model: Graph) -> Graph:
    """The fused model without precisions, each of its layers a node where it can be."""
    passes = tuple(each for each in PASSES if not isinstance(each, StackLayers))
    graph = fuse(with_precision(model, {}), passes).model
    nodes = []
    for node in graph.nodes:
        if node.op == "Rnn" and not node.outputs[0]:  # y is not read, but it is the layer's name
            y = f"{next(filter(None, node.outputs))}/y"
            node = replace(node, outputs=(y, *node.outputs[1:]))
        nodes.append(node)
    split = _SplitStacks(directions=lambda _: False)
    return fuse(replace(graph, nodes=tuple(nodes)), (split,)).model


# --- the choice of dtypes


@dataclass(frozen=True, eq=False)
class Trial:
    """One choice of dtypes, by layer: its error on held-out batches, and the CPU's seconds.

    ``bound``: what the budget limits; for labels the upper bound on new data, else the error.
    """

    dtypes: Mapping[str, str]
    error: float
    bound: float
    seconds: float

    @property
    def is_narrow(self) -> bool:
        """Whether any layer is not in f32."""
        return set(self.dtypes.values()) != {"f32"}

    def speed(self, other: Trial) -> str:
        """How many times as fast as another one it is."""
        return f"{other.seconds / self.seconds:.2f}" if self.seconds > 0 else "?"


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """``dtype``: "u8", "u8 rows", "bf16" or "f32", see `quantize`. ``alone``: the model's error
    where only this layer computes in a dtype, by that dtype.

    ``parts``: what each layer and direction of the node read and gave; ``scales``: of each in u8,
    None if each row has a step of its own.
    """

    name: str
    cell: str
    dtype: str
    alone: Mapping[str, float]
    parts: Sequence[PartSeen]
    scales: Sequence[PartScales]


@dataclass(frozen=True, eq=False)
class Quantized:
    """The result of `quantize`. ``model``: the graph whose layers know their precision.

    ``counted``: what the error was measured on; ``reason``: why nothing was narrowed, "" where
    something was. ``plain``: the trials all in f32, in bf16 and in u8. ``trials``: all, in their
    order; the last is the one that was taken. ``example``: a batch, whose inputs have the types of
    all batches.
    """

    model: Graph
    budget: Budget
    counted: str
    reason: str
    layers: tuple[QuantizedLayer, ...]
    plain: Mapping[str, Trial]
    trials: tuple[Trial, ...]
    calibrated: str
    held_out: str
    notes: tuple[str, ...]
    example: Feed

    @property
    def error(self) -> float:
        """The error of the trial that was taken."""
        return self.trials[-1].error

    @property
    def bound(self) -> float:
        """The bound of the trial that was taken."""
        return self.trials[-1].bound

    @property
    def passed(self) -> bool:
        """Whether the bound is within the budget: always, but where f32 itself is not finite."""
        return self.bound <= self.budget.limit

    @property
    def verdict(self) -> str:
        """The error and what it promises, in a line."""
        shown, limit = self.budget.shown, self.budget.limit
        seen = f"{self.budget.name}: {shown(self.error)}"
        if self.budget.name == "labels":
            new = f", at most {shown(self.bound)} on new data (95 % bound)"
            return f"{seen} of {self.counted} changed{new}, {shown(limit)} allowed"
        what = "the largest of" if self.budget.name == "max_abs" else "of"
        return f"{seen}, {what} {self.counted} seen, {shown(limit)} allowed; new data may exceed it"

    def of_layers(self) -> list[str]:
        """A line for each layer: its dtype, and what it costs by itself."""
        lines = []
        for each in self.layers:
            costs = (f"{dtype} alone {self.budget.shown(e)}" for dtype, e in each.alone.items())
            lines.append(f"{each.name}: {each.cell}, {each.dtype} ({', '.join(costs)})")
        return lines

    def of_model(self) -> list[str]:
        """The cost of narrow layers, and their speed."""
        taken, shown = self.trials[-1], self.budget.shown
        f32, bf16, u8 = (self.plain[dtype] for dtype in ("f32", "bf16", "u8"))
        slower = " (slower than f32 here)" if taken.seconds > 1.05 * f32.seconds else ""
        return [
            *filter(None, [self.reason]),
            self.verdict,
            f"measured on {self.held_out}, calibrated on {self.calibrated}",
            f"speed: {taken.speed(f32)} times that of f32{slower}, {taken.speed(bf16)} times"
            f" that of bf16, by seconds of the CPU",
            f"all in bf16: {self.budget.name} {shown(bf16.error)}; all in u8: {shown(u8.error)},"
            f" {u8.speed(bf16)} times the speed of bf16",
        ]

    def to_json(self) -> str:
        """``{"status", "outputs": [], "cause", "budget", "limit", "error", "bound", "layers": [],
        "trials": [], "notes": []}``, with each layer's name, cell, dtype and errors alone.

        ``cause``: null, or why nothing was narrowed.
        """
        keys = ("name", "cell", "dtype", "alone")
        measured = ("error", "bound", "counted", "calibrated", "held_out", "notes")
        return json_text(
            self.passed,
            cause={"id": "nothing_narrowed", "text": self.reason} if self.reason else None,
            budget=self.budget.name,
            limit=self.budget.limit,
            layers=[{key: getattr(each, key) for key in keys} for each in self.layers],
            trials=[vars(each) for each in self.trials],
            **{key: getattr(self, key) for key in measured},
        )


def quantize(
    model: Graph | str | PathLike[str],
    batches: str | PathLike[str] | Iterable[Feed | str | PathLike[str]],
    *,
    budget: str | Budget | None = None,
    held_out: Iterable[Feed | str | PathLike[str]] | None = None,
    labels_of: Sequence[str] = (),
    backend: str = "auto",
    threads: int | None = 1,
    progress: Progress = lambda *_: None,
) -> Quantized:
    """The model with each recurrent layer in u8, bf16 or f32: as narrow as the budget allows.

    u8 has calibrated scales, or ("u8 rows") a step for each row that is read.

    ``model``: as `onernn.load` gives it, or its path. ``batches``: recordings, or inputs by name.
    Every other one of them calibrates, and the rest gives the error; of a single ragged batch
    every other sentence; ``held_out`` gives the error instead. ``labels_of``: the outputs whose
    labels a budget of labels counts; without it see `score_outputs`.

    The layer that does most harm by itself gets the next wider dtype first; when the budget holds,
    each is tried again in its earlier dtype. Without a budget all are in u8.

    Labels keep the budget on new data, by an upper bound of 95 %; other budgets are kept on the
    batches that were seen. No time decides: the same batches give the same model. Raises
    `UnsupportedError` for batches that are not finite or hold nothing, a model without recurrent
    layers, and outputs without labels.
    """
    if budget is None:
        budget = Budget("max_abs", np.inf)
    wanted = budget if isinstance(budget, Budget) else Budget.of(budget)
    if labels_of and wanted.name != "labels":
        raise UnsupportedError("labels_of (--labels-of) belongs to a budget of labels")
    graph = separated(graph_of(model))
    feeds = _read(graph, [batches] if isinstance(batches, str | PathLike) else batches)
    calibration, measured, notes = _halves(feeds)
    if held_out is not None:
        calibration, measured, notes = feeds, _read(graph, held_out), []
    for each in (calibration, measured):
        numbers = [
            _finite(value, f"batch {index}: input {name!r} has")
            for index, feed in enumerate(each)
            for name, value in feed.items()
        ]
        if not any(array.size for array in numbers):
            raise UnsupportedError("the batches have no steps at all: nothing can be calibrated")
    if not (layers := recurrent_layers(graph)):
        raise UnsupportedError(f"{graph.name}: it has no recurrent layer outside of loops")
    options = {"backend": backend, "threads": threads}
    seen = observed(graph, calibration, progress, backend)
    scales = {y: tuple(part.scales for part in each) for y, each in seen.items()}
    search = _Search(graph, scales, measured, wanted, options, progress, labels_of)
    chosen = search.within_budget()
    taken = search.trial(chosen)
    return Quantized(
        search.model(chosen),
        wanted,
        search.errors.counted,
        "" if taken.is_narrow else search.why_not(),
        tuple(
            QuantizedLayer(
                y,
                _cell(rnn),
                chosen[y],
                {level: search.alone(y, level) for level in _LEVELS[:-1]},
                seen[y],
                scales[y],
            )
            for y, rnn in layers.items()
        ),
        {dtype: search.trial(dict.fromkeys(scales, dtype)) for dtype in ("f32", "bf16", "u8")},
        (*search.done.values(), taken),
        _described(calibration),
        _described(measured),
        (
            *notes,
            *search.errors.notes,
            *(
                f"layer {part.name!r} read nothing but zeros: each row keeps a step of its own"
                for part in sum(seen.values(), [])
                if part.x.ends == (0, 0)
            ),
        ),
        calibration[0],
    )


class _Search:
    """Runs a model in different dtypes on the held-out batches; each choice once."""

    def __init__(
        self,
        graph: Graph,
        scales: Mapping[str, tuple[PartScales, ...]],
        batches: Sequence[Feed],
        budget: Budget,
        options: Mapping[str, Any],
        progress: Progress,
        labels_of: Sequence[str],
    ) -> None:
        self._graph, self._scales, self._batches = graph, scales, batches
        self._budget, self._options, self._progress = budget, options, progress
        self.done: dict[tuple[str, ...], Trial] = {}
        exact, _ = self._outputs(dict.fromkeys(scales, "f32"))
        self.errors = Errors(budget.name, exact)
        if budget.name == "labels":
            narrowest, _ = self._outputs(dict.fromkeys(scales, "u8"))
            backend, limit = options["backend"], budget.limit
            self.errors = Labels(graph, batches, exact, narrowest, labels_of, limit, backend)

    def model(self, dtypes: Mapping[str, str]) -> Graph:
        """The graph with these dtypes of its layers."""

        def precision(y: str, dtype: str) -> LayerPrecision:
            if dtype == "u8 rows":  # for each part: oneDNN would take a scale for all rows
                return LayerPrecision("u8", (PartScales(),) * len(self._scales[y]))
            return LayerPrecision(dtype, self._scales[y] if dtype == "u8" else ())

        return with_precision(self._graph, {y: precision(y, d) for y, d in dtypes.items()})

    def trial(self, dtypes: Mapping[str, str]) -> Trial:
        key = tuple(dtypes[y] for y in self._scales)
        if key not in self.done:
            self._progress("measuring", len(self.done) + 1, 0)
            outputs, seconds = self._outputs(dtypes)
            error, bound = self.errors.of(outputs)
            if set(key) == {"f32"}:
                bound = error  # nothing was changed: new data changes nothing
            self.done[key] = Trial(dict(dtypes), error, bound, seconds)
        return self.done[key]

    def _outputs(self, dtypes: Mapping[str, str]) -> tuple[list[Outputs], float]:
        """The outputs of each batch, and the CPU seconds for all of them, at best."""
        session = Session(self.model(dtypes), **self._options)
        seconds = []
        for _ in range(_ROUNDS):
            started = time.process_time()
            outputs: list[Outputs] = [session.run(feed) for feed in self._batches]
            seconds.append(time.process_time() - started)
        return outputs, min(seconds)

    def alone(self, y: str, dtype: str) -> float:
        """The error where only this layer is narrow."""
        return self.trial({**dict.fromkeys(self._scales, "f32"), y: dtype}).error

    def _holds(self, dtypes: Mapping[str, str]) -> bool:
        return self.trial(dtypes).bound <= self._budget.limit

    def within_budget(self) -> dict[str, str]:
        """The dtype of each layer."""
        dtypes = dict.fromkeys(self._scales, "u8")
        given_back: list[tuple[str, str]] = []
        while not self._holds(dtypes) and set(dtypes.values()) != {"f32"}:
            narrow = [y for y in self._scales if dtypes[y] != "f32"]
            worst = max(narrow, key=lambda y: self.alone(y, dtypes[y]))
            given_back.append((worst, dtypes[worst]))
            error, wider = self.alone(*given_back[-1]), _LEVELS.index(dtypes[worst]) + 1
            better = (each for each in _LEVELS[wider:-1] if self.alone(worst, each) < error)
            dtypes[worst] = next(better, "f32")
        # The last that was given back is needed: without it the budget did not hold.
        for y, dtype in given_back[:-1]:
            again = {**dtypes, y: dtype}
            if _LEVELS.index(dtype) < _LEVELS.index(dtypes[y]) and self._holds(again):
                dtypes = again
        return dtypes

    def why_not(self) -> str:
        """Why nothing was narrowed."""
        shown, limit = self._budget.shown, self._budget.limit
        best = min((each for each in self.done.values() if each.is_narrow), key=lambda e: e.bound)
        why = f"{', '.join(f'{y} in {dtype}' for y, dtype in best.dtypes.items())} has"
        if self._budget.name != "labels":
            why = f"{why} {self._budget.name} {shown(best.bound)}"
        elif self.errors.least > limit:
            why = (
                f"if none of {self.errors.counted} changed, still {shown(self.errors.least)} of new"
                " ones could; give more held-out sequences"
            )
        else:
            why = f"{why} changed {shown(best.error)}, at most {shown(best.bound)} on new data"
        return f"nothing was narrowed within {shown(limit)}: {why}"


def _cell(rnn: Recurrent) -> str:
    spec = rnn.spec
    layers = f", {spec.layers} layers" if spec.layers > 1 else ""
    return f"{spec.cell.name} {spec.input_size}->{spec.hidden_size} {spec.direction}{layers}"


def _read(graph: Graph, batches: Iterable[Feed | str | PathLike[str]]) -> list[Feed]:
    """The inputs of each batch. Raises `UnsupportedError` for none, and what reading raises."""
    feeds: list[Feed] = []
    for each in batches:
        if isinstance(each, str | PathLike):
            arrays, where = opened(str(each), INPUTS)
            each = read_inputs(arrays, graph.inputs, where)
        feeds.append(checked_feed(graph.inputs, each))
    if not feeds:
        raise UnsupportedError("no batches: give one at least")
    return feeds


def _halves(batches: list[Feed]) -> tuple[list[Feed], list[Feed], list[str]]:
    """The batches that calibrate, those that measure the error, and notes."""
    only, *others = batches
    lengths = {len(v) if isinstance(v, Ragged) and not v.outer else 0 for v in only.values()}
    halves: tuple[list[Feed], list[Feed]] = batches[::2], batches[1::2]
    if not others and len(lengths) == 1 and min(lengths) > 1:
        lists = {name: value.to_list() for name, value in only.items() if isinstance(value, Ragged)}
        one, other = (
            [{name: Ragged.from_list(each[first::2]) for name, each in lists.items()}]
            for first in (0, 1)
        )
        halves = [*one], [*other]
    if all(any(data_of(v).size for feed in half for v in feed.values()) for half in halves):
        return *halves, []
    note = "the error was measured on the batch that calibrated: give more, or --held-out"
    return batches, batches, [note]


def _described(batches: Sequence[Feed]) -> str:
    numbers = sum(max((data_of(v).size for v in feed.values()), default=0) for feed in batches)
    return f"{len(batches)} batch{'es' * (len(batches) > 1)} of {numbers} numbers"
