"""The rules of aten's operators that compute: on elements, and whole layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onernn.adapters.common.bodies import pool_windows, recurrent_stack
from onernn.adapters.common.files import pairs
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.common.windows import each_axis, extreme_index, same_pads, slopes
from onernn.adapters.torch.read import Open
from onernn.adapters.torch.table import WEIGHTS, Axes, Axis, Number, Scalar, TorchTensor, torch
from onernn.reorders import torch as layout
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


def _plain(kind: str) -> Callable[..., Any]:
    return lambda self: getattr(self.promote(), kind)()


for kind, names in _PLAIN.items():
    torch(names)(_plain(kind))


@torch("rsqrt")
def rsqrt(self):
    return self.promote().Sqrt().Reciprocal()


@torch("square")
def square(self):
    return self * self


@torch("silu")
def silu(self):
    return self * self.Sigmoid()


@torch("gelu")
def gelu(self, *, approximate="none"):
    return self.Gelu(approximate=approximate)


@torch("softplus", beta=1.0)
def softplus(self, *, threshold=20.0):
    """The identity above the threshold: the difference is below the resolution of float32."""
    return self.Softplus() if threshold >= 17 else refuse("argument threshold below 17")


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


@torch("clamp clamp_min clamp_max")
def clamp(self, *, min=Scalar(None, _BOUNDS), max=Scalar(None, _BOUNDS)):
    x = self.promote()
    return x.Clip(*(bound if bound is None else x.scalar(bound) for bound in (min, max)))


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
        refuse("exported for training, with dropout; call model.eval() before")
    return input


@torch("glu")
def glu(self, *, dim=Axis(-1)):
    one, other = self.Split(axis=dim, outputs=2)
    return one * other.Sigmoid()


def _usual(x: TorchTensor, *numbers: float) -> tuple[float, ...]:
    """Returns numbers that do not come from a size in formulas of floats: 1 - z, or a square."""
    return numbers if x.op.result_dtype().kind == "f" else ()


@torch("add.Tensor add.Scalar")
def add(self, other, *, alpha=Scalar(1.0)):
    usual = _usual(self, 1, -1)
    return self.promote(*usual) + other.promote(*usual) * alpha


@torch("sub.Tensor sub.Scalar")
def sub(self, other, *, alpha=Scalar(1.0)):
    usual = _usual(self, 1, -1)
    return self.promote(*usual) - other.promote(*usual) * alpha


@torch("rsub.Scalar rsub.Tensor", alpha=1.0)
def rsub(self, other):
    return other.promote(*_usual(self, 1, -1)) - self.promote()


@torch("mul.Tensor mul.Scalar")
def mul(self, other):
    return self.promote() * other.promote()


@torch("div.Tensor div.Scalar")
def div(self, other):
    quotient = self.promote() / other.promote()
    return (
        quotient if quotient.dtype.kind == "f" else refuse(f"a quotient that is {quotient.dtype}")
    )


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


@torch("addcmul", value=1.0)
def addcmul(self, tensor1, tensor2):
    return self.promote() + tensor1.promote() * tensor2.promote()


@torch("lerp.Tensor lerp.Scalar")
def lerp(self, end, weight):
    start = self.promote()
    return start + weight.promote() * (end.promote() - start)


def _compare(kind: str) -> Callable[..., Any]:
    def rule(self: Any, other: Any) -> Any:
        dtype = _common(self, other)
        return getattr(self.cast(dtype), kind)(other.cast(dtype))

    return rule


def _common(x: Any, other: Any) -> Any:
    """Returns the dtype of a comparison: a tensor's dtype counts more than a number's."""
    mine = x.dtype
    if isinstance(other, Number) or not other.slot:
        whole = not isinstance(other, Number) or not isinstance(other.value, float)
        return mine if whole or mine.kind == "f" else np.dtype(np.float32)
    theirs = other.dtype
    if mine != theirs and 0 in (x.rank, other.rank):
        refuse(f"compares {mine} and {theirs}, one of them a scalar")
    if (mine.kind == "f") != (theirs.kind == "f"):
        return mine if mine.kind == "f" else theirs
    return np.promote_types(mine, theirs)


for name, kind in pairs("eq=Equal gt=Greater ge=GreaterOrEqual lt=Less le=LessOrEqual").items():
    torch(f"{name}.Tensor {name}.Scalar")(_compare(kind))


@torch("ne.Tensor ne.Scalar")
def not_equal(self, other):
    return _compare("Equal")(self, other).Not()


@torch("logical_not bitwise_not")
def logical_not(self, *, op):
    if op.at.type == "bitwise_not" and self.dtype != np.bool_:
        refuse("of bits")
    return self.cast(bool).Not()


def _logic(kind: str) -> Callable[..., Any]:
    def rule(self: Any, other: Any, *, op: Any) -> Any:
        if not op.at.type.startswith("logical") and {self.dtype.kind, other.dtype.kind} != {"b"}:
            refuse("of bits")
        return getattr(self.cast(bool), kind)(other.cast(bool))

    return rule


for name in ("and", "or", "xor"):
    torch(f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor")(_logic(name.capitalize()))


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
    views="contiguous detach detach_ alias lift_fresh lift requires_grad_ positive",
)
def same(self):
    return self


@torch("sym_size.int")
def sym_size(self, *, dim=Axis()):
    return self.sizes.Gather(dim, axis=0)


@torch("sym_numel")
def sym_numel(self):
    return self.Size()


def _of_sizes(kind: str) -> Callable[..., Any]:
    """Returns Python's arithmetic with sizes, which are not negative; its reader ties them."""

    def rule(*, a: Any = None, b: Any = None, op: Any) -> Any:
        builder, values, numbers = op.builder, [], list[int]()
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
        return op.emit(kind, *values)

    return rule


