"""The rules of aten's operators that compute: elementwise operators and whole layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.common import bodies
from onernn.adapters.common.bodies import (
    FORMULAS,
    each_axis,
    pool_whole,
    pool_windows,
    recurrent_stack,
    same_pads,
    slopes,
    truncate,
)
from onernn.adapters.common.files import pairs
from onernn.adapters.common.signatures import refuse
from onernn.adapters.torch.read import Open
from onernn.adapters.torch.spectra import multiply_complex
from onernn.adapters.torch.table import (
    END,
    FIX_SIZE,
    WEIGHTS,
    AnySize,
    Axis,
    Number,
    Scalar,
    Sizes,
    TorchTensor,
    torch,
)
from onernn.ops import OPERATORS
from onernn.reorders import torch as layout
from onernn.reorders.layers import PivotLayer

# The rules of elementwise operators with one or two operands, and of Python's arithmetic with
# sizes.
#
# Formulas: documentation of torch.NAME. Results have the dtype that the program states.

_KINDS = {kind.lower(): kind for kind in OPERATORS}


@torch("""
    relu neg floor ceil selu sigmoid tanh exp log sqrt reciprocal sin cos erf hardswish atan
    """)
def plain(self, *, op):
    return getattr(self.promote(), _KINDS[op.name])()


@torch("sign sgn")
def sign(self):
    if self.dtype.kind == "b":
        return self
    return self.Equal(self).Where(self.Sign(), self.scalar(0))  # 0 for NaN


@torch("round")
def round_(self):
    return self if self.dtype.kind != "f" else self.Round()


@torch("square rsqrt log2 log10 silu mish log_sigmoid log_sigmoid_forward")
def formula(self, *, op):
    """The second output of log_sigmoid_forward is only for training."""
    return FORMULAS[op.name.removesuffix("_forward")](self.promote())


@torch("log1p")
def log1p(self):
    """Returns log(1 + x), computed as log(u) + (x - (u - 1)) / u with u = 1 + x, rounded.

    If u - 1 equals x, for example for -1 and infinity, the result is log(u).
    """
    x = self.promote()
    total = x + 1
    whole, log = total - 1, total.Log()
    return whole.Equal(x).Where(log, log + (x - whole) / total)


@torch("expm1")
def expm1(self):
    """Returns exp(x) - 1, which is tanh(x / 2) * (exp(x) + 1)."""
    x = self.promote()
    return (x * 0.5).Tanh() * (x.Exp() + 1)


@torch("exp2")
def exp2(self):
    x = self.promote()
    return x.scalar(2).Pow(x)


@torch("logaddexp")
def logaddexp(self, other):
    """Returns log(exp(x) + exp(y)): the larger operand plus log(1 + exp(-|x - y|)).

    If the operands are equal, even infinite, the result is the operand plus log(2).
    """
    x, y = self.promote(), other.promote()
    high, low = x.Max(y), x.Min(y)
    more = high.Equal(low).Where(high.scalar(math.log(2)), (low - high).Softplus())
    return high + more


@torch("trunc")
def trunc(self):
    x = self.promote()
    return x if x.dtype.kind != "f" else truncate(x)


@torch("isnan isfinite isinf isposinf isneginf")
def is_special(self, *, op):
    if self.dtype.kind != "f":
        return self.Equal(self) if op.name == "isfinite" else self.Equal(self).Not()
    match op.name:
        case "isnan":
            return self.IsNaN()
        case "isfinite":
            return self.Abs().Less(np.inf)
    x = self.Abs() if op.name == "isinf" else self
    return x.Equal(-np.inf if op.name == "isneginf" else np.inf)


@torch("nan_to_num")
def nan_to_num(self, *, nan=Scalar(0.0), posinf=Scalar(None), neginf=Scalar(None)):
    if self.dtype.kind != "f":
        return self
    most = float(np.finfo(self.dtype).max)
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    x = self.IsNaN().Where(self.scalar(nan), self)
    x = self.Equal(np.inf).Where(self.scalar(high), x)
    return self.Equal(-np.inf).Where(self.scalar(low), x)


@torch("tan")
def tan(self):
    x = self.promote()
    return x.Sin() / x.Cos()


@torch("celu")
def celu(self, *, alpha=Scalar(1.0)):
    return self.Celu(alpha=float(alpha))


@torch("threshold")
def threshold(self, *, threshold=Scalar(), value=Scalar()):
    return self.LessOrEqual(self.scalar(threshold)).Where(self.scalar(value), self)


@torch("softshrink")
def softshrink(self, *, lambd=Scalar(0.5)):
    return self.Sub(self.Clip(self.scalar(-lambd), self.scalar(lambd)))


@torch("hardshrink")
def hardshrink(self, *, lambd=Scalar(0.5)):
    inside = self.Abs().LessOrEqual(self.scalar(lambd))
    return inside.Where(self.scalar(0), self)


@torch("gelu")
def gelu(self, *, approximate="none"):
    return self.Gelu(approximate=approximate)


@torch("softplus", beta=1.0)
def softplus(self, *, threshold=20.0):
    """Ignores the threshold, because above 17 softplus(x) equals x in float32."""
    if threshold < 17:
        refuse(f"argument threshold={threshold}: expected 17 or more, or the results differ")
    return self.Softplus()


@torch("hardsigmoid")
def hardsigmoid(self):
    return self.HardSigmoid(alpha=1 / 6, beta=0.5)


_BOUNDS = (0, 1, -1, 6)


@torch("hardtanh")
def hardtanh(self, *, min_val=Scalar(-1.0, _BOUNDS), max_val=Scalar(1.0, _BOUNDS)):
    return self.Clip(self.scalar(min_val), self.scalar(max_val))


@torch("relu6")
def relu6(self):
    return self.Clip(self.scalar(0), self.scalar(6))


@torch("clamp clamp_min clamp_max clamp.Tensor clamp_min.Tensor clamp_max.Tensor")
def clamp(self, min=None, max=None):
    x = self.promote()
    low, high = (each.promote(*_BOUNDS) if each else None for each in (min, max))
    if all(each is None or each.rank == 0 for each in (low, high)):
        return x.Clip(low, high)
    x = x.Max(low) if low else x
    return x.Min(high) if high else x


@torch("leaky_relu")
def leaky_relu(self, *, negative_slope=Scalar(0.01)):
    return self.LeakyRelu(alpha=float(negative_slope))


@torch("elu", scale=1.0, input_scale=1.0)
def elu(self, *, alpha=Scalar(1.0)):
    return self.Elu(alpha=float(alpha))


@torch("prelu _prelu_kernel")
def prelu(self, weight):
    return slopes(self, weight.array.reshape(-1))


@torch("native_dropout", views="dropout feature_dropout alpha_dropout")
def dropout(input, *, p=0.5, train=False):
    if train:
        refuse("exported for training, with dropout; call model.eval() before the export")
    return input


@torch("glu")
def glu(self, *, dim=Axis(-1)):
    one, other = self.Split(axis=dim, outputs=2)
    return one * other.Sigmoid()


def _usual(x: TorchTensor, *numbers: float) -> tuple[float, ...]:
    """Returns the ``numbers`` that cannot have come from an input size: all for a float result,
    none for an integer result.
    """
    return numbers if x.op.result_dtype().kind == "f" else ()


@torch("add.Tensor add.Scalar sub.Tensor sub.Scalar")
def add(self, other, *, alpha=Scalar(1.0), op):
    usual = _usual(self, 1, -1)
    x, scaled = self.promote(*usual), other.promote(*usual) * alpha
    return x + scaled if op.name == "add" else x - scaled


@torch("rsub.Scalar rsub.Tensor", alpha=1.0)
def rsub(self, other):
    return other.promote(*_usual(self, 1, -1)) - self.promote()


@torch("mul.Tensor mul.Scalar", complex=True)
def mul(self, other, *, op):
    if op.is_complex("self") or op.is_complex("other"):
        return multiply_complex(self, other)
    return self.promote() * other.promote()


@torch("div.Tensor div.Scalar")
def div(self, other):
    quotient = self.promote() / other.promote()
    if quotient.dtype.kind != "f":
        refuse(f"expected floats as the result, got {quotient.dtype}")
    return quotient


@torch("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar")
def pow_(self, exponent):
    usual = _usual(self, 2, 0.5)
    return self.promote(*usual).Pow(exponent.promote(*usual))


@torch("maximum max.other")
def maximum(self, other):
    return self.promote().Max(other.promote())


@torch("minimum min.other")
def minimum(self, other):
    return self.promote().Min(other.promote())


@torch("addcmul addcdiv")
def addcmul(self, tensor1, tensor2, *, value=Scalar(1), op):
    x, y, z = self.promote(), tensor1.promote() * value, tensor2.promote()
    return x + (y * z if op.name == "addcmul" else y / z)


@torch("fmod.Tensor fmod.Scalar")
def fmod(self, other):
    """Returns the remainder with the sign of ``self``."""
    return self.promote().Mod(other.promote(), fmod=1)


@torch("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor")
def remainder(self, other):
    """Returns the remainder with the sign of ``other``."""
    x, y = self.promote(), other.promote()
    return bodies.remainder(x, y) if x.dtype.kind == "f" else x.Mod(y)


@torch("div.Tensor_mode div.Scalar_mode")
def divide(self, other, *, rounding_mode="", op):
    if rounding_mode == "floor":
        return floor_divide(self, other)
    x, y = self.promote(), other.promote()
    quotient = x / y
    return truncate(quotient) if rounding_mode and x.dtype.kind == "f" else quotient


@torch("floor_divide floor_divide.Scalar")
def floor_divide(self, other):
    """Returns the quotient rounded down, computed from the remainder as PyTorch does: 1 // 0.1 is
    9.
    """
    x, y = self.promote(), other.promote()
    rest = x.Mod(y, fmod=1)
    zero = x.scalar(0)
    lower = rest.Less(zero).Xor(y.Less(zero)).And(rest.Equal(zero).Not()).cast(x.dtype)
    if x.dtype.kind != "f":
        return x / y - lower
    quotient = (x - rest) / y - lower
    floor = quotient.Floor()
    near = floor + (quotient - floor).Greater(0.5).cast(x.dtype)
    return y.Equal(zero).Where(x / y, near)


@torch("lerp.Tensor lerp.Scalar")
def lerp(self, end, weight):
    start = self.promote()
    return start + weight.promote() * (end.promote() - start)


_COMPARED = pairs("eq=Equal ne=Equal gt=Greater ge=GreaterOrEqual lt=Less le=LessOrEqual")


@torch(" ".join(f"{name}.Tensor {name}.Scalar" for name in _COMPARED))
def compare(self, other, *, op):
    dtype = _common(self, other)
    result = getattr(self.cast(dtype), _COMPARED[op.name])(other.cast(dtype))
    return result.Not() if op.name == "ne" else result


def _common(x: Any, other: Any) -> Any:
    """Returns the dtype in which x and ``other`` are compared. A number is compared in the dtype of
    x, or in float32 if only the number is a float.
    """
    mine = x.dtype
    if isinstance(other, Number) or not other.slot:
        whole = not isinstance(other, Number) or not isinstance(other.value, float)
        if mine.kind == "b" and isinstance(other, Number) and other.value not in (0, 1):
            mine = np.dtype(np.int64)
        return mine if whole or mine.kind == "f" else np.dtype(np.float32)
    theirs = other.dtype
    if mine != theirs and 0 in (x.rank, other.rank):
        refuse(f"compares {mine} and {theirs}, one of them a scalar: expected one dtype; cast them")
    if (mine.kind == "f") != (theirs.kind == "f"):
        return mine if mine.kind == "f" else theirs
    return np.promote_types(mine, theirs)


@torch("logical_not bitwise_not")
def logical_not(self, *, op):
    if op.name == "bitwise_not" and self.dtype != np.bool_:
        refuse(f"expected bool, got {self.dtype}: bits of integers are not supported")
    return self.cast(bool).Not()


@torch(
    " ".join(
        f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor" for name in ("and", "or", "xor")
    )
)
def logic(self, other, *, op):
    if not op.name.startswith("logical") and {self.dtype.kind, other.dtype.kind} != {"b"}:
        refuse(f"expected bool, got {self.dtype} and {other.dtype}: bits are not supported")
    kind = op.name.strip("_").rpartition("_")[2].capitalize()
    return getattr(self.cast(bool), kind)(other.cast(bool))


@torch("where.self where.ScalarOther where.ScalarSelf where.Scalar")
def where(condition, self, other):
    return condition.cast(bool).Where(self.promote(0, 1, -1), other.promote(0, 1, -1))


@torch("masked_fill.Scalar masked_fill.Tensor")
def masked_fill(self, mask, value):
    return mask.Where(value.promote(), self)


@torch("_to_copy", views="to.dtype to.dtype_layout to.device to.other type_as")
def to(self, other=None, *, copy=False):
    return self.promote()


@torch(
    "clone lift_fresh_copy",
    views="contiguous detach alias lift_fresh lift requires_grad_ positive",
)
def same(self):
    return self


@torch("sym_size.int")
def sym_size(self, *, dim=Axis()):
    return self.sizes.Gather(dim, axis=0)


@torch("sym_numel")
def sym_numel(self):
    return self.Size()


_OF_SIZES = pairs(
    """
    _operator.add=Add _operator.sub=Sub _operator.mul=Mul _operator.floordiv=Div _operator.mod=Mod
    torch.sym_max=Max torch.sym_min=Min
    """
)


@torch(" ".join(_OF_SIZES))
def compute_size(*, a=None, b=None, op):
    """Returns the result of Python's arithmetic with sizes, which are not negative.

    If an operator reads the result, the input sizes from which ``a`` and ``b`` may have been
    computed keep their exported numbers.
    """
    builder, values, numbers = op.builder, [], []
    for each in (a, b):
        if isinstance(each, Open):
            values.append(builder.value(each.name))
            numbers += builder.computed.get(each.name, ())
        elif type(each) is int:
            values.append(op.constant(np.int64(each)))
            numbers.append(each)
        else:
            refuse(f"arguments {a} and {b}: expected sizes and integers")
    builder.computed[op.node.outputs[0]] = numbers
    return op.emit(_OF_SIZES[op.at.type], *values)


@torch("_operator.truediv _operator.pow torch.sym_float")
def compute_float(*, a=None, b=None, op):
    """Returns the result of Python's arithmetic with a size whose result is a float."""
    builder, operands, numbers = op.builder, list[TorchTensor](), list[float]()
    for each in (a, b):
        if isinstance(each, Open):
            operands.append(TorchTensor(op, builder.value(each.name)).cast(np.float64))
            numbers += builder.computed.get(each.name, ())
        elif each is not None:
            operands.append(TorchTensor(op, op.constant(np.float64(each))))
            numbers.append(each)
    builder.computed[op.node.outputs[0]] = numbers
    x, *y = operands
    if op.at.type == "_operator.pow":
        return x.Pow(*y) if isinstance(b, float) else refuse(f"exponent {b}: expected a float")
    return x / y[0] if y else x


