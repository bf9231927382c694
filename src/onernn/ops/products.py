"""ONNX operators that multiply matrices, by name and meaning."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import op
from onernn.ir.types import Size, Type
from onernn.ops import row_rules
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


@op("MatMul", kind="mixes", type=_matmul_type, batched=product_of_rows, rows=row_rules.product)
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


@op(
    "Gemm",
    kind="mixes",
    mixes=lambda attrs, *_: (0,) if attrs.transA else (),
    type=_gemm_type,
    batched=_gemm_of_rows,
    rows=row_rules.gemm,
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
    """The letters of each factor, and of the result."""
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


def _rows_of_einsum(flow: Any, node: Node) -> row_rules.State:
    terms, result = _terms(node.attrs.equation)
    pairs = [(term, name, flow[name]) for term, name in zip(terms, node.inputs, strict=True)]
    if "." in node.attrs.equation:
        raise row_rules.UnknownRows(node, "has axes without letters")
    rows = {(term[s.axis], s.inner, s.lod) for term, _, s in pairs if isinstance(s, row_rules.Rows)}
    if len(rows) != 1:
        raise row_rules.UnknownRows(node, "combines values whose rows are on different axes")
    ((letter, inner, lod),) = rows
    if letter not in result:
        raise row_rules.UnknownRows(node, "sums over the rows", True)
    for term, name, state in pairs:
        if term.count(letter) > 1:
            raise row_rules.UnknownRows(node, "takes a diagonal of the rows")
        if isinstance(state, row_rules.Alike) and letter in term:
            flow.check_alike(node, name, term.index(letter))
    return row_rules.Rows(result.index(letter), inner, lod)


@op(
    "Einsum",
    kind="mixes",
    mixes=lambda *_: (0,),
    type=_einsum_type,
    batched=_einsum_of_rows,
    rows=_rows_of_einsum,
)
def einsum(first: Array, *rest: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, first, *rest))
