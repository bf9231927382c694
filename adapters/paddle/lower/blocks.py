"""What a program's blocks read and write, found before any of them is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from onernn.adapters.lowering import NativeOperator
from onernn.adapters.paddle.read import Block, Operator, Variable
from onernn.core.errors import UnsupportedError

_BLOCKS = ("sub_block", "true_block", "false_block")
_NAMED = ("given", "then", "else")
"""Attributes that hold names of variables inside of a block."""
_LISTED = {"while": "X", "conditional_block": "Input"}
"""The slot that lists what a block may read."""
_DEEPEST = 32  # blocks inside blocks


class BlockError(UnsupportedError):
    """Blocks that no program can have."""


class Blocks:
    """The blocks of a program inside of block 0, by number; ``around``: block 0.

    ``declared``: the variables that are assigned once: of the others nobody knows which of their
    values is declared. ``kinds``: those of all variables.
    """

    def __init__(self, inner: Mapping[int, Block], around: Block | None = None) -> None:
        self._blocks = {0: around or Block((), {}), **inner}
        self._free: dict[int, set[str]] = {}
        self._written: dict[int, set[str]] = {}
        self._waiting: list[int] = []
        made: Counter[str] = Counter()
        declared: Counter[str] = Counter()
        found: dict[str, Variable] = {}
        self._readers: dict[str, set[int]] = {}
        for number, block in self._blocks.items():
            declared.update(block.variables.keys())
            found |= block.variables
            for op in block.operators:
                made.update({name for names in op.outputs.values() for name in names})
                for name in self._reads_itself(op):
                    self._readers.setdefault(name, set()).add(number)
        made.update(name for name, each in found.items() if each.persistable)
        self.kinds = {name: each.kind for name, each in found.items()}
        self.declared = {
            name: each for name, each in found.items() if made[name] < 2 and declared[name] < 2
        }

    def operators(self, number: int) -> Sequence[Operator]:
        if number not in self._blocks:
            raise BlockError(f"there is no block {number}")
        return self._blocks[number].operators

    def reads(self, op: Operator) -> set[str]:
        """The variables that an operator takes, its blocks too."""
        inside = [*_inside(op)]
        own = set[str]().union(*(self._blocks[n].variables for n in inside if n in self._blocks))
        return (self._reads_itself(op) - own).union(*map(self.free, inside))

    def results(self, op: Operator | NativeOperator) -> list[tuple[str, str]]:
        """What an operator assigns to, by slot; what its blocks assign to, by ``=name``."""
        named = [each for slot, names in op.outputs.items() for each in listed(slot, names)]
        written = set[str]().union(*map(self.written, _inside(op)))
        if any(key in op.attributes for key in _NAMED):
            written -= {name for _, name in named}
        named = [(slot, name) for slot, name in named if name not in written]
        return [*named, *((f"={name}", name) for name in sorted(written))]

    def free(self, number: int) -> set[str]:
        """The variables of outside that a block reads."""
        self._analyse(number)
        return self._free[number]

    def written(self, number: int) -> set[str]:
        """The variables of outside that a block assigns to."""
        self._analyse(number)
        return self._written[number]

    def read_outside(self, variable: str, number: int) -> bool:
        """Whether anybody outside of a block reads a variable."""
        within, waiting = {number}, [number]
        while waiting:
            for op in self.operators(waiting.pop()):
                more = set(_inside(op)) - within
                within |= more
                waiting += more
        return bool(self._readers.get(variable, set()) - within)

    def _reads_itself(self, op: Operator) -> set[str]:
        names = {
            n for slot, each in op.inputs.items() if slot != _LISTED.get(op.type) for n in each
        }
        given = (op.attributes.get(key) for key in _NAMED if op.type in ("while", "if"))
        return names.union(*(each for each in given if isinstance(each, tuple)))

    def _analyse(self, number: int) -> None:
        if number in self._free:
            return
        if number in self._waiting or len(self._waiting) > _DEEPEST:
            raise BlockError("blocks inside blocks, too deep or in a circle")
        operators = self.operators(number)
        self._waiting.append(number)
        try:
            free = set[str]().union(*map(self.reads, operators))
            written = {name for op in operators for _, name in self.results(op)}
        finally:
            self._waiting.pop()
        own = {"", *self._blocks[number].variables}
        self._free[number], self._written[number] = free - own, written - own


def listed(slot: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The places in a slot with what stands there: the slot itself is the first one."""
    return [(f"{slot}.{at}" if at else slot, name) for at, name in enumerate(names)]


def _inside(op: Operator | NativeOperator) -> Iterator[int]:
    for name in _BLOCKS:
        number = op.attributes.get(name)
        if isinstance(number, int):
            yield number


def joined(operators: Sequence[Operator]) -> list[Operator]:
    """The operators with the branches of `static.nn.cond` as one, as Paddle 3 writes them.

    Paddle 2 has a block that runs where the condition holds, its negation, a block that runs where
    that holds, and an operator select_input for each result.
    """
    makers = {name: op for op in operators for names in op.outputs.values() for name in names}
    selects: dict[int, list[Operator]] = {}
    for op in operators:
        if op.type == "select_input" and (branch := _branch_of(op, makers)):
            selects.setdefault(branch.position, []).append(op)
    out: list[Operator] = []
    gone: set[int] = set()
    for op in operators:
        if len(out) > 1 and _are_opposite(out[-2], out[-1], op):
            then = out.pop(-2)
            chosen = [*selects.get(then.position, ()), *selects.get(op.position, ())]
            condition = then.inputs["Cond"]
            chosen = [each for each in chosen if _source(each, "Mask", makers) == condition]
            gone.update(each.position for each in chosen)
            out.append(_branches(then, op, chosen))
        elif op.position not in gone:
            out.append(op)
    return out


def _are_opposite(then: Operator, negation: Operator, other: Operator) -> bool:
    return (
        then.type == other.type == "conditional_block"
        and negation.type == "logical_not"
        and negation.inputs.get("X") == then.inputs.get("Cond")
        and negation.outputs.get("Out") == other.inputs.get("Cond")
    )


def _branch_of(select: Operator, makers: Mapping[str, Operator]) -> Operator | None:
    """The block that makes one of the values of which an operator chooses."""
    makes = [makers.get(name) for name in select.inputs.get("X", ())]
    blocks = [op for op in makes if op is not None and op.type == "conditional_block"]
    return blocks[-1] if blocks and len(makes) == 2 else None


def _source(op: Operator, slot: str, makers: Mapping[str, Operator]) -> tuple[str, ...]:
    """What is cast to the variable in a slot."""
    names = op.inputs.get(slot, ())
    cast = makers.get(names[0]) if names else None
    return cast.inputs.get("X", ()) if cast is not None and cast.type == "cast" else names


def _branches(then: Operator, other: Operator, selects: Sequence[Operator]) -> Operator:
    attributes = {
        "true_block": then.attributes.get("sub_block"),
        "false_block": other.attributes.get("sub_block"),
        "then": tuple(each.inputs["X"][1] for each in selects),
        "else": tuple(each.inputs["X"][0] for each in selects),
    }
    outputs = {"Out": tuple(name for each in selects for name in each.outputs.get("Out", ()))}
    inputs = {"Cond": then.inputs["Cond"]}
    return replace(other, type="if", inputs=inputs, outputs=outputs, attributes=attributes)