# The rules of layers: matrix products, convolutions, norms, softmax.
#
# Formulas: documentation of torch.nn.functional, in inference.


@torch("linear")
def linear(input, weight, bias=None):
    """Returns x @ weight.T + bias."""
    if weight.rank != 2:
        refuse(f"weight: expected 2 axes, got {weight.rank}")
    input.tie(-1, WEIGHTS)
    if input.rank == 2:
        return input.Gemm(weight, bias, transB=1)
    out = input @ weight.transpose(1, 0)
    return out + bias if bias else out


@torch("matmul mm bmm mv dot")
def matmul(self, other=None, mat2=None, vec=None, tensor=None):
    return self @ (other or mat2 or vec or tensor)


@torch("addmm baddbmm addmv")
def addmm(
    self,
    mat1=None,
    mat2=None,
    batch1=None,
    batch2=None,
    mat=None,
    vec=None,
    *,
    beta=Scalar(1, (0, 1)),
    alpha=Scalar(1, (0, 1)),
):
    """Ignores ``self`` if beta is 0, because PyTorch then does not propagate its NaN."""
    product = ((mat1 or batch1 or mat) @ (mat2 or batch2 or vec)) * alpha
    return product + self * beta if beta else product


@torch("outer")
def outer(self, vec2):
    return self.promote().unsqueeze(1) * vec2.promote()


