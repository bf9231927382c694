"""What elementwise operators compute: expressions of the functions in `kernels/formulas.hpp`.

An expression is (function, arguments...): an integer is the number of what is read, a string names
an attribute, a float is a number, a tuple an expression. A row is an operator's name, with the
attribute or the optional inputs that it is for. With more inputs than 0 and 1 it is applied again
and again.
"""

from __future__ import annotations

from typing import Any

FLOATS: dict[str, Any] = {
    "Div": ("divided", 0, 1),
    "Mod fmod=1": ("remainder", 0, 1),
    "Pow": ("power", 0, 1),
    "Mean": ("plus", 0, 1),  # and divided by their number
    "IsNaN": ("is_nan", 0),
    "Exp": ("exp", 0),
    "Log": ("log", 0),
    "Sqrt": ("sqrt", 0),
    "Floor": ("floor", 0),
    "Ceil": ("ceil", 0),
    "Round": ("round", 0),
    "Reciprocal": ("reciprocal", 0),
    "Sin": ("sin", 0),
    "Cos": ("cos", 0),
    "Erf": ("erf", 0),
    "Tanh": ("tanh", 0),
    "Sigmoid": ("sigmoid", 0),
    "Softplus": ("softplus", 0),
    "Softsign": ("softsign", 0),
    "LeakyRelu": ("leaky_relu", 0, "alpha"),
    "ThresholdedRelu": ("thresholded_relu", 0, "alpha"),
    "HardSigmoid": ("hard_sigmoid", 0, "alpha", "beta"),
    "Elu": ("elu", 0, "alpha"),
    "Selu": ("selu", 0, "alpha", "gamma"),
    "Celu": ("celu", 0, "alpha"),
    "Gelu": ("gelu", 0),
    "Gelu approximate=tanh": ("gelu_tanh", 0),
    "HardSwish": ("hard_swish", 0),
}
WHOLE: dict[str, Any] = {
    "Div": ("divided", 0, 1),
    "Mod": ("modulo", 0, 1),
    "Mod fmod=1": ("remainder", 0, 1),
}
NUMBERS: dict[str, Any] = {
    "Add": ("plus", 0, 1),
    "Sub": ("minus", 0, 1),
    "Mul": ("times", 0, 1),
    "Sum": ("plus", 0, 1),
    "Neg": ("negative", 0),
    "Abs": ("absolute", 0),
    "Sign": ("sign", 0),
    "PRelu": ("leaky_relu", 0, 1),
    "Relu": ("relu", 0),
}
TRUTHS: dict[str, Any] = {
    "And": ("both", 0, 1),
    "Or": ("either", 0, 1),
    "Xor": ("differ", 0, 1),
    "Not": ("negated", 0),
}
ANYTHING: dict[str, Any] = {
    "Where": ("chosen", 0, 1, 2),
    "Min": ("least", 0, 1),
    "Max": ("most", 0, 1),
    "Clip": ("same", 0),
    "Clip low": ("most", 0, 1),
    "Clip high": ("least", 0, 1),
    "Clip low high": ("least", ("most", 0, 1), 2),
    "Equal": ("equal", 0, 1),
    "Less": ("less", 0, 1),
    "LessOrEqual": ("less_or_equal", 0, 1),
    "Greater": ("less", 1, 0),
    "GreaterOrEqual": ("less_or_equal", 1, 0),
}
OF_KIND = {
    "float": {**FLOATS, **NUMBERS, **ANYTHING},
    "int": {**WHOLE, **NUMBERS, **ANYTHING},
    "bool": {**TRUTHS, **ANYTHING},
}
"""The rows that a dtype finds itself in."""
OPERATORS = {row.partition(" ")[0] for rows in OF_KIND.values() for row in rows}
TRUE_OR_FALSE = ("is_nan", "equal", "less", "less_or_equal", "both", "either", "differ", "negated")
"""Functions whose results are truths."""

BETWEEN_HALVES = {"widened": "float32", "halved": "float16"}
"""Functions from float16 and to it, with the types of their results."""


def put(expression: Any, values: dict[Any, Any]) -> Any:
    """The expression with ``values`` for what is read and for attributes."""
    if isinstance(expression, tuple):
        function, *arguments = expression
        return (function, *(put(each, values) for each in arguments))
    return expression if isinstance(expression, float) else values[expression]


def again(expression: Any, count: int) -> Any:
    """An expression of 0 and 1, of so many: the first two, then the result and the next one."""
    if count == 1:
        return ("same", 0)
    made = expression
    for at in range(2, count):
        made = put(expression, {0: made, 1: at})
    return made
