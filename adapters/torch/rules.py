"""The rules of aten's operators that compute: on elements, and whole layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import (
    FORMULAS,
    extreme_index,
    pooled,
    pooled_whole,
    recurrent_stack,
    sloped,
)
from onernn.adapters.common.files import pairs
from onernn.adapters.common.lowering import Results
from onernn.adapters.torch.read import Open
from onernn.adapters.torch.table import WEIGHTS, DType, TorchOperator, rule
from onernn.ir.errors import UnsupportedError
from onernn.reorders import torch
from onernn.reorders.layers import PivotLayer

# The rules of operators on each element of tensors, with a second tensor or a number, and of
# sizes, which Python computes with.
#
# Formulas: documentation of torch.NAME. Results have the dtype that the program states.

_PLAIN = {
    "Relu": "relu",
    "Abs": "abs",
    "Neg": "neg",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sign": "sign sgn",
    "Selu": "selu",
}
_OF_FLOATS = {  # integers become floats before
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Sin": "sin",
    "Cos": "cos",
    "Erf": "erf",
    "HardSwish": "hardswish",
}


def _plain(kind: str, op: TorchOperator) -> str:
    return op.emit(kind, op.promoted() if kind in _OF_FLOATS else op.value())


for kind, names in {**_PLAIN, **_OF_FLOATS}.items():
    rule(names)(partial(_plain, kind))


rule("rsqrt")(lambda op: FORMULAS["rsqrt"](op, op.promoted()))
rule("square")(lambda op: FORMULAS["square"](op, op.value()))
rule("silu")(lambda op: FORMULAS["silu"](op, op.value()))


@rule("gelu")
def _gelu(op: TorchOperator) -> str:
    return op.emit("Gelu", op.value(), approximate=op.attribute("approximate", "none"))


@rule("softplus")
def _softplus(op: TorchOperator) -> str:
    """The identity beyond the threshold, where they differ by less than float32 resolves."""
    op.only(beta=1.0)
    if op.attribute("threshold", 20.0) < 17:
        raise UnsupportedError("argument threshold below 17")
    return op.emit("Softplus", op.value())


@rule("hardsigmoid")
def _hardsigmoid(op: TorchOperator) -> str:
    return op.emit("HardSigmoid", op.value(), alpha=1 / 6, beta=0.5)


_BOUNDS = (0, 1, -1, 6)


@rule("hardtanh relu6")
def _hardtanh(op: TorchOperator) -> str:
    low, high = (0.0, 6.0) if op.at.type.startswith("relu6") else (-1.0, 1.0)
    bounds = op.number("min_val", low, _BOUNDS), op.number("max_val", high, _BOUNDS)
    return op.emit("Clip", op.value(), *(op.scalar(each, op.result_dtype()) for each in bounds))


@rule("clamp clamp_min clamp_max")
def _clamp(op: TorchOperator) -> str:
    bounds = [
        op.scalar(op.number(name, plain=_BOUNDS), op.result_dtype()) if op.given(name) else ""
        for name in ("min", "max")
    ]
    return op.emit("Clip", op.promoted(), *bounds)


@rule("leaky_relu")
def _leaky_relu(op: TorchOperator) -> str:
    return op.emit("LeakyRelu", op.value(), alpha=float(op.number("negative_slope", 0.01)))


@rule("elu")
def _elu(op: TorchOperator) -> str:
    op.only(scale=1.0, input_scale=1.0)
    return op.emit("Elu", op.value(), alpha=float(op.number("alpha", 1.0)))


@rule("prelu _prelu_kernel")
def _prelu(op: TorchOperator) -> str:
    """A slope for each channel, which is axis 1."""
    x, slope = op.value(), op.array("weight").reshape(-1)
    return sloped(op, x, slope, op.rank_of(x))


@rule("dropout feature_dropout alpha_dropout native_dropout")
def _dropout(op: TorchOperator) -> str:
    op.attribute("p", 0.5)
    if op.attribute("train", False):
        raise UnsupportedError("exported for training, with dropout; call model.eval() before")
    return op.alias("input")


@rule("glu")
def _glu(op: TorchOperator) -> str:
    axis = op.axis(op.value(), default=-1)
    one, other = op.emit_many("Split", 2, op.value(), axis=axis)
    return op.emit("Mul", one, op.emit("Sigmoid", other))


_TWO = pairs("Add=add Sub=sub Mul=mul Div=div Pow=pow")


def _two(kind: str, op: TorchOperator) -> str:
    """In the dtype of the result, as PyTorch promotes; ``alpha`` scales the second."""
    dtype = op.result_dtype()
    slot = "exponent" if kind == "Pow" else "other"
    one, other = (op.operand(each, dtype, _usual(kind, dtype)) for each in ("self", slot))
    if op.given("alpha") and (alpha := op.number("alpha", 1.0)) != 1:
        other = op.emit("Mul", other, op.scalar(alpha, dtype))
    if op.given("rounding_mode"):
        raise UnsupportedError("argument rounding_mode")
    if kind == "Div" and dtype.kind != "f":
        raise UnsupportedError(f"a quotient that is {dtype}")
    return op.emit(kind, one, other)


def _usual(kind: str, dtype: DType) -> tuple[float, ...]:
    """Numbers that say nothing of a size: 1 - z, or a square; of integers they may."""
    if dtype.kind != "f":
        return ()
    return (2, 0.5) if kind == "Pow" else (1, -1) if kind in ("Add", "Sub") else ()


for kind, name in _TWO.items():
    overloads = (
        ["Tensor_Tensor", "Tensor_Scalar", "Scalar"] if kind == "Pow" else ["Tensor", "Scalar"]
    )
    rule(" ".join(f"{name}.{each}" for each in overloads))(partial(_two, kind))


@rule("rsub.Scalar rsub.Tensor")
def _rsub(op: TorchOperator) -> str:
    op.only(alpha=1.0)
    pair = (
        op.operand(slot, op.result_dtype(), _usual("Sub", op.result_dtype()))
        for slot in ("other", "self")
    )
    return op.emit("Sub", *pair)


@rule("maximum minimum max.other min.other")
def _larger(op: TorchOperator) -> str:
    kind = "Max" if "max" in op.at.type else "Min"
    return op.emit(
        kind, op.operand("self", op.result_dtype()), op.operand("other", op.result_dtype())
    )


@rule("addcmul")
def _addcmul(op: TorchOperator) -> str:
    op.only(value=1.0)
    values = [op.operand(slot, op.result_dtype()) for slot in ("self", "tensor1", "tensor2")]
    return op.emit("Add", values[0], op.emit("Mul", *values[1:]))


@rule("lerp.Tensor lerp.Scalar")
def _lerp(op: TorchOperator) -> str:
    start, end, weight = (op.operand(slot, op.result_dtype()) for slot in ("self", "end", "weight"))
    return op.emit("Add", start, op.emit("Mul", weight, op.emit("Sub", end, start)))


_COMPARISONS = pairs("eq=Equal gt=Greater ge=GreaterOrEqual lt=Less le=LessOrEqual")


def _comparison(kind: str, op: TorchOperator) -> str:
    dtype = _common(op)
    return op.emit(kind, op.operand("self", dtype), op.operand("other", dtype))


def _common(op: TorchOperator) -> DType:
    """What two operands are compared in: a tensor's dtype counts more than a number's."""
    mine = op.dtype_of(op.value())
    if "other" in op.inputs:
        theirs = op.dtype_of(op.value("other"))
        if mine != theirs and 0 in (op.rank_of(op.value()), op.rank_of(op.value("other"))):
            raise UnsupportedError(f"compares {mine} and {theirs}, one of them a scalar")
        if (mine.kind == "f") != (theirs.kind == "f"):
            return mine if mine.kind == "f" else theirs
        return np.promote_types(mine, theirs)
    whole = not isinstance(op.attribute("other", None), float)
    return mine if whole or mine.kind == "f" else np.dtype(np.float32)


for name, kind in _COMPARISONS.items():
    rule(f"{name}.Tensor {name}.Scalar")(partial(_comparison, kind))


@rule("ne.Tensor ne.Scalar")
def _unequal(op: TorchOperator) -> str:
    return op.emit("Not", _comparison("Equal", op))


@rule("logical_not bitwise_not")
def _not(op: TorchOperator) -> str:
    if op.at.type.startswith("bitwise") and op.dtype_of(op.value()) != np.bool_:
        raise UnsupportedError("of bits")
    return op.emit("Not", op.cast(op.value(), bool))


def _logic(kind: str, op: TorchOperator) -> str:
    pair = [op.value(), op.value("other")]
    if op.at.type.startswith(("bitwise", "__")) and {op.dtype_of(x).kind for x in pair} != {"b"}:
        raise UnsupportedError("of bits")
    return op.emit(kind, *(op.cast(x, bool) for x in pair))


for name, kind in pairs("and=And or=Or xor=Xor").items():
    rule(f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor")(partial(_logic, kind))


@rule("where.self where.ScalarOther where.ScalarSelf where.Scalar")
def _where(op: TorchOperator) -> str:
    condition = op.cast(op.value("condition"), bool)
    pair = (op.operand(slot, op.result_dtype(), _BOUNDS[:3]) for slot in ("self", "other"))
    return op.emit("Where", condition, *pair)


@rule("masked_fill.Scalar masked_fill.Tensor")
def _masked_fill(op: TorchOperator) -> str:
    """-inf is a number like others."""
    dtype = op.result_dtype()
    result = None if "value" in op.inputs else op.attribute("value", 0.0)
    finite = isinstance(result, int) or result is None or np.isfinite(result)
    value = op.operand("value", dtype) if finite else op.constant(np.asarray(result, dtype))
    return op.emit("Where", op.value("mask"), value, op.value())


@rule("to.dtype to.dtype_layout to.device to.other _to_copy type_as")
def _to(op: TorchOperator) -> str:
    op.ignore("dtype", "copy")
    op.variables("other")
    x = op.alias()
    return x if op.dtype_of(x) == op.result_dtype() else op.promoted()


@rule(
    "clone contiguous detach detach_ alias lift_fresh lift_fresh_copy lift requires_grad_ positive"
    " _assert_tensor_metadata.not_kept"
)
def _same(op: TorchOperator) -> str:
    return op.alias()


@rule("sym_size.int")
def _sym_size(op: TorchOperator) -> str:
    x = op.value()
    return op.emit("Gather", op.sizes_of(x), op.axis(x), axis=0)


@rule("sym_numel")
def _sym_numel(op: TorchOperator) -> str:
    return op.emit("Size", op.value())


def _of_sizes(kind: str, op: TorchOperator) -> str:
    """Python's arithmetic with sizes, which are not negative; who reads it ties its numbers."""
    pair, numbers = [], list[int]()
    for slot in ("a", "b"):
        result = op.attribute(slot, None)
        if isinstance(result, Open):
            pair.append(op.builder.value(result.name))
            numbers += op.builder.computed.get(result.name, ())
        elif type(result) is int:
            pair.append(op.constant(np.int64(result)))
            numbers.append(result)
        else:
            raise UnsupportedError(f"argument {slot}: no size, and no integer")
    op.builder.computed[op.node.outputs[0]] = numbers
    return op.emit(kind, *pair)