@torch("einsum")
def einsum(*tensors, equation="", path=None):
    first, *others = [tensor.promote() for tensor in tensors]
    return first.Einsum(*others, equation=equation)


@torch("bilinear")
def bilinear(input1, input2, weight, bias=None):
    """Returns x1 @ weight[o] @ x2 + bias[o] for each o."""
    out = input1.Einsum(weight, input2, equation="...i,oij,...j->...o")
    return out + bias if bias else out


@torch("tensordot")
def tensordot(self, other, *, dims_self=(), dims_other=()):
    """Returns the sum of products over pairs of axes."""
    if self.rank + other.rank > 26:
        refuse(f"expected at most 26 axes, got {self.rank} and {other.rank}")
    one, two = ([*"abcdefghijklmnopqrstuvwxyz"][at:] for at in (0, self.rank))
    one, two = one[: self.rank], two[: other.rank]
    for mine, theirs in zip(dims_self, dims_other, strict=True):
        two[theirs] = one[mine]
    left = "".join(letter for letter in one + two if (one + two).count(letter) == 1)
    return self.Einsum(other, equation=f"{''.join(one)},{''.join(two)}->{left}")


@torch("softmax.int _softmax", half_to_float=False)
def softmax(self, *, dim=Axis()):
    return self.promote().Softmax(axis=dim)


