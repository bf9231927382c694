"""Tables of equivalent operators of Paddle 2, PIR and onernn, and Paddle's names of fuse passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from onernn.fuse_passes import Applied
from onernn.ir.records import dataclass

# The table of Paddle's operators that are equivalent to one canonical operator each.
#
# A row has three uses: reading (`lower`), reading Paddle 3's format (`read.parse_pir`) and writing
# (`write`). If a row is not enough for one of these uses, a separate rule implements the use. Slots
# and defaults come from the OpMaker classes of Paddle 2.6, and are the same in 3.x. Which operators
# keep a LoD was measured with 2.6.2.


class Named(NamedTuple):
    """The name and the default that a canonical attribute has in Paddle.

    ``values``: the canonical values for Paddle's False and True, if Paddle's attribute is a bool.
    """

    name: str
    default: Any
    values: tuple[Any, ...] = ()

    def ours(self, value: Any) -> Any:
        return self.values[int(value)] if self.values else value

    def theirs(self, value: Any) -> Any:
        kind = type(self.default)
        return kind(self.values.index(value) if self.values else value)


@dataclass(frozen=True)
class Row:
    """A row of the table: Paddle's operator ``type`` is equivalent to the canonical operator
    ``op``.

    ``inputs``: Paddle's slots in the order of the canonical inputs. ``attributes``: Paddle's
    attributes by canonical names. ``only``: the accepted values of attributes that the canonical
    operator lacks. ``written``: the values that are written for such attributes. ``pir``: the
    operator's name in PIR if it differs, "-" if PIR lacks the operator. ``renamed``: maps attribute
    names of PIR to different names of Paddle 2.
    """

    type: str
    op: str
    inputs: tuple[str, ...] = ("X",)
    attributes: Mapping[str, Named] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    keeps_lod: bool = True
    pir: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)


_SCALES = ("Scale_x", "Scale_y", "Scale_out", "scale_x", "scale_y", "scale_out")
_UNSCALED = dict.fromkeys(_SCALES, 1.0)  # int8 programs set different scales


def _binary(type_: str, op: str, pir: str = "") -> Row:
    return Row(type_, op, ("X", "Y"), only=_UNSCALED, pir=pir)


def _along_axis(type_: str, op: str) -> Row:
    only = {"data_format": "AnyLayout"}
    return Row(type_, op, attributes={"axis": Named("axis", -1)}, only=only)


_SIXTHS = {"threshold": 6.0, "scale": 6.0, "offset": 3.0}

ROWS = (
    Row("relu", "Relu"),
    Row("tanh", "Tanh"),
    Row("sigmoid", "Sigmoid"),
    Row("exp", "Exp"),
    Row("log", "Log"),
    Row("sqrt", "Sqrt"),
    Row("abs", "Abs", keeps_lod=False),
    Row("sign", "Sign"),
    Row("floor", "Floor"),
    Row("ceil", "Ceil"),
    Row("reciprocal", "Reciprocal"),
    Row("sin", "Sin"),
    Row("atan", "Atan"),
    Row("cos", "Cos"),
    Row("softsign", "Softsign"),
    Row("hard_swish", "HardSwish", only=_SIXTHS, written=_SIXTHS, pir="hardswish"),
    Row("erf", "Erf"),
    Row("isnan_v2", "IsNaN", keeps_lod=False, pir="isnan"),
    Row("logical_not", "Not"),
    Row("assign", "Identity"),
    Row("share_data", "Identity", keeps_lod=False),
    Row("softplus", "Softplus", written={"beta": 1.0, "threshold": 20.0}),
    Row(
        "leaky_relu",
        "LeakyRelu",
        attributes={"alpha": Named("alpha", 0.02)},
        renamed={"negative_slope": "alpha"},
    ),
    Row("elu", "Elu", attributes={"alpha": Named("alpha", 1.0)}),
    Row("celu", "Celu", attributes={"alpha": Named("alpha", 1.0)}),
    Row(
        "selu",
        "Selu",
        attributes={
            "gamma": Named("scale", 1.0507009873554805),
            "alpha": Named("alpha", 1.6732632423543772),
        },
    ),
    Row(
        "thresholded_relu",
        "ThresholdedRelu",
        attributes={"alpha": Named("threshold", 1.0)},
        only={"value": 0.0},
    ),
    Row(
        "hard_sigmoid",
        "HardSigmoid",
        attributes={"alpha": Named("slope", 0.2), "beta": Named("offset", 0.5)},
        pir="hardsigmoid",
    ),
    Row(
        "gelu",
        "Gelu",
        attributes={"approximate": Named("approximate", False, values=("none", "tanh"))},
    ),
    _along_axis("softmax", "Softmax"),
    _along_axis("log_softmax", "LogSoftmax"),
    _binary("elementwise_add", "Add", "add"),
    _binary("elementwise_sub", "Sub", "subtract"),
    _binary("elementwise_mul", "Mul", "multiply"),
    _binary("elementwise_div", "Div", "divide"),
    _binary("elementwise_pow", "Pow"),
    _binary("elementwise_max", "Max", "maximum"),
    _binary("elementwise_min", "Min", "minimum"),
    _binary("equal", "Equal"),
    _binary("less_than", "Less"),
    _binary("less_equal", "LessOrEqual"),
    _binary("greater_than", "Greater"),
    _binary("greater_equal", "GreaterOrEqual"),
    _binary("logical_and", "And"),
    _binary("logical_or", "Or"),
    _binary("logical_xor", "Xor"),
    Row("sequence_softmax", "SequenceSoftmax", only={"data_format": "AnyLayout"}, pir="-"),
    Row("sequence_reverse", "SequenceReverse", pir="-"),
)

REDUCTIONS = (
    Row("reduce_sum", "ReduceSum", pir="sum"),
    Row("reduce_mean", "ReduceMean", pir="mean"),
    Row("reduce_max", "ReduceMax", pir="max"),
    Row("reduce_min", "ReduceMin", pir="min"),
    Row("reduce_prod", "ReduceProd", pir="prod"),
    Row("reduce_any", "ReduceMax", pir="any"),
    Row("reduce_all", "ReduceMin", pir="all"),
    Row("mean", "ReduceMean", pir="-"),
)
"""Reductions. Their attributes ``dim``, ``keep_dim`` and ``reduce_all`` become the canonical axes
and ``keepdims``.
"""

TYPES = {row.op: row.type for row in reversed((*ROWS, *REDUCTIONS))}
"""Paddle's operator type by canonical operator. If several rows have this operator, the first is
used.
"""


# The table of PIR's operators, each with the equivalent operator of Paddle 2 and the names of its
# operands.
#
# `OPERATORS` also includes the rows of the table above.
#
# Sources: paddle/phi/ops/yaml/ops.yaml (order of operands and results), op_compat.yaml (names).

Names = Mapping[str, Any]


@dataclass(frozen=True)
class Meaning:
    """The operator ``type`` of Paddle 2 that is equivalent to a PIR operator.

    ``inputs``: the slot of each operand. ``=name|Slot``: the attribute ``name`` if the operand is a
    constant, otherwise ``Slot``. ``-``: an operand that has no effect in inference.

    ``renamed``: maps attribute names of PIR to different names of Paddle 2. ``fixed``: attributes
    that PIR lacks. ``dropped``: attributes that Paddle 2 lacks. ``lists``: whether a constant
    operand of one number becomes a list.
    """

    type: str
    inputs: tuple[str, ...] = ("X",)
    outputs: tuple[str, ...] = ("Out",)
    renamed: Names = field(default_factory=dict)
    fixed: Names = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    lists: bool = False


def _of(type_: str, inputs: str = "X", outputs: str = "Out", **more: Any) -> Meaning:
    return Meaning(type_, tuple(inputs.split()), tuple(outputs.split()), **more)


def _of_reduction(row: Row) -> Meaning:
    """Returns the equivalent of a PIR reduction, whose axes are an operand, usually a constant."""
    dtypes = _OUT_DTYPE if row.type == "reduce_sum" else {}
    return _of(row.type, "X =dim", lists=True, renamed={**_KEEPS, **dtypes})


_KEEPS = {"axis": "dim", "keepdim": "keep_dim"}
_OUT_DTYPE = {"dtype": "out_dtype"}
_XSHAPE = "Out XShape"
_PLACES = "=starts|StartsTensor =ends|EndsTensor =steps|StepsTensor"

_SAME = {
    **dict.fromkeys(
        "square rsqrt silu relu6 flip log2 log10 logsigmoid logsumexp p_norm unbind".split(), "X"
    ),
    "scale": "X =scale|ScaleTensor",
    "clip": "X =min|Min =max|Max",
    "where": "Condition X Y",
    "gather": "X Index =axis|Axis",
    "cumsum": "X =axis|Axis",
    "masked_fill": "X Mask Value",
    "not_equal": "X Y",
    "prelu": "X Alpha",
    "bmm": "X Y",
    "mv": "X Vec",
    "gather_nd": "X Index",
    "index_sample": "X Index",
    "concat": "X =axis|AxisTensor",
    "split": "X =sections|SectionsTensor =axis|AxisTensor",
    "shape": "Input",
}
"""The input slots of operators that have the same name in PIR and in Paddle 2."""

OPERATORS: dict[str, Meaning] = {
    **{
        row.pir or row.type: Meaning(row.type, row.inputs, renamed=row.renamed)
        for row in ROWS
        if row.pir != "-"
    },
    **{row.pir: _of_reduction(row) for row in REDUCTIONS if row.pir != "-"},
    **{name: _of(name, slots) for name, slots in _SAME.items()},
    "swish": _of("swish", fixed={"beta": 1.0}),
    "embedding": _of("lookup_table_v2", "Ids W", dropped=("sparse",)),
    "matmul": _of("matmul_v2", "X Y", renamed={"transpose_x": "trans_x", "transpose_y": "trans_y"}),
    "transpose": _of("transpose2", outputs=_XSHAPE, renamed={"perm": "axis"}),
    "reshape": _of("reshape2", "X =shape|Shape", _XSHAPE, lists=True),
    "flatten": _of("flatten_contiguous_range", outputs=_XSHAPE),
    "squeeze": _of("squeeze2", "X =axes|AxesTensor", _XSHAPE, lists=True),
    "unsqueeze": _of("unsqueeze2", "X =axes|AxesTensor", _XSHAPE, lists=True),
    **dict.fromkeys(("full", "full_int_array"), _of("fill_constant", "")),
    "full_with_tensor": _of("fill_constant", "ValueTensor ShapeTensor"),
    "shape64": _of("shape", "Input", fixed={"wide": True}),
    "slice": _of("slice", "Input =starts|StartsTensor =ends|EndsTensor", lists=True),
    "strided_slice": _of(
        "strided_slice",
        "Input =starts|StartsTensor =ends|EndsTensor =strides|StridesTensor",
        lists=True,
    ),
    "split_with_num": _of("split", "X =axis|AxisTensor"),
    "stack": _of("stack", outputs="Y"),
    "cast": _of("cast", renamed=_OUT_DTYPE),
    "topk": _of("top_k_v2", "X =k|K", "Out Indices"),
    "argmax": _of("arg_max", "X =axis"),
    "add_n": _of("sum"),
    "dropout": _of(
        "dropout",
        "X Seed =dropout_prob|Probability",
        "Out Mask",
        renamed={"mode": "dropout_implementation"},
    ),
    "layer_norm": _of("layer_norm", "X Scale Bias", "Y Mean Variance"),
    **dict.fromkeys(
        ("batch_norm", "batch_norm_"),
        _of(
            "batch_norm",
            "X Mean Variance Scale Bias",
            "Y MeanOut VarianceOut SavedMean SavedVariance ReserveSpace",
            renamed={"data_format": "data_layout"},
        ),
    ),
    "full_like": _of("fill_any_like", "X =value|ValueTensor"),
    "assign_value_": _of("assign_value", "-"),
    "assign_value": _of("assign_value", ""),
    "arange": _of("range", "Start End Step", dropped=("dtype",)),
    "expand": _of("expand_v2", "X =shape|Shape", lists=True),
    "expand_as": _of("expand_as_v2", "X Y"),
    "tile": _of("tile", "X =repeat_times|RepeatTimes", lists=True),
    "tril": _of("tril_triu", fixed={"lower": True}),
    "triu": _of("tril_triu", fixed={"lower": False}),
    "pow": _of("pow", renamed={"y": "factor"}),
    "round": _of("round", fixed={"halves_to_even": True}),
    "hardtanh": _of("brelu"),
    "sequence_mask": _of("sequence_mask", "X =maxlen|MaxLenTensor", "Y"),
    **dict.fromkeys(
        ("conv2d", "depthwise_conv2d", "conv3d"), _of("conv2d", "Input Filter", "Output")
    ),
    "conv2d_transpose": _of("conv2d_transpose", "Input Filter =output_size|OutputSize", "Output"),
    "pool2d": _of("pool2d", "X =ksize", lists=True),
    "max_pool2d_with_index": _of(
        "max_pool2d_with_index", outputs="Out Mask", renamed={"kernel_size": "ksize"}
    ),
    "instance_norm": _of("instance_norm", "X Scale Bias", "Y SavedMean SavedVariance"),
    "group_norm": _of(
        "group_norm", "X Scale Bias", "Y Mean Variance", renamed={"data_format": "data_layout"}
    ),
    "pad": _of("pad", "X =pad_value|PadValue"),
    "pad3d": _of("pad3d", "X =paddings", renamed={"pad_value": "value"}, lists=True),
    **{
        f"{kind}_interp": _of(
            f"{kind}_interp_v2",
            "X OutSize SizeTensor Scale",
            renamed={"data_format": "data_layout"},
        )
        for kind in ("nearest", "bilinear", "linear")
    },
    "unstack": _of("unstack", outputs="Y"),
    "create_array": _of("create_array", ""),
    "array_write_": _of("write_to_array", "- X I"),
    "array_read": _of("read_from_array", "X I"),
    "slice_array_dense": _of("slice_array_dense", "X =starts|Starts", lists=True),
    "array_length": _of("lod_array_length"),
    "array_to_tensor": _of("tensor_array_to_tensor", outputs="Out OutIndex"),
    "increment": _of("increment", renamed={"value": "step"}),
    "assign_out_": _of("assign", "X -"),
    "floor_divide": _of("elementwise_floordiv", "X Y"),
    "remainder": _of("elementwise_mod", "X Y"),
    "einsum": _of("einsum", "Operands", "Out InnerCache XShape"),
    "mish": _of("mish", renamed={"lambda": "threshold"}),
    "isfinite": _of("isfinite_v2"),
    "isinf": _of("isinf_v2"),
    "frobenius_norm": _of("frobenius_norm", "X =dim", lists=True, renamed=_KEEPS),
    "numel": _of("size", "Input"),
    "argmin": _of("arg_min", "X =axis"),
    "argsort": _of("argsort", outputs="Out Indices"),
    "index_select": _of("index_select", "X Index", renamed={"axis": "dim"}),
    "take_along_axis": _of("take_along_axis", "Input Index", "Result", renamed={"axis": "Axis"}),
    "nonzero": _of("where_index", "Condition"),
    "masked_select": _of("masked_select", "X Mask", "Y"),
    "one_hot": _of("one_hot_v2", "X =depth|depth_tensor"),
    "roll": _of("roll", "X =shifts|ShiftsTensor", lists=True),
    "viterbi_decode": _of("viterbi_decode", "Input Transition Length", "Scores Path"),
    **dict.fromkeys(("index_put", "index_put_"), _of("index_put", "x indices value")),
    **dict.fromkeys(("set_value", "set_value_"), _of("set_value", f"Input {_PLACES}", lists=True)),
    **dict.fromkeys(
        ("set_value_with_tensor", "set_value_with_tensor_"),
        _of("set_value", f"Input ValueTensor {_PLACES}", lists=True),
    ),
    "rnn": _of(
        "rnn",
        "Input PreState WeightList SequenceLength -",
        "Out DropoutState State Reserve",
    ),
}


# Paddle's names for onernn's passes.


def pass_name(applied: Applied) -> str:
    """Returns Paddle's name for a fuse pass that changed Paddle's operators, "" if Paddle has no
    such pass.
    """
    types = {op.type for op in applied.origin}
    fc = "fc" if types & {"elementwise_add", "fc"} else "mul"
    for cell in ("gru", "lstm"):
        if applied.name == "linear_rnn" and cell in types:
            return f"{fc}_{cell}_fuse_pass"
    if applied.name == "embedding_rnn" and "lstm" in types:
        return "embedding_fc_lstm_fuse_pass"
    if applied.name == "bidirectional" and types & {"gru", "fusion_gru"}:
        return "multi_gru_fuse_pass"
    if applied.name == "stack_layers" and types & {"gru", "fusion_gru", "multi_gru"}:
        return "multi_gru_seq_fuse_pass"
    if applied.name == "identities" and types <= {"scale", "assign", "dropout"}:
        return "identity_op_clean_pass" if types else ""
    return ""
