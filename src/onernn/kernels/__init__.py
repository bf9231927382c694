"""The C++17 headers of cells, products and elementwise functions, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_FUNCTION = re.compile(r"^(?:inline )?(?:void|Status) (\w+)\(|^ONERNN_REDUCE\((\w+)", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "(?:onernn/)?(\w+\.hpp)"\n', re.MULTILINE)


def text_of(header: str) -> str:
    """Returns what stands in a header, such as ``gru.hpp``."""
    return (Path(__file__).parent / header).read_text(encoding="utf-8")


def list_included(headers: Iterable[str]) -> list[str]:
    """Returns the headers and all that they include, each behind what it needs itself."""
    result: dict[str, None] = {}
    for header in headers:
        result |= dict.fromkeys([*list_included(_INCLUDE.findall(text_of(header))), header])
    return list(result)


@lru_cache(maxsize=1)
def _functions() -> dict[str, str]:
    headers = ("moves", "sequences", "axes", "products", "convolutions", "pools", "quantized")
    return {
        name: header
        for header in headers
        for names in _FUNCTION.findall(text_of(f"{header}.hpp"))
        for name in filter(None, names)
    }


def header_of(function: str) -> str:
    """Returns the header, without its suffix, that holds what a step calls."""
    return _functions()[function]