@torch("_safe_softmax")
def _safe_softmax(self, *, dim=Axis()):
    """Returns the softmax; 0 if all elements along the axis are -inf."""
    x = self.promote()
    masked = x.ReduceMax([dim], keepdims=1).Equal(-np.inf)
    return masked.Where(x.scalar(0), x.Softmax(axis=dim))


@torch("log_softmax.int _log_softmax", half_to_float=False)
def log_softmax(self, *, dim=Axis()):
    return self.promote().LogSoftmax(axis=dim)


@torch("layer_norm native_layer_norm")
def layer_norm(input, weight=None, bias=None, *, normalized_shape=(), eps=1e-5, cudnn_enable=False):
    count = len(normalized_shape)
    for axis in range(-count, 0):
        input.tie(axis, WEIGHTS)
    if weight is None:
        sizes = [input.op.builder.find_exported_size(size) for size in input.dims[-count:]]
        if None in sizes:
            refuse(f"input {input.type}: expected known sizes of {count} last axes{FIX_SIZE}")
        weight = input.fill(sizes, 1)
    return input.LayerNormalization(weight, bias, axis=-count, epsilon=eps)


@torch("rms_norm")
def rms_norm(input, weight=None, *, normalized_shape=(), eps=None):
    """Returns ``x / sqrt(mean(x**2) + eps) * weight``; PyTorch computes it for float16 in
    float32.
    """
    axes = [*range(-len(normalized_shape), 0)]
    for axis in axes:
        input.tie(axis, WEIGHTS)
    x = input.cast(np.promote_types(input.dtype, np.float32))
    eps = float(np.finfo(x.dtype).eps) if eps is None else eps
    out = x * ((x * x).ReduceMean(axes, keepdims=1) + eps).Sqrt().Reciprocal()
    return (out * weight.cast(x.dtype) if weight else out).cast(input.dtype)


