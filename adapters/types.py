"""The types of a graph's values, as a run on small made-up inputs shows them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.session import Session

_SOME = 2  # sentences, words of the first one, and a size that the model leaves open
_TRIES = 300  # choices of sizes for each choice of ranks
_SECONDS = 5  # for all choices: what a model makes of them is its own affair
_BYTES = 10**9  # for what the model makes of small inputs
_MOST, _LARGEST = 10**5, 2**24  # numbers in a made-up input: by sizes left open, and all in all
_RANKS = range(1, 5)  # of an input of which the model tells nothing


@dataclass(frozen=True)
class Type:
    """dtype by NumPy's name, number of axes (the words count as one), number of LoD levels.

    ``shape``: the sizes in the run that showed it.
    """

    dtype: str
    rank: int
    depth: int = 0
    shape: tuple[int, ...] | None = field(default=None, compare=False)


def types_of(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Type]:
    """The type of every value, from a batch to run on. Raises `UnsupportedError`."""
    return _run(Session(graph, backend="reference", passes=()), inputs)


def fitting_inputs(graph: Graph) -> dict[str, Any]:
    """A batch that the graph runs on.

    Sizes are made up, and the ranks of inputs that the model does not tell, if only one choice of
    them runs; such inputs are float32. Raises `UnsupportedError` where none does, several do, or
    none is found within seconds.
    """
    session = Session(graph, backend="reference", passes=(), max_bytes=_BYTES)
    fitting: dict[tuple[int, ...], dict[str, Any]] = {}
    reason, until = "", time.monotonic() + _SECONDS
    for ranks, feed in _made_up(graph):
        if time.monotonic() > until:
            fitting, reason = {}, f"no sizes that fit were found in {_SECONDS} s"
            break
        if ranks not in fitting:
            try:
                _run(session, feed)
                fitting[ranks] = feed
            except UnsupportedError as error:
                reason = reason or str(error)
    if len(fitting) != 1:
        if fitting:
            named = ", ".join(v.name for v in graph.inputs if v.shape is None)
            reason = f"several ranks of {named} fit"
        reason = reason or "the inputs are too large to be made up"
        raise UnsupportedError(f"types of values: {reason}; give a recording, which tells them")
    return next(iter(fitting.values()))


def _run(session: Session, feed: Mapping[str, Any]) -> dict[str, Type]:
    found = {name: _type(value) for name, value in {**session.graph.constants, **feed}.items()}

    def observe(node: Node, outputs: tuple[Any, ...], _: float) -> None:
        found.update(zip(node.outputs, map(_type, outputs), strict=False))

    try:
        session.run(feed, observe)
    except OnernnError as error:
        raise UnsupportedError(f"they show in a run only, and it does not run: {error}") from error
    return found


def _sizes(graph: Graph) -> list[int]:
    """Sizes that layers, matrices and the like ask for, and may be those of an input."""
    asked = {n.attributes["spec"].input_size for n in graph.nodes if n.op == "Rnn"}
    asked |= {a.shape[0] for a in graph.constants.values() if a.ndim == 2}
    asked |= {a.shape[-1] for a in graph.constants.values() if a.ndim == 2}
    asked |= {len(n.outputs) for n in graph.nodes if n.op == "Split"}
    for node in graph.nodes:
        for name in node.inputs[1:3] if node.op in ("Reshape", "Slice") else ():
            array = graph.constants.get(name, np.empty(0))
            asked |= set(array.reshape(-1).tolist()) if array.dtype.kind in "iu" else set()
    return [_SOME, *sorted(size for size in asked if 0 < size < 10**4 and size != _SOME)]


def _made_up(graph: Graph) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Choices of ranks, each with inputs in which few sizes are other than two."""
    sizes = _sizes(graph)
    known = [(len(v.shape),) if v.shape is not None else _RANKS for v in graph.inputs]
    for ranks in itertools.product(*known):
        inputs = [
            replace(v, shape=v.shape or (None,) * rank, dtype=v.dtype or "float32")
            for v, rank in zip(graph.inputs, ranks, strict=True)
        ]
        for chosen in itertools.islice(_choices(inputs, sizes[1:]), _TRIES):
            shapes = {v.name: _shape(v, chosen) for v in inputs}
            if all(_is_small(v, shapes[v.name]) for v in inputs):
                yield ranks, {v.name: _some(v, shapes[v.name]) for v in inputs}


_Place = tuple[str, int]


def _choices(inputs: list[Value], sizes: list[int]) -> Iterator[Mapping[_Place, int]]:
    """Sizes for some of the places that inputs leave open, for fewer first."""
    places = [
        (value.name, axis)
        for value in inputs
        for axis, size in enumerate(value.shape or ())
        if size is None and not (value.lod_depth and axis == 0)
    ]
    for count in range(len(places) + 1):
        for some in itertools.combinations(places, count):
            for chosen in itertools.product(sizes, repeat=count):
                yield dict(zip(some, chosen, strict=True))


def _shape(value: Value, chosen: Mapping[_Place, int]) -> list[int]:
    return [
        chosen.get((value.name, axis), _SOME) if size is None else size
        for axis, size in enumerate(value.shape or ())
    ]


def _is_small(value: Value, shape: list[int]) -> bool:
    opened = [size for size, told in zip(shape, value.shape or (), strict=True) if told is None]
    return math.prod(opened) <= _MOST and math.prod(shape) <= _LARGEST


def _some(value: Value, shape: list[int]) -> Any:
    if not value.lod_depth:
        return np.zeros(shape, value.dtype)
    data = np.zeros((_SOME + 1, *shape[1:]), value.dtype)
    upper = [np.array([0, 1])] * (value.lod_depth - 2) + [np.array([0, _SOME])]
    return Ragged(data, np.array([0, _SOME, _SOME + 1]), tuple(upper[: value.lod_depth - 1]))


def _type(value: Any) -> Type:
    array = data_of(value)
    depth = len(value.lod) if isinstance(value, Ragged) else 0
    return Type(str(array.dtype), array.ndim, depth, array.shape)
