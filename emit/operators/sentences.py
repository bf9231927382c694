"""Operators over sentences: padded and ragged, pooled, decoded."""

from __future__ import annotations

from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Shape, Size, volume
from onernn.emit.operators.registry import Code, Operator, operator
from onernn.emit.program import CTYPES, Program, Sentences, kept


class _OfSentences(Operator):
    def _lod(self, program: Program) -> Sentences:
        lod = program.lods.get(self.node.inputs[0])
        if lod is None:
            raise UnsupportedError(f"{self.node.inputs[0]!r} carries no offsets")
        return lod


@operator("SequenceUnpad")
class Unpad(Operator):
    """Its offsets, and the number of its words, are known when it has run."""

    attributes = ("time_major",)

    def _layout(self, program: Program) -> tuple[Size, Size, Shape]:
        shape = program.shape(self.node.inputs[0])
        turned = bool(self.node.attributes.get("time_major"))
        time, count = shape[:2] if turned else shape[1::-1]
        return time, count, shape[2:]

    def types(self, program: Program) -> tuple[str, ...]:
        if not program.dtypes[self.node.inputs[1]].startswith("int"):
            raise UnsupportedError(f"lengths of {program.dtypes[self.node.inputs[1]]}")
        return super().types(program)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        time, count, rest = self._layout(program)
        program.same(volume(program.shape(self.node.inputs[1])), count, self.node.label)
        out = self.node.outputs[0]
        words = program.ident(kept(out, "words"))
        program.inner[words] = time * count
        program.lods[out] = Sentences(out, count, Size.of(words))
        program.dtypes[kept(out, "offsets")] = "int64"
        program.shapes[kept(out, "offsets")] = (count + 1,)
        return ((Size.of(words), *rest),)

    def code(self, program: Program) -> list[Code]:
        time, count, rest = self._layout(program)
        out = self.node.outputs[0]
        turned = bool(self.node.attributes.get("time_major"))
        return [
            Code(
                "unpad",
                {
                    "x": self.node.inputs[0],
                    "lengths": self.node.inputs[1],
                    "out": out,
                    "offsets": kept(out, "offsets"),
                    "words": program.lods[out].words,
                    "time": time,
                    "count": count,
                    "inner": volume(rest),
                    "time_major": turned,
                },
            )
        ]

    def mixes(self, program: Program) -> list[Size]:
        return [self._layout(program)[0]]


@operator("SequencePad")
class Pad(_OfSentences):
    attributes = ("time_major",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        lod = self._lod(program)
        if not self.node.input(1):
            raise UnsupportedError("padded to the longest sentence, which only a call tells")
        turned = bool(self.node.attributes.get("time_major"))
        time = program.shape(self.node.inputs[1])[0 if turned else 1]
        count = program.size(lod.count)
        rest = program.shape(self.node.inputs[0])[1:]
        return ((*((time, count) if turned else (count, time)), *rest),)

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def code(self, program: Program) -> list[Code]:
        out, shape = self.node.outputs[0], program.shape(self.node.outputs[0])
        turned = bool(self.node.attributes.get("time_major"))
        time, count = shape[:2] if turned else shape[1::-1]
        context = {"x": self.node.inputs[0], "out": out, "time": time, "count": count}
        context |= {"offsets": self._lod(program).name, "inner": volume(shape[2:])}
        return [Code("pad", {**context, "time_major": turned})]


@operator("SequencePool")
class Pool(_OfSentences):
    attributes = ("kind", "empty")

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        lod = self._lod(program)
        return ((program.size(lod.count), *program.shape(self.node.inputs[0])[1:]),)

    def code(self, program: Program) -> list[Code]:
        out, lod = self.node.outputs[0], self._lod(program)
        context = {"x": self.node.inputs[0], "out": out, "count": program.size(lod.count)}
        context |= {"inner": volume(program.shape(out)[1:]), "offsets": lod.name}
        context |= {"kind": self.node.attributes["kind"], "empty": self.node.attributes["empty"]}
        return [Code("pool", {**context, "real": CTYPES[program.dtypes[out]]})]


@operator("SequenceLengths")
class Lengths(_OfSentences):
    def types(self, program: Program) -> tuple[str, ...]:
        return ("int64",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        return ((program.size(self._lod(program).count),),)

    def code(self, program: Program) -> list[Code]:
        lod = self._lod(program)
        context = {"out": self.node.outputs[0], "offsets": lod.name}
        return [Code("lengths", {**context, "count": program.size(lod.count)})]


@operator("CrfDecode")
class Decode(_OfSentences):
    """Viterbi's path; ties go to the lower tag. Formula: Paddle's operator crf_decoding."""

    def types(self, program: Program) -> tuple[str, ...]:
        found = {program.dtypes[name] for name in self.node.inputs}
        if len(found) != 1 or not found <= {"float32", "float64"}:
            raise UnsupportedError(f"of {', '.join(sorted(found))}")
        return ("int64",)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        lod = self._lod(program)
        emission, transition = (program.shape(name) for name in self.node.inputs)
        if len(emission) != 2 or len(transition) != 2:
            raise UnsupportedError("expected emission (W, K) and transition (K+2, K)")
        program.same(transition[0], emission[1] + 2, self.node.label)
        program.same(transition[1], emission[1], self.node.label)
        out = self.node.outputs[0]
        program.lods[out] = lod
        for name, dtype, shape in (
            ("best", program.dtypes[self.node.inputs[0]], (Size.of(2), emission[1])),
            ("from", "int64", emission),
        ):
            program.dtypes[kept(out, name)] = dtype
            program.shapes[kept(out, name)] = shape
        return ((emission[0], Size.of(1)),)

    def code(self, program: Program) -> list[Code]:
        out, lod = self.node.outputs[0], self._lod(program)
        emission, transition = self.node.inputs
        context: dict[str, object] = {"emission": emission, "transition": transition, "out": out}
        context |= {"tags": program.shape(emission)[1], "offsets": lod.name}
        context |= {"real": CTYPES[program.dtypes[emission]], "count": program.size(lod.count)}
        context |= {"best": kept(out, "best"), "came_from": kept(out, "from")}
        return [Code("crf", context)]
