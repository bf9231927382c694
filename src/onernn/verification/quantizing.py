"""Quantizes as many layers of a model as an error budget allows: see `quantize`.

The labels of one sequence depend on each other, so the bound for a budget of labels treats
sequences, not labels, as independent; see design/0061.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from statistics import NormalDist
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.joined_layers import stack_layers
from onernn.ir.arrays import Array, Int64
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.feeds import check_feed
from onernn.ir.graph import Graph, graph_of
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Part, parts, with_precision
from onernn.ir.spec import Cell
from onernn.ir.weights import UNIT, LayerPrecision, PartScales, Scale
from onernn.verification.comparing import Batches, differences, json_text, map_data
from onernn.verification.profiles import Axes, axes_of
from onernn.verification.recording import INPUTS, open_recording, read_inputs
from onernn.verification.tracing import recurrent_layers, trace

Feed = Batches
_LEVELS = ("u8", "u8 rows", "bf16", "f32")
"""The dtypes of a layer, narrowest first. "u8" has calibrated scales, "u8 rows" one scale for each
row.
"""
CONFIDENCE = 0.95
_TURNS, _TIMED, _SLOWER = 12, 1.0, 1.05
"""Limits of a speed measurement: runs of each model, CPU seconds in all; and the ratio from which a
model is called slower.
"""
_PRIOR = 3
"""The number of label changes, in sequences whose labels all change, that `design_effect` adds to
the measured changes; see design/0061.
"""


# --- budgets


class Budget(NamedTuple):
    """The largest allowed error. ``name``: its measure, labels, max_abs or rmse."""

    name: str
    limit: float

    @classmethod
    def of(cls, text: str) -> Budget:
        """Reads a budget such as "labels 0.1%", "max_abs 0.02" or "rmse 0.001"; see `quantize`.

        Raises `UnsupportedError` for other texts.
        """
        match = re.fullmatch(r"\s*(labels|max_abs|rmse)\s+([0-9.eE+-]+)\s*(%?)\s*", text)
        name, number, percent = match.groups() if match else ("", "", "")
        try:
            limit = float(number) / (100 if percent else 1)
        except ValueError:
            limit = -1.0
        if not 0 <= limit < np.inf or bool(percent) != (name == "labels"):
            expected = "expected 'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'"
            raise UnsupportedError(f"budget {text!r}: {expected}")
        return cls(name, limit)

    def format_amount(self, amount: float) -> str:
        """Returns as text an error in the measure ``name``."""
        return f"{amount:.3%}" if self.name == "labels" else f"{amount:.3g}"


class Numbers:
    """Measures the error of outputs of floats by max_abs or rmse; padding does not count.
    ``counted``: a text that says what was compared.

    Raises `UnsupportedError` if no output has floats and the budget has a limit.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Sequence[Feed],
        exact: Sequence[Feed],
        budget: Budget,
        backend: str,
    ) -> None:
        whole = [name for name, v in exact[0].items() if data_of(v).dtype.kind in "biu"]
        names = [name for name in exact[0] if name not in whole]
        if not names and np.isfinite(budget.limit):
            raise UnsupportedError(
                f"budget {budget.name}: expected an output of floats, got integers in {whole};"
                " choose a budget of labels"
            )
        self._measure = budget.name
        self._exact = [{name: each[name] for name in names or whole} for each in exact]
        self._owners = [
            np.concatenate([*_owners_of_all(graph, feed, outputs, backend).values()])
            for feed, outputs in zip(batches, self._exact, strict=True)
        ]
        self.counted = f"{sum(int((each >= 0).sum()) for each in self._owners):,} numbers"
        if names and whole:
            self.counted += f" of {', '.join(map(repr, names))}"

    def _apart(self, outputs: Sequence[Feed]) -> list[Array] | None:
        """Returns the errors of each sequence, or None if shapes or offsets differ."""
        result = []
        for every, exact, owners in zip(outputs, self._exact, self._owners, strict=True):
            pairs = [(every[name], want) for name, want in exact.items()]
            if any(_form(one) != _form(want) for one, want in pairs):
                return None
            apart = np.concatenate([differences(data_of(a), data_of(b)).ravel() for a, b in pairs])
            order = np.argsort(owners, kind="stable")
            ends = np.flatnonzero(np.diff(owners[order], prepend=-1))
            result += np.split(apart[order], ends)[1:]
        return result

    def _error(self, apart: Array) -> float:
        if self._measure == "rmse":
            return float(np.sqrt(np.mean(apart**2)))
        return float(apart.max())

    def promise(self, outputs: Sequence[Feed]) -> str:
        """Returns a statement about the errors of new sequences.

        K sequences were measured. With confidence `CONFIDENCE`, at most a share p of all sequences
        has a larger error than the worst of these K, where (1 - p)^K = 1 - `CONFIDENCE`. This holds
        for any distribution.
        """
        seen = [*map(self._error, self._apart(outputs) or ())]
        if not seen:
            return ""
        share = 1 - (1 - CONFIDENCE) ** (1 / len(seen))
        return (
            f"with a confidence of {CONFIDENCE:.0%}, at most {share:.2%} of new sequences have a"
            f" larger {self._measure} than {max(seen):.3g}, the largest of {len(seen):,} sequences"
        )

    def of(self, outputs: Sequence[Feed]) -> tuple[float, float]:
        """Returns the error, and the value that the budget limits, which is the same number. Both
        are infinite if shapes or offsets differ.
        """
        apart = self._apart(outputs)
        if apart is None:
            return np.inf, np.inf
        error = self._error(np.concatenate(apart)) if apart else 0.0
        return error, error


