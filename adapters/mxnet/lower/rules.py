"""The registry of the tables: MXNet's operators and the rules that lower them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from onernn.adapters.lowering import Results
from onernn.adapters.mxnet.lower.aliases import names_of
from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.read import Symbol, SymbolNode
from onernn.core.errors import UnsupportedError

Function = Callable[..., Results]
"""Gives an operator's outputs, from the operator and the values in its required slots."""
F = TypeVar("F", bound=Function)


class Rule(NamedTuple):
    """How an operator is lowered.

    ``name``: its name in the table. ``slots``: those of its inputs; ``rest`` takes all others.
    ``required``: those whose values the function takes; it asks for other values itself.
    ``inferred``: what becomes of inputs whose sizes MXNet infers (`Context.inferred`). Outputs
    are of inferred size if the "first" input is, or "all" are, or "none"; "" refuses.
    """

    name: str
    slots: tuple[str, ...]
    required: tuple[str, ...]
    rest: str
    function: Function
    inferred: str

    def lower(self, op: MxnetOperator) -> Results:
        values = [op.value(slot) for slot in self.required]
        return self.function(op, *values, *(op.values(self.rest) if self.rest else ()))

    def slots_of(self, count: int) -> list[str]:
        """The slot of each of ``count`` inputs. Raises `UnsupportedError` for too many."""
        if count > len(self.slots) and not self.rest:
            raise UnsupportedError(f"{count} inputs, expected {', '.join(self.slots)}")
        return [*self.slots, *[self.rest] * count][:count]


RULES: dict[str, Rule] = {}


def rule(names: str, inputs: str, *, inferred: str = "") -> Callable[[F], F]:
    """Registers a function for operators; ``x?`` may be absent, ``*x`` is any number of them."""
    slots = [each for each in inputs.split() if not each.startswith("*")]
    required = tuple(each for each in slots if not each.endswith("?"))
    rest = inputs.partition("*")[2]

    def register(function: F) -> F:
        every = tuple(each.removesuffix("?") for each in slots)
        for name in names.split():
            RULES[name] = Rule(name, every, required, rest, function, inferred)
        return function

    return register


@lru_cache(maxsize=1024)
def find_rule(name: str) -> Rule | None:
    return next((RULES[each] for each in names_of(name) if each in RULES), None)


def known_name(name: str) -> str:
    """The operator's name in the table; the same where it is not known."""
    found = find_rule(name)
    return found.name if found else name


def slots_of_node(node: SymbolNode) -> list[str]:
    """The slot of each of a node's inputs, "" where that is not known."""
    found = find_rule(node.op)
    try:
        return found.slots_of(len(node.inputs)) if found else [""] * len(node.inputs)
    except UnsupportedError:
        return [""] * len(node.inputs)


def needed(symbol: Symbol) -> set[int]:
    """The nodes that the outputs depend on; what makes labels is for training alone."""
    found = {entry.node for entry in symbol.heads}
    for at in reversed(range(len(symbol.nodes))):
        if at in found:
            node = symbol.nodes[at]
            pairs = zip(node.inputs, slots_of_node(node), strict=True)
            found |= {entry.node for entry, slot in pairs if slot != "label"}
    return found
