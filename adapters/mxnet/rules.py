"""Rules for MXNet's elementwise operators, and for operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import Entry
from onernn.adapters.mxnet.table import (
    FIRST,
    LAST,
    Dtype,
    MxnetTensor,
    Parsed,
    mxnet,
)
from onernn.ir.graph import Value
from onernn.ops import OPERATORS

# Rules for operators on single elements.
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
"""MXNet's names of operators that equal one canonical operator; attributes have the same names and
defaults.
"""


def _plain(kind, data, *, op):
    defaults = OPERATORS[kind].attributes
    numbers = {name: op.keyword(name, default) for name, default in defaults.items()}
    return getattr(data.floats, kind)(**numbers)


for kind, names in PLAIN.items():
    mxnet(names, inferred="all")(partial(_plain, kind))


@mxnet("_copy _np_copy BlockGrad make_loss MakeLoss", inferred="all")
def copy(data):
    return data


@mxnet("square _npi_square", inferred="all")
def square(data):
    return data * data


@mxnet("rsqrt log2 log10", inferred="all")
def formula(data, *, op):
    return bodies.FORMULAS[op.name](data.floats)


@mxnet("round", inferred="all")
def round_(data):
    """Rounds to the nearest integer; a value halfway between two integers is rounded away from
    zero.
    """
    return bodies.round_half_away(data.floats)


@mxnet("rint _npi_rint", inferred="all")
def rint(data):
    """Rounds to the nearest integer; a value halfway between two integers is rounded down."""
    low, high = data.floats.Floor(), data.Ceil()
    return (data - low).LessOrEqual(high - data).Where(low, high)


@mxnet("_npi_around", decimals="0")
def around(x):
    return x.floats.Round()


@mxnet("fix trunc _npi_fix _npi_trunc", inferred="all")
def truncate(data):
    return bodies.truncate(data.floats)


@mxnet("logical_not", inferred="all")
def logical_not(data):
    return data.cast(bool).Not().cast(data.dtype)


@mxnet("clip", inferred="all")
def clip(data, *, a_min=0.0, a_max=0.0):
    low = None if a_min == -math.inf else data.scalar(a_min)
    return data.Clip(low, None if a_max == math.inf else data.scalar(a_max))


_ACTIVATIONS = {each: each.capitalize() for each in ("relu", "sigmoid", "tanh", "softsign")}
_ACTIVATIONS["softrelu"] = "Softplus"


@mxnet("Activation", inferred="all")
def activation(data, *, act_type=OneOf("", _ACTIVATIONS)):
    return getattr(data, act_type)()


@mxnet("LeakyReLU")
def leaky_relu(
    data, gamma=None, *, act_type="leaky", slope=0.25, lower_bound=0.125, upper_bound=0.334
):
    match act_type:
        case "leaky":
            return data.LeakyRelu(alpha=slope)
        case "rrelu":  # random in training, the mean in inference
            return data.LeakyRelu(alpha=(lower_bound + upper_bound) / 2)
        case "elu":
            return data.Elu(alpha=slope)
        case "selu" | "gelu":
            return getattr(data, act_type.capitalize())()
        case "prelu" if gamma is not None:  # a slope for each channel, which is axis 1
            slopes = gamma.array.reshape(-1)
            if slopes.size > 1:
                data.require_rank("attribute act_type='prelu'")
            return bodies.slopes(data, slopes)
    return refuse(
        f"attribute act_type={act_type!r}: expected leaky, rrelu, elu, selu, gelu, or prelu with an"
        " input gamma"
    )


@mxnet("Cast", inferred="all")
def cast(data, *, dtype=Dtype()):
    return data.cast(dtype)


@mxnet("amp_cast", inferred="all")
def amp_cast(data, *, dtype=Dtype()):
    """Casts floats; values of other dtypes stay unchanged."""
    return data.cast(dtype) if data.dtype.kind == "f" else data


@mxnet("amp_multicast")
def amp_multicast(*data, num_outputs, cast_narrow=False, op):
    """Returns floats in the widest of their types, or with ``cast_narrow`` in the narrowest."""
    halves = [each.name in op.context.halves for each in op.node.inputs]
    op.gives_half, op.states_dtype = cast_narrow and any(halves), not all(halves)
    return data


@mxnet("where _npi_where", inferred="all", shares="first")
def where(condition, x, y, *, op):
    """Chooses elements of x or y. Outside NumPy mode, the condition may be a list that chooses
    rows.
    """
    condition = condition.cast(bool)
    if not op.numpy and (x.rank is None or x.rank != condition.rank):
        sizes = condition.sizes
        more = x.sizes.sizes - sizes.sizes
        ones = more.ConstantOfShape(value=np.ones(1, np.int64))
        condition = condition.Reshape(sizes.join(ones))
    return condition.Where(x, y)


@mxnet("ones_like zeros_like", inferred="all")
def fill_like(data, *, op):
    filled = np.full(1, op.name == "ones_like", data.dtype)
    return data.sizes.ConstantOfShape(value=filled)


# Rules for operators on two values, or on a value and a number.
#
# MXNet has several variants of each operator: for values of one shape, with broadcasting, with a
# scalar, with the scalar first, and under NumPy's names. Formulas: documentation of MXNet 1.9.1's
# operators. Comparisons return numbers of the inputs' dtype, but bools in NumPy mode (``_npi_``).

Formula = Callable[[Any, Any], Any]


def _compute(kind: str, x: Any, y: Any) -> Any:
    return getattr(x, kind)(y)


def _compute_floats(kind: str, x: Any, y: Any) -> Any:
    return getattr(x.floats, kind)(y.floats)


def _compare(kind: str, x: Any, y: Any) -> Any:
    out = x.Equal(y).Not() if kind == "NotEqual" else getattr(x, kind)(y)
    return out if x.op.numpy else out.cast(x.dtype)


def _combine(kind: str, x: Any, y: Any) -> Any:
    return getattr(x.cast(bool), kind)(y.cast(bool)).cast(x.dtype)


def _remainder(x: Any, y: Any) -> Any:
    """Returns a remainder with the sign of the divisor, 0 if the divisor is 0."""
    rest = bodies.remainder(x.floats, y.floats)
    zero = x.scalar(0.0)
    return y.Equal(zero).Where(zero, rest)


def _hypotenuse(x: Any, y: Any) -> Any:
    """Returns sqrt(x * x + y * y). In float64 no square of a float32 overflows."""
    if x.dtype != np.float32:
        refuse(f"expected float32 inputs, got {x.dtype}; cast them first")
    x, y = x.cast(np.float64), y.cast(np.float64)
    return (x * x + y * y).Sqrt().cast(np.float32)


_KINDS: dict[Callable[..., Any], dict[str, str]] = {
    _compute: {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min"},
    _compute_floats: {"div": "Div", "power": "Pow"},
    _compare: {
        "equal": "Equal",
        "not_equal": "NotEqual",
        "greater": "Greater",
        "greater_equal": "GreaterOrEqual",
        "lesser": "Less",
        "lesser_equal": "LessOrEqual",
    },
    _combine: {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"},
}
FORMULAS: dict[str, Formula] = {
    name: partial(function, kind)
    for function, kinds in _KINDS.items()
    for name, kind in kinds.items()
}
FORMULAS |= {"mod": _remainder, "hypot": _hypotenuse}
_COMPARISONS = {FORMULAS[name] for name in _KINDS[_compare]}
_ARITHMETIC = {FORMULAS[name] for name in "add sub mul div power mod".split()}
"""The formulas that NumPy mode applies to values of two dtypes."""
NUMPY = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "lesser": "less",
    "lesser_equal": "less_equal",
    # NumPy mode has these operators only as aliases (`ALIASES`), or not at all.
    **dict.fromkeys("maximum minimum hypot logical_and logical_or logical_xor".split(), ""),
}
"""Maps the name of an operator to its name in NumPy mode, if the names differ. "" means that no
rule is added for NumPy mode.
"""


def _on_two(formula, lhs, rhs):
    dtypes = {lhs.dtype, rhs.dtype}
    if len(dtypes) > 1:
        floats = [each for each in dtypes if each.kind == "f"]
        wide = floats or list(dtypes - {np.dtype(bool)})
        if not (lhs.op.numpy and formula in _ARITHMETIC and (floats or len(wide) == 1)):
            given = " and ".join(sorted(map(str, dtypes)))
            refuse(f"expected inputs of one dtype, got {given}; cast one of them")
        dtype = max(wide, key=lambda each: each.itemsize)
        lhs, rhs = lhs.cast(dtype), rhs.cast(dtype)
    return formula(lhs, rhs)


def _on_alike(formula, lhs, rhs):
    """Applies the formula to values of the same shape. MXNet ensures that the shapes are equal."""
    lhs.share_rank(rhs)
    return _on_two(formula, lhs, rhs)


def _with_scalar(formula, data, *, scalar=1.0, is_int=True, op):
    if op.numpy and data.dtype.kind == "b" and formula in _COMPARISONS and scalar not in (0, 1):
        refuse(f"attribute scalar={scalar:g}: expected 0 or 1; MXNet compares bools with a bool")
    x = _widen(data, op.name.endswith("true_divide_scalar"), is_int)
    return formula(x, x.scalar(scalar))


def _scalar_first(formula, data, *, scalar=1.0, is_int=True, op):
    return _with_scalar(lambda x, y: formula(y, x), data, scalar=scalar, is_int=is_int, op=op)


def _widen(x: Any, divides: bool, is_int: bool) -> Any:
    """Returns x in the dtype in which MXNet combines it with a scalar.

    Integers stay integers and bools become int64 if the scalar is an integer; otherwise both become
    float64.
    """
    if divides:
        x = x.floats  # a quotient of integers has NumPy mode's default dtype
    if x.dtype.kind == "f" or (is_int and x.dtype.kind != "b"):
        return x
    return x.cast(np.int64 if is_int else np.float64)


for name, formula in FORMULAS.items():
    numpy = NUMPY.get(name, name)
    alike = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    legacy = {"add": "plus", "sub": "minus"}.get(name, name)
    two, scalar = f"broadcast_{name}", f"_{legacy}_scalar"
    if numpy:
        two, scalar = f"{two} _npi_{numpy}", f"{scalar} _npi_{numpy}_scalar"
    mxnet(alike, inferred="all", shares="all")(partial(_on_alike, formula))
    mxnet(two)(partial(_on_two, formula))
    mxnet(scalar, inferred="all")(partial(_with_scalar, formula))
    if name in ("sub", "div", "power", "mod"):
        reverse = f"_r{legacy}_scalar _npi_r{numpy}_scalar"
        mxnet(reverse, inferred="all")(partial(_scalar_first, formula))
mxnet("_npi_hypot")(partial(_on_two, _hypotenuse))


@mxnet("add_n", inferred="all", shares="all")
def add_n(*args):
    return args[0].Sum(*args[1:])


# Rules for operators that move elements.
#
# Formulas: documentation of MXNet 1.9.1's operators of the same names. The symbol seldom states the
# number of axes of a value, so these rules do not use the rank if ONNX's operators allow that.

_MOST = 2**26  # elements of a constant that is made from attributes


_DROP = FIRST  # a code of MXNet's NumPy mode only; no attribute has this number


@mxnet("Reshape")
def reshape(data, *, shape=(), target_shape=(), reverse=False, keep_highest=False):
    if not shape:  # MXNet 0.x: 0 means the size that is left over
        shape = tuple(-1 if size == 0 else size for size in target_shape)
        shape = (0, *shape[1:]) if keep_highest else shape
    shape = shape or refuse("attribute shape is missing: expected the new sizes")
    return _reshape(data, shape, reverse=reverse)


@mxnet("_npx_reshape", order="C")
def npx_reshape(data, *, newshape=(), reverse=False):
    """Reshapes with codes: -2 keeps a size, -3 drops a size of 1, -4 keeps all sizes, -5 joins two,
    -6 splits one.
    """
    names = {-2: 0, -3: _DROP, -4: -2, -5: -3, -6: -4}
    if 0 in newshape:
        refuse(f"attribute newshape={newshape}: expected sizes or codes, but not 0")
    return _reshape(data, tuple(names.get(size, size) for size in newshape), reverse=reverse)


@mxnet("_np_reshape", order="C")
def np_reshape(data, *, newshape=()):
    if 0 in newshape or min(newshape, default=0) < -1:
        refuse(f"attribute newshape={newshape}: expected sizes of 1 or more, or -1")
    return data.reshape(*newshape)


def _reshape(x: Any, target: tuple[int, ...], *, reverse: bool) -> Any:
    """Reshapes with MXNet's codes: 0 keeps a size, -1 is the size that is left, -2 keeps all
    remaining sizes, -3 joins two sizes, -4 splits a size into the two sizes that follow, `_DROP`
    drops a size of 1. With ``reverse``, codes and sizes are matched from the last to the first.
    """
    if not reverse and min(target, default=0) >= -1:
        return x.reshape(*target)
    if reverse and -2 in target:
        refuse(f"attributes shape={target}, reverse=True: expected no -2")
    whole, at, pieces, dropped = x.sizes, 0, list[Any](), list[int]()
    codes = list(target[::-1] if reverse else target)

    def axis(place: int) -> int:
        return -1 - place if reverse else place

    def size(place: int) -> Any:
        return whole.Gather([axis(place)], axis=0)

    while codes:
        code = codes.pop(0)
        if code == -2:
            pieces.append(whole.part(at, LAST))
            at = LAST
        elif code == -4:
            pieces += _split(size(at), codes, reverse)
            at += 1
        elif code == -3:
            pieces.append(size(at).Mul(size(at + 1)))
            at += 2
        elif code == _DROP and at < LAST:
            dropped.append(axis(at))
            at += 1
        elif code >= -1:
            pieces.append(size(at) if code == 0 else x.constant(np.array([code])))
            at += 1
        else:
            refuse(f"attribute shape={target}: expected sizes, or the codes 0 to -4")
    x = x.squeeze(*dropped) if dropped else x
    first, *others = (pieces[::-1] if reverse else pieces) or [x.constant(np.empty(0, np.int64))]
    return x.Reshape(first.join(*others))


def _split(size: Any, codes: list[int], reverse: bool) -> list[Any]:
    if len(codes) < 2:
        refuse(f"attribute shape: expected two sizes after -4, got {codes}")
    pair = [codes.pop(0), codes.pop(0)]
    if max(pair) <= 0 or min(pair) < -1 or 0 in pair or reverse:
        refuse(
            "attribute shape: expected two sizes after -4, at most one of them -1, and"
            f" reverse=False, got {pair} and {reverse=}"
        )
    if -1 not in pair:
        return [size.constant(np.array([each])) for each in pair]
    known = size.constant(np.array([max(pair)]))
    rest = size.Div(known)
    return [rest, known] if pair[0] == -1 else [known, rest]


@mxnet("Flatten", inferred="first")
def flatten(data):
    return data.matrix


@mxnet("reshape_like", lhs_begin="None", lhs_end="None", rhs_begin="None", rhs_end="None")
def reshape_like(lhs, rhs):
    return lhs.Reshape(rhs.sizes)


@mxnet("expand_dims", inferred="first")
def expand_dims(data, *, axis, op):
    if data.inferred and axis < 1 and axis != -1:
        op.need_sizes()
    return data.unsqueeze(axis)


@mxnet("squeeze _np_squeeze")
def squeeze(data, *, axis=Parsed("sizes")):
    out = data.Squeeze() if axis is None else data.squeeze(*axis)
    return out.at_least_one(*axis or ())


@mxnet("SwapAxis")
def swap_axis(data, *, dim1=0, dim2=0):
    return data.swap(dim1, dim2)


@mxnet("transpose _np_transpose")
def transpose(data, *, axes=Parsed("sizes")):
    return data.transpose(*(axis % len(axes) for axis in axes)) if axes else data.Transpose()


@mxnet("Concat _npi_concatenate _rnn_param_concat", inferred="alike", shares="axis")
def concat(*data, dim=Parsed("integer"), axis=Parsed("integer", 1)):
    axis = axis if dim is None else dim
    first, *others = data if axis is not None else (each.reshape(-1) for each in data)
    return first.Concat(*others, axis=axis or 0)


@mxnet("stack _npi_stack")
def stack(*data, axis=0):
    return bodies.stack(data, axis)


@mxnet("SliceChannel", inferred="first")
def slice_channel(data, *, axis=1, num_outputs, squeeze_axis=False):
    return _cut(data, axis, num_outputs, squeeze_axis)


@mxnet("_split_v2")
def split_v2(data, *, axis=1, sections=0, indices=(), squeeze_axis=False):
    if sections:
        return _cut(data, axis, sections, squeeze_axis)
    if indices[:1] != (0,) or list(indices) != sorted(indices):
        refuse(f"attribute indices={indices}: expected 0, then ascending starts")
    return _cut(data, axis, len(indices), squeeze_axis, indices)


def _cut(x: Any, axis: int, count: int, squeeze: bool, starts: tuple[int, ...] = ()) -> Any:
    """Returns ``count`` equal pieces of x along an axis, or the pieces that begin at ``starts``.
    ``squeeze``: whether to remove the axis from each piece.
    """
    if not 0 < count <= 2**16:
        refuse(f"expected 1 to {2**16} outputs, got {count}")
    if x.inferred and axis == 0:
        x.op.need_sizes()
    if starts:
        ends = (*starts[1:], LAST)
        parts = tuple(x.part(a, b, axis) for a, b in zip(starts, ends, strict=True))
    else:
        parts = x.Split(axis=axis, outputs=count)
    return tuple(part.squeeze(axis) for part in parts) if squeeze else parts


@mxnet("slice")
def slice_(
    data, *, begin=Parsed("numbers", ()), end=Parsed("numbers", ()), step=Parsed("numbers", ())
):
    steps = [1 if by is None else by for by in step or (1,) * len(begin)]
    if not len(begin) == len(end) == len(steps) or 0 in steps:
        refuse(
            f"attributes begin={begin}, end={end}, step={step}: expected lists of one length, and"
            " no step of 0"
        )
    cuts = []
    for first, last, by in zip(begin, end, steps, strict=True):
        front, back = (0, LAST) if by > 0 else (LAST, FIRST)
        cuts.append((front if first is None else first, back if last is None else last))
    starts, ends = zip(*cuts, strict=True) if cuts else ((), ())
    return data.Slice(starts, ends, range(len(begin)), steps)


@mxnet("slice_axis")
def slice_axis(data, *, axis, begin, end=Parsed("integer")):
    return data.Slice([begin], [LAST if end is None else end], [axis], [1])


@mxnet("slice_like")
def slice_like(data, shape_like, *, axes=()):
    ends = shape_like.sizes
    if not axes:
        return data.Slice(ends.Mul([0]), ends)
    if min(axes) < 0:  # counted from the last axis of data, which may have fewer axes
        ends = ends.Slice([0], data.sizes.sizes, [0])
    return data.Slice([0] * len(axes), ends.Gather(axes, axis=0), axes)


@mxnet("reverse _npi_flip")
def reverse_(data, *, axis=()):
    return data.flip(*axis)


@mxnet("broadcast_to _npi_broadcast_to")
def broadcast_to(data, *, shape=(), op):
    if math.prod([abs(size) or 1 for size in shape]) > _MOST:
        refuse(f"attribute shape={shape}: expected at most {_MOST:,} elements")
    kept = -2 if op.numpy else 0  # this size keeps the input's size
    return data.Expand([*(1 if size == kept else size for size in shape)])


@mxnet("broadcast_axis")
def broadcast_axis(data, *, axis=(), size=()):
    whole = data.sizes
    for place, count in zip(axis, size, strict=True):
        whole = whole.resize(place, count)
    return data.Expand(whole)


@mxnet("broadcast_like", lhs_axes="None", rhs_axes="None")
def broadcast_like(lhs, rhs):
    return lhs.Expand(rhs.sizes)


def _fill(op: Any, shape: tuple[int, ...], dtype: Any, value: float) -> Any:
    unknown = (-1,) if op.context.symbol.np_shape else (0, -1)
    sizes = tuple(1 if size in unknown else size for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > _MOST:
        refuse(f"attribute shape={shape}: expected sizes, and at most {_MOST:,} elements")
    axes = tuple(axis for axis, size in enumerate(shape) if size in unknown)
    sized, variable = op.context.sized, Entry(op.at.position).name
    places = [sized.get((variable, axis)) for axis in axes]
    if not axes or None in places:
        op.unknown = axes
        return op.constant(np.full(sizes, value, dtype), "")
    parts: list[Any] = [[size] for size in sizes]
    for axis, (other, place) in zip(axes, filter(None, places), strict=True):
        parts[axis] = MxnetTensor(op, op.builder.value(other)).size(place).name
    return op.emit("ConstantOfShape", op.join(*parts), value=np.full(1, value, dtype))


@mxnet("_zeros _ones _npi_zeros _npi_ones")
def fill(*, shape=(), dtype=Dtype(), op):
    return _fill(op, shape, dtype, float("ones" in op.name))


@mxnet("_full")
def full(*, shape=(), dtype=Dtype(), value=0.0, op):
    return _fill(op, shape, dtype, value)


@mxnet("_arange _npi_arange", infer_range="False")
def arange(*, start=0.0, stop=Parsed("number"), step=1.0, repeat=1, dtype=Dtype(), op):
    if stop is None:
        start, stop = 0.0, start
    first, last, _ = map(parse.finite, (start, stop, step))
    count = int(np.ceil((last - first) / step)) if step else _MOST + 1
    if not 0 <= count * repeat <= _MOST:
        refuse(
            f"attributes {start=}, {stop=}, {step=}, {repeat=}: expected 0 to {_MOST:,} elements"
        )
    if dtype.kind != "f":
        start, step = int(start), int(step)  # MXNet converts them before it counts
    return op.constant(np.repeat(start + np.arange(count) * step, repeat).astype(dtype), "")


@mxnet("_contrib_arange_like", repeat="1")
def arange_like(data, *, start=0.0, step=1.0, axis=Parsed("integer")):
    """Counts up along an axis of ``data``, or through all its elements, in the dtype of data."""
    sizes = data.sizes if axis is None else data.size(axis)
    numbers = bodies.count_up(sizes.ReduceProd(keepdims=0)).cast(data.dtype) * step + start
    return numbers.Reshape(sizes)


@mxnet("_np_cumsum")
def cumsum(a, *, axis=Parsed("integer"), dtype=Dtype(none=None)):
    x, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
    dtype = np.int64 if dtype is None and x.dtype.kind == "b" else dtype
    return (x if dtype is None else x.cast(dtype)).CumSum(axis)


# Rules for operators that sort, and that choose elements by their coordinates.


def _sort(data: Any, axis: int | None, k: int, ascends: bool) -> tuple[Any, int, Any, Any]:
    """Returns the value (flattened if ``axis`` is None), its axis, its first k elements in sorted
    order, and their indices; all elements if k is 0.

    Equal elements keep their order; MXNet sorts some of them in any order.
    """
    x, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
    count = [k] if k > 0 else x.size(axis)
    return x, axis, *x.TopK(count, axis=axis, largest=int(not ascends), outputs=2)


_RESULTS = {each: each for each in ("indices", "value", "both", "mask")}


@mxnet("topk")
def topk(
    data,
    *,
    axis=Parsed("integer", -1),
    k=1,
    ret_typ=OneOf("indices", _RESULTS),
    is_ascend=False,
    dtype=Dtype(),
):
    x, axis, values, places = _sort(data, axis, k, is_ascend)
    match ret_typ:
        case "value" | "both":  # the second output may be hidden
            return values, places.cast(dtype)
        case "mask":
            ones = places.sizes.ConstantOfShape(value=np.ones(1, data.dtype))
            zeros = x.sizes.ConstantOfShape(value=np.zeros(1, data.dtype))
            return zeros.ScatterElements(places, ones, axis=axis).Reshape(data.sizes)
    return places.cast(dtype)


@mxnet("sort")
def sort(data, *, axis=Parsed("integer", -1), is_ascend=True):
    """Returns the sorted elements, and their indices, which MXNet hides."""
    return _sort(data, axis, 0, is_ascend)[2:]


@mxnet("argsort")
def argsort(data, *, axis=Parsed("integer", -1), is_ascend=True, dtype=Dtype()):
    return _sort(data, axis, 0, is_ascend)[3].cast(dtype)


@mxnet("gather_nd")
def gather_nd(data, indices):
    """Gathers elements; the first axis of ``indices`` contains their coordinates."""
    index, rank = indices.cast(np.int64), indices.rank
    if rank is None:
        return data.GatherND(index.Einsum(equation="a...->...a"))
    return data.GatherND(index.transpose(*range(1, rank), 0))


@mxnet("tile")
def tile(data, *, reps=()):
    missing = len(reps) - data.require_rank("attribute reps")
    data = data.unsqueeze(*range(missing)) if missing > 0 else data
    return data.Tile([*[1] * -missing, *reps])


@mxnet("repeat")
def repeat(data, *, repeats, axis=Parsed("integer")):
    """Repeats each element: adds a new axis of size one, enlarges it, and joins it with the old
    axis.
    """
    x, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
    if repeats < 1:
        refuse(f"attribute repeats={repeats}: expected 1 or more")
    whole, end = x.sizes, axis + 1 or LAST
    before, after = whole.part(0, end), whole.part(end, LAST)
    wide = x.unsqueeze(axis + (axis >= 0)).Expand(before.join([repeats], after))
    return wide.Reshape(whole.part(0, axis).join([-1], after))


# Random numbers. MXNet draws them from one generator. onernn computes them from a seed, an input of
# the graph.

_DISTRIBUTIONS = {
    "uniform": {"low": 0.0, "high": 1.0},
    "normal": {"mu loc": 0.0, "sigma scale": 1.0},
    "gamma": {"alpha": 1.0, "beta": 1.0},
    "exponential": {"lam": 1.0},
    "poisson": {"lam": 1.0},
}
"""The parameters of distributions by the names of inputs (and of attributes, if these differ), with
defaults.
"""


def _sample(distribution: str, op: Any, shape: Any, dtype: Any, *parameters: str) -> str:
    context = op.context
    if context.is_body:
        refuse("each iteration of the loop would draw the same numbers; draw them before the loop")
    if not context.seed:
        context.seed = op.builder.fresh("seed")
        op.builder.input(Value(context.seed, "int64", ()))
        note = f"random numbers are computed from the input {context.seed!r}: feed any integer"
        context.notes[note] = []
    given = {"distribution": distribution, "shape": shape, "stream": op.at.position}
    return op.emit("Sample", context.seed, *parameters, dtype=dtype.name, **given)


def _draw(kind, *, shape=(), dtype=Dtype(none="float32"), op):
    named = _DISTRIBUTIONS[kind].items()
    numbers = [op.keyword(name.split()[-1], default) for name, default in named]
    parameters = [op.constant(np.float32(each), "parameter") for each in numbers]
    return _sample(kind, op, shape or (1,), dtype, *parameters)


def _draw_each(kind, *parameters, shape=(), dtype=Dtype(none="float32"), op):
    return _sample(kind, op, shape, dtype, *(each.name for each in parameters))


for kind in _DISTRIBUTIONS:
    mxnet(f"_sample_{kind}")(partial(_draw_each, kind))
    mxnet(f"_random_{kind}")(partial(_draw, kind))
