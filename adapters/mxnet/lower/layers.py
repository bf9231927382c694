"""The rules of layers: projections, embeddings, normalizations, softmax, dropout; reductions too.

Formulas: documentation of MXNet 1.9.1's operators of the same names, in inference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onernn.adapters.mxnet.lower.operator import MxnetOperator
from onernn.adapters.mxnet.lower.rules import rule
from onernn.core.errors import UnsupportedError


@rule("FullyConnected", "data weight bias", inferred="first")
def _fully_connected(op: MxnetOperator) -> str:
    """x @ weight.T + bias; ``flatten`` makes a matrix of x, else its last axis is projected."""
    x, weight = op.value("data"), op.value("weight")
    bias = "" if op.flag("no_bias") else op.value("bias")
    _check_rows(op, weight, op.integer("num_hidden"))
    if op.flag("flatten", True):
        matrix = x if op.rank(x) == 2 else op.emit("Flatten", x, axis=1)
        inputs = (matrix, weight, bias) if bias else (matrix, weight)
        return op.emit("Gemm", *inputs, transB=1)
    out = op.emit("MatMul", x, _transposed(op, weight))
    return op.emit("Add", out, bias) if bias else out


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


def _indices(op: MxnetOperator, slot: str) -> str:
    """Indices come as numbers of any kind; MXNet cuts them towards zero."""
    return op.cast(op.value(slot), np.int64)


def _clipped(op: MxnetOperator, at: str, table: str, axis: int) -> str:
    size = op.emit("Gather", op.sizes_of(table), op.ints(axis), axis=0)
    last = op.emit("Sub", size, op.ints(1))
    first = op.ints(0)
    return op.emit("Min", op.emit("Max", at, first), last)


@rule("Embedding", "data weight")
def _embedding(op: MxnetOperator) -> str:
    """Rows of weight; an index outside is clipped, as MXNet's CPU kernel does."""
    weight, at = op.value("weight"), _indices(op, "data")
    _check_rows(op, weight, op.integer("input_dim"))
    op.integer("output_dim")
    op.dtype("dtype")
    at = _clipped(op, at, weight, 0)
    return op.emit("Gather", weight, at, axis=0)


@rule("take", "a indices")
def _take(op: MxnetOperator) -> str:
    table, axis, mode = op.value("a"), op.integer("axis", 0), op.text("mode", "clip")
    at = _indices(op, "indices")
    if mode == "clip":
        at = _clipped(op, at, table, axis)
    elif mode == "wrap":
        size = op.emit("Gather", op.sizes_of(table), op.ints(axis), axis=0)
        at = op.emit("Mod", at, size)
    else:
        raise UnsupportedError(f"attribute mode={mode!r}")
    return op.emit("Gather", table, at, axis=axis)


@rule("one_hot", "indices")
def _one_hot(op: MxnetOperator) -> str:
    at, dtype = _indices(op, "indices"), op.dtype("dtype")
    values = np.array([op.number("off_value", 0.0), op.number("on_value", 1.0)], dtype)
    made = op.constant(values, "values")
    # A negative index gives a row of off, where ONNX would count from the end.
    depth = op.integer("depth")
    outside = op.emit("Less", at, op.ints(0))
    at = op.emit("Where", outside, op.ints(depth), at)
    return op.emit("OneHot", at, op.ints(depth), made, axis=-1)


@rule("pick", "data index")
def _pick(op: MxnetOperator) -> str:
    """One element along an axis for each of the others; an index outside is clipped."""
    x, axis = op.value("data"), op.integer("axis", -1)
    op.only("mode", "clip")
    shape = op.resized(op.sizes_of(x), axis, 1)  # the index may have the axis, or not
    at = op.emit("Reshape", _indices(op, "index"), shape)
    out = op.emit("GatherElements", x, _clipped(op, at, x, axis), axis=axis)
    if op.flag("keepdims"):
        return out
    return op.listed(op.emit("Squeeze", out, op.ints(axis)))


