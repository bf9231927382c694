"""The rules of layers: projections, embeddings, normalizations, softmax, dropout; reductions too.

Formulas: documentation of MXNet 1.9.1's operators of the same names, in inference.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.core.errors import UnsupportedError


@rule("FullyConnected", "data weight bias?", inferred="first")
def _fully_connected(op: MxnetOperator, x: str, weight: str) -> str:
    """x @ weight.T + bias; ``flatten`` makes a matrix of x, else its last axis is projected."""
    bias = [] if op.flag("no_bias") else [op.value("bias")]
    _check_rows(op, weight, op.integer("num_hidden"))
    if op.flag("flatten", True):
        return op.emit("Gemm", op.matrix(x), weight, *bias, transB=1)
    out = op.emit("MatMul", x, _transposed(op, weight))
    return op.emit("Add", out, *bias) if bias else out


def _check_rows(op: MxnetOperator, weight: str, rows: int) -> None:
    array = op.builder.constants.get(weight)
    if array is not None and (array.ndim != 2 or len(array) != rows):
        raise UnsupportedError(f"input weight: expected ({rows}, I), got {array.shape}")


def _transposed(op: MxnetOperator, weight: str) -> str:
    """Made once for all operators that share the weight."""
    name = f"{weight}/Transpose"
    if name in op.builder.constants:
        return name
    return op.emit("Transpose", weight, perm=(1, 0))


def _size(op: MxnetOperator, table: str, axis: int) -> str:
    return op.emit("Gather", op.sizes_of(table), op.ints(axis), axis=0)


def _clipped(op: MxnetOperator, at: str, table: str, axis: int) -> str:
    """Indices, those outside moved to the ends, as MXNet's CPU kernels do."""
    last = op.emit("Sub", _size(op, table, axis), op.ints(1))
    first = op.ints(0)
    return op.emit("Min", op.emit("Max", at, first), last)


@rule("Embedding", "data weight")
def _embedding(op: MxnetOperator, at: str, weight: str) -> str:
    """Rows of weight; indices come as numbers of any kind, MXNet cuts them towards zero."""
    _check_rows(op, weight, op.integer("input_dim"))
    op.integer("output_dim")
    op.dtype("dtype")
    at = op.cast(at, np.int64)
    return op.emit("Gather", weight, _clipped(op, at, weight, 0), axis=0)


@rule("take", "a indices")
def _take(op: MxnetOperator, table: str, at: str) -> str:
    axis, mode = op.integer("axis", 0), op.text("mode", "clip")
    at = op.cast(at, np.int64)
    if mode == "clip":
        at = _clipped(op, at, table, axis)
    elif mode == "wrap":
        at = op.emit("Mod", at, _size(op, table, axis))
    else:
        raise UnsupportedError(f"attribute mode={mode!r}")
    return op.emit("Gather", table, at, axis=axis)


@rule("one_hot", "indices")
def _one_hot(op: MxnetOperator, at: str) -> str:
    """A negative index gives a row of off, where ONNX would count from the end."""
    at, dtype, depth = op.cast(at, np.int64), op.dtype("dtype"), op.integer("depth")
    values = np.array([op.number("off_value", 0.0), op.number("on_value", 1.0)], dtype)
    made = op.constant(values, "values")
    at = op.emit("Where", op.emit("Less", at, op.ints(0)), op.ints(depth), at)
    return op.emit("OneHot", at, op.ints(depth), made, axis=-1)


@rule("pick", "data index")
def _pick(op: MxnetOperator, x: str, index: str) -> str:
    """One element along an axis for each of the others; an index outside is clipped."""
    axis = op.integer("axis", -1)
    op.only("mode", "clip")
    shape = op.resized(op.sizes_of(x), axis, 1)  # the index may have the axis, or not
    at = op.emit("Reshape", op.cast(index, np.int64), shape)
    out = op.emit("GatherElements", x, _clipped(op, at, x, axis), axis=axis)
    if op.flag("keepdims"):
        return out
    return op.listed(op.emit("Squeeze", out, op.ints(axis)), axis)


@rule("Dropout", "data", inferred="first")
def _dropout(op: MxnetOperator, x: str) -> str:
    if op.text("mode", "training") != "training":
        raise UnsupportedError("attribute mode='always' draws random numbers in inference, too")
    op.sizes("axes")
    if p := op.number("p", 0.5):
        op.note(f"dropout p={p:g} has no effect in inference")
    return x


