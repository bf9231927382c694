"""Records of what reading and fusing make of each model, to compare before and after a change.

A digest covers operators, attributes, constants and the signature, but not the names of inner
values or the order of independent operators. `make golden RECORD=1` writes the records again.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph, OnernnError, Session, fuse
from onernn.engine.session import find_unsupported

SUFFIXES = (".pdmodel", "model.json", "-symbol.json", ".onnx", ".pt2", ".keras", ".h5")
FOLDER = Path(__file__).parents[1] / "data" / "golden"
Entry = dict[str, Any]


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Returns ``value`` as something whose `repr` depends on its content only."""
    match value:
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            return ("array", str(array.dtype), array.shape, _hash(array.tobytes()))
        case Graph():
            return ("graph", digest(value))
        case enum.Enum():
            return (type(value).__name__, value.name)
        case Mapping():
            return tuple(sorted((str(key), repr(_canonical(each))) for key, each in value.items()))
        case set() | frozenset():
            return tuple(sorted(repr(_canonical(each)) for each in value))
        case tuple() | list():
            return tuple(map(_canonical, value))
        case bytes():
            return ("bytes", _hash(value))
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return (type(value).__name__, _canonical(fields))
    return repr(value)


def digest(graph: Graph) -> str:
    """Returns a hash of what ``graph`` computes, the same for any names of its inner values."""
    known = {name: _hash("constant", _canonical(array)) for name, array in graph.constants.items()}
    known |= {value.name: _hash("input", place) for place, value in enumerate(graph.inputs)}
    known[""] = ""
    for node in graph.nodes:
        inputs = [known[name] for name in node.inputs]
        made = _hash(node.op, inputs, _canonical(node.attributes))
        known |= {name: _hash(made, place) for place, name in enumerate(node.outputs) if name}
    signature = [(v.name, v.dtype, v.shape, v.lod_depth) for v in graph.inputs]
    outputs = [(v.name, v.dtype, v.shape, v.lod_depth, known[v.name]) for v in graph.outputs]
    return _hash(signature, outputs, len(graph.notes))


def _summary(graph: Graph) -> str:
    """Returns the digest and how often each operator occurs, which tells a reader what changed."""
    counts = Counter(node.op for node in graph.nodes)
    return " ".join([digest(graph), *(f"{op}:{n}" for op, n in sorted(counts.items()))])


def _place(error: BaseException) -> str:
    """Returns the class of an error and the names that its first line quotes."""
    first = str(error).partition("\n")[0]
    return " ".join([type(error).__name__, *re.findall(r"'[^']*'", first)])


def describe(read: Callable[[], Graph]) -> Entry:
    """Returns the record of one model: digests, places of refusals, and how each layer runs."""
    try:
        graph = read()
    except OnernnError as error:
        return {"unread": _place(error)}
    fused = fuse(graph)
    entry: Entry = {"lowered": _summary(graph), "fused": _summary(fused.model)}
    if refusals := sorted({refusal.where for refusal in fused.refusals}):
        entry["unfused"] = refusals
    if nodes := find_unsupported(fused.model):
        entry["unsupported"] = [refusal.where for refusal in nodes]
        return entry
    session = Session(graph, threads=1, backend="kernels")
    entry["layers"] = [
        " ".join((each.node, each.cell, each.direction, each.dtype, each.kernel))
        for each in session.explained
    ]
    return entry


def describe_plugin(optimize: Callable[[], Any]) -> Entry:
    """Returns the record of one plugged model: what onernn runs, what stays, or why neither can be.

    ``optimize`` returns an object with ``replaced`` and ``refusals``. Each line of ``replaced``
    begins with the name of its operator.
    """
    try:
        result = optimize()
    except (OnernnError, RuntimeError) as error:
        return {"unread": _place(error)}
    replaced = [str(line).partition(":")[0] for line in result.replaced]
    return {"replaced": replaced, "left": sorted(refusal.where for refusal in result.refusals)}


def model_files(folder: Path) -> dict[str, Path]:
    """Returns the model files below ``folder``, by their paths inside it."""
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES))
    return {str(path.relative_to(folder)): path for path in paths}


def check(name: str, entries: Mapping[str, Entry]) -> None:
    """Compares ``entries`` with the record ``name``, or writes it if ONERNN_RECORD is set.

    Raises `AssertionError` naming each model whose record changed, appeared or disappeared.
    """
    path = FOLDER / f"{name}.json"
    if os.environ.get("ONERNN_RECORD"):
        path.parent.mkdir(exist_ok=True)
        lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(entries.items()))
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    known = json.loads(path.read_text())
    changed = [
        f"{model}: {key}: expected {known.get(model, {}).get(key)}, got {entry.get(key)}"
        for model in sorted({*known, *entries})
        for entry in [entries.get(model, {})]
        for key in sorted({*known.get(model, {}), *entry})
        if known.get(model, {}).get(key) != entry.get(key)
    ]
    assert not changed, "\n".join(
        [
            "if each change is meant, run make golden RECORD=1 and give the reasons in the commit",
            *changed,
        ]
    )
