"""The table: Paddle's operators -> canonical ones.

Formulas, slots and defaults: Paddle's operator definitions (REGISTER_OPERATOR, *OpMaker) of 2.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onernn.adapters.lowering import GraphBuilder, NativeOperator
from onernn.adapters.paddle.read import Operator, Variable
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp
from onernn.core.spec import Activation, Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer, summed_bias

INERT = frozenset(
    """
    op_callstack op_device op_namescope op_role op_role_var with_quant_attr is_test
    use_mkldnn use_cudnn use_quantizer mkldnn_data_type use_seq mkldnn_cache_capacity
    Scale_data Shift_data Scale_weights force_fp32_output
    is_sparse is_distributed remote_prefetch trainer_id slot epmap table_names height_sections
    entry_config entry grad_inplace fix_seed seed
    """.split()
)
"""Attributes that cannot change the result of a float32 model on CPU."""

Rule = Callable[["PaddleOperator"], None]
RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


class PaddleOperator(NativeOperator):
    """One operator with the graph it is lowered into."""

    def __init__(
        self, builder: GraphBuilder, variables: Mapping[str, Variable], op: Operator
    ) -> None:
        at = NativeOp(op.position, op.type)
        super().__init__(at, op.inputs, op.outputs, op.attributes, INERT)
        self.builder, self._variables = builder, variables
        self.given: set[str] = set()

    def value(self, slot: str) -> str:
        """The value in a required input slot."""
        variable = self.variable(slot)
        if not variable:
            raise UnsupportedError(f"input {slot} is missing")
        return self.builder.value(variable)

    def optional(self, slot: str) -> str:
        variable = self.variable(slot)
        return variable and self.builder.value(variable)

    def constant(self, slot: str) -> Array:
        return self.builder.array(self.value(slot), slot)

    def optional_constant(self, slot: str) -> Array | None:
        return self.constant(slot) if self.variable(slot) else None

    def shape(self, slot: str) -> tuple[int | None, ...]:
        """The declared sizes of an input, None where dynamic."""
        value = self.builder.value(self.variable(slot))
        if value in self.builder.constants:
            return self.builder.constants[value].shape
        declared = self._variables.get(self.variable(slot))
        if declared is None or declared.shape is None:
            raise UnsupportedError(f"input {slot}: the model does not declare its rank")
        return declared.shape

    def dtype(self, slot: str) -> np.dtype[Any]:
        declared = self._variables.get(self.variable(slot))
        if declared is None or declared.dtype is None:
            raise UnsupportedError(f"input {slot}: the model does not declare its dtype")
        return np.dtype(declared.dtype)

    def emit(self, op: str, *inputs: str, depth: int | None = None, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes, depth=depth)

    def ints(self, values: Any) -> str:
        """A constant list of int64: axes or a shape."""
        return self.builder.constant(np.asarray(values, np.int64), f"{self.at.type}/ints")

    def give(self, slot: str, value: str) -> None:
        """Binds an output slot's variable."""
        (variable,) = self.outputs[slot]
        self.builder.give(variable, value)
        self.given.add(variable)


def _project(op: PaddleOperator, x: str, columns: int, weight: str) -> str:
    """x flattened to a matrix behind its first ``columns`` axes, times weight, unflattened."""
    slot = "X" if "X" in op.inputs else "Input"
    sizes = op.shape(slot)
    if len(sizes) == columns + 1:
        return op.emit("MatMul", x, weight)
    if not 0 < columns < len(sizes):
        raise UnsupportedError(f"{columns} leading axes of an input of {len(sizes)}")
    product = op.emit("MatMul", op.emit("Flatten", x, axis=columns), weight)
    if columns == 1:
        return product
    lead = [-1 if size is None else size for size in sizes[:columns]]
    if lead.count(-1) > 1:
        raise UnsupportedError(f"several dynamic axes in {sizes}")
    width = op.builder.array(weight, "weight").shape[1]
    return op.emit("Reshape", product, op.ints([*lead, width]))


@rule("mul")
def _mul(op: PaddleOperator) -> None:
    for scale in ("scale_x", "scale_out"):
        op.only(scale, 1.0)
    op.only("scale_y", (1.0,))
    y, split = op.value("Y"), op.attribute("y_num_col_dims", 1)
    sizes = op.shape("Y")
    if len(sizes) != 2 or split != 1:
        matrix = op.builder.array(y, "Y").reshape(math.prod(op.constant("Y").shape[:split]), -1)
        if len(sizes) - split != 1:
            raise UnsupportedError(f"y_num_col_dims={split} of an input of {len(sizes)} axes")
        y = op.builder.constant(matrix, f"{y}/matrix")
    op.give("Out", _project(op, op.value("X"), op.attribute("x_num_col_dims", 1), y))


