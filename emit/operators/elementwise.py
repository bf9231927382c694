"""Operators that work element by element; their formulas stand in `expressions.jinja`."""

from __future__ import annotations

from collections.abc import Sequence

from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Shape, Size
from onernn.emit.operators.nests import nest, stretched, whole
from onernn.emit.operators.registry import Code, Operator, operator, words_stay
from onernn.emit.program import CTYPES, Program

_COMPARING = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_LOGICAL = ("And", "Or", "Xor", "Not", "IsNaN")
_FLOAT_ONLY = (
    "Exp Log Sqrt Floor Ceil Round Reciprocal Sin Cos Erf Tanh Sigmoid Softplus Softsign LeakyRelu"
    " ThresholdedRelu HardSigmoid Elu HardSwish IsNaN"
).split()
_NUMBERS = {
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0},
}


def broadcast(program: Program, shapes: Sequence[Shape], what: str) -> Shape:
    """NumPy's: sizes of 1 stretch."""
    rank = max(map(len, shapes))
    out = [Size.of(1)] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if size.number == 1:
                continue
            out[at] = size if out[at].number == 1 else program.same(out[at], size, what)
    return tuple(out)


@operator(
    *"Add Sub Mul Div Min Max Sum Pow Where PRelu Neg Abs Sign Relu Clip".split(),
    *_COMPARING,
    *_LOGICAL,
    *_FLOAT_ONLY,
)
class Elementwise(Operator):
    attributes = ("alpha", "beta")

    def types(self, program: Program) -> tuple[str, ...]:
        node = self.node
        found = [program.dtypes[name] for name in node.inputs if name]
        if node.op == "Where":
            found = found[1:]
        if len(set(found)) > 1:
            raise UnsupportedError(f"inputs of several types {found}")
        if node.op in ("Sum", "Min", "Max") and len(found) != 2:
            raise UnsupportedError(f"of {len(found)} inputs")
        if node.op in _FLOAT_ONLY and not found[0].startswith("float"):
            raise UnsupportedError(f"of {found[0]}")
        if node.op in ("Div", "Pow") and not found[0].startswith("float"):
            raise UnsupportedError(f"of integers ({found[0]})")
        return ("bool",) if node.op in (*_COMPARING, *_LOGICAL) else (found[0],)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        words_stay(program, self.node, ())
        given = [program.shape(name) for name in self.node.inputs if name]
        return (broadcast(program, given, self.node.label),)

    def code(self, program: Program) -> list[Code]:
        node = self.node
        out = program.shape(node.outputs[0])
        reads = [stretched(name, program.shape(name), out) for name in node.inputs if name]
        numbers = {k: node.attributes.get(k, v) for k, v in _NUMBERS.get(node.op, {}).items()}
        formula = "Add" if node.op == "Sum" else node.op
        if formula == "Clip":
            formula += "Low" * bool(node.input(1)) + "High" * bool(node.input(2))
        real = CTYPES[program.dtypes[next(filter(None, reversed(node.inputs)))]]
        return [nest(out, whole(node.outputs[0], out), reads, formula, numbers=numbers, real=real)]


@operator("Cast", "CastLike")
class Cast(Operator):
    attributes = ("to",)

    def types(self, program: Program) -> tuple[str, ...]:
        if self.node.op == "CastLike":
            return (program.dtypes[self.node.inputs[1]],)
        to = str(self.node.attributes["to"])
        if to not in CTYPES:
            raise UnsupportedError(f"a cast to {to}")
        return (to,)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        words_stay(program, self.node, ())
        return (program.shape(self.node.inputs[0]),)

    def view(self, program: Program) -> str:
        source, out = self.node.inputs[0], self.node.outputs[0]
        return source if program.dtypes[source] == program.dtypes[out] else ""

    def reads(self, program: Program) -> tuple[str, ...]:
        return self.node.inputs[:1]

    def code(self, program: Program) -> list[Code]:
        source, out = self.node.inputs[0], self.node.outputs[0]
        shape = program.shape(out)
        given, to = program.dtypes[source], program.dtypes[out]
        formula = "CastBool" if to == "bool" else "Cast"
        if given.startswith("float") and to.startswith("int"):
            formula = "CastWhole"
        real = CTYPES[to]
        return [nest(shape, whole(out, shape), [whole(source, shape)], formula, real=real)]
