"""The rules of Paddle's operators that compute element by element, and make tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import FORMULAS, extreme_index
from onernn.adapters.common.lowering import Results
from onernn.adapters.paddle.operators import REDUCTIONS, ROWS, Row
from onernn.adapters.paddle.table import RULES, PaddleOperator, rule
from onernn.ir.activations import DEFAULTS
from onernn.ir.errors import UnsupportedError
from onernn.ir.operator import OPERATORS

# The rules of Paddle's operators that have a row in the table.


def _unary(row: Row, op: PaddleOperator) -> Results:
    """Over the words of all sentences where the operator's record says that axis 0 meets."""
    canonical, x = OPERATORS[row.op], op.value("X")
    if canonical.slots[0].ragged:
        op.ragged("X")
    attributes = _attributes(row, op)
    x = x if row.keeps_lod else op.dense(x)
    mixed = canonical.mixed(canonical.attrs(attributes, 1), 0) or ()
    if op.is_ragged(x) and any(axis in (0, -op.rank("X")) for axis in mixed):
        return op.under(op.emit(row.op, op.dense(x), **attributes), x)
    return op.emit(row.op, x, **attributes)


def _binary(row: Row, op: PaddleOperator) -> str:
    """The LoD of X is handed on. ``axis`` is where the axes of Y begin among those of X."""
    op.attribute("force_cpu", False)
    attributes = _attributes(row, op)
    x, y, axis = op.value("X"), op.plain("Y"), op.attribute("axis", -1)
    rank, inner = op.rank("X"), op.rank("Y")
    if rank < inner and op.is_ragged(x):
        raise UnsupportedError(f"input Y has {inner} axes, more than the ragged X with {rank}")
    missing = 0 if axis == -1 else max(rank, inner) - axis - min(rank, inner)
    if missing < 0 or axis < -1:
        raise UnsupportedError(f"attribute axis={axis} for inputs of {rank} and {inner} axes")
    if missing:  # the shorter one stands before axes of the longer one
        behind = range(min(rank, inner), min(rank, inner) + missing)
        if inner < rank:
            y = op.unsqueezed(y, *behind)
        else:
            x = op.unsqueezed(x, *behind)
    return op.emit(row.op, x, y, **attributes)


def _reduction(row: Row, op: PaddleOperator) -> Results:
    op.attribute("in_dtype", -1)
    rank, keep = op.rank("X"), op.attribute("keep_dim", False)
    axes = op.attribute("dim", (0,))
    axes = [axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)]
    if op.attribute("reduce_all", False) or not axes or row.type == "mean":
        axes = list(range(rank))
    x = op.plain("X")
    if op.attribute("out_dtype", -1) >= 0:
        x = op.cast(x, op.chosen_dtype("out_dtype", -1))
    elif row.type == "reduce_sum" and op.dtype("X") in (np.int32, np.bool_):
        x = op.cast(x, "int64")
    return op.reduced(row.op, x, axes, rank, keep)


def _not_equal(op: PaddleOperator) -> Results:
    return op.emit("Not", _binary(Row("not_equal", "Equal"), op))


def _attributes(row: Row, op: PaddleOperator) -> dict[str, Any]:
    op.only(**row.only)
    return {
        name: named.ours(op.attribute(named.name, named.default))
        for name, named in row.attributes.items()
    }


def _fill(read: Callable[[Row, PaddleOperator], Results], *rows: Row) -> None:
    for row in rows:
        RULES.setdefault(row.type, partial(read, row))  # unless reading has a rule of its own


_fill(_unary, *(row for row in ROWS if len(row.inputs) == 1))
_fill(_binary, *(row for row in ROWS if len(row.inputs) == 2))
_fill(_reduction, *REDUCTIONS)
RULES["not_equal"] = _not_equal


# The rules of Paddle's operators that compute.
#
# Slots and defaults: the operators' makers in 2.6. Which LoD an output gets, and where the native
# kernel differs from its documentation, is measured with 2.6.2.


