"""A model of which as many layers compute in bytes as a budget allows: see `quantize`.

Rows of one sequence depend on each other, so sequences are the sample that a budget of labels
counts: design/0061 derives its bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from onernn.engine.session import Session, checked_feed
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.joined_layers import StackLayers
from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import Refusal, UnsupportedError, did_you_mean
from onernn.ir.graph import Graph, Node, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Part, Recurrent, parts, with_precision
from onernn.ir.spec import Cell
from onernn.ir.weights import UNIT, LayerPrecision, PartScales, Scale
from onernn.ops import OPERATORS
from onernn.verification.comparing import differences, json_text
from onernn.verification.profiles import Axes, axes_of
from onernn.verification.recording import INPUTS, opened, read_inputs
from onernn.verification.tracing import trace

Feed = Mapping[str, Batch]
Outputs = Mapping[str, Batch]
Progress = Callable[[str, int, int], None]
_LEVELS = ("u8", "u8 rows", "bf16", "f32")
"""What a layer gets in turn: bytes of calibrated scales, a step for each row, wider numbers."""
_ROUNDS = 3
CONFIDENCE = 0.95
ENOUGH = 30
"""Labels that a budget should allow to change, for the share that does to be known well."""
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


class _Numbers:
    """The error of all numbers of the outputs, by max_abs or rmse; it promises nothing."""

    def __init__(self, measure: str, exact: Sequence[Outputs]) -> None:
        self._measure, self._exact = measure, exact

    def of(self, outputs: Sequence[Outputs]) -> tuple[float, float]:
        """The error, as what it is and as what the budget limits; infinite for other shapes."""
        pairs = [
            (data_of(one[name]), data_of(want))
            for one, other in zip(outputs, self._exact, strict=True)
            for name, want in other.items()
        ]
        if any(a.shape != b.shape for a, b in pairs):
            return np.inf, np.inf
        apart = np.concatenate([np.zeros(0), *(differences(a, b).ravel() for a, b in pairs)])
        error = float(apart.max(initial=0))
        if self._measure == "rmse":
            error = float(np.sqrt(np.square(apart).sum() / max(apart.size, 1)))
        return error, error

    def __str__(self) -> str:
        sizes = (data_of(value).size for each in self._exact for value in each.values())
        return f"{sum(sizes):,} numbers"

    def notes(self, _: float) -> Iterator[str]:
        return iter(())


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


class Labels:
    """The labels of held-out batches, and how many of them change.

    ``exact``, ``narrowest``: the outputs of each batch, in float32 and all in u8, which shows how
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
            dense = any(not isinstance(outputs[name], Ragged) for name in self._names)
            axes = axes_of(graph, trace(graph, feed, backend)) if dense else {}
            for name in self._names:
                value = outputs[name]
                ragged = isinstance(value, Ragged)
                result = (
                    _of_ragged(value) if ragged else self._of_dense(name, value, axes.get(name))
                )
                owners.append(np.where(result < 0, -1, result + (batch << 32)))
        known, sequences = np.unique(np.concatenate([[-1], *owners]), return_inverse=True)
        if len(known) == 1:
            text = f"budget labels: {', '.join(self._names)}: the batches have no steps"
            raise UnsupportedError(text)
        self._sequences = sequences.reshape(-1)[1:]  # 0: padding
        self._exact = self._read(exact)
        self._counts = np.bincount(self._sequences)[1:]
        self._effect = design_effect(self._changed(narrowest), self._counts)
        self.total = int(self._counts.sum())

    def _of_dense(self, name: str, value: Batch, axes: Axes | None) -> Int64:
        """(labels,): the sequence of each, -1 for padding behind it."""
        shape = _label_shape(value)
        if axes is None or axes.batch is None or axes.batch >= len(shape):
            text = "each batch counts as one sequence, as labels read several"
            self._unknown[f"output {name!r}: {text}; padding may be among them"] = None
            return np.zeros(int(np.prod(shape)), np.int64)
        sequence, step = np.indices(shape)[axes.batch], 0
        if axes.time is not None and axes.time < len(shape):
            step = np.indices(shape)[axes.time]
        lengths = axes.lengths
        if lengths is None:
            return sequence.ravel()
        if axes.time is None and not axes.state and len(shape) > 1 and np.ptp(lengths) > 0:
            text = "labels read several steps, so padding may be among them"
            self._unknown[f"output {name!r}: {text}"] = None
        # A state is there for a sequence without steps, too.
        real = np.asarray(axes.state) | (step < lengths[sequence])
        return np.where(real, sequence, -1).ravel()

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

    def outside(self, scale: Scale) -> float:
        """The share of numbers that saturate in bytes of a scale."""
        values, counts = self.sorted()
        q = np.rint(values * scale.factor) + scale.shift
        return float(counts[(q < 0) | (q > 255)].sum() / max(counts.sum(), 1))


