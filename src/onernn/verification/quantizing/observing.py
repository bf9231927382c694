"""What recurrent layers read and give in float32, counted; and the scales of bytes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.expand_layers import ExpandLayers, part_name
from onernn.fuse_passes.stack_layers import StackLayers
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch, data_of
from onernn.ir.rnn import Part, Recurrent, parts, with_precision
from onernn.ir.spec import Cell
from onernn.ir.weights import UNIT, PartScales, Scale

_SMALLEST, _LARGEST = 2.0**-10, 65504.0
"""Between these magnitudes a range lies where float16 has eleven bits of every number."""
_ENDS = np.linspace(1.0, 0.2, 41).tolist()
"""Parts of a range's ends that are tried."""


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
        if node.op == "Rnn" and not node.outputs[0]:  # nobody reads y: it needs a name all the same
            y = f"{next(filter(None, node.outputs))}/y"
            node = replace(node, outputs=(y, *node.outputs[1:]))
        nodes.append(node)
    split = _SplitStacks(directions=lambda _: False)
    return fuse(replace(graph, nodes=tuple(nodes)), (split,)).model
