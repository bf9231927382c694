"""The types of a graph's values, as a run on small made-up inputs shows them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.session import Session

_SOME = 2  # sentences, words of the first one, and a size that the model leaves open
_TRIES = 300  # runs for each choice of ranks
_MOST = 10**5  # numbers in a made-up input
_RANKS = range(1, 5)  # of an input of which the model tells nothing


@dataclass(frozen=True)
class Type:
    """dtype by NumPy's name, number of axes (the words count as one), number of LoD levels."""

    dtype: str
    rank: int
    depth: int = 0


def types_of(graph: Graph, inputs: Mapping[str, Any] | None = None) -> dict[str, Type]:
    """The type of every value. ``inputs``: a batch to run on.

    Without one sizes are made up, and the ranks of inputs that the model does not tell, if only
    one choice of them runs; such inputs are float32. Raises `UnsupportedError` where none does, or
    several do.
    """
    session = Session(graph, backend="reference", passes=())
    if inputs is not None:
        return _run(session, inputs)
    known = [(len(v.shape),) if v.shape is not None else _RANKS for v in graph.inputs]
    sizes, reasons, fitting = _sizes(graph), [], []
    for ranks in itertools.product(*known):
        values = [
            replace(v, shape=v.shape or (None,) * rank, dtype=v.dtype or "float32")
            for v, rank in zip(graph.inputs, ranks, strict=True)
        ]
        for feed in itertools.islice(_made_up(values, sizes), _TRIES):
            try:
                fitting.append(_run(session, feed))
                break
            except UnsupportedError as error:
                reasons.append(str(error))
    if len(fitting) != 1:
        named = ", ".join(v.name for v in graph.inputs if v.shape is None)
        reason = f"several ranks of {named} fit" if fitting else reasons[0]
        raise UnsupportedError(f"types of values: {reason}; give a recording, which tells them")
    return fitting[0]


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
            asked |= set(graph.constants.get(name, np.empty(0)).reshape(-1).tolist())
    return [_SOME, *sorted(size for size in asked if 0 < size < 10**4 and size != _SOME)]


def _made_up(inputs: list[Value], sizes: list[int]) -> Iterator[dict[str, Any]]:
    """Inputs in which few sizes are other than two."""
    open_places = [
        (value.name, axis)
        for value in inputs
        for axis, size in enumerate(value.shape or ())
        if size is None and not (value.lod_depth and axis == 0)
    ]
    for count in range(len(open_places) + 1):
        for places in itertools.combinations(open_places, count):
            for chosen in itertools.product(sizes[1:], repeat=count):
                at = dict(zip(places, chosen, strict=True))
                if math.prod(chosen) * _SOME ** len(open_places) <= _MOST:
                    yield {value.name: _some(value, at) for value in inputs}


def _some(value: Value, chosen: Mapping[tuple[str, int], int]) -> Any:
    sizes = [
        chosen.get((value.name, axis), _SOME) if size is None else size
        for axis, size in enumerate(value.shape or ())
    ]
    if not value.lod_depth:
        return np.zeros(sizes, value.dtype)
    data = np.zeros((_SOME + 1, *sizes[1:]), value.dtype)
    upper = [np.array([0, 1])] * (value.lod_depth - 2) + [np.array([0, _SOME])]
    return Ragged(data, np.array([0, _SOME, _SOME + 1]), tuple(upper[: value.lod_depth - 1]))


def _type(value: Any) -> Type:
    array = data_of(value)
    return Type(str(array.dtype), array.ndim, len(value.lod) if isinstance(value, Ragged) else 0)
