"""The operators that C++ is generated for: the rule that writes each."""

from onernn.emit.operators import (
    indexing,
    products,
    recurrent,
    reducing,
    refused,
    sequences,
    shaping,
)
from onernn.emit.operators.elementwise import elementwise
from onernn.emit.operators.operator_code import RULES, Rule, written
from onernn.emit.rendering import formulas

__all__ = [
    "RULES",
    "indexing",
    "products",
    "recurrent",
    "reducing",
    "refused",
    "rule_of",
    "sequences",
    "shaping",
    "written",
]


def rule_of(op: str) -> Rule:
    """What writes an operator, or refuses it; a formula is enough for elementwise ones."""
    rows = (row.partition(" ")[0] for table in formulas().values() for row in table)
    return RULES.get(op) or (elementwise if op in rows else refused.unknown)
