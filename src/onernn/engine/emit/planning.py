"""Where each value stands: in an input, an output, the weights file, or memory of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from onernn.engine.emit.storing import Store
from onernn.engine.emit.streaming import goes_on
from onernn.engine.program import Program
from onernn.engine.steps import Layer, WrittenNode
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.types import Size, listed


@dataclass
class Member:
    """Memory of a model."""

    ident: str
    ctype: str
    size: Size


@dataclass(frozen=True)
class Local:
    """A pointer that a call begins with."""

    ident: str
    ctype: str
    expression: str
    comment: str


@dataclass
class Plan:
    """C++ expressions of values, and the memory that some of them are in."""

    program: Program
    places: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    steps: list[WrittenNode] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)  # (from, output)
    used: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)  # outputs that nobody wants
    sized: list[str] = field(default_factory=list)  # integers made of sizes

    def place(self, name: str) -> str:
        return "nullptr" if name in self.unread else self.places[name]

    def point(self, name: str, ctype: str, expression: str) -> None:
        """A pointer named after the value: no word of a template ends like it."""
        ident = f"{self.program.ident(name)}_at"
        comment = listed(self.program.shape(name))
        self.locals.append(Local(ident, ctype, expression, comment))
        self.places[name] = ident


def plan(program: Program, store: Store) -> Plan:
    """Places for all values that are read."""
    found = Plan(program)
    views = program.views

    def root(name: str) -> str:
        return views[name][0] if name in views else name

    found.steps += [each for each in program.codes if each.codes]
    last = {root(name): at for at, each in enumerate(found.steps) for name in each.reads}
    first = _first(found, last, root)
    found.used = set(last) | {root(value.name) for value in program.graph.outputs}
    made = {name for each in program.codes for name in each.node.outputs if name} - views.keys()
    outputs: dict[str, str] = {}
    for value in program.graph.outputs:
        source = root(value.name)
        if source in made and source not in outputs:
            outputs[source] = f"out.{program.ident(value.name)}"
        else:
            found.copies.append((source, value.name))
    for value in program.graph.inputs:
        for name in (value.name, *(level.offsets for level in program.levels(value.name))):
            found.places[name] = f"in.{program.ident(name)}"
    found.places |= outputs
    own = {name for name in made - outputs.keys() if not program.is_known(name)}
    _allocate(found, first, last, own)
    read = [root(name) for each in found.steps for name in each.reads]
    for name in dict.fromkeys([*read, *(source for source, _ in found.copies)]):
        if name in program.graph.constants:
            ctype, offset = program.ctype(name), store.add(program.graph.constants[name])
            found.point(name, f"const {ctype}", f"weights_.at<{ctype}>({offset})")
        elif name not in program.memory and program.is_known(name):
            found.sized.append(name)
            _member(found, name)
    for name, (source, start) in views.items():
        if source in found.places:
            there = found.places[source]
            found.places.setdefault(name, f"({there} + {start})" if start.terms else there)
    return found


def _first(
    found: Plan, last: dict[str, int], root: Callable[[str], str]
) -> dict[int, list[tuple[str, str, WrittenNode]]]:
    """The values whose memory a step is the first to use, each with what is made there.

    What a loop reads in its next turn is kept for all of them, as what it makes for others is:
    ``last`` changes.
    """
    first: dict[str, tuple[int, str, WrittenNode]] = {}
    begins, loops = list[int](), list[tuple[int, int]]()
    for at, each in enumerate(found.steps):
        for made in filter(None, each.node.outputs):
            first.setdefault(root(made), (at, made, each))
        if each.mark == "while":
            begins.append(at)
        if each.mark == "again":
            loops.append((begins.pop(), at))
    for begin, end in loops:  # inner ones first
        for name, (at, made, each) in first.items():
            if at <= begin <= last.get(name, -1) < end:
                last[name] = end
            elif begin <= at <= end < last.get(name, -1):
                first[name] = begin, made, each
    by_step: dict[int, list[tuple[str, str, WrittenNode]]] = {}
    for name, (at, made, each) in first.items():
        by_step.setdefault(at, []).append((name, made, each))
    return by_step


def _allocate(
    found: Plan,
    first: dict[int, list[tuple[str, str, WrittenNode]]],
    last: dict[str, int],
    own: set[str],
) -> None:
    """Memory of the same type and size is used again when nobody reads it any more.

    ``own``: the values that get memory.
    """
    program = found.program
    free: dict[tuple[str, str], list[Member]] = {}
    taken: dict[str, Member] = {}
    for at in range(len(found.steps)):
        for name, made, each in first.get(at, ()):
            if name not in own or name in found.places:
                continue
            if name == made and not _needed(found, each, name):
                found.unread.add(name)
                continue
            key = program.ctype(name), str(program.most(name))
            if free.get(key):
                member = free[key].pop()
                found.point(name, member.ctype, f"{member.ident}_.data()")
            else:
                member = _member(found, name)
            taken[name] = member
        for name in list(taken):
            if last.get(name, -1) <= at:
                member = taken.pop(name)
                free.setdefault((member.ctype, str(member.size)), []).append(member)
    for name in program.memory:
        if name not in found.places:
            _member(found, name)


def _needed(found: Plan, each: WrittenNode, name: str) -> bool:
    """Whether anybody reads it; a step holds the final states in any case."""
    held = any(isinstance(step, Layer) and goes_on(found.program, step) for step in each.codes)
    return held or name == each.node.outputs[0] or name in found.used


def _member(found: Plan, name: str) -> Member:
    program = found.program
    ident = f"{program.ident(name)}_memory"
    size = program.most(name)
    if size.names & program.inner.keys():
        raise UnsupportedError(f"{name!r}: a size {size} that nobody bounds")
    made = Member(ident, program.ctype(name), size)
    found.members.append(made)
    found.point(name, made.ctype, f"{ident}_.data()")
    return made
