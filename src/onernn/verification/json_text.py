"""Verdicts as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Mapping[str, Any]) -> str:
    """The text; numbers that JSON has not, NaN and infinity, become null."""
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