for name, kind in pairs("add=Add sub=Sub mul=Mul floordiv=Div mod=Mod").items():
    torch(f"_operator.{name}")(_of_sizes(kind))
torch("torch.sym_max")(_of_sizes("Max"))
torch("torch.sym_min")(_of_sizes("Min"))


# The rules of layers: products, convolutions, norms, softmax; reductions too.
#
# Formulas: documentation of torch.nn.functional, in inference.


@torch("linear")
def linear(input, weight, bias=None):
    """x @ weight.T + bias."""
    if weight.rank != 2:
        refuse(f"a weight of {weight.rank} axes")
    input.tie(-1, WEIGHTS)
    if input.rank == 2:
        return input.Gemm(weight, bias, transB=1)
    out = input @ weight.transpose(1, 0)
    return out + bias if bias else out


@torch("matmul mm bmm mv dot")
def matmul(self, other=None, mat2=None, vec=None, tensor=None):
    return self @ (other or mat2 or vec or tensor)


@torch("addmm baddbmm addmv", beta=1.0, alpha=1.0)
def addmm(self, mat1=None, mat2=None, batch1=None, batch2=None, mat=None, vec=None):
    return (mat1 or batch1 or mat) @ (mat2 or batch2 or vec) + self


@torch("einsum")
def einsum(*tensors, equation="", path=None):
    return tensors[0].Einsum(*tensors[1:], equation=equation)


@torch("softmax.int _softmax", half_to_float=False)
def softmax(self, *, dim=Axis()):
    return self.promote().Softmax(axis=dim)


@torch("log_softmax.int _log_softmax", half_to_float=False)
def log_softmax(self, *, dim=Axis()):
    return self.promote().LogSoftmax(axis=dim)


@torch("layer_norm native_layer_norm")
def layer_norm(input, weight=None, bias=None, *, normalized_shape=(), eps=1e-5, cudnn_enable=False):
    count = len(normalized_shape)
    for axis in range(-count, 0):
        input.tie(axis, WEIGHTS)
    if weight is None:
        sizes = [input.op.builder.exported(size) for size in input.dims[-count:]]
        if None in sizes:
            refuse("a norm without weights of a size that is open")
        weight = input.fill(sizes, 1)
    return input.LayerNormalization(weight, bias, axis=-count, epsilon=eps)


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
        refuse("exported for training; call model.eval() before")
    sizes = [size or 0 for size in running_mean.shape]
    weight, bias = weight or input.fill(sizes, 1), bias or input.fill(sizes, 0)
    input.tie(1, WEIGHTS)
    return input.BatchNormalization(weight, bias, running_mean, running_var, epsilon=eps)