def _project(op: PaddleOperator, slot: str, columns: int, weight: str) -> str:
    """The input as a matrix behind its first ``columns`` axes, times weight (a matrix)."""
    x, sizes = op.value(slot), op.shape(slot)
    if not 0 < columns < len(sizes):
        raise UnsupportedError(f"{columns} leading columns of an input of {len(sizes)} axes")
    if len(sizes) > columns + 1:
        rows = op.builder.constants[weight].shape[0] if weight in op.builder.constants else -1
        x = op.reshaped(x, *([0] * columns + [rows]))
    return op.emit("MatMul", x, weight)


@rule("mul")
def _mul(op: PaddleOperator) -> Results:
    op.only(scale_x=1.0, scale_y=(1.0,), scale_out=1.0)
    y, sizes = op.value("Y"), op.shape("Y")
    columns, split = op.attribute("x_num_col_dims", 1), op.attribute("y_num_col_dims", 1)
    if not 0 < split < len(sizes):
        raise UnsupportedError(f"attribute y_num_col_dims={split}: Y has {len(sizes)} axes")
    if len(sizes) > 2:
        matrix = op.array("Y").reshape(math.prod(op.array("Y").shape[:split]), -1)
        y = op.constant(matrix, "matrix")
    out = _project(op, "X", columns, y)
    if len(sizes) - split > 1:
        out = op.reshaped(out, *([0] * columns + list(op.array("Y").shape[split:])))
    return out


# What Paddle 3's passes fuse into an fc, and it saves with every fc.
_FUSED: dict[str, Any] = {
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "fused_output_scale": 1.0,
    "fused_reshape2_shape": (),
}
_ACTIVATIONS = {
    "": "",
    **{row.type: row.op for row in ROWS if DEFAULTS.get(row.op.lower()) == ()},
}


@rule("fc")
def _fc(op: PaddleOperator) -> Results:
    op.only(padding_weights=False, Scale_in=1.0, Scale_weights=(1.0,), Scale_out=1.0, **_FUSED)
    out = _project(op, "Input", op.attribute("in_num_col_dims", 1), op.value("W"))
    if op.optional("Bias"):
        flat = op.constant(op.array("Bias").reshape(-1), "Bias")
        out = op.emit("Add", out, flat)
    activation = op.one_of("activation_type", "", _ACTIVATIONS)
    return op.emit(_ACTIVATIONS[activation], out) if activation else out


@rule("matmul_v2")
def _matmul(op: PaddleOperator) -> Results:
    """Paddle 2 drops the LoD of X; 3 hands it on, whatever becomes of its rows."""
    x, rank, factors = op.value("X"), op.rank("X"), []
    for slot, flag in (("X", "trans_x"), ("Y", "trans_y")):
        value = op.plain(slot)
        if op.attribute(flag, False) and op.rank(slot) > 1:
            value = op.swapped(value)
        factors.append(value)
    out = op.emit("MatMul", *factors)
    if op.version < 3_000_000 or not op.is_ragged(x):
        return out
    if rank < 2 or op.rank("Y") > rank or rank == 2 and op.attribute("trans_x", False):
        raise UnsupportedError("input X: Paddle 3 keeps a LoD that does not fit")
    return op.under(out, x)


def _affine(op: PaddleOperator, x: str, kind: str, number: float, neutral: float) -> str:
    if number == neutral:
        return x
    return op.emit(kind, x, op.scalar(number, op.dtype("X")))


@rule("scale")
def _scale(op: PaddleOperator) -> Results:
    factor, added = op.attribute("scale", 1.0), op.attribute("bias", 0.0)
    steps = [("Mul", factor, 1.0), ("Add", added, 0.0)]
    if not op.attribute("bias_after_scale", True):
        steps.reverse()
    out = op.value("X")
    for kind, number, neutral in steps:
        out = _affine(op, out, kind, number, neutral)
    return op.emit("Identity", out) if out == op.value("X") else out


@rule("dropout")
def _dropout(op: PaddleOperator) -> Results:
    op.variable("Seed")  # in inference nothing is drawn
    op.note_dropout()
    kept = float(np.float32(1) - np.float32(op.attribute("dropout_prob", 0.5)))
    upscaled = op.attribute("dropout_implementation", "downgrade_in_infer") == "upscale_in_train"
    x = op.value("X")
    out = x if upscaled else _affine(op, x, "Mul", kept, 1.0)
    return op.emit("Identity", x) if out == x else out


@rule("square")
def _square(op: PaddleOperator) -> Results:
    return FORMULAS["square"](op, op.value("X"))


