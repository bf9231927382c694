"""Operators whose results are sizes, or have shapes made of numbers."""

from __future__ import annotations

import numpy as np

from onernn.core.sizes import Shape, Size, shape_of, volume
from onernn.emit.operators.nests import nest, stretched, whole
from onernn.emit.operators.registry import Code, Operator, operator
from onernn.emit.program import CTYPES, Program


@operator("Expand", "ConstantOfShape", "Shape", "Size")
class Sized(Operator):
    """Values whose shape, or numbers, are sizes."""

    attributes = ("value", "start", "end")

    def types(self, program: Program) -> tuple[str, ...]:
        if self.node.op in ("Shape", "Size"):
            return ("int64",)
        if self.node.op == "ConstantOfShape":
            value = self.node.attributes.get("value", np.zeros(1, np.float32))
            return (np.asarray(value).dtype.name,)
        return super().types(program)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        node = self.node
        if node.op == "Shape":
            return ((Size.of(len(program.shape(node.inputs[0]))),),)
        if node.op == "Size":
            return ((),)
        asked = shape_of(program.numbers(node, node.op == "Expand", "shape") or ())
        if node.op == "ConstantOfShape":
            return (asked,)
        given = program.shape(node.inputs[0])
        rank = max(len(given), len(asked))
        a, b = ((*[Size.of(1)] * (rank - len(s)), *s) for s in (given, asked))
        pairs = zip(a, b, strict=True)
        return (
            tuple(
                y if x.number == 1 else x if y.number == 1 else program.same(x, y, node.label)
                for x, y in pairs
            ),
        )

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1] if self.node.op == "Expand" else ()

    def code(self, program: Program) -> list[Code]:
        out = self.node.outputs[0]
        shape = program.shape(out)
        if self.node.op == "Expand":
            source = self.node.inputs[0]
            read = stretched(source, program.shape(source), shape)
            return [nest(shape, whole(out, shape), [read], "Copy")]
        value = np.asarray(self.node.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
        real = CTYPES[program.dtypes[out]]
        return [Code("fill", {"out": out, "count": volume(shape), "value": value[0], "real": real})]
