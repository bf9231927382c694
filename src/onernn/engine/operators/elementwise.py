"""Operators that become loops over an output's elements: elementwise operators and reductions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from onernn.engine.operators.operator_code import OperatorCode, at_least, rule
from onernn.engine.program import Access, Call, Nest
from onernn.ir.types import Shape, Size, volume
from onernn.ops import OPERATORS
from onernn.ops.elementwise import FORMULAS, Expression, functions_of, substitute
from onernn.ops.rules import ONE

COPY: Expression = ("same", 0)


def strides_of(shape: Shape) -> tuple[Size, ...]:
    """Returns the stride of each axis of a row-major array, in elements."""
    out: list[Size] = []
    stride = Size.of(1)
    for size in reversed(shape):
        out.append(stride)
        stride = stride * size
    return tuple(reversed(out))


def whole(name: str, shape: Shape) -> Access:
    return Access(name, strides_of(shape))


def stretch(name: str, shape: Shape, out: Shape) -> Access:
    """Returns the `Access` to the elements of a value that is broadcast to the shape ``out``; the
    last axes are aligned.
    """
    own = strides_of(shape)
    front = len(out) - len(shape)
    strides = [Size(())] * front + [
        Size(()) if size.number == 1 and wide.number != 1 else stride
        for size, wide, stride in zip(shape, out[front:], own, strict=True)
    ]
    return Access(name, tuple(strides))


def each_element(op: OperatorCode, reads: Sequence[Access], expression: Expression = COPY) -> Nest:
    """Returns the loops that compute all elements of the first output."""
    out, shape = op.out()
    return nest(shape, whole(out, shape), reads, expression)


def nest(loops: Shape, out: Access, reads: Sequence[Access], expression: Expression = COPY) -> Nest:
    """Returns loops that compute out = expression(reads), element by element."""
    return Nest(loops, out, tuple(reads), expression)


def copy(name: str, shape: Shape, out: str) -> Nest:
    """Returns the loops that copy a value of this shape to the beginning of the value ``out``."""
    return nest(shape, whole(out, shape), [whole(name, shape)])


def broadcast(op: OperatorCode, shapes: Sequence[Shape]) -> None:
    """Declares that shapes broadcast by NumPy's rule: on each axis, all sizes other than 1 are
    equal.
    """
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=ONE):
        first, *others = [size for size in sizes if size.number != 1] or [ONE]
        for other in others:
            first = op.same(first, other)


def stretch_input(op: OperatorCode, index: int) -> Access:
    """Returns the `Access` to an input that is broadcast to the shape of the output."""
    return stretch(op.read(index), op.shape(index), op.out()[1])


def elementwise(op: OperatorCode) -> list[Call | Nest]:
    """Returns loops over the operator's expression, after a call that checks integer divisors."""
    node = op.node
    present = [place for place, name in enumerate(node.inputs) if name]
    places = [place if name else None for place, name in enumerate(node.inputs)]
    expression = OPERATORS[node.op].expression(op.attrs, places)  # type: ignore[misc]
    functions = functions_of(expression)
    if "chosen" in functions:
        op.of("bool")
    dtypes = [op.dtype(place) for place in present["chosen" in functions :]]
    if len(set(dtypes)) > 1:
        op.refuse(f"inputs: expected one dtype, got {dtypes}")
    kind = dtypes[0].rstrip("0123456789")
    kinds = set.intersection(*(set(FORMULAS[each].kinds) for each in functions - {"number"}))
    known = ("float", "int", "bool")
    if kind not in known or kind[0] not in kinds:
        expected = " or ".join(each for each in known if each[0] in kinds)
        op.refuse(f"inputs: expected {expected}, got {dtypes[0]}")
    checks = []
    if kind == "int" and not functions.isdisjoint(("divided", "modulo", "remainder")):
        divisor = op.constant(1)
        if divisor is None:
            count = volume(op.shape(1))
            checks = [Call("are_divisors", count, op.read(1), types=dtypes[:1], checks=True)]
        elif bool(((divisor == 0) | (divisor == -1)).any()):
            op.refuse(f"a constant divisor of {dtypes[0]}: expected other values than 0 and -1")
    if kind == "int" and "number" in functions:
        op.refuse(f"inputs: expected float, got {dtypes[0]}")
    broadcast(op, [op.shape(place) for place in present])
    reads = {place: k for k, place in enumerate(present)}
    inputs = [stretch_input(op, k) for k in present]
    return [*checks, each_element(op, inputs, substitute(expression, reads))]


