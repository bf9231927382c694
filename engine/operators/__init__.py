"""The operators that plans have: the rule for each."""

from onernn.engine.formulas import OPERATORS
from onernn.engine.operators import (
    control,
    convolution,
    indexing,
    layers,
    pooling,
    products,
    quantized,
    reducing,
    refused,
    sequences,
    shaping,
)
from onernn.engine.operators.elementwise import elementwise
from onernn.engine.operators.operator_code import RULES, Rule, written

__all__ = [
    "RULES",
    "control",
    "convolution",
    "indexing",
    "pooling",
    "products",
    "quantized",
    "layers",
    "reducing",
    "refused",
    "rule_of",
    "sequences",
    "shaping",
    "written",
]


def rule_of(op: str) -> Rule:
    """What an operator becomes, or why nothing; a formula is enough for elementwise ones."""
    return RULES.get(op) or (elementwise if op in OPERATORS else refused.unknown)
