"""The rules of ONNX Runtime's own operators, which its optimiser and its quantiser write.

Formulas: ONNX Runtime's contrib operators.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from onernn.adapters.common.signatures import refuse
from onernn.adapters.onnx.table import onnx
from onernn.ops import OPERATORS

DOMAIN = "com.microsoft"
microsoft = partial(onnx, domain=DOMAIN)

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")
MEANINGS = {
    "documented": "DynamicQuantizeLSTM quantizes each sequence by itself, as it is defined for one;"
    " ONNX Runtime quantizes together what a thread has of a batch, so that its results depend on"
    " both: 0.21 apart in ddddocr 1.6.1 (semantics='onnxruntime' gives those of one thread)",
    "onnxruntime": "DynamicQuantizeLSTM quantizes a batch together, as ONNX Runtime does on one"
    " thread: a sequence has other results in another batch, 0.21 apart in ddddocr 1.6.1"
    " (semantics='documented' gives it the same in any batch)",
}
CLIP_OF_ZERO = "clip=0 means no clipping, as it did to those who wrote it"


@microsoft("DynamicQuantizeLSTM")
def lstm(
    x,
    *inputs,
    op,
    activations=_ACTIVATIONS,
    clip=1.0,
    hidden_size=0,
    input_forget=0,
    direction="forward",
):
    if tuple(name.lower() for name in activations) not in (_ACTIVATIONS, _ACTIVATIONS * 2):
        refuse(f"attribute activations={activations}: only {_ACTIVATIONS}")
    if clip == 0:
        op.builder.notes[CLIP_OF_ZERO] = None
    op.builder.notes[MEANINGS[op.builder.semantics]] = None
    together = (1 if op.wants(0) else 2) if op.builder.semantics == "onnxruntime" else 0
    return x.DynamicQuantizeLSTM(
        *[*inputs, *[None] * 11][:11],
        outputs=3,
        direction=direction,
        hidden_size=hidden_size,
        clip=op.attribute("clip", 0.0),
        input_forget=input_forget,
        together=together,
    )


@microsoft("DynamicQuantizeMatMul")
def dynamic_matmul(A, B, b_scale, b_zero_point=None, bias=None):
    """A is quantized first."""
    a, scale, zero = A.DynamicQuantizeLinear(outputs=3)
    y = a.MatMulInteger(B, zero, b_zero_point).cast("float32") * (scale * b_scale)
    return y + bias if bias else y


@microsoft("MatMulIntegerToFloat")
def matmul_to_float(A, B, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    if a_scale.type.counts not in ((), (1,)):
        refuse("input a_scale: only one for all rows")
    y = A.MatMulInteger(B, a_zero_point, b_zero_point).cast("float32") * (a_scale * b_scale)
    return y + bias if bias else y


# Operators that stand for several.


@microsoft("Gelu")
def gelu(X):
    return X.Gelu(approximate="none")


@microsoft("BiasGelu")
def bias_gelu(A, B):
    return (A + B).Gelu(approximate="none")


@microsoft("FastGelu")
def fast_gelu(X, bias=None):
    return (X + bias if bias else X).Gelu(approximate="tanh")


@microsoft("QuickGelu")
def quick_gelu(X, *, alpha=1.702):
    return X * (X * alpha).Sigmoid()


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(input, skip, gamma, beta=None, bias=None, *, op, epsilon=1e-12):
    """The sum of both inputs and a bias is also an output. There are no statistics."""
    total = input + skip
    total = total + bias if bias else total
    y = total.LayerNormalization(gamma, beta, epsilon=epsilon)
    return {"0": y, "3": total} if op.wants(3) else y


@microsoft("FusedMatMul", transBatchA=0, transBatchB=0)
def fused_matmul(A, B, *, transA=0, transB=0, alpha=1.0):
    """A vector is not transposed."""
    a = A.swap() if transA and A.type.rank != 1 else A
    b = B.swap() if transB and B.type.rank != 1 else B
    return (a @ b) * alpha


@microsoft("FusedGemm")
def fused_gemm(A, B, C=None, *, op, transA=0, transB=0, alpha=1.0, beta=1.0, activation=""):
    y = A.Gemm(B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    names = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma")}
    given = {n: op.attribute(k, 0.0) for n, k in names.items() if k in op.attributes}
    return _activate(y, activation, **given)


@microsoft("FusedConv")
def fused_conv(X, W, B=None, Z=None, *, op, activation="", activation_params=()):
    """Z is added to the windows' sums."""
    y = X.Conv(W, B, **op.given(OPERATORS["Conv"]))
    y = y + Z if Z else y
    if activation == "Clip" and len(activation_params) == 2:
        return y.Clip(*map(y.scalar, activation_params))
    if len(activation_params) > 2:
        refuse(f"attribute activation_params={activation_params}: expected two at most")
    return _activate(y, activation, **dict(zip(("alpha", "beta"), activation_params, strict=False)))


def _activate(y, name, **attributes):
    """Applies an elementwise operator of this name to y."""
    record = OPERATORS.get(name)
    known = set(record.attributes) - {"rational"} if record else set[str]()
    elementwise = record is not None and record.kind == "elementwise" and record.most == 1
    if (name and not elementwise) or not attributes.keys() <= known <= {"alpha", "beta", "gamma"}:
        more = f" with {', '.join(attributes)}" if attributes else ""
        refuse(f"attribute activation={name!r}{more}: this is not known")
    return getattr(y, name)(**attributes) if name else y


# Operators on quantized values: those of real values, of which the results are quantized.


def _dequantize(x, scale, zero=None, *_):
    return x.DequantizeLinear(scale, zero)


def _quantize(y, like, scale, zero=None):
    """Quantizes y; without a zero point it is 0, in the dtype of ``like``."""
    return y.QuantizeLinear(scale, zero or like.constant(np.zeros((), like.dtype)))


@microsoft("QLinearAdd QLinearMul")
def quantized_pair(*inputs, op):
    y = getattr(_dequantize(*inputs[:3]), op.at.type[7:])(_dequantize(*inputs[3:6]))
    return _quantize(y, inputs[0], *inputs[6:])


@microsoft("QLinearSigmoid QLinearLeakyRelu")
def quantized_function(*inputs, op, alpha=None):
    attributes = {} if alpha is None else {"alpha": alpha}
    y = op.emit(op.at.type[7:], _dequantize(*inputs[:3]).name, **attributes)
    return _quantize(inputs[0].new(y), inputs[0], *inputs[3:])


@microsoft("QLinearConcat")
def quantized_concat(scale, zero, *inputs, axis=0):
    first, *others = (_dequantize(*inputs[at : at + 3]) for at in range(0, len(inputs), 3))
    return _quantize(first.Concat(*others, axis=axis), inputs[0], scale, zero)


@microsoft("QLinearGlobalAveragePool", channels_last=0)
def quantized_mean(*inputs):
    return _quantize(_dequantize(*inputs[:3]).GlobalAveragePool(), inputs[0], *inputs[3:])
