"""Small symbols with what MXNet computed from them, in one file."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Recorded:
    """A symbol's JSON; inputs and parameters by name; outputs by MXNet's names of them."""

    name: str
    symbol: str
    inputs: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def _packed(array: np.ndarray) -> list[Any]:
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [str(array.dtype), list(array.shape), text]


def _unpacked(found: list[Any]) -> np.ndarray:
    dtype, shape, text = found
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def write_recorded(file: Path, cases: Iterable[Recorded]) -> None:
    """The same bytes for the same cases, whenever it is written."""
    lines = []
    for case in cases:
        arrays = {
            part: {name: _packed(array) for name, array in getattr(case, part).items()}
            for part in ("inputs", "params", "outputs")
        }
        symbol = json.dumps(json.loads(case.symbol), separators=(",", ":"))
        lines.append(json.dumps({"name": case.name, "symbol": symbol, **arrays}))
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_recorded(file: Path) -> list[Recorded]:
    found = []
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        case = json.loads(line)
        for part in ("inputs", "params", "outputs"):
            case[part] = {name: _unpacked(packed) for name, packed in case[part].items()}
        found.append(Recorded(**case))
    return found
