"""Random graphs of canonical operators, made node by node: whatever runs unfused may stand there.

Sizes are few and small, so that time, batch and channels often coincide or are 1. Motifs are what
fuse passes look for, with everything that can be turned, shared, read by others or be an output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from onernn import Graph, OnernnError, Ragged, RnnSpec, Session
from onernn.ir.graph import NativeOp, Node, Value
from onernn.ir.ragged import depth_of
from support.layers import words

GRAPHS = int(os.environ.get("ONERNN_RANDOM_GRAPHS", "30"))
"""So many of them a test takes; `make fuzz-graphs` takes 2000."""
SIZES = (1, 2, 2, 3, 3, 4)
CHANNELS = (1, 2, 3, 3, 4, 6)
UNARY = "Relu Tanh Sigmoid Neg Abs Softsign Identity".split()
BINARY = "Add Add Sub Mul Max Min".split()


class Discard(Exception):
    """What was tried does not run unfused."""


@dataclass(frozen=True)
class Trial:
    """A graph and what it can be run on; ``feeds`` differ in their sizes."""

    graph: Graph
    feeds: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Sizes:
    """Those that a model leaves open."""

    time: int
    batch: int
    lengths: tuple[int, ...]
    groups: tuple[int, ...]

    def of(self, axes: tuple[int | str, ...]) -> tuple[int, ...]:
        named = {"T": self.time, "N": self.batch, "W": sum(self.lengths), "S": len(self.lengths)}
        return tuple(named[a] if isinstance(a, str) else a for a in axes)


class Builder:
    """A graph that grows; ``known`` holds each value as it comes out of one run."""

    def __init__(self, rng: np.random.Generator, depth: int = 0) -> None:
        self.rng, self.depth, self.count = rng, depth, 0
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.known: dict[str, Any] = {}
        self.inputs: list[Value] = []
        self.makers: dict[str, Callable[[Sizes, np.random.Generator], Any]] = {}
        self.sizes = random_sizes(rng)
        self.layers: list[tuple[RnnSpec, Any]] = []

    # What a graph is made of.

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def numbers(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return self.rng.uniform(-scale, scale, shape).astype(np.float32)

    def constant(self, array: Any) -> str:
        array = np.asarray(array)
        if self.chance(0.4):  # shared, where one fits
            for name, other in self.constants.items():
                if (other.shape, other.dtype) == (array.shape, array.dtype):
                    if array.dtype.kind == "f" or np.array_equal(other, array):
                        return name
        name = self.name("k")
        self.constants[name] = self.known[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def input(self, make: Callable[[Sizes, np.random.Generator], Any], shape: Any) -> str:
        name = self.name("x")
        value = self.known[name] = make(self.sizes, self.rng)
        array = words(value)
        told = tuple(None if isinstance(size, str) else size for size in shape)
        if 1 not in told:
            told = tuple(array.shape) if self.chance(0.1) else None if self.chance(0.15) else told
        self.inputs.append(Value(name, str(array.dtype), told, depth_of(value)))
        self.makers[name] = make
        return name

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The name, or names, of what a node makes; `Discard` where it does not run."""
        names = tuple(
            f"{self.name('v')}_{at}" if outputs > 1 else self.name("v") for at in range(outputs)
        )
        return self.add(op, inputs, names, attributes)

    def add(self, op: str, inputs: tuple[str, ...], names: tuple[str, ...], attributes: Any) -> Any:
        node = Node(op, inputs, names, attributes, (NativeOp(len(self.nodes), f"native_{op}"),))
        made = run_node(node, self.known)
        self.nodes.append(node)
        self.known.update(made)
        return names if len(names) > 1 else names[0]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is begun and cannot be ended leaves nothing behind."""
        nodes, known, constants = len(self.nodes), dict(self.known), dict(self.constants)
        try:
            yield
        except Discard:
            del self.nodes[nodes:]
            kept = {value.name for value in self.inputs}
            self.known = {k: v for k, v in self.known.items() if k in known or k in kept}
            self.constants = constants

    # What values there are.

    def array(self, name: str) -> np.ndarray:
        return words(self.known[name])

    def is_ragged(self, name: str) -> bool:
        return isinstance(self.known[name], Ragged)

    def values(self, rank: int | None = None, ragged: bool | None = None) -> list[str]:
        return [
            name
            for name in self.known
            if name not in self.constants
            and self.array(name).dtype == np.float32
            and self.array(name).ndim  # a single number serves conditions
            and (rank is None or self.array(name).ndim == rank)
            and (ragged is None or self.is_ragged(name) == ragged)
        ]

    def late(self, found: list[str], count: int) -> str:
        """One of these values, a late one rather than an early one."""
        if not found:
            raise Discard
        return self.pick(found[-count:] if self.chance(0.75) else found)

    def any(self, rank: int | None = None, ragged: bool | None = None) -> str:
        return self.late(self.values(rank, ragged), 4)

    def sequence(self) -> str:
        """What a layer may read."""
        found = self.values(3, False) + self.values(2, True)
        return self.late(sorted(found, key=list(self.known).index), 3)

    def dense_input(self, *axes: int | str) -> str:
        return self.input(
            lambda sizes, rng: rng.uniform(-1, 1, sizes.of(axes)).astype(np.float32), axes
        )

    def ragged_input(self, *axes: int | str, levels: int = 1) -> str:
        def make(sizes: Sizes, rng: np.random.Generator) -> Ragged:
            data = rng.uniform(-1, 1, sizes.of(("W", *axes))).astype(np.float32)
            last = np.cumsum([0, *sizes.lengths])
            outer = (np.cumsum([0, *sizes.groups]),) if levels == 2 else ()
            return Ragged(data, last, outer)

        return self.input(make, ("W", *axes))

    def sentences(self, x: str) -> tuple[str | int, int]:
        """The batch of a sequence: as an input's axis where it is one, and as it is."""
        value = self.known[x]
        if not isinstance(value, Ragged) and value.ndim != 3 or not self.array(x).shape[-1]:
            raise Discard
        count = len(value) if isinstance(value, Ragged) else value.shape[1]
        named = {"S": len(self.sizes.lengths), "N": self.sizes.batch}
        axis = "S" if isinstance(value, Ragged) else "N"
        return (axis if named[axis] == count else count), count


def random_sizes(rng: np.random.Generator, lowest: int = 1) -> Sizes:
    time, batch = (max(int(each), lowest) for each in rng.choice(SIZES, 2))
    count = max(int(rng.choice(SIZES)), lowest)
    lengths = tuple(int(n) for n in rng.choice([0, 1, 2, 2, 3], count))
    first = int(rng.integers(len(lengths) + 1))
    return Sizes(time, batch, lengths, (first, len(lengths) - first))


def run_node(node: Node, known: dict[str, Any]) -> dict[str, Any]:
    """What one node makes of known values. Raises `Discard` where it makes nothing of use."""
    feed = {name: known[name] for name in node.inputs if name}
    inputs = tuple(Value(name, lod_depth=depth_of(value)) for name, value in feed.items())
    try:
        graph = Graph("one", inputs, tuple(Value(n) for n in node.outputs if n), (node,), {})
        made = Session(graph, backend="reference", passes=()).run(feed)
    except OnernnError as error:
        raise Discard(str(error)) from error
    for value in made.values():
        array = words(value)
        bounded = (
            array.dtype.kind in "iub" or array.dtype.kind == "f" and (np.abs(array) < 30).all()
        )
        if array.size > 20000 or not bounded:
            raise Discard("too large")
    return made
