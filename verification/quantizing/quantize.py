"""A model of which as many layers compute in bytes as a budget allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, Node, graph_of
from onernn.core.precision import LayerPrecision, PartScales, Scale
from onernn.core.ragged import Batch, Ragged, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Recurrent, with_precision
from onernn.runtime.session import Session, checked_feed
from onernn.verification.json_text import json_text
from onernn.verification.quantizing.budgets import MEASURES, Budget, Outputs, labels_of
from onernn.verification.quantizing.observing import (
    Clipping,
    PartSeen,
    Seen,
    checked,
    observed,
    separated,
)
from onernn.verification.recording import INPUTS, opened, read_inputs

Feed = Mapping[str, Batch]
Progress = Callable[[str, int, int], None]
_LEVELS = ("u8", "u8 rows", "bf16", "f32")
"""What a layer is given back to, in turn: calibrated scales, a step for each row, wider numbers."""
_ROUNDS = 3
_SHOWN = 20


@dataclass(frozen=True, eq=False)
class Trial:
    """One choice of dtypes, by layer: its error on held-out batches, and the CPU's seconds."""

    dtypes: Mapping[str, str]
    error: float
    seconds: float


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """``dtype``: "u8", "u8 rows", "bf16" or "f32", see `quantize`. ``alone``: the model's error
    where only this layer computes in a dtype, by that dtype.

    ``parts``: what each layer and direction of the node read and gave; ``scales``: (x, h) of each
    in u8, None where each row has a step of its own.
    """

    name: str
    cell: str
    dtype: str
    alone: Mapping[str, float]
    parts: Sequence[PartSeen]
    scales: Sequence[tuple[Scale | None, Scale | None]]


@dataclass(frozen=True, eq=False)
class ChangedSentence:
    """A sentence of a held-out batch, ``amount`` changed by the budget's measure."""

    batch: int
    sentence: int
    amount: float
    exact: str
    given: str


@dataclass(frozen=True, eq=False)
class Quantized:
    """What `quantize` found. ``model``: the graph whose layers know their precision.

    ``error``: on the ``held_out`` batches. ``plain``: the trials all in f32, in bf16 and in u8.
    ``trials``: all, in their order; the last is the one that was taken. ``changed``: the held-out
    sentences that changed most. ``example``: a batch, for who wants to know the inputs' types.
    """

    model: Graph
    budget: Budget
    error: float
    layers: tuple[QuantizedLayer, ...]
    plain: Mapping[str, Trial]
    trials: tuple[Trial, ...]
    changed: tuple[ChangedSentence, ...]
    calibrated: str
    held_out: str
    notes: tuple[str, ...]
    example: Feed

    @property
    def passed(self) -> bool:
        """Whether the error is within the budget: always, but where f32 itself is not finite."""
        return self.error <= self.budget.limit

    def of_layers(self) -> list[str]:
        """A line for each layer: its dtype, and what it costs alone."""
        found = []
        for each in self.layers:
            costs = ", ".join(
                f"{dtype} alone {self.budget.shown(error)}" for dtype, error in each.alone.items()
            )
            found.append(f"{each.name}: {each.cell}, {each.dtype} ({costs})")
        return found

    def of_model(self) -> list[str]:
        """What it cost, and what it gained."""
        taken, f32, bf16, u8 = self.trials[-1], *map(self.plain.get, ("f32", "bf16", "u8"))
        assert f32 and bf16 and u8
        shown = self.budget.shown
        return [
            f"{self.budget.name}: {shown(self.error)} of {shown(self.budget.limit)} allowed,"
            f" measured on {self.held_out}, calibrated on {self.calibrated}",
            f"speed: {_ratio(f32, taken)} times that of f32, {_ratio(bf16, taken)} times that of"
            f" bf16, by seconds of the CPU",
            f"all in bf16: {self.budget.name} {shown(bf16.error)}; all in u8: {shown(u8.error)},"
            f" {_ratio(bf16, u8)} times the speed of bf16",
        ]

    def to_json(self) -> str:
        """``{"status", "outputs": [], "cause": null, "budget", "limit", "error", "layers": [],
        "trials": [], "notes": []}``, with each layer's name, cell, dtype and errors alone."""
        layers = [
            {"name": e.name, "cell": e.cell, "dtype": e.dtype, "alone": dict(e.alone)}
            for e in self.layers
        ]
        trials = [
            {"dtypes": dict(e.dtypes), "error": e.error, "seconds": e.seconds} for e in self.trials
        ]
        return json_text(
            {
                "status": "pass" if self.passed else "fail",
                "outputs": [],
                "cause": None,
                "budget": self.budget.name,
                "limit": self.budget.limit,
                "error": self.error,
                "calibrated": self.calibrated,
                "held_out": self.held_out,
                "layers": layers,
                "trials": trials,
                "notes": list(self.notes),
            }
        )


