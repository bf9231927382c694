"""Paddle's operators by type, with the rules that lower them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onernn.adapters.paddle.lower.operator import PaddleOperator

Made = str | Mapping[str, str | Sequence[str]]
"""The value of the output Out, or those of output slots by name."""
Rule = Callable[[PaddleOperator], Made]
RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Registers a function that lowers operators of these types."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register