@rule("Cast", "CastLike")
def cast(op: OperatorCode) -> Nest | None:
    dtype, to = op.dtype(), op.program.dtype(op.node.outputs[0])
    source = op.read(0)
    if op.node.op == "Cast" and op.attrs.to == "bfloat16":
        if dtype not in ("float16", "float32"):
            op.refuse(f"attribute to=bfloat16: expected float16 or float32, got {dtype}")
        wide: Expression = ("widened", 0) if dtype == "float16" else 0
        return each_element(op, [whole(source, op.shape())], ("as_bfloat16", wide))
    if dtype == to:
        op.view(source)
        return None
    between = {("float16", "float32"): "widened", ("float32", "float16"): "halved"}
    function = between.get((dtype, to), "truth" if to == "bool" else "cast")
    return each_element(op, [whole(source, op.shape())], (function, 0))


@rule("Dropout")
def dropout(op: OperatorCode) -> list[Call | Nest]:
    """Copies the input, since inference drops nothing; fills the mask with ones."""
    if any(op.integers(2, "training_mode") or ()):
        op.refuse("input training_mode=true: expected false; export the model for inference")
    copies = each_element(op, [whole(op.read(0), op.shape())])
    return [copies, fill(op, 1, 1)] if any(op.node.outputs[1:]) else [copies]


def fill(op: OperatorCode, index: int, value: float) -> Call:
    """Returns the call that fills an output with one value."""
    out, shape = op.out(index)
    dtype = op.program.dtype(out)
    number = float(value) if dtype.startswith("float") else int(value)
    types = [dtype, "float64" if dtype.startswith("float") else "int64"]
    return Call("fill", out, volume(shape), number, types=types)


# Operators that combine the elements of an axis.


def _axes(op: OperatorCode) -> list[int]:
    return [axis for axis, to in enumerate(op.paths[0]) if to is None]


def _along(op: OperatorCode) -> tuple[Size, Size, Size]:
    """Returns (outer, count, inner): the sizes before, along and after the combined axes."""
    shape, axes = op.shape(), _axes(op)
    first, last = axes[0], axes[-1] + 1
    if axes != list(range(first, last)):
        op.refuse(f"axes {axes}: expected neighbouring axes")
    return volume(shape[:first]), volume(shape[first:last]), volume(shape[last:])


@rule("Softmax", "LogSoftmax")
def softmax(op: OperatorCode) -> Call:
    op.of("float")
    function = "softmax" if op.node.op == "Softmax" else "log_softmax"
    return op.call(function, op.read(0), *_along(op))


@rule("ArgMax", "ArgMin")
def extreme(op: OperatorCode) -> list[Call]:
    around = _along(op)
    kind = op.node.op == "ArgMin", bool(op.attrs.select_last_index)
    call = op.call("arg_extreme", op.read(0), *around, *kind)
    return [*at_least(op, around[1] - 1), call]