@rule("rsqrt")
def _rsqrt(op: PaddleOperator) -> Results:
    return FORMULAS["rsqrt"](op, op.value("X"))


@rule("swish silu")
def _swish(op: PaddleOperator) -> Results:
    op.only(beta=1.0)
    return FORMULAS["silu"](op, op.value("X"))


@rule("softplus")
def _softplus(op: PaddleOperator) -> Results:
    """Above the threshold it is x itself, which is what rounding gives."""
    op.only(beta=1.0)
    if op.attribute("threshold", 20.0) < 20:
        raise UnsupportedError("attribute threshold: below 20 the function jumps")
    return op.emit("Softplus", op.value("X"))


@rule("clip relu6 brelu")
def _clip(op: PaddleOperator) -> Results:
    if op.optional("Min") or op.optional("Max"):
        raise UnsupportedError("bounds that are computed at run time")
    if op.at.type == "relu6":
        low, high = 0.0, op.attribute("threshold", 6.0)
    elif op.at.type == "brelu":
        low, high = op.attribute("t_min", 0.0), op.attribute("t_max", 24.0)
    else:
        low, high = op.attribute("min", 0.0), op.attribute("max", 0.0)
    bounds = [op.constant(np.asarray(v, op.dtype("X")), "bound") for v in (low, high)]
    return op.emit("Clip", op.value("X"), *bounds)


@rule("cast")
def _cast(op: PaddleOperator) -> Results:
    op.attribute("in_dtype", -1)
    x, to = op.value("X"), op.chosen_dtype("out_dtype", 5)
    return op.emit("Identity", x) if op.dtype("X") == to else op.emit("Cast", x, to=to)


@rule("where")
def _where(op: PaddleOperator) -> Results:
    condition, x, y = (op.value(slot) for slot in ("Condition", "X", "Y"))
    return op.under(op.emit("Where", *map(op.dense, (condition, x, y))), x)


@rule("masked_fill")
def _masked_fill(op: PaddleOperator) -> Results:
    x, mask, value = (op.plain(slot) for slot in ("X", "Mask", "Value"))
    return op.emit("Where", mask, op.emit("CastLike", value, x), x)


@rule("pow")
def _pow(op: PaddleOperator) -> Results:
    op.absent("FactorTensor")
    factor, dtype = op.attribute("factor", 1.0), op.dtype("X")
    if dtype.kind != "f":
        raise UnsupportedError(f"{dtype} numbers")
    return op.emit("Pow", op.value("X"), op.scalar(factor, dtype))


@rule("round")
def _round(op: PaddleOperator) -> Results:
    """Paddle 2 rounds halves away from zero, Paddle 3 to even numbers."""
    op.only(decimals=0)
    x, dtype = op.value("X"), op.dtype("X")
    if op.attribute("halves_to_even", op.version >= 3_000_000):
        return op.emit("Round", x)
    size = op.emit("Abs", x)
    whole = op.emit("Floor", size)
    half = op.scalar(0.5, dtype)
    up = op.cast(op.emit("GreaterOrEqual", op.emit("Sub", size, whole), half), dtype)
    return op.emit("Mul", op.emit("Sign", x), op.emit("Add", whole, up))


@rule("sum")
def _sum(op: PaddleOperator) -> Results:
    first, *others = op.values("X")
    return op.emit("Sum", first, *map(op.dense, others))


@rule("cumsum")
def _cumsum(op: PaddleOperator) -> Results:
    op.absent("Axis")
    value, axis, flat = op.value("X"), op.attribute("axis", -1), op.attribute("flatten", False)
    if op.attribute("exclusive", False):
        raise UnsupportedError("attribute exclusive: Paddle gives a single element itself, not 0")
    if flat and op.is_ragged(value):
        raise UnsupportedError("attribute flatten: Paddle keeps a LoD that does not fit")
    x = op.dense(value)
    if flat:
        x, axis = op.reshaped(x, -1), 0
    return op.under(op.emit("CumSum", x, axis, reverse=int(op.attribute("reverse", False))), value)


