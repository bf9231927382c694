"""Rules for ONNX Runtime's own operators, which its optimizer and its quantizer write.

A rule turns one operator into onernn's canonical operators. Formulas: ONNX Runtime's contrib
operators.
"""

from __future__ import annotations

from functools import partial

from onernn.adapters.common.signatures import refuse
from onernn.adapters.onnx.table import onnx
from onernn.ops import OPERATORS

DOMAIN = "com.microsoft"
microsoft = partial(onnx, domain=DOMAIN)

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")
MEANINGS = {
    "documented": "DynamicQuantizeLSTM quantizes each sequence separately, as documented; ONNX"
    " Runtime quantizes all sequences of a thread together, so its results depend on the batch and"
    " on the threads: they differ by up to 0.21 in ddddocr 1.6.1 (semantics='onnxruntime' computes"
    " the results of one thread)",
    "onnxruntime": "DynamicQuantizeLSTM quantizes a batch together, like ONNX Runtime on one"
    " thread: the results of a sequence depend on its batch, and differ by up to 0.21 in ddddocr"
    " 1.6.1 (semantics='documented' computes the same results in any batch)",
}
CLIP_OF_ZERO = "clip=0 is read as no clipping, which is what the exporters of such files mean"


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
        refuse(f"attribute activations={activations}: expected {_ACTIVATIONS} per direction")
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


# Fused operators: each combines several standard operators.


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
    """Normalizes the sum of ``input``, ``skip`` and ``bias``. Output 3 is the sum."""
    total = input + skip
    total = total + bias if bias else total
    y = total.LayerNormalization(gamma, beta, epsilon=epsilon)
    return {"0": y, "3": total} if op.wants(3) else y


@microsoft("FusedMatMul")
def fused_matmul(A, B, *, transA=0, transB=0, transBatchA=0, transBatchB=0, alpha=1.0):
    """Multiplies A and B, which attributes may transpose; a vector is never transposed."""
    a, b = _transposed(A, transA, transBatchA), _transposed(B, transB, transBatchB)
    return (a @ b) * alpha


def _transposed(x, matrix, batch):
    """Returns a factor of a matrix product, after transposing it if ``matrix``.

    ``batch``: whether the matrix consists of the first and the last axis instead of the last two
    axes.
    """
    if batch:
        last = x.rank - 1
        if last < 2:
            refuse(f"attribute transBatch: expected a factor of 3 axes or more, got {x.rank} axes")
        x = x.transpose(*range(1, last), 0, last)
    return x.swap() if matrix and x.type.rank != 1 else x


@microsoft("FusedGemm")
def fused_gemm(A, B, C=None, *, op, transA=0, transB=0, alpha=1.0, beta=1.0, activation=""):
    y = A.Gemm(B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    names = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma")}
    given = {n: op.attribute(k, 0.0) for n, k in names.items() if k in op.attributes}
    return _activate(y, activation, **given)


@microsoft("FusedConv")
def fused_conv(X, W, B=None, Z=None, *, op, activation="", activation_params=()):
    """Convolves X, adds Z, and applies the activation function."""
    y = X.Conv(W, B, **op.attributes_of(OPERATORS["Conv"]))
    y = y + Z if Z else y
    if activation == "Clip" and len(activation_params) == 2:
        return y.Clip(*map(y.scalar, activation_params))
    if len(activation_params) > 2:
        refuse(f"attribute activation_params={activation_params}: expected at most two")
    return _activate(y, activation, **dict(zip(("alpha", "beta"), activation_params, strict=False)))


def _activate(y, name, **attributes):
    record = OPERATORS.get(name)
    known = set(record.attributes) - {"rational"} if record else set[str]()
    elementwise = record is not None and record.kind == "elementwise" and record.most == 1
    if (name and not elementwise) or not attributes.keys() <= known <= {"alpha", "beta", "gamma"}:
        more = f" with {', '.join(attributes)}" if attributes else ""
        refuse(
            f"attribute activation={name!r}{more}: expected an operator on elements with such"
            " attributes"
        )
    return getattr(y, name)(**attributes) if name else y
