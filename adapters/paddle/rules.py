"""The rules of Paddle's operators for arithmetic, products, reductions and new tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import FORMULAS, count_up, extreme_index, round_half_away
from onernn.adapters.common.lowering import Results
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.paddle.operators import REDUCTIONS, ROWS, Row
from onernn.adapters.paddle.table import (
    RULES,
    STALE_LOD,
    DtypeNumber,
    Elements,
    Integers,
    PaddleOperator,
    PaddleTensor,
    dygraph,
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
    """Adds the row's operator. If it mixes elements along axis 0, it treats the steps of all
    sequences as one axis.
    """
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


def _binary(row: Row, op: PaddleOperator) -> Results:
    """Adds the row's operator, for not_equal also a Not. The output has the LoD of X. The attribute
    ``axis`` is the axis of X that corresponds to the first axis of Y.
    """
    op.attribute("force_cpu", False)
    attributes = _attributes(row, op)
    x, y, axis = _input(op, "X"), _input(op, "Y"), op.attribute("axis", -1)
    rank, inner = x.rank, y.rank
    if rank < inner and x.ragged:
        raise UnsupportedError(
            f"input Y: expected at most {rank} axes, as many as X with a LoD, got {inner}"
        )
    missing = 0 if axis == -1 else max(rank, inner) - axis - min(rank, inner)
    if missing < 0 or axis < -1:
        raise UnsupportedError(
            f"attribute axis={axis}: expected -1 to {abs(rank - inner)} for inputs of {rank} and"
            f" {inner} axes"
        )
    y = y.dense
    if missing:  # append axes to the shorter shape
        new = range(min(rank, inner), min(rank, inner) + missing)
        x, y = (x, y.unsqueeze(*new)) if inner < rank else (x.unsqueeze(*new), y)
    out = getattr(x, row.op)(y, **attributes)
    return (out.Not() if row.type == "not_equal" else out).name


_REDUCTIONS = {row.type: row.op for row in REDUCTIONS}


@paddle(" ".join(_REDUCTIONS))
def reduction(
    X,
    *,
    dim=(0,),
    keep_dim=False,
    reduce_all=False,
    in_dtype=-1,
    out_dtype=DtypeNumber(-1),
    op,
):
    axes = [axis % max(X.rank, 1) for axis in ([dim] if isinstance(dim, int) else dim)]
    if reduce_all or not axes or op.at.type == "mean":
        axes = [*range(X.rank)]
    x = X.dense
    if out_dtype:
        x = x.cast(out_dtype)
    elif op.at.type == "reduce_sum" and X.dtype in (np.int32, np.bool_):
        x = x.cast("int64")
    return x.reduce(_REDUCTIONS[op.at.type], axes, X.rank, keep_dim)


def _attributes(row: Row, op: PaddleOperator) -> dict[str, Any]:
    op.only(**row.only)
    return {
        name: named.ours(op.attribute(named.name, named.default))
        for name, named in row.attributes.items()
    }


# The rules of arithmetic, products and reductions.
#
# Slots and defaults come from the OpMaker classes of Paddle 2.6. The LoD of outputs, and
# differences between Paddle's kernels and their documentation, were measured with 2.6.2.


def _project(x: Any, columns: int, weight: Any) -> Any:
    """Returns x times the matrix ``weight``. Before the product, the axes of x from index
    ``columns`` on are joined.
    """
    rank = x.rank
    if not 0 < columns < rank:
        refuse(f"expected 1 to {rank - 1} leading axes as rows, got {columns}")
    if rank > columns + 1:
        rows = -1 if weight.known is None else weight.known.shape[0]
        x = x.reshape(*[0] * columns, rows)
    return x @ weight


@paddle("mul", scale_x=1.0, scale_y=(1.0,), scale_out=1.0)
def mul(X, Y, *, x_num_col_dims=1, y_num_col_dims=1):
    split, rank = y_num_col_dims, Y.rank
    if not 0 < split < rank:
        refuse(f"attribute y_num_col_dims={split}: expected 1 to {rank - 1} for Y of {rank} axes")
    matrix = Y
    if rank > 2:
        matrix = Y.constant(Y.array.reshape(math.prod(Y.array.shape[:split]), -1))
    out = _project(X, x_num_col_dims, matrix)
    if rank - split > 1:
        out = out.reshape(*[0] * x_num_col_dims, *Y.array.shape[split:])
    return out


# Attributes for the operators that Paddle 3's passes may fuse into an fc. Every saved fc has these
# attributes.
_FUSED: dict[str, Any] = {
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "fused_output_scale": 1.0,
    "fused_reshape2_shape": (),
    "support_int8": False,
}
_ACTIVATIONS = {row.type: row.op for row in ROWS if DEFAULTS.get(row.op.lower()) == ()}
_ACTIVATIONS[""] = ""


@paddle("fc", padding_weights=False, Scale_in=1.0, Scale_weights=(1.0,), Scale_out=1.0, **_FUSED)
def fc(Input, W, Bias=None, *, in_num_col_dims=1, activation_type=OneOf("", _ACTIVATIONS)):
    out = _project(Input, in_num_col_dims, W)
    if Bias:
        out = out + out.constant(Bias.array.reshape(-1))
    return getattr(out, activation_type)() if activation_type else out


_UNFUSED: dict[str, Any] = {
    **{f"fused_{kind}_{side}": () for kind in ("reshape", "transpose") for side in ("X", "Y")},
    **{"fused_reshape_Out": (), "fused_transpose_Out": ()},
    **{"Scale_x": 1.0, "Scale_y": 1.0, "Scale_out": 1.0},
}


def _multiply(X: Any, Y: Any, turned: Sequence[bool], alpha: float, keeps_lod: bool) -> Any:
    """Returns alpha * (X @ Y), with the LoD of X if ``keeps_lod``. ``turned``: whether each factor
    is transposed.
    """
    x, y = (
        each.dense.swap() if turn and each.rank > 1 else each.dense
        for each, turn in zip((X, Y), turned, strict=True)
    )
    if not (keeps_lod and X.ragged):
        return x @ y * alpha
    if X.rank < 2 or Y.rank > X.rank or X.rank == 2 and turned[0]:
        refuse(f"input X: {STALE_LOD}")
    return (x @ y * alpha).under(X)


@paddle("matmul_v2")
def matmul_v2(X, Y, *, trans_x=False, trans_y=False, op):
    """Returns X @ Y. Paddle 2 drops the LoD of X. Paddle 3 keeps the LoD, even if the rows
    change.
    """
    return _multiply(X, Y, (trans_x, trans_y), 1.0, op.version >= 3_000_000)


@paddle("matmul", head_number=1, **_UNFUSED)
def matmul(X, Y, *, transpose_X=False, transpose_Y=False, alpha=1.0, op):
    """Returns alpha * (X @ Y). Unlike matmul_v2 of Paddle 2, keeps the LoD of X."""
    if min(X.rank, Y.rank) < 2 and (transpose_X or transpose_Y):
        refuse(
            f"attributes {transpose_X=}, {transpose_Y=}: expected False for inputs of {X.rank} and"
            f" {Y.rank} axes"
        )
    out = _multiply(X, Y, (transpose_X, transpose_Y), alpha, True)
    scalar = X.rank == Y.rank == 1 and not X.ragged and op.gives_one()
    return out.reshape(1) if scalar else out


@paddle("scale")
def scale(X, *, scale=1.0, bias=0.0, bias_after_scale=True):
    return X * scale + bias if bias_after_scale else (X + bias) * scale


@paddle("dropout")
def dropout(X, Seed=None, *, dropout_prob=0.5, dropout_implementation="downgrade_in_infer", op):
    """Scales the input as in inference, in which ``Seed`` has no effect."""
    op.note_dropout()
    if dropout_implementation == "upscale_in_train":
        return X
    return X * float(np.float32(1) - np.float32(dropout_prob))


@paddle("square rsqrt")
@dygraph("log2 log10")
def formula(X, *, op):
    return FORMULAS[op.at.type](X)


@paddle("swish silu", beta=1.0)
def silu(X):
    return X * X.Sigmoid()


def check_threshold(threshold: float) -> None:
    if threshold < 20:
        refuse(f"attribute {threshold=}: expected 20 or more; below 20 the function jumps")


@paddle("softplus", beta=1.0)
def softplus(X, *, threshold=20.0):
    """Returns softplus(x). Above the threshold Paddle returns x, which equals softplus(x) after
    rounding.
    """
    check_threshold(threshold)
    return X.Softplus()


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


def check_floats(x: PaddleTensor) -> None:
    if x.dtype.kind != "f":
        refuse(f"input {x.slot}: expected floating point, got {x.dtype}; cast it first")


@paddle("pow", FactorTensor="")
def pow_(X, *, factor=1.0):
    check_floats(X)
    return X.Pow(factor)


@paddle("round", decimals=0)
def round_(X, *, op):
    """Rounds to the nearest integer. A value halfway between two integers is rounded away from zero
    in programs of Paddle 2, and to the even integer in programs of Paddle 3.
    """
    if op.attribute("halves_to_even", op.version >= 3_000_000):
        return X.Round()
    return round_half_away(X)


@paddle("sum")
def sum_(*X):
    return X[0].Sum(*(x.dense for x in X[1:]))


@paddle("cumsum", Axis="")
def cumsum(X, *, axis=-1, flatten=False, exclusive=False, reverse=False):
    if exclusive:
        refuse(
            "attribute exclusive=True: expected False; Paddle returns a single element unchanged"
            " instead of 0"
        )
    if flatten and X.ragged:
        refuse(f"attribute flatten=True: {STALE_LOD}")
    x, axis = (X.dense.reshape(-1), 0) if flatten else (X.dense, axis)
    return x.CumSum(axis, reverse=int(reverse)).under(X)


_INTEGERS = {-1: "int64", 2: "int32", 3: "int64"}


@paddle("arg_max arg_min")
def extreme(X, *, axis=-1, dtype=OneOf(-1, _INTEGERS), keepdims=False, flatten=False, op):
    kind, whole = "ArgMax" if op.at.type == "arg_max" else "ArgMin", flatten and keepdims
    if whole and kind == "ArgMin":
        refuse("attributes flatten=True, keepdims=True: expected one of them False")
    out = extreme_index(X.dense, kind, None if flatten else axis, keepdims)
    return (out.reshape(*[1] * X.rank) if whole else out).cast(dtype)


@paddle("top_k")
def top_k(X, K=None, *, k=1):
    return top_k_v2(X, K, k=k)


@paddle("top_k_v2")
def top_k_v2(X, K=None, *, k=1, axis=-1, largest=True, sorted=True):
    """Returns sorted results. If not ``sorted``, Paddle may return them in any order."""
    x = X.dense if axis in (0, -X.rank) else X
    count = K.cast("int64") if K else [k]
    values, places = x.TopK(count, axis=axis, largest=int(largest), outputs=2)
    return {"Out": values, "Indices": places}


@paddle("layer_norm")
def layer_norm(X, Scale=None, Bias=None, *, begin_norm_axis=1, epsilon=1e-5):
    sizes = X.shape[begin_norm_axis:]
    if not 0 < begin_norm_axis < X.rank or None in sizes:
        refuse(
            f"attribute {begin_norm_axis=}: expected 1 to {X.rank - 1}, and known sizes from there"
            f" on, got an input {X.shape}"
        )
    scale = Scale.dense.reshape(*sizes) if Scale else X.fill(sizes, 1)
    bias = [Bias.dense.reshape(*sizes)] if Bias else []
    return X.LayerNormalization(scale, *bias, axis=begin_norm_axis, epsilon=epsilon, outputs=3)[0]


# The rules of operators that create, expand or repeat tensors.
#
# Slots and defaults come from the OpMaker classes of Paddle 2.6. Which LoD an output has was
# measured with 2.6.2.

_MOST = 2**16
"""The maximum number of elements of a constant that is computed while reading. Larger constants are
computed at run time.
"""


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
    """Returns a tensor filled with the first of ``ValueTensor``, ``str_value``, ``value`` that is
    set.
    """
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
    """Returns a filled tensor with one size of ``Input``. The size of axis 0 of a ragged ``Input``
    is its number of sequences.
    """
    source, target = input_dim_idx, output_dim_idx
    filled = np.asarray(float(str_value) if str_value else value)
    if not 0 <= target < len(shape) or source < 0:
        refuse(
            f"attributes input_dim_idx={source}, output_dim_idx={target}: expected 0 or more, and"
            f" an axis of shape={list(shape)}"
        )
    like = Input.SequenceLengths() if Input.ragged and source == 0 else Input
    size = like.Shape(start=source, end=source + 1)
    whole = op.join(shape[:target], size.name, shape[target + 1 :])
    return op.emit("ConstantOfShape", whole, value=filled.astype(dtype).reshape(1))


@paddle("fill_any_like")
def fill_any_like(X, *, dtype=DtypeNumber(-1), value=0.0):
    value = np.asarray(value).astype(dtype or X.dtype).reshape(1)
    return X.dense.Shape().ConstantOfShape(value=value).under(X)


@paddle("assign_value")
def assign_value(*, shape=(), dtype=DtypeNumber(5), values=Elements(), op):
    if math.prod(shape) != len(values):
        refuse(f"attribute shape={shape}: expected {math.prod(shape)} values, got {len(values)}")
    return op.constant(np.asarray(values, dtype).reshape(shape), "values")


@paddle("range")
def range_(Start, End, Step):
    """Returns a range. Start, End and Step have the shape () or (1,)."""
    return Start.dense.Reshape([]).Range(End.dense.Reshape([]), Step.dense.Reshape([]))


@paddle("increment")
def increment(X, *, step=1.0):
    return X.dense.Add(X.constant(np.asarray(step).astype(X.dtype)))


@paddle("expand_v2")
def expand(X, *, shape=Integers("Shape", "expand_shapes_tensor")):
    """Expands X to ``shape``. A size of -1 keeps the size of X."""
    return X.dense.Expand(shape.Equal([-1]).Where([1], shape))


@paddle("expand_as_v2")
def expand_as(X, Y=None, *, target_shape=()):
    """Expands X to the shape of Y, or to ``target_shape`` without Y."""
    return X.dense.Expand(Y.dense.Shape() if Y else target_shape)


@paddle("tile")
def tile(X, *, repeat_times=Integers("RepeatTimes", "repeat_times_tensor"), op):
    """Repeats X along each axis. If the lists of sizes and repeats differ in length, the shorter
    list gets leading ones.
    """
    shape = repeat_times.type.counts
    if len(shape) != 1 or shape[0] is None:
        refuse("input RepeatTimes: expected a list whose length is known")
    if X.ragged:
        refuse(f"input X: {STALE_LOD}")
    more = shape[0] - X.rank
    repeats = op.join([1] * -more, repeat_times.name) if more < 0 else repeat_times
    return (X.unsqueeze(*range(more)) if more > 0 else X).Tile(repeats)


@paddle("expand")
def expand_by_times(X, *, expand_times=Integers("ExpandTimes", "expand_times_tensor"), op):
    """Repeats X along each axis. Keeps the LoD if the attribute repeats no rows."""
    computed = op.variables("ExpandTimes") or op.variables("expand_times_tensor")
    out = X.dense.Tile(expand_times)
    return out if computed or expand_times.known[0] != 1 else out.under(X)


@paddle("tril_triu")
def tril_triu(X, *, lower=True, diagonal=0):
    return X.dense.Trilu(diagonal, upper=int(not lower))


@paddle("sequence_mask")
def sequence_mask(X, MaxLenTensor=None, *, maxlen=-1, out_dtype=DtypeNumber(3)):
    """Returns (..., T), true for steps before the end of each sequence. T is ``maxlen`` or the
    longest length.
    """
    lengths = X.dense
    if MaxLenTensor:
        end = MaxLenTensor.dense.reshape().cast("int64")
    elif maxlen >= 0:
        end = X.constant(np.asarray(maxlen, np.int64))
    else:
        end = lengths.ReduceMax(range(X.rank), keepdims=0).cast("int64")
    steps = count_up(end)
    return steps.Less(lengths.cast("int64").unsqueeze(-1)).cast(out_dtype)


for _row in (*ROWS, Row("not_equal", "Equal", ("X", "Y"))):
    _read = partial(_unary if len(_row.inputs) == 1 else _binary, _row)
    RULES.setdefault(_row.type, _read)  # unless it has its own rule
