"""What operators make of constants is computed while a model is read: weights above all.

Exporters cast, turn and join them on the way to a layer, and adapters need their numbers. A run
would compute the same by the same kernels, each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import budget_of_run
from onernn.core.errors import BudgetError
from onernn.core.graph import Node
from onernn.engine.kernels import KERNELS
from onernn.operators import OPERATORS

_SMALL = 2**16
"""Elements that a result may always have; more only where its inputs have as many together."""

FOLDED = frozenset(
    name
    for name, operator in OPERATORS.items()
    if operator.kind in ("elementwise", "view", "moves", "mixes", "sizes")
    and not name.startswith("Sequence")
)
"""Operators that can be computed while a model is read."""

_MOVING = {name for name in FOLDED if OPERATORS[name].kind in ("view", "moves", "sizes")}
_MOVING |= {"Cast", "CastLike"}


def moves(node: Node, arrays: Iterable[Array | None]) -> bool:
    """Whether a node computes nothing but places and sizes.

    Arithmetic stays in the graph: the first step of an unrolled cell, of zeros, looks like others.
    """
    given = [array for array in arrays if array is not None]
    masked = node.op == "Mul" and not all(array.any() for array in given)  # a state of zeros
    return node.op in _MOVING or masked or all(array.dtype.kind in "biu" for array in given)


class FoldingBudget:
    """What folded constants may take: 16 times the bytes that the model brings, and 16 MB."""

    def __init__(self, constants: Iterable[Array] = ()) -> None:
        self._left = 2**24 + 16 * sum(array.nbytes for array in constants)

    def fold(self, node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...] | None:
        """What a node gives for these inputs; None where that is left for the run."""
        if node.op not in FOLDED:
            return None
        most = max(_SMALL, sum(array.size for array in arrays if array is not None))
        try:
            with budget_of_run(min(16 * most, self._left), 0) as budget:
                made: Any = KERNELS[node.op](node, *arrays)
        except BudgetError:
            return None
        self._left -= budget.used
        results = tuple(map(np.asarray, made if isinstance(made, tuple) else (made,)))
        fits = len(results) == len(node.outputs) and sum(each.size for each in results) <= most
        return results if fits else None
