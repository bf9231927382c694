"""ONNX operators that work element by element, and the expressions that define them.

An expression is a tuple (function, arguments...). An argument is an integer (the index of an
input), an expression, or a float (a literal). Literals are the last arguments. Type rules, NumPy
code, plans and generated code use the same expression. This module has the NumPy code of each
function; `kernels/formulas.hpp` has the C++ code. The formulas follow the ONNX operator
specification. An output has the dtype of its input, unless the operator says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import CO_VARARGS
from types import SimpleNamespace
from typing import Any

import numpy as np

from onernn.ir.activations import FUNCTIONS as ACTIVATIONS
from onernn.ir.arrays import Array, bfloat16_bits, widen_bfloat16
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Node
from onernn.ir.operator import op, over
from onernn.ir.records import NamedTuple
from onernn.ir.types import Size, Type
from onernn.ops.growth import wide
from onernn.ops.rules import broadcast, same

Expression = int | float | tuple[Any, ...]


class Formula(NamedTuple):
    """A function of elements. ``kinds``: letters of the types that its C++ code supports: f
    (floats), i (integers), b (booleans).
    """

    kinds: str
    compute: Callable[..., Any]


def compare(by: Any, a: Array, b: Array) -> Any:
    """Returns ``by(a, b)`` for arrays of numbers or of `Size`. Raises `ShapeError` if only a run
    knows which of two sizes is larger.
    """
    if object not in (a.dtype, b.dtype):
        return by(a, b)
    apart = np.asarray(a - b, object)
    signs = [Size.of(each).signs or (-1, 0, 1) for each in apart.flat]
    answers = [{bool(by(sign, 0)) for sign in each} for each in signs]
    if any(len(each) > 1 for each in answers):
        raise ShapeError("only a run knows which of two sizes is larger: fix the sizes")
    return np.array([each.pop() for each in answers]).reshape(apart.shape)


def _divide(a: Array, b: Array) -> Array:
    """Returns a / b; quotients of integers are rounded towards zero, the same as in C."""
    if a.dtype == object:  # symbolic sizes have only exact quotients
        return a // b
    if a.dtype.kind not in "iu":
        return a / b
    _refuse_zero(b)
    cut = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b + cut.astype(a.dtype)


def _refuse_zero(b: Array) -> None:
    if b.dtype.kind in "iu" and (b == 0).any():
        raise ShapeError("integer division by zero: expected divisors other than 0")


def _remainder(a: Array, b: Array) -> Any:
    _refuse_zero(b)
    return np.fmod(a, b)


def _modulo(a: Array, b: Array) -> Any:
    _refuse_zero(b)
    if a.dtype.kind == "f":
        raise ShapeError(f"attribute fmod=0: expected integers, got {a.dtype}; floats need fmod=1")
    return np.mod(a, b)


_ERF = np.vectorize(math.erf, otypes=[float])


def _gelu(x: Array) -> Any:
    of = x.dtype.type
    return of(0.5) * x * (of(1) + _ERF(x * of(math.sqrt(0.5))).astype(x.dtype))


def _gelu_tanh(x: Array) -> Any:
    of = x.dtype.type
    inner = of(math.sqrt(2 / math.pi)) * (x + of(0.044715) * x * x * x)
    return of(0.5) * x * (of(1) + np.tanh(inner))


def _hard_swish(x: Array) -> Any:
    of = x.dtype.type
    return x * np.clip(x * of(1 / 6) + of(0.5), 0, 1).astype(x.dtype)


def _quotient(bound: float, above: list[float], below: list[float]) -> Callable[[Array], Array]:
    """Returns Eigen's approximation of an odd function by a quotient of polynomials, which ONNX
    Runtime uses on x86-64. ``above``, ``below``: the coefficients of the two polynomials, of the
    highest power first. Eigen fuses products and sums of float32; this code computes them in
    float64.
    """

    def compute(x: Array) -> Array:
        of, wide = x.dtype.type, np.result_type(x.dtype, np.float64)
        x = np.clip(x, of(-bound), of(bound))
        square = (x * x).astype(wide)

        def polynomial(factors: list[float]) -> Any:
            first, *rest = (np.float32(each) for each in factors)
            p = np.full(x.shape, first, x.dtype)
            for each in rest:
                p = (p.astype(wide) * square + wide.type(each)).astype(x.dtype)
            return p

        return np.asarray(polynomial(above) * x / polynomial(below))

    return compute


_RATIONAL_TANH = _quotient(
    9,
    [
        *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11),
        *(5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    ],
    [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03],
)
_HALF_SIGMOID = _quotient(
    18,
    [
        *(4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05),
        *(8.51377133304701e-03, 2.48287947061529e-01),
    ],
    [
        *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
        *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    ],
)


def _rational_sigmoid(x: Array) -> Array:
    of = x.dtype.type
    return np.clip(_HALF_SIGMOID(x) + of(0.5), of(0), of(1))


FORMULAS: dict[str, Formula] = {
    "same": Formula("fib", lambda x: x),
    "plus": Formula("fi", np.add),
    "minus": Formula("fi", np.subtract),
    "times": Formula("fi", np.multiply),
    "divided": Formula("fi", _divide),
    "remainder": Formula("fi", _remainder),
    "modulo": Formula("i", _modulo),
    "power": Formula("f", lambda a, b: np.power(a, b).astype(a.dtype, copy=False)),
    "negative": Formula("fi", np.negative),
    "absolute": Formula("fi", np.abs),
    "sign": Formula("fi", np.sign),
    "relu": Formula("fi", ACTIVATIONS["relu"]),
    "leaky_relu": Formula("fi", ACTIVATIONS["leakyrelu"]),
    "is_nan": Formula("f", np.isnan),
    "exp": Formula("f", np.exp),
    "log": Formula("f", np.log),
    "sqrt": Formula("f", np.sqrt),
    "floor": Formula("f", np.floor),
    "ceil": Formula("f", np.ceil),
    "round": Formula("f", np.rint),
    "reciprocal": Formula("f", lambda x: 1 / x),
    "sin": Formula("f", np.sin),
    "cos": Formula("f", np.cos),
    "atan": Formula("f", np.arctan),
    "erf": Formula("f", lambda x: _ERF(x).astype(x.dtype)),
    "tanh": Formula("f", np.tanh),
    "sigmoid": Formula("f", ACTIVATIONS["sigmoid"]),
    "rational_tanh": Formula("f", _RATIONAL_TANH),
    "rational_sigmoid": Formula("f", _rational_sigmoid),
    "softplus": Formula("f", ACTIVATIONS["softplus"]),
    "softsign": Formula("f", ACTIVATIONS["softsign"]),
    "thresholded_relu": Formula("f", ACTIVATIONS["thresholdedrelu"]),
    "hard_sigmoid": Formula("f", ACTIVATIONS["hardsigmoid"]),
    "elu": Formula("f", ACTIVATIONS["elu"]),
    "selu": Formula(
        "f", lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    ),
    "celu": Formula(
        "f", lambda x, alpha: np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)
    ),
    "gelu": Formula("f", _gelu),
    "gelu_tanh": Formula("f", _gelu_tanh),
    "hard_swish": Formula("f", _hard_swish),
    "chosen": Formula("fib", np.where),
    "least": Formula("fib", np.minimum),
    "most": Formula("fib", np.maximum),
    "equal": Formula("fib", lambda a, b: compare(np.equal, a, b)),
    "less": Formula("fib", lambda a, b: compare(np.less, a, b)),
    "less_or_equal": Formula("fib", lambda a, b: compare(np.less_equal, a, b)),
    "both": Formula("b", np.logical_and),
    "either": Formula("b", np.logical_or),
    "differ": Formula("b", np.logical_xor),
    "negated": Formula("b", np.logical_not),
}
TRUE_OR_FALSE = ("is_nan", "equal", "less", "less_or_equal", "both", "either", "differ", "negated")
"""Functions whose results are true or false."""

BETWEEN_HALVES = {"widened": "float32", "halved": "float16"}
"""The conversions from and to float16, with the dtypes of their results."""


def evaluate(expression: Expression, values: Sequence[Array]) -> Array:
    """Returns an expression's value for arrays. A literal has the dtype of its function's first
    argument.
    """
    if not isinstance(expression, tuple):
        return values[expression]  # type: ignore[index]
    function, *arguments = expression
    given: list[Any] = [e if type(e) is float else evaluate(e, values) for e in arguments]
    if float in map(type, arguments):
        number = given[0].dtype.type
        given = [number(each) if type(each) is float else each for each in given]
    return FORMULAS[function].compute(*given)


def dtype_of(expression: Expression, dtypes: Sequence[str | None]) -> str | None:
    """Returns an expression's dtype from the dtypes of its inputs; None if these differ.

    A condition, and the exponent of a power, may have a different dtype.
    """
    assert isinstance(expression, tuple)
    function = expression[0]
    if function in TRUE_OR_FALSE:
        return "bool"
    counted = {*(dtypes[:1] if function == "power" else dtypes[function == "chosen" :])}
    return counted.pop() if len(counted) == 1 else None


def functions_of(expression: Expression) -> set[str]:
    """Returns the names of an expression's functions, plus "number" if it has a literal."""
    if not isinstance(expression, tuple):
        return {"number"} if isinstance(expression, float) else set()
    return {expression[0]}.union(*map(functions_of, expression[1:]))