@rule("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce_numbers(op: OperatorCode) -> list[Call | Nest]:
    op.of("float", "int")
    return _reduce(op)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumSquare")
def reduce(op: OperatorCode) -> list[Call | Nest]:
    op.of("float")
    return _reduce(op)


def _reduce(op: OperatorCode) -> list[Call | Nest]:
    axes, source, shape = _axes(op), op.read(0), op.shape()
    function = re.sub("(?=[A-Z])", "_", op.node.op).lower().strip("_")
    if not axes:  # each element is reduced by itself, so that a sum of squares is a square
        return [op.call(function, source, volume(shape), ONE, ONE)]
    if axes == list(range(axes[0], axes[-1] + 1)):
        return [op.call(function, source, *_along(op))]
    # the combined axes come last
    order = [*(axis for axis in range(len(shape)) if axis not in axes), *axes]
    strides = strides_of(shape)
    turned = tuple(shape[axis] for axis in order)
    copy = op.keep("turned", op.dtype(), turned)
    moved = Access(source, tuple(strides[axis] for axis in order))
    kept = len(shape) - len(axes)
    sizes = volume(turned[:kept]), volume(turned[kept:]), ONE
    return [nest(turned, whole(copy, turned), [moved]), op.call(function, copy, *sizes)]


@rule("LayerNormalization")
def layer_normalization(op: OperatorCode) -> Call:
    op.of("float")
    op.alike(1, 2)
    rows, count, _ = _along(op)
    for index in range(1, len(op.node.inputs)):
        if op.node.input(index):
            op.holds(index, count)
    statistics = (*op.node.outputs[1:], "", "")[:2]
    return op.call(
        "layer_norm", *op.read_first(3), *statistics, rows, count, float(op.attrs.epsilon)
    )


@rule("BatchNormalization")
def batch_normalization(op: OperatorCode) -> Nest:
    op.of("float")
    if op.attrs.training_mode:
        op.refuse("attribute training_mode=1: expected 0; export the model for inference")
    op.alike(1, 2, 3, 4)
    shape = op.shape()
    reads = [whole(op.read(0), shape)]
    for index in range(1, 5):
        op.holds(index, shape[1])
        strides = [ONE * (axis == 1) for axis in range(len(shape))]
        reads.append(Access(op.read(index), tuple(strides)))
    return each_element(op, reads, ("normalized", *range(5), float(op.attrs.epsilon)))


@rule("InstanceNormalization", "GroupNormalization")
def group_normalization(op: OperatorCode) -> Call:
    op.of("float")
    op.alike(1, 2)
    shape = op.shape()
    channels = groups = shape[1]
    if op.node.op == "GroupNormalization":
        groups = Size.of(op.attrs.num_groups)
        if (
            channels.number is None
            or op.attrs.num_groups < 1
            or channels.number % op.attrs.num_groups
        ):
            op.refuse(f"attribute num_groups={groups}: expected a divisor of {channels} channels")
    for index in (1, 2):
        op.holds(index, shape[1])
    inputs = *op.read_first(3), shape[0], channels, volume(shape[2:]), groups
    return op.call("group_norm", *inputs, float(op.attrs.epsilon))


@rule("CumSum")
def cum_sum(op: OperatorCode) -> Call:
    op.of("float", "int")
    how = bool(op.attrs.exclusive), bool(op.attrs.reverse)
    return op.call("cum_sum", op.read(0), *_along(op), *how)


@rule("TopK")
def top_k(op: OperatorCode) -> list[Call]:
    around = _along(op)
    (count,) = op.numbers(1, "k") or [0]
    arguments = (*op.node.outputs, "")[1], op.read(0), op.keep("order", "int64", [around[1]])
    how = Size.of(count), bool(op.attrs.largest)
    return [*at_least(op, around[1] - count), op.call("top_k", *arguments, *around, *how)]


@rule("Trilu")
def trilu(op: OperatorCode) -> Call:
    shape = op.shape()
    if len(shape) < 2:
        op.refuse(f"x: expected 2 axes or more, got {len(shape)}")
    (k,) = op.integers(1, "k") or [0]
    sizes = volume(shape[:-2]), shape[-2], shape[-1], k, bool(op.attrs.upper)
    return op.move("trilu", op.read(0), *sizes)
