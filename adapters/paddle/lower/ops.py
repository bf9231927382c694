"""The table: Paddle's operators -> canonical ones.

Formulas, slots and defaults: Paddle's operator definitions (REGISTER_OPERATOR, *OpMaker) of 2.6.
Which LoD an output gets: ShareLoD in their InferShape, measured with 2.6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.paddle.lower import arithmetic, gru, lstm, rnn, sequences, shaping
from onernn.adapters.paddle.lower.operator import PaddleOperator
from onernn.adapters.paddle.lower.table import RULES, rule
from onernn.core.errors import UnsupportedError

__all__ = ["RULES", "arithmetic", "sequences", "shaping"]

rule("gru")(gru.gru)
rule("fusion_gru")(gru.fusion_gru)
rule("multi_gru")(gru.multi_gru)
rule("gru_unit")(gru.gru_unit)
rule("attention_lstm")(gru.attention_lstm)
rule("crf_decoding")(gru.crf_decoding)
rule("lstm")(lstm.lstm)
rule("fusion_lstm")(lstm.fusion_lstm)
rule("fused_embedding_fc_lstm")(lstm.fused_embedding_fc_lstm)
rule("rnn")(rnn.rnn)


def _project(op: PaddleOperator, slot: str, columns: int, weight: str) -> str:
    """The input as a matrix behind its first ``columns`` axes, times weight (a matrix)."""
    x, sizes = op.value(slot), op.shape(slot)
    if not 0 < columns < len(sizes):
        raise UnsupportedError(f"{columns} leading columns of an input of {len(sizes)} axes")
    if len(sizes) > columns + 1:
        rows = op.builder.constants[weight].shape[0] if weight in op.builder.constants else -1
        x = op.emit("Reshape", x, op.ints([0] * columns + [rows]))
    return op.emit("MatMul", x, weight)


@rule("mul")
def _mul(op: PaddleOperator) -> None:
    for scale in ("scale_x", "scale_out"):
        op.only(scale, 1.0)
    op.only("scale_y", (1.0,))
    y, sizes = op.value("Y"), op.shape("Y")
    columns, split = op.attribute("x_num_col_dims", 1), op.attribute("y_num_col_dims", 1)
    if not 0 < split < len(sizes):
        raise UnsupportedError(f"attribute y_num_col_dims={split}: Y has {len(sizes)} axes")
    if len(sizes) > 2:
        matrix = op.constant("Y").reshape(math.prod(op.constant("Y").shape[:split]), -1)
        y = op.builder.constant(matrix, f"{y}/matrix")
    out = _project(op, "X", columns, y)
    if len(sizes) - split > 1:
        out = op.emit("Reshape", out, op.ints([0] * columns + list(op.constant("Y").shape[split:])))
    op.give("Out", out)


# What Paddle 3's passes fuse into an fc, and it saves with every fc.
FUSED: dict[str, Any] = {
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "fused_output_scale": 1.0,
}
FUSED |= {"fused_reshape2_shape": ()}


@rule("fc")
def _fc(op: PaddleOperator) -> None:
    op.only("padding_weights", False)
    op.only("Scale_in", 1.0)
    op.only("Scale_weights", (1.0,))
    op.only("Scale_out", 1.0)
    for name, neutral in FUSED.items():
        op.only(name, neutral)
    out = _project(op, "Input", op.attribute("in_num_col_dims", 1), op.value("W"))
    if bias := op.optional("Bias"):
        flat = op.builder.constant(op.builder.array(bias, "Bias").reshape(-1), f"{bias}/flat")
        out = op.emit("Add", out, flat)
    activation = op.attribute("activation_type", "")
    if activation not in ("", *ACTIVATIONS):
        raise UnsupportedError(f"attribute activation_type={activation!r}")
    op.give("Out", op.emit(ACTIVATIONS[activation], out) if activation else out)


@rule("matmul_v2")
def _matmul(op: PaddleOperator) -> None:
    op.give("Out", _product(op))


def matmul_of_3(op: PaddleOperator) -> None:
    """Paddle 3 hands on the LoD of X, whatever becomes of its rows; measured with 3.3.1."""
    x, out, rank = op.value("X"), _product(op), len(op.shape("X"))
    if op.is_ragged(x):
        if rank < 2 or len(op.shape("Y")) > rank or rank == 2 and op.attribute("trans_x", False):
            raise UnsupportedError("input X: Paddle 3 keeps a LoD that does not fit")
        out = op.emit("SequenceLike", out, x, depth=op.builder.depth[x])
    op.give("Out", out)


def _product(op: PaddleOperator) -> str:
    factors = []
    for slot, flag in (("X", "trans_x"), ("Y", "trans_y")):
        value = op.dense(op.value(slot))  # the LoD is lost here
        if op.attribute(flag, False) and len(sizes := op.shape(slot)) > 1:
            perm = [*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]
            value = op.emit("Transpose", value, perm=perm)
        factors.append(value)
    return op.emit("MatMul", *factors)


ELEMENTWISE = {
    **{"elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul"},
    **{"elementwise_div": "Div", "elementwise_pow": "Pow"},
    **{"elementwise_max": "Max", "elementwise_min": "Min"},
    **{"equal": "Equal", "less_than": "Less", "less_equal": "LessOrEqual"},
    **{"greater_than": "Greater", "greater_equal": "GreaterOrEqual"},
    **{"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"},
}


@rule(*ELEMENTWISE)
def _elementwise(op: PaddleOperator) -> None:
    op.attribute("force_cpu", False)
    for scale in ("Scale_x", "Scale_y", "Scale_out", "scale_x", "scale_y", "scale_out"):
        op.only(scale, 1.0)
    x, y, axis = op.value("X"), op.dense(op.value("Y")), op.attribute("axis", -1)
    rank, inner = len(op.shape("X")), len(op.shape("Y"))
    if rank < inner and op.is_ragged(x):
        raise UnsupportedError(f"input Y has {inner} axes, more than the ragged X with {rank}")
    missing = 0 if axis == -1 else max(rank, inner) - axis - min(rank, inner)
    if missing < 0 or axis < -1:
        raise UnsupportedError(f"attribute axis={axis} for inputs of {rank} and {inner} axes")
    if missing:  # the shorter one stands before axes of the longer one
        behind = op.ints(range(min(rank, inner), min(rank, inner) + missing))
        x, y = (
            (x, op.emit("Unsqueeze", y, behind))
            if inner < rank
            else (op.emit("Unsqueeze", x, behind), y)
        )
    op.give("Out", op.emit(ELEMENTWISE[op.at.type], x, y))


@rule("lookup_table", "lookup_table_v2")
def _lookup_table(op: PaddleOperator) -> None:
    ids, table = op.value("Ids"), op.value("W")
    if op.at.type == "lookup_table":  # ids (..., 1); v2 takes them without the last axis
        ids = op.emit("Squeeze", ids, op.ints([-1]))
    padding = op.attribute("padding_idx", -1)
    if padding != -1:
        rows = op.constant("W").copy()
        if padding == len(rows):  # one past the table is a row of zeros, too
            rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        if not 0 <= padding < len(rows):
            raise UnsupportedError(
                f"attribute padding_idx={padding}: the table has {len(rows)} rows"
            )
        rows[padding] = 0
        table = op.builder.constant(rows, f"{table}/padded")
    op.give("Out", op.emit("Gather", table, ids, axis=0, non_negative=True))


@rule("concat")
def _concat(op: PaddleOperator) -> None:
    values = [op.builder.value(name) for name in op.variables("X")]
    axis = op.attribute("axis", 0)
    axis += len(op.shape("X")) if axis < 0 else 0
    levels = {op.builder.depth.get(value, 0) for value in values}
    if not op.is_ragged(values[0]):
        values = [op.dense(value) for value in values]
    elif axis == 0:
        if len(levels) > 1:
            raise UnsupportedError(f"attribute axis=0: inputs X have {sorted(levels)} LoD levels")
        return op.give("Out", op.emit("SequenceAppend", *values))
    op.give("Out", op.emit("Concat", *values, axis=axis))


@rule("lod_reset")
def _lod_reset(op: PaddleOperator) -> None:
    op.only("append", False)
    x, like, target = op.value("X"), op.optional("Y"), op.attribute("target_lod", ())
    if like and op.is_ragged(like):  # Y comes before target_lod
        depth = op.builder.depth[like]
        return op.give("Out", op.emit("SequenceLike", x, like, depth=depth))
    if like and op.dtype("Y").kind != "i":
        raise UnsupportedError("input Y carries no LoD, and no offsets as numbers")
    if not like and not target:
        raise UnsupportedError("neither input Y nor attribute target_lod")
    op.give("Out", op.emit("SequenceReset", x, like or op.ints(target), depth=1))


ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


@rule(*ACTIVATIONS)
def _activation(op: PaddleOperator) -> None:
    op.give("Out", op.emit(ACTIVATIONS[op.at.type], op.value("X")))


@rule("softmax")
def _softmax(op: PaddleOperator) -> None:
    op.only("data_format", "AnyLayout")
    x, axis = op.value("X"), op.attribute("axis", -1)
    if op.is_ragged(x) and axis in (0, -len(op.shape("X"))):  # over the words of all sentences
        out = op.emit("Softmax", op.dense(x), axis=axis)
        out = op.emit("SequenceLike", out, x, depth=op.builder.depth[x])
    else:
        out = op.emit("Softmax", x, axis=axis)
    op.give("Out", out)


def _affine(op: PaddleOperator, x: str, kind: str, number: float, neutral: float) -> str:
    if number == neutral:
        return x
    dtype = op.dtype("X")
    if dtype.kind != "f" and number != int(number):
        raise UnsupportedError(f"{kind} {number} of {dtype} numbers")
    return op.emit(kind, x, op.builder.constant(np.asarray(number, dtype), f"{x}/{kind}"))


@rule("scale")
def _scale(op: PaddleOperator) -> None:
    factor, added = op.attribute("scale", 1.0), op.attribute("bias", 0.0)
    steps = [("Mul", factor, 1.0), ("Add", added, 0.0)]
    if not op.attribute("bias_after_scale", True):
        steps.reverse()
    out = op.value("X")
    for kind, number, neutral in steps:
        out = _affine(op, out, kind, number, neutral)
    op.give("Out", op.emit("Identity", out) if out == op.value("X") else out)


@rule("dropout")
def _dropout(op: PaddleOperator) -> None:
    op.variable("Seed")  # in inference nothing is drawn
    if not op.attributes.get("is_test", False):
        op.builder.notes["dropout saved in training mode runs as in inference"] = None
    kept = float(np.float32(1) - np.float32(op.attribute("dropout_prob", 0.5)))
    upscaled = op.attribute("dropout_implementation", "downgrade_in_infer") == "upscale_in_train"
    x = op.value("X")
    out = x if upscaled else _affine(op, x, "Mul", kept, 1.0)
    op.give("Out", op.emit("Identity", x) if out == x else out)


@rule("arg_max")
def _arg_max(op: PaddleOperator) -> None:
    dtypes = {-1: "int64", 2: "int32", 3: "int64"}
    x, axis, dtype = op.dense(op.value("X")), op.attribute("axis", -1), op.attribute("dtype", -1)
    if dtype not in dtypes:
        raise UnsupportedError(f"attribute dtype={dtype}")
    keep, flat = op.attribute("keepdims", False), op.attribute("flatten", False)
    if flat:
        x, axis = op.emit("Reshape", x, op.ints([-1])), 0
    out = op.emit("ArgMax", x, axis=axis, keepdims=int(keep and not flat))
    if keep and flat:
        out = op.emit("Reshape", out, op.ints([1] * len(op.shape("X"))))
    op.give("Out", op.emit("Cast", out, to=dtypes[dtype]) if dtypes[dtype] != "int64" else out)


@rule("reshape2")
def _reshape(op: PaddleOperator) -> None:
    x, sizes, shape = op.value("X"), op.shape("X"), op.attribute("shape", ())
    if op.variables("ShapeTensor"):
        raise UnsupportedError("input ShapeTensor: sizes one by one")
    if computed := op.optional("Shape"):
        if op.is_ragged(x):
            raise UnsupportedError("input Shape: a LoD under a shape that is computed")
        return op.give("Out", op.emit("Reshape", x, op.emit("Cast", computed, to="int64")))
    if op.is_ragged(x) and shape[:1] == (-1,):
        words = _known(sizes[1:])
        rows = _known([sizes[at] if size == 0 else size for at, size in enumerate(shape)][1:])
        if None not in (words, rows) and words != rows:  # Paddle keeps a LoD that does not fit
            raise UnsupportedError(f"attribute shape={shape} splits or joins the words of a LoD")
    op.give("Out", op.emit("Reshape", x, op.ints(shape)))


def _known(sizes: Sequence[int | None]) -> int | None:
    """The product of the sizes, None where one is dynamic."""
    return None if None in sizes else math.prod(size or 0 for size in sizes)


@rule("transpose2")
def _transpose(op: PaddleOperator) -> None:
    op.only("data_format", "AnyLayout")
    op.give("Out", op.emit("Transpose", op.dense(op.value("X")), perm=op.attribute("axis", ())))


@rule("squeeze2")
def _squeeze(op: PaddleOperator) -> None:
    """Axes of another size than one stay; none given are all of size one."""
    x, sizes, axes = op.value("X"), op.shape("X"), op.attribute("axes", ())
    if not axes and None in sizes:
        raise UnsupportedError("attribute axes=(): which axes go shows only at run time")
    chosen = {axis % len(sizes) for axis in axes} or set(range(len(sizes)))
    gone = sorted(axis for axis in chosen if sizes[axis] in (1, None))
    if 0 in gone and op.is_ragged(x):
        raise UnsupportedError(f"attribute axes={axes}: the words of a LoD cannot be squeezed")
    op.give("Out", op.emit("Squeeze", x, op.ints(gone)) if gone else op.emit("Identity", x))


@rule("unsqueeze2")
def _unsqueeze(op: PaddleOperator) -> None:
    """One axis after the other: each counts those that were put in before it."""
    x, placed = op.value("X"), [False] * len(op.shape("X"))
    for axis in op.attribute("axes", ()):
        place = axis if axis >= 0 else axis + len(placed) + 1
        if not 0 <= place <= len(placed):
            raise UnsupportedError(f"attribute axes: {axis} for {len(placed)} axes")
        placed.insert(place, True)
    new = [at for at, added in enumerate(placed) if added]
    # A new first axis has no LoD. Paddle keeps that of a batch of one word, whose first size stays.
    depth = 0 if 0 in new else None
    op.give(
        "Out", op.emit("Unsqueeze", x, op.ints(new), depth=depth) if new else op.emit("Identity", x)
    )


RULES_OF_3 = {**RULES, "matmul_v2": matmul_of_3}
"""The table for programs that Paddle 3 saved."""
