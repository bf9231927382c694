"""ONNX operators that multiply matrices, by name and meaning."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import Path, op, rank_of
from onernn.ir.types import Size, Type
from onernn.ops.rules import Sizes, broadcast, common


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


def product_of_rows(m: Any, node: Node) -> None:
    a, b, *others = node.inputs
    ranks = [m.rank(node, name) for name in (a, b)]
    vectors = (b in m.mapped and min(ranks) < 2) or (ranks[0] == 1 and ranks[1] > 2)
    if vectors or not m.mapped.isdisjoint(others):
        raise m.refused(node, "it multiplies vectors of rows")
    wide = 1 if ranks[0] == 1 else max(ranks)  # (F, K) @ (K, M)
    m.put(node, (m.widened(node, a, wide), m.widened(node, b, wide), *others))


def product_paths(_: Any, a: Type, b: Type, *zeros: Type | None) -> list[Path]:
    """Of stacks of matrices; zero points are one for each row of a, or column of b."""
    first, second = rank_of(a), rank_of(b)
    stacks = max(first, second, 2) - 2
    rows, columns = [stacks] * (first > 1), [stacks + (first > 1)] * (second > 1)
    a_stacks, b_stacks = (range(stacks - max(rank - 2, 0), stacks) for rank in (first, second))
    return [[*a_stacks, *rows, None], [*b_stacks, None, *columns], rows, columns]


@op("MatMul", kind="mixes", type=_matmul_type, paths=product_paths, batched=product_of_rows)
def matmul(a: Array, b: Array) -> Array:
    if a.ndim > 2 and b.ndim == 2 and a.size:  # one product, where NumPy makes one a matrix
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return a @ b


def _gemm_type(context: Context, a: Type, b: Type, c: Type | None = None) -> Type:
    attrs, dtype = context.attrs, common(*(each for each in (a, b, c) if each is not None))
    (rows, inner), (depth, columns) = (
        (None, None) if given.shape is None else given.shape[::-1] if turned else given.shape
        for given, turned in ((a, attrs.transA), (b, attrs.transB))
    )
    context.same(inner, depth)
    return Type(dtype, (rows, columns))


def _gemm_of_rows(m: Any, node: Node) -> None:
    c = node.input(2)
    if node.attrs.transA or (c and m.rank(node, c) > 1 and m.graph.types[c].counts[0] != 1):
        raise m.refused(node, "what it adds, or multiplies, belongs to a place in the batch")
    m.over_batch(node)


def _gemm_paths(attrs: Any, a: Type, b: Type, c: Type | None = None) -> list[Path]:
    first, second = [0, None], [None, 1]
    added = range(2 - rank_of(c), 2)
    return [first[::-1] if attrs.transA else first, second[::-1] if attrs.transB else second, added]


@op(
    "Gemm",
    kind="mixes",
    paths=_gemm_paths,
    type=_gemm_type,
    batched=_gemm_of_rows,
)
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    if a.ndim != 2 or b.ndim != 2 or c is not None and c.ndim > 2:
        shapes = [each.shape for each in (a, b, c) if each is not None]
        raise ShapeError(f"Gemm: expected matrices, got {shapes}; MatMul takes more axes")
    a = a.T if transA else a
    b = b.T if transB else b
    out = matmul(a, b) * np.asarray(alpha, a.dtype)
    return out if c is None else out + c * np.asarray(beta, a.dtype)


def _terms(equation: str) -> tuple[list[str], str]:
    """Returns the letters of each factor, and of the result."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        single = sorted(letter for letter in set(given) - set(",.") if given.count(letter) == 1)
        result = "..." * ("..." in given) + "".join(single)
    return given.split(","), result


def _einsum_type(context: Context, *factors: Type) -> Type:
    dtype = common(*factors)
    terms, result = _terms(context.attrs.equation)
    if any(each.shape is None for each in factors):
        return Type(dtype)
    sizes: dict[str, Size | None] = {}
    rest: Sizes | None = ()
    for term, factor in zip(terms, factors, strict=True):
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
    front, dots, back = result.partition("...")
    if rest is None:
        return Type(dtype)
    middle = rest if dots else ()
    return Type(dtype, (*(sizes[k] for k in front), *middle, *(sizes[k] for k in back)))


def _einsum_of_rows(m: Any, node: Node) -> None:
    """Rows are one letter more, in front."""
    terms, result = _terms(node.attrs.equation)
    row = next((c for c in ascii_letters if c not in node.attrs.equation), "")
    if not row or len(terms) != len(node.inputs):
        raise m.refused(node, f"equation {node.attrs.equation!r}")
    pairs = zip(terms, node.inputs, strict=True)
    over = ",".join(row * (name in m.mapped) + term for term, name in pairs)
    m.put(node, node.inputs, equation=f"{over}->{row}{result}")


def _einsum_paths(attrs: Any, *_: Type) -> list[Path] | None:
    """Axes without letters are not followed."""
    terms, result = _terms(attrs.equation)
    places = {letter: result.index(letter) for letter in result}
    return (
        None
        if "." in attrs.equation
        else [
            [places.get(letter) if term.count(letter) == 1 else None for letter in term]
            for term in terms
        ]
    )


@op(
    "Einsum",
    kind="mixes",
    type=_einsum_type,
    paths=_einsum_paths,
    batched=_einsum_of_rows,
)
def einsum(first: Array, *rest: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, first, *rest))
