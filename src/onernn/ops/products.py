"""ONNX operators that multiply matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import Path, op, rank_of
from onernn.ir.types import Size, Type
from onernn.ops.rules import Sizes, broadcast, common


def product_shape(context: Context, a: Type, b: Type) -> Sizes | None:
    """Returns the shape of a product, in which a vector ``a`` is a row and a vector ``b`` is a
    column.
    """
    if a.shape is None or b.shape is None:
        return None
    is_matrix = len(b.shape) > 1
    context.same(a.shape[-1], b.shape[-2 if is_matrix else 0])
    outer = broadcast(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1:] if is_matrix else ()
    return None if outer is None else (*outer, *a.shape[-2:-1], *columns)


def batch_product(m: Any, node: Node) -> None:
    a, b, *others = node.inputs
    ranks = [m.rank(node, name) for name in (a, b)]
    vectors = (b in m.mapped and min(ranks) < 2) or (ranks[0] == 1 and ranks[1] > 2)
    if vectors or not m.mapped.isdisjoint(others):
        reason = "multiplies by a vector that differs between the rows of a batch"
        raise m.make_error(node, f"{reason}: expected matrices of 2 axes or more")
    wide = 1 if ranks[0] == 1 else max(ranks)  # all rows' vectors become a matrix
    m.add_mapped(node, (m.widen(node, a, wide), m.widen(node, b, wide), *others))


def product_paths(_: Any, a: Type, b: Type, *zeros: Type | None) -> list[Path]:
    """Returns the `Path` of each input: two stacks of matrices, and their zero points. The zero
    points of a belong to its rows, the zero points of b to its columns.
    """
    first, second = rank_of(a), rank_of(b)
    stacks = max(first, second, 2) - 2
    rows, columns = [stacks] * (first > 1), [stacks + (first > 1)] * (second > 1)
    a_stacks, b_stacks = (range(stacks - max(rank - 2, 0), stacks) for rank in (first, second))
    return [[*a_stacks, *rows, None], [*b_stacks, None, *columns], rows, columns]


@op(
    "MatMul",
    kind="mixes",
    type=lambda context, a, b: Type(common(a, b), product_shape(context, a, b)),
    paths=product_paths,
    batched=batch_product,
)
def matmul(a: Array, b: Array) -> Array:
    # one large product: NumPy would compute one product per matrix
    if a.ndim > 2 and b.ndim == 2 and a.size:
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


def _batch_gemm(m: Any, node: Node) -> None:
    c = node.input(2)
    if node.attrs.transA or (c and m.rank(node, c) > 1 and m.graph.types[c].counts[0] != 1):
        raise m.make_error(node, "expected transA=0, and an input C with one row")
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
    batched=_batch_gemm,
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


def _batch_einsum(m: Any, node: Node) -> None:
    terms, result = _terms(node.attrs.equation)
    from string import ascii_letters  # importing it compiles a regular expression

    row = next((c for c in ascii_letters if c not in node.attrs.equation), "")
    if not row or len(terms) != len(node.inputs):
        why = "expected an unused letter, and a term for each input"
        raise m.make_error(node, f"attribute equation={node.attrs.equation!r}: {why}")
    pairs = zip(terms, node.inputs, strict=True)
    over = ",".join(row * (name in m.mapped) + term for term, name in pairs)
    m.add_mapped(node, node.inputs, equation=f"{over}->{row}{result}")


def _einsum_paths(attrs: Any, *_: Type) -> list[Path] | None:
    if "." in attrs.equation:
        return None
    terms, result = _terms(attrs.equation)
    return [
        [
            result.index(letter) if term.count(letter) == 1 and letter in result else None
            for letter in term
        ]
        for term in terms
    ]


@op(
    "Einsum",
    kind="mixes",
    type=_einsum_type,
    paths=_einsum_paths,
    batched=_batch_einsum,
)
def einsum(first: Array, *rest: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, first, *rest))
