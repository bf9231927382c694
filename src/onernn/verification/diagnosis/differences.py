"""What two models differ in, place by place, and which of it makes their outputs differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.comparing import Tolerance, all_pass, largest_difference
from onernn.verification.diagnosis.cause import in_order
from onernn.verification.diagnosis.matching import Matching, Operator
from onernn.verification.tracing import Values, fast_backend, rerun

_PAIRS = 12
"""Of so many differences pairs are tried to be left out, too."""


@dataclass(frozen=True, eq=False)
class Difference:
    """A place where the model is not as the reference.

    Of a pair of operators: what they compute, or what one ``slot`` of theirs reads. Or what is
    given as an ``output``. ``reads``, ``wanted``: the value there in the model and in the
    reference.
    """

    model: Operator | None = None
    reference: Operator | None = None
    slot: int | None = None
    output: str = ""
    reads: str = ""
    wanted: str = ""

    @property
    def is_wiring(self) -> bool:
        """Whether a value comes from elsewhere, and not another one is computed."""
        return self.slot is not None or bool(self.output)


def differences_in(
    matching: Matching, outputs: Mapping[str, str], constants: Mapping[str, Array]
) -> list[Difference]:
    """All of them in the model's order. ``outputs``: the reference's by the model's names."""
    found = []
    for mine, theirs in matching.pairs:
        if mine.structure != theirs.structure:
            found.append(Difference(mine, theirs))
            continue
        if mine.settings != theirs.settings or mine.numbers != theirs.numbers:
            found.append(Difference(mine, theirs))
        for at, (one, other) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
            fixed = (one.value in constants, other.value in theirs.graph.constants)
            if all(fixed) or (one.value == other.value == ""):
                continue
            if any(fixed) or matching.values.get(one.value, "") != other.value:
                found.append(Difference(mine, theirs, at, "", one.value, other.value))
    found += [
        Difference(None, None, None, mine, mine, theirs)
        for mine, theirs in outputs.items()
        if matching.values.get(mine) != theirs
    ]
    return found


def patched(graph: Graph, other: Graph, matching: Matching, chosen: Sequence[Difference]) -> Graph:
    """The graph that is as the other one in these places.

    Values that it has no counterpart of are computed as in the other one, by nodes whose outputs
    are called NAME.reference. Raises `ModelFormatError` where such a graph would have a cycle.
    """
    shadowed = {each.output: f"{each.output}.model" for each in chosen if each.output}
    own: dict[str, str] = {}
    for mine, theirs in matching.values.items():
        own.setdefault(theirs, shadowed.get(mine, mine))
    constants, inputs = dict(graph.constants), {value.name: value for value in graph.inputs}
    missing: dict[str, None] = {}

    def source(name: str) -> str:
        if not name or name in own:
            return own.get(name, "")
        if name in other.constants:
            kept = graph.constants.get(name)
            same = kept is not None and _same(kept, other.constants[name])
            constants[name if same else f"{name}.reference"] = other.constants[name]
            return name if same else f"{name}.reference"
        if other.producer(name) is None:
            inputs.update((value.name, value) for value in other.inputs if value.name == name)
            return name
        missing[name] = None
        return f"{name}.reference"

    def taken(node: Node) -> Node:
        outputs = tuple(name and own.get(name, f"{name}.reference") for name in node.outputs)
        return replace(node, inputs=tuple(map(source, node.inputs)), outputs=outputs)

    copied: dict[int, Node] = {}
    nodes = {id(node): [node.renamed(shadowed)] for node in graph.nodes}
    for one, twin, units in _by_operator(chosen):
        slots = {each.slot for each in units if each.slot is not None}
        content = len(slots) < len(units)
        if one.structure != twin.structure:
            nodes |= {id(node): [] for node in one.nodes}
            copied |= {id(node): taken(node) for node in twin.nodes}
            continue
        for node, new in _changed(one, twin, slots, content, source):
            nodes[id(node)] = [new.renamed(shadowed)]
    ends = [
        Node("Identity", (source(each.wanted),), (each.output,)) for each in chosen if each.output
    ]
    waiting = list(missing)
    while waiting:  # what makes a value that is missing, and all that this needs
        maker = other.producer(waiting.pop())
        if maker is not None and id(maker) not in copied:
            known = set(missing)
            copied[id(maker)] = taken(maker)
            waiting += [name for name in missing if name not in known]
    every = [*(node for each in nodes.values() for node in each), *copied.values(), *ends]
    return in_order(graph, every, inputs.values(), constants)