def _refuse_statistics(op: MxnetOperator) -> None:
    if op.flag("output_mean_var"):
        raise UnsupportedError("attribute output_mean_var: only the first output is computed")


@rule("BatchNorm", "data gamma? beta? moving_mean? moving_var?")
def _batch_norm(op: MxnetOperator, x: str) -> str:
    """(x - mean) / sqrt(var + eps) * gamma + beta, with the statistics that training left."""
    _refuse_statistics(op)
    op.flag("use_global_stats")
    axis, epsilon = op.integer("axis", 1), op.number("eps", 1e-3)
    arrays = {slot: op.array(slot) for slot in ("gamma", "beta", "moving_mean", "moving_var")}
    if op.flag("fix_gamma", True):
        arrays["gamma"] = np.ones_like(arrays["gamma"])
    if axis == 1:
        made = [op.constant(array, slot) for slot, array in arrays.items()]
        return op.emit("BatchNormalization", x, *made, epsilon=epsilon)
    if axis != -1:
        rank = op.known_rank(x, f"attribute axis={axis}")
        if not -rank <= axis < rank:
            raise UnsupportedError(f"attribute axis={axis} of a value of {rank} axes")
        behind = (1,) * (rank - 1 - axis % rank)
        arrays = {slot: array.reshape(-1, *behind) for slot, array in arrays.items()}
    gamma, beta, mean, variance = arrays.values()
    with np.errstate(invalid="ignore", divide="ignore"):  # what a run would give, NaN or infinity
        factor = gamma / np.sqrt(variance + variance.dtype.type(epsilon))
    out = op.emit("Sub", x, op.constant(mean, "mean"))
    out = op.emit("Mul", out, op.constant(factor, "factor"))
    return op.emit("Add", out, op.constant(beta, "beta"))


