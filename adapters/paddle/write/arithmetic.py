"""Operators of ONNX's names as Paddle's: what computes.

Slots and attributes: the operators' makers in 2.6, which are those of 3.x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onernn.adapters.paddle.write.emitting import CODES, Writing, ints, only, rule
from onernn.adapters.paddle.write.shaping import filled
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node

_COMPUTED = frozenset("bool int32 int64 float32 float64".split())
"""What Paddle's kernels on CPU compute in."""


# An operator, and its attributes: constants, or (name in ours, default) of a number.
Numbers = dict[str, Any]
UNARY: dict[str, tuple[str, Numbers]] = {
    **{"Relu": ("relu", {}), "Tanh": ("tanh", {}), "Sigmoid": ("sigmoid", {})},
    **{"Exp": ("exp", {}), "Log": ("log", {}), "Sqrt": ("sqrt", {}), "Sign": ("sign", {})},
    **{"Floor": ("floor", {}), "Ceil": ("ceil", {}), "Reciprocal": ("reciprocal", {})},
    **{"Sin": ("sin", {}), "Cos": ("cos", {}), "Softsign": ("softsign", {})},
    **{"Not": ("logical_not", {}), "Identity": ("assign", {}), "Abs": ("abs", {})},
    "Neg": ("scale", {"scale": -1.0, "bias": 0.0, "bias_after_scale": True}),
    "Softplus": ("softplus", {"beta": 1.0, "threshold": 20.0}),
    "LeakyRelu": ("leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "HardSigmoid": ("hard_sigmoid", {"slope": ("alpha", 0.2), "offset": ("beta", 0.5)}),
}


@rule(*UNARY)
def _unary(w: Writing, node: Node, inputs: list[str]) -> None:
    type_, numbers = UNARY[node.op]
    read = {value[0]: value for value in numbers.values() if isinstance(value, tuple)}
    only(node, *read)
    attributes = {
        name: float(node.attributes.get(value[0], value[1])) if isinstance(value, tuple) else value
        for name, value in numbers.items()
    }
    lod = "" if type_ == "abs" else None
    w.give(node, w.emit(type_, {"X": inputs[0]}, lod=lod, attributes=attributes))


@rule("Gelu")
def _gelu(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "approximate")
    form = node.attributes.get("approximate", "none")
    w.give(node, w.emit("gelu", {"X": inputs[0]}, attributes={"approximate": form == "tanh"}))


@rule("Cast")
def _cast(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "to")
    to = str(node.attributes["to"])
    if to not in _COMPUTED:
        raise UnsupportedError(
            f"attribute to={to}: only {', '.join(sorted(_COMPUTED))} are written"
        )
    found = w.of(inputs[0]).dtype
    codes = {"in_dtype": CODES[found], "out_dtype": CODES[to]}
    w.give(node, w.emit("cast", {"X": inputs[0]}, None, to, attributes=codes))


@rule("CastLike")
def _cast_like(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    w.give(node, w.cast(w.emit("assign", {"X": inputs[0]}), w.of(inputs[1]).dtype))


BINARY = {
    **{"Add": "elementwise_add", "Sub": "elementwise_sub", "Mul": "elementwise_mul"},
    **{"Div": "elementwise_div", "Pow": "elementwise_pow", "Max": "elementwise_max"},
    **{"Min": "elementwise_min", "Sum": "elementwise_add"},
    **{"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"},
    **{"Equal": "equal", "Less": "less_than", "LessOrEqual": "less_equal"},
    **{"Greater": "greater_than", "GreaterOrEqual": "greater_equal"},
}
_TRUTHS = frozenset("And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual".split())


@rule(*BINARY)
def _binary(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    out, *others = inputs
    for other in others:
        if node.op in ("Div", "Pow") and w.of(out).dtype != w.of(other).dtype:
            raise UnsupportedError("numbers of two types")
        out = w.add(out, other, BINARY[node.op], "bool" if node.op in _TRUTHS else "")
    if not others:
        out = w.emit("assign", {"X": out})
    w.give(node, out)


@rule("Clip")
def _clip(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node)
    out = inputs[0]
    bounds = [name and w.array(name, "a bound").reshape(()) for name in node.inputs[1:3]]
    for bound, kind in zip(bounds, ("max", "min"), strict=False):
        if not isinstance(bound, str):
            out = w.add(out, w.constant(bound), f"elementwise_{kind}")
    w.give(node, out if out != inputs[0] else w.emit("assign", {"X": out}))


@rule("Where")
def _where(w: Writing, node: Node, inputs: list[str]) -> None:
    """Paddle's takes equal shapes, so all are multiplied by ones of the whole one before."""
    only(node)
    condition, x, y = (w.dense(name) for name in inputs)
    dtype = w.of(x).dtype
    if dtype == "bool" or w.of(y).dtype != dtype:
        raise UnsupportedError(f"a choice between {dtype} and {w.of(y).dtype}")
    truth = w.cast(condition, dtype)
    whole = w.add(w.add(truth, x), y)
    sizes = w.emit("shape", {"Input": whole}, (w.rank(whole),), "int32", lod="")
    ones = filled(w, sizes, np.ones((), dtype), w.rank(whole))
    truth, x, y = (w.add(each, ones, "elementwise_mul") for each in (truth, x, y))
    slots = {"Condition": w.cast(truth, "bool"), "X": x, "Y": y}
    w.give(node, w.emit("where", slots, w.of(x).sizes, dtype, lod=""))


def matmul(w: Writing, x: str, y: str, *, turned: bool = False) -> str:
    """x times y, both as they are, or y transposed; words keep their LoD."""
    rank, other = w.rank(x), w.rank(y)
    columns = w.of(y).sizes[0 if turned else -1]
    if other == 2 and rank >= 2 and not turned:
        sizes = (*w.of(x).sizes[:-1], columns)
        factors = {"x_num_col_dims": rank - 1, "y_num_col_dims": 1}
        return w.emit("mul", {"X": x, "Y": y}, sizes, attributes=factors)
    out = rank + other - 2 if min(rank, other) == 1 else max(rank, other)
    slots = {"X": x, "Y": y}
    made = w.emit("matmul_v2", slots, out, lod="", attributes={"trans_x": False, "trans_y": turned})
    return w.under(made, x) if w.of(x).depth else made


@rule("MatMul")
def _matmul(w: Writing, node: Node, inputs: list[str]) -> None:
    """A window of words times a filter is a convolution over sentences."""
    only(node)
    maker = w.graph.producer(node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and w.rank(inputs[1]) == 2:
        return w.give(node, convolution(w, maker, inputs[1]))
    w.give(node, matmul(w, *inputs))


def convolution(w: Writing, window: Node, filter_: str) -> str:
    """What `SequenceContext` gives, times a matrix."""
    x = w.value(window.inputs[0])
    length, start = window.attributes["length"], window.attributes["start"]
    return w.emit(
        "sequence_conv",
        {"X": x, "Filter": filter_},
        (None, w.of(filter_).sizes[1]),
        attributes={
            "contextLength": length,
            "contextStart": start,
            "contextStride": 1,
            "paddingTrainable": False,
        },
    )


@rule("Gemm")
def _gemm(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "transA", "transB", "alpha", "beta")
    x, y, *rest = inputs
    if node.attributes.get("transA"):
        x = w.transpose(x, (1, 0))
    out = matmul(w, x, y, turned=bool(node.attributes.get("transB")))
    out = _scaled(w, out, node.attributes.get("alpha", 1.0))
    if rest and rest[0]:
        out = w.add(out, _scaled(w, rest[0], node.attributes.get("beta", 1.0)))
    w.give(node, out)


def _scaled(w: Writing, x: str, factor: float) -> str:
    if factor == 1:
        return x
    numbers = {"scale": float(factor), "bias": 0.0, "bias_after_scale": True}
    return w.emit("scale", {"X": x}, attributes=numbers)


@rule("Softmax", "LogSoftmax")
def _softmax(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis")
    type_ = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    w.give(
        node,
        w.emit(type_, {"X": inputs[0]}, attributes={"axis": int(node.attributes.get("axis", -1))}),
    )


REDUCTIONS = {
    **{"ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceProd": "reduce_prod"},
    **{"ReduceMax": "reduce_max", "ReduceMin": "reduce_min"},
}


@rule(*REDUCTIONS)
def _reduce(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "keepdims", "noop_with_empty_axes")
    x, dtype = w.dense(inputs[0]), w.of(inputs[0]).dtype
    rank, keep = w.rank(x), bool(node.attributes.get("keepdims", 1))
    axes = [axis % rank for axis in ints(w, node, 1, "axes")] if node.input(1) else []
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return w.give(node, w.emit("assign", {"X": x}))
    whole = sorted(axes or range(rank))
    type_ = REDUCTIONS[node.op]
    if dtype == "bool" and node.op in ("ReduceMax", "ReduceMin"):
        type_ = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}[node.op]
    wide = dtype == "int32" and node.op == "ReduceSum"
    numbers = {"dim": whole, "keep_dim": keep, "reduce_all": len(whole) == rank}
    numbers |= {"in_dtype": -1, "out_dtype": -1}
    sizes = rank if keep else rank - len(whole)
    made = w.emit(type_, {"X": x}, sizes, "int64" if wide else dtype, lod="", attributes=numbers)
    w.give(node, w.cast(made, dtype))


@rule("ArgMax")
def _arg_max(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis", "keepdims", "select_last_index")
    if node.attributes.get("select_last_index", 0):
        raise UnsupportedError("attribute select_last_index: Paddle takes the first of equal ones")
    axis, keep = int(node.attributes.get("axis", 0)), bool(node.attributes.get("keepdims", 1))
    numbers = {"axis": axis, "keepdims": keep, "flatten": False, "dtype": 3}
    rank = w.rank(inputs[0]) - (not keep)
    w.give(node, w.emit("arg_max", {"X": inputs[0]}, rank, "int64", lod="", attributes=numbers))


@rule("TopK")
def _top_k(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis", "largest", "sorted")
    (k,) = ints(w, node, 1, "k")
    axis, largest = int(node.attributes.get("axis", -1)), bool(node.attributes.get("largest", 1))
    numbers = {"k": k, "axis": axis, "largest": largest, "sorted": True}
    rank = w.rank(inputs[0])
    lod = "" if axis % rank == 0 else None
    values = w.emit(
        "top_k_v2", {"X": inputs[0]}, rank, also=("Indices",), lod=lod, attributes=numbers
    )
    at = w.side(values, "Indices")
    w.of(at).dtype = "int64"
    w.give(node, values)
    w.give(node, at, 1)


def _known(size: int | None) -> int:
    return size or 0


@rule("LayerNormalization")
def _layer_norm(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "axis", "epsilon", "stash_type")
    if any(w.wants(node, at) for at in (1, 2)):
        raise UnsupportedError("mean or deviation of a normalization is read")
    x, rank = inputs[0], w.rank(inputs[0])
    axis = node.attributes.get("axis", -1) % rank
    shape = w.of(inputs[1]).sizes
    if len(shape) != rank - axis or None in shape:
        raise UnsupportedError(f"scale {shape} of a normalization over axes from {axis} on")
    held = w.of(x)
    held.sizes = (*held.sizes[:axis], *shape)  # what is normalized is as large as its scale
    slots = {"X": x, "Scale": w.reshape(inputs[1], [-1], (math.prod(map(_known, shape)),))}
    if len(inputs) > 2 and inputs[2]:
        slots["Bias"] = w.reshape(inputs[2], [-1], (math.prod(map(_known, shape)),))
    numbers = {"epsilon": float(node.attributes.get("epsilon", 1e-5)), "begin_norm_axis": axis}
    w.give(
        node, w.emit("layer_norm", slots, out="Y", also=("Mean", "Variance"), attributes=numbers)
    )


@rule("BatchNormalization")
def _batch_norm(w: Writing, node: Node, inputs: list[str]) -> None:
    only(node, "epsilon", "momentum")
    names = ("Scale", "Bias", "Mean", "Variance")
    slots = {"X": inputs[0]}
    for slot, name in zip(names, node.inputs[1:], strict=True):  # the operator's own: it gives
        slots[slot] = w.constant(
            w.array(name, slot), f"{node.outputs[0]}.{slot}"
        )  # two of them back
    made = w.emit(
        "batch_norm",
        slots,
        out="Y",
        also=("SavedMean", "SavedVariance"),
        attributes={
            "is_test": True,
            "use_global_stats": True,
            "trainable_statistics": False,
            "momentum": 0.9,
            "data_layout": "NCHW",
            "epsilon": float(node.attributes.get("epsilon", 1e-05)),
        },
    )
    given = {"MeanOut": [slots["Mean"]], "VarianceOut": [slots["Variance"]]}
    w.program.operations[-1].outputs.update(given)
    w.give(node, made)
