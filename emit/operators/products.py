"""Products with matrices: constant ones are packed in panels, others run as plain loops."""

from __future__ import annotations

import numpy as np

from onernn.backend.compiled.packing import LANES, padded
from onernn.core.arrays import Array
from onernn.core.sizes import Shape, Size, volume
from onernn.emit.operators.elementwise import broadcast, filled, stretched_input
from onernn.emit.operators.nests import Access, each_element, nest, strides_of, whole
from onernn.emit.operators.operator_code import OperatorCode, rule
from onernn.emit.program import Code
from onernn.emit.storing import Store
from onernn.operators.rules import ONE


def groups_of(columns: int) -> int:
    """Panels of 16 columns that a product goes through together."""
    return min(4, padded(columns) // LANES)


def packed(matrix: Array) -> Array:
    """(K, C) -> (groups, K, G, 16), zeros for columns that are not there."""
    k, columns = matrix.shape
    together = groups_of(columns) * LANES
    wide = np.zeros((k, -(-columns // together) * together), matrix.dtype)
    wide[:, :columns] = matrix
    return np.ascontiguousarray(wide.reshape(k, -1, together).transpose(1, 0, 2))


@rule("MatMul")
def matmul(op: OperatorCode) -> list[Code]:
    """A vector is a matrix of one row as the first factor, of one column as the second."""
    a, b = op.shape(0), op.shape(1)
    a, b = (a if len(a) > 1 else (ONE, *a)), (b if len(b) > 1 else (*b, ONE))
    return _product(op, a, b, (False, False), 1.0)


@rule("Gemm")
def gemm(op: OperatorCode) -> list[Code]:
    at, turned = op.at, (bool(op.at.transA), bool(op.at.transB))
    a, b = (s[::-1] if t else s for s, t in zip((op.shape(0), op.shape(1)), turned, strict=True))
    codes = _product(op, a, b, turned, at.alpha)
    if op.node.input(2):
        out, shape = op.out()
        broadcast(op, [shape, op.shape(2)])
        reads = [whole(out, shape), stretched_input(op, 2)]
        more = {"numbers": {"beta": at.beta}, "real": op.program.ctype(out)}
        codes.append(each_element(op, reads, "AddTimes", **more))
    return codes


def _product(
    op: OperatorCode, a: Shape, b: Shape, turned: tuple[bool, bool], alpha: float
) -> list[Code]:
    """Of matrices, or stacks of them, as they are behind turning."""
    op.of("float")
    if op.dtype(0) != op.dtype(1):
        op.refuse(f"of {op.dtype(0)} and {op.dtype(1)}")
    if op.program.sentences(op.node.inputs[1]):
        op.refuse("ragged as its second factor")
    inner = op.same(a[-1], b[-2])
    broadcast(op, [a[:-2], b[:-2]])
    op.mixes = [a[-1], b[-1]]
    out, _ = op.out()
    matrix = op.program.graph.constants.get(op.node.inputs[1])
    real, columns, rows = op.program.ctype(out), b[-1], volume(a[:-1])
    if matrix is not None and matrix.ndim == 2 and not turned[0]:
        group = groups_of(columns.number or 1)
        code = op.code("dense", inner=inner, columns=columns, rows=rows, real=real, group=group)
        code.context["x"] = op.read(0)

        def pack(store: Store) -> None:
            wide = (matrix.T if turned[1] else matrix) * matrix.dtype.type(alpha)
            code.context["place_of"] = store.add(packed(wide), narrow=True)

        op.packs(pack)
        return [code]
    batch = b[:-2] if any(size.number != 1 for size in b[:-2]) else ()
    if batch and a[:-2] != batch:
        op.refuse(f"a product of {len(a)} and {len(b)} axes, stretched")
    more = {"rows": a[-2] if batch else rows, "batch": volume(batch), "turned": turned}
    more |= {"inner": inner, "columns": columns, "real": real, "alpha": alpha}
    return [op.code("product", x=op.read(0), y=op.read(1), **more)]


@rule("Einsum")
def einsum(op: OperatorCode) -> list[Code]:
    """One loop a letter; those that the result does not have are summed over."""
    given, arrow, result = op.at.equation.replace(" ", "").partition("->")
    terms, shapes = given.split(","), [op.shape(at) for at in range(len(op.node.inputs))]
    if not arrow:
        op.refuse(f"equation {op.at.equation}: say what the result is")
    # Axes that "..." stands for get letters that no equation has, counted from the last one.
    unnamed = [
        "".join(chr(0x3B1 + at) for at in reversed(range(len(shape) - len(term) + 3)))
        if "..." in term
        else ""
        for shape, term in zip(shapes, terms, strict=True)
    ]
    terms = [term.replace("...", more) for term, more in zip(terms, unnamed, strict=True)]
    result = result.replace("...", max(unnamed, key=len))
    sizes = dict.fromkeys(result, ONE)
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter, ONE)
            sizes[letter] = op.same(known, size) if ONE not in (known, size) else known * size
    summed = [sizes[letter] for letter in sizes if letter not in result]
    names = [name for size in sizes.values() for name in size.names]
    op.mixes = [*summed, *(Size.of(name) for name in names if names.count(name) > 1)]
    reads = []
    for at, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        strides = dict.fromkeys(sizes, Size(()))
        for letter, size, stride in zip(term, shape, strides_of(shape), strict=True):
            strides[letter] += stride if size != ONE else 0
        reads.append(Access(op.read(at), tuple(strides.values())))
    out, shape = op.out()
    to = Access(out, (*strides_of(shape), *(Size(()) for _ in summed)))
    factors = " * ".join(f"{{{at}}}" for at in range(len(reads)))
    if not summed:
        return [nest(tuple(sizes.values()), to, reads, factors)]
    total = " * ".join(f"{{{at + 1}}}" for at in range(len(reads)))
    loops = tuple(sizes.values())
    return [filled(op, 0, 0), nest(loops, to, [to, *reads], f"{{0}} + {total}")]
