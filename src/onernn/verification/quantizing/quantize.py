"""A model of which as many layers compute in bytes as a budget allows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from onernn.backend import open_backend
from onernn.engine.session import Session, checked_feed
from onernn.ir.arrays import Array
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.graph import Graph, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent, with_precision
from onernn.ir.weights import LayerPrecision, PartScales
from onernn.verification.comparing import differences
from onernn.verification.json_text import json_text
from onernn.verification.quantizing.labels import Labels, Outputs
from onernn.verification.quantizing.observing import PartSeen, finite, observed, separated
from onernn.verification.recording import INPUTS, opened, read_inputs

Feed = Mapping[str, Batch]
Progress = Callable[[str, int, int], None]
Measure = Callable[[Sequence[Outputs], Sequence[Outputs]], float]
"""(outputs of each batch, those in float32) -> how far apart they are; 0 where they are equal."""
_LEVELS = ("u8", "u8 rows", "bf16", "f32")
"""What a layer is given back to, in turn: calibrated scales, a step for each row, wider numbers."""
_ROUNDS = 3
_SPEED = {
    "v2": {"bf16": "0.9 to 1.2"},
    "avx2": {"bf16": "0.6 to 1.3", "u8": "0.9 to 2.2"},
    "avx512": {"bf16": "0.8 to 1.4", "u8": "0.6 to 1.7"},
    "avx512_vnni": {"bf16": "0.8 to 1.4"},  # avx512's code
}
"""Times the speed of f32, where a dtype may be slower than it; measured, see design/0061."""


def _apart(given: Sequence[Outputs], exact: Sequence[Outputs]) -> Array:
    """|a - b| of all numbers; infinite where a shape, or NaN, is another one."""
    found = [np.zeros(0)]
    for one, other in zip(given, exact, strict=True):
        for name, want in other.items():
            a, b = data_of(one[name]), data_of(want)
            found.append(differences(a, b).ravel() if a.shape == b.shape else np.array([np.inf]))
    return np.concatenate(found)


def _max_abs(given: Sequence[Outputs], exact: Sequence[Outputs]) -> float:
    return float(_apart(given, exact).max(initial=0))


def _rmse(given: Sequence[Outputs], exact: Sequence[Outputs]) -> float:
    apart = _apart(given, exact)
    return float(np.sqrt(np.square(apart).sum() / max(apart.size, 1)))


MEASURES: dict[str, Measure | None] = {"labels": None, "max_abs": _max_abs, "rmse": _rmse}


class Budget(NamedTuple):
    """At most ``limit`` by a ``measure``, None for labels; ``name`` is what reports call it."""

    name: str
    limit: float
    measure: Measure | None

    @classmethod
    def of(cls, text: str) -> Budget:
        """ "labels 0.1%": the share of labels that change. "max_abs 0.02": of any output.

        "rmse 0.001": the root of the mean square over the numbers of all outputs. For labels see
        `labels.score_outputs`. Raises `UnsupportedError` for other texts.
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
        return cls(name, limit, MEASURES[name])

    def shown(self, amount: float) -> str:
        """An amount of it in words."""
        return f"{amount:.3%}" if self.name == "labels" else f"{amount:.3g}"


class _Numbers:
    """The error of all numbers of the outputs, by a budget's measure; it promises nothing."""

    def __init__(self, measure: Measure, exact: Sequence[Outputs]) -> None:
        self._measure, self._exact = measure, exact

    def of(self, outputs: Sequence[Outputs]) -> tuple[float, float]:
        """The error, as what it is and as what the budget limits."""
        error = self._measure(outputs, self._exact)
        return error, error

    def __str__(self) -> str:
        sizes = (data_of(value).size for each in self._exact for value in each.values())
        return f"{sum(sizes):,} numbers"

    def notes(self, _: float) -> Iterator[str]:
        return iter(())


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
        """A line for each layer: its dtype, and what it costs alone."""
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
        return json_text(
            {
                "status": "pass" if self.passed else "fail",
                "outputs": [],
                "cause": {"id": "nothing_narrowed", "text": self.reason} if self.reason else None,
                "budget": self.budget.name,
                "limit": self.budget.limit,
                **{k: getattr(self, k) for k in ("error", "bound", "counted", "calibrated")},
                "held_out": self.held_out,
                "layers": layers,
                "trials": [vars(each) for each in self.trials],
                "notes": list(self.notes),
            }
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
    They calibrate every other one of them, and what is left tells the error; of a single ragged
    batch every other sentence; ``held_out`` tells the error instead. ``labels_of``: the outputs
    whose labels a budget of labels counts; without it see `labels.score_outputs`.

    The layer that does most harm alone is given back first, to rows, to bf16, then to f32; when the
    budget holds, each is tried again in what it had. Without a budget all layers are in u8.

    Labels keep the budget on new data, by an upper bound of 95 %; other budgets are kept on the
    batches that were seen. No time decides: the same batches give the same model. Raises
    `UnsupportedError` for batches that are not finite or hold nothing, a model without recurrent
    layers, and outputs without labels.
    """
    if budget is None:
        budget = Budget("max_abs", np.inf, _max_abs)
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
            *slower(set(chosen.values())),
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
        self.errors: Labels | _Numbers = _Numbers(budget.measure or _max_abs, exact)
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
        """The next level at which a layer alone does less harm; f32 does none."""
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
    found: list[Feed] = []
    for each in batches:
        if isinstance(each, str | PathLike):
            arrays, where = opened(str(each), INPUTS)
            each = read_inputs(arrays, graph.inputs, where)
        found.append(checked_feed(graph.inputs, each))
    if not found:
        raise UnsupportedError("no batches: give one at least")
    return found


def _parted(batches: list[Feed]) -> tuple[list[Feed], list[Feed], list[str]]:
    """Those that calibrate, those that tell the error, and what has to be said of them."""
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


def slower(dtypes: set[str]) -> list[str]:
    """The dtypes that may be slower than f32: the instruction set tells, no clock."""
    try:
        kernels: Any = open_backend("kernels")
    except LibraryError:
        return []
    isa = kernels.kernels.isa
    return [
        f"{dtype} has no instructions of its own in the kernels of this CPU ({isa}): {speed} times"
        " the speed of f32 where it was measured"
        for dtype, speed in _SPEED.get(isa, {}).items()
        if any(each.startswith(dtype) for each in dtypes)
    ]