def quantize(
    model: Graph | str | PathLike[str],
    batches: str | PathLike[str] | Iterable[Feed | str | PathLike[str]],
    *,
    budget: str | Budget | None = None,
    held_out: Iterable[Feed | str | PathLike[str]] | None = None,
    clipping: Clipping = "mse",
    backend: str = "auto",
    threads: int | None = 1,
    progress: Progress = lambda *_: None,
) -> Quantized:
    """The model with each recurrent layer in u8, bf16 or f32: as narrow as the budget allows.

    u8 has the scales that calibration found, or ("u8 rows") a step for each row that is read.

    ``model``: as `onernn.load` gives it, or its path. ``batches``: recordings, or inputs by name.
    They calibrate every other one of them, and what is left tells the error; of a single ragged
    batch every other sentence; ``held_out`` tells the error instead. ``clipping``: how ranges of
    bytes are found, see `observing.scale_of`. The layer that does most harm alone is given back
    first, to rows, to bf16, then to f32; when the budget holds, each is tried again in what it had.
    Without a budget all layers are in u8.

    No time decides: the same batches give the same model. Raises `UnsupportedError` for batches
    that are not finite or hold nothing, and for a model without recurrent layers.
    """
    if budget is None:
        budget = Budget("max_abs", np.inf, MEASURES["max_abs"])
    wanted = budget if isinstance(budget, Budget) else Budget.of(budget)
    graph = separated(graph_of(model))
    given = _read(graph, [batches] if isinstance(batches, str | PathLike) else batches)
    other = None if held_out is None else _read(graph, held_out)
    notes: list[str] = []
    calibration, measured = _parted(given, notes) if other is None else (given, other)
    checked(calibration)
    checked(measured)
    names = [Recurrent.of(node).y for node in graph.nodes if node.op == "Rnn"]
    if not names:
        raise UnsupportedError(f"{graph.name}: it has no recurrent layer outside of loops")

    def tell(done: int) -> None:
        progress("calibrating", done, len(calibration))

    options: dict[str, Any] = {"backend": backend, "threads": threads}
    seen = observed(graph, calibration, tell, **options)
    search = _Search(graph, seen.precision(clipping), measured, wanted, options, progress)
    chosen = search.within_budget()
    return Quantized(
        search.model(chosen),
        wanted,
        search.trial(chosen).error,
        tuple(_layer(graph, seen, search, y, chosen[y]) for y in names),
        {dtype: search.trial(dict.fromkeys(names, dtype)) for dtype in ("f32", "bf16", "u8")},
        (*search.trials(), search.trial(chosen)),
        tuple(search.changed(chosen)),
        _described(calibration),
        _described(measured),
        tuple(notes + _unseen(seen)),
        calibration[0],
    )