def substitute(expression: Any, places: Any) -> Any:
    """Returns the expression with ``places[i]`` in place of input i."""
    if isinstance(expression, tuple):
        function, *arguments = expression
        return (function, *(substitute(each, places) for each in arguments))
    return expression if isinstance(expression, float) else places[expression]


def again(function: str, first: Expression, *rest: Expression) -> Expression:
    """Returns an expression that combines several arguments by a function of two, from left to
    right: f(f(a, b), c).
    """
    result = first
    for each in rest:
        result = (function, result, each)
    return result if rest else ("same", first)


Meaning = Callable[..., Expression]
Place = int
"""The index of an input."""


def elementwise(name: str, **more: Any) -> Callable[[Meaning], Meaning]:
    """Returns a decorator that adds an operator; the decorated function returns the operator's
    expression.

    The function gets the indices of the inputs, None for an absent one. ``more``: arguments of
    `op`.
    """

    def register(meaning: Meaning) -> Meaning:
        names, code = tuple(meaning.__kwdefaults__ or ()), meaning.__code__
        varies = names or meaning.__defaults__ or code.co_flags & CO_VARARGS
        fixed = None if varies else meaning(*range(code.co_argcount))

        def expression(attrs: Any, there: Sequence[Any]) -> Expression:
            if fixed is not None:
                return fixed
            places = [None if each is None else place for place, each in enumerate(there)]
            return meaning(*places, **{name: attrs.__dict__[name] for name in names})

        def give_type(context: Context, *given: Type | None) -> Type:
            there = [each for each in given if each is not None]
            dtype = dtype_of(expression(context.attrs, given), [each.dtype for each in there])
            return Type(dtype, broadcast(*[each.shape for each in there]))

        @wraps(meaning)
        def compute(*values: Any, **attributes: Any) -> Array:
            return evaluate(expression(SimpleNamespace(**attributes), values), values)

        op(name, kind="elementwise", type=give_type, expression=expression, **more)(compute)
        return meaning

    return register


