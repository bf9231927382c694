"""The rules of Paddle's operators that compute element by element, and make tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Results
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.paddle.operators import REDUCTIONS, ROWS, Row
from onernn.adapters.paddle.table import (
    RULES,
    DtypeNumber,
    Integers,
    PaddleOperator,
    PaddleTensor,
    paddle,
)
from onernn.ir.activations import DEFAULTS
from onernn.ir.errors import UnsupportedError
from onernn.ir.operator import OPERATORS
from onernn.ir.types import dense

# The rules of Paddle's operators that have a row in the table.


def _input(op: PaddleOperator, slot: str) -> PaddleTensor:
    return PaddleTensor(op, op.value(slot), slot)


def _unary(row: Row, op: PaddleOperator) -> Results:
    """Over the words of all sequences if the operator's record says that it mixes axis 0."""
    canonical, attributes, x = OPERATORS[row.op], _attributes(row, op), _input(op, "X")
    if canonical.slots[0].ragged:
        x.with_lod()
    words = False
    if x.ragged and canonical.paths:
        known = dense(None, [None] * x.rank)
        paths = canonical.paths(canonical.attrs(attributes, 1), known)
        words = paths is not None and paths[0][0] is None
    out = getattr(x.dense if words or not row.keeps_lod else x, row.op)(**attributes)
    return out.under(x).name if words and row.keeps_lod else out.name


def _binary(row: Row, op: PaddleOperator) -> PaddleTensor:
    """Returns an output with the LoD of X. ``axis``: where the axes of Y begin among those of X."""
    op.attribute("force_cpu", False)
    attributes = _attributes(row, op)
    x, y, axis = _input(op, "X"), _input(op, "Y"), op.attribute("axis", -1)
    rank, inner = x.rank, y.rank
    if rank < inner and x.ragged:
        raise UnsupportedError(f"input Y has {inner} axes, more than the ragged X with {rank}")
    missing = 0 if axis == -1 else max(rank, inner) - axis - min(rank, inner)
    if missing < 0 or axis < -1:
        raise UnsupportedError(f"attribute axis={axis} for inputs of {rank} and {inner} axes")
    y = y.dense
    if missing:  # the shorter one stands before axes of the longer one
        new = range(min(rank, inner), min(rank, inner) + missing)
        x, y = (x, y.unsqueeze(*new)) if inner < rank else (x.unsqueeze(*new), y)
    return getattr(x, row.op)(y, **attributes)


def _reduction(row: Row, op: PaddleOperator) -> Results:
    op.attribute("in_dtype", -1)
    X, keep = _input(op, "X"), op.attribute("keep_dim", False)
    axes = op.attribute("dim", (0,))
    axes = [axis % max(X.rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)]
    if op.attribute("reduce_all", False) or not axes or row.type == "mean":
        axes = list(range(X.rank))
    x = X.dense
    if dtype := DtypeNumber(-1).read(op, "out_dtype"):
        x = x.cast(dtype)
    elif row.type == "reduce_sum" and X.dtype in (np.int32, np.bool_):
        x = x.cast("int64")
    return x.reduce(row.op, axes, X.rank, keep).name


def _not_equal(op: PaddleOperator) -> Results:
    return _binary(Row("not_equal", "Equal"), op).Not().name


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
_fill(lambda row, op: _binary(row, op).name, *(row for row in ROWS if len(row.inputs) == 2))
_fill(_reduction, *REDUCTIONS)
RULES["not_equal"] = _not_equal


# The rules of Paddle's operators that compute.
#
# Slots and defaults: the operators' makers in 2.6. Which LoD an output gets, and where the native
# kernel differs from its documentation, is measured with 2.6.2.


def _project(x: Any, columns: int, weight: Any) -> Any:
    """Returns the product of ``weight``, a matrix, and x as a matrix after ``columns`` axes."""
    rank = x.rank
    if not 0 < columns < rank:
        refuse(f"{columns} leading columns of an input of {rank} axes")
    if rank > columns + 1:
        rows = -1 if weight.known is None else weight.known.shape[0]
        x = x.reshape(*[0] * columns, rows)
    return x @ weight


