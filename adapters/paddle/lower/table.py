"""The table of rules, which the modules beside it fill."""

from __future__ import annotations

from collections.abc import Callable

from onernn.adapters.paddle.lower.operator import PaddleOperator

Rule = Callable[[PaddleOperator], None]
RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Registers a function that lowers operators of these types."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register