for name, kind in pairs("add=Add sub=Sub mul=Mul floordiv=Div mod=Mod").items():
    rule(f"_operator.{name}")(partial(_of_sizes, kind))
rule("torch.sym_max")(partial(_of_sizes, "Max"))
rule("torch.sym_min")(partial(_of_sizes, "Min"))


# The rules of layers: products, convolutions, norms, softmax; reductions too.
#
# Formulas: documentation of torch.nn.functional, in inference.


@rule("linear")
def _linear(op: TorchOperator) -> str:
    """x @ weight.T + bias."""
    x, weight, bias = op.value("input"), op.value("weight"), op.optional("bias")
    if op.rank_of(weight) != 2:
        raise UnsupportedError(f"a weight of {op.rank_of(weight)} axes")
    op.tie(x, op.rank_of(x) - 1, WEIGHTS)
    if op.rank_of(x) == 2:
        return op.emit("Gemm", x, weight, bias, transB=1)
    out = op.emit("MatMul", x, op.transposed(weight, 1, 0))
    return op.emit("Add", out, bias) if bias else out


@rule("matmul mm bmm mv dot")
def _matmul(op: TorchOperator) -> str:
    second = next(filter(op.given, ("tensor", "other", "mat2")), "vec")
    return op.emit("MatMul", op.value(), op.value(second))