@torch("group_norm")
def group_norm(input, weight, bias, *, num_groups, eps=1e-5, cudnn_enabled=False):
    return input.GroupNormalization(weight, bias, num_groups=num_groups, epsilon=eps)


@torch("instance_norm", use_input_stats=True)
def instance_norm(
    input,
    weight,
    bias,
    running_mean=None,
    running_var=None,
    *,
    momentum=0.1,
    eps=1e-5,
    cudnn_enabled=False,
):
    if running_mean or running_var:
        refuse("statistics that training tracked")
    return input.InstanceNormalization(weight, bias, epsilon=eps)


@torch("conv1d conv2d conv1d.padding conv2d.padding convolution")
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
    output_padding=(),
):
    kernel = weight.shape[2:]
    axes = len(kernel)
    if input.rank != axes + 2:
        refuse("an input without batch")
    if any(output_padding):
        refuse(f"argument output_padding={output_padding}")
    input.tie(1, WEIGHTS)
    dilations = each_axis(dilation, axes)
    if padding == "same":
        pads = same_pads(kernel, dilations)
    else:
        pads = each_axis(0 if padding in (None, "valid") else padding, axes) * 2
    layer = input.ConvTranspose if transposed else input.Conv
    strides = each_axis(stride, axes)
    return layer(weight, bias, strides=strides, dilations=dilations, group=groups, pads=pads)


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
    return pool_windows(x.op, x.read(), kind, kernel, **windows, **more)


