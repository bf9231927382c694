"""The registry of the tables: MXNet's operators and the rules that lower them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from onernn.adapters.lowering import Results
from onernn.adapters.mxnet.lower.aliases import names_of
from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.read import Symbol, SymbolNode
from onernn.core.errors import UnsupportedError

Function = Callable[[MxnetOperator], Results]


class Rule(NamedTuple):
    """How an operator is lowered: its name in the table, and its input slots.

    The last slot may have a star: it takes all the rest.

    ``inferred``: what becomes of inputs whose sizes MXNet infers (`Context.inferred`). Outputs
    are of inferred size if the "first" input is, or "all" are, or "none"; "" refuses.
    """

    name: str
    slots: tuple[str, ...]
    lower: Function
    inferred: str


RULES: dict[str, Rule] = {}


def rule(names: str, slots: str, *, inferred: str = "") -> Callable[[Function], Function]:
    """Registers a function that gives the operator's outputs."""

    def register(function: Function) -> Function:
        for name in names.split():
            RULES[name] = Rule(name, tuple(slots.split()), function, inferred)
        return function

    return register


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
        return slots_of(found, len(node.inputs)) if found else [""] * len(node.inputs)
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


def slots_of(found: Rule, count: int) -> list[str]:
    """The slot of each of ``count`` inputs. Raises `UnsupportedError` where there are too many."""
    slots = list(found.slots)
    if slots and slots[-1].startswith("*"):
        rest = slots.pop()[1:]
        return (slots + [rest] * count)[:count]
    if count > len(slots):
        raise UnsupportedError(f"{count} inputs, expected {', '.join(slots)}")
    return slots[:count]
