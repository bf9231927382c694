"""What recurrent layers read and give in float32, counted; and the scales of bytes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, get_args

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.graph import Graph, Node
from onernn.core.precision import UNIT, LayerPrecision, PartScales, Scale
from onernn.core.ragged import Batch, data_of
from onernn.core.records import dataclass
from onernn.core.rnn import Part, Recurrent, parts, with_precision
from onernn.core.spec import Cell
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.stack_layers import StackLayers
from onernn.runtime.session import Session

Clipping = Literal["mse", "percentile", "minmax"]
PERCENTILE = 99.99
"""Of the numbers that "percentile" keeps."""
_SMALLEST, _LARGEST = 2.0**-10, 65504.0
"""Between these magnitudes a range lies where float16 has eleven bits of every number."""
_ENDS = np.linspace(1.0, 0.2, 41).tolist()
"""Of a range's ends: what "mse" tries."""


class Histogram:
    """Counts of numbers by the nearest float16, and their ends.

    Counts are added: neither the order of batches nor how they are cut changes anything.
    """

    def __init__(self, channels: int) -> None:
        self.counts = np.zeros(2**16, np.int64)
        self.least = np.full(channels, np.inf)
        self.most = np.full(channels, -np.inf)

    def add(self, numbers: Array) -> None:
        """``numbers``: finite float32 (..., channels)."""
        rows = numbers.reshape(-1, numbers.shape[-1])
        if not len(rows):
            return
        self.least = np.minimum(self.least, rows.min(axis=0))
        self.most = np.maximum(self.most, rows.max(axis=0))
        halves = np.clip(rows, -_LARGEST, _LARGEST).astype(np.float16)
        self.counts += np.bincount(halves.view(np.uint16).ravel(), minlength=2**16)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number; both 0 of none."""
        return (float(self.least.min()), float(self.most.max())) if self.total else (0.0, 0.0)

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
        return float(counts[(q < 0) | (q > 255)].sum() / max(self.total, 1))


def scale_of(seen: Histogram, clipping: Clipping = "mse") -> Scale | None:
    """The scale of bytes for what was seen, 0 among them; None where only zeros were.

    "minmax": all numbers fit. "percentile": `PERCENTILE` of them do. "mse": the ends with the least
    mean square error. Ranges that float16 counts too coarsely keep all numbers.
    """
    low, high = (min(seen.ends[0], 0.0), max(seen.ends[1], 0.0))
    if low == high:
        return None
    if clipping == "minmax" or not _SMALLEST <= max(-low, high) <= _LARGEST:
        return _over(low, high)
    values, counts = seen.sorted()
    if clipping == "percentile":
        share = np.cumsum(counts) / seen.total
        rest = (1 - PERCENTILE / 100) / 2
        first, last = np.searchsorted(share, (rest, 1 - rest))
        kept = values[[first, min(int(last), len(values) - 1)]]
        return _over(max(low, min(kept[0], 0.0)), min(high, max(kept[1], 0.0)))

    def error(ends: tuple[float, float]) -> float:
        factor, shift = _over(low * ends[0], high * ends[1])
        q = np.clip(np.rint(values * factor) + shift, 0, 255)
        return float(np.dot((values - (q - shift) / factor) ** 2, counts))

    best = min(((each, each) for each in _ENDS), key=error)
    best = min(((each, best[1]) for each in _ENDS), key=error)
    best = min(((best[0], each) for each in _ENDS), key=error)
    return _over(low * best[0], high * best[1])


def _over(low: float, high: float) -> Scale:
    """From low <= 0 to high >= 0, which fit; 0 is a byte, whole, so one end may have room."""
    shift = float(np.rint(-low / (high - low) * 255))
    steps = [count / end for count, end in ((shift, -low), (255 - shift, high)) if count and end]
    return Scale(min(*steps, float(np.finfo(np.float32).max)), shift)


@dataclass(frozen=True, eq=False)
class PartSeen:
    """What one layer and direction read, ``x``, and gave or was given as state, ``h``."""

    name: str
    part: Part
    x: Histogram
    h: Histogram

    def scales(self, clipping: Clipping) -> PartScales:
        """States that cannot leave [-1, 1] have that range, whatever was seen.

        Where nothing but zeros was read, each row has its own step.
        """
        spec, states = self.part.spec, self.h.ends
        natural = spec.activations is None and spec.cell is not Cell.RNN_RELU
        if natural and not spec.projection_size and -1 <= states[0] and states[1] <= 1:
            return PartScales(scale_of(self.x, clipping), UNIT)
        return PartScales(scale_of(self.x, clipping), scale_of(self.h, clipping))


@dataclass
class Seen:
    """By the y of each recurrent node that is not inside a loop: its parts, in their order."""

    nodes: dict[str, list[PartSeen]] = field(default_factory=dict)

    def precision(self, clipping: Clipping) -> dict[str, LayerPrecision]:
        """Each node in u8."""
        if clipping not in get_args(Clipping):
            known = " or ".join(get_args(Clipping))
            raise UnsupportedError(f"clipping {clipping!r}: expected {known}")
        return {
            y: LayerPrecision("u8", tuple(each.scales(clipping) for each in seen))
            for y, seen in self.nodes.items()
        }


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
    seen, wanted = Seen(), set[str]()
    for node in graph.nodes:
        if node.op != "Rnn":
            continue
        rnn = Recurrent.of(node)
        found = []
        for part in parts(rnn.spec):
            name = part_name(rnn, part)
            width = part.spec.recurrent_size
            found.append(PartSeen(name, part, Histogram(part.spec.input_size), Histogram(width)))
            one = nodes[name]
            wanted |= {one.x, one.y, one.h}
        seen.nodes[rnn.y] = found
    runner = Session(apart, passes=(), **session)
    for at, feed in enumerate(batches):
        values: dict[str, Any] = {**apart.constants, **feed}

        def keep(node: Node, results: tuple[Any, ...], _: float, values: Any = values) -> None:
            pairs = zip(node.outputs, results, strict=False)
            values.update((name, made) for name, made in pairs if name in wanted)

        runner.run(feed, keep)
        for each in (each for found in seen.nodes.values() for each in found):
            one = nodes[each.name]
            each.x.add(_finite(values[one.x], at, each.name))
            for name in filter(None, (one.y, one.h)):
                each.h.add(_finite(values[name], at, each.name))
        tell(at + 1)
    return seen


def _finite(value: Batch, batch: int, name: str) -> Array:
    numbers = data_of(value)
    if not np.isfinite(numbers).all():
        raise UnsupportedError(
            f"batch {batch}: layer {name!r} reads or gives NaN or infinity; calibrate without it"
        )
    return numbers


def checked(batches: Sequence[Mapping[str, Batch]]) -> None:
    """Raises `UnsupportedError` naming an input of a batch that is not finite, and for no words."""
    for at, feed in enumerate(batches):
        for name, value in feed.items():
            numbers = data_of(value)
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                raise UnsupportedError(f"batch {at}: input {name!r} has NaN or infinity")
    if not any(data_of(value).size for feed in batches for value in feed.values()):
        raise UnsupportedError("the batches have no steps at all: nothing can be calibrated")


class _SplitStacks(ExpandLayers):
    """Only stacks without states: those of others would be cut, and joined anew."""

    def match(self, graph: Graph, node: Node) -> Recurrent | Refusal | None:
        found = super().match(graph, node)
        if isinstance(found, Recurrent):
            if any(found.states) or any(map(graph.is_read, found.finals)):
                return None
        return found


def separated(model: Graph) -> Graph:
    """The fused model without precisions, each of its layers a node where it can be."""
    passes = tuple(each for each in PASSES if not isinstance(each, StackLayers))
    graph = fuse(with_precision(model, {}), passes).model
    nodes = []
    for node in graph.nodes:
        if node.op == "Rnn" and not node.outputs[0]:  # nobody reads y: it needs a name all the same
            y = f"{next(filter(None, node.outputs))}/y"
            node = replace(node, outputs=(y, *node.outputs[1:]))
        nodes.append(node)
    split = _SplitStacks(directions=lambda _: False)
    return fuse(replace(graph, nodes=tuple(nodes)), (split,)).model
