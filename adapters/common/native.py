"""A framework's program as a graph: which operators read and write which values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class NativeNode(NamedTuple):
    """An operator of a framework. ``bodies``: the graphs that are among its attributes."""

    type: str
    reads: frozenset[str]
    writes: frozenset[str]
    bodies: tuple[NativeGraph, ...] = ()


class NativeGraph:
    """Operators in the order in which they run; other code names them by position.

    ``local``: the names that exist only inside the graph. ``outputs``: the names that are read
    after the last operator. ``reads`` and ``writes`` hold, for each operator, the names of this
    graph, including those that its bodies use. A name may be written more than once.
    """

    def __init__(
        self,
        nodes: Iterable[NativeNode],
        local: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> None:
        self.nodes, self.local, self.outputs = tuple(nodes), frozenset(local), frozenset(outputs)
        self.reads = [
            node.reads.union(*(body.outer_reads for body in node.bodies)) for node in self.nodes
        ]
        self.writes = [
            node.writes.union(*(body.outer_writes for body in node.bodies)) for node in self.nodes
        ]
        self.writers = Counter(name for names in self.writes for name in names)

    @cached_property
    def outer_reads(self) -> frozenset[str]:
        """The names from outside that the graph reads."""
        return self.outputs.union(*self.reads) - self.local

    @cached_property
    def outer_writes(self) -> frozenset[str]:
        """The names of the outside that the graph writes."""
        return frozenset().union(*self.writes) - self.local

    @cached_property
    def parents(self) -> list[set[int]]:
        """For each operator, those that last wrote what it reads."""
        writers: dict[str, int] = {}
        result: list[set[int]] = []
        for at, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            result.append({writers[name] for name in reads if name in writers})
            writers.update(dict.fromkeys(writes, at))
        return result

    def closure(self, positions: Collection[int]) -> set[int]:
        """Returns these operators and those on a path from one of them to another."""
        first, last = min(positions), max(positions)
        after, before = set(positions), set(positions)
        for at in range(first, last + 1):
            if self.parents[at] & after:
                after.add(at)
        for at in range(last, first, -1):
            if at in before:
                before |= self.parents[at]
        return after & before

    def outside_reads(
        self, positions: Collection[int], shown: Collection[str] = ()
    ) -> list[tuple[int | None, str]]:
        """Lists what others read of these operators' results, without the names in ``shown``.

        Returns pairs of a reader's position, None for the graph's outputs, and a name.
        """
        hidden = frozenset[str]().union(*(self.writes[at] for at in positions)).difference(shown)
        readers: list[tuple[int | None, frozenset[str]]] = [
            (at, names) for at, names in enumerate(self.reads) if at not in positions
        ]
        readers.append((None, self.outputs))
        return [(at, name) for at, names in readers for name in sorted(names & hidden)]

    def sources(self, names: Iterable[str], types: Collection[str] | None = None) -> list[int]:
        """Returns the positions of the operators that these values are computed by.

        ``types``: operators of other types end the search.
        """
        needed, result = set(names), list[int]()
        for at in reversed(range(len(self.nodes))):
            if self.writes[at] & needed and (types is None or self.nodes[at].type in types):
                result.insert(0, at)
                needed |= self.reads[at]
        return result


class Part(NamedTuple):
    """Operators that others replace. ``reads``: the names that the new ones read."""

    positions: Collection[int]
    operators: Sequence[Any]
    reads: Collection[str]


def weave(native: NativeGraph, operators: Iterable[T], parts: Sequence[Part]) -> list[T]:
    """Returns the operators of a program with each part at the place of its last operator.

    Operators whose results only replaced ones read are left out. ``operators``: those of
    ``native``, in any form.
    """
    gone = {at for part in parts for at in part.positions}
    placed = {max(part.positions): part.operators for part in parts}
    unread = {name for at in gone for name in native.reads[at]}
    readers = Counter(native.outputs)
    for part in parts:
        readers.update(part.reads)
    for at, reads in enumerate(native.reads):
        readers.update(() if at in gone else reads)
    for at in reversed(range(len(native.nodes))):
        writes = native.writes[at]
        if at not in gone and writes & unread and not any(readers[name] for name in writes):
            gone.add(at)
            unread |= native.reads[at]
            readers.subtract(native.reads[at])
    return [
        each
        for at, operator in enumerate(operators)
        for each in placed.get(at, () if at in gone else (operator,))
    ]