def _functions(names: str, **more: Any) -> Callable[[Callable[[str], Meaning]], None]:
    """Returns a decorator that adds one operator for each "Operator=function" in ``names``."""

    def register(meaning: Callable[[str], Meaning]) -> None:
        for name, function in (each.split("=") for each in names.split()):
            elementwise(name, **more)(meaning(function))

    return register


@_functions(
    "Neg=negative Abs=absolute Exp=exp Log=log Sqrt=sqrt Floor=floor Ceil=ceil Round=round"
    " Sign=sign Reciprocal=reciprocal Sin=sin Cos=cos Atan=atan IsNaN=is_nan Relu=relu"
    " Softplus=softplus Softsign=softsign"
)
def _of_one(function: str) -> Meaning:
    return lambda x: (function, x)


@_functions("Tanh=tanh Sigmoid=sigmoid")
def _squash(function: str) -> Meaning:
    """Returns the definition of Sigmoid or Tanh. With the attribute ``rational=1``, results have
    the same bits as in ONNX Runtime.
    """

    def meaning(x: Place, *, rational: int = 0) -> Expression:
        return f"rational_{function}" if rational else function, x

    return meaning


elementwise("Not", sized=True)(lambda x: ("negated", x))
elementwise("Erf", growth=wide)(lambda x: ("erf", x))
elementwise("HardSwish", since=14)(lambda x: ("hard_swish", x))


@_functions(
    "Add=plus Sub=minus Mul=times Div=divided Equal=equal Less=less LessOrEqual=less_or_equal"
    " And=both Or=either Xor=differ",
    sized=True,
)
def _of_two(function: str) -> Meaning:
    return lambda a, b: (function, a, b)


elementwise("Greater", sized=True)(lambda a, b: ("less", b, a))
elementwise("GreaterOrEqual", sized=True)(lambda a, b: ("less_or_equal", b, a))
elementwise("Pow")(lambda a, b: ("power", a, b))
elementwise("PRelu")(lambda x, slope: ("leaky_relu", x, slope))
elementwise("Where")(lambda condition, a, b: ("chosen", condition, a, b))
elementwise("Sum")(lambda first, *rest: again("plus", first, *rest))