def scale_of(seen: Histogram) -> Scale | None:
    """The scale of bytes with the least mean square error; None where only zeros were.

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


class PartSeen(NamedTuple):
    """What one layer and direction read, ``x``, and gave or was given as state, ``h``."""

    name: str
    part: Part
    x: Histogram
    h: Histogram

    @property
    def scales(self) -> PartScales:
        """States that cannot leave [-1, 1] have that range, whatever was seen.

        Where nothing but zeros was read, each row has its own step.
        """
        spec, (low, high) = self.part.spec, self.h.ends
        natural = spec.activations is None and spec.cell is not Cell.RNN_RELU
        bounded = natural and not spec.projection_size and -1 <= low <= high <= 1
        return PartScales(scale_of(self.x), UNIT if bounded else scale_of(self.h))


Seen = Mapping[str, list[PartSeen]]
"""By the y of each recurrent node that is not inside a loop: its parts, in their order."""


def observed(
    graph: Graph,
    batches: Sequence[Mapping[str, Batch]],
    tell: Callable[[int], None],
    **session: Any,
) -> Seen:
    """Runs a graph without precisions in float32, taken apart into layers and directions.

    ``tell(done)`` after each batch. Raises `UnsupportedError` naming the batch whose numbers, or
    the layer whose numbers, are not finite.
    """
    apart = fuse(graph, (ExpandLayers(),)).model
    nodes = {node.outputs[0]: Recurrent.of(node) for node in apart.nodes if node.op == "Rnn"}
    seen = {
        rnn.y: [PartSeen(part_name(rnn, p), p, Histogram(), Histogram()) for p in parts(rnn.spec)]
        for rnn in (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
    }
    every = [(each, nodes[each.name]) for found in seen.values() for each in found]
    wanted = {name for _, rnn in every for name in (rnn.x, rnn.y, rnn.h)}
    runner = Session(apart, passes=(), **session)
    for at, feed in enumerate(batches):
        values: dict[str, Any] = {**apart.constants, **feed}

        def keep(node: Node, results: tuple[Any, ...], _: float, values: Any = values) -> None:
            pairs = zip(node.outputs, results, strict=False)
            values.update((name, made) for name, made in pairs if name in wanted)

        runner.run(feed, keep)
        for each, rnn in every:
            for histogram, name in ((each.x, rnn.x), (each.h, rnn.y), (each.h, rnn.h)):
                if name:
                    where = f"batch {at}: layer {each.name!r} reads or gives"
                    histogram.add(finite(values[name], where))
        tell(at + 1)
    return seen


def finite(value: Batch, where: str) -> Array:
    """The numbers of a batch. Raises `UnsupportedError` where one is not finite."""
    numbers = data_of(value)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UnsupportedError(f"{where} NaN or infinity; calibrate without it")
    return numbers


class _SplitStacks(ExpandLayers):
    """Only stacks without states: those of others would be cut, and joined anew."""

    def match(self, graph: Graph, node: Node) -> Recurrent | Refusal | None:
        found = super().match(graph, node)
        stateful = isinstance(found, Recurrent) and (
            any(found.states) or any(map(graph.is_read, found.finals))
        )
        return None if stateful else found


def separated(model: Graph) -> Graph:
    """The fused model without precisions, each of its layers a node where it can be."""
    passes = tuple(each for each in PASSES if not isinstance(each, StackLayers))
    graph = fuse(with_precision(model, {}), passes).model
    nodes = []
    for node in graph.nodes:
        if node.op == "Rnn" and not node.outputs[0]:  # y is not read, and needs a name all the same
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
    None where each row has a step of its own.
    """

    name: str
    cell: str
    dtype: str
    alone: Mapping[str, float]
    parts: Sequence[PartSeen]
    scales: Sequence[PartScales]


