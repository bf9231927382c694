"""Files as MXNet writes them, made by hand: symbols, and arrays in their documented layout."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Graph, audit
from onernn.adapters.mxnet.read import Symbol, parse_symbol
from onernn.ir.graph import UNSUPPORTED
from onernn.reorders.mxnet import Stack

Node = tuple[str, str, dict[str, str], list[Any]]
CPU = struct.pack("<ii", 1, 0)
V1, V2, V3 = (struct.pack("<I", 0xF993FAC8 + k) for k in range(3))
CODES = dict(enumerate("float32 float64 float16 uint8 int32 int8 int64".split())) | {7: "bool"}


def symbol_text(*nodes: Node, **attrs: Any) -> str:
    """Nodes (op, name, attributes, inputs by name or (name, output)); heads: the last one."""
    names = [name for _, name, _, _ in nodes]
    listed = []
    for op, name, attributes, inputs in nodes:
        pairs = [each if isinstance(each, tuple) else (each, 0) for each in inputs]
        entries = [[names.index(source), output, 0] for source, output in pairs]
        listed.append({"op": op, "name": name, "attrs": attributes, "inputs": entries})
    heads = attrs.pop("heads", [[len(nodes) - 1, 0, 0]])
    versions = {"mxnet_version": ["int", 10901], **attrs}
    variables = [k for k, node in enumerate(nodes) if node[0] == "null"]
    graph = {"nodes": listed, "arg_nodes": variables, "heads": heads, "attrs": versions}
    return json.dumps(graph)


def symbol(*nodes: Node, **attrs: Any) -> Symbol:
    return parse_symbol(symbol_text(*nodes, **attrs))


def var(name: str, **attributes: str) -> Node:
    return "null", name, attributes, []


def node(text: str, /, **attributes: str) -> Node:
    """``n = Concat x y:1``, of what has no number the first output."""
    name, _, rest = text.partition(" = ")
    op, *inputs = rest.split()
    pairs = (each.partition(":") for each in inputs)
    return op, name, attributes, [(source, int(output or 0)) for source, _, output in pairs]


def listed(*arrays: bytes, keys: tuple[str, ...] = ()) -> bytes:
    """A file of these arrays."""
    head = struct.pack("<QQQ", 0x112, 0, len(arrays))
    tail = b"".join(struct.pack("<Q", len(key)) + key.encode() for key in keys)
    return head + b"".join(arrays) + struct.pack("<Q", len(keys)) + tail


def shape(*sizes: int) -> bytes:
    return struct.pack(f"<i{len(sizes)}q", len(sizes), *sizes)


def kind(code: int) -> bytes:
    return struct.pack("<i", code)


def dense(array: np.ndarray) -> bytes:
    """Of the second form."""
    (code,) = (code for code, name in CODES.items() if name == array.dtype)
    return V2 + kind(0) + shape(*array.shape) + CPU + kind(code) + array.tobytes()


def write_params(arrays: Mapping[str, np.ndarray], file: Path) -> None:
    """Keys as they are (``arg:NAME``, ``aux:NAME``)."""
    file.write_bytes(listed(*map(dense, arrays.values()), keys=tuple(arrays)))


def save_model(
    folder: Path, text: str, params: Mapping[str, np.ndarray], numpy: bool = False
) -> Path:
    """``m-symbol.json`` and its parameters; ``numpy``: as MXNet 2 saves them under the old name."""
    (folder / "m-symbol.json").write_text(text)
    if numpy:
        with (folder / "m-0000.params").open("wb") as stream:
            np.savez(stream, **params)
    else:
        write_params(params, folder / "m-0000.params")
    return folder / "m-symbol.json"


def reasons(graph: Graph) -> str:
    """Why operators cannot run."""
    return "; ".join(n.attributes["reason"] for n in graph.nodes if n.op == UNSUPPORTED)


T, N, C, H = 6, 3, 4, 5
"""Steps, sentences, channels and units of `recurrent_model`."""
CLIP = {"lstm_state_clip_min": -0.2, "lstm_state_clip_max": 0.2}


def recurrent_model(
    folder: Path, mode: str, dtype: str = "float32", **attributes: Any
) -> dict[str, np.ndarray]:
    """`save_model` of one RNN; returns what it is bound to: a batch, and p."""
    attributes = {"num_layers": 1, "state_outputs": True, **attributes}
    layers, ways = attributes["num_layers"], 2 if "bidirectional" in attributes else 1
    stack = Stack(mode, H, layers, ways, attributes.get("projection_size"))
    names = ["data", "p", "h", *(["c"] if mode == "lstm" else [])]
    names += ["n"] if "use_sequence_length" in attributes else []
    options = {k: str(v) for k, v in {"mode": mode, "state_size": H, **attributes}.items()}
    count = (2 + (mode == "lstm")) if attributes["state_outputs"] else 1
    heads = [[len(names), k, 0] for k in range(count)]
    text = symbol_text(*map(var, names), ("RNN", "rnn", options, names), heads=heads)
    rng = np.random.default_rng(3)
    parameters = rng.uniform(-0.5, 0.5, stack.elements(C)).astype(dtype)
    save_model(folder, text, {"arg:p": parameters})
    rows = layers * ways
    shapes = {"data": (T, N, C), "h": (rows, N, stack.recurrent), "c": (rows, N, H)}
    given = {n: rng.uniform(-2, 2, shapes[n]).astype(dtype) for n in names if n in shapes}
    given |= {"n": np.array([6, 2, 4]).astype(dtype)} if "n" in names else {}
    return {**given, "p": parameters}


def recording_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"in__{name}": array for name, array in arrays.items() if name != "p"}


def findings(folder: Path, recording: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
    """What an audit of a model says, by the fault."""
    return {each.fault: each for each in audit(folder, recording).findings}