class _Search:
    """Runs a model in different dtypes on the held-out batches; each choice once."""

    def __init__(
        self,
        graph: Graph,
        narrow: Mapping[str, LayerPrecision],
        batches: Sequence[Feed],
        budget: Budget,
        options: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self._graph, self.narrow, self._batches = graph, narrow, batches
        self._budget, self._options, self._progress = budget, options, progress
        self._done: dict[tuple[str, ...], Trial] = {}
        self.names = list(narrow)
        self._exact = self._outputs(dict.fromkeys(self.names, "f32"))[0]

    def model(self, dtypes: Mapping[str, str]) -> Graph:
        """The graph whose layers compute so."""
        chosen = {y: self._precision(y, dtype) for y, dtype in dtypes.items()}
        return with_precision(self._graph, chosen)

    def _precision(self, y: str, dtype: str) -> LayerPrecision:
        if dtype == "u8":
            return self.narrow[y]
        if dtype == "u8 rows":  # told for each part: oneDNN would take a scale for all rows
            return LayerPrecision("u8", (PartScales(),) * len(self.narrow[y].parts))
        return LayerPrecision(dtype)

    def trial(self, dtypes: Mapping[str, str]) -> Trial:
        key = tuple(dtypes[y] for y in self.names)
        if key not in self._done:
            self._progress("measuring", len(self._done) + 1, 0)
            outputs, seconds = self._outputs(dtypes)
            error = self._budget.measure(outputs, self._exact)
            self._done[key] = Trial(dict(dtypes), error, seconds)
        return self._done[key]

    def trials(self) -> tuple[Trial, ...]:
        return tuple(self._done.values())

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
        return self.trial({**dict.fromkeys(self.names, "f32"), y: dtype}).error

    def _better(self, y: str, dtype: str) -> str:
        """The next level at which a layer alone does less harm; f32 does none."""
        wider = _LEVELS[_LEVELS.index(dtype) + 1 : -1]
        error = self.alone(y, dtype)
        return next((each for each in wider if self.alone(y, each) < error), "f32")

    def holds(self, dtypes: Mapping[str, str]) -> bool:
        return self.trial(dtypes).error <= self._budget.limit

    def within_budget(self) -> dict[str, str]:
        """The dtype of each layer."""
        dtypes = dict.fromkeys(self.names, "u8")
        given_back: list[tuple[str, str]] = []
        while not self.holds(dtypes) and set(dtypes.values()) != {"f32"}:
            narrow = [y for y in self.names if dtypes[y] != "f32"]
            worst = max(narrow, key=lambda y: self.alone(y, dtypes[y]))
            given_back.append((worst, dtypes[worst]))
            dtypes[worst] = self._better(worst, dtypes[worst])
        # The last that was given back is needed: without it the budget did not hold.
        for y, dtype in given_back[:-1]:
            again = {**dtypes, y: dtype}
            if _LEVELS.index(dtype) < _LEVELS.index(dtypes[y]) and self.holds(again):
                dtypes = again
        return dtypes

    def changed(self, dtypes: Mapping[str, str]) -> list[ChangedSentence]:
        """The held-out sentences that changed most, the worst first."""
        found: list[ChangedSentence] = []
        for at, (given, exact) in enumerate(
            zip(self._outputs(dtypes)[0], self._exact, strict=True)
        ):
            for sentence, (one, other) in enumerate(_sentences(given, exact)):
                amount = self._budget.measure([one], [other])
                if amount > 0:
                    shown = (_shown(self._budget, each) for each in (other, one))
                    found.append(ChangedSentence(at, sentence, amount, *shown))
        return sorted(found, key=lambda each: -each.amount)[:_SHOWN]


def _layer(graph: Graph, seen: Seen, search: _Search, y: str, dtype: str) -> QuantizedLayer:
    node = graph.producer(y)
    assert node is not None
    alone = {each: search.alone(y, each) for each in _LEVELS[:-1]}
    scales = [(part.data, part.state) for part in search.narrow[y].parts]
    return QuantizedLayer(y, _cell(node), dtype, alone, seen.nodes[y], scales)


def _cell(node: Node) -> str:
    spec = Recurrent.of(node).spec
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


def _parted(batches: list[Feed], notes: list[str]) -> tuple[list[Feed], list[Feed]]:
    """Those that calibrate, and those that tell the error."""
    only, *others = batches
    sentences = {len(v) if isinstance(v, Ragged) and not v.outer else 0 for v in only.values()}
    halves: tuple[list[Feed], list[Feed]] = batches[::2], batches[1::2]
    if not others and len(sentences) == 1 and min(sentences) > 1:
        halves = [_every_other(only, 0)], [_every_other(only, 1)]
    if all(any(data_of(v).size for feed in half for v in feed.values()) for half in halves):
        return halves
    notes.append("the error was measured on the batch that calibrated: give more, or --held-out")
    return batches, batches


def _every_other(feed: Feed, first: int) -> Feed:
    return {
        name: Ragged.from_list(value.to_list()[first::2])
        for name, value in feed.items()
        if isinstance(value, Ragged)
    }


def _sentences(given: Outputs, exact: Outputs) -> Iterable[tuple[Outputs, Outputs]]:
    """Both, sentence by sentence where all are ragged alike; else both as they are."""
    both = [*given.values(), *exact.values()]
    counts = {len(each) if isinstance(each, Ragged) else -1 for each in both}
    if len(counts) > 1 or counts == {-1}:
        return [(given, exact)]
    lists = [
        {name: value.to_list() for name, value in side.items() if isinstance(value, Ragged)}
        for side in (given, exact)
    ]
    return [
        (
            {name: each[at] for name, each in lists[0].items()},
            {name: each[at] for name, each in lists[1].items()},
        )
        for at in range(counts.pop())
    ]


def _shown(budget: Budget, outputs: Outputs) -> str:
    """Labels, or numbers, of a sentence."""
    if budget.name == "labels":
        arrays = labels_of(outputs)
    else:
        arrays = {name: np.round(data_of(value).ravel(), 3) for name, value in outputs.items()}
    texts = (" ".join(map(str, each[:64].tolist())) for each in arrays.values())
    return " | ".join(texts)


def _described(batches: Sequence[Feed]) -> str:
    numbers = sum(max((data_of(v).size for v in feed.values()), default=0) for feed in batches)
    return f"{len(batches)} batch{'es' * (len(batches) > 1)} of {numbers} numbers"


def _unseen(seen: Seen) -> list[str]:
    """Of layers that calibration did not reach."""
    return [
        f"layer {each.name!r} read nothing but zeros: each row keeps a step of its own"
        for found in seen.nodes.values()
        for each in found
        if each.x.ends == (0.0, 0.0)
    ]


def _ratio(slow: Trial, fast: Trial) -> str:
    return f"{slow.seconds / fast.seconds:.2f}" if fast.seconds > 0 else "?"
