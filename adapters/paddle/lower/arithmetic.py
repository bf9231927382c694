"""The rules of Paddle's dense operators around recurrent layers.

Slots and defaults: the operators' makers in 2.6. Which LoD an output gets, and where the native
kernel differs from its documentation, is measured with 2.6.2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.paddle.lower.operator import DTYPES as COMPUTED
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.table import rule
from onernn.adapters.paddle.messages import DTYPES
from onernn.core.errors import UnsupportedError

_MOST = 2**16
"""Most elements of a constant that is made while reading; larger ones are made at run time."""


def _dtype(op: PaddleOperator, name: str, default: int) -> str:
    number = op.attribute(name, default)
    dtype = DTYPES.get(number, "")
    if dtype not in COMPUTED:
        raise UnsupportedError(f"attribute {name}={number}: {dtype or 'unknown'} numbers")
    return dtype


def _integers(op: PaddleOperator, attribute: str, tensor: str, tensors: str) -> str:
    """A list of int64 from a list of tensors, else from a tensor, else from an attribute."""
    found = op.attribute(attribute, ())
    parts = [op.dense(op.builder.value(name)) for name in op.variables(tensors)]
    whole = op.optional(tensor)
    if parts:
        parts = [op.emit("Reshape", part, op.ints([1])) for part in parts]
        whole = op.emit("Concat", *parts, axis=0)
    elif not whole:
        return op.ints(found)
    return op.emit("Cast", op.emit("Reshape", op.dense(whole), op.ints([-1])), to="int64")


UNARY = {
    **{"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "floor": "Floor", "ceil": "Ceil"},
    **{"reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "softsign": "Softsign"},
    **{"logical_not": "Not", "assign": "Identity", "sign": "Sign"},
}


@rule(*UNARY)
def _unary(op: PaddleOperator) -> None:
    x = op.value("X")
    x = op.dense(x) if op.at.type == "abs" else x  # the one that drops the LoD
    op.give("Out", op.emit(UNARY[op.at.type], x))


@rule("square")
def _square(op: PaddleOperator) -> None:
    op.give("Out", op.emit("Mul", op.value("X"), op.value("X")))


@rule("rsqrt")
def _rsqrt(op: PaddleOperator) -> None:
    op.give("Out", op.emit("Reciprocal", op.emit("Sqrt", op.value("X"))))


@rule("leaky_relu")
def _leaky_relu(op: PaddleOperator) -> None:
    op.give("Out", op.emit("LeakyRelu", op.value("X"), alpha=op.attribute("alpha", 0.02)))


@rule("elu")
def _elu(op: PaddleOperator) -> None:
    op.give("Out", op.emit("Elu", op.value("X"), alpha=op.attribute("alpha", 1.0)))


@rule("hard_sigmoid")
def _hard_sigmoid(op: PaddleOperator) -> None:
    numbers = {"alpha": op.attribute("slope", 0.2), "beta": op.attribute("offset", 0.5)}
    op.give("Out", op.emit("HardSigmoid", op.value("X"), **numbers))


@rule("gelu")
def _gelu(op: PaddleOperator) -> None:
    form = "tanh" if op.attribute("approximate", False) else "none"
    op.give("Out", op.emit("Gelu", op.value("X"), approximate=form))


@rule("swish", "silu")
def _swish(op: PaddleOperator) -> None:
    op.only("beta", 1.0)
    x = op.value("X")
    op.give("Out", op.emit("Mul", x, op.emit("Sigmoid", x)))


@rule("softplus")
def _softplus(op: PaddleOperator) -> None:
    op.only("beta", 1.0)
    op.attribute("threshold", 20.0)  # above it x itself, which is what rounding gives
    if op.attribute("threshold", 20.0) < 20:
        raise UnsupportedError("attribute threshold: below 20 the function jumps")
    op.give("Out", op.emit("Softplus", op.value("X")))


@rule("clip", "relu6")
def _clip(op: PaddleOperator) -> None:
    if op.optional("Min") or op.optional("Max"):
        raise UnsupportedError("bounds that are computed at run time")
    if op.at.type == "relu6":
        low, high = 0.0, op.attribute("threshold", 6.0)
    else:
        low, high = op.attribute("min", 0.0), op.attribute("max", 0.0)
    bounds = [op.builder.constant(np.asarray(v, op.dtype("X")), "bound") for v in (low, high)]
    op.give("Out", op.emit("Clip", op.value("X"), *bounds))


@rule("log_softmax")
def _log_softmax(op: PaddleOperator) -> None:
    x, axis = op.value("X"), op.attribute("axis", -1)
    if op.is_ragged(x) and axis in (0, -len(op.shape("X"))):
        raise UnsupportedError(f"attribute axis={axis}: over the words of all sentences")
    op.give("Out", op.emit("LogSoftmax", x, axis=axis))


@rule("cast")
def _cast(op: PaddleOperator) -> None:
    op.attribute("in_dtype", -1)
    x, dtype = op.value("X"), _dtype(op, "out_dtype", 5)
    op.give("Out", op.emit("Cast", x, to=dtype))


@rule("shape")
def _shape(op: PaddleOperator) -> None:
    op.give("Out", op.emit("Cast", op.emit("Shape", op.value("Input"), depth=0), to="int32"))


def _filling(op: PaddleOperator) -> Any:
    """The value of fill_constant and its like: a text comes before a number."""
    dtype, text = _dtype(op, "dtype", 5), op.attribute("str_value", "")
    number = op.attribute("value", 0.0)
    if text:
        number = float(text)  # also of integers
    op.attribute("force_cpu", False)
    op.attribute("place_type", -1)
    return np.asarray(number).astype(dtype)


@rule("fill_constant")
def _fill_constant(op: PaddleOperator) -> None:
    value = _filling(op)
    if given := op.optional("ValueTensor"):
        value = op.builder.array(given, "ValueTensor").reshape(()).astype(value.dtype)
    shape = _integers(op, "shape", "ShapeTensor", "ShapeTensorList")
    sizes = op.builder.constants.get(shape)
    if sizes is not None and min(sizes, default=0) >= 0 and math.prod(sizes.tolist()) <= _MOST:
        return op.give("Out", op.builder.constant(np.full(sizes, value), "filled"))
    op.give("Out", op.emit("ConstantOfShape", shape, value=value.reshape(1), depth=0))


@rule("fill_constant_batch_size_like")
def _fill_like(op: PaddleOperator) -> None:
    """One size is that of another value; of a ragged one, the number of its sentences."""
    value, like, shape = _filling(op), op.value("Input"), list(op.attribute("shape", ()))
    source, target = op.attribute("input_dim_idx", 0), op.attribute("output_dim_idx", 0)
    if op.is_ragged(like) and source == 0:
        like = op.emit("SequenceLengths", like, depth=0)
    if not 0 <= target < len(shape) or source < 0:
        raise UnsupportedError(f"attribute output_dim_idx={target} of shape {shape}")
    size = op.emit("Shape", like, depth=0, start=source, end=source + 1)
    parts = [op.ints(shape[:target]), size, op.ints(shape[target + 1 :])]
    whole = op.emit("Concat", *parts, axis=0, depth=0)
    op.give("Out", op.emit("ConstantOfShape", whole, value=value.reshape(1), depth=0))


@rule("slice")
def _slice(op: PaddleOperator) -> None:
    x, axes, gone = op.value("Input"), op.attribute("axes", ()), op.attribute("decrease_axis", ())
    op.attribute("infer_flags", ())
    if 0 in axes:
        x = op.dense(x)
    begin = _integers(op, "starts", "StartsTensor", "StartsTensorList")
    end = _integers(op, "ends", "EndsTensor", "EndsTensorList")
    out = op.emit("Slice", x, begin, end, op.ints(axes))
    if gone and op.declared("Out") == (1,) and len(gone) == len(op.shape("Input")):
        out = op.emit("Reshape", out, op.ints([1]))  # before 2.5 there were no scalars
    elif gone:
        out = op.emit("Squeeze", out, op.ints(gone))
    op.give("Out", out)


@rule("stack")
def _stack(op: PaddleOperator) -> None:
    axis, rank = op.attribute("axis", 0), len(op.shape("X"))
    at = op.ints([axis + rank + 1 if axis < 0 else axis])
    first, *others = (op.builder.value(name) for name in op.variables("X"))
    # Under a new first axis Paddle keeps a LoD that does not fit.
    first = op.dense(first) if axis in (0, -rank - 1) else first
    parts = [op.emit("Unsqueeze", part, at) for part in (first, *map(op.dense, others))]
    op.give("Y", op.emit("Concat", *parts, axis=axis))


@rule("split")
def _split(op: PaddleOperator) -> None:
    if op.optional("AxisTensor") or op.variables("SectionsTensorList"):
        raise UnsupportedError("axis or sections that are computed at run time")
    x, shape, axis = op.value("X"), op.shape("X"), op.attribute("axis", 0)
    if axis < 0:  # Python's paddle.split never saves one
        raise UnsupportedError(f"attribute axis={axis}: Paddle 2.6.2 cuts the memory elsewhere")
    sections, parts = list(op.attribute("sections", ())), op.attribute("num", 0)
    outputs = op.outputs.get("Out", ())
    if sections and -1 in sections:
        if shape[axis] is None or sections.count(-1) > 1:
            raise UnsupportedError(f"attribute sections={sections} of {shape}")
        sections[sections.index(-1)] = shape[axis] - sum(sections) - 1
    if (len(sections) or parts) != len(outputs):
        raise UnsupportedError(f"{len(sections) or parts} parts into {len(outputs)} outputs")
    inputs = (op.dense(x) if axis == 0 else x, *([op.ints(sections)] if sections else []))
    made = op.builder.emit_many("Split", inputs, len(outputs), {"axis": axis})
    op.given.update(zip(outputs, made, strict=True))


REDUCTIONS = {
    **{"reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_max": "ReduceMax"},
    **{"reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"},
    **{"reduce_any": "ReduceMax", "reduce_all": "ReduceMin", "mean": "ReduceMean"},
}


@rule(*REDUCTIONS)
def _reduce(op: PaddleOperator) -> None:
    op.attribute("in_dtype", -1)
    rank, keep = len(op.shape("X")), op.attribute("keep_dim", False)
    axes = op.attribute("dim", (0,))
    axes = [axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)]
    if op.attribute("reduce_all", False) or not axes or op.at.type == "mean":
        axes = list(range(rank))
    x = op.dense(op.value("X"))
    if op.attribute("out_dtype", -1) >= 0:
        x = op.emit("Cast", x, to=_dtype(op, "out_dtype", -1))
    elif op.at.type == "reduce_sum" and op.dtype("X") in (np.int32, np.bool_):
        x = op.emit("Cast", x, to="int64")
    out = op.emit(REDUCTIONS[op.at.type], x, op.ints(axes), keepdims=int(keep))
    if not keep and len(axes) == rank and op.declared("Out") == (1,):
        out = op.emit("Reshape", out, op.ints([1]))  # before 2.5 there were no scalars
    op.give("Out", out)


@rule("top_k", "top_k_v2")
def _top_k(op: PaddleOperator) -> None:
    x, rank = op.value("X"), len(op.shape("X"))
    axis = op.attribute("axis", -1) if op.at.type == "top_k_v2" else -1
    x = op.dense(x) if axis in (0, -rank) else x
    k = op.optional("K")
    op.attribute("sorted", True)  # sorted is what any order may be
    count = op.emit("Cast", k, to="int64") if k else op.ints([op.attribute("k", 1)])
    op.attribute("k", 1)
    attributes = {"axis": axis, "largest": int(op.attribute("largest", True))}
    values, at = op.builder.emit_many("TopK", (x, count), 2, attributes)
    op.give("Out", values)
    op.give("Indices", at)


@rule("sum")
def _sum(op: PaddleOperator) -> None:
    first, *others = (op.builder.value(name) for name in op.variables("X"))
    op.give("Out", op.emit("Sum", first, *map(op.dense, others)))


@rule("layer_norm")
def _layer_norm(op: PaddleOperator) -> None:
    x, shape, axis = op.value("X"), op.shape("X"), op.attribute("begin_norm_axis", 1)
    sizes = shape[axis:]
    numbers = [op.optional(slot) for slot in ("Scale", "Bias")]
    if not 0 < axis < len(shape) or None in sizes:
        raise UnsupportedError(f"attribute begin_norm_axis={axis} of an input {shape}")
    parts = [part and op.emit("Reshape", op.dense(part), op.ints(sizes)) for part in numbers]
    if not parts[0]:
        parts[0] = op.builder.constant(np.ones(sizes, op.dtype("X")), "ones")
    attributes = {"axis": axis, "epsilon": op.attribute("epsilon", 1e-5)}
    inputs = (x, *filter(None, parts))
    op.give("Y", op.builder.emit_many("LayerNormalization", inputs, 3, attributes)[0])


@rule("batch_norm")
def _batch_norm(op: PaddleOperator) -> None:
    """Inference: with the statistics that training left."""
    fixed = op.attributes.get("is_test", False) or op.attribute("use_global_stats", False)
    op.attribute("use_global_stats", False)
    op.attribute("momentum", 0.9)
    if not fixed or op.attribute("trainable_statistics", False):
        raise UnsupportedError("saved in training mode: it normalizes by the statistics of a batch")
    op.only("fuse_with_relu", False)
    rank, layout = len(op.shape("X")), op.attribute("data_layout", "NCHW")
    if rank > 2 and layout not in ("NCHW", "AnyLayout"):
        raise UnsupportedError(f"attribute data_layout={layout!r} of {rank} axes")
    numbers = [op.value(slot) for slot in ("Scale", "Bias", "Mean", "Variance")]
    epsilon = op.attribute("epsilon", 1e-5)
    op.give("Y", op.emit("BatchNormalization", op.value("X"), *numbers, epsilon=epsilon))