@rule("Dropout", "data", inferred="first")
def _dropout(op: MxnetOperator) -> str:
    if op.text("mode", "training") != "training":
        raise UnsupportedError("attribute mode='always' draws random numbers in inference, too")
    op.sizes("axes")
    if p := op.number("p", 0.5):
        op.note(f"dropout p={p:g} has no effect in inference")
    return op.value("data")


@rule("BatchNorm", "data gamma beta moving_mean moving_var")
def _batch_norm(op: MxnetOperator) -> str:
    """(x - mean) / sqrt(var + eps) * gamma + beta, with the statistics that training left."""
    if op.flag("output_mean_var"):
        raise UnsupportedError("attribute output_mean_var: only the first output is computed")
    op.flag("use_global_stats")
    x, axis, epsilon = op.value("data"), op.integer("axis", 1), op.number("eps", 1e-3)
    slots = ("gamma", "beta", "moving_mean", "moving_var")
    gamma, beta, mean, variance = (op.array(slot) for slot in slots)
    if op.flag("fix_gamma", True):
        gamma = np.ones_like(gamma)
    names = (gamma, beta, mean, variance)
    if axis == 1:
        made = [op.constant(a, s) for s, a in zip(slots, names, strict=True)]
        return op.emit("BatchNormalization", x, *made, epsilon=epsilon)
    if axis != -1 and axis + 1 != op.known_rank(x, f"attribute axis={axis}"):
        raise UnsupportedError(f"attribute axis={axis}: neither 1 nor the last one")
    factor = gamma / np.sqrt(variance + variance.dtype.type(epsilon))
    out = op.emit("Sub", x, op.constant(mean, "mean"))
    out = op.emit("Mul", out, op.constant(factor, "factor"))
    return op.emit("Add", out, op.constant(beta, "beta"))


@rule("LayerNorm", "data gamma beta")
def _layer_norm(op: MxnetOperator) -> str:
    if op.flag("output_mean_var"):
        raise UnsupportedError("attribute output_mean_var: only the first output is computed")
    x, axis = op.value("data"), op.integer("axis", -1)
    if axis != -1 and axis + 1 != op.known_rank(x, f"attribute axis={axis}"):
        raise UnsupportedError(f"attribute axis={axis}: not the last one")
    scale, epsilon = (op.value("gamma"), op.value("beta")), op.number("eps", 1e-5)
    return op.emit("LayerNormalization", x, *scale, axis=-1, epsilon=epsilon)


@rule("L2Normalization", "data")
def _l2_normalization(op: MxnetOperator) -> str:
    """x / sqrt(sum of squares + eps): over all but the batch, or over axis 1."""
    x, mode, epsilon = op.value("data"), op.text("mode", "instance"), op.number("eps", 1e-10)
    if (
        mode == "spatial"
        or mode == "instance"
        and op.known_rank(x, f"attribute mode={mode!r}") != 2
    ):
        raise UnsupportedError(f"attribute mode={mode!r}")
    square = op.emit("ReduceSumSquare", x, op.ints(1), keepdims=1)
    below = op.emit("Sqrt", op.emit("Add", square, op.scalar(epsilon, x)))
    return op.emit("Div", x, below)


