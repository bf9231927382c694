"""Steps of a plan as C++ text; loops and layers are templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onernn.engine.emit.rendering import number
from onernn.engine.emit.storing import Store
from onernn.engine.program import CTYPES
from onernn.engine.steps import Access, At, Call, Found, Nest, Packed, Team
from onernn.ir.types import Size

INDICES = "ijklmnpq"
_INFIX = {"plus": "{} + {}", "minus": "{} - {}", "times": "{} * {}", "negative": "-{}"}

Place = Callable[[str], str]


def call(step: Call, place: Place, store: Store) -> str:
    """A call of a kernel, as an expression."""

    def text(argument: Any) -> str:
        match argument:
            case At(name):
                return place(name) if name else "nullptr"
            case Packed():
                stored, at = store.places[argument]
                return f"weights_.at<{stored}>({at})"
            case Found(size):
                return str(size)
            case Team():
                return "team_"
            case Size():
                return f"std::int64_t({argument})"
            case tuple():
                sizes = ", ".join(map(str, argument))
                return f"onernn::Dims{{{len(argument)}, {{{sizes}}}}}"
        return number(argument, "double")

    constants = ", ".join(each for each in step.types if each.isdigit())
    arguments = ", ".join(map(text, step.arguments))
    return f"onernn::{step.function}{f'<{constants}>' if constants else ''}({arguments})"


def element(access: Access, place: Place) -> str:
    """One number of a value, inside of loops."""
    terms = [] if access.start.number == 0 else [str(access.start)]
    for index, stride in zip(INDICES, access.strides, strict=False):
        if stride.number == 1:
            terms.append(index)
        elif stride.number != 0:
            terms.append(f"{index} * {stride.factor}")
    return f"{place(access.name)}[{' + '.join(terms) or '0'}]"


def formula(step: Nest, place: Place, real: str, to: str) -> str:
    """What one number of the result is. ``real``, ``to``: C++ types of what is read and made."""
    reads = [element(access, place) for access in step.reads]
    real = "float" if real == CTYPES["float16"] else real  # numbers of halves are widened first
    return _formula(step.expression, reads, real, to)


def _formula(expression: Any, reads: Sequence[str], real: str, to: str) -> str:
    if isinstance(expression, int):
        return reads[expression]
    if isinstance(expression, float):
        return number(expression, real)
    function, *arguments = expression
    texts = [_formula(each, reads, real, to) for each in arguments]
    if function == "same":
        return texts[0]
    if function in _INFIX:
        nested = [
            f"({t})" if isinstance(e, tuple) else t for e, t in zip(arguments, texts, strict=True)
        ]
        return _INFIX[function].format(*nested)
    return f"onernn::{function}{f'<{to}>' if function == 'cast' else ''}({', '.join(texts)})"