@paddle("mul", scale_x=1.0, scale_y=(1.0,), scale_out=1.0)
def mul(X, Y, *, x_num_col_dims=1, y_num_col_dims=1):
    split, rank = y_num_col_dims, Y.rank
    if not 0 < split < rank:
        refuse(f"attribute y_num_col_dims={split}: Y has {rank} axes")
    matrix = Y
    if rank > 2:
        matrix = Y.constant(Y.array.reshape(math.prod(Y.array.shape[:split]), -1))
    out = _project(X, x_num_col_dims, matrix)
    if rank - split > 1:
        out = out.reshape(*[0] * x_num_col_dims, *Y.array.shape[split:])
    return out


# Paddle 3's passes fuse these into an fc, and it saves them with every fc.
_FUSED: dict[str, Any] = {
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "fused_output_scale": 1.0,
    "fused_reshape2_shape": (),
}
_ACTIVATIONS = {row.type: row.op for row in ROWS if DEFAULTS.get(row.op.lower()) == ()}
_ACTIVATIONS[""] = ""


@paddle("fc", padding_weights=False, Scale_in=1.0, Scale_weights=(1.0,), Scale_out=1.0, **_FUSED)
def fc(Input, W, Bias=None, *, in_num_col_dims=1, activation_type=OneOf("", _ACTIVATIONS)):
    out = _project(Input, in_num_col_dims, W)
    if Bias:
        out = out + out.constant(Bias.array.reshape(-1))
    return getattr(out, activation_type)() if activation_type else out


@paddle("matmul_v2")
def matmul_v2(X, Y, *, trans_x=False, trans_y=False, op):
    """Paddle 2 drops the LoD of X; 3 hands it on, whatever becomes of its rows."""
    factors = [
        x.dense.swap() if transposed and x.rank > 1 else x.dense
        for x, transposed in ((X, trans_x), (Y, trans_y))
    ]
    if op.version < 3_000_000 or not X.ragged:
        return factors[0] @ factors[1]
    if X.rank < 2 or Y.rank > X.rank or X.rank == 2 and trans_x:
        refuse("input X: Paddle 3 keeps a LoD that does not fit")
    return (factors[0] @ factors[1]).under(X)


@paddle("scale")
def scale(X, *, scale=1.0, bias=0.0, bias_after_scale=True):
    return X * scale + bias if bias_after_scale else (X + bias) * scale


@paddle("dropout")
def dropout(X, Seed=None, *, dropout_prob=0.5, dropout_implementation="downgrade_in_infer", op):
    """Inference draws nothing, so the seed has no effect."""
    op.note_dropout()
    if dropout_implementation == "upscale_in_train":
        return X
    return X * float(np.float32(1) - np.float32(dropout_prob))


@paddle("square")
def square(X):
    return X * X


@paddle("rsqrt")
def rsqrt(X):
    return X.Sqrt().Reciprocal()


@paddle("swish silu", beta=1.0)
def silu(X):
    return X * X.Sigmoid()


@paddle("softplus", beta=1.0)
def softplus(X, *, threshold=20.0):
    """Above the threshold it is x itself, which is what rounding gives."""
    return (
        X.Softplus()
        if threshold >= 20
        else refuse("attribute threshold: below 20 the function jumps")
    )


@paddle("clip", Min="", Max="")
def clip(X, *, min=0.0, max=0.0):
    return X.Clip(X.constant(min), X.constant(max))


@paddle("relu6")
def relu6(X, *, threshold=6.0):
    return X.Clip(X.constant(0.0), X.constant(threshold))


@paddle("brelu")
def brelu(X, *, t_min=0.0, t_max=24.0):
    return X.Clip(X.constant(t_min), X.constant(t_max))


@paddle("cast")
def cast(X, *, in_dtype=-1, out_dtype=DtypeNumber(5)):
    return X.cast(out_dtype)


@paddle("where")
def where(Condition, X, Y):
    return Condition.dense.Where(X.dense, Y.dense).under(X)


@paddle("masked_fill")
def masked_fill(X, Mask, Value):
    return Mask.dense.Where(Value.dense.CastLike(X.dense), X.dense)


@paddle("pow", FactorTensor="")
def pow_(X, *, factor=1.0):
    return X.Pow(factor) if X.dtype.kind == "f" else refuse(f"{X.dtype} numbers")


