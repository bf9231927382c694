"""Which operators of a Paddle program read what others make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

_BLOCKS = (8, 10)  # AttrType of attributes that are blocks


class Uses(NamedTuple):
    """The variables that an operator reads and makes, those of inner blocks among them."""

    reads: frozenset[str]
    makes: frozenset[str]


class Dataflow:
    """Of a ProgramDesc: ``uses`` of each operator of the main block, and how often each variable
    is assigned there (``writers``).
    """

    def __init__(self, desc: Any) -> None:
        inner = [op for block in desc.blocks[1:] for op in block.ops]
        self.uses: list[Uses] = []
        for op in desc.blocks[0].ops:
            holds = [op, *inner] if any(each.type in _BLOCKS for each in op.attrs) else [op]
            reads = frozenset(name for each in holds for name in _names(each.inputs))
            makes = frozenset(name for each in holds for name in _names(each.outputs))
            self.uses.append(Uses(reads, makes))
        self.writers = Counter(name for use in self.uses for name in use.makes)

    def leaves(self) -> set[str]:
        """What operators make of which nothing is read."""
        read = {name for use in self.uses for name in use.reads}
        return {name for use in self.uses if not use.makes & read for name in use.makes}

    def closed(self, positions: set[int]) -> set[int]:
        """With the operators on the way from one of these to another."""
        makers: dict[str, int] = {}
        before: list[set[int]] = []
        for at, use in enumerate(self.uses):
            before.append({makers[name] for name in use.reads if name in makers})
            makers.update(dict.fromkeys(use.makes, at))
        behind, ahead = set(positions), set(positions)
        for at in range(min(positions), max(positions) + 1):
            if before[at] & behind:
                behind.add(at)
        for at in range(max(positions), min(positions), -1):
            if at in ahead:
                ahead |= before[at]
        return behind & ahead

    def obstacle(
        self, positions: set[int], inputs: Collection[str], outputs: Collection[str]
    ) -> str:
        """Why these operators cannot all run at the place of their last one, "" where they can."""
        for name in (*inputs, *outputs):
            if self.writers[name] > 1:
                return f"variable {name!r} is assigned more than once"
        read: set[str] = set()
        for at in range(min(positions), max(positions)):
            use = self.uses[at]
            if at in positions:
                read |= use.reads
            elif early := use.reads & {*outputs}:
                return f"variable {min(early)!r} is read before all of its operators have run"
            elif late := use.makes & read & {*inputs}:
                return f"variable {min(late)!r} is assigned before all of its operators have run"
        return ""


def _names(slots: Any) -> set[str]:
    return {name for slot in slots for name in slot.arguments if name}
