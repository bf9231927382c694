"""The rules of layers that join several tensors.

Formulas: documentation of keras.layers of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from onernn.adapters.keras.lower.layer import KerasLayer, Made, Tensor, rule
from onernn.core.errors import UnsupportedError

ARITHMETIC = {
    **{"Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "TrueDivide": "Div"},
    **{"Maximum": "Max", "Minimum": "Min"},
}


def _operands(op: KerasLayer) -> list[Tensor]:
    """What is joined; those of fewer axes get axes behind the first one."""
    found = op.tensors
    if len({op.dtype(each.value) for each in found}) > 1:
        raise UnsupportedError("called with tensors of several types")
    ranks = [op.rank(each.value) for each in found]
    return [
        each._replace(value=op.emit("Unsqueeze", each.value, op.ints(*range(1, 1 + missing))))
        if (missing := max(ranks) - rank)
        else each
        for each, rank in zip(found, ranks, strict=True)
    ]


def _joined(op: KerasLayer, both: Callable[[str, str], str]) -> Tensor:
    given = _operands(op)
    return Tensor(reduce(both, [each.value for each in given]), _mask(op, given))


def _mask(op: KerasLayer, given: Sequence[Tensor]) -> str:
    """Keras 3: where any has words, and none where one has no mask; Keras 2: where all have."""
    masks = [each.mask for each in given if each.mask]
    if not masks or op.major > 2 and len(masks) < len(given):
        return ""
    name = "Or" if op.major > 2 else "And"
    return reduce(lambda a, b: a if a == b else op.emit(name, a, b), masks)


@rule("Add", "Subtract", "Multiply", "Maximum", "Minimum")
def _arithmetic(op: KerasLayer) -> Tensor:
    return _joined(op, lambda a, b: op.emit(ARITHMETIC[op.at.type], a, b))


@rule("Average")
def _average(op: KerasLayer) -> Tensor:
    given = _operands(op)
    total = reduce(lambda a, b: op.emit("Add", a, b), [each.value for each in given])
    return Tensor(op.emit("Div", total, op.scalar(len(given), total)), _mask(op, given))


@rule("Concatenate")
def _concatenate(op: KerasLayer) -> Tensor:
    given, rank = op.tensors, op.rank(op.tensors[0].value)
    axis = op.integer("axis", -1)
    place = axis % rank if -rank <= axis < rank else axis
    y = op.emit("Concat", *(each.value for each in given), axis=axis)
    masks = [each.mask for each in given]
    if not any(masks) or place == rank - 1:
        return Tensor(y, _mask(op, given))
    if place != 1 or not all(masks):
        raise UnsupportedError(f"attribute axis={axis} with masks")
    return Tensor(y, op.emit("Concat", *masks, axis=1))


@rule("Dot")
def _dot(op: KerasLayer) -> str:
    """Sums over an axis of each, sample by sample."""
    a, b = (each.value for each in op.tensors)
    told: Any = op.attribute("axes", 1)
    axes = [
        axis % op.rank(x)
        for axis, x in zip([told] * 2 if type(told) is int else told, (a, b), strict=True)
    ]
    if min(axes) < 1:
        raise UnsupportedError(f"attribute axes={told!r}: samples stay apart")
    if op.flag("normalize"):
        a, b = (_unit(op, x, axis) for x, axis in zip((a, b), axes, strict=True))
    letters = "abcdefghijklm", "anopqrstuvwxy"
    left, right = ([*names[: op.rank(x)]] for names, x in zip(letters, (a, b), strict=True))
    left[axes[0]] = right[axes[1]] = "z"
    out = [each for each in (*left, *right[1:]) if each != "z"]
    y = op.emit("Einsum", a, b, equation=f"{''.join(left)},{''.join(right)}->{''.join(out)}")
    return y if len(out) > 1 else op.emit("Unsqueeze", y, op.ints(1))


def _unit(op: KerasLayer, x: str, axis: int) -> str:
    """x by its length along an axis, of at least 1e-6."""
    total = op.emit("ReduceSumSquare", x, op.ints(axis), keepdims=1)
    least = op.scalar(1e-12, x)
    return op.emit("Div", x, op.emit("Sqrt", op.emit("Max", total, least)))


@rule("UnitNormalization", masks=True)
def _unit_normalization(op: KerasLayer) -> str:
    axis: Any = op.attribute("axis", -1)
    (axis,) = axis if isinstance(axis, list) else [axis]
    return _unit(op, op.floats, axis % op.rank(op.x))


@rule("Attention")
def _attention(op: KerasLayer) -> Made:
    """softmax(query key') value; keys that a mask hides get nothing."""
    query, value, *rest = op.tensors
    op.only("score_mode", "dot")
    op.only("use_causal_mask=", False)
    op.only("return_attention_scores=", False)
    if len(rest) > 1 or any(op.rank(each.value) != 3 for each in (query, value, *rest)):
        raise UnsupportedError("expected two or three tensors (N, T, C)")
    key = (rest or [value])[0].value
    scores = op.emit("MatMul", query.value, op.transposed(key, 0, 2, 1))
    if op.flag("use_scale"):
        (scale,) = op.weights("scale")
        scores = op.emit("Mul", scores, op.constant(scale, "scale"))
    if value.mask:
        kept = op.emit("Unsqueeze", value.mask, op.ints(1))
        hidden = op.emit("Sub", scores, op.scalar(1e9, scores))
        scores = op.emit("Where", kept, scores, hidden)
    y = op.emit("MatMul", op.emit("Softmax", scores, axis=-1), value.value)
    if query.mask:
        y = op.emit("Where", op.emit("Unsqueeze", query.mask, op.ints(2)), y, op.scalar(0, y))
    return Tensor(y, query.mask)