@torch("batch_norm _native_batch_norm_legit_no_training")
def batch_norm(
    input,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    *,
    training=False,
    momentum=0.1,
    eps=1e-5,
    cudnn_enabled=False,
):
    if training:
        refuse("exported for training; call model.eval() before the export")
    sizes = [size or 0 for size in running_mean.shape]
    weight, bias = weight or input.fill(sizes, 1), bias or input.fill(sizes, 0)
    input.tie(1, WEIGHTS)
    return input.BatchNormalization(weight, bias, running_mean, running_var, epsilon=eps)


def _per_channel(input: TorchTensor, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Returns weight and bias (C,); ones and zeros if the layer lacks them."""
    input.tie(1, WEIGHTS)
    if weight and bias:
        return weight, bias
    channels = input.op.builder.find_exported_size(input.dims[1])
    if channels is None:
        refuse(f"input {input.type}: expected a known number of channels{FIX_SIZE}")
    return weight or input.fill([channels], 1), bias or input.fill([channels], 0)


@torch("group_norm")
def group_norm(input, weight=None, bias=None, *, num_groups, eps=1e-5, cudnn_enabled=False):
    scale, added = _per_channel(input, weight, bias)
    return input.GroupNormalization(scale, added, num_groups=num_groups, epsilon=eps)


@torch("native_group_norm")
def native_group_norm(
    input, weight=None, bias=None, *, N=AnySize(), C=AnySize(), HxW=AnySize(), group, eps=1e-5
):
    """Returns the result of `group_norm`. The other outputs are statistics for training."""
    return group_norm(input, weight, bias, num_groups=group, eps=eps)


@torch("instance_norm", use_input_stats=True)
def instance_norm(
    input,
    weight=None,
    bias=None,
    running_mean=None,
    running_var=None,
    *,
    momentum=0.1,
    eps=1e-5,
    cudnn_enabled=False,
):
    if running_mean or running_var:
        refuse("expected no running statistics; build the layer with track_running_stats=False")
    scale, added = _per_channel(input, weight, bias)
    return input.InstanceNormalization(scale, added, epsilon=eps)


@torch(
    """
    conv1d conv2d conv1d.padding conv2d.padding convolution conv_transpose1d conv_transpose2d.input
    """
)
def convolution(
    input,
    weight,
    bias=None,
    *,
    stride=(1,),
    padding=None,
    dilation=(1,),
    groups=1,
    transposed=False,
    output_padding=(0,),
    op,
):
    kernel = weight.shape[2:]
    axes = len(kernel)
    if input.rank != axes + 2:
        refuse(f"input: expected {axes + 2} axes with the batch first, got {input.rank}")
    input.tie(1, WEIGHTS)
    dilations = each_axis(dilation, axes)
    if padding == "same":
        pads = same_pads(kernel, dilations)
    else:
        pads = each_axis(0 if padding in (None, "valid") else padding, axes) * 2
    windows: dict[str, Any] = {"strides": each_axis(stride, axes), "dilations": dilations}
    windows |= {"group": groups, "pads": pads}
    if not transposed and "transpose" not in op.name:
        return input.Conv(weight, bias, **windows)
    if any(more := each_axis(output_padding or 0, axes)):
        windows["output_padding"] = more
    return input.ConvTranspose(weight, bias, **windows)


def _pool(
    x: Any, kind: str, kernel: Any, stride: Any, padding: Any, ceil: bool, **more: Any
) -> Any:
    axes = x.rank - 2
    kernel = each_axis(kernel, axes)
    windows: dict[str, Any] = {
        "strides": each_axis(stride, axes) if stride else kernel,
        "pads": each_axis(padding, axes) * 2,
        "ceil_mode": int(ceil),
    }
    return pool_windows(x, kind, kernel, **windows, **more)


@torch("max_pool1d max_pool2d")
def max_pool(self, *, kernel_size=(), stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    dilations = each_axis(dilation, self.rank - 2)
    return _pool(self, "max", kernel_size, stride, padding, ceil_mode, dilations=dilations)


@torch("max_pool1d_with_indices max_pool2d_with_indices")
def max_pool_with_indices(
    self, *, kernel_size=(), stride=(), padding=(0,), dilation=(1,), ceil_mode=False
):
    """Returns the maxima, and their positions in each channel."""
    dilations = each_axis(dilation, self.rank - 2)
    more: dict[str, Any] = {"dilations": dilations, "outputs": 2}
    out, places = _pool(self, "max", kernel_size, stride, padding, ceil_mode, **more)
    count = self.sizes.Slice([2], [END], [0]).ReduceProd(keepdims=0)
    return out, places.Mod(count)


@torch(
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_linear1d.vec upsample_bilinear2d.vec"
)
def upsample(input, *, output_size=Sizes(), scale_factors=None, align_corners=False, op):
    """Resizes the axes after the channels. PyTorch rounds coordinates down for "nearest"."""
    if align_corners:
        refuse("argument align_corners=True: expected False")
    how: dict[str, Any] = {"mode": "linear"} if "linear" in op.name else bodies.NEAREST
    if scale_factors:
        op.builder.tie_numbers(scale_factors, op.why)
        return input.Resize(None, np.array([1, 1, *scale_factors], np.float32), **how)
    sizes = input.sizes.Slice([0], [2], [0]).join(op.list_values(output_size))
    op.builder.tie_numbers([each for each in output_size if isinstance(each, int)], op.why)
    return input.Resize(None, None, sizes, **how)


@torch("avg_pool1d avg_pool2d")
def avg_pool(
    self,
    *,
    kernel_size=(),
    stride=(),
    padding=(0,),
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    if divisor_override is not None:
        refuse(f"argument divisor_override={divisor_override}: expected None")
    counts = count_include_pad
    return _pool(self, "avg", kernel_size, stride, padding, ceil_mode, counts_pads=counts)


@torch(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool1d
    adaptive_max_pool2d
    """
)
def adaptive_pool(self, *, output_size=Sizes(), op):
    """Returns the means or maxima of windows; ``output_size`` has the number of windows for each of
    the last axes.

    The second output of maxima, their positions, is not computed.
    """
    kind = "Max" if "max" in op.name else "Mean"
    if {*output_size} == {1} and self.rank == len(output_size) + 2:
        return pool_whole(self, "max" if kind == "Max" else "avg")
    for axis, count in enumerate(output_size, self.rank - len(output_size)):
        self = _pool_axis(self, axis, count, kind)
    return self