@rule("arg_max arg_min")
def _extreme(op: PaddleOperator) -> Results:
    dtypes = {-1: "int64", 2: "int32", 3: "int64"}
    x, axis, dtype = op.plain("X"), op.attribute("axis", -1), op.one_of("dtype", -1, dtypes)
    keep, flat = op.attribute("keepdims", False), op.attribute("flatten", False)
    kind = "ArgMax" if op.at.type == "arg_max" else "ArgMin"
    out = extreme_index(op, x, kind, None if flat else axis, keep)
    if keep and flat:
        if kind == "ArgMin":
            raise UnsupportedError("attributes flatten=True, keepdims=True: never measured")
        out = op.reshaped(out, *([1] * op.rank("X")))
    return op.cast(out, dtypes[dtype])


@rule("top_k top_k_v2")
def _top_k(op: PaddleOperator) -> Results:
    x, rank = op.value("X"), op.rank("X")
    axis = op.attribute("axis", -1) if op.at.type == "top_k_v2" else -1
    x = op.dense(x) if axis in (0, -rank) else x
    k, number = op.optional("K"), op.attribute("k", 1)
    op.attribute("sorted", True)  # sorted is what any order may be
    count = op.cast(k, "int64") if k else op.ints(number)
    attributes = {"axis": axis, "largest": int(op.attribute("largest", True))}
    values, at = op.emit_many("TopK", 2, x, count, **attributes)
    return {"Out": values, "Indices": at}


@rule("layer_norm")
def _layer_norm(op: PaddleOperator) -> Results:
    x, shape, axis = op.value("X"), op.shape("X"), op.attribute("begin_norm_axis", 1)
    sizes = shape[axis:]
    numbers = [op.optional(slot) for slot in ("Scale", "Bias")]
    if not 0 < axis < len(shape) or None in sizes:
        raise UnsupportedError(f"attribute begin_norm_axis={axis} of an input {shape}")
    parts = [part and op.reshaped(op.dense(part), *sizes) for part in numbers]
    if not parts[0]:
        parts[0] = op.filled([size or 0 for size in sizes], 1, op.dtype("X"), "ones")
    attributes = {"axis": axis, "epsilon": op.attribute("epsilon", 1e-5)}
    return op.emit_many("LayerNormalization", 3, x, *filter(None, parts), **attributes)[0]


# The rules of Paddle's operators that make values of sizes and numbers, and repeat values.
#
# Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.

_MOST = 2**16
"""Most elements of a constant that is made while reading; larger ones are made at run time."""


def _filling(op: PaddleOperator) -> Any:
    """The value of fill_constant and its like: a text comes before a number."""
    dtype, text = op.chosen_dtype("dtype", 5), op.attribute("str_value", "")
    number = op.attribute("value", 0.0)
    if text:
        number = float(text)  # also of integers
    op.attribute("force_cpu", False)
    op.attribute("place_type", -1)
    return np.asarray(number).astype(dtype)


@rule("fill_constant")
def _fill_constant(op: PaddleOperator) -> Results:
    value = _filling(op)
    if given := op.optional("ValueTensor"):
        value = op.builder.array(given, "ValueTensor").reshape(()).astype(value.dtype)
    shape = op.integers("shape", "ShapeTensor", "ShapeTensorList")
    sizes = op.builder.constants.get(shape)
    if sizes is not None and min(sizes, default=0) >= 0 and math.prod(sizes.tolist()) <= _MOST:
        return op.constant(np.full(sizes, value), "filled")
    return op.emit("ConstantOfShape", shape, value=value.reshape(1))


@rule("fill_constant_batch_size_like")
def _fill_like(op: PaddleOperator) -> Results:
    """One size is that of another value; of a ragged one, the number of its sentences."""
    value, like, shape = _filling(op), op.value("Input"), list(op.attribute("shape", ()))
    source, target = op.attribute("input_dim_idx", 0), op.attribute("output_dim_idx", 0)
    if op.is_ragged(like) and source == 0:
        like = op.emit("SequenceLengths", like)
    if not 0 <= target < len(shape) or source < 0:
        raise UnsupportedError(f"attribute output_dim_idx={target} of shape {shape}")
    size = op.emit("Shape", like, start=source, end=source + 1)
    whole = op.joined(shape[:target], size, shape[target + 1 :])
    return op.emit("ConstantOfShape", whole, value=value.reshape(1))


