"""The rules of MXNet's operators on elements, and of those that move them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.table import FIRST, LAST, MxnetOperator, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Value
from onernn.ops import OPERATORS

# The rules of operators on each element of a value.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names.

PLAIN = {
    "Relu": "relu _npx_relu",
    "Sigmoid": "sigmoid _npx_sigmoid",
    "Tanh": "tanh _npi_tanh",
    "Softsign": "softsign",
    "HardSigmoid": "hard_sigmoid",
    "Exp": "exp _npi_exp",
    "Log": "log _npi_log",
    "Sqrt": "sqrt _npi_sqrt",
    "Abs": "abs _npi_absolute",
    "Neg": "negative _npi_negative",
    "Floor": "floor _npi_floor",
    "Ceil": "ceil _npi_ceil",
    "Sign": "sign _npi_sign",
    "Reciprocal": "reciprocal _npi_reciprocal",
    "Sin": "sin _npi_sin",
    "Atan": "arctan _npi_arctan",
    "Cos": "cos _npi_cos",
    "Erf": "erf",
}
"""The operators that are one canonical operator; attributes have its names and defaults."""


def _plain(kind: str, op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    numbers = OPERATORS[kind].attributes
    return op.emit(kind, x, **{name: op.number(name, numbers[name]) for name in numbers})


for kind, names in PLAIN.items():
    rule(names, "data", inferred="all")(partial(_plain, kind))


rule("_copy _np_copy BlockGrad make_loss", "data", inferred="all")(lambda _, x: x)
rule("square _npi_square", "data", inferred="all")(bodies.FORMULAS["square"])


@rule("rsqrt", "data", inferred="all")
def _rsqrt(op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    return bodies.FORMULAS["rsqrt"](op, x)


@rule("logical_not", "data", inferred="all")
def _not(op: MxnetOperator, x: str) -> str:
    return op.cast(op.emit("Not", op.cast(x, bool)), op.dtype_of(x))


@rule("clip", "data", inferred="all")
def _clip(op: MxnetOperator, x: str) -> str:
    return op.emit("Clip", x, *(op.scalar(op.number(k, 0.0), x) for k in ("a_min", "a_max")))


@rule("Activation", "data", inferred="all")
def _activation(op: MxnetOperator, x: str) -> str:
    kind = op.one_of("act_type", "", ("relu", "sigmoid", "tanh", "softrelu", "softsign"))
    return op.emit("Softplus" if kind == "softrelu" else kind.capitalize(), x)


@rule("LeakyReLU", "data gamma?")
def _leaky_relu(op: MxnetOperator, x: str) -> str:
    kind, slope = op.text("act_type", "leaky"), op.number("slope", 0.25)
    low, high = op.number("lower_bound", 0.125), op.number("upper_bound", 0.334)
    if kind == "leaky":
        return op.emit("LeakyRelu", x, alpha=slope)
    if kind == "rrelu":  # random in training; in inference the middle of its range
        return op.emit("LeakyRelu", x, alpha=(low + high) / 2)
    if kind == "elu":
        return op.emit("Elu", x, alpha=slope)
    if kind in ("selu", "gelu"):
        return op.emit(kind.capitalize(), x)
    if kind == "prelu":  # a slope for each channel, which is axis 1
        gamma = op.array("gamma").reshape(-1)
        rank = op.known_rank(x, "attribute act_type='prelu'") if gamma.size > 1 else 0
        return bodies.sloped(op, x, gamma, rank, "gamma")
    raise UnsupportedError(f"attribute act_type={kind!r}")


@rule("Cast amp_cast", "data", inferred="all")
def _cast(op: MxnetOperator, x: str) -> str:
    """``amp_cast`` leaves whole numbers as they are."""
    dtype = op.dtype("dtype")
    if op.name == "amp_cast" and op.dtype_of(x).kind != "f":
        return x
    return op.cast(x, dtype)


@rule("where _npi_where", "condition x y", inferred="all")
def _where(op: MxnetOperator, condition: str, x: str, y: str) -> str:
    """A legacy condition may be a list, for the rows of x and y, which are alike."""
    condition, rank = op.cast(condition, bool), op.rank(x)
    if not op.numpy and (rank is None or rank != op.rank(condition)):
        sizes = op.sizes_of(condition)
        axes = [op.sizes_of(each) for each in (op.sizes_of(x), sizes)]
        ones = np.ones(1, np.int64)
        more = op.emit("ConstantOfShape", op.emit("Sub", *axes), value=ones)
        condition = op.emit("Reshape", condition, op.joined(sizes, more))
    return op.emit("Where", condition, x, y)


@rule("ones_like zeros_like", "data", inferred="all")
def _like(op: MxnetOperator, x: str) -> str:
    filled = np.full(1, op.name == "ones_like", op.dtype_of(x))
    return op.emit("ConstantOfShape", op.sizes_of(x), value=filled)


# The rules of operators on two values, or on a value and a number.
#
# MXNet has each of them several times: for values of one shape, with broadcasting, with a scalar,
# with the scalar in front, and under NumPy's names. Formulas: documentation of MXNet 1.9.1's
# operators. Legacy comparisons give numbers of the inputs' dtype, NumPy's (``_npi_``) bools.

Formula = Callable[[MxnetOperator, str, str], str]


def _arithmetic(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    if kind in ("Div", "Pow"):
        op.check_floats(one, other)
    return op.emit(kind, one, other)


def _comparison(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    out = op.emit(kind, one, other)
    return out if op.numpy else op.cast(out, op.dtype_of(one))


def _unequal(op: MxnetOperator, one: str, other: str) -> str:
    out = op.emit("Not", op.emit("Equal", one, other))
    return out if op.numpy else op.cast(out, op.dtype_of(one))


def _logic(kind: str, op: MxnetOperator, one: str, other: str) -> str:
    truths = [op.cast(value, bool) for value in (one, other)]
    return op.cast(op.emit(kind, *truths), op.dtype_of(one))


def _remainder(op: MxnetOperator, one: str, other: str) -> str:
    """Of the sign of the divisor, and 0 where that is 0."""
    op.check_floats(one, other)
    zero = op.scalar(0.0, one)
    none = op.emit("Equal", other, zero)
    return op.emit("Where", none, zero, bodies.remainder(op, one, other))


def _hypotenuse(op: MxnetOperator, one: str, other: str) -> str:
    """In float64, in which no square of a float32 overflows."""
    if (dtype := op.dtype_of(one)) != np.float32:
        raise UnsupportedError(f"of {dtype} values")
    wide = [op.cast(value, np.float64) for value in (one, other)]
    squares = [op.emit("Mul", value, value) for value in wide]
    return op.cast(op.emit("Sqrt", op.emit("Add", *squares)), np.float32)


FORMULAS: dict[str, Formula] = {
    "add": partial(_arithmetic, "Add"),
    "sub": partial(_arithmetic, "Sub"),
    "mul": partial(_arithmetic, "Mul"),
    "div": partial(_arithmetic, "Div"),
    "maximum": partial(_arithmetic, "Max"),
    "minimum": partial(_arithmetic, "Min"),
    "power": partial(_arithmetic, "Pow"),
    "mod": _remainder,
    "hypot": _hypotenuse,
    "equal": partial(_comparison, "Equal"),
    "not_equal": _unequal,
    "greater": partial(_comparison, "Greater"),
    "greater_equal": partial(_comparison, "GreaterOrEqual"),
    "lesser": partial(_comparison, "Less"),
    "lesser_equal": partial(_comparison, "LessOrEqual"),
    "logical_and": partial(_logic, "And"),
    "logical_or": partial(_logic, "Or"),
    "logical_xor": partial(_logic, "Xor"),
}
NUMPY = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "lesser": "less",
    "lesser_equal": "less_equal",
    # Other names of the legacy ones (`ALIASES`), or not there at all.
    **dict.fromkeys("maximum minimum hypot logical_and logical_or logical_xor".split(), ""),
}
"""What NumPy mode calls them, where it is another name."""


def _on_two(formula: Formula, op: MxnetOperator, one: str, other: str) -> str:
    dtypes = {op.dtype_of(value) for value in (one, other)}
    if len(dtypes) > 1:
        raise UnsupportedError(f"of {' and '.join(sorted(map(str, dtypes)))} values")
    return formula(op, one, other)


def _on_alike(formula: Formula, op: MxnetOperator, one: str, other: str) -> str:
    """Both have the same shape, MXNet sees to that."""
    op.share_rank(one, other)
    return _on_two(formula, op, one, other)


def _with_scalar(formula: Formula, op: MxnetOperator, x: str, *, behind: bool = False) -> str:
    x = _beside_scalar(op, x)
    pair = [x, op.scalar(op.number("scalar", 1.0), x)]
    return formula(op, *pair[::-1] if behind else pair)


def _beside_scalar(op: MxnetOperator, x: str) -> str:
    """The value in the dtype in which MXNet computes with it and the scalar.

    Whole numbers stay, unless ``is_int`` says that the scalar is none: float64. Bools: int64.
    """
    whole, kind = op.flag("is_int", True), op.dtype_of(x).kind
    if op.name.endswith("true_divide_scalar"):
        op.check_floats(x)  # NumPy mode's default dtype, whatever the scalar is
    if kind == "f" or (whole and kind != "b"):
        return x
    return op.cast(x, np.int64 if whole else np.float64)


for name, formula in FORMULAS.items():
    numpy = NUMPY.get(name, name)
    alike = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    legacy = {"add": "plus", "sub": "minus"}.get(name, name)
    two, scalar = f"broadcast_{name}", f"_{legacy}_scalar"
    if numpy:
        two, scalar = f"{two} _npi_{numpy}", f"{scalar} _npi_{numpy}_scalar"
    rule(alike, "lhs rhs", inferred="all")(partial(_on_alike, formula))
    rule(two, "lhs rhs")(partial(_on_two, formula))
    rule(scalar, "data", inferred="all")(partial(_with_scalar, formula))
    if name in ("sub", "div", "power", "mod"):
        behind = f"_r{legacy}_scalar _npi_r{numpy}_scalar"
        rule(behind, "data", inferred="all")(partial(_with_scalar, formula, behind=True))
rule("_npi_hypot", "lhs rhs")(partial(_on_two, _hypotenuse))
rule("add_n", "*args", inferred="all")(lambda op, *values: op.emit("Sum", *values))


# The rules of operators that move elements.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names. The symbol seldom says how
# many axes a value has, so these are written without knowing it where ONNX can say that.

_MOST = 2**26  # elements of a constant that is made from attributes


@rule("Reshape", "data")
def _reshape(op: MxnetOperator, x: str) -> str:
    target, reverse = op.sizes("shape"), op.flag("reverse")
    if not target:  # MXNet 0.x: 0 stands for the size that is left over
        target = tuple(-1 if size == 0 else size for size in op.sizes("target_shape"))
        if op.flag("keep_highest"):
            target = (0, *target[1:])
    if not target:
        raise UnsupportedError("attribute shape is missing")
    return reshaped(op, x, target, reverse=reverse)


@rule("_npx_reshape", "data")
def _npx_reshape(op: MxnetOperator, x: str) -> str:
    """Codes of NumPy mode: -2 keeps, -3 skips one of size 1, -4 keeps all, -5 joins, -6 splits."""
    op.only(order="C")
    target = op.sizes("newshape")
    names = {-2: 0, -4: -2, -5: -3, -6: -4}
    if -3 in target or 0 in target:
        raise UnsupportedError(f"attribute newshape={target}")
    codes = tuple(names.get(size, size) for size in target)
    return reshaped(op, x, codes, reverse=op.flag("reverse"))


@rule("_np_reshape", "data")
def _np_reshape(op: MxnetOperator, x: str) -> str:
    op.only(order="C")
    target = op.sizes("newshape")
    if 0 in target or min(target, default=0) < -1:
        raise UnsupportedError(f"attribute newshape={target}")
    return reshaped(op, x, target)


def reshaped(op: MxnetOperator, x: str, target: tuple[int, ...], *, reverse: bool = False) -> str:
    """A reshape with MXNet's codes: 0 keeps a size, -1 is what is left, -2 keeps all the rest,

    -3 joins two, -4 splits one into the two that follow. ``reverse`` reads from the right.
    """
    if not reverse and min(target, default=0) >= -1:
        return op.reshaped(x, *target)
    if reverse and -2 in target:
        raise UnsupportedError(f"attribute shape={target} with reverse")
    whole = op.sizes_of(x)
    at, codes, pieces = 0, list(target[::-1] if reverse else target), []
    while codes:
        code = codes.pop(0)
        if code == -2:
            pieces.append(op.part(whole, at, LAST))
            at = LAST
        elif code == -4:
            pieces += _split(op, _size(op, whole, at, reverse), codes, reverse)
            at += 1
        elif code == -3:
            pair = [_size(op, whole, at + k, reverse) for k in range(2)]
            pieces.append(op.emit("Mul", *pair))
            at += 2
        elif code >= -1:
            pieces.append(_size(op, whole, at, reverse) if code == 0 else op.ints(code))
            at += 1
        else:
            raise UnsupportedError(f"attribute shape={target}")
    return op.emit("Reshape", x, op.joined(*(pieces[::-1] if reverse else pieces)))


def _size(op: MxnetOperator, whole: str, at: int, reverse: bool) -> str:
    return op.emit("Gather", whole, [-1 - at if reverse else at], axis=0)


def _split(op: MxnetOperator, size: str, codes: list[int], reverse: bool) -> list[str]:
    if len(codes) < 2:
        raise UnsupportedError("attribute shape: -4 without the two sizes behind it")
    pair = [codes.pop(0), codes.pop(0)]
    if max(pair) <= 0 or min(pair) < -1 or 0 in pair or reverse:
        raise UnsupportedError(f"attribute shape: -4 with {pair}")
    known = op.ints(max(pair))
    if -1 not in pair:
        return [op.ints(size) for size in pair]
    rest = op.emit("Div", size, known)
    return [rest, known] if pair[0] == -1 else [known, rest]


rule("Flatten", "data", inferred="first")(lambda op, x: op.matrix(x))


@rule("reshape_like", "lhs rhs")
def _reshape_like(op: MxnetOperator, x: str, like: str) -> str:
    op.only(lhs_begin="None", lhs_end="None", rhs_begin="None", rhs_end="None")
    return op.emit("Reshape", x, op.sizes_of(like))


@rule("expand_dims", "data", inferred="first")
def _expand_dims(op: MxnetOperator, x: str) -> str:
    axis = op.integer("axis")
    if op.is_inferred(x) and axis != -1:
        raise UnsupportedError(f"attribute axis={axis} of a value whose size is inferred")
    return op.unsqueezed(x, axis)


@rule("squeeze _np_squeeze", "data")
def _squeeze(op: MxnetOperator, x: str) -> str:
    axes = op.optional_sizes("axis")
    if axes is None:
        return op.listed(op.emit("Squeeze", x))
    return op.listed(op.squeezed(x, *axes), *axes)


@rule("SwapAxis", "data")
def _swap_axis(op: MxnetOperator, x: str) -> str:
    return op.swapped(x, op.integer("dim1", 0), op.integer("dim2", 0))


@rule("transpose _np_transpose", "data")
def _transpose(op: MxnetOperator, x: str) -> str:
    axes = op.optional_sizes("axes")
    if not axes:
        return op.emit("Transpose", x)
    return op.transposed(x, *(axis % len(axes) for axis in axes))


@rule("Concat _npi_concatenate", "*data")
def _concat(op: MxnetOperator, *values: str) -> str:
    return op.emit("Concat", *values, axis=op.integer("dim", op.integer("axis", 1)))


@rule("_rnn_param_concat", "*data")
def _rnn_param_concat(op: MxnetOperator, *values: str) -> str:
    op.only(dim="0")
    return op.joined(*values)


@rule("stack _npi_stack", "*data")
def _stack(op: MxnetOperator, *values: str) -> str:
    return bodies.stacked(op, values, op.integer("axis", 0))


@rule("SliceChannel", "data", inferred="first")
def _slice_channel(op: MxnetOperator, x: str) -> tuple[str, ...]:
    return _pieces(op, x, op.integer("axis", 1), op.integer("num_outputs"))


@rule("_split_v2", "data")
def _split_v2(op: MxnetOperator, x: str) -> tuple[str, ...]:
    axis, sections, starts = op.integer("axis", 1), op.integer("sections", 0), op.sizes("indices")
    if sections:
        return _pieces(op, x, axis, sections)
    if starts[:1] != (0,) or list(starts) != sorted(starts):
        raise UnsupportedError(f"attribute indices={starts}")
    return _pieces(op, x, axis, len(starts), starts)


def _pieces(
    op: MxnetOperator, x: str, axis: int, count: int, starts: tuple[int, ...] = ()
) -> tuple[str, ...]:
    """Equal pieces, or those from each start to the next."""
    squeezed = op.flag("squeeze_axis")
    if not 0 < count <= 2**16:
        raise UnsupportedError(f"{count} outputs")
    if op.is_inferred(x) and axis == 0:
        raise UnsupportedError(f"attribute axis={axis} of a value whose size is inferred")
    if starts:
        ends = (*starts[1:], LAST)
        parts = tuple(op.part(x, a, b, axis) for a, b in zip(starts, ends, strict=True))
    else:
        parts = op.emit_many("Split", count, x, axis=axis)
    return tuple(op.squeezed(part, axis) for part in parts) if squeezed else parts


@rule("slice", "data")
def _slice(op: MxnetOperator, x: str) -> str:
    begin, end, step = op.bounds("begin"), op.bounds("end"), op.bounds("step")
    steps = [1 if by is None else by for by in step or (1,) * len(begin)]
    if not len(begin) == len(end) == len(steps) or 0 in steps:
        raise UnsupportedError(f"attributes begin={begin} end={end} step={step}")
    cuts = []
    for first, last, by in zip(begin, end, steps, strict=True):
        front, back = (0, LAST) if by > 0 else (LAST, FIRST)
        cuts.append((front if first is None else first, back if last is None else last))
    starts, ends = zip(*cuts, strict=True) if cuts else ((), ())
    return op.sliced(x, starts, ends, range(len(begin)), steps)


@rule("slice_axis", "data")
def _slice_axis(op: MxnetOperator, x: str) -> str:
    begin, end = op.integer("begin"), op.optional_integer("end")
    return op.sliced(x, [begin], [LAST if end is None else end], [op.integer("axis")], [1])


@rule("slice_like", "data shape_like")
def _slice_like(op: MxnetOperator, x: str, like: str) -> str:
    whole = op.sizes_of(like)
    axes = op.sizes("axes") or range(op.known_rank(x, "attribute axes=()"))
    ends = op.emit("Gather", whole, axes, axis=0)
    return op.emit("Slice", x, [0] * len(axes), ends, axes)


@rule("reverse _npi_flip", "data")
def _reverse(op: MxnetOperator, x: str) -> str:
    return op.flipped(x, *op.sizes("axis"))


@rule("broadcast_to _npi_broadcast_to", "data")
def _broadcast_to(op: MxnetOperator, x: str) -> str:
    shape = op.sizes("shape")
    if math.prod([abs(size) or 1 for size in shape]) > _MOST:
        raise UnsupportedError(f"attribute shape={shape}: too large")
    kept = -2 if op.numpy else 0  # the size of the input
    return op.emit("Expand", x, [*(1 if size == kept else size for size in shape)])


@rule("broadcast_axis", "data")
def _broadcast_axis(op: MxnetOperator, x: str) -> str:
    whole = op.sizes_of(x)
    for axis, size in zip(op.sizes("axis"), op.sizes("size"), strict=True):
        whole = op.resized(whole, axis, size)
    return op.emit("Expand", x, whole)


@rule("broadcast_like", "lhs rhs")
def _broadcast_like(op: MxnetOperator, x: str, like: str) -> str:
    op.only(lhs_axes="None", rhs_axes="None")
    return op.emit("Expand", x, op.sizes_of(like))


@rule("_zeros _ones _full _npi_zeros _npi_ones", "")
def _filled(op: MxnetOperator) -> str:
    shape, dtype = op.sizes("shape"), op.dtype("dtype")
    unknown = -1 if op.context.symbol.np_shape else 0
    value = op.number("value", 0.0) if op.name == "_full" else float("ones" in op.name)
    sizes = tuple(1 if size == unknown else size for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > _MOST:
        raise UnsupportedError(f"attribute shape={shape}")
    op.gives_inferred = unknown in shape
    return op.constant(np.full(sizes, value, dtype), "")


@rule("_arange _npi_arange", "")
def _arange(op: MxnetOperator) -> str:
    start, step, repeat = op.number("start", 0.0), op.number("step", 1.0), op.integer("repeat", 1)
    stop, dtype = op.optional_number("stop"), op.dtype("dtype")
    op.only(infer_range="False")
    if stop is None:
        start, stop = 0.0, start
    numbers = [parse.finite(number) for number in (start, stop, step)]
    count = int(np.ceil((numbers[1] - numbers[0]) / step)) if step else _MOST + 1
    if not 0 <= count * repeat <= _MOST:
        raise UnsupportedError(f"{count * repeat} elements")
    return op.constant(np.repeat(start + np.arange(count) * step, repeat).astype(dtype), "")


@rule("tile", "data")
def _tile(op: MxnetOperator, x: str) -> str:
    times = op.sizes("reps")
    if op.known_rank(x, "attribute reps") != len(times):
        raise UnsupportedError(f"attribute reps={times}: another number of axes than the input")
    return op.emit("Tile", x, times)


@rule("repeat", "data")
def _repeat(op: MxnetOperator, x: str) -> str:
    """Each element several times: a new axis of size one, enlarged, and joined with the old one."""
    times, axis = op.integer("repeats"), op.optional_integer("axis")
    if axis is None:
        x, axis = op.reshaped(x, -1), 0
    if axis < 0 or times < 0:
        raise UnsupportedError(f"attributes repeats={times}, axis={axis}")
    whole = op.sizes_of(x)
    before, after = op.part(whole, 0, axis + 1), op.part(whole, axis + 1, LAST)
    wide = op.unsqueezed(x, axis + 1)
    wide = op.emit("Expand", wide, op.joined(before, [times], after))
    return op.emit("Reshape", wide, op.joined(op.part(whole, 0, axis), [-1], after))


# Random numbers. MXNet has one generator; here they are made of an input, which a run gives.

_DISTRIBUTIONS = {
    "uniform": {"low": 0.0, "high": 1.0},
    "normal": {"mu loc": 0.0, "sigma scale": 1.0},
    "gamma": {"alpha": 1.0, "beta": 1.0},
    "exponential": {"lam": 1.0},
    "poisson": {"lam": 1.0},
}
"""Parameters, by the names of inputs, and of attributes where they differ; their defaults."""


def _sampled(distribution: str, op: MxnetOperator, *parameters: str) -> str:
    context, shape = op.context, op.sizes("shape")
    if context.is_body:
        raise UnsupportedError("each turn of a loop would draw the same numbers")
    if not parameters:
        shape = shape or (1,)
        named = _DISTRIBUTIONS[distribution].items()
        numbers = [op.number(name.split()[-1], default) for name, default in named]
        parameters = tuple(op.constant(np.float32(each), "parameter") for each in numbers)
    if not context.seed:
        context.seed = op.builder.fresh("seed")
        op.builder.input(Value(context.seed, "int64", ()))
        note = f"random numbers are made of the input {context.seed!r}: any whole number"
        context.notes[note] = []
    dtype = op.dtype("dtype") if op.text("dtype", "None") != "None" else np.dtype(np.float32)
    given = {"distribution": distribution, "shape": shape, "stream": op.at.position}
    return op.emit("Sample", context.seed, *parameters, dtype=dtype.name, **given)


for kind, numbers in _DISTRIBUTIONS.items():
    slots = " ".join(name.split()[0] for name in numbers)
    rule(f"_sample_{kind}", slots)(partial(_sampled, kind))
    rule(f"_random_{kind}", "")(partial(_sampled, kind))
