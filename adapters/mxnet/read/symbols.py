"""MXNet's symbol files, of every version from 0.8 to 2.0, read without MXNet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.mxnet import SYMBOL_ENDING
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError
from onernn.core.files import inside, only_file
from onernn.core.records import dataclass

VARIABLE = "null"
"""The op of a node that is a variable: an input or a parameter."""

_FIRST = 800  # a file without a version: 0.8.0 or older
_AXIS_OPTIONAL = 905  # before 0.9.5 argmax's axis=-1 meant: over all elements
_DEEPEST = 16  # subgraphs within subgraphs; nobody nests as deep


class Entry(NamedTuple):
    """One output of a node, by positions; ``version`` counts the writes to a state."""

    node: int
    output: int = 0
    version: int = 0


@dataclass(frozen=True)
class SymbolNode:
    """An operator, or a variable; attributes are strings, as the file has them."""

    op: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Entry, ...] = ()
    subgraphs: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class Symbol:
    """A graph of nodes, each behind those it reads; ``heads`` are its outputs.

    ``attributes``: those of the graph, JSON as it stands in the file. ``row_ptr``: the number of
    each node's first output, where the file has it; nothing here reads it.
    """

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    row_ptr: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        """Of the MXNet that saved it: 10901 is 1.9.1."""
        return int(self._attribute("mxnet_version", _FIRST))

    @property
    def np_shape(self) -> bool:
        """Whether a size of 0 means empty, as in NumPy, and -1 unknown; else 0 is unknown."""
        return bool(self._attribute("is_np_shape", 0))

    def _attribute(self, name: str, default: int) -> int:
        found = self.attributes.get(name)
        value = found[1] if isinstance(found, list) and len(found) == 2 else None
        return value if isinstance(value, int) else default


class Files(NamedTuple):
    """A symbol, and its parameters where there are any."""

    symbol: Path
    params: Path | None


def find(path: str | Path, params: str | Path | None = None) -> Files:
    """The files of a model, by its symbol's file, its folder, or the prefix of its names.

    Parameters, unless ``params`` names their file: ``X-0000.params`` beside ``X-symbol.json``,
    any epoch, or ``X.params``. Raises `ModelFormatError` where there are several.
    """
    symbol = _symbol(Path(path))
    if params is not None:
        if not os.path.isfile(params):
            raise ModelFormatError("no such file of parameters", params)
        return Files(symbol, Path(params))
    stem = symbol.name.removesuffix(SYMBOL_ENDING).removesuffix(".json")
    epochs = re.compile(re.escape(stem) + r"(-\d+)?\.params")
    beside = sorted(symbol.parent.glob("*.params"))
    named = [file for file in beside if epochs.fullmatch(file.name)]
    others = [file for file in beside if file.name.startswith(f"{stem}-")]
    found = only_file(named or others, "params")
    if found:
        inside(symbol.parent, found.name, "the parameters", symbol)
    return Files(symbol, found)


def _symbol(path: Path) -> Path:
    if os.path.isfile(path):
        return path
    held = sorted(path.glob(f"*{SYMBOL_ENDING}")) if os.path.isdir(path) else []
    found = only_file([*held, Path(f"{path}{SYMBOL_ENDING}")], "path")
    if found is None:
        raise ModelFormatError(
            f"no such file, no *{SYMBOL_ENDING} in it, and no {path}{SYMBOL_ENDING}", path
        )
    if found in held:
        inside(path, found.name, "the symbol", path)
    return found


def read_symbol(file: str | Path) -> Symbol:
    """The symbol in a file. Raises `ModelFormatError` with the place for one that is none."""
    budget = loading()
    try:
        budget.reads(os.stat(file))
        data = Path(file).read_bytes()
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    budget.parses_json(data)
    return parse_symbol(data, file)


def parse_symbol(data: bytes | str, file: str | Path = "") -> Symbol:
    """The symbol in a JSON text; ``file`` is what errors call it."""
    offset = None
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # "\\ud800" is JSON, but no text
        return _graph(found, "the symbol", 0)
    except json.JSONDecodeError as error:
        reason, offset = f"no JSON: {error.msg}", len(text[: error.pos].encode())
    except UnicodeDecodeError as error:
        reason, offset = "no UTF-8 text", error.start
    except UnicodeEncodeError:
        reason = "half a character in a name"
    except RecursionError:
        reason = "JSON nested too deep"
    except ValueError as error:  # numbers of thousands of digits
        reason = f"no JSON: {error}"
    except _Malformed as error:
        reason = str(error)
    raise ModelFormatError(f"not an MXNet symbol: {reason}", file, offset)


class _Malformed(Exception):
    """JSON, but no symbol."""


def _graph(found: Any, where: str, depth: int) -> Symbol:
    if depth > _DEEPEST:
        raise _Malformed(f"subgraphs more than {_DEEPEST} deep")
    whole = _typed(found, dict, where)
    nodes = tuple(
        _node(each, at, f"{where}, node {at}", depth)
        for at, each in enumerate(_typed(whole.get("nodes"), list, f"{where}: nodes"))
    )
    heads = _entries(whole.get("heads"), len(nodes), f"{where}: heads")
    row_ptr = _typed(whole.get("node_row_ptr", []), list, f"{where}: node_row_ptr")
    if any(type(number) is not int for number in row_ptr):
        raise _Malformed(f"{where}: node_row_ptr: expected integers")
    attributes = _typed(whole.get("attrs") or {}, dict, f"{where}: attrs")
    symbol = Symbol(nodes, heads, attributes, tuple(row_ptr))
    return symbol if symbol.version >= _AXIS_OPTIONAL or depth else _upgraded(symbol)


def _node(found: Any, at: int, where: str, depth: int) -> SymbolNode:
    whole = _typed(found, dict, where)
    op, name = (_typed(whole.get(key), str, f"{where}: {key}") for key in ("op", "name"))
    where = f"{where} ({op} {name!r})"
    attributes: dict[str, str] = {}
    # 1.0 and later write attrs; 0.11 attr; 0.8 param, and attr for what users attached.
    for key in ("param", "attr", "attrs"):
        for attribute, value in _typed(whole.get(key) or {}, dict, f"{where}: {key}").items():
            attributes[attribute] = _typed(value, str, f"{where}: attribute {attribute}")
    subgraphs = _typed(whole.get("subgraphs", []), list, f"{where}: subgraphs")
    return SymbolNode(
        op,
        name,
        attributes,
        _entries(whole.get("inputs", []), at, f"{where}: inputs"),
        tuple(_graph(each, f"{where}, subgraph", depth + 1) for each in subgraphs),
    )


def _entries(found: Any, nodes: int, where: str) -> tuple[Entry, ...]:
    """References to nodes before number ``nodes``: so there is no cycle."""
    entries = []
    for each in _typed(found, list, where):
        numbers = _typed(each, list, where)
        if not 1 <= len(numbers) <= 3 or any(type(n) is not int or n < 0 for n in numbers):
            raise _Malformed(f"{where}: expected [node, output, version], got {each}")
        if numbers[0] >= nodes:
            raise _Malformed(f"{where}: node {numbers[0]} does not stand before")
        entries.append(Entry(*numbers))
    return tuple(entries)


def _typed(found: Any, kind: type, where: str) -> Any:
    if not isinstance(found, kind):
        raise _Malformed(f"{where}: expected {kind.__name__}, got {str(found)[:40]}")
    return found


def _upgraded(symbol: Symbol) -> Symbol:
    """As MXNet loads it (UpgradeJSON_000904_000905 in src/nnvm/legacy_json_util.cc)."""

    def upgraded(node: SymbolNode) -> SymbolNode:
        if node.op not in ("argmax", "argmin") or node.attributes.get("axis") != "-1":
            return node
        kept = {k: v for k, v in node.attributes.items() if k != "axis"}
        return replace(node, attributes=kept)

    return replace(symbol, nodes=tuple(map(upgraded, symbol.nodes)))