@paddle("round", decimals=0)
def round_(X, *, op):
    """Paddle 2 rounds halves away from zero, Paddle 3 to even numbers."""
    if op.attribute("halves_to_even", op.version >= 3_000_000):
        return X.Round()
    size = X.Abs()
    whole = size.Floor()
    return X.Sign() * (whole + (size - whole).GreaterOrEqual(0.5).cast(X.dtype))


@paddle("sum")
def sum_(*X):
    return X[0].Sum(*(x.dense for x in X[1:]))


@paddle("cumsum", Axis="")
def cumsum(X, *, axis=-1, flatten=False, exclusive=False, reverse=False):
    if exclusive:
        refuse("attribute exclusive: Paddle gives a single element itself, not 0")
    if flatten and X.ragged:
        refuse("attribute flatten: Paddle keeps a LoD that does not fit")
    x, axis = (X.dense.reshape(-1), 0) if flatten else (X.dense, axis)
    return x.CumSum(axis, reverse=int(reverse)).under(X)


_INTEGERS = {-1: "int64", 2: "int32", 3: "int64"}


@paddle("arg_max arg_min")
def extreme(X, *, axis=-1, dtype=OneOf(-1, _INTEGERS), keepdims=False, flatten=False, op):
    kind = "ArgMax" if op.at.type == "arg_max" else "ArgMin"
    if flatten:
        if keepdims and kind == "ArgMin":
            refuse("attributes flatten=True, keepdims=True: never measured")
        out = getattr(X.dense.reshape(-1), kind)(axis=0, keepdims=0)
        out = out.reshape(*[1] * X.rank) if keepdims else out
    else:
        out = getattr(X.dense, kind)(axis=axis, keepdims=int(keepdims))
    return out.cast(dtype)


@paddle("top_k")
def top_k(X, K=None, *, k=1):
    return top_k_v2(X, K, k=k)


@paddle("top_k_v2")
def top_k_v2(X, K=None, *, k=1, axis=-1, largest=True, sorted=True):
    """Sorted results are right also where any order may be returned."""
    x = X.dense if axis in (0, -X.rank) else X
    count = K.cast("int64") if K else [k]
    values, places = x.TopK(count, axis=axis, largest=int(largest), outputs=2)
    return {"Out": values, "Indices": places}


@paddle("layer_norm")
def layer_norm(X, Scale=None, Bias=None, *, begin_norm_axis=1, epsilon=1e-5):
    sizes = X.shape[begin_norm_axis:]
    if not 0 < begin_norm_axis < X.rank or None in sizes:
        refuse(f"attribute begin_norm_axis={begin_norm_axis} of an input {X.shape}")
    scale = Scale.dense.reshape(*sizes) if Scale else X.fill(sizes, 1)
    bias = [Bias.dense.reshape(*sizes)] if Bias else []
    return X.LayerNormalization(scale, *bias, axis=begin_norm_axis, epsilon=epsilon, outputs=3)[0]


# The rules of Paddle's operators that make values of sizes and numbers, and repeat values.
#
# Slots and defaults: the operators' makers in 2.6. Which LoD is handed on is measured with 2.6.2.

_MOST = 2**16
"""Most elements of a constant that is made while reading; larger ones are made at run time."""


@paddle("fill_constant")
def fill_constant(
    ValueTensor=None,
    *,
    shape=Integers("ShapeTensor", "ShapeTensorList"),
    dtype=DtypeNumber(5),
    value=0.0,
    str_value="",
    force_cpu=False,
    place_type=-1,
):
    """A text comes before a number, also for integers."""
    filled = np.asarray(float(str_value) if str_value else value)
    filled = ValueTensor.array.reshape(()) if ValueTensor else filled
    filled, sizes = filled.astype(dtype), shape.known
    if sizes is not None and min(sizes, default=0) >= 0 and math.prod(sizes.tolist()) <= _MOST:
        return shape.constant(np.full(sizes, filled))
    return shape.ConstantOfShape(value=filled.reshape(1))


