"""Operators of ONNX's names as Paddle's: what computes.

Slots and attributes: the operators' makers in 2.6, which are those of 3.x.
"""

from __future__ import annotations

import numpy as np

from onernn.adapters.paddle.operators import TYPES
from onernn.adapters.paddle.write.emitting import Writing, Written, ints, only, rule
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node

_COMPUTED = frozenset("bool int32 int64 float32 float64".split())
"""What Paddle's kernels on CPU compute in."""


@rule("Neg")
def _neg(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.scaled(inputs[0], -1)


@rule("Cast")
def _cast(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "to")
    to = str(node.at.to)
    if to not in _COMPUTED:
        raise UnsupportedError(
            f"attribute to={to}: only {', '.join(sorted(_COMPUTED))} are written"
        )
    return w.cast(inputs[0], to, always=True)


@rule("CastLike")
def _cast_like(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    return w.cast(w.copy(inputs[0]), w.dtype(inputs[1]))


@rule("Clip")
def _clip(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node)
    out = inputs[0]
    for at, kind in ((1, "max"), (2, "min")):
        if name := node.input(at):
            bound = w.constant(w.array(name, "a bound").reshape(()))
            out = w.binary(f"elementwise_{kind}", out, bound)
    return out if out != inputs[0] else w.copy(out)


@rule("Where")
def _where(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Paddle's takes equal shapes, so all are multiplied by ones of the whole one before."""
    only(node)
    condition, x, y = (w.dense(name) for name in inputs)
    dtype = w.dtype(x)
    if dtype == "bool" or w.dtype(y) != dtype:
        raise UnsupportedError(f"a choice between {dtype} and {w.dtype(y)}")
    truth = w.cast(condition, dtype)
    sizes = w.emit("shape", {"Input": w.add(w.add(truth, x), y)})
    ones = w.filled(sizes, np.ones((), dtype))
    truth, x, y = (w.times(each, ones) for each in (truth, x, y))
    return w.emit("where", {"Condition": w.cast(truth, "bool"), "X": x, "Y": y})


def matmul(w: Writing, x: str, y: str, *, turned: bool = False) -> str:
    """x times y, both as they are, or y transposed; words keep their LoD."""
    if w.rank(y) == 2 and w.rank(x) >= 2 and not turned:
        columns = w.rank(x) - 1
        return w.emit("mul", {"X": x, "Y": y}, x_num_col_dims=columns, y_num_col_dims=1)
    made = w.emit("matmul_v2", {"X": x, "Y": y}, trans_x=False, trans_y=turned)
    return w.under(made, x) if w.of(x).depth else made


@rule("MatMul")
def _matmul(w: Writing, node: Node, inputs: list[str]) -> Written:
    """A window of words times a filter is a convolution over sentences."""
    only(node)
    maker = w.graph.producer(node.inputs[0])
    if maker is not None and maker.op == "SequenceContext" and w.rank(inputs[1]) == 2:
        return convolution(w, maker, inputs[1])
    return matmul(w, *inputs)


def convolution(w: Writing, window: Node, filter_: str) -> str:
    """What `SequenceContext` gives, times a matrix."""
    return w.emit(
        "sequence_conv",
        {"X": w.value(window.inputs[0]), "Filter": filter_},
        contextLength=window.at.length,
        contextStart=window.at.start,
        contextStride=1,
        paddingTrainable=False,
    )


@rule("Gemm")
def _gemm(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "transA", "transB", "alpha", "beta")
    x, y, *rest = inputs
    if node.at.transA:
        x = w.transpose(x, (1, 0))
    out = matmul(w, x, y, turned=bool(node.at.transB))
    out = out if node.at.alpha == 1 else w.scaled(out, node.at.alpha)
    if rest and rest[0]:
        out = w.add(out, rest[0] if node.at.beta == 1 else w.scaled(rest[0], node.at.beta))
    return out


_OF_TRUTHS = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


@rule("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin")
def _reduce(w: Writing, node: Node, inputs: list[str]) -> Written:
    """Paddle sums int32 as int64."""
    only(node, "keepdims", "noop_with_empty_axes")
    x, dtype = w.dense(inputs[0]), w.dtype(inputs[0])
    rank, type_ = w.rank(x), TYPES[node.op]
    axes = [axis % rank for axis in ints(w, node, 1, "axes")] if node.input(1) else []
    if not axes and node.at.noop_with_empty_axes:
        return w.copy(x)
    whole = sorted(axes or range(rank))
    if dtype == "bool":
        type_ = _OF_TRUTHS.get(node.op, type_)
    made = w.emit(
        type_,
        {"X": x},
        dim=whole,
        keep_dim=bool(node.at.keepdims),
        reduce_all=len(whole) == rank,
        in_dtype=-1,
        out_dtype=-1,
    )
    return w.cast(made, dtype)


@rule("ArgMax")
def _arg_max(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "keepdims", "select_last_index")
    if node.at.select_last_index:
        raise UnsupportedError("attribute select_last_index: Paddle takes the first of equal ones")
    axis, keep = int(node.at.axis), bool(node.at.keepdims)
    slots = {"X": inputs[0]}
    return w.emit("arg_max", slots, axis=axis, keepdims=keep, flatten=False, dtype=3)


@rule("TopK")
def _top_k(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "largest", "sorted")
    (k,) = ints(w, node, 1, "k")
    made = w.emit_all(
        "top_k_v2",
        {"X": inputs[0]},
        {"Out": 1, "Indices": 1},
        k=k,
        axis=int(node.at.axis),
        largest=bool(node.at.largest),
        sorted=True,
    )
    return made["Out"] + made["Indices"]


@rule("LayerNormalization")
def _layer_norm(w: Writing, node: Node, inputs: list[str]) -> Written:
    only(node, "axis", "epsilon", "stash_type")
    if any(map(w.wants, node.outputs[1:])):
        raise UnsupportedError("mean or deviation of a normalization is read")
    rank, shape = w.rank(inputs[0]), w.sizes(inputs[1])
    axis = node.at.axis % rank
    if len(shape) != rank - axis or None in shape:
        raise UnsupportedError(f"scale {shape} of a normalization over axes from {axis} on")
    x = inputs[0]
    if None in w.sizes(x)[axis:]:  # what is normalized is as large as its scale
        x = w.reshape(x, [*[0] * axis, *filter(None, shape)])
    slots = {"X": x, "Scale": w.reshape(inputs[1], [-1])}
    if len(inputs) > 2 and inputs[2]:
        slots["Bias"] = w.reshape(inputs[2], [-1])
    return w.emit(
        "layer_norm",
        slots,
        out="Y",
        also=("Mean", "Variance"),
        epsilon=float(node.at.epsilon),
        begin_norm_axis=axis,
    )


@rule("BatchNormalization")
def _batch_norm(w: Writing, node: Node, inputs: list[str]) -> Written:
    """The numbers are the operator's own: it gives two of them back."""
    only(node, "epsilon", "momentum")
    numbers = {
        slot: w.constant(w.array(name, slot), f"{node.outputs[0]}.{slot}")
        for slot, name in zip(("Scale", "Bias", "Mean", "Variance"), node.inputs[1:], strict=True)
    }
    made = w.emit(
        "batch_norm",
        {"X": inputs[0], **numbers},
        out="Y",
        also=("SavedMean", "SavedVariance"),
        is_test=True,
        use_global_stats=True,
        trainable_statistics=False,
        momentum=0.9,
        data_layout="NCHW",
        epsilon=float(node.at.epsilon),
    )
    given = {"MeanOut": [numbers["Mean"]], "VarianceOut": [numbers["Variance"]]}
    w.program.operations[-1].outputs.update(given)
    return made
