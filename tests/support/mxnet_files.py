"""Writes MXNet's files: what was read comes out again, byte by byte where MXNet 1.x wrote it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.mxnet.read import (
    BFLOAT16,
    DENSE,
    DTYPES,
    LIST_MAGIC,
    V2,
    V3,
    VARIABLE,
    Symbol,
    SymbolNode,
    parse_symbol,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.files import replacing

_CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items() if code != BFLOAT16}
_ONE_LINE = 10  # numbers that dmlc's writer puts into one line
_CPU = struct.pack("<ii", 1, 0)


def symbol(*nodes: tuple[str, str, dict[str, str], list[Any]], **attrs: Any) -> Any:
    """Nodes (op, name, attributes, inputs by name or (name, output)); heads: the last one."""
    names = [name for _, name, _, _ in nodes]
    listed = []
    for op, name, attributes, inputs in nodes:
        pairs = [given if isinstance(given, tuple) else (given, 0) for given in inputs]
        entries = [[names.index(source), output, 0] for source, output in pairs]
        listed.append({"op": op, "name": name, "attrs": attributes, "inputs": entries})
    heads = attrs.pop("heads", [[len(nodes) - 1, 0, 0]])
    versions = {"mxnet_version": ["int", 10901], **attrs}
    return parse_symbol(json.dumps({"nodes": listed, "heads": heads, "attrs": versions}))


def var(name: str, **attributes: str) -> tuple[str, str, dict[str, str], list[Any]]:
    return "null", name, attributes, []


def write_symbol(symbol: Symbol, file: str | Path) -> None:
    """A ``-symbol.json`` that MXNet 1.x loads."""
    text = symbol_text(symbol).encode()
    with replacing(file) as stream:
        stream.write(text)


def write_params(arrays: Mapping[str, Array], file: str | Path, *, np_shape: bool = False) -> None:
    """A ``.params`` file of dense arrays; keys as they are (``arg:NAME``, ``aux:NAME``).

    ``np_shape``: for NumPy mode, which alone knows scalars and empty arrays. Raises
    `UnsupportedError` for a dtype or shape that the file cannot say.
    """
    parts = [struct.pack("<QQQ", LIST_MAGIC, 0, len(arrays))]
    for key, array in arrays.items():
        code = _CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            raise UnsupportedError(f"{key!r}: MXNet has no dtype {array.dtype}")
        if not np_shape and 0 in (array.ndim, array.size):
            raise UnsupportedError(f"{key!r}: only NumPy mode has arrays of shape {array.shape}")
        shape = struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape)
        head = struct.pack("<Ii", V3 if np_shape else V2, DENSE)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts += [head, shape, _CPU, struct.pack("<i", code), little.tobytes()]
    parts.append(struct.pack("<Q", len(arrays)))
    for key in arrays:
        name = key.encode()
        parts += [struct.pack("<Q", len(name)), name]
    with replacing(file) as stream:
        stream.writelines(parts)


def symbol_text(symbol: Symbol) -> str:
    """JSON in the layout of nnvm's SaveJSON pass, with dmlc's line breaks."""
    return _graph(symbol, 0)


def _graph(symbol: Symbol, depth: int) -> str:
    variables = [at for at, node in enumerate(symbol.nodes) if node.op == VARIABLE]
    fields: dict[str, str] = {
        "nodes": _list([_node(node, depth + 2) for node in symbol.nodes], depth + 1, True),
        "arg_nodes": _numbers(variables, depth + 1),
    }
    if symbol.row_ptr:
        fields["node_row_ptr"] = _numbers(symbol.row_ptr, depth + 1)
    fields["heads"] = _numbers(symbol.heads, depth + 1)
    if symbol.attributes:
        fields["attrs"] = _fields(symbol.attributes, json.dumps, depth + 1)
    return _object(fields, depth, True)


def _node(node: SymbolNode, depth: int) -> str:
    fields = {"op": _string(node.op), "name": _string(node.name)}
    if node.attributes:
        fields["attrs"] = _fields(node.attributes, _string, depth + 1)
    fields["inputs"] = _numbers(node.inputs, depth + 1)
    if node.subgraphs:
        graphs = [_graph(graph, depth + 2) for graph in node.subgraphs]
        fields["subgraphs"] = _list(graphs, depth + 1, True)
    return _object(fields, depth, True)


def _fields(found: Mapping[str, Any], text: Callable[[Any], str], depth: int) -> str:
    return _object({key: text(value) for key, value in found.items()}, depth, len(found) > 1)


def _numbers(found: Sequence[Any], depth: int) -> str:
    items = [str(list(each)) if isinstance(each, tuple) else str(each) for each in found]
    return _list(items, depth, len(items) > _ONE_LINE)


def _object(fields: Mapping[str, str], depth: int, lines: bool) -> str:
    items = [f"{_string(key)}: {value}" for key, value in fields.items()]
    return f"{{{_joined(items, depth, lines)}}}"


def _list(items: Sequence[str], depth: int, lines: bool) -> str:
    return f"[{_joined(items, depth, lines)}]"


def _joined(items: Sequence[str], depth: int, lines: bool) -> str:
    if not items or not lines:
        return ", ".join(items)
    inner = "\n" + "  " * (depth + 1)
    return inner + f", {inner}".join(items) + "\n" + "  " * depth


_ESCAPES = str.maketrans({"\r": "\\r", "\n": "\\n", "\\": "\\\\", "\t": "\\t", '"': '\\"'})


def _string(text: str) -> str:
    """dmlc escapes these five; the other control characters are not JSON as they are."""
    plain = text.translate(_ESCAPES)
    return f'"{plain}"' if plain.isprintable() else json.dumps(text, ensure_ascii=False)
