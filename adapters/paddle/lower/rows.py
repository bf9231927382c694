"""The rules of Paddle's operators that a row of the table tells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import RULES
from onernn.adapters.paddle.operators import REDUCTIONS, ROWS, Row
from onernn.core.errors import UnsupportedError
from onernn.core.operator import OPERATORS


def _unary(row: Row, op: PaddleOperator) -> Results:
    """Over the words of all sentences where the operator's record says that axis 0 meets."""
    canonical, x = OPERATORS[row.op], op.value("X")
    if canonical.slots[0].ragged:
        op.ragged("X")
    attributes = _attributes(row, op)
    x = x if row.keeps_lod else op.dense(x)
    mixed = canonical.mixed(canonical.at(attributes, 1), 0) or ()
    if op.is_ragged(x) and any(axis in (0, -len(op.shape("X"))) for axis in mixed):
        return {row.output: op.under(op.emit(row.op, op.dense(x), **attributes), x)}
    return {row.output: op.emit(row.op, x, **attributes)}


def _binary(row: Row, op: PaddleOperator) -> dict[str, str]:
    """The LoD of X is handed on. ``axis`` is where the axes of Y begin among those of X."""
    op.attribute("force_cpu", False)
    attributes = _attributes(row, op)
    x, y, axis = op.value("X"), op.dense(op.value("Y")), op.attribute("axis", -1)
    rank, inner = len(op.shape("X")), len(op.shape("Y"))
    if rank < inner and op.is_ragged(x):
        raise UnsupportedError(f"input Y has {inner} axes, more than the ragged X with {rank}")
    missing = 0 if axis == -1 else max(rank, inner) - axis - min(rank, inner)
    if missing < 0 or axis < -1:
        raise UnsupportedError(f"attribute axis={axis} for inputs of {rank} and {inner} axes")
    if missing:  # the shorter one stands before axes of the longer one
        behind = op.ints(range(min(rank, inner), min(rank, inner) + missing))
        if inner < rank:
            y = op.emit("Unsqueeze", y, behind)
        else:
            x = op.emit("Unsqueeze", x, behind)
    return {row.output: op.emit(row.op, x, y, **attributes)}


def _reduction(row: Row, op: PaddleOperator) -> Results:
    op.attribute("in_dtype", -1)
    rank, keep = len(op.shape("X")), op.attribute("keep_dim", False)
    axes = op.attribute("dim", (0,))
    axes = [axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)]
    if op.attribute("reduce_all", False) or not axes or row.type == "mean":
        axes = list(range(rank))
    x = op.dense(op.value("X"))
    if op.attribute("out_dtype", -1) >= 0:
        x = op.emit("Cast", x, to=op.chosen_dtype("out_dtype", -1))
    elif row.type == "reduce_sum" and op.dtype("X") in (np.int32, np.bool_):
        x = op.emit("Cast", x, to="int64")
    out = op.emit(row.op, x, op.ints(axes), keepdims=int(keep))
    if not keep and len(axes) == rank and op.gives_one():
        out = op.emit("Reshape", out, op.ints([1]))
    return {row.output: out}


def _not_equal(op: PaddleOperator) -> Results:
    return op.emit("Not", _binary(Row("not_equal", "Equal"), op)["Out"])


def _attributes(row: Row, op: PaddleOperator) -> dict[str, Any]:
    for name, value in row.only.items():
        op.only(name, value)
    return {
        name: named.ours(op.attribute(named.name, named.default))
        for name, named in row.attributes.items()
    }


def _fill(read: Callable[[Row, PaddleOperator], Results], *rows: Row) -> None:
    for row in rows:
        RULES.setdefault(row.type, partial(read, row))  # unless reading has a rule of its own


_fill(_unary, *(row for row in ROWS if len(row.inputs) == 1))
_fill(_binary, *(row for row in ROWS if len(row.inputs) == 2))
_fill(_reduction, *REDUCTIONS)
RULES["not_equal"] = _not_equal