@rule("addmm baddbmm addmv")
def _addmm(op: TorchOperator) -> str:
    first, second = ("mat1", "mat2") if op.at.type == "addmm" else ("batch1", "batch2")
    if op.at.type == "addmv":
        first, second = "mat", "vec"
    op.only(beta=1.0, alpha=1.0)
    product = op.emit("MatMul", op.value(first), op.value(second))
    return op.emit("Add", product, op.value())


@rule("einsum")
def _einsum(op: TorchOperator) -> str:
    op.ignore("path")
    return op.emit("Einsum", *op.values("tensors"), equation=op.attribute("equation", ""))


@rule("softmax.int log_softmax.int _softmax _log_softmax")
def _softmax(op: TorchOperator) -> str:
    op.ignore("dtype")
    op.only(half_to_float=False)
    x = op.promoted()
    kind = "LogSoftmax" if "log" in op.at.type else "Softmax"
    return op.emit(kind, x, axis=op.axis(x))


@rule("layer_norm native_layer_norm")
def _layer_norm(op: TorchOperator) -> str:
    x, count = op.value("input"), len(op.attribute("normalized_shape", []))
    for axis in range(op.rank_of(x) - count, op.rank_of(x)):
        op.tie(x, axis, WEIGHTS)
    op.ignore("cudnn_enable")
    weight, bias = op.optional("weight"), op.optional("bias")
    if not weight:
        sizes = [op.builder.exported(size) for size in op.shape(x)[op.rank_of(x) - count :]]
        if None in sizes:
            raise UnsupportedError("a norm without weights of a size that is open")
        weight = op.filled([int(size or 0) for size in sizes], 1, op.dtype_of(x), "ones")
    epsilon = op.epsilon
    return op.emit("LayerNormalization", x, weight, bias, axis=-count, epsilon=epsilon)


