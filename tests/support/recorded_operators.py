"""Small symbols of MXNet, an operator or a form of one each, with what MXNet computed from them.

They stand in one text file, a line each: `record_mxnet.py` computes it anew, and adds to it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.read import parse_symbol
from onernn.verification.comparing import TOLERANCES, compare

Arrays = dict[str, np.ndarray]
FILE = Path(__file__).parents[1] / "data" / "mxnet" / "operators.jsonl"


@dataclass(frozen=True)
class Recorded:
    """A symbol as JSON says it; inputs and parameters by name; outputs by MXNet's names of them."""

    name: str
    symbol: dict[str, Any]
    inputs: Arrays
    params: Arrays
    outputs: Arrays

    @cached_property
    def text(self) -> str:
        return json.dumps(self.symbol)

    @property
    def numpy(self) -> bool:
        """Whether it was written in MXNet's NumPy mode."""
        return "is_np_shape" in self.symbol["attrs"]

    def graph(self, semantics: str = "documented") -> Graph:
        return lower(parse_symbol(self.text), self.params, semantics, self.name)


def operators_of(graph: Mapping[str, Any]) -> set[str]:
    """The names of all operators in a symbol's JSON, subgraphs included."""
    names = {node["op"] for node in graph["nodes"]}
    inner = (part for node in graph["nodes"] for part in node.get("subgraphs", []))
    return names.union(*map(operators_of, inner)) - {"null"}


def differences(
    actual: Mapping[str, Any], expected: Sequence[np.ndarray], names: Iterable[str]
) -> list[str]:
    """What is not the same in names, values, dtype or shape; none if all is."""
    if list(actual) != list(names):
        return [f"outputs {list(actual)}, MXNet's are {list(names)}"]
    apart = []
    for (name, ours), theirs in zip(actual.items(), expected, strict=True):
        if ours.dtype != theirs.dtype:
            apart.append(f"{name}: dtype {ours.dtype}, MXNet's is {theirs.dtype}")
        elif not (verdict := compare(name, ours, theirs, TOLERANCES["f32"])).passed:
            apart.append(f"{name}: {verdict.reason}")
    return apart


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return [str(value.dtype), list(value.shape), text]
    raise TypeError(type(value))


def _unpacked(packed: list[Any]) -> np.ndarray:
    dtype, shape, text = packed
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def write_recorded(cases: Iterable[Recorded], file: Path = FILE) -> None:
    """The same bytes for the same cases, whenever it is written."""
    names = [field.name for field in fields(Recorded)]
    lines = [{name: getattr(case, name) for name in names} for case in cases]
    file.write_text("".join(json.dumps(line, default=_packed) + "\n" for line in lines))


def read_recorded(file: Path = FILE) -> list[Recorded]:
    cases = []
    for line in file.read_text().splitlines():
        case = json.loads(line)
        for part in ("inputs", "params", "outputs"):
            case[part] = {name: _unpacked(packed) for name, packed in case[part].items()}
        cases.append(Recorded(**case))
    return cases
