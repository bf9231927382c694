"""The templates, and what they are rendered with."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def number(value: float, real: str = "float") -> str:
    """A C++ literal of the nearest float (or double), with as few digits as tell it."""
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


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("onernn.emit"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["number"] = number
    return found


def rendered(template: str, **context: Any) -> str:
    """A template's text; what it asks for and nobody gives is an error."""
    return str(_environment().get_template(template).render(**context))
