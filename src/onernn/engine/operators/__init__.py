"""The operators that plans have: the rule for each."""

from onernn.engine.operators import control, products, sequences, shaping
from onernn.engine.operators.elementwise import elementwise
from onernn.engine.operators.operator_code import RULES, Rule, written
from onernn.ops import OPERATORS

__all__ = ["RULES", "control", "products", "rule_of", "sequences", "shaping", "written"]


def rule_of(op: str) -> Rule:
    """Returns the rule of an operator: its own, else the one that its definition allows."""
    record = OPERATORS.get(op)
    if op in RULES or record is None:
        return RULES.get(op, control.unknown)
    by_kind: dict[str, Rule] = {"view": shaping.view, "sizes": shaping.known_before}
    return elementwise if record.expression else by_kind.get(record.kind, control.unknown)
