"""The C++17 of recurrent cells, products and elementwise functions: headers, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_INCLUDE = re.compile(r'^#include "(?:onernn/)?(\w+\.hpp)"\n', re.MULTILINE)


def text_of(header: str) -> str:
    """What stands in a header, such as ``gru.hpp``."""
    return (Path(__file__).parent / header).read_text(encoding="utf-8")


def included(headers: Iterable[str]) -> list[str]:
    """The headers and all that they include, each behind what it needs itself."""
    found: dict[str, None] = {}
    for header in headers:
        found |= dict.fromkeys([*included(_INCLUDE.findall(text_of(header))), header])
    return list(found)
