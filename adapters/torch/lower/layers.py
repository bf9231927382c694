"""The rules of layers: products, convolutions, norms, softmax; reductions too.

Formulas: documentation of torch.nn.functional, in inference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.torch.lower.builder import WEIGHTS
from onernn.adapters.torch.lower.operator import TorchOperator, rule
from onernn.core.errors import UnsupportedError


@rule("linear")
def _linear(op: TorchOperator) -> str:
    """x @ weight.T + bias."""
    x, weight, bias = op.value("input"), op.value("weight"), op.optional("bias")
    if op.rank(weight) != 2:
        raise UnsupportedError(f"a weight of {op.rank(weight)} axes")
    op.builder.tie(op.builder.free_in(x, op.rank(x) - 1), WEIGHTS)
    if op.rank(x) == 2:
        return op.emit("Gemm", x, weight, *([bias] if bias else []), transB=1)
    out = op.emit("MatMul", x, op.emit("Transpose", weight, perm=(1, 0)))
    return op.emit("Add", out, bias) if bias else out


@rule("matmul mm bmm mv dot")
def _matmul(op: TorchOperator) -> str:
    pair = ("self", "mat2") if op.given("mat2") else ("self", "vec")
    pair = ("self", "other") if op.given("other") else pair
    pair = ("self", "tensor") if op.given("tensor") else pair
    return op.emit("MatMul", *map(op.value, pair))


@rule("addmm baddbmm addmv")
def _addmm(op: TorchOperator) -> str:
    first, second = ("mat1", "mat2") if op.at.type == "addmm" else ("batch1", "batch2")
    if op.at.type == "addmv":
        first, second = "mat", "vec"
    op.only("beta", 1.0)
    op.only("alpha", 1.0)
    product = op.emit("MatMul", op.value(first), op.value(second))
    return op.emit("Add", product, op.value())


@rule("einsum")
def _einsum(op: TorchOperator) -> str:
    op.attribute("path", None)
    return op.emit("Einsum", *op.values("tensors"), equation=op.attribute("equation", ""))


@rule("softmax.int log_softmax.int _softmax _log_softmax")
def _softmax(op: TorchOperator) -> str:
    op.attribute("dtype", None)
    op.only("half_to_float", False)
    x = op.cast(op.value(), op.made())
    kind = "LogSoftmax" if "log" in op.at.type else "Softmax"
    return op.emit(kind, x, axis=op.axis(x))


@rule("layer_norm native_layer_norm")
def _layer_norm(op: TorchOperator) -> str:
    x, count = op.value("input"), len(op.attribute("normalized_shape", []))
    for axis in range(op.rank(x) - count, op.rank(x)):
        op.builder.tie(op.builder.free_in(x, axis), WEIGHTS)
    op.attribute("cudnn_enable", None)
    weight, bias = op.optional("weight"), op.optional("bias")
    if not weight:
        sizes = [op.builder.exported(size) for size in op.shape(x)[op.rank(x) - count :]]
        if None in sizes:
            raise UnsupportedError("a norm without weights of a size that is open")
        weight = op.constant(np.ones([int(size or 0) for size in sizes], op.dtype_of(x)), "ones")
    epsilon = float(op.attribute("eps", 1e-5))
    given = [weight, bias] if bias else [weight]
    return op.emit("LayerNormalization", x, *given, axis=-count, epsilon=epsilon)


@rule("batch_norm _native_batch_norm_legit_no_training")
def _batch_norm(op: TorchOperator) -> str:
    for ignored in ("momentum", "cudnn_enabled"):
        op.attribute(ignored, None)
    if op.attribute("training", False):
        raise UnsupportedError("exported for training; call model.eval() before")
    x, mean, variance = op.value("input"), op.value("running_mean"), op.value("running_var")
    size = np.prod([s or 0 for s in op.builder.type_of(mean).counts], dtype=int)
    weight, bias = (
        op.optional(slot) or op.constant(np.full(size, number, op.dtype_of(x)), slot)
        for slot, number in (("weight", 1), ("bias", 0))
    )
    op.builder.tie(op.builder.free_in(x, 1), WEIGHTS)
    epsilon = float(op.attribute("eps", 1e-5))
    return op.emit("BatchNormalization", x, weight, bias, mean, variance, epsilon=epsilon)


@rule("group_norm")
def _group_norm(op: TorchOperator) -> str:
    op.attribute("cudnn_enabled", None)
    x, weight, bias = op.value("input"), op.value("weight"), op.value("bias")
    groups, epsilon = op.attribute("num_groups", 1), float(op.attribute("eps", 1e-5))
    return op.emit("GroupNormalization", x, weight, bias, num_groups=groups, epsilon=epsilon)


@rule("instance_norm")
def _instance_norm(op: TorchOperator) -> str:
    for ignored in ("momentum", "cudnn_enabled"):
        op.attribute(ignored, None)
    op.only("use_input_stats", True)
    if op.optional("running_mean") or op.optional("running_var"):
        raise UnsupportedError("statistics that training tracked")
    epsilon = float(op.attribute("eps", 1e-5))
    values = (op.value("input"), op.value("weight"), op.value("bias"))
    return op.emit("InstanceNormalization", *values, epsilon=epsilon)


@rule("conv1d conv2d conv1d.padding conv2d.padding convolution")
def _convolution(op: TorchOperator) -> str:
    x, weight, bias = op.value("input"), op.value("weight"), op.optional("bias")
    axes = op.rank(weight) - 2
    given: dict[str, Any] = {
        "strides": tuple(op.integers("stride", [1], axes)),
        "dilations": tuple(op.integers("dilation", [1], axes)),
        "group": op.attribute("groups", 1),
    }
    if op.rank(x) != axes + 2:
        raise UnsupportedError("an input without batch")
    op.builder.tie(op.builder.free_in(x, 1), WEIGHTS)
    padding = op.attribute("padding", None)
    if isinstance(padding, str):
        given["pads"] = _named_padding(op, weight, padding, given["dilations"])
    else:
        given["pads"] = tuple(op.integers("padding", [0], axes)) * 2
    op.only("output_padding", [0] * len(op.attribute("output_padding", [])))
    if op.attribute("transposed", False):
        return op.emit("ConvTranspose", x, weight, *([bias] if bias else []), **given)
    return op.emit("Conv", x, weight, *([bias] if bias else []), **given)


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
    axes = op.rank(x) - 2
    kernel = op.integers("kernel_size", (), axes)
    given: dict[str, Any] = {
        "kernel_shape": tuple(kernel),
        "strides": tuple(op.integers("stride", (), axes) or kernel),
        "pads": tuple(op.integers("padding", [0], axes)) * 2,
        "ceil_mode": int(op.attribute("ceil_mode", False)),
    }
    if kind == "MaxPool":
        return op.emit(kind, x, dilations=tuple(op.integers("dilation", [1], axes)), **given)
    if op.attribute("divisor_override", None) is not None:
        raise UnsupportedError("argument divisor_override")
    count = int(op.attribute("count_include_pad", True))
    return op.emit(kind, x, count_include_pad=count, **given)


rule("max_pool1d max_pool2d")(partial(_pool, "MaxPool"))
rule("avg_pool1d avg_pool2d")(partial(_pool, "AveragePool"))


@rule("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d")
def _adaptive(op: TorchOperator) -> str:
    """All of an axis as one: other sizes take windows of several widths."""
    if set(op.attribute("output_size", [])) != {1}:
        raise UnsupportedError("argument output_size: only 1")
    return op.emit("GlobalMaxPool" if "max" in op.at.type else "GlobalAveragePool", op.value())


def _reduction(kind: str, op: TorchOperator) -> str:
    op.attribute("dtype", None)
    x = op.cast(op.value(), op.made())
    axes = op.axes(x)
    if not axes:
        return x
    return op.emit(kind, x, op.ints(*axes), keepdims=int(op.attribute("keepdim", False)))


rule("sum sum.dim_IntList")(partial(_reduction, "ReduceSum"))
rule("mean mean.dim")(partial(_reduction, "ReduceMean"))
rule("amax max")(partial(_reduction, "ReduceMax"))
rule("amin min")(partial(_reduction, "ReduceMin"))
rule("prod prod.dim_int")(partial(_reduction, "ReduceProd"))
rule("logsumexp")(partial(_reduction, "ReduceLogSumExp"))


@rule("linalg_vector_norm norm.ScalarOpt_dim")
def _norm(op: TorchOperator) -> str:
    name = "ord" if op.given("ord") else "p"
    power = op.attribute(name, 2.0)
    if power not in (1, 2):
        raise UnsupportedError(f"argument {name}={power}: only 1 and 2")
    return _reduction(f"ReduceL{int(power)}", op)


@rule("_weight_norm")
def _weight_norm(op: TorchOperator) -> str:
    """``v * g / |v|``, the norm over all axes but one, or with -1 over all."""
    v, g, axis = op.value("v"), op.value("g"), op.attribute("dim", 0)
    others = [at for at in range(op.rank(v)) if at != axis]
    return op.emit(
        "Mul", v, op.emit("Div", g, op.emit("ReduceL2", v, op.ints(*others), keepdims=1))
    )


@rule("max.dim min.dim")
def _extreme(op: TorchOperator) -> tuple[str, str]:
    """The values, and where the first of them stands."""
    x, kind = op.value(), op.at.type[:3].capitalize()
    axis, keep = op.axis(x), int(op.attribute("keepdim", False))
    return (
        op.emit(f"Reduce{kind}", x, op.ints(axis), keepdims=keep),
        op.emit(f"Arg{kind}", x, axis=axis, keepdims=keep),
    )


@rule("argmax argmin")
def _argument(op: TorchOperator) -> str:
    x, kind = op.value(), "ArgMax" if op.at.type == "argmax" else "ArgMin"
    if op.attribute("dim", None) is None:
        op.only("keepdim", False)
        flat = op.emit("Reshape", x, op.ints(-1))
        return op.emit(kind, flat, axis=0, keepdims=0)
    return op.emit(kind, x, axis=op.axis(x), keepdims=int(op.attribute("keepdim", False)))


@rule("var.correction std.correction var.dim std.dim")
def _variance(op: TorchOperator) -> str:
    """Of all elements along axes, divided by one less than their number as ``correction`` tells."""
    x = op.value()
    axes, keep = op.axes(x), int(op.attribute("keepdim", False))
    correction = op.attribute("correction", 1)
    if not op.attribute("unbiased", True):
        correction = 0
    mean = op.emit("ReduceMean", x, op.ints(*axes), keepdims=1)
    apart = op.emit("Sub", x, mean)
    total = op.emit("ReduceSum", op.emit("Mul", apart, apart), op.ints(*axes), keepdims=keep)
    count = op.emit(
        "ReduceProd", op.emit("Gather", op.sizes_of(x), op.ints(*axes), axis=0), keepdims=0
    )
    count = op.emit("Sub", op.cast(count, op.made()), op.scalar(correction, op.made()))
    out = op.emit("Div", total, count)
    return op.emit("Sqrt", out) if op.at.type.startswith("std") else out


@rule("cumsum")
def _cumsum(op: TorchOperator) -> str:
    op.attribute("dtype", None)
    x = op.cast(op.value(), op.made())
    return op.emit("CumSum", x, op.constant(np.int64(op.axis(x)), "axis"))


@rule("topk")
def _topk(op: TorchOperator) -> tuple[str, ...]:
    op.attribute("sorted", True)
    x = op.value()
    (k,) = [op.number("k")]
    largest = int(op.attribute("largest", True))
    axis = op.axis(x, default=-1)
    return op.emit_many("TopK", 2, x, op.ints(k), axis=axis, largest=largest)


@rule("scaled_dot_product_attention")
def _attention(op: TorchOperator) -> str:
    """softmax(q @ k.T * scale + mask) @ v."""
    op.only("is_causal", False)
    op.only("dropout_p", 0.0)
    op.only("enable_gqa", False)
    q, k, v = (op.value(slot) for slot in ("query", "key", "value"))
    width = op.builder.type_of(q).counts[-1]
    scale = op.attribute("scale", None)
    if scale is None:
        if width is None:
            raise UnsupportedError("a width that is open")
        scale = width**-0.5
    perm = [*range(op.rank(k))]
    perm[-1], perm[-2] = perm[-2], perm[-1]
    scores = op.emit("MatMul", q, op.emit("Transpose", k, perm=tuple(perm)))
    scores = op.emit("Mul", scores, op.scalar(scale, op.made()))
    if mask := op.optional("attn_mask"):
        if op.dtype_of(mask).kind == "b":
            low = op.constant(np.asarray(-np.inf, op.made()), "low")
            scores = op.emit("Where", mask, scores, low)
        else:
            scores = op.emit("Add", scores, mask)
    return op.emit("MatMul", op.emit("Softmax", scores, axis=-1), v)