def _form(value: Batch) -> Any:
    return data_of(value).shape, value.lod if isinstance(value, Ragged) else None


# --- labels


def upper_bound(changed: float, total: float, effect: float) -> float:
    """Returns an upper bound, with confidence `CONFIDENCE`, for the share of labels that change on
    new data.

    It is Poisson's upper limit, in Byar's approximation, for ``changed / effect`` independent
    changes among ``total`` labels; see `design_effect`.
    """
    more = changed / effect + 1
    z = NormalDist().inv_cdf(CONFIDENCE)
    limit = more * (1 - 1 / (9 * more) + z / (3 * np.sqrt(more))) ** 3
    return min(1.0, float(limit * effect / max(total, 1)))


def design_effect(changed: Array, counts: Array) -> float:
    """Returns how many labels count as one independent label, because labels of a sequence depend
    on each other.

    ``changed``, ``counts``: changed labels and all labels of each sequence. The effect is the
    variance between sequences divided by the variance of independent labels. A few changes are
    little evidence, so `_PRIOR` changes of whole sequences are added.
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
    """Measures the share of labels that change in held-out batches, and its upper bound for new
    data.

    ``exact``, ``narrowest``: the outputs of each batch in float32, and with all layers in u8, which
    show how many labels of a sequence change together. ``name``: see `labels_output`. ``counted``:
    a text that says what was compared.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Sequence[Feed],
        exact: Sequence[Feed],
        narrowest: Sequence[Feed],
        name: str,
        backend: str,
    ) -> None:
        self._name = labels_output(exact[0], name)
        owners = []
        for feed, outputs in zip(batches, exact, strict=True):
            axes = None
            if not isinstance(outputs[self._name], Ragged):
                axes = axes_of(graph, trace(graph, feed, backend)).get(self._name)
            owners.append(_owners(outputs[self._name], axes, self._name))
        self._real = np.concatenate(owners) >= 0
        marked = np.concatenate([own + (batch << 32) for batch, own in enumerate(owners)])
        self._sequences = np.unique(marked[self._real], return_inverse=True)[1]
        self._labels = self._read(exact)
        if not self._labels.size:
            raise UnsupportedError(f"budget labels: {self._name!r}: expected batches with steps")
        self._counts = np.bincount(self._sequences)
        self._effect = design_effect(self._count_changes(narrowest), self._counts)
        self._total = int(self._counts.sum())
        self.counted = (
            f"{self._total:,} labels of {self._name!r} in {len(self._counts):,} sequences"
        )

    def _read(self, outputs: Sequence[Feed]) -> Array:
        """Returns the labels of all batches: integer outputs themselves, or the index of the
        largest score in each row.
        """
        arrays = (data_of(each[self._name]) for each in outputs)
        labels = [a if a.dtype.kind in "biu" else a.argmax(axis=-1) for a in arrays]
        return np.concatenate([each.ravel() for each in labels])[self._real]

    def _count_changes(self, outputs: Sequence[Feed]) -> Int64:
        """Returns the number of labels that change in each of the K sequences."""
        different = self._sequences[self._read(outputs) != self._labels]
        return np.bincount(different, minlength=len(self._counts))

    def promise(self, outputs: Sequence[Feed]) -> str:
        """Returns a statement, with its confidence, about the share of labels that change on new
        data.
        """
        bound = self.of(outputs)[1]
        return f"with a confidence of {CONFIDENCE:.0%}, at most {bound:.3%} change on new data"

    def of(self, outputs: Sequence[Feed]) -> tuple[float, float]:
        """Returns the share of labels that change, and its upper bound for new data."""
        changed = float(self._count_changes(outputs).sum())
        return changed / self._total, upper_bound(changed, self._total, self._effect)