@paddle("fill_constant_batch_size_like")
def fill_constant_batch_size_like(
    Input,
    *,
    shape=(),
    input_dim_idx=0,
    output_dim_idx=0,
    dtype=DtypeNumber(5),
    value=0.0,
    str_value="",
    force_cpu=False,
    place_type=-1,
    op,
):
    """One size is that of another value; of a ragged one, the number of its sequences."""
    source, target = input_dim_idx, output_dim_idx
    filled = np.asarray(float(str_value) if str_value else value)
    if not 0 <= target < len(shape) or source < 0:
        refuse(f"attribute output_dim_idx={target} of shape {list(shape)}")
    like = Input.SequenceLengths() if Input.ragged and source == 0 else Input
    size = like.Shape(start=source, end=source + 1)
    whole = op.joined(shape[:target], size.name, shape[target + 1 :])
    return op.emit("ConstantOfShape", whole, value=filled.astype(dtype).reshape(1))


@paddle("fill_any_like")
def fill_any_like(X, *, dtype=DtypeNumber(-1), value=0.0):
    value = np.asarray(value).astype(dtype or X.dtype).reshape(1)
    return X.dense.Shape().ConstantOfShape(value=value).under(X)


@paddle("assign_value")
def assign_value(
    *,
    shape=(),
    dtype=DtypeNumber(5),
    values=(),
    bool_values=(),
    fp32_values=(),
    fp64_values=(),
    int32_values=(),
    int64_values=(),
    op,
):
    """Each dtype has an attribute of its own for the elements; ``values`` holds them since 2.6."""
    lists = (values, bool_values, fp32_values, fp64_values, int32_values, int64_values)
    elements, *others = [*filter(None, lists), ()]
    if len(others) > 1 or math.prod(shape) != len(elements):
        refuse(f"attribute shape={shape}: its values are others")
    return op.constant(np.asarray(elements, dtype).reshape(shape), "values")


@paddle("range")
def range_(Start, End, Step):
    """Start, End and Step have the shape () or (1,)."""
    return Start.dense.Reshape([]).Range(End.dense.Reshape([]), Step.dense.Reshape([]))


@paddle("increment")
def increment(X, *, step=1.0):
    return X.dense.Add(X.constant(np.asarray(step).astype(X.dtype)))


@paddle("expand_v2")
def expand(X, *, shape=Integers("Shape", "expand_shapes_tensor")):
    """A size of -1 stays what it is."""
    return X.dense.Expand(shape.Equal([-1]).Where([1], shape))


@paddle("expand_as_v2")
def expand_as(X, Y=None, *, target_shape=()):
    """``target_shape`` is the shape of Y, used if Y itself is not an input."""
    return X.dense.Expand(Y.dense.Shape() if Y else target_shape)


@paddle("tile")
def tile(X, *, repeat_times=Integers("RepeatTimes", "repeat_times_tensor"), op):
    """If there are fewer repeats or fewer axes, ones are put before them."""
    shape = repeat_times.type.counts
    if len(shape) != 1 or shape[0] is None:
        refuse("the number of axes to repeat is not known")
    if X.ragged:
        refuse("input X carries a LoD, which Paddle keeps though it does not fit")
    more = shape[0] - X.rank
    repeats = op.joined([1] * -more, repeat_times.name) if more < 0 else repeat_times
    return (X.unsqueeze(*range(more)) if more > 0 else X).Tile(repeats)


@paddle("tril_triu")
def tril_triu(X, *, lower=True, diagonal=0):
    return X.dense.Trilu(diagonal, upper=int(not lower))


@paddle("sequence_mask")
def sequence_mask(X, MaxLenTensor=None, *, maxlen=-1, out_dtype=DtypeNumber(3)):
    """Whether a step comes before the end of its sequence; as many steps as the longest has."""
    lengths = X.dense
    if MaxLenTensor:
        end = MaxLenTensor.dense.reshape().cast("int64")
    elif maxlen >= 0:
        end = X.constant(np.asarray(maxlen, np.int64))
    else:
        end = lengths.ReduceMax(range(X.rank), keepdims=0).cast("int64")
    steps = X.constant(np.asarray(0, np.int64)).Range(end, 1)
    return steps.Less(lengths.cast("int64").unsqueeze(-1)).cast(out_dtype)
