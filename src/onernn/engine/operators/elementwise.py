"""Loops over an output's elements, and the operators that work element by element."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.steps import Access, Call, Nest
from onernn.ir.types import Shape, Size, volume
from onernn.ops import OPERATORS
from onernn.ops.elementwise import FORMULAS, Expression, functions_of, put
from onernn.ops.rules import ONE

COPY: Expression = ("same", 0)


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


def each_element(op: OperatorCode, reads: Sequence[Access], expression: Expression) -> Nest:
    """The whole output, element by element."""
    out, shape = op.out()
    return nest(shape, whole(out, shape), reads, expression)


def nest(loops: Shape, out: Access, reads: Sequence[Access], expression: Expression = COPY) -> Nest:
    """out = expression(reads), element by element."""
    return Nest(loops, out, tuple(reads), expression)


def broadcast(op: OperatorCode, shapes: Sequence[Shape]) -> None:
    """Says that sizes stretch as NumPy's: what is not 1 is the same."""
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=ONE):
        first, *others = [size for size in sizes if size.number != 1] or [ONE]
        for other in others:
            first = op.same(first, other)


def stretched_input(op: OperatorCode, at: int) -> Access:
    """An input as its elements stand to those of the output."""
    return stretched(op.read(at), op.shape(at), op.out()[1])


def elementwise(op: OperatorCode) -> Nest:
    """What the operator's expression says."""
    node = op.node
    there = [place for place, name in enumerate(node.inputs) if name]
    given = [place if name else None for place, name in enumerate(node.inputs)]
    expression = OPERATORS[node.op].expression(op.at, given)  # type: ignore[misc]
    functions = functions_of(expression)
    if "chosen" in functions:
        op.of("bool")
    dtypes = [op.dtype(place) for place in there["chosen" in functions :]]
    if len(set(dtypes)) > 1:
        op.refuse(f"inputs of several types {dtypes}")
    kind = dtypes[0].rstrip("0123456789")
    kinds = set.intersection(*(set(FORMULAS[each].kinds) for each in functions - {"number"}))
    if kind not in ("float", "int", "bool") or kind[0] not in kinds:
        op.refuse(f"of {dtypes[0]}")
    if kind == "int" and not functions.isdisjoint(("divided", "modulo", "remainder")):
        divisor = op.program.graph.constants.get(node.inputs[1])
        if divisor is None or bool(((divisor == 0) | (divisor == -1)).any()):
            op.refuse(f"of {dtypes[0]}, by what may be 0 or -1")
    if kind == "int" and "number" in functions:
        op.refuse(f"of {dtypes[0]}")
    broadcast(op, [op.shape(place) for place in there])
    reads = {place: k for k, place in enumerate(there)}
    return each_element(op, [stretched_input(op, k) for k in there], put(expression, reads))


@rule("Cast", "CastLike")
def cast(op: OperatorCode) -> Nest | None:
    given, to = op.dtype(), op.program.dtype(op.node.outputs[0])
    if op.node.op == "Cast" and op.at.to == "bfloat16":
        op.refuse("to bfloat16")
    source = op.read(0)
    if given == to:
        op.source = source
        return None
    between = {("float16", "float32"): "widened", ("float32", "float16"): "halved"}
    function = between.get((given, to), "truth" if to == "bool" else "cast")
    return each_element(op, [whole(source, op.shape())], (function, 0))


@rule("Dropout")
def dropout(op: OperatorCode) -> list[Call | Nest]:
    """In inference nothing is dropped, and the mask is of ones."""
    if any(op.integers(2, "training_mode") or ()):
        op.refuse("training_mode is true: only inference is generated")
    source = op.read(0)
    copy = each_element(op, [whole(source, op.shape())], ("same", 0))
    mask = op.node.outputs[1] if len(op.node.outputs) > 1 else ""
    return [copy, filled(op, 1, 1)] if mask else [copy]


def filled(op: OperatorCode, at: int, value: float) -> Call:
    """An output of one number."""
    out, shape = op.out(at)
    dtype = op.program.dtype(out)
    number = float(value) if dtype.startswith("float") else int(value)
    types = [dtype, "float64" if dtype.startswith("float") else "int64"]
    return Call("fill", out, volume(shape), number, types=types)
