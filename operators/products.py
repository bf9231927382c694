"""ONNX operators that multiply matrices, by name and meaning."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.sizes import Size
from onernn.core.types import Type
from onernn.operators import growth
from onernn.operators.rules import Sizes, broadcast, common


def _matmul(_: Any, a: Array, b: Array) -> Array:
    if a.ndim > 2 and b.ndim == 2 and a.size:  # one product, where NumPy makes one a matrix
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return a @ b


def _matmul_type(context: Context, a: Type, b: Type) -> Type:
    if a.shape is None or b.shape is None:
        return Type(common(a, b))
    return Type(common(a, b), product_shape(context, a.shape, b.shape))


def product_shape(context: Context, a: Sizes, b: Sizes) -> Sizes | None:
    """A vector is a matrix of one row as the first factor, of one column as the second."""
    context.same(a[-1], b[-2 if len(b) > 1 else 0])
    outer = broadcast(a[:-2], b[:-2])
    columns = b[-1:] if len(b) > 1 else ()
    return None if outer is None else (*outer, *a[-2:-1], *columns)


define(
    "MatMul",
    kind="mixes",
    inputs="a b",
    type=_matmul_type,
    compute=_matmul,
    growth=growth.matmul,
)


def _gemm(at: Any, a: Array, b: Array, c: Array | None = None) -> Array:
    if a.ndim != 2 or b.ndim != 2 or c is not None and c.ndim > 2:
        shapes = [each.shape for each in (a, b, c) if each is not None]
        raise ShapeError(f"Gemm: expected matrices, got {shapes}; MatMul takes more axes")
    a = a.T if at.transA else a
    b = b.T if at.transB else b
    out = _matmul(at, a, b) * np.asarray(at.alpha, a.dtype)
    return out if c is None else out + c * np.asarray(at.beta, a.dtype)


def _gemm_type(context: Context, a: Type, b: Type, c: Type | None = None) -> Type:
    at, dtype = context.at, common(*(each for each in (a, b, c) if each is not None))
    (rows, inner), (depth, columns) = (
        (None, None) if given.shape is None else given.shape[::-1] if turned else given.shape
        for given, turned in ((a, at.transA), (b, at.transB))
    )
    context.same(inner, depth)
    return Type(dtype, (rows, columns))


define(
    "Gemm",
    kind="mixes",
    inputs="a b c?",
    attributes={"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    mixes=lambda at, *_: (0,) if at.transA else (),
    type=_gemm_type,
    compute=_gemm,
    growth=growth.gemm,
)


def _einsum_type(context: Context, *factors: Type) -> Type:
    dtype = common(*factors)
    sides = context.at.equation.replace(" ", "").split("->")
    if len(sides) != 2 or any(each.shape is None for each in factors):
        return Type(dtype)
    sizes: dict[str, Size | None] = {}
    rest: Sizes | None = ()
    for term, factor in zip(sides[0].split(","), factors, strict=True):
        shape = factor.shape or ()
        front, dots, back = term.partition("...")
        cut = len(shape) - len(back)
        if not dots and len(shape) != len(front):
            return Type(dtype)
        letters = [*zip(front, shape, strict=False), *zip(back, shape[cut:], strict=True)]
        for letter, size in letters:
            if letter not in sizes or sizes[letter] in (None, Size.of(1)):
                sizes[letter] = size
        rest = broadcast(rest, shape[len(front) : cut]) if dots else rest
    front, dots, back = sides[1].partition("...")
    if rest is None:
        return Type(dtype)
    middle = rest if dots else ()
    return Type(dtype, (*(sizes[k] for k in front), *middle, *(sizes[k] for k in back)))


define(
    "Einsum",
    kind="mixes",
    inputs="first rest*",
    attributes={"equation": REQUIRED},
    mixes=lambda *_: (0,),
    type=_einsum_type,
    compute=lambda at, *factors: np.asarray(np.einsum(at.equation, *factors)),
    growth=growth.einsum,
)
