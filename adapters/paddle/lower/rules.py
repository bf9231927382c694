"""Paddle's operators by type, with the rules that lower them."""

from __future__ import annotations

from collections.abc import Callable

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator

Rule = Callable[[PaddleOperator], Results]
"""Gives the value of the output Out, its values where it is a list, or those of slots by name."""
RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Registers a function that lowers operators of these types."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register