@rule("LayerNorm", "data gamma beta")
def _layer_norm(op: MxnetOperator, x: str, gamma: str, beta: str) -> str:
    _refuse_statistics(op)
    axis, epsilon = op.integer("axis", -1), op.number("eps", 1e-5)
    if axis != -1 and axis + 1 != op.known_rank(x, f"attribute axis={axis}"):
        raise UnsupportedError(f"attribute axis={axis}: not the last one")
    return op.emit("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)


@rule("L2Normalization", "data")
def _l2_normalization(op: MxnetOperator, x: str) -> str:
    """x / sqrt(sum of squares + eps): over all but the batch, or over axis 1."""
    mode, epsilon = op.text("mode", "instance"), op.number("eps", 1e-10)
    why = f"attribute mode={mode!r}"
    if mode == "spatial" or mode == "instance" and op.known_rank(x, why) != 2:
        raise UnsupportedError(why)
    square = op.emit("ReduceSumSquare", x, op.ints(1), keepdims=1)
    return op.emit("Div", x, op.emit("Sqrt", op.emit("Add", square, op.scalar(epsilon, x))))


@rule("softmax softmin log_softmax", "data length?")
def _softmax(op: MxnetOperator, x: str) -> str:
    axis, temperature = op.integer("axis", -1), op.optional_number("temperature")
    if op.flag("use_length"):
        raise UnsupportedError("attribute use_length")
    dtype = op.text("dtype", "None")
    if temperature not in (None, 1.0):
        x = op.emit("Div", x, op.scalar(temperature or 0.0, x))
    if op.name == "softmin":
        x = op.emit("Neg", x)
    out = op.emit("LogSoftmax" if op.name == "log_softmax" else "Softmax", x, axis=axis)
    return out if dtype == "None" else op.cast(out, op.dtype("dtype"))


@rule("SoftmaxOutput SoftmaxActivation", "data label?")
def _softmax_output(op: MxnetOperator, x: str) -> str:
    """Over axis 1, the last axis, or all that stands behind the batch.

    There oneDNN in MXNet's CPU took the last axis: in SoftmaxActivation always, in SoftmaxOutput
    of four axes.
    """
    op.variables("label")  # for training
    channel = op.text("mode", "instance") == "channel"
    if op.flag("multi_output") or channel:
        return op.emit("Softmax", x, axis=1)
    dtype, rank = op.dtype_of(x), op.rank(x)
    if op.flag("preserve_shape") or rank == 2:
        return op.emit("Softmax", x, axis=-1)
    if op.name == "SoftmaxActivation" or (rank == 4 and dtype != np.float64):
        meanings = "softmax over all that stands behind the batch", "softmax over the last axis"
        if not op.as_documented(*meanings):
            return op.emit("Softmax", x, axis=-1)
    flat, sizes = op.emit("Flatten", x, axis=1), op.sizes_of(x)
    if rank is None and dtype != np.float64 and op.context.semantics != "documented":
        four = op.emit("Equal", op.sizes_of(sizes), op.ints(4))
        ends = [op.emit("Gather", s, op.ints(-1), axis=0) for s in (sizes, op.sizes_of(flat))]
        width = op.emit("Where", four, *ends)
        flat = op.emit("Reshape", flat, op.emit("Concat", op.ints(-1), width, axis=0))
    return op.emit("Reshape", op.emit("Softmax", flat, axis=-1), sizes)


@rule("LinearRegressionOutput MAERegressionOutput LogisticRegressionOutput", "data label?")
def _regression_output(op: MxnetOperator, x: str) -> str:
    op.variables("label")  # for training
    return op.emit("Sigmoid", x) if op.name.startswith("Logistic") else x


REDUCTIONS = "sum mean max min prod _np_sum _npi_mean _np_max _np_min _np_prod"


@rule(REDUCTIONS, "data")
def _reduction(op: MxnetOperator, x: str) -> str:
    axes, keep = op.optional_sizes("axis"), op.flag("keepdims")
    kind = f"Reduce{op.name.rpartition('_')[2].capitalize()}"
    op.check_floats(x)
    if op.numpy:
        for name in ("dtype", "initial"):
            op.only(name, "None")
    if op.flag("exclude") and axes:
        known = op.known_rank(x, "attribute exclude")
        axes = tuple(sorted(set(range(known)) - {axis % known for axis in axes}))
        if not axes:
            return x
    if axes is None or not (axes or op.numpy):
        out = op.emit(kind, x, keepdims=int(keep))
        return out if keep or op.numpy else op.emit("Reshape", out, op.ints(1))
    if not axes:
        return x
    out = op.emit(kind, x, op.ints(*axes), keepdims=int(keep))
    return out if keep else op.listed(out, *axes)


@rule("argmax argmin _npi_argmax _npi_argmin", "data")
def _arg(op: MxnetOperator, x: str) -> str:
    """Legacy: numbers of the input's dtype; NumPy's: int64."""
    axis, keep = op.optional_integer("axis"), op.flag("keepdims")
    kind = "ArgMax" if op.name.endswith("max") else "ArgMin"
    if axis is None:
        if keep:
            raise UnsupportedError("attribute keepdims without an axis")
        out = op.emit(kind, op.emit("Reshape", x, op.ints(-1)), axis=0, keepdims=0)
    else:
        out = op.emit(kind, x, axis=axis, keepdims=int(keep))
    if op.numpy:
        return out
    out = out if keep else op.listed(out, *() if axis is None else (axis,))
    return op.cast(out, op.dtype_of(x))


@rule("dot _np_dot", "lhs rhs")
def _dot(op: MxnetOperator, *pair: str) -> str:
    """The last axis of the left with the first of the right: a matrix product for matrices."""
    flip = op.flag("transpose_a"), op.flag("transpose_b")
    ranks = [op.known_rank(value, "a dot") for value in pair]
    if ranks[1] != 2 or ranks[0] < 2 or (flip[0] and ranks[0] != 2):
        raise UnsupportedError(f"of values of {ranks[0]} and {ranks[1]} axes")
    return _product(op, *pair)


@rule("batch_dot", "lhs rhs")
def _product(op: MxnetOperator, one: str, other: str) -> str:
    if op.flag("transpose_a"):
        one = op.swapped(one, -1, -2)
    if op.flag("transpose_b"):
        other = op.swapped(other, -1, -2)
    return op.emit("MatMul", one, other)


rule("_npi_matmul", "a b")(lambda op, one, other: op.emit("MatMul", one, other))


@rule("_contrib_div_sqrt_dim", "data")
def _div_sqrt_dim(op: MxnetOperator, x: str) -> str:
    op.check_floats(x)
    size = _size(op, x, -1)
    return op.emit("Div", x, op.emit("Sqrt", op.cast(size, op.dtype_of(x))))