@torch("max_pool1d max_pool2d")
def max_pool(self, *, kernel_size=(), stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    dilations = each_axis(dilation, self.rank - 2)
    return _pool(self, "max", kernel_size, stride, padding, ceil_mode, dilations=dilations)


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
        refuse(f"argument divisor_override={divisor_override}")
    counts = count_include_pad
    return _pool(self, "avg", kernel_size, stride, padding, ceil_mode, counts_pads=counts)


@torch("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d")
def adaptive_pool(self, *, output_size=(), op):
    """Other sizes than 1 take windows of several widths."""
    if {*output_size} != {1}:
        refuse(f"argument output_size={output_size}: expected 1")
    return self.GlobalMaxPool() if "max" in op.at.type else self.GlobalAveragePool()


def _reduce(kind: str) -> Callable[..., Any]:
    def rule(self: Any, *, dim: Any = Axes(), keepdim: Any = False) -> Any:
        x = self.promote()
        return getattr(x, kind)(dim, keepdims=int(keepdim)) if dim else x

    return rule


torch("sum sum.dim_IntList")(_reduce("ReduceSum"))
torch("mean mean.dim")(_reduce("ReduceMean"))
torch("amax max")(_reduce("ReduceMax"))
torch("amin min")(_reduce("ReduceMin"))
torch("prod prod.dim_int")(_reduce("ReduceProd"))
torch("logsumexp")(_reduce("ReduceLogSumExp"))
_NORMS = {order: f"ReduceL{order}" for order in (1, 2)}


@torch("linalg_vector_norm")
def vector_norm(self, *, ord=OneOf(2, _NORMS), dim=Axes(), keepdim=False):
    return _reduce(ord)(self, dim=dim, keepdim=keepdim)


@torch("norm.ScalarOpt_dim")
def norm(self, *, p=OneOf(2, _NORMS), dim=Axes(), keepdim=False):
    return _reduce(p)(self, dim=dim, keepdim=keepdim)


@torch("_weight_norm")
def weight_norm(v, g, *, dim=0):
    """``v * g / |v|``, the norm over all axes but one, or with -1 over all."""
    others = [axis for axis in range(v.rank) if axis != dim]
    return v * (g / v.ReduceL2(others, keepdims=1))


def _extreme(kind: str) -> Callable[..., Any]:
    """Returns the rule of the values and of the index of the first of them."""

    def rule(self: Any, *, dim: Any = Axis(), keepdim: Any = False) -> Any:
        values = getattr(self, f"Reduce{kind}")([dim], keepdims=int(keepdim))
        return values, extreme_index(self, f"Arg{kind}", dim, keepdim)

    return rule


def _argument(kind: str) -> Callable[..., Any]:
    def rule(self: Any, *, dim: Any = None, keepdim: Any = False, op: Any) -> Any:
        if dim is None and keepdim:
            refuse("argument keepdim of all axes")
        return extreme_index(self, f"Arg{kind}", None if dim is None else op.axis(dim), keepdim)

    return rule


for kind in ("Max", "Min"):
    torch(f"{kind.lower()}.dim")(_extreme(kind))
    torch(f"arg{kind.lower()}")(_argument(kind))


@torch("var.correction std.correction var.dim std.dim")
def variance(self, *, dim=Axes(), keepdim=False, correction=1, unbiased=True, op):
    """Divides by the number of elements less ``correction``."""
    apart = self - self.ReduceMean(dim, keepdims=1)
    total = (apart * apart).ReduceSum(dim, keepdims=int(keepdim))
    count = self.sizes.Gather(dim, axis=0).ReduceProd(keepdims=0).cast(op.result_dtype())
    out = total / count.Sub(count.scalar(correction if unbiased else 0))
    return out.Sqrt() if op.at.type.startswith("std") else out


@torch("cumsum")
def cumsum(self, *, dim=Axis()):
    return self.promote().CumSum(dim)


@torch("topk")
def topk(self, *, k=Scalar(), dim=Axis(-1), largest=True, sorted=True):
    return self.TopK([k], axis=dim, largest=int(largest), outputs=2)


@torch("scaled_dot_product_attention", is_causal=False, dropout_p=0.0, enable_gqa=False)
def attention(query, key, value, attn_mask=None, *, scale=None):
    """softmax(query @ key.T * scale + mask) @ value."""
    scale = (query.shape[-1] or refuse("a width that is open")) ** -0.5 if scale is None else scale
    scores = query.MatMul(key.swap()) * scale
    if attn_mask and attn_mask.dtype.kind == "b":
        scores = attn_mask.Where(scores, scores.constant(-np.inf))
    elif attn_mask:
        scores = scores + attn_mask
    return scores.Softmax(axis=-1) @ value


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
    """Outputs y (T, N, D*R), h (L*D, N, R) and, of an LSTM, c (L*D, N, O)."""
    arrays = [op.builder.array(value, "params") for value in op.values("params")]
    stacked = _stack(op, arrays, num_layers, ["", "_reverse"][: 1 + bidirectional], has_biases)
    if train and dropout:
        refuse("exported for training, with dropout; call model.eval() before")
    return _run(stacked, input, hx, batch_first)


@torch("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def cell(input, w_ih, w_hh, b_ih=None, b_hh=None, *hx, op):
    """A step: h (N, O) and, of an LSTM, c (N, O)."""
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
    """Returns the layers of an operator, whose parameters come layer by layer, side by side."""
    kinds = ["weight_ih", "weight_hh", *["bias_ih", "bias_hh"] * biased]
    if len(arrays) == layers * len(sides) * (len(kinds) + 1):
        kinds.append("weight_hr")
    wanted = [f"{kind}_l{at}{side}" for at in range(layers) for side in sides for kind in kinds]
    if not wanted or len(wanted) != len(arrays):
        refuse(f"{len(arrays)} parameters, expected {', '.join(wanted[:6])}, ...")
    return _read_layer(op, dict(zip(wanted, arrays, strict=True)))


def _run(
    layer: PivotLayer, x: Any, states: Sequence[Any], batch_major: bool = False
) -> tuple[Any, ...]:
    """Returns y (T, N, D*R), (N, T, D*R) if batch_major, and the last states (L*D, N, R or O)."""
    spec, dtype = layer.spec, layer.weights[0].iter.dtype
    x.tie(-1, WEIGHTS)
    if x.dtype != dtype:
        refuse(f"its weights are {dtype}, its input is {x.dtype}")
    if len(states) not in (0, len(spec.cell.states)):
        refuse(f"{len(states)} initial states of an {spec.cell.name}")
    given = []
    for state in states:
        if x.op.builder.is_zeros(state.name):
            given.append("")  # of any batch, whatever size the program gives them
            continue
        state.tie(-1, WEIGHTS)
        if state.rank == 3:
            state.tie(0, WEIGHTS)
            given.append(state.read())
        else:  # of a cell
            given.append(state.unsqueeze(0).name)
    results = recurrent_stack(x.op, x.read(), given, spec, layer.weights, batch_major=batch_major)
    return tuple(map(x.new, results))