def _by_operator(
    chosen: Sequence[Difference],
) -> Iterator[tuple[Operator, Operator, list[Difference]]]:
    found: dict[int, list[Difference]] = {}
    for each in chosen:
        if each.model is not None:
            found.setdefault(id(each.model), []).append(each)
    for units in found.values():
        mine, theirs = units[0].model, units[0].reference
        assert mine is not None and theirs is not None
        yield mine, theirs, units


def _changed(
    mine: Operator,
    theirs: Operator,
    slots: Container[int],
    content: bool,
    source: Callable[[str], str],
) -> Iterator[tuple[Node, Node]]:
    """Each node, and what it becomes; both operators have the same structure."""
    inputs = [list(node.inputs) for node in mine.nodes]
    for at, (one, other) in enumerate(zip(mine.slots, theirs.slots, strict=True)):
        fixed = one.value in mine.graph.constants and other.value in theirs.graph.constants
        if at in slots or (content and fixed):
            row = inputs[one.node]
            row += [""] * (one.position + 1 - len(row))
            row[one.position] = source(other.value)
    for node, twin, row in zip(mine.nodes, theirs.nodes, inputs, strict=True):
        while node.op == "Rnn" and not row[-1]:
            row.pop()
        attributes = twin.attributes if content else node.attributes
        yield node, replace(node, inputs=tuple(row), attributes=attributes)


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


@dataclass(frozen=True, eq=False)
class Trial:
    """A batch to try changes on: all values of the model's run, and what it should give.

    ``extra``: inputs that only the reference takes.
    """

    graph: Graph
    values: Values
    expected: Mapping[str, Batch]
    tolerances: Mapping[str, Tolerance]
    extra: Mapping[str, Batch]

    def passes(self, changed: Graph) -> bool:
        """Whether every output is as expected."""
        outputs = self.outputs(changed)
        return outputs is not None and all_pass(outputs, self.expected, self.tolerances)

    def distance(self, changed: Graph) -> float:
        """The largest difference from what is expected, as a part of the largest value."""
        outputs = self.outputs(changed)
        return np.inf if outputs is None else largest_difference(outputs, self.expected)

    def outputs(self, changed: Graph) -> dict[str, Batch] | None:
        """What a changed graph gives; None where it cannot run."""
        values = {**self.extra, **self.values}
        try:
            with np.errstate(all="ignore"):
                return rerun(changed, self.graph, values, fast_backend())
        except OnernnError:
            return None


def smallest(
    groups: Sequence[Sequence[Difference]],
    passes: Callable[[list[Difference]], bool],
    ends: float,
) -> list[Sequence[Difference]]:
    """The groups without those that outputs pass without.

    All wiring is tried to be left out first, then halves, each, and pairs of what is left: a file
    that is written otherwise often has two that are nothing but one without the other.
    """
    needed = list(groups)

    def without(gone: Collection[int]) -> bool:
        nonlocal needed
        rest = [group for at, group in enumerate(needed) if at not in gone]
        if not gone or time.monotonic() > ends or not passes([e for g in rest for e in g]):
            return False
        needed = rest
        return True

    without([at for at, group in enumerate(needed) if group[0].is_wiring])
    size = max(1, len(needed) // 2)
    while True:
        at = 0
        while at < len(needed):
            at += 0 if without(range(at, at + size)) else size
        if size == 1:
            break
        size = size // 2
    while len(needed) <= _PAIRS and any(map(without, combinations(range(len(needed)), 2))):
        pass
    return needed