@rule("batch_norm _native_batch_norm_legit_no_training")
def _batch_norm(op: TorchOperator) -> str:
    op.ignore("momentum", "cudnn_enabled")
    if op.attribute("training", False):
        raise UnsupportedError("exported for training; call model.eval() before")
    x, mean, variance = op.value("input"), op.value("running_mean"), op.value("running_var")
    size = np.prod([s or 0 for s in op.builder.type_of(mean).counts], dtype=int)
    weight, bias = (
        op.optional(slot) or op.filled((size,), number, op.dtype_of(x), slot)
        for slot, number in (("weight", 1), ("bias", 0))
    )
    op.tie(x, 1, WEIGHTS)
    epsilon = op.epsilon
    return op.emit("BatchNormalization", x, weight, bias, mean, variance, epsilon=epsilon)


@rule("group_norm")
def _group_norm(op: TorchOperator) -> str:
    op.ignore("cudnn_enabled")
    x, weight, bias = op.value("input"), op.value("weight"), op.value("bias")
    groups, epsilon = op.attribute("num_groups", 1), op.epsilon
    return op.emit("GroupNormalization", x, weight, bias, num_groups=groups, epsilon=epsilon)


@rule("instance_norm")
def _instance_norm(op: TorchOperator) -> str:
    op.ignore("momentum", "cudnn_enabled")
    op.only(use_input_stats=True)
    if op.optional("running_mean") or op.optional("running_var"):
        raise UnsupportedError("statistics that training tracked")
    epsilon = op.epsilon
    values = (op.value("input"), op.value("weight"), op.value("bias"))
    return op.emit("InstanceNormalization", *values, epsilon=epsilon)


