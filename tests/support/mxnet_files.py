"""Files as MXNet writes them, made by hand: symbols, and arrays in their documented layout."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.mxnet.read import Symbol, parse_symbol

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
    return json.dumps({"nodes": listed, "heads": heads, "attrs": versions})


def symbol(*nodes: Node, **attrs: Any) -> Symbol:
    return parse_symbol(symbol_text(*nodes, **attrs))


def var(name: str, **attributes: str) -> Node:
    return "null", name, attributes, []


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
