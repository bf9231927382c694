"""The templates, and what they are rendered with."""

from __future__ import annotations

import re
import string
from functools import lru_cache
from typing import Any

import numpy as np

_UNSEEN = re.compile(r"[^ -~]|\\")
_BESIDE = re.compile(r"\*(?=/)|\?(?=\?)")


class Lines(str):
    """Code that a template made: what was put into it went through `on_one_line` then."""


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


def on_one_line(value: Any) -> str:
    """What a comment may hold: every expression of a template passes here before it is put in.

    Code of our own stays as it is. Of names nothing ends the line or the comment, or goes on in the
    next line: no line breaks, ``*/``, backslashes or trigraphs.
    """
    if isinstance(value, Lines):
        return value
    shown = _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", str(value))
    return _BESIDE.sub(lambda found: f"{found[0]} ", shown)


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("onernn.engine.emit"),
        undefined=StrictUndefined,
        finalize=on_one_line,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["number"] = number
    found.filters["lines"] = Lines
    return found


@lru_cache(maxsize=1)
def words() -> frozenset[str]:
    """Every word of the templates: a size, which stands as a variable beside them, is none."""
    environment = _environment()
    texts = [
        environment.loader.get_source(environment, name)[0] for name in environment.list_templates()
    ]
    return frozenset(string.ascii_lowercase).union(*(re.findall(r"\w+", text) for text in texts))


def rendered(template: str, **context: Any) -> str:
    """A template's text; what it asks for and nobody gives is an error."""
    return str(_environment().get_template(template).render(**context))
