"""A Paddle program as a graph of canonical operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.table import RULES
from onernn.adapters.paddle.read import Operator, Program, Variable, read_program
from onernn.core.errors import ModelFormatError, OnernnError, UnsupportedError
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
    for op in program.operators:
        if op.type not in ("feed", "fetch"):
            _lower_operator(builder, declared, op, program.version)
    return builder.graph([_fetched(builder, program, op) for op in sorted(fetches, key=column)])


def _declared_once(program: Program) -> dict[str, Variable]:
    """The variables without those that are assigned again: which of their values is declared?"""
    made = Counter(list(program.parameters))
    for op in program.operators:
        made.update({name for names in op.outputs.values() for name in names})
    return {name: v for name, v in program.variables.items() if made[name] < 2}


def _lower_operator(
    builder: GraphBuilder,
    variables: Mapping[str, Variable],
    op: Operator,
    version: int,
) -> None:
    builder.origin = (NativeOp(op.position, op.type),)
    given: dict[str, str] = {}
    try:
        if op.type not in RULES:
            raise UnsupportedError("this operator is not known")
        view = PaddleOperator(builder, variables, op, version)
        made = RULES[op.type](view)
        view.check_read()
        for slot, values in ({"Out": made} if isinstance(made, str) else made).items():
            listed = [values] if isinstance(values, str) else values
            given.update(zip(op.outputs.get(slot, ()), listed, strict=False))
        reason = "this output is not computed"
    except OnernnError as error:
        reason = str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Slots or attributes of no known form.
        reason = f"malformed: {type(error).__name__} {error}"
    for variable, value in given.items():
        builder.give(variable, value)
    for slot, names in op.outputs.items():
        for variable in names:
            if variable not in given:
                reads = map(builder.value, chain.from_iterable(op.inputs.values()))
                builder.refuse(variable, f"output {slot}: {reason}", reads)


def _fetched(builder: GraphBuilder, program: Program, op: Operator) -> Value:
    variable = _only(program, op.inputs, "X")
    value = builder.value(variable)
    if value != variable and builder.is_made(variable):  # assigned twice: the last one counts
        builder.swap(value, variable)
        value = variable
    return replace(_declared(program, variable), name=value, lod_depth=builder.depth.get(value, 0))


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
