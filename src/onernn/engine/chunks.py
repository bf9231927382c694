"""A model in chunks, and the proof that it is the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass

_CUTS = (0, 1, 4, 6, 11)  # behind the first chunk: of 1, 3, 2 and 5 steps
_OPEN = 2  # for the proof: every other size that is not declared
_CLOSE = 1e-5, 1e-6  # of f32: relative to the largest number, and absolute


@dataclass(frozen=True, eq=False)
class Exposed:
    """``states``: the output that is the next state, by the input that takes it. ``first``: what an
    input takes before the first chunk. ``time``: the axis along which each other input is cut, and
    along which each output is put together. ``delay``: how many steps at the end each output tells
    only when as many further steps have come, and never for the last ones. ``least``: the fewest
    steps of the first chunk.
    """

    graph: Graph
    states: Mapping[str, str]
    first: Mapping[str, Array]
    time: Mapping[str, int]
    delay: Mapping[str, int]
    least: int

    @property
    def notes(self) -> list[str]:
        """What a caller of the chunks has to know."""
        handed = ", ".join(f"{after} into {name}" for name, after in self.states.items())
        told = [f"zeros first, then each call hands on {handed}"]
        for name, late in self.delay.items():
            if late:
                told.append(
                    f"{name} is {late} steps late; the first call takes {self.least} or more"
                )
        return told


def refused(graph: Graph, why: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name} in chunks:", (Refusal(why, where),))


def proved(graph: Graph, made: Exposed) -> Exposed:
    """With what each output is delayed by; raises where chunks do not give what the whole gives."""
    rng = np.random.default_rng(0)
    cuts = [0, *(made.least + cut for cut in _CUTS)]
    feed = {
        value.name: _random(value, made.time.get(value.name), cuts[-1], rng)
        for value in graph.inputs
    }
    whole: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    try:
        whole |= Session(graph, passes=()).run(feed, _noting(whole))
        session, state = Session(made.graph, passes=()), _wide(graph, made, feed)
        for begin, end in pairwise(cuts):
            chunk = {
                name: array.take(range(begin, end), made.time[name]) if name in made.time else array
                for name, array in feed.items()
            }
            seen: dict[str, Any] = {}
            done = session.run({**chunk, **state}, _noting(seen))
            seen |= done
            state = {name: data_of(done[after]) for name, after in made.states.items()}
            for name, value in seen.items():
                parts.setdefault(name, []).append(value)
    except OnernnError as error:
        raise refused(graph, f"its chunks do not run: {error}", "model") from error
    delay = dict[str, int]()
    for value in graph.outputs:
        why, delay[value.name] = _departs(whole[value.name], parts[value.name])
        if why:
            found = (node for node in graph.nodes if _first_apart(node, whole, parts))
            first = next(found, graph.producer(value.name))
            where = first.label if first else value.name
            raise refused(graph, f"it needs other steps than those so far: {why}", where)
    return replace(made, delay=delay)


def _first_apart(node: Node, whole: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> bool:
    """Whether a node's first result departs, while it is one of steps."""
    name = node.outputs[0]
    if name not in whole or name not in parts or node.op == "Shape":
        return False
    sizes = [part.shape for part in parts[name]]
    return len(set(sizes)) > 1 and bool(_departs(whole[name], parts[name])[0])


def _noting(found: dict[str, Any]) -> Any:
    def observe(node: Node, outputs: tuple[Any, ...], _: float) -> None:
        found.update(zip(node.outputs, outputs, strict=False))

    return observe


def _random(value: Value, axis: int | None, steps: int, rng: np.random.Generator) -> Array:
    if value.shape is None or value.dtype is None:
        raise UnsupportedError(f"input {value}: its type and shape are not told")
    sizes = [size if isinstance(size, int) else _OPEN for size in value.shape]
    if axis is not None:
        sizes[axis] = steps
    if np.dtype(value.dtype).kind == "f":
        return rng.uniform(-1, 1, sizes).astype(value.dtype)
    return rng.integers(0, 2, sizes).astype(value.dtype)


def _wide(graph: Graph, made: Exposed, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The first states, of as many sequences as the proof has."""
    sizes = {value.name: value.shape for value in made.graph.inputs}
    return {
        name: np.repeat(first, _OPEN, axis) if axis is not None else first
        for name, first in made.first.items()
        for axis in [_batch(sizes[name], first)]
    }


def _batch(shape: tuple[int | None, ...] | None, first: Array) -> int | None:
    """The axis of an open batch, of which the first state has one."""
    found = [at for at, size in enumerate(shape or ()) if size is None and first.shape[at] == 1]
    return found[0] if found else None


def _departs(whole: Any, parts: list[Any]) -> tuple[str, int]:
    """How a value in chunks differs from the whole, "" where it does not; and how late it is."""
    if isinstance(whole, Ragged):
        return "ragged values", 0
    axes = [at for at, size in enumerate(whole.shape) if size != parts[0].shape[at]]
    if any(part.ndim != whole.ndim for part in parts) or len(axes) > 1:
        return "other axes", 0
    joined = np.concatenate(parts, axes[0]) if axes else parts[-1]
    late = whole.shape[axes[0]] - joined.shape[axes[0]] if axes else 0
    if late < 0:
        return "more steps than there are", 0
    wanted = whole.take(range(joined.shape[axes[0]]), axes[0]) if axes else whole
    if joined.dtype.kind != "f":
        return ("" if np.array_equal(joined, wanted) else "other numbers"), late
    apart = np.abs(joined.astype(float) - wanted).max(initial=0)
    bound = _CLOSE[1] + _CLOSE[0] * np.abs(wanted).max(initial=0)
    return ("" if apart <= bound else f"{apart:.3g} apart"), late
