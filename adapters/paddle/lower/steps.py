"""A program's operators as steps of lowering, in block 0 and in inner ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onernn.adapters.lowering import LoweringStep, Output, Results, lower_steps
from onernn.adapters.paddle.lower.blocks import joined
from onernn.adapters.paddle.lower.builder import PaddleBuilder
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import RULES
from onernn.adapters.paddle.read import Operator
from onernn.core.errors import UnsupportedError


def lower_operators(
    builder: PaddleBuilder, operators: Sequence[Operator], kept: Iterable[str]
) -> None:
    """Lowers the operators of a block; ``kept`` are variables that somebody reads later."""
    builder.count(len(operators))
    lower_steps(builder, [_step(builder, op) for op in joined(operators)], kept)


def _step(builder: PaddleBuilder, op: Operator) -> LoweringStep:
    def lowered() -> Results:
        if op.type not in RULES:
            raise UnsupportedError("this operator is not known")
        found = PaddleOperator(builder, builder.blocks.declared, op, builder.version)
        return found.lowered(RULES[op.type])

    def outputs(count: int) -> list[Output]:
        """All but arrays, which are no values; a refused one is none any more."""
        results = [Output(*each) for each in builder.blocks.results(op)]
        if not count:
            for each in results:
                builder.arrays.pop(each.variable, None)
        return [each for each in results if each.variable not in builder.arrays]

    reads = tuple(sorted(builder.blocks.reads(op)))
    return LoweringStep(op.native, reads, lowered, outputs)
