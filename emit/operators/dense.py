"""Products with matrices: constant ones are packed in panels, others run as plain loops."""

from __future__ import annotations

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Shape, Size, volume
from onernn.emit.cells import LANES, padded
from onernn.emit.operators.elementwise import broadcast
from onernn.emit.operators.nests import nest, stretched, whole
from onernn.emit.operators.registry import Code, Operator, operator, words_stay
from onernn.emit.program import CTYPES, Program
from onernn.emit.storing import Store


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


@operator("MatMul", "Gemm")
class Product(Operator):
    attributes = ("alpha", "beta", "transA", "transB")
    place = 0

    def types(self, program: Program) -> tuple[str, ...]:
        found = {program.dtypes[name] for name in self.node.inputs if name}
        if len(found) != 1 or not found <= {"float32", "float64"}:
            raise UnsupportedError(f"of {', '.join(sorted(found))}")
        return (found.pop(),)

    def _turned(self, shape: Shape, at: int) -> Shape:
        turned = self.node.attributes.get("trans" + "AB"[at], 0)
        return shape[::-1] if turned else shape

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        a, b = (self._turned(program.shape(self.node.inputs[at]), at) for at in (0, 1))
        if not a or not b or len(b) < 2 or len(a) < 2:
            raise UnsupportedError("a product with a vector")
        if self.node.inputs[1] in program.lods:
            raise UnsupportedError("ragged as its second factor")
        words_stay(program, self.node, [0] if self.node.attributes.get("transA") else [])
        program.same(a[-1], b[-2], self.node.label)
        out = (*broadcast(program, [a[:-2], b[:-2]], self.node.label), a[-2], b[-1])
        if len(a) == len(b) == 2:
            out = (a[0], b[1])
        if self.node.input(2):
            broadcast(program, [out, program.shape(self.node.inputs[2])], self.node.label)
        return (out,)

    def _constant(self, program: Program) -> bool:
        name = self.node.inputs[1]
        known = name in program.known and program.known[name].ndim == 2
        return known and not self.node.attributes.get("transA", 0)

    def initialize(self, program: Program, store: Store) -> None:
        if self._constant(program):
            matrix = program.known[self.node.inputs[1]]
            matrix = matrix.T if self.node.attributes.get("transB", 0) else matrix
            alpha = matrix.dtype.type(self.node.attributes.get("alpha", 1.0))
            self.place = store.add(packed(matrix * alpha), narrow=True)

    def reads(self, program: Program) -> tuple[str, ...]:
        first = self.node.inputs[:1] if self._constant(program) else self.node.inputs[:2]
        return (*first, *filter(None, self.node.inputs[2:]))

    def code(self, program: Program) -> list[Code]:
        node, out = self.node, self.node.outputs[0]
        shape = program.shape(out)
        real = CTYPES[program.dtypes[out]]
        a, b = (program.shape(node.inputs[at]) for at in (0, 1))
        inner = self._turned(a, 0)[-1]
        context = {"out": out, "x": node.inputs[0], "inner": inner, "columns": shape[-1]}
        context |= {"rows": volume(shape[:-1]), "real": real, "alpha": 1.0}
        if self._constant(program):
            group = groups_of(shape[-1].number or 1)
            codes = [Code("dense", {**context, "place_of": self.place, "group": group})]
        else:
            if any(size.number != 1 for size in b[:-2]) and a[:-2] != b[:-2]:
                raise UnsupportedError(f"a product of {len(a)} and {len(b)} axes, stretched")
            batch = b[:-2] if any(size.number != 1 for size in b[:-2]) else ()
            turned = [bool(node.attributes.get(f"trans{side}", 0)) for side in "AB"]
            rows = shape[-2] if batch else volume(shape[:-1])
            context |= {"y": node.inputs[1], "turned": turned, "rows": rows}
            context |= {"batch": volume(batch), "alpha": node.attributes.get("alpha", 1.0)}
            codes = [Code("product", context)]
        if node.input(2):
            c = stretched(node.inputs[2], program.shape(node.inputs[2]), shape)
            beta = node.attributes.get("beta", 1.0)
            to = whole(out, shape)
            codes.append(nest(shape, to, [to, c], "AddTimes", numbers={"beta": beta}, real=real))
        return codes

    def mixes(self, program: Program) -> list[Size]:
        a, b = (self._turned(program.shape(self.node.inputs[at]), at) for at in (0, 1))
        return [a[-1], b[-1]]
