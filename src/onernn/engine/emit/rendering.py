"""Renders C++ text: templates, cells, steps, and the weights file that belongs to them."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from onernn.backend.compiled.packing import (
    BYTES,
    FUNCTIONS,
    WIDE,
    CellMatrices,
    Numbers,
    kernel_of,
)
from onernn.engine.program import CTYPES, Access, At, Call, Nest, Packed, RuntimeSize, Team
from onernn.ir.activations import complete
from onernn.ir.records import dataclass
from onernn.ir.spec import Activation, RnnSpec
from onernn.ir.types import Size
from onernn.ir.weights import PartScales, RnnWeights

HEADER = 64
MAGIC = b"onernn01"


@dataclass
class Store(Numbers):
    """The arrays of a weights file, which come after its header."""

    size: int = HEADER
    places: dict[Any, Any] = field(default_factory=dict)
    """For each `Packed`, its C++ type and its position in the file; for each `Run`, its `CellCode`
    and the C++ expressions of its weights.
    """
    packed_for: object = None
    """The program that these arrays belong to."""
    layers: str = ""
    """The C++ type in which matrices of recurrent layers are stored; "": the same type as all
    others.
    """

    @contextmanager
    def storing(self, stored: str) -> Iterator[None]:
        """Sets the C++ type of all matrices that are added inside of the block."""
        before, self.stored = self.stored, stored
        try:
            yield
        finally:
            self.stored = before

    def whole(self) -> bytes:
        """Returns the file: the magic number, a fingerprint of the content after the first 64
        bytes, and the arrays.
        """
        data = np.zeros(self.size, np.uint8)
        self.write(data)
        body = data[HEADER:].tobytes()
        return MAGIC + self.fingerprint(body) + bytes(HEADER - 16) + body

    @staticmethod
    def fingerprint(body: bytes) -> bytes:
        """Returns 8 bytes that distinguish one file from another."""
        return hashlib.sha256(body).digest()[:8]


_UNSEEN = re.compile(r"[^ -~]|\\")
_BESIDE = re.compile(r"\*(?=/)|\?(?=\?)")


class Lines(str):
    """Code that a template made. `on_one_line` does not change it, because it has already checked
    the values in it.
    """


def number(value: float, real: str = "float") -> str:
    """Returns a C++ literal of the nearest float (or double), with the fewest digits that identify
    it.
    """
    of = np.float64 if real == "double" else np.float32
    suffix = "" if real == "double" else "f"
    with np.errstate(over="ignore"):
        rounded = of(value)
    if np.isnan(rounded):
        return f"std::numeric_limits<{real}>::quiet_NaN()"
    if np.isinf(rounded):
        return f"{'-' * bool(rounded < 0)}std::numeric_limits<{real}>::infinity()"
    text = str(rounded)
    return (text if any(c in text for c in ".e") else text + ".0") + suffix


def on_one_line(value: Any) -> str:
    """Returns a text that is safe in a C++ comment; all expressions of templates pass through it.

    Code that onernn generated is not changed. A name can neither end the line or the comment nor
    continue on the next line: line breaks, ``*/``, backslashes and trigraphs are removed.
    """
    if isinstance(value, Lines):
        return value
    shown = _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", str(value))
    return _BESIDE.sub(lambda found: f"{found[0]} ", shown)


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    result = Environment(
        loader=PackageLoader("onernn.engine.emit"),
        undefined=StrictUndefined,
        finalize=on_one_line,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    result.filters["number"] = number
    result.filters["lines"] = Lines
    return result


@lru_cache(maxsize=1)
def words() -> frozenset[str]:
    """Returns every identifier of the templates; the variable of a size must not have one of these
    names.
    """
    environment = _environment()
    texts = [
        environment.loader.get_source(environment, name)[0] for name in environment.list_templates()
    ]
    return frozenset(string.ascii_lowercase).union(*(re.findall(r"\w+", text) for text in texts))


def render(template: str, **context: Any) -> str:
    """Returns the text of a template; raises an error if a variable that the template uses is
    missing.
    """
    return str(_environment().get_template(template).render(**context))


# A recurrent cell in generated code: the values that templates use, and its packed arrays.


@dataclass(frozen=True)
class CellCode:
    """The code of one layer that runs from left to right, without its weights. ``real``: the C++
    type in which it computes. ``stored``: the C++ type of its stored matrices.

    Layers with equal fields share the code.
    """

    spec: RnnSpec
    has_input: bool
    real: str
    stored: str

    @property
    def kernel(self) -> str:
        """The header that contains the cell."""
        return kernel_of(self.spec.cell)

    @property
    def functions(self) -> dict[str, Activation]:
        """The activations, by their names in the C++ type Traits."""
        return dict(zip(FUNCTIONS, map(complete, self.spec.functions), strict=False))

    @property
    def title(self) -> str:
        """A comment that describes the layer, for readers of the code."""
        spec = self.spec
        parts = [f"{spec.cell.name}, {spec.input_size} -> {spec.recurrent_size} channels"]
        parts += [f"{spec.hidden_size} units"] if spec.projection_size else []
        parts += ["peepholes"] * spec.peephole + ["projected input"] * (not self.has_input)
        parts += [f"gates within {spec.gate_clip:g}"] if spec.gate_clip is not None else []
        parts += ["forget gate 1 - i"] * spec.input_forget
        named = ", ".join(map(str, self.functions.values()))
        return f"{', '.join(parts)}; {named}."

    def pack(self, weights: RnnWeights, store: Store, scales: PartScales) -> tuple[str, ...]:
        """Returns C++ expressions of the fields of CellWeights; adds the arrays to the weights
        file.

        ``weights``: the weights of one layer and direction; ``scales``: the scales of its int8
        matrices.
        """
        with store.storing(self.stored):
            places = CellMatrices.of(self.spec.cell, weights).pack(store, scales)
        kinds = {name: self.real if name in WIDE else self.stored for name in places}
        matrices = (
            "nullptr" if place is None else f"weights_.at<{kinds[name]}>({place})"
            for name, place in places.items()
        )
        rows = (
            f"{{{number(1 / scale.factor)}, {int(scale.shift)}}}" if scale else "{}"
            for scale in (scales.data, scales.state)
        )
        return (*matrices, *(rows if self.stored == BYTES else ()))


# Steps of a plan as C++ text; loops and layers are templates.

INDICES = "ijklmnpq"
_INFIX = {"plus": "{} + {}", "minus": "{} - {}", "times": "{} * {}", "negative": "-{}"}

Place = Callable[[str], str]


def call(step: Call, place: Place, store: Store) -> str:
    """Returns the C++ expression of a call of a kernel."""

    def text(argument: Any) -> str:
        match argument:
            case At(name):
                return place(name) if name else "nullptr"
            case Packed():
                stored, at = store.places[argument]
                return f"weights_.at<{stored}>({at})"
            case RuntimeSize(size):
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
    """Returns the C++ expression of the element that a loop accesses."""
    terms = [] if access.start.number == 0 else [str(access.start)]
    for index, stride in zip(INDICES, access.strides, strict=False):
        if stride.number == 1:
            terms.append(index)
        elif stride.number != 0:
            terms.append(f"{index} * {stride.factor}")
    return f"{place(access.name)}[{' + '.join(terms) or '0'}]"


def formula(step: Nest, place: Place, real: str, to: str) -> str:
    """Returns the expression of one element of the result. ``real``, ``to``: C++ types of the
    inputs and of the result.
    """
    reads = [element(access, place) for access in step.reads]
    # float16 inputs are converted to float first
    real = "float" if real == CTYPES["float16"] else real
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
