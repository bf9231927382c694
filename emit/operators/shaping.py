"""Operators that move elements, or only look at them in another shape."""

from __future__ import annotations

from typing import Any

from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.sizes import Shape, Size, shape_of, volume
from onernn.emit.operators.nests import Access, nest, strides_of, whole
from onernn.emit.operators.registry import Code, Operator, axis_of, operator, words_stay
from onernn.emit.program import Program


@operator("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "SequenceData", "SequenceLike")
class View(Operator):
    """The same elements in the same order."""

    attributes = ("axis", "allowzero")

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        node = self.node
        given = program.shape(node.inputs[0])
        if node.op == "SequenceLike":
            lod = program.lods.get(node.inputs[1])
            if lod is None:
                raise UnsupportedError(f"{node.inputs[1]!r} carries no offsets to take over")
            program.lods[node.outputs[0]] = lod
            program.same(given[0], lod.words, node.label)
        elif node.op != "SequenceData":
            words_stay(program, node, ())
        shape: Shape = getattr(self, f"_{node.op.lower()}", lambda _, shape: shape)(program, given)
        if node.op != "SequenceLike" and program.lod(node.inputs[:1]):
            lod = program.lods[node.inputs[0]]
            if not shape or shape[0] != lod.words:
                program.lods.pop(node.outputs[0], None)
        return (shape,)

    def _axes(self, program: Program, rank: int) -> list[int] | None:
        axes = program.integers(self.node, 1, "axes")
        if axes is not None and not all(-rank <= axis < rank for axis in axes):
            raise UnsupportedError(f"axes {axes}: the value has {rank} axes")
        return None if axes is None else [axis % rank for axis in axes]

    def _squeeze(self, program: Program, given: Shape) -> Shape:
        axes = self._axes(program, len(given))
        if axes is None:
            axes = [at for at, size in enumerate(given) if size.number == 1]
        for axis in axes:
            program.same(given[axis], Size.of(1), self.node.label)
        return tuple(size for at, size in enumerate(given) if at not in axes)

    def _unsqueeze(self, program: Program, given: Shape) -> Shape:
        count = program.integers(self.node, 1, "axes") or []
        axes = self._axes(program, len(given) + len(count)) or []
        left = iter(given)
        rank = len(given) + len(axes)
        return tuple(Size.of(1) if at in axes else next(left) for at in range(rank))

    def _flatten(self, program: Program, given: Shape) -> Shape:
        axis = int(self.node.attributes.get("axis", 1))
        axis += len(given) if axis < 0 else 0
        return volume(given[:axis]), volume(given[axis:])

    def _reshape(self, program: Program, given: Shape) -> Shape:
        asked = program.numbers(self.node, 1, "shape") or []
        kept = not self.node.attributes.get("allowzero", 0)
        sizes: list[Any] = [given[k] if kept and s == 0 else s for k, s in enumerate(asked)]
        open_at = [k for k, s in enumerate(sizes) if isinstance(s, int) and s == -1]
        if len(open_at) > 1:
            raise ShapeError(f"{self.node.label}: shape {asked} leaves two sizes open")
        if open_at:
            others = volume(shape_of(s for s in sizes if not (isinstance(s, int) and s == -1)))
            try:
                sizes[open_at[0]] = volume(given) // others
            except ValueError as error:
                name = min(volume(given).names, default="T")
                raise UnsupportedError(f"{error}: say --static {name}=...") from error
        out = shape_of(sizes)
        program.same(volume(given), volume(out), self.node.label)
        return out

    def view(self, program: Program) -> str:
        return self.node.inputs[0]

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def mixes(self, program: Program) -> list[Size]:
        """A name whose axis has other numbers of elements before it than it had."""
        given, out = (program.shape(name) for name in (self.node.inputs[0], self.node.outputs[0]))
        names = frozenset[str]().union(*(size.names for size in (*given, *out)))
        return [Size.of(name) for name in names if _before(given, name) != _before(out, name)]


def _before(shape: Shape, name: str) -> Size | None:
    at = next((at for at, size in enumerate(shape) if name in size.names), None)
    return None if at is None else volume(shape[:at])


@operator("Transpose", "Einsum")
class Transpose(Operator):
    attributes = ("perm", "equation")

    def _perm(self, rank: int) -> tuple[int, ...]:
        if self.node.op == "Transpose":
            perm = self.node.attributes.get("perm") or range(rank)[::-1]
            return tuple(int(axis) % rank for axis in perm)
        equation = str(self.node.attributes["equation"]).replace(" ", "")
        sides = equation.split("->")
        # Axes that "..." stands for get letters that no equation has.
        unnamed = "".join(map(chr, range(0x3B1, 0x3B1 + rank - len(sides[0].replace(".", "")))))
        given, out = (side.replace("...", unnamed) for side in (sides[0], sides[-1]))
        permutes = len(self.node.inputs) == 1 and sorted(given) == sorted(out)
        if not permutes or len(set(out)) != len(out) or len(given) != rank:
            raise UnsupportedError(f"equation {equation}: only axes are permuted")
        return tuple(given.index(axis) for axis in out)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        given = program.shape(self.node.inputs[0])
        perm = self._perm(len(given))
        words_stay(program, self.node, () if perm[:1] == (0,) else (0,))
        return (tuple(given[axis] for axis in perm),)

    def code(self, program: Program) -> list[Code]:
        source, out = self.node.inputs[0], self.node.outputs[0]
        given, shape = program.shape(source), program.shape(out)
        strides = strides_of(given)
        read = Access(source, tuple(strides[axis] for axis in self._perm(len(given))))
        return [nest(shape, whole(out, shape), [read], "Copy")]


@operator("Slice")
class Slice(Operator):
    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def _cuts(self, program: Program) -> list[tuple[int, Size, Size, int]]:
        """(axis, start, size, step) of each axis that is cut."""
        node = self.node
        given = program.shape(node.inputs[0])
        starts, ends = (program.numbers(node, at, "starts and ends") or [] for at in (1, 2))
        axes = program.integers(node, 3, "axes") or list(range(len(starts)))
        steps = program.integers(node, 4, "steps") or [1] * len(starts)
        return [
            (axis % len(given), *self._cut(given[axis], start, end, step), step)
            for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
        ]

    def _cut(self, size: Size, start: Any, end: Any, step: int) -> tuple[Size, Size]:
        plain = [n if isinstance(n, int) else n.number for n in (start, end, size)]
        if None not in plain:
            bounds = slice(plain[0], plain[1], step).indices(int(plain[2] or 0))
            return Size.of(bounds[0]), Size.of(len(range(*bounds)))
        if step == -1 and plain[0] is not None and plain[0] in (-1, 2**63 - 1, 2**31 - 1):
            if plain[1] is not None and plain[1] <= -(2**31) + 1:
                return size - 1, size
        huge = plain[1] is not None and plain[1] >= 2**31 - 1
        if step == 1 and plain[0] == 0 and (huge or end == size):
            return Size.of(0), size
        if step == 1 and plain[0] == -1 and huge:
            return size - 1, Size.of(1)
        raise UnsupportedError(f"[{start}:{end}:{step}] of an axis of {size}: say --static")

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        shape = list(program.shape(self.node.inputs[0]))
        cuts = self._cuts(program)
        words_stay(program, self.node, [axis for axis, *_ in cuts])
        for axis, _, size, _ in cuts:
            shape[axis] = size
        return (tuple(shape),)

    def code(self, program: Program) -> list[Code]:
        source, out = self.node.inputs[0], self.node.outputs[0]
        strides = list(strides_of(program.shape(source)))
        start = Size.of(0)
        for axis, first, _, step in self._cuts(program):
            start = start + first * strides[axis]
            strides[axis] = strides[axis] * step
        shape = program.shape(out)
        read = Access(source, tuple(strides), start)
        return [nest(shape, whole(out, shape), [read], "Copy")]

    def mixes(self, program: Program) -> list[Size]:
        given = program.shape(self.node.inputs[0])
        return [given[axis] for axis, *_ in self._cuts(program)]


@operator("Split")
class Split(Operator):
    attributes = ("axis",)

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        node = self.node
        given = program.shape(node.inputs[0])
        axis, parts = axis_of(node, len(given), 0), len(node.outputs)
        words_stay(program, node, [axis])
        sizes: Any = program.numbers(node, 1, "sizes")
        if sizes is None:
            whole_size = given[axis].number
            if whole_size is None:
                raise UnsupportedError(f"an axis of {given[axis]} in {parts} parts: say --static")
            part = -(-whole_size // parts)
            sizes = [min(part, max(whole_size - k * part, 0)) for k in range(parts)]
        total = sum(map(Size.of, sizes), Size.of(0))
        program.same(total, given[axis], node.label)
        return tuple((*given[:axis], Size.of(size), *given[axis + 1 :]) for size in sizes)

    def code(self, program: Program) -> list[Code]:
        source = self.node.inputs[0]
        given = program.shape(source)
        axis, strides = axis_of(self.node, len(given), 0), strides_of(given)
        start, codes = Size.of(0), []
        for out in self.node.outputs:
            shape = program.shape(out)
            if out:
                read = Access(source, strides, start)
                codes.append(nest(shape, whole(out, shape), [read], "Copy"))
            start = start + shape[axis] * strides[axis]
        return codes

    def mixes(self, program: Program) -> list[Size]:
        given = program.shape(self.node.inputs[0])
        return [given[axis_of(self.node, len(given), 0)]]


@operator("Concat")
class Concat(Operator):
    attributes = ("axis",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        given = [program.shape(name) for name in self.node.inputs]
        axis = axis_of(self.node, len(given[0]), 0)
        words_stay(program, self.node, [axis])
        out = list(given[0])
        for shape in given[1:]:
            for at, size in enumerate(shape):
                joined = at == axis
                out[at] = out[at] + size if joined else program.same(out[at], size, self.node.label)
        return (tuple(out),)

    def code(self, program: Program) -> list[Code]:
        out = self.node.outputs[0]
        shape = program.shape(out)
        axis, strides = axis_of(self.node, len(shape), 0), strides_of(shape)
        start, codes = Size.of(0), []
        for name in self.node.inputs:
            part = program.shape(name)
            codes.append(nest(part, Access(out, strides, start), [whole(name, part)], "Copy"))
            start = start + part[axis] * strides[axis]
        return codes

    def mixes(self, program: Program) -> list[Size]:
        given = [program.shape(name) for name in self.node.inputs]
        return [shape[axis_of(self.node, len(shape), 0)] for shape in given]


@operator("Gather")
class Gather(Operator):
    """Slices of a table at indices, which are checked in each call."""

    attributes = ("axis", "non_negative")

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        table, at = (program.shape(name) for name in self.node.inputs)
        axis = axis_of(self.node, len(table), 0)
        source = self.node.inputs[1 if axis == 0 else 0]
        if axis == 0 and self.node.inputs[0] in program.lods:
            raise UnsupportedError("axis 0 would mix the words of a LoD")
        if source in program.lods:
            program.lods[self.node.outputs[0]] = program.lods[source]
        return ((*table[:axis], *at, *table[axis + 1 :]),)

    def types(self, program: Program) -> tuple[str, ...]:
        if not program.dtypes[self.node.inputs[1]].startswith("int"):
            raise UnsupportedError(f"indices of {program.dtypes[self.node.inputs[1]]}")
        return super().types(program)

    def code(self, program: Program) -> list[Code]:
        table, at = (program.shape(name) for name in self.node.inputs)
        axis = axis_of(self.node, len(table), 0)
        return [
            Code(
                "gather",
                {
                    "out": self.node.outputs[0],
                    "table": self.node.inputs[0],
                    "indices": self.node.inputs[1],
                    "outer": volume(table[:axis]),
                    "rows": table[axis],
                    "count": volume(at),
                    "inner": volume(table[axis + 1 :]),
                    "negative": not self.node.attributes.get("non_negative"),
                },
            )
        ]

    def mixes(self, program: Program) -> list[Size]:
        table = program.shape(self.node.inputs[0])
        return [table[axis_of(self.node, len(table), 0)]]


@operator("GateLayout")
class Gates(Operator):
    """Gate after gate, from a framework's order and signs."""

    attributes = ("layout",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        words_stay(program, self.node, ())
        return (program.shape(self.node.inputs[0]),)

    def code(self, program: Program) -> list[Code]:
        source, out = self.node.inputs[0], self.node.outputs[0]
        layout, shape = self.node.attributes["layout"], program.shape(out)
        units = shape[-1] // len(layout.permutation)
        loops, strides = (*shape[:-1], units), strides_of(shape)
        return [
            nest(
                loops,
                Access(out, strides, units * gate),
                [Access(source, strides, units * place)],
                "Copy" if sign > 0 else "Negated",
            )
            for gate, (place, sign) in enumerate(zip(layout.permutation, layout.signs, strict=True))
        ]