@rule("fc")
def _fc(op: PaddleOperator) -> None:
    op.only("padding_weights", False)
    op.only("Scale_in", 1.0)
    op.only("Scale_weights", (1.0,))
    op.only("Scale_out", 1.0)
    out = _project(op, op.value("Input"), op.attribute("in_num_col_dims", 1), op.value("W"))
    if bias := op.optional("Bias"):
        flat = op.builder.constant(op.builder.array(bias, "Bias").reshape(-1), f"{bias}/flat")
        out = op.emit("Add", out, flat)
    activation = op.attribute("activation_type", "")
    if activation not in ("", *ACTIVATIONS):
        raise UnsupportedError(f"attribute activation_type={activation!r}")
    op.give("Out", op.emit(ACTIVATIONS[activation], out) if activation else out)


@rule("matmul_v2")
def _matmul(op: PaddleOperator) -> None:
    factors = []
    for slot, flag in (("X", "trans_x"), ("Y", "trans_y")):
        value = op.value(slot)
        if op.attribute(flag, False) and len(sizes := op.shape(slot)) > 1:
            perm = [*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]
            if value in op.builder.constants:
                array = op.builder.constants[value].transpose(perm)
                value = op.builder.constant(array, f"{value}/transposed")
            else:
                value = op.emit("Transpose", _dense(op, value), perm=perm)
        factors.append(value)
    op.give("Out", _dense(op, op.emit("MatMul", *factors)))


def _dense(op: PaddleOperator, value: str) -> str:
    """The value without its LoD, where Paddle's operator does not hand it on."""
    return op.emit("SequenceData", value, depth=0) if op.builder.depth.get(value) else value


@rule("elementwise_add")
def _elementwise_add(op: PaddleOperator) -> None:
    for scale in ("Scale_x", "Scale_y", "Scale_out", "scale_x", "scale_y", "scale_out"):
        op.only(scale, 1.0)
    x, y, axis = op.value("X"), op.value("Y"), op.attribute("axis", -1)
    rank, inner = len(op.shape("X")), len(op.shape("Y"))
    missing = 0 if axis == -1 else rank - axis - inner
    if missing < 0 or inner > rank:
        raise UnsupportedError(f"axis={axis} for {inner} axes added to {rank}")
    if missing:
        y = op.emit("Unsqueeze", y, op.ints(range(inner, inner + missing)))
    if not op.builder.depth.get(x):
        y = _dense(op, y)
    op.give("Out", op.emit("Add", x, y))


def _cell(op: PaddleOperator, flat: Array) -> tuple[RnnSpec, Any]:
    functions = (
        op.attribute("gate_activation", "sigmoid"),
        op.attribute("activation", "tanh"),
    )
    origin_mode = op.attribute("origin_mode", False)
    layout, update = paddle.gru_layout(origin_mode=origin_mode, gate_activation=functions[0])
    direction: Direction = "right2left" if op.attribute("is_reverse", False) else "left2right"
    spec = RnnSpec(
        Cell.GRU,
        3 * flat.shape[0],
        flat.shape[0],
        direction=direction,
        activations=(Activation(functions[0]), Activation(functions[1])),
        update=update,
    )
    return spec, layout


def _rnn(op: PaddleOperator, x: str, spec: RnnSpec, weights: RnnWeights) -> None:
    weights.check(spec)
    state = op.optional("H0")
    if state:
        state = op.emit("Unsqueeze", _dense(op, state), op.ints([0, 1]))
    if not op.builder.depth.get(x):
        raise UnsupportedError("its input carries no LoD")
    op.give("Hidden", op.emit("Rnn", x, state, spec=spec, weights=weights))


@rule("gru")
def _gru(op: PaddleOperator) -> None:
    flat, bias = op.constant("Weight"), op.optional_constant("Bias")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(None, paddle.weight_h(flat, layout), summed_bias(layout, bias))
    x = op.emit("GateLayout", op.value("Input"), layout=layout)
    _rnn(op, x, spec, weights)


