"""Loops over an output's elements: all that elementwise and moving operators need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onernn.core.sizes import Shape, Size
from onernn.emit.operators.operator_code import OperatorCode
from onernn.emit.program import Code

INDICES = "ijklmnpq"


@dataclass(frozen=True)
class Access:
    """Elements of a value: the one at i, j, ... is ``start`` + i * strides[0] + j * strides[1]."""

    name: str
    strides: tuple[Size, ...]
    start: Size = Size(())

    def at(self, indices: Sequence[str]) -> str:
        terms = [] if self.start.number == 0 else [str(self.start)]
        for index, stride in zip(indices, self.strides, strict=True):
            if stride.number == 1:
                terms.append(index)
            elif stride.number != 0:
                terms.append(f"{index} * {stride.factor}")
        return " + ".join(terms) or "0"


def strides_of(shape: Shape) -> tuple[Size, ...]:
    """Elements between neighbours along each axis, rows one behind the other."""
    out: list[Size] = []
    stride = Size.of(1)
    for size in reversed(shape):
        out.append(stride)
        stride = stride * size
    return tuple(reversed(out))


def whole(name: str, shape: Shape) -> Access:
    return Access(name, strides_of(shape))


def stretched(name: str, shape: Shape, out: Shape) -> Access:
    """Broadcast to a shape, from the right."""
    own = strides_of(shape)
    front = len(out) - len(shape)
    strides = [Size(())] * front + [
        Size(()) if size.number == 1 and wide.number != 1 else stride
        for size, wide, stride in zip(shape, out[front:], own, strict=True)
    ]
    return Access(name, tuple(strides))


def each_element(op: OperatorCode, reads: Sequence[Access], formula: str, **more: object) -> Code:
    """The whole output, element by element."""
    out, shape = op.out()
    return nest(shape, whole(out, shape), reads, formula, **more)


def nest(loops: Shape, out: Access, reads: Sequence[Access], formula: str, **more: object) -> Code:
    """out = formula(reads), element by element; neighbouring loops become one where they can.

    ``formula``: a key of `expressions.jinja`.
    """
    accesses = [out, *reads]
    dims = [(size, [a.strides[at] for a in accesses]) for at, size in enumerate(loops)]
    dims = [dim for dim in dims if dim[0].number != 1]
    merged: list[tuple[Size, list[Size]]] = []
    for size, strides in dims:
        if merged and merged[-1][1] == [stride * size for stride in strides]:
            merged[-1] = merged[-1][0] * size, strides
        else:
            merged.append((size, strides))
    indices = INDICES[: len(merged)]
    texts = [
        (access.name, Access("", tuple(s[at] for _, s in merged), access.start).at(indices))
        for at, access in enumerate(accesses)
    ]
    loops_said = [(i, str(size)) for i, (size, _) in zip(indices, merged, strict=True)]
    return Code("nest", loops=loops_said, out=texts[0], reads=texts[1:], formula=formula, **more)
