"""Whether the types of a graph are what a run shows: every value, its dtype, sizes and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onernn import Graph, Ragged, Session
from onernn.ir.graph import Node
from onernn.ir.ragged import data_of
from onernn.ir.types import Size, Type


class Bindings:
    """What the names of sizes and offsets stand for in one run; each stands for one thing."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.lods: dict[str, list[int]] = {}

    def offsets(self, name: str, level: Any, what: str) -> None:
        got = np.asarray(level).tolist()
        assert self.lods.setdefault(name, got) == got, f"{what}: LoD {name}"
        self.size(Size.of(f"{name}.count"), len(got) - 1, what)
        self.size(Size.of(f"{name}.words"), got[-1], what)

    def size(self, size: Size, got: int, what: str) -> None:
        if size.name:
            self.sizes.setdefault(size.name, got)
        if size.names <= self.sizes.keys():
            expected = size.substitute(self.sizes).number
            assert expected == got, f"{what}: size {size} is {expected}, the run has {got}"

    def check(self, what: str, expected: Type, value: Any) -> None:
        array = data_of(value)
        if expected.dtype is not None:
            assert array.dtype == expected.dtype, f"{what}: {array.dtype}, not {expected}"
        if expected.lod is not None:
            levels = (*value.outer, value.offsets) if isinstance(value, Ragged) else ()
            assert len(expected.lod) == len(levels), f"{what}: {type(value)}, not {expected}"
            for name, level in zip(expected.lod, levels, strict=True):
                self.offsets(name, level, what)
        if expected.shape is not None:
            assert len(expected.shape) == array.ndim, f"{what}: {array.shape}, not {expected}"
            for size, got in zip(expected.shape, array.shape, strict=True):
                if size is not None:
                    self.size(size, got, what)
        sizes = expected.sizes
        if sizes is not None:
            for size, got in zip(sizes.reshape(-1), array.reshape(-1), strict=True):
                self.size(Size.of(size), int(got), what)


def check_types(graph: Graph, feed: Mapping[str, Any], **options: Any) -> list[str]:
    """Runs the graph as it is; gives the values whose rank or raggedness is unknown."""
    session = Session(graph, passes=(), **options)
    types, bindings = session.graph.types, Bindings()
    for name, value in feed.items():
        bindings.check(name, types[name], value)

    def observe(node: Node, results: tuple[Any, ...], _: float) -> None:
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                bindings.check(f"{node.label}, {name}", types[name], value)

    session.run(feed, observe)
    return [name for name, each in types.items() if each.rank is None or each.lod is None]
