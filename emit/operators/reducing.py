"""Operators that mix the elements of an axis."""

from __future__ import annotations

from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Shape, Size, volume
from onernn.emit.operators.registry import Code, Operator, axis_of, operator, words_stay
from onernn.emit.program import CTYPES, Program


class _AlongAxis(Operator):
    """Over one axis: (outer, count, inner)."""

    default = -1
    attributes: tuple[str, ...] = ("axis",)

    def _axes(self, program: Program) -> tuple[int, ...]:
        rank = len(program.shape(self.node.inputs[0]))
        return (axis_of(self.node, rank, self.default),)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        words_stay(program, self.node, self._axes(program))
        return (program.shape(self.node.inputs[0]),)

    def _code(self, program: Program, kind: str) -> list[Code]:
        source, axes = self.node.inputs[0], self._axes(program)
        shape = program.shape(source)
        first, last = min(axes), max(axes) + 1
        if sorted(axes) != list(range(first, last)):
            raise UnsupportedError(f"axes {axes}: only neighbouring ones")
        return [
            Code(
                "along_axis",
                {
                    "kind": kind,
                    "x": source,
                    "out": self.node.outputs[0],
                    "outer": volume(shape[:first]),
                    "count": volume(shape[first:last]),
                    "inner": volume(shape[last:]),
                    "real": CTYPES[program.dtypes[source]],
                },
            )
        ]

    def mixes(self, program: Program) -> list[Size]:
        shape = program.shape(self.node.inputs[0])
        return [shape[axis] for axis in self._axes(program)]


@operator("Softmax", "LogSoftmax")
class Softmax(_AlongAxis):
    def types(self, program: Program) -> tuple[str, ...]:
        given = super().types(program)
        if not given[0].startswith("float"):
            raise UnsupportedError(f"of {given[0]}")
        return given

    def code(self, program: Program) -> list[Code]:
        return self._code(program, self.node.op)


@operator("ArgMax", "ArgMin")
class ArgMax(_AlongAxis):
    default = 0
    attributes = ("axis", "keepdims", "select_last_index")

    def types(self, program: Program) -> tuple[str, ...]:
        if self.node.attributes.get("select_last_index", 0):
            raise UnsupportedError("attribute select_last_index=1")
        return ("int64",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        (axis,) = self._axes(program)
        words_stay(program, self.node, [axis])
        shape = program.shape(self.node.inputs[0])
        kept = (Size.of(1),) if self.node.attributes.get("keepdims", 1) else ()
        if shape[axis].number == 0:
            raise UnsupportedError("of no elements")
        return ((*shape[:axis], *kept, *shape[axis + 1 :]),)

    def code(self, program: Program) -> list[Code]:
        return self._code(program, self.node.op)


@operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
class Reduce(_AlongAxis):
    attributes = ("keepdims", "noop_with_empty_axes")

    def _axes(self, program: Program) -> tuple[int, ...]:
        rank = len(program.shape(self.node.inputs[0]))
        axes = program.integers(self.node, 1, "axes")
        if not axes and self.node.attributes.get("noop_with_empty_axes", 0):
            raise UnsupportedError("attribute noop_with_empty_axes=1 without axes")
        return tuple(sorted({axis % rank for axis in axes or range(rank)}))

    def types(self, program: Program) -> tuple[str, ...]:
        given = super().types(program)
        if not given[0].startswith("float"):
            raise UnsupportedError(f"of {given[0]}")
        return given

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        axes = self._axes(program)
        words_stay(program, self.node, axes)
        keep = bool(self.node.attributes.get("keepdims", 1))
        sizes = enumerate(program.shape(self.node.inputs[0]))
        return (
            tuple(Size.of(1) if at in axes else s for at, s in sizes if keep or at not in axes),
        )

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def code(self, program: Program) -> list[Code]:
        return self._code(program, self.node.op)


@operator("LayerNormalization")
class LayerNormalization(_AlongAxis):
    attributes = ("axis", "epsilon")

    def _axes(self, program: Program) -> tuple[int, ...]:
        rank = len(program.shape(self.node.inputs[0]))
        return tuple(range(axis_of(self.node, rank, -1), rank))

    def types(self, program: Program) -> tuple[str, ...]:
        graph = program.graph
        if any(graph.users(name) or graph.is_output(name) for name in self.node.outputs[1:]):
            raise UnsupportedError("its mean and deviation as outputs")
        return super().types(program)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        shape = super().shapes(program)[0]
        tail = volume(tuple(shape[axis] for axis in self._axes(program)))
        for name in filter(None, self.node.inputs[1:]):
            program.same(volume(program.shape(name)), tail, self.node.label)
        return (shape,) * len(self.node.outputs)

    def code(self, program: Program) -> list[Code]:
        (code,) = self._code(program, "LayerNormalization")
        code.context["scale"], code.context["bias"] = self.node.inputs[1], self.node.input(2)
        code.context["epsilon"] = self.node.attributes.get("epsilon", 1e-5)
        return [code]
