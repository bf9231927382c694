"""Finds the opset that a written model needs, from the opsets in which ONNX's schemas added
operators, attributes, inputs and dtypes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.onnx.read import DTYPES, bodies

IR_VERSIONS = {
    **{9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8},
    **{19: 9, 20: 9, 21: 10, 22: 10},
}
"""The opsets that onernn writes, each with the version of ONNX's file format (IR version) that
introduced it.

Before IR version 4 (opset 9), the weights of a model are also inputs.
"""
FUNCTIONS = 8
"""The first IR version in which a model may have functions."""
FILE = Path(__file__).with_name("schemas.json")
NEGATIVE = 11
"""The first opset in which every operator accepts a negative axis, counted from the end."""


class Need(NamedTuple):
    """The lowest opset that a feature of a node needs, and the reason.

    ``value``: the first output of the node. ``runtime``: whether ONNX Runtime needs the opset, but
    ONNX does not.
    """

    opset: int
    value: str
    reason: str
    runtime: bool = False


@cache
def schemas() -> Mapping[str, Any]:
    """Returns ONNX's operators by name, each with the first opsets of its attributes, inputs and
    dtypes.

    "attributes" maps a name to [first opset, default]. "inputs" lists [key of "types", first opset,
    first opset in which the input is optional]; the last number is 0 if the input was never
    required or is never optional. "types" maps a key to dtypes by their first opset. "runtime" maps
    a dtype to the first opset in which ONNX Runtime runs it, if ONNX allows the dtype earlier.
    """
    return json.loads(FILE.read_text(encoding="utf-8"))


def later_attribute(op: str, name: str, opset: int) -> Any:
    """Returns [default] for an attribute that was added after ``opset``, and [] for other
    attributes.
    """
    first, default = schemas().get(op, {}).get("attributes", {}).get(name, (0, None))
    return [default] if first > opset else []


def needs(graph: Any, types: dict[str, str], functions: Mapping[str, Any]) -> Iterator[Need]:
    """Yields a `Need` for each feature of each node of a GraphProto or FunctionProto, including
    nodes in bodies and in called functions.

    ``types``: the dtypes of values by name, "" if unknown; this function adds the graph's own
    values.
    """
    for each in getattr(graph, "initializer", ()):
        types[each.name] = DTYPES.get(each.data_type, "")
    for node in graph.node:
        given = [types.get(name, "") for name in node.input]
        inner = functions.get(node.op_type) if node.domain else None
        if inner is not None:
            known = dict(zip(inner.input, given, strict=True))
            yield from (n._replace(value=node.output[0]) for n in needs(inner, known, functions))
            types |= zip(node.output, [known.get(name, "") for name in inner.output], strict=True)
        if node.domain:
            continue
        taken = ["int64", "bool", *given[2:]] if node.op_type == "Loop" else given
        inside = [
            (body, {**types, **dict(zip((v.name for v in body.input), taken, strict=False))})
            for body in bodies(node)
        ]
        for body, known in inside:
            yield from needs(body, known, functions)
        results = _results(node, given, inside)
        types |= zip(node.output, results, strict=True)
        since, value = schemas()[node.op_type]["since"], node.output[0]
        yield Need(since, value, node.op_type)
        own = _own(node, given, results)
        yield from (Need(first, value, why) for first, why in own if first > since)
        for dtype in dict.fromkeys(given):
            first = schemas()[node.op_type].get("runtime", {}).get(dtype, 0)
            yield Need(first, value, f"{node.op_type} of {dtype} in ONNX Runtime", runtime=True)


def _results(node: Any, given: Sequence[str], inside: Sequence[Any]) -> list[str]:
    """Returns the dtypes of a node's outputs, "" for an output whose dtype does not follow from the
    schema.
    """
    if inside:
        body, known = inside[0]
        names = [value.name for value in body.output][node.op_type == "Loop" :]
        return [known.get(name, "") for name in names]
    schema = schemas()[node.op_type]
    known = {letter: dtype for (letter, *_), dtype in _slots(schema["inputs"], given) if dtype}
    for name, allowed in schema["types"].items():
        dtypes = " ".join(allowed.values()).split()
        if len(dtypes) == 1:
            known[name] = dtypes[0]
    for each in node.attribute:
        if each.name in ("to", "value"):  # attributes of Cast, ConstantOfShape and Constant
            number = each.t.data_type if each.HasField("t") else each.i
            known[schema["outputs"][0][0]] = DTYPES.get(number, "")
    slots = _slots(schema["outputs"], node.output)
    return [known.get(letter, "") for (letter, *_), _ in slots]


def _slots(slots: Sequence[Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Returns each value with its entry of ``slots``; the last entry applies to all further
    values.
    """
    return [(slots[min(at, len(slots) - 1)], value) for at, value in enumerate(values)]


def _own(node: Any, given: Sequence[str], results: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields the first opset of each attribute, input and dtype of a node, with the reason as
    text.
    """
    op, schema = node.op_type, schemas()[node.op_type]
    for each in node.attribute:
        first, _ = schema.get("attributes", {}).get(each.name, (0, None))
        yield first, f"attribute {each.name} of {op}"
        if "axis" in each.name or "axes" in each.name:
            yield NEGATIVE * (min([each.i, *each.ints]) < 0), f"a negative axis of {op}"
    there = [at < len(node.input) and node.input[at] for at in range(len(schema["inputs"]))]
    for at, ((_, first, free), name) in enumerate(zip(schema["inputs"], there, strict=True)):
        yield (first, f"input {at} of {op}") if name else (free, f"{op} without input {at}")
    slots = (*_slots(schema["inputs"], given), *_slots(schema["outputs"], results))
    for (letter, came, _), dtype in slots:
        for first, dtypes in schema["types"][letter].items():
            if dtype in dtypes.split() and int(first) > came:
                yield int(first), f"{op} of {dtype}"
