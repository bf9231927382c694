"""Converts a Paddle program to a graph of canonical operators, which are onernn's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onernn.adapters.common.caller_rules import CallerRule, read_callers
from onernn.adapters.common.lowering import FoldingBudget
from onernn.adapters.common.signatures import Signature
from onernn.adapters.paddle import control, layers, rules, shaping
from onernn.adapters.paddle.read import Block, Operator, Program, read_program
from onernn.adapters.paddle.table import (
    RULES,
    BlockError,
    Blocks,
    PaddleBuilder,
    PaddleTensor,
    lower_operators,
)
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import Graph, Value

__all__ = ["RULES", "control", "layers", "load_paddle", "lower", "rules", "shaping"]
"""The public API, and the modules that add their rules to ``RULES`` when they are imported."""


read_caller_rules = partial(read_callers, signature=Signature, tensor=PaddleTensor)
"""Returns a caller's rules for Paddle's operators, by operator name."""


def load_paddle(
    path: str | Path,
    params: str | Path | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
) -> Graph:
    """Returns the graph of a saved model. An operator that cannot be converted becomes a node that
    states the reason.

    Raises `ModelFormatError` for files that are not a model.
    """
    return lower(read_program(path, params), read_caller_rules(rules))


def lower(program: Program, callers: Mapping[str, CallerRule] = MappingProxyType({})) -> Graph:
    """Returns the graph of a program. Raises `ModelFormatError` if the program is inconsistent."""
    budget = FoldingBudget(program.parameters.values())
    blocks = Blocks({0: Block(program.operators, program.variables), **program.inner})
    builder = PaddleBuilder(str(program.file), budget, blocks, program.version)
    builder.rules = callers
    for name, array in program.parameters.items():
        builder.constant(array, name)
    feeds = [op for op in program.operators if op.type == "feed"]
    fetches = [op for op in program.operators if op.type == "fetch"]
    column = partial(_column, program)
    for op in sorted(feeds, key=column):
        builder.input(_declare(program, _only(program, op.outputs, "Out")))
    operators = [op for op in program.operators if op.type not in ("feed", "fetch")]
    kept = [_only(program, op.inputs, "X") for op in fetches]
    try:
        lower_operators(builder, operators, kept)
    except BlockError as error:
        raise ModelFormatError(str(error), program.file) from error
    return builder.graph([_fetch(builder, program, op) for op in sorted(fetches, key=column)])


def _fetch(builder: PaddleBuilder, program: Program, op: Operator) -> Value:
    variable = _only(program, op.inputs, "X")
    value = builder.value(variable)
    if value != variable and builder.is_made(variable):  # assigned twice: the last value is fetched
        builder.swap(value, variable)
        value = variable
    return replace(_declare(program, variable), name=value, lod_depth=builder.type_of(value).depth)


def _only(program: Program, slots: Mapping[str, tuple[str, ...]], slot: str) -> str:
    names = slots.get(slot, ())
    if len(names) != 1:
        raise ModelFormatError(f"feed and fetch: expected one variable, got {names}", program.file)
    return names[0]


def _declare(program: Program, name: str) -> Value:
    result = program.variables.get(name)
    if result is None:
        raise ModelFormatError(
            f"variable {name!r}: expected its declaration in the program", program.file
        )
    return Value(name, result.dtype, result.shape, result.lod_depth)


def _column(program: Program, op: Operator) -> int:
    column = op.attributes.get("col", 0)
    if not isinstance(column, int):
        raise ModelFormatError(
            f"{op.type}: attribute col={column!r}: expected an integer", program.file
        )
    return column