@rule("fusion_gru")
def _fusion_gru(op: PaddleOperator) -> None:
    flat, projection = op.constant("WeightH"), op.constant("WeightX")
    spec, layout = _cell(op, flat)
    weights = RnnWeights(
        input_layer(projection, layout),
        paddle.weight_h(flat, layout),
        summed_bias(layout, op.optional_constant("Bias")),
    )
    _rnn(op, op.value("X"), spec.one_layer(projection.shape[0], spec.direction), weights)


@rule("lookup_table", "lookup_table_v2")
def _lookup_table(op: PaddleOperator) -> None:
    ids, table = op.value("Ids"), op.value("W")
    if op.at.type == "lookup_table":  # ids (..., 1); v2 takes them without the last axis
        ids = op.emit("Squeeze", ids, op.ints([-1]))
    padding = op.attribute("padding_idx", -1)
    if padding != -1:
        rows = op.constant("W").copy()
        rows[padding] = 0
        table = op.builder.constant(rows, f"{table}/padded")
    op.give("Out", op.emit("Gather", table, ids, axis=0, non_negative=True))


@rule("concat")
def _concat(op: PaddleOperator) -> None:
    values = [op.builder.value(name) for name in op.variables("X")]
    if not op.builder.depth.get(values[0]):
        values = [_dense(op, value) for value in values]
    op.give("Out", op.emit("Concat", *values, axis=op.attribute("axis", 0)))


@rule("lod_reset")
def _lod_reset(op: PaddleOperator) -> None:
    op.only("append", False)
    like = op.optional("Y")
    if not like or not op.builder.depth.get(like):
        raise UnsupportedError("only offsets taken over from a ragged input Y are supported")
    op.attribute("target_lod", ())  # Y comes first
    depth = op.builder.depth[like]
    op.give("Out", op.emit("SequenceLike", op.value("X"), like, depth=depth))


ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


@rule(*ACTIVATIONS)
def _activation(op: PaddleOperator) -> None:
    op.give("Out", op.emit(ACTIVATIONS[op.at.type], op.value("X")))


@rule("softmax")
def _softmax(op: PaddleOperator) -> None:
    op.only("data_format", "AnyLayout")
    op.give("Out", op.emit("Softmax", op.value("X"), axis=op.attribute("axis", -1)))


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
    op.variable("Seed")
    if not op.attributes.get("is_test", False):
        op.builder.notes["dropout saved in training mode runs as in inference"] = None
    kept = 1.0 - op.attribute("dropout_prob", 0.5)
    upscaled = op.attribute("dropout_implementation", "downgrade_in_infer") == "upscale_in_train"
    x = op.value("X")
    out = x if upscaled else _affine(op, x, "Mul", kept, 1.0)
    op.give("Out", op.emit("Identity", x) if out == x else out)


@rule("arg_max")
def _arg_max(op: PaddleOperator) -> None:
    dtypes = {-1: "int64", 2: "int32", 3: "int64"}
    dtype = op.attribute("dtype", -1)
    if dtype not in dtypes:
        raise UnsupportedError(f"attribute dtype={dtype}")
    op.only("flatten", False)
    keep = op.attribute("keepdims", False)
    out = op.emit(
        "ArgMax", _dense(op, op.value("X")), axis=op.attribute("axis", -1), keepdims=int(keep)
    )
    op.give("Out", op.emit("Cast", out, to=dtypes[dtype]) if dtypes[dtype] != "int64" else out)


@rule("crf_decoding")
def _crf_decoding(op: PaddleOperator) -> None:
    if not op.builder.depth.get(op.value("Emission")):
        raise UnsupportedError("its input carries no LoD")
    op.give("ViterbiPath", op.emit("CrfDecode", op.value("Emission"), op.value("Transition")))


@rule("reshape2")
def _reshape(op: PaddleOperator) -> None:
    shape = op.ints(op.attribute("shape", ()))
    op.give("Out", op.emit("Reshape", op.value("X"), shape))


@rule("transpose2")
def _transpose(op: PaddleOperator) -> None:
    op.only("data_format", "AnyLayout")
    perm = op.attribute("axis", ())
    x = op.value("X")
    op.give("Out", op.emit("Transpose", x if perm[:1] == (0,) else _dense(op, x), perm=perm))


@rule("squeeze2", "unsqueeze2")
def _squeeze(op: PaddleOperator) -> None:
    axes = op.attribute("axes", ())
    kind = "Squeeze" if op.at.type == "squeeze2" else "Unsqueeze"
    if not axes:
        raise UnsupportedError("without axes")
    x = op.value("X")
    op.give("Out", op.emit(kind, _dense(op, x) if 0 in axes else x, op.ints(axes)))