def _owners(value: Batch, axes: Axes | None, name: str) -> Int64:
    """Returns the sequence of each label of an output as an index, -1 for padding.

    Raises `UnsupportedError` if the output's axes do not show the sequences.
    """
    array = data_of(value)
    shape = array.shape if array.dtype.kind in "biu" else array.shape[:-1]
    if isinstance(value, Ragged):
        ends = value.offsets
        for level in reversed(value.outer):
            ends = ends[level]  # now the offsets of the outermost sequences
        steps = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        return np.repeat(steps, np.prod(shape, dtype=int) // max(len(steps), 1))
    where = f"budget labels: {name!r}: its labels read several"
    if axes is None or axes.batch is None or axes.batch >= len(shape):
        text = "sequences, or none; pass a different output (--labels-of)"
        raise UnsupportedError(f"{where} {text}")
    places = np.indices(shape)
    sequence = places[axes.batch]
    if axes.lengths is None or axes.state:  # no padding: an empty sequence also has a state
        return sequence.ravel()
    if axes.time is None and len(shape) > 1 and np.ptp(axes.lengths):
        text = "steps, and may count padding; pass batches of one length"
        raise UnsupportedError(f"{where} {text}")
    stepped = axes.time is not None and axes.time < len(shape)
    step = places[axes.time] if stepped else np.zeros(shape, np.int64)
    return np.where(step < axes.lengths[sequence], sequence, -1).ravel()


def _owners_of_all(graph: Graph, feed: Feed, outputs: Feed, backend: str) -> dict[str, Int64]:
    """Returns the sequence of each element of each output, -1 for padding.

    If it is unknown for one output, the batch counts as one sequence.
    """
    dense = not all(isinstance(value, Ragged) for value in outputs.values())
    axes = axes_of(graph, trace(graph, feed, backend)) if dense else {}
    result = {}
    for name, value in outputs.items():
        try:
            single = map_data(value, lambda a: np.broadcast_to(np.float32(0), (*a.shape, 1)))
            result[name] = _owners(single, axes.get(name), name)
        except UnsupportedError:
            return {name: np.zeros(data_of(v).size, np.int64) for name, v in outputs.items()}
    return result


def labels_output(outputs: Feed, name: str) -> str:
    """Returns the output whose labels count: ``name``, or the only output of integers, or the only
    output.

    Raises `UnsupportedError` if there are several, or if the output holds no labels.
    """
    arrays = {name: data_of(value) for name, value in outputs.items()}
    whole = [name for name, array in arrays.items() if array.dtype.kind in "biu"]
    result, *others = [name] if name else whole or [*arrays]
    if others or result not in arrays:
        hint = did_you_mean(name, arrays) if name else ""
        raise UnsupportedError(
            f"labels of {name!r} (--labels-of, labels_of=): expected one of {[*arrays]}{hint}"
        )
    if result not in whole and arrays[result].shape[-1:] in ((), (1,)):
        text = "expected integers, or a score for each label"
        raise UnsupportedError(f"labels of {result!r}: {text}, got one value per row")
    return result


# --- ranges and scales


def scale_over(low: float, high: float) -> Scale | None:
    """Returns a uint8 scale for values from low <= 0 to high >= 0, in which 0 is exact; None if
    both are 0.
    """
    if low == high:
        return None
    shift = float(np.rint(-low / (high - low) * 255))
    steps = [count / end for count, end in ((shift, -low), (255 - shift, high)) if count and end]
    return Scale(min(*steps, float(np.finfo(np.float32).max)), shift)


def scales_of(part: Part, x: tuple[float, float], h: tuple[float, float]) -> PartScales:
    """Returns the scales of a layer and direction for the ranges of its inputs ``x`` and states
    ``h``.

    If states cannot leave [-1, 1], their scale is for this range. If all values are 0, the scale is
    None: each row then gets its own.
    """
    natural = part.spec.activations is None and part.spec.cell is not Cell.RNN_RELU
    bounded = natural and not part.spec.projection_size and -1 <= h[0] <= h[1] <= 1
    return PartScales(scale_over(*x), UNIT if bounded else scale_over(*h))


def observe_scales(
    graph: Graph, batches: Sequence[Feed], backend: str
) -> dict[str, tuple[PartScales, ...]]:
    """Returns the scales of each recurrent node outside of loops by its output y, from float32
    runs.

    Raises `UnsupportedError` for NaN and infinity; the message names the batch and the layer.
    """
    apart = fuse(graph, (ExpandLayers(),)).model
    ends: dict[tuple[str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for index, feed in enumerate(batches):
        values = {**apart.constants, **trace(apart, feed, backend)}
        for y, rnn in recurrent_layers(apart).items():
            where = f"batch {index}: layer {y!r} reads or gives"
            for kind, name in (("x", rnn.x), ("h", rnn.y), ("h", rnn.h)):
                if name:
                    numbers, (low, high) = _finite(values[name], where), ends[y, kind]
                    low, high = numbers.min(initial=low), numbers.max(initial=high)
                    ends[y, kind] = float(low), float(high)
    result = {}
    for y, rnn in recurrent_layers(graph).items():
        names = [(part, part_name(rnn, part)) for part in parts(rnn.spec)]
        result[y] = tuple(scales_of(part, ends[n, "x"], ends[n, "h"]) for part, n in names)
    return result


def _finite(value: Batch, where: str) -> Array:
    numbers = data_of(value)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise UnsupportedError(f"{where} NaN or infinity; calibrate without it")
    return numbers


def separate_layers(model: Graph) -> Graph:
    """Returns the fused model with one node per layer; no layer has a narrow dtype."""
    passes = tuple(each for each in PASSES if each is not stack_layers)
    graph = fuse(with_precision(model, {}), passes).model
    nodes = []
    for node in graph.nodes:
        if node.op == "Rnn" and not node.outputs[0]:  # y is unused; it names the layer
            y = f"{next(filter(None, node.outputs))}/y"
            node = replace(node, outputs=(y, *node.outputs[1:]))
        nodes.append(node)
    split = ExpandLayers(directions=lambda _: False)
    return fuse(replace(graph, nodes=tuple(nodes)), (split,)).model


# --- the choice of dtypes


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A layer and the dtype chosen for it: "u8", "u8 rows", "bf16" or "f32", see `quantize`.

    ``alone``: by dtype, the model's error if only this layer has the dtype and all others have f32.
    """

    name: str
    dtype: str
    alone: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Quantized:
    """The result of `quantize`.

    ``model``: the graph; each layer has its dtype. ``error``: the measured error. ``counted``: a
    text that says what was compared. ``bound``: the value that the budget limits: for labels the
    upper bound for new data, otherwise the error. ``promise``: a statement about new data, with its
    confidence. ``notes``: remarks for the user. ``example``: one of the batches.
    """

    model: Graph
    budget: Budget
    error: float
    bound: float
    counted: str
    promise: str
    layers: tuple[QuantizedLayer, ...]
    notes: tuple[str, ...]
    example: Feed

    @property
    def verdict(self) -> str:
        """The error and the statement about new data, joined in one line."""
        error, limit = map(self.budget.format_amount, (self.error, self.budget.limit))
        how = "changed" if self.budget.name == "labels" else "seen"
        seen = f"{self.budget.name}: {error} of {self.counted} {how}"
        allowed = f", {limit} allowed" if np.isfinite(self.budget.limit) else ""
        return "; ".join(filter(None, (seen + allowed, self.promise)))

    def of_layers(self) -> list[str]:
        """Returns a line for each layer: its dtype, and the model's error if only this layer is
        narrow.
        """
        amount, lines = self.budget.format_amount, []
        for each in self.layers:
            costs = (f"{dtype} alone {amount(error)}" for dtype, error in each.alone.items())
            lines.append(f"{each.name}: {each.dtype} ({', '.join(costs)})")
        return lines

    def to_json(self) -> str:
        """Returns ``{"status", "outputs": [], "cause", "budget", "limit", "layers": [], "error",
        "bound", "confidence", "counted", "promise", "notes": []}``. Each layer has its name, dtype
        and errors.
        """
        keys = ("layers", "error", "bound", "counted", "promise", "notes")
        of = {key: getattr(self, key) for key in keys} | {"confidence": CONFIDENCE}
        return json_text(True, budget=self.budget.name, limit=self.budget.limit, **of)


def quantize(
    model: Graph | str | PathLike[str],
    batches: str | PathLike[str] | Iterable[Feed | str | PathLike[str]],
    *,
    budget: str | None = None,
    held_out: Iterable[Feed | str | PathLike[str]] | None = None,
    labels_of: str = "",
    backend: str = "auto",
    threads: int | None = 1,
) -> Quantized:
    """Returns the model with each recurrent layer in the narrowest of u8, bf16 and f32 that the
    budget allows.

    A u8 layer has calibrated scales, or ("u8 rows") one scale for each row of an input.

    ``model``: the result of `onernn.load`, or its path. ``batches``: recordings, or inputs by name.
    The first batch and every second one after it calibrate the scales, and the rest measures the
    error; with ``held_out``, all ``batches`` calibrate and ``held_out`` measures. ``budget``:
    "labels 0.1%" is the share of labels that may change, "max_abs 0.02" the largest error of any
    output of floats, "rmse 0.001" the root of the mean square error over these outputs.
    ``labels_of``: the output whose labels a budget of labels counts; by default the only output of
    integers, or the only output.

    All layers begin in u8. While the model breaks the budget, the layer with the largest error by
    itself gets the next wider dtype. Without a budget all layers stay in u8.

    A budget of labels holds for new data, by an upper bound with 95 % confidence. Other budgets
    hold for these batches; ``promise`` then says how many new sequences may have larger errors. The
    same batches always lead to the same model. ``notes`` say if the model takes more time than in
    float32 on this CPU. Raises `UnsupportedError` for batches with NaN or infinity, for empty
    batches, for a model without recurrent layers, and for outputs without labels.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> gru = onernn.Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": weights})
    >>> x, y = onernn.Value("x", "float32", (None, 2), lod_depth=1), onernn.Value("y")
    >>> model = onernn.Graph("gru", (x,), (y,), (gru,), {})
    >>> batch = {"x": onernn.Ragged.from_lengths(np.ones((4, 2), "f4"), [3, 1])}
    >>> quantized = onernn.quantize(model, [batch, batch], budget="max_abs 0.1")
    >>> [layer.dtype for layer in quantized.layers]
    ['u8']
    """
    wanted = Budget("max_abs", np.inf) if budget is None else Budget.of(budget)
    if labels_of and wanted.name != "labels":
        expected = "expected a budget of labels for it"
        raise UnsupportedError(f"labels_of={labels_of!r} (--labels-of): {expected}, got {budget!r}")
    graph, notes = separate_layers(graph_of(model)), []
    if not (layers := recurrent_layers(graph)):
        raise UnsupportedError(f"{graph.name}: expected a recurrent layer outside of loops")
    feeds = _read(graph, [batches] if isinstance(batches, str | PathLike) else batches)
    calibration, measured = feeds[::2], feeds[1::2]
    if held_out is not None:
        calibration, measured = feeds, _read(graph, held_out)
    elif not measured:
        measured = feeds
        notes = ["the error was measured on the batch that calibrated: give more, or --held-out"]
    scales = observe_scales(graph, calibration, backend)
    search = _Search(graph, scales, measured, wanted, labels_of, backend=backend, threads=threads)
    chosen = search.within_budget()
    error, bound = search.trial(chosen)
    notes += search.notes_on_speed(chosen)
    if set(chosen.values()) == {"f32"}:
        few = "; a budget of labels needs at least 3 / budget held-out sequences"
        notes.append("nothing was narrowed" + (few if wanted.name == "labels" else ""))
    return Quantized(
        search.model(chosen),
        wanted,
        error,
        bound,
        search.errors.counted,
        "" if measured is feeds else search.promise(chosen),
        tuple(
            QuantizedLayer(y, chosen[y], {each: search.alone(y, each) for each in _LEVELS[:-1]})
            for y in layers
        ),
        tuple(notes),
        calibration[0],
    )


class _Search:
    """Runs a model with different dtypes of its layers on the held-out batches, and caches the
    errors.
    """

    def __init__(
        self,
        graph: Graph,
        scales: Mapping[str, tuple[PartScales, ...]],
        batches: Sequence[Feed],
        budget: Budget,
        labels_of: str,
        **options: Any,
    ) -> None:
        self._graph, self._scales, self._batches = graph, scales, batches
        self._budget, self._options = budget, options
        self._done: dict[tuple[str, ...], tuple[float, float]] = {}
        exact = self._outputs(dict.fromkeys(scales, "f32"))
        backend = options["backend"]
        self.errors: Numbers | Labels
        if budget.name == "labels":
            narrowest = self._outputs(dict.fromkeys(scales, "u8"))
            self.errors = Labels(graph, batches, exact, narrowest, labels_of, backend)
        else:
            self.errors = Numbers(graph, batches, exact, budget, backend)

    def model(self, dtypes: Mapping[str, str]) -> Graph:
        def precision(y: str, dtype: str) -> LayerPrecision:
            # Without these empty scales, oneDNN uses one scale for all rows.
            if dtype == "u8 rows":
                return LayerPrecision("u8", (PartScales(),) * len(self._scales[y]))
            return LayerPrecision(dtype, self._scales[y] if dtype == "u8" else ())

        return with_precision(self._graph, {y: precision(y, d) for y, d in dtypes.items()})

    def _outputs(self, dtypes: Mapping[str, str]) -> list[Feed]:
        session = Session(self.model(dtypes), **self._options)
        return [session.run(feed) for feed in self._batches]

    def trial(self, dtypes: Mapping[str, str]) -> tuple[float, float]:
        key = tuple(dtypes[y] for y in self._scales)
        if key not in self._done:
            error, bound = self.errors.of(self._outputs(dtypes))
            if set(key) == {"f32"}:
                # With all layers in f32, outputs on new data do not change.
                bound = error
            self._done[key] = error, bound
        return self._done[key]

    def promise(self, dtypes: Mapping[str, str]) -> str:
        """Returns the statement about new data; "" if all layers are f32."""
        if set(dtypes.values()) == {"f32"}:
            return ""
        return self.errors.promise(self._outputs(dtypes))

    def notes_on_speed(self, dtypes: Mapping[str, str]) -> list[str]:
        """Returns a note if a run with these dtypes takes more CPU time than in float32.

        It runs both models by turns on the largest batch. The note does not affect the choice.
        """
        both = [dict.fromkeys(self._scales, "f32"), dtypes]
        if both[0] == both[1]:
            return []
        sessions = [Session(self.model(each), **self._options) for each in both]
        feed = max(self._batches, key=lambda each: sum(data_of(v).size for v in each.values()))
        best, ends = [np.inf, np.inf], process_time() + _TIMED
        for turn in range(_TURNS):
            for index, session in enumerate(sessions):
                started = process_time()
                session.run(feed)
                best[index] = min(best[index], process_time() - started) if turn else np.inf
            if turn > 1 and process_time() > ends:
                break
        ratio = best[1] / max(best[0], 1e-9)
        if ratio < _SLOWER:
            return []
        kinds = " and ".join(sorted({*dtypes.values()} - {"f32"}))
        return [
            f"slower than f32 on this CPU: in {kinds} a run takes {ratio:.2f} times as long; time"
            " both files where the model will run, with batches of the size in use"
        ]

    def alone(self, y: str, dtype: str) -> float:
        """Returns the model's error if only this layer has ``dtype`` and all others have f32."""
        return self.trial({**dict.fromkeys(self._scales, "f32"), y: dtype})[0]

    def within_budget(self) -> dict[str, str]:
        dtypes = dict.fromkeys(self._scales, "u8")
        while self.trial(dtypes)[1] > self._budget.limit and set(dtypes.values()) != {"f32"}:
            narrow = [y for y in self._scales if dtypes[y] != "f32"]
            worst = max(narrow, key=lambda y: self.alone(y, dtypes[y]))
            dtypes[worst] = _LEVELS[_LEVELS.index(dtypes[worst]) + 1]
        return dtypes


def _read(graph: Graph, batches: Iterable[Feed | str | PathLike[str]]) -> list[Feed]:
    """Returns the inputs of each batch that is not empty. Raises `UnsupportedError` if all are
    empty.
    """
    feeds: list[Feed] = []
    for index, each in enumerate(batches):
        if isinstance(each, str | PathLike):
            arrays, where = open_recording(str(each), INPUTS)
            each = read_inputs(arrays, graph.inputs, where)
        feed = check_feed(graph.inputs, each)
        numbers = [_finite(v, f"batch {index}: input {n!r} has") for n, v in feed.items()]
        if any(array.size for array in numbers):
            feeds.append(feed)
    if not feeds:
        raise UnsupportedError("batches: expected at least one with steps, got none")
    return feeds
