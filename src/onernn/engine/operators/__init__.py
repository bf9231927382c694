"""The operators that plans can contain, and the rule for each."""

from onernn.engine.operators import control, products, sequences, shaping, signals
from onernn.engine.operators.elementwise import elementwise
from onernn.engine.operators.operator_code import RULES, Rule, write_node
from onernn.ops import OPERATORS

__all__ = [
    "RULES",
    "control",
    "products",
    "rule_of",
    "sequences",
    "shaping",
    "signals",
    "write_node",
]


def rule_of(op: str) -> Rule:
    """Returns the rule of an operator: its own rule, otherwise the rule for its kind."""
    record = OPERATORS.get(op)
    if op in RULES or record is None:
        return RULES.get(op, control.unknown)
    by_kind: dict[str, Rule] = {"view": shaping.view, "sizes": shaping.raise_known_before}
    return elementwise if record.expression else by_kind.get(record.kind, control.unknown)