def _softmax(kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        x, axis, temperature = (
            op.value("data"),
            op.integer("axis", -1),
            op.optional_number("temperature"),
        )
        if op.flag("use_length"):
            raise UnsupportedError("attribute use_length")
        dtype = op.text("dtype", "None")
        if temperature not in (None, 1.0):
            x = op.emit("Div", x, op.scalar(temperature or 0.0, x))
        if op.name == "softmin":
            x = op.emit("Neg", x)
        out = op.emit(kind, x, axis=axis)
        return out if dtype == "None" else op.cast(out, op.dtype("dtype"))

    return lower


rule("softmax softmin", "data length")(_softmax("Softmax"))
rule("log_softmax", "data length")(_softmax("LogSoftmax"))


@rule("SoftmaxOutput SoftmaxActivation", "data label")
def _softmax_output(op: MxnetOperator) -> str:
    """Over axis 1, the last axis, or all that stands behind the batch.

    There oneDNN in MXNet's CPU took the last axis: in SoftmaxActivation always, in SoftmaxOutput
    of four axes.
    """
    x = op.value("data")
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


@rule("LinearRegressionOutput MAERegressionOutput LogisticRegressionOutput", "data label")
def _regression_output(op: MxnetOperator) -> str:
    op.variables("label")  # for training
    x = op.value("data")
    return op.emit("Sigmoid", x) if op.name.startswith("Logistic") else x


def _may_be_all(axes: tuple[int, ...]) -> bool:
    """Whether a value may have these axes and no others."""
    return max(axes) < len(axes) and min(axes) >= -len(axes)


REDUCTIONS = {"sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod"}


def _reduces(kind: str) -> Callable[[MxnetOperator], str]:
    def lower(op: MxnetOperator) -> str:
        x, axes, keep = op.value("data"), op.optional_sizes("axis"), op.flag("keepdims")
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
            out = op.emit(f"Reduce{kind}", x, keepdims=int(keep))
            return out if keep or op.numpy else op.emit("Reshape", out, op.ints(1))
        if not axes:
            return x
        out = op.emit(f"Reduce{kind}", x, op.ints(*axes), keepdims=int(keep))
        return op.listed(out) if not keep and _may_be_all(axes) else out

    return lower


for name, kind in REDUCTIONS.items():
    rule(f"{name} {'_npi_mean' if name == 'mean' else f'_np_{name}'}", "data")(_reduces(kind))


@rule("argmax argmin _npi_argmax _npi_argmin", "data")
def _arg(op: MxnetOperator) -> str:
    """Legacy: numbers of the input's dtype; NumPy's: int64."""
    x, axis, keep = op.value("data"), op.optional_integer("axis"), op.flag("keepdims")
    kind = "ArgMax" if op.name.endswith("max") else "ArgMin"
    if axis is None:
        if keep:
            raise UnsupportedError("attribute keepdims without an axis")
        flat = op.emit("Reshape", x, op.ints(-1))
        out = op.emit(kind, flat, axis=0, keepdims=0)
    else:
        out = op.emit(kind, x, axis=axis, keepdims=int(keep))
    if op.numpy:
        return out
    if not keep and (axis is None or _may_be_all((axis,))):
        out = op.listed(out)
    return op.cast(out, op.dtype_of(x))


@rule("dot _np_dot", "lhs rhs")
def _dot(op: MxnetOperator) -> str:
    """The last axis of the left with the first of the right: a matrix product for matrices."""
    one, other = op.value("lhs"), op.value("rhs")
    flip = op.flag("transpose_a"), op.flag("transpose_b")
    ranks = [op.known_rank(value, "a dot") for value in (one, other)]
    if ranks[1] != 2 or ranks[0] < 2 or (flip[0] and ranks[0] != 2):
        raise UnsupportedError(f"of values of {ranks[0]} and {ranks[1]} axes")
    pair = [op.swapped(v, 0, 1) if turn else v for v, turn in zip((one, other), flip, strict=True)]
    return op.emit("MatMul", *pair)


@rule("batch_dot", "lhs rhs")
def _batch_dot(op: MxnetOperator) -> str:
    one, other = op.value("lhs"), op.value("rhs")
    if op.flag("transpose_a"):
        one = op.swapped(one, -1, -2)
    if op.flag("transpose_b"):
        other = op.swapped(other, -1, -2)
    return op.emit("MatMul", one, other)


@rule("_npi_matmul", "a b")
def _matmul(op: MxnetOperator) -> str:
    one, other = op.value("a"), op.value("b")
    return op.emit("MatMul", one, other)


@rule("_contrib_div_sqrt_dim", "data")
def _div_sqrt_dim(op: MxnetOperator) -> str:
    x = op.value("data")
    op.check_floats(x)
    size = op.emit("Gather", op.sizes_of(x), op.ints(-1), axis=0)
    return op.emit("Div", x, op.emit("Sqrt", op.cast(size, op.dtype_of(x))))
