"""The table of Paddle's operators that are one canonical operator each.

A row serves all sides: reading (`lower`), Paddle 3's own format (`read.pir_operators`) and writing
(`write`). An operator with a row needs no code anywhere, unless one side is more than another name:
that side then has a rule of its own. Slots and defaults are those of the operators' makers in 2.6,
which are those of 3.x. Which operators hand on a LoD is measured with 2.6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from onernn.core.records import dataclass


class Named(NamedTuple):
    """A canonical attribute in Paddle: its name and default there.

    ``values``: what False and True of Paddle's are called in ours, where it is a truth value.
    """

    name: str
    default: Any
    values: tuple[Any, ...] = ()

    def ours(self, found: Any) -> Any:
        return self.values[int(found)] if self.values else found

    def theirs(self, value: Any) -> Any:
        kind = type(self.default)
        return kind(self.values.index(value) if self.values else value)


@dataclass(frozen=True)
class Row:
    """Paddle's ``type`` is the canonical ``op``.

    ``inputs``: the slots in the canonical order. ``attributes``: by canonical names. ``only``: what
    is understood of attributes that ours has not. ``written``: what is written of them.
    ``pir``: its name in PIR, where that is another one, "-" where it has none; ``renamed``: its
    attributes there that are called otherwise, and their names here.
    """

    type: str
    op: str
    inputs: tuple[str, ...] = ("X",)
    output: str = "Out"
    attributes: Mapping[str, Named] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    keeps_lod: bool = True
    pir: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)


_SCALES = ("Scale_x", "Scale_y", "Scale_out", "scale_x", "scale_y", "scale_out")
_UNSCALED = dict.fromkeys(_SCALES, 1.0)  # by a program's int8


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
    Row("cos", "Cos"),
    Row("softsign", "Softsign"),
    Row("hard_swish", "HardSwish", only=_SIXTHS, written=_SIXTHS, pir="hardswish"),
    Row("erf", "Erf"),
    Row("isnan_v2", "IsNaN", keeps_lod=False, pir="isnan"),
    Row("logical_not", "Not"),
    Row("assign", "Identity"),
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
    Row("sequence_reverse", "SequenceReverse", output="Y", pir="-"),
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
"""They share ``dim``, ``keep_dim`` and ``reduce_all``, which our axes and ``keepdims`` say."""

TYPES = {row.op: row.type for row in reversed((*ROWS, *REDUCTIONS))}
"""By canonical operator, Paddle's; the first row counts."""
