"""The rules of Paddle's operators that choose, count and turn elements.

Slots and defaults: the operators' makers in 2.6. All of these hand on the LoD of their first value,
whatever they do to its rows: measured with 2.6.2.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.table import rule
from onernn.core.errors import UnsupportedError


def _under(op: PaddleOperator, out: str, x: str) -> str:
    """As many rows under the LoD of x."""
    return op.emit("SequenceLike", out, x, depth=op.builder.depth[x]) if op.is_ragged(x) else out


def _check_fits(op: PaddleOperator, x: str, changed: bool, what: str) -> None:
    if changed and op.is_ragged(x):
        raise UnsupportedError(f"{what}: Paddle keeps a LoD that does not fit")


def _not_at_run_time(op: PaddleOperator, *slots: str) -> None:
    for slot in slots:
        if op.variables(slot):
            raise UnsupportedError(f"input {slot}: computed at run time")


@rule("cumsum")
def _cumsum(op: PaddleOperator) -> None:
    _not_at_run_time(op, "Axis")
    value, axis, flat = op.value("X"), op.attribute("axis", -1), op.attribute("flatten", False)
    if op.attribute("exclusive", False):
        raise UnsupportedError("attribute exclusive: Paddle gives a single element itself, not 0")
    _check_fits(op, value, flat, "attribute flatten")
    x = op.dense(value)
    if flat:
        x, axis = op.emit("Reshape", x, op.ints([-1])), 0
    at = op.builder.constant(np.int64(axis), "axis")
    out = op.emit("CumSum", x, at, reverse=int(op.attribute("reverse", False)))
    op.give("Out", _under(op, out, value))


@rule("where")
def _where(op: PaddleOperator) -> None:
    condition, x, y = (op.value(slot) for slot in ("Condition", "X", "Y"))
    out = op.emit("Where", *map(op.dense, (condition, x, y)))
    op.give("Out", _under(op, out, x))


@rule("gather")
def _gather(op: PaddleOperator) -> None:
    """Indices (K,) or (K, 1) count from zero."""
    _not_at_run_time(op, "Axis")
    x, at, axis = op.value("X"), op.dense(op.value("Index")), op.attribute("axis", 0)
    op.attribute("overwrite", True)  # of the gradient
    axis %= len(op.shape("X"))
    _check_fits(op, x, axis == 0, f"attribute axis={axis}")
    if len(op.shape("Index")) > 1:
        at = op.emit("Reshape", at, op.ints([-1]))
    out = op.emit("Gather", op.dense(x), at, axis=axis, non_negative=True)
    op.give("Out", _under(op, out, x))


@rule("flip")
def _flip(op: PaddleOperator) -> None:
    x, axes = op.value("X"), list(op.attribute("axis", ()))
    behind, least = [-1] * len(axes), [-(2**63)] * len(axes)
    out = op.emit("Slice", op.dense(x), *map(op.ints, (behind, least, axes, behind)))
    op.give("Out", _under(op, out, x))


@rule("strided_slice")
def _strided_slice(op: PaddleOperator) -> None:
    for role in ("Starts", "Ends", "Strides"):
        _not_at_run_time(op, f"{role}Tensor", f"{role}TensorList")
    op.attribute("infer_flags", ())
    op.only("decrease_axis", ())
    x, axes, steps = op.value("Input"), op.attribute("axes", ()), op.attribute("strides", ())
    if min(steps, default=1) < 1:
        raise UnsupportedError(f"attribute strides={steps}: backwards")
    _check_fits(op, x, 0 in axes, f"attribute axes={axes}")
    ends = (op.attribute("starts", ()), op.attribute("ends", ()))
    op.give("Out", op.emit("Slice", x, *map(op.ints, (*ends, axes, steps))))