@_functions("Min=least Max=most", keeps=True)
def _of_several(function: str) -> Meaning:
    return lambda first, *rest: again(function, first, *rest)


@elementwise("Mean")
def mean(first: Place, *rest: Place) -> Expression:
    return "divided", again("plus", first, *rest), float(1 + len(rest))


@elementwise("Mod")
def mod(a: Place, b: Place, *, fmod: int = 0) -> Expression:
    """Returns the remainder, which has the sign of the divisor, or with fmod=1 the sign of the
    dividend.
    """
    if fmod not in (0, 1):
        raise ShapeError(f"attribute fmod={fmod}: expected 0 or 1")
    return "remainder" if fmod else "modulo", a, b


@elementwise("Clip", keeps=True)
def clip(x: Place, low: Place | None = None, high: Place | None = None) -> Expression:
    """Limits x to the bounds. If ``low`` exceeds ``high``, the result is ``high``."""
    above: Expression = x if low is None else ("most", x, low)
    if high is not None:
        return "least", above, high
    return ("same", x) if low is None else above


@elementwise("Gelu", since=20, growth=wide)
def gelu(x: Place, *, approximate: str = "none") -> Expression:
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"attribute approximate={approximate}: expected none or tanh")
    return "gelu_tanh" if approximate == "tanh" else "gelu", x


def _of_alpha(function: str, default: float) -> Meaning:
    def meaning(x: Place, *, alpha: float = default) -> Expression:
        return function, x, float(alpha)

    return meaning


elementwise("LeakyRelu")(_of_alpha("leaky_relu", 0.01))
elementwise("ThresholdedRelu")(_of_alpha("thresholded_relu", 1.0))
elementwise("Elu")(_of_alpha("elu", 1.0))
elementwise("Celu")(_of_alpha("celu", 1.0))


@elementwise("HardSigmoid")
def hard_sigmoid(x: Place, *, alpha: float = 0.2, beta: float = 0.5) -> Expression:
    return "hard_sigmoid", x, float(alpha), float(beta)


@elementwise("Selu")
def selu(
    x: Place, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Expression:
    return "selu", x, float(alpha), float(gamma)


def _cast_type(context: Context, x: Type) -> Type:
    to = context.attrs.to
    return Type("float32" if to == "bfloat16" else np.dtype(to).name, x.shape)


@op("Cast", kind="elementwise", type=_cast_type, sized=True, keeps=True, growth=wide)
def cast(x: Array, *, to: str) -> Array:
    """Converts to the dtype that NumPy names ``to``; bfloat16 values are float32 values rounded to
    bfloat16.
    """
    if x.dtype == object:  # symbolic sizes
        return compare(np.not_equal, x, np.array(0)) if to == "bool" else x
    if to != "bfloat16":
        return x.astype(to)
    return widen_bfloat16(bfloat16_bits(x)).reshape(x.shape)


def _batch_cast(m: Any, node: Node) -> None:
    """Adds the node for all rows. The rows of the second input have no effect, because the node
    uses only the dtype of this input.
    """
    if node.inputs[0] in m.mapped:
        m.add_mapped(node, node.inputs)
    else:
        m.nodes.append(node)


@op(
    "CastLike",
    kind="elementwise",
    type=lambda _, x, like: Type(like.dtype, x.shape),
    keeps=True,
    growth=wide,
    batched=_batch_cast,
)
def cast_like(x: Array, like: Array) -> Array:
    return x.astype(like.dtype)


@op(
    "Dropout",
    kind="elementwise",
    keeps=True,
    outputs=2,
    type=lambda _, x, *__: (Type(x.dtype, x.shape), Type("bool", x.shape)),
)
def dropout(
    x: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """Returns (x, a mask of ones): in inference nothing is dropped."""
    if training is not None and training.any():
        raise ShapeError("input training_mode=true: expected false; export the model for inference")
    return x, np.ones(x.shape, bool)


@op("GateLayout", kind="moves", since=0, type=same, paths=lambda _, x: over(x, (-1,)))
def gate_layout(gates: Array, *, layout: Any) -> Array:
    return layout(gates)


FLOATING = {"ArgMax": "ReduceMax", "ArgMin": "ReduceMin", "Cast": "Identity"} | dict.fromkeys(
    ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), "Add"
)
"""For operators whose results do not show NaN of the inputs: operators with results of the same
shapes that do.
"""
