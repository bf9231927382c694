"""Graphs of a framework's program, with the values that each operator reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, TypeVar

from onernn.ir.records import NamedTuple

T = TypeVar("T")


class NativeNode(NamedTuple):
    """An operator of a framework, with the names that it reads and writes; ``bodies`` are the
    graphs among its attributes.
    """

    type: str
    reads: frozenset[str]
    writes: frozenset[str]
    bodies: tuple[NativeGraph, ...] = ()

    @property
    def all_reads(self) -> frozenset[str]:
        """The names in the operator's graph that the operator or its bodies read."""
        return self.reads.union(*(body.outer_reads for body in self.bodies))


class NativeGraph:
    """Operators in the order in which they run; other code refers to an operator by its position.

    ``local``: the names that exist only inside the graph. ``outputs``: the names that are read
    after the last operator. ``reads``, ``writes``: for each operator, the names of this graph that
    the operator or its bodies read and write. A name may be written more than once.
    """

    def __init__(
        self,
        nodes: Iterable[NativeNode],
        local: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> None:
        self.nodes, self.local, self.outputs = tuple(nodes), frozenset(local), frozenset(outputs)
        self.reads = [node.all_reads for node in self.nodes]
        self.writes = [
            node.writes.union(*(body.outer_writes for body in node.bodies)) for node in self.nodes
        ]

    @cached_property
    def writers(self) -> Counter[str]:
        """The number of operators that write each name."""
        return Counter(name for names in self.writes for name in names)

    @cached_property
    def outer_reads(self) -> frozenset[str]:
        """The names of outer values that the graph reads."""
        return self.outputs.union(*self.reads) - self.local

    @cached_property
    def outer_writes(self) -> frozenset[str]:
        """The names of outer values that the graph writes."""
        return frozenset().union(*self.writes) - self.local

    @cached_property
    def parents(self) -> list[set[int]]:
        """For each operator, the positions of the operators that last wrote its inputs."""
        writers: dict[str, int] = {}
        result: list[set[int]] = []
        for at, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            result.append({writers[name] for name in reads if name in writers})
            writers.update(dict.fromkeys(writes, at))
        return result

    def closure(self, positions: Collection[int]) -> set[int]:
        """Returns the positions of these operators and of all operators on a path between two of
        them.
        """
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
        """Returns the reads outside of ``positions`` of results of the operators at ``positions``.

        Each read is a pair: the position of the operator that reads (None for the graph's outputs)
        and the name that it reads. Names in ``shown`` are left out.
        """
        hidden = frozenset[str]().union(*(self.writes[at] for at in positions)).difference(shown)
        readers: list[tuple[int | None, frozenset[str]]] = [
            (at, names) for at, names in enumerate(self.reads) if at not in positions
        ]
        readers.append((None, self.outputs))
        return [(at, name) for at, names in readers for name in sorted(names & hidden)]

    def sources(self, names: Iterable[str], types: Collection[str] | None = None) -> list[int]:
        """Returns the positions of the operators that compute these values, directly or indirectly.

        ``types``: the search stops at operators of other types.
        """
        needed, result = set(names), list[int]()
        for at in reversed(range(len(self.nodes))):
            if self.writes[at] & needed and (types is None or self.nodes[at].type in types):
                result.insert(0, at)
                needed |= self.reads[at]
        return result


class Part(NamedTuple):
    """A group of operators, and the ``operators`` that replace them. ``reads``: the names that
    ``operators`` read.
    """

    positions: Collection[int]
    operators: Sequence[Any]
    reads: Collection[str]


def weave(native: NativeGraph, operators: Iterable[T], parts: Sequence[Part]) -> list[T]:
    """Returns a program's operators after replacing each part: the new operators take the position
    of the part's last operator.

    An operator is left out if only replaced operators read its results. ``operators``: the
    operators of ``native``, in any form.
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


def sort_positions(needs: Mapping[int, Collection[int]]) -> list[int]:
    """Returns the positions in ascending order, except that each comes after the positions that it
    needs.

    Positions in a cycle come last.
    """
    if all(max(before, default=-1) < at for at, before in needs.items()):
        return sorted(needs)
    readers: dict[int, list[int]] = {at: [] for at in needs}
    for at, before in needs.items():
        for each in before:
            readers[each].append(at)
    left = {at: len(before) for at, before in needs.items()}
    ready = sorted(at for at, count in left.items() if not count)
    result: list[int] = []
    while ready:
        result.append(heappop(ready))
        for at in readers[result[-1]]:
            left[at] -= 1
            if not left[at]:
                heappush(ready, at)
    return result + sorted(needs.keys() - set(result))