@dataclass(frozen=True, eq=False)
class Quantized:
    """What `quantize` found. ``model``: the graph whose layers know their precision.

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
        """That of the trial that was taken."""
        return self.trials[-1].error

    @property
    def bound(self) -> float:
        """That of the trial that was taken."""
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
        shown = self.budget.shown
        costs = (
            ", ".join(f"{d} alone {shown(e)}" for d, e in x.alone.items()) for x in self.layers
        )
        pairs = zip(self.layers, costs, strict=True)
        return [f"{each.name}: {each.cell}, {each.dtype} ({cost})" for each, cost in pairs]

    def of_model(self) -> list[str]:
        """What it cost, and what it gained."""
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
        layers = [{key: getattr(each, key) for key in keys} for each in self.layers]
        measured = ("error", "bound", "counted", "calibrated", "held_out", "notes")
        return json_text(
            self.passed,
            cause={"id": "nothing_narrowed", "text": self.reason} if self.reason else None,
            budget=self.budget.name,
            limit=self.budget.limit,
            layers=layers,
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

    u8 has the scales that calibration found, or ("u8 rows") a step for each row that is read.

    ``model``: as `onernn.load` gives it, or its path. ``batches``: recordings, or inputs by name.
    They calibrate every other one of them, and what is left gives the error; of a single ragged
    batch every other sentence; ``held_out`` gives the error instead. ``labels_of``: the outputs
    whose labels a budget of labels counts; without it see `score_outputs`.

    The layer that does most harm by itself is given back first, to rows, to bf16, then to f32;
    when the budget holds, each is tried again in what it had. Without a budget all are in u8.

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
    given = _read(graph, [batches] if isinstance(batches, str | PathLike) else batches)
    calibration, measured, notes = _parted(given)
    if held_out is not None:
        calibration, measured, notes = given, _read(graph, held_out), []
    for feeds in (calibration, measured):
        numbers = [
            finite(value, f"batch {at}: input {name!r} has")
            for at, feed in enumerate(feeds)
            for name, value in feed.items()
        ]
        if not any(each.size for each in numbers):
            raise UnsupportedError("the batches have no steps at all: nothing can be calibrated")
    nodes = [Recurrent.of(node) for node in graph.nodes if node.op == "Rnn"]
    if not nodes:
        raise UnsupportedError(f"{graph.name}: it has no recurrent layer outside of loops")

    def tell(done: int) -> None:
        progress("calibrating", done, len(calibration))

    options: dict[str, Any] = {"backend": backend, "threads": threads}
    seen = observed(graph, calibration, tell, **options)
    scales = {y: tuple(each.scales for each in found) for y, found in seen.items()}
    search = _Search(graph, scales, measured, wanted, options, progress, labels_of)
    chosen = search.within_budget()
    plain = {dtype: search.trial(dict.fromkeys(scales, dtype)) for dtype in ("f32", "bf16", "u8")}
    zeros = "read nothing but zeros: each row keeps a step of its own"
    unseen = [each.name for found in seen.values() for each in found if each.x.ends == (0, 0)]
    taken = search.trial(chosen)
    return Quantized(
        search.model(chosen),
        wanted,
        str(search.errors),
        "" if taken.is_narrow else search.why_not(),
        tuple(
            QuantizedLayer(
                rnn.y,
                _cell(rnn),
                chosen[rnn.y],
                {each: search.alone(rnn.y, each) for each in _LEVELS[:-1]},
                seen[rnn.y],
                scales[rnn.y],
            )
            for rnn in nodes
        ),
        plain,
        (*search.done.values(), taken),
        _described(calibration),
        _described(measured),
        (
            *notes,
            *search.errors.notes(wanted.limit),
            *(f"layer {name!r} {zeros}" for name in unseen),
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
        self.errors: Labels | _Numbers = _Numbers(budget.name, exact)
        if budget.name == "labels":
            narrowest, _ = self._outputs(dict.fromkeys(scales, "u8"))
            backend = options["backend"]
            self.errors = Labels(graph, batches, exact, narrowest, labels_of, backend)

    def model(self, dtypes: Mapping[str, str]) -> Graph:
        """The graph whose layers compute so."""

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
        """Of each batch, and the least of the CPU's seconds that all of them took."""
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

    def _better(self, y: str, dtype: str) -> str:
        """The next level at which a layer by itself does less harm; f32 does none."""
        wider = _LEVELS[_LEVELS.index(dtype) + 1 : -1]
        error = self.alone(y, dtype)
        return next((each for each in wider if self.alone(y, each) < error), "f32")

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
            dtypes[worst] = self._better(worst, dtypes[worst])
        # The last that was given back is needed: without it the budget did not hold.
        for y, dtype in given_back[:-1]:
            again = {**dtypes, y: dtype}
            if _LEVELS.index(dtype) < _LEVELS.index(dtypes[y]) and self._holds(again):
                dtypes = again
        return dtypes

    def why_not(self) -> str:
        """Why nothing was narrowed."""
        shown, limit = self._budget.shown, self._budget.limit
        least = min((each for each in self.done.values() if each.is_narrow), key=lambda e: e.bound)
        why = f"{', '.join(f'{y} in {dtype}' for y, dtype in least.dtypes.items())} has"
        if isinstance(self.errors, _Numbers):
            why = f"{why} {self._budget.name} {shown(least.bound)}"
        elif self.errors.unchanged > limit:
            why = (
                f"if none of {self.errors} changed, still {shown(self.errors.unchanged)} of new"
                " ones could; give more held-out sequences"
            )
        else:
            why = f"{why} changed {shown(least.error)}, at most {shown(least.bound)} on new data"
        return f"nothing was narrowed within {shown(limit)}: {why}"