_MOST_WINDOWS = 256


def _pool_axis(x: TorchTensor, axis: int, count: int | Open, kind: str) -> Any:
    """Returns x reduced to ``count`` windows along an axis.

    Window k is from floor(k * size / count) to ceil((k + 1) * size / count).
    """
    builder, size = x.op.builder, x.dims[axis]
    reduce = f"Reduce{kind}"
    if count == 1:
        return getattr(x, reduce)([axis], keepdims=1)
    if isinstance(count, Open):  # for example AdaptiveAvgPool2d((None, 1))
        wanted = builder.type_of(builder.value(count.name)).value
        if size is None or wanted != size:
            refuse(f"argument output_size: expected a number, or the size of axis {axis}")
        return x
    x.tie(axis)
    known = builder.find_exported_size(size)
    if known == count:
        return x
    if known is None or not 0 < count <= _MOST_WINDOWS:
        refuse(
            f"argument output_size={count}: expected 1 to {_MOST_WINDOWS}, and a known size of axis"
            f" {axis}, got {known}{FIX_SIZE}"
        )
    parts = [
        getattr(x.Slice([k * known // count], [-(-(k + 1) * known // count)], [axis]), reduce)(
            [axis], keepdims=1
        )
        for k in range(count)
    ]
    return parts[0].Concat(*parts[1:], axis=axis)


@torch("scaled_dot_product_attention", dropout_p=0.0, enable_gqa=False)
def attention(query, key, value, attn_mask=None, *, is_causal=False, scale=None):
    """Returns softmax(query @ key.T * scale + mask) @ value; 0 if the mask is -inf for all keys."""
    if scale is None:
        query.tie(-1, WEIGHTS)
        width = query.op.builder.find_exported_size(query.dims[-1])
        refused = f"query {query.type}: expected a known width, or the argument scale{FIX_SIZE}"
        scale = (width or refuse(refused)) ** -0.5
    scores = query.MatMul(key.swap()) * scale
    if is_causal:
        sizes = query.size(-2).join(key.size(-2))
        later = sizes.ConstantOfShape(value=np.ones(1, bool)).Trilu(0, upper=0)
        scores = later.Where(scores, scores.constant(-np.inf))
    if attn_mask and attn_mask.dtype.kind == "b":
        scores = attn_mask.Where(scores, scores.constant(-np.inf))
    elif attn_mask:
        scores = scores + attn_mask
    return (_safe_softmax(scores, dim=-1) if attn_mask else scores.Softmax(axis=-1)) @ value


# The rules of PyTorch's recurrent operators.
#
# Formulas and layouts: documentation of torch.nn.RNN, LSTM and GRU, and of their cells.


@torch("lstm.input gru.input rnn_tanh.input rnn_relu.input")
def layer(
    input,
    *hx,
    has_biases=True,
    num_layers=1,
    dropout=0.0,
    train=False,
    bidirectional=False,
    batch_first=False,
    op,
):
    """Returns y (T, N, D*R), h (L*D, N, R) and, for an LSTM, c (L*D, N, O)."""
    arrays = [op.builder.array(value, "params") for value in op.values("params")]
    stacked = _stack(op, arrays, num_layers, ["", "_reverse"][: 1 + bidirectional], has_biases)
    if train and dropout:
        refuse("exported for training, with dropout; call model.eval() before the export")
    return _run(stacked, input, hx, batch_first)


@torch("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def cell(input, w_ih, w_hh, b_ih=None, b_hh=None, *hx, op):
    """Returns h (N, O) after one step and, for an LSTM, c (N, O)."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    given = zip(names, (w_ih, w_hh, b_ih, b_hh), strict=True)
    arrays = {name: each.array for name, each in given if each is not None}
    _, *finals = _run(_read_layer(op, arrays), input.unsqueeze(0), hx)
    return tuple(final.squeeze(0) for final in finals)


def _read_layer(op: Any, arrays: dict[str, Any]) -> PivotLayer:
    relu = {"nonlinearity": "relu"} if "relu" in op.at.type else {}
    return layout.read(arrays, **relu)


def _stack(
    op: Any, arrays: Sequence[Any], layers: int, sides: Sequence[str], biased: bool
) -> PivotLayer:
    """Returns the layers of an operator, whose parameters are ordered by layer, then by
    direction.
    """
    kinds = ["weight_ih", "weight_hh", *["bias_ih", "bias_hh"] * biased]
    if len(arrays) == layers * len(sides) * (len(kinds) + 1):
        kinds.append("weight_hr")
    wanted = [f"{kind}_l{at}{side}" for at in range(layers) for side in sides for kind in kinds]
    if not wanted or len(wanted) != len(arrays):
        refuse(f"params: expected {len(wanted)}, {', '.join(wanted[:6])} ..., got {len(arrays)}")
    return _read_layer(op, dict(zip(wanted, arrays, strict=True)))


def _run(
    layer: PivotLayer, x: Any, states: Sequence[Any], batch_major: bool = False
) -> tuple[Any, ...]:
    """Returns y (T, N, D*R), or (N, T, D*R) if batch_major, and the final states (L*D, N, R or
    O).
    """
    spec, dtype = layer.spec, layer.weights[0].iter.dtype
    x.tie(-1, WEIGHTS)
    if x.dtype != dtype:
        refuse(f"input: expected {dtype}, the dtype of the weights, got {x.dtype}")
    if len(states) not in (0, len(spec.cell.states)):
        refuse(f"initial states: expected {len(spec.cell.states)} or none, got {len(states)}")
    given = list[Any]()
    for state in states:
        if x.op.builder.is_zeros(state.name):
            given.append(None)  # zeros of any batch size
            continue
        state.tie(-1, WEIGHTS)
        if state.rank == 3:
            state.tie(0, WEIGHTS)
        given.append(state if state.rank == 3 else state.unsqueeze(0))  # a cell's has two axes
    return recurrent_stack(x, given, spec, layer.weights, batch_major=batch_major)