@rule("fill_any_like")
def _fill_any_like(op: PaddleOperator) -> Results:
    x, dtype = op.value("X"), op.attribute("dtype", -1)
    kind = str(op.dtype("X")) if dtype == -1 else op.chosen_dtype("dtype", -1)
    value = np.asarray(op.attribute("value", 0.0)).astype(kind).reshape(1)
    made = op.emit("ConstantOfShape", op.emit("Shape", op.dense(x)), value=value)
    return op.under(made, x)


@rule("assign_value")
def _assign_value(op: PaddleOperator) -> Results:
    """The numbers stand in an attribute for their type; ``values`` holds them since 2.6."""
    names = ("values", "bool_values", "fp32_values", "fp64_values", "int32_values", "int64_values")
    given = [result for name in names if (result := op.attribute(name, ()))]
    dtype, shape = op.chosen_dtype("dtype", 5), op.attribute("shape", ())
    if len(given) > 1 or math.prod(shape) != len(given[0] if given else ()):
        raise UnsupportedError(f"attribute shape={shape}: its values are others")
    return op.constant(np.asarray(given[0] if given else (), dtype).reshape(shape), "values")


@rule("range")
def _range(op: PaddleOperator) -> Results:
    """Start, End and Step have the shape () or (1,)."""
    scalar = op.ints()
    slots = (op.plain(slot) for slot in ("Start", "End", "Step"))
    return op.emit("Range", *(op.emit("Reshape", value, scalar) for value in slots))


@rule("increment")
def _increment(op: PaddleOperator) -> Results:
    x, dtype, step = op.plain("X"), op.dtype("X"), op.attribute("step", 1.0)
    return op.emit("Add", x, op.constant(np.asarray(step).astype(dtype), "step"))


@rule("expand_v2")
def _expand(op: PaddleOperator) -> Results:
    """A size of -1 stays what it is."""
    shape = op.integers("shape", "Shape", "expand_shapes_tensor")
    sizes = op.emit("Where", op.emit("Equal", shape, [-1]), [1], shape)
    return op.emit("Expand", op.plain("X"), sizes)


@rule("expand_as_v2")
def _expand_as(op: PaddleOperator) -> Results:
    x, like = op.plain("X"), op.optional("Y")
    sizes = op.attribute("target_shape", ())  # what Y has, where it is known
    return op.emit("Expand", x, op.emit("Shape", op.dense(like)) if like else sizes)


@rule("tile")
def _tile(op: PaddleOperator) -> Results:
    """Fewer repeats, or fewer axes, than the other: ones stand before them."""
    x, rank = op.value("X"), op.rank("X")
    repeats = op.integers("repeat_times", "RepeatTimes", "repeat_times_tensor")
    shape = op.builder.type_of(repeats).counts
    if len(shape) != 1 or shape[0] is None:
        raise UnsupportedError("the number of axes to repeat is not known")
    more = shape[0] - rank
    if more < 0:
        repeats = op.joined([1] * -more, repeats)
    x = op.unsqueezed(x, *range(more)) if more > 0 else x
    if op.is_ragged(x):
        raise UnsupportedError("input X carries a LoD, which Paddle keeps though it does not fit")
    return op.emit("Tile", x, repeats)


@rule("tril_triu")
def _tril_triu(op: PaddleOperator) -> Results:
    upper, diagonal = not op.attribute("lower", True), op.attribute("diagonal", 0)
    return op.emit("Trilu", op.plain("X"), diagonal, upper=int(upper))


@rule("sequence_mask")
def _sequence_mask(op: PaddleOperator) -> Results:
    """Whether a step comes before the end of its sequence; as many steps as the longest has."""
    lengths, dtype = op.plain("X"), op.chosen_dtype("out_dtype", 3)
    most, given = op.attribute("maxlen", -1), op.optional("MaxLenTensor")
    if given:
        end = op.reshaped(op.dense(given))
    elif most >= 0:
        end = op.constant(np.int64(most), "most")
    else:
        end = op.emit("ReduceMax", lengths, range(op.rank("X")), keepdims=0)
    steps = op.emit("Range", 0, op.cast(end, "int64"), 1)
    longer = op.unsqueezed(op.cast(lengths, "int64"), -1)
    return op.cast(op.emit("Less", steps, longer), dtype)