def _cell(rnn: Recurrent) -> str:
    spec = rnn.spec
    layers = f", {spec.layers} layers" if spec.layers > 1 else ""
    return f"{spec.cell.name} {spec.input_size}->{spec.hidden_size} {spec.direction}{layers}"


def _read(graph: Graph, batches: Iterable[Feed | str | PathLike[str]]) -> list[Feed]:
    """The inputs of each batch. Raises `UnsupportedError` for none, and what reading raises."""
    result: list[Feed] = []
    for each in batches:
        if isinstance(each, str | PathLike):
            arrays, where = opened(str(each), INPUTS)
            each = read_inputs(arrays, graph.inputs, where)
        result.append(checked_feed(graph.inputs, each))
    if not result:
        raise UnsupportedError("no batches: give one at least")
    return result


def _parted(batches: list[Feed]) -> tuple[list[Feed], list[Feed], list[str]]:
    """Those that calibrate, those that measure the error, and notes on them."""
    only, *others = batches
    sentences = {len(v) if isinstance(v, Ragged) and not v.outer else 0 for v in only.values()}
    halves: tuple[list[Feed], list[Feed]] = batches[::2], batches[1::2]
    if not others and len(sentences) == 1 and min(sentences) > 1:
        halves = [_every_other(only, 0)], [_every_other(only, 1)]
    if all(any(data_of(v).size for feed in half for v in feed.values()) for half in halves):
        return *halves, []
    note = "the error was measured on the batch that calibrated: give more, or --held-out"
    return batches, batches, [note]


def _every_other(feed: Feed, first: int) -> Feed:
    return {
        name: Ragged.from_list(value.to_list()[first::2])
        for name, value in feed.items()
        if isinstance(value, Ragged)
    }


def _described(batches: Sequence[Feed]) -> str:
    numbers = sum(max((data_of(v).size for v in feed.values()), default=0) for feed in batches)
    return f"{len(batches)} batch{'es' * (len(batches) > 1)} of {numbers} numbers"
