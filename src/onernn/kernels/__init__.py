"""The C++17 headers of cells, products and elementwise functions, and their includes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_FUNCTION = r"(?m)^(?:inline )?(?:void|Status) (\w+)\(|^ONERNN_REDUCE\((\w+)"
_INCLUDE = r'(?m)^#include "(?:onernn/)?(\w+\.hpp)"\n'


def text_of(header: str) -> str:
    """Returns the text of a header, such as ``gru.hpp``."""
    return (Path(__file__).parent / header).read_text(encoding="utf-8")


def list_included(headers: Iterable[str]) -> list[str]:
    """Returns the headers and all headers that they include, each after the headers that it
    includes.
    """
    result: dict[str, None] = {}
    for header in headers:
        result |= dict.fromkeys([*list_included(re.findall(_INCLUDE, text_of(header))), header])
    return list(result)


@lru_cache(maxsize=1)
def _functions() -> dict[str, str]:
    headers = (
        *("moves", "sequences", "axes", "signals"),
        *("products", "convolutions", "pools", "quantized"),
    )
    return {
        name: header
        for header in headers
        for names in re.findall(_FUNCTION, text_of(f"{header}.hpp"))
        for name in filter(None, names)
    }


def header_of(function: str) -> str:
    """Returns the header, without its suffix, that defines a C++ function."""
    return _functions()[function]
