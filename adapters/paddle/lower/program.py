"""A Paddle program as a graph of canonical operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.lowering import GraphBuilder, LoweringStep, Output, Results, lower_steps
from onernn.adapters.paddle.lower.operator import PaddleOperator, listed
from onernn.adapters.paddle.lower.table import RULES
from onernn.adapters.paddle.read import Operator, Program, Variable, read_program
from onernn.core.errors import ModelFormatError, UnsupportedError
from onernn.core.graph import Graph, NativeOp, Value


def load_paddle(path: str | Path, params: str | Path | None = None) -> Graph:
    """The graph of a saved model; operators that cannot be lowered are in it, with the reason.

    Raises `ModelFormatError` for files that are no model.
    """
    return lower(read_program(path, params))


def lower(program: Program) -> Graph:
    """The graph of a program. Raises `ModelFormatError` where it contradicts itself."""
    builder = GraphBuilder(str(program.file), FoldingBudget(program.parameters.values()))
    for name, array in program.parameters.items():
        builder.constant(array, name)
    feeds = [op for op in program.operators if op.type == "feed"]
    fetches = [op for op in program.operators if op.type == "fetch"]
    column = partial(_column, program)
    for op in sorted(feeds, key=column):
        builder.input(_declared(program, _only(program, op.outputs, "Out")))
    declared = _declared_once(program)
    steps = [
        _step(builder, declared, op, program.version)
        for op in program.operators
        if op.type not in ("feed", "fetch")
    ]
    lower_steps(builder, steps, [_only(program, op.inputs, "X") for op in fetches])
    return builder.graph([_fetched(builder, program, op) for op in sorted(fetches, key=column)])


def _declared_once(program: Program) -> dict[str, Variable]:
    """The variables without those that are assigned again: which of their values is declared?"""
    made = Counter(list(program.parameters))
    for op in program.operators:
        made.update({name for names in op.outputs.values() for name in names})
    return {name: v for name, v in program.variables.items() if made[name] < 2}


def _step(
    builder: GraphBuilder, variables: Mapping[str, Variable], op: Operator, version: int
) -> LoweringStep:
    def lowered() -> Results:
        if op.type not in RULES:
            raise UnsupportedError("this operator is not known")
        return PaddleOperator(builder, variables, op, version).lowered(RULES[op.type])

    outputs = [Output(*each) for slot, names in op.outputs.items() for each in listed(slot, names)]
    reads = tuple(chain.from_iterable(op.inputs.values()))
    return LoweringStep(NativeOp(op.position, op.type), reads, lowered, lambda _: outputs)


def _fetched(builder: GraphBuilder, program: Program, op: Operator) -> Value:
    variable = _only(program, op.inputs, "X")
    value = builder.value(variable)
    if value != variable and builder.is_made(variable):  # assigned twice: the last one counts
        builder.swap(value, variable)
        value = variable
    return replace(_declared(program, variable), name=value, lod_depth=builder.type_of(value).depth)


def _only(program: Program, slots: Mapping[str, tuple[str, ...]], slot: str) -> str:
    names = slots.get(slot, ())
    if len(names) != 1:
        raise ModelFormatError(f"feed and fetch hold one variable, got {names}", program.file)
    return names[0]


def _declared(program: Program, name: str) -> Value:
    found = program.variables.get(name)
    if found is None:
        raise ModelFormatError(f"variable {name!r} is not declared", program.file)
    return Value(name, found.dtype, found.shape, found.lod_depth)


def _column(program: Program, op: Operator) -> int:
    column = op.attributes.get("col", 0)
    if not isinstance(column, int):
        raise ModelFormatError(f"{op.type}: attribute col={column!r}", program.file)
    return column
