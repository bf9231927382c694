"""ONNX's operator schemas as `adapters/onnx/schemas.json` has them: what came with which opset.

``PYTHONPATH=tests .venv/bin/python -m support.onnx_schemas`` writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from onernn.adapters.onnx import opsets
from onernn.adapters.onnx.read import NUMBERS

LAST = max(opsets.IR_VERSIONS)
_INTEGERS = ("int32", "int64", "uint32", "uint64")
RUNTIME = {
    **dict.fromkeys("Elu HardSigmoid HardSwish Selu Softplus".split(), {"float64": 18}),
    **dict.fromkeys(("Softsign", "ThresholdedRelu"), {"float64": 18}),
    "LeakyRelu": {"float64": 16},
    "PRelu": {"float64": 16, **dict.fromkeys(_INTEGERS, 16)},
    "Clip": {"float64": 12, "int16": 18, "uint16": 18},
    "Relu": {"int16": 18, "int64": 18},
}
"""The first opset in which ONNX Runtime 1.32 runs an operator of a dtype that ONNX has before."""


def schemas() -> dict[str, Any]:
    """Returns ONNX's operators up to the newest opset that is written."""
    versions: dict[str, dict[int, Any]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        if not each.domain and each.since_version <= LAST:
            versions.setdefault(each.name, {})[each.since_version] = each
    return {
        name: _record({v: each[v] for v in sorted(each)})
        | ({"runtime": RUNTIME[name]} if name in RUNTIME else {})
        for name, each in sorted(versions.items())
        if not each[max(each)].deprecated
    }


def text() -> str:
    """Returns the file: a line for each operator."""
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in schemas().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _record(versions: dict[int, Any]) -> dict[str, Any]:
    """Returns the first opset of the operator, its attributes, inputs and types.

    An input or output is [name of its types, first opset, first opset in which it is optional if it
    was required before, else 0].
    """
    newest, since = versions[max(versions)], min(versions)
    out: dict[str, Any] = {"since": since}
    later = {}
    for name, attribute in newest.attributes.items():
        if (first := min(v for v in versions if name in versions[v].attributes)) > since:
            value = attribute.default_value
            given = onnx.helper.get_attribute_value(value) if value.type else None
            later[name] = [first, given.decode() if isinstance(given, bytes) else given]
    if later:
        out["attributes"] = later
    types: dict[str, dict[str, int]] = {}
    for side in ("inputs", "outputs"):
        out[side] = []
        for at, slot in enumerate(getattr(newest, side)):
            there = {
                v: getattr(each, side)[at]
                for v, each in versions.items()
                if len(getattr(each, side)) > at
            }
            required = [v for v in there if there[v].option is there[v].option.Single]
            free = min((v for v in there if required and v > max(required)), default=0)
            out[side].append([slot.type_str, min(there), free])
            known = types.setdefault(slot.type_str, {})
            for v, one in there.items():
                for dtype in _dtypes(versions[v], one):
                    known[dtype] = min(known.get(dtype, v), v)
    out["types"] = {
        name: {
            v: " ".join(sorted(d for d in known if known[d] == v))
            for v in sorted({*known.values()})
        }
        for name, known in types.items()
    }
    return out


def _dtypes(schema: Any, slot: Any) -> Iterator[str]:
    """Yields NumPy's names of the tensors that a slot takes."""
    listed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    for each in listed.get(slot.type_str, [slot.type_str]):
        name = each.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64"}.get(name, name)
        if each.startswith("tensor(") and name in NUMBERS:
            yield name


if __name__ == "__main__":
    Path(opsets.FILE).write_text(text())
