"""The rules of Paddle's operators that choose elements.

Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.rules import rule
from onernn.core.errors import UnsupportedError


@rule("lookup_table", "lookup_table_v2")
def _lookup_table(op: PaddleOperator) -> Results:
    ids, table = op.value("Ids"), op.value("W")
    if op.at.type == "lookup_table":  # ids (..., 1); v2 takes them without the last axis
        ids = op.emit("Squeeze", ids, op.ints([-1]))
    padding = op.attribute("padding_idx", -1)
    if padding != -1:
        rows = op.constant("W").copy()
        if padding == len(rows):  # one past the table is a row of zeros, too
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        if not 0 <= padding < len(rows):
            raise UnsupportedError(
                f"attribute padding_idx={padding}: the table has {len(rows)} rows"
            )
        rows[padding] = 0
        table = op.builder.constant(rows, f"{table}/padded")
    return op.emit("Gather", table, ids, axis=0, non_negative=True)


def _check_lod_fits(op: PaddleOperator, x: str, axes: object, *, rows_change: bool) -> None:
    if rows_change and op.is_ragged(x):
        raise UnsupportedError(f"attribute {axes}: Paddle keeps a LoD that does not fit")


@rule("gather")
def _gather(op: PaddleOperator) -> Results:
    """Indices (K,) or (K, 1) count from zero."""
    op.absent("Axis")
    x, at, axis = op.value("X"), op.dense(op.value("Index")), op.attribute("axis", 0)
    op.attribute("overwrite", True)  # of the gradient
    axis %= len(op.shape("X"))
    _check_lod_fits(op, x, f"{axis=}", rows_change=axis == 0)
    if len(op.shape("Index")) > 1:
        at = op.emit("Reshape", at, op.ints([-1]))
    return op.under(op.emit("Gather", op.dense(x), at, axis=axis, non_negative=True), x)


@rule("flip")
def _flip(op: PaddleOperator) -> Results:
    x, axes = op.value("X"), list(op.attribute("axis", ()))
    behind, least = [-1] * len(axes), [-(2**63)] * len(axes)
    out = op.emit("Slice", op.dense(x), *map(op.ints, (behind, least, axes, behind)))
    return op.under(out, x)


@rule("slice")
def _slice(op: PaddleOperator) -> Results:
    x, axes, gone = op.value("Input"), op.attribute("axes", ()), op.attribute("decrease_axis", ())
    op.attribute("infer_flags", ())
    if 0 in axes:
        x = op.dense(x)
    begin = op.integers("starts", "StartsTensor", "StartsTensorList")
    end = op.integers("ends", "EndsTensor", "EndsTensorList")
    out = op.emit("Slice", x, begin, end, op.ints(axes))
    if gone and op.gives_one() and len(gone) == len(op.shape("Input")):
        return op.emit("Reshape", out, op.ints([1]))
    return op.emit("Squeeze", out, op.ints(gone)) if gone else out


@rule("strided_slice")
def _strided_slice(op: PaddleOperator) -> Results:
    for role in ("Starts", "Ends", "Strides"):
        op.absent(f"{role}Tensor", f"{role}TensorList")
    op.attribute("infer_flags", ())
    op.only("decrease_axis", ())
    x, axes, steps = op.value("Input"), op.attribute("axes", ()), op.attribute("strides", ())
    if min(steps, default=1) < 1:
        raise UnsupportedError(f"attribute strides={steps}: backwards")
    _check_lod_fits(op, x, f"{axes=}", rows_change=0 in axes)
    ends = (op.attribute("starts", ()), op.attribute("ends", ()))
    return op.emit("Slice", x, *map(op.ints, (*ends, axes, steps)))