@rule("conv1d conv2d conv1d.padding conv2d.padding convolution")
def _convolution(op: TorchOperator) -> str:
    x, weight, bias = op.value("input"), op.value("weight"), op.optional("bias")
    axes = op.rank_of(weight) - 2
    attributes: dict[str, Any] = {
        "strides": op.integers("stride", [1], axes),
        "dilations": op.integers("dilation", [1], axes),
        "group": op.attribute("groups", 1),
    }
    if op.rank_of(x) != axes + 2:
        raise UnsupportedError("an input without batch")
    op.tie(x, 1, WEIGHTS)
    padding = op.attribute("padding", None)
    if isinstance(padding, str):
        attributes["pads"] = _named_padding(op, weight, padding, attributes["dilations"])
    else:
        attributes["pads"] = op.integers("padding", [0], axes) * 2
    op.only(output_padding=[0] * len(op.attribute("output_padding", [])))
    kind = "ConvTranspose" if op.attribute("transposed", False) else "Conv"
    return op.emit(kind, x, weight, bias, **attributes)


def _named_padding(
    op: TorchOperator, weight: str, padding: str, dilations: tuple[int, ...]
) -> tuple[int, ...]:
    """As much on both sides as keeps sizes with "same"; the odd one behind."""
    if padding == "valid":
        return (0, 0) * len(dilations)
    kernel = op.builder.type_of(weight).counts[2:]
    whole = [by * ((size or 1) - 1) for by, size in zip(dilations, kernel, strict=True)]
    return (*(each // 2 for each in whole), *(each - each // 2 for each in whole))


def _pool(kind: str, op: TorchOperator) -> str:
    x = op.value()
    axes = op.rank_of(x) - 2
    kernel = op.integers("kernel_size", (), axes)
    attributes: dict[str, Any] = {
        "strides": op.integers("stride", (), axes) or kernel,
        "pads": op.integers("padding", [0], axes) * 2,
        "ceil_mode": int(op.attribute("ceil_mode", False)),
    }
    if kind == "max":
        attributes["dilations"] = op.integers("dilation", [1], axes)
    elif op.attribute("divisor_override", None) is not None:
        raise UnsupportedError("argument divisor_override")
    counts = kind == "avg" and op.flag("count_include_pad", True)
    return pooled(op, x, kind, kernel, counts_pads=counts, **attributes)


rule("max_pool1d max_pool2d")(partial(_pool, "max"))
rule("avg_pool1d avg_pool2d")(partial(_pool, "avg"))


@rule("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d")
def _adaptive(op: TorchOperator) -> str:
    """All of an axis as one: other sizes take windows of several widths."""
    if set(op.attribute("output_size", [])) != {1}:
        raise UnsupportedError("argument output_size: only 1")
    return pooled_whole(op, op.value(), "max" if "max" in op.at.type else "avg")


def _reduction(kind: str, op: TorchOperator) -> str:
    op.ignore("dtype")
    x = op.promoted()
    axes = op.axes(x)
    if not axes:
        return x
    return op.emit(kind, x, axes, keepdims=op.keeps)


rule("sum sum.dim_IntList")(partial(_reduction, "ReduceSum"))
rule("mean mean.dim")(partial(_reduction, "ReduceMean"))
rule("amax max")(partial(_reduction, "ReduceMax"))
rule("amin min")(partial(_reduction, "ReduceMin"))
rule("prod prod.dim_int")(partial(_reduction, "ReduceProd"))
rule("logsumexp")(partial(_reduction, "ReduceLogSumExp"))


@rule("linalg_vector_norm norm.ScalarOpt_dim")
def _norm(op: TorchOperator) -> str:
    name = "ord" if op.given("ord") else "p"
    return _reduction(f"ReduceL{int(op.one_of(name, 2.0, (1, 2)))}", op)


@rule("_weight_norm")
def _weight_norm(op: TorchOperator) -> str:
    """``v * g / |v|``, the norm over all axes but one, or with -1 over all."""
    v, g, axis = op.value("v"), op.value("g"), op.attribute("dim", 0)
    others = [at for at in range(op.rank_of(v)) if at != axis]
    return op.emit("Mul", v, op.emit("Div", g, op.emit("ReduceL2", v, others, keepdims=1)))


@rule("max.dim min.dim")
def _extreme(op: TorchOperator) -> tuple[str, str]:
    """The values, and where the first of them stands."""
    x, kind = op.value(), op.at.type[:3].capitalize()
    axis, keep = op.axis(x), op.keeps
    return (
        op.emit(f"Reduce{kind}", x, [axis], keepdims=keep),
        op.emit(f"Arg{kind}", x, axis=axis, keepdims=keep),
    )


@rule("argmax argmin")
def _argument(op: TorchOperator) -> str:
    x, kind = op.value(), "ArgMax" if op.at.type == "argmax" else "ArgMin"
    if op.attribute("dim", None) is None:
        op.only(keepdim=False)
        return extreme_index(op, x, kind, None)
    return extreme_index(op, x, kind, op.axis(x), op.flag("keepdim"))


@rule("var.correction std.correction var.dim std.dim")
def _variance(op: TorchOperator) -> str:
    """Of all elements along axes, divided by one less than their number as ``correction`` tells."""
    x = op.value()
    axes, keep = op.axes(x), op.keeps
    correction = op.attribute("correction", 1)
    if not op.attribute("unbiased", True):
        correction = 0
    mean = op.emit("ReduceMean", x, axes, keepdims=1)
    apart = op.emit("Sub", x, mean)
    total = op.emit("ReduceSum", op.emit("Mul", apart, apart), axes, keepdims=keep)
    count = op.emit("ReduceProd", op.emit("Gather", op.sizes_of(x), axes, axis=0), keepdims=0)
    count = op.emit(
        "Sub", op.cast(count, op.result_dtype()), op.scalar(correction, op.result_dtype())
    )
    out = op.emit("Div", total, count)
    return op.emit("Sqrt", out) if op.at.type.startswith("std") else out


@rule("cumsum")
def _cumsum(op: TorchOperator) -> str:
    op.ignore("dtype")
    x = op.promoted()
    return op.emit("CumSum", x, op.axis(x))


@rule("topk")
def _topk(op: TorchOperator) -> tuple[str, ...]:
    op.attribute("sorted", True)
    x = op.value()
    (k,) = [op.number("k")]
    largest = int(op.attribute("largest", True))
    axis = op.axis(x, default=-1)
    return op.emit_many("TopK", 2, x, [k], axis=axis, largest=largest)


@rule("scaled_dot_product_attention")
def _attention(op: TorchOperator) -> str:
    """softmax(q @ k.T * scale + mask) @ v."""
    op.only(is_causal=False, dropout_p=0.0, enable_gqa=False)
    q, k, v = (op.value(slot) for slot in ("query", "key", "value"))
    width = op.builder.type_of(q).counts[-1]
    scale = op.attribute("scale", None)
    if scale is None:
        if width is None:
            raise UnsupportedError("a width that is open")
        scale = width**-0.5
    scores = op.emit("MatMul", q, op.swapped(k))
    scores = op.emit("Mul", scores, op.scalar(scale, op.result_dtype()))
    if mask := op.optional("attn_mask"):
        if op.dtype_of(mask).kind == "b":
            low = op.constant(np.asarray(-np.inf, op.result_dtype()), "low")
            scores = op.emit("Where", mask, scores, low)
        else:
            scores = op.emit("Add", scores, mask)
    return op.emit("MatMul", op.emit("Softmax", scores, axis=-1), v)


# The rules of PyTorch's recurrent operators.
#
# Formulas and layouts: documentation of torch.nn.RNN, LSTM and GRU, and of their cells.


@rule("lstm.input gru.input rnn_tanh.input rnn_relu.input")
def _layer(op: TorchOperator) -> Results:
    """Outputs y (T, N, D*R), h (L*D, N, R) and, of an LSTM, c (L*D, N, O)."""
    layer = _stack(op)
    x, first = op.value("input"), op.attribute("batch_first", False)
    _check_inference(op)
    return _run(op, layer, x, op.variables("hx"), first)


@rule("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def _cell(op: TorchOperator) -> Results:
    """A step: h (N, O) and, of an LSTM, c (N, O)."""
    slots = ("w_ih", "w_hh", "b_ih", "b_hh")
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    state = {
        name: op.array(slot) for name, slot in zip(names, slots, strict=True) if op.given(slot)
    }
    relu = {"nonlinearity": "relu"} if "relu" in op.at.type else {}
    layer = torch.read(state, **relu)
    x = op.unsqueezed(op.value("input"), 0)
    _, *finals = _run(op, layer, x, op.variables("hx"))
    return tuple(op.squeezed(final, 0) for final in finals)


def _stack(op: TorchOperator) -> PivotLayer:
    """The layers of an operator: its parameters come layer by layer, forwards and backwards."""
    names = op.variables("params")
    arrays = [op.builder.array(op.builder.value(name), "params") for name in names]
    layers = op.attribute("num_layers", 1)
    sides = ["", "_reverse"] if op.attribute("bidirectional", False) else [""]
    kinds = ["weight_ih", "weight_hh"]
    if op.attribute("has_biases", True):
        kinds += ["bias_ih", "bias_hh"]
    if layers < 1 or len(arrays) % (layers * len(sides)):
        raise UnsupportedError(f"{len(arrays)} parameters of {layers} layers")
    if len(arrays) == layers * len(sides) * (len(kinds) + 1):
        kinds.append("weight_hr")
    wanted = [f"{kind}_l{at}{side}" for at in range(layers) for side in sides for kind in kinds]
    if len(wanted) != len(arrays):
        raise UnsupportedError(f"{len(arrays)} parameters, expected {', '.join(wanted[:6])}, ...")
    relu = {"nonlinearity": "relu"} if "relu" in op.at.type else {}
    return torch.read(dict(zip(wanted, arrays, strict=True)), **relu)


def _check_inference(op: TorchOperator) -> None:
    dropout, training = op.attribute("dropout", 0.0), op.attribute("train", False)
    if training and dropout:
        raise UnsupportedError("exported for training, with dropout; call model.eval() before")


def _run(
    op: TorchOperator, layer: PivotLayer, x: str, states: list[str], batch_major: bool = False
) -> tuple[str, ...]:
    """y (T, N, D*R), or (N, T, D*R) where batch_major, and the last states (L*D, N, R or O)."""
    spec = layer.spec
    dtype = layer.weights[0].iter.dtype
    op.tie(x, op.rank_of(x) - 1, WEIGHTS)
    if op.dtype_of(x) != dtype:
        raise UnsupportedError(f"its weights are {dtype}, its input is {op.dtype_of(x)}")
    if len(states) not in (0, len(spec.cell.states)):
        raise UnsupportedError(f"{len(states)} initial states of an {spec.cell.name}")
    given = []
    for variable in states:
        value = op.builder.value(variable)
        if op.builder.is_zeros(value):
            given.append("")  # of any batch, whatever size the program gives them
        else:
            state = op.read(value)
            op.tie(state, op.rank_of(state) - 1, WEIGHTS)
            if op.rank_of(state) == 3:
                op.tie(state, 0, WEIGHTS)
            else:  # of a cell
                state = op.unsqueezed(state, 0)
            given.append(state)
    return recurrent_stack(op, x, given, spec, layer.weights, batch_major=batch_major)
