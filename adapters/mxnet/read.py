"""Reads MXNet's files, symbols and parameters, and finds the parameters of a symbol's variables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.files import (
    ByteStream,
    Malformed,
    check_kind,
    file_bytes,
    name_malformed,
    numbers_of,
    parse_json,
)
from onernn.adapters.common.native import NativeGraph, NativeNode
from onernn.adapters.mxnet import SYMBOL_ENDING
from onernn.adapters.mxnet import attributes as parse
from onernn.ir.arrays import Array, same_array
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError
from onernn.ir.files import ARRAY, inside, only_file, read_member, unzip
from onernn.ir.ragged import Ragged
from onernn.ir.records import dataclass
from onernn.reorders import mxnet

# MXNet's symbol files, of every version from 0.8 to 2.0, read without MXNet.

VARIABLE = "null"
"""The op of a node that is a variable: an input or a parameter."""

_FIRST = 800  # a file without a version: 0.8.0 or older
_DEEPEST = 16  # subgraphs within subgraphs; no real model is that deep


class Entry(NamedTuple):
    """An output of a node: the positions of the node and of the output. ``version`` counts how
    often operators have written to it, if it is a state.
    """

    node: int
    output: int = 0
    version: int = 0

    @property
    def name(self) -> str:
        """The name that the output has in a `NativeGraph`."""
        return f"{self.node}:{self.output}"


@dataclass(frozen=True)
class SymbolNode:
    """A node of a symbol: an operator or a variable; ``attributes`` are the strings of the file."""

    op: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Entry, ...] = ()
    subgraphs: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class Symbol:
    """A graph of nodes, in which each node comes after the nodes that it reads. ``heads`` are its
    outputs.

    ``attributes``: the graph's attributes, the same JSON as in the file.
    """

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the MXNet that saved it: 10901 is 1.9.1."""
        return int(self._attribute("mxnet_version", _FIRST))

    @property
    def is_old(self) -> bool:
        """Whether the file leaves auxiliary states out of operators' inputs, as files before 0.9.0
        do.
        """
        return self.version < 900

    @property
    def np_shape(self) -> bool:
        """Whether sizes follow MXNet's NumPy mode: 0 is an empty axis, and -1 is unknown. Otherwise
        0 is unknown.
        """
        return bool(self._attribute("is_np_shape", 0))

    @cached_property
    def native(self) -> NativeGraph:
        """The nodes as a `NativeGraph`, with the outputs that nodes or the caller read."""
        read: list[set[str]] = [set() for _ in self.nodes]
        for entry in (*self.heads, *(entry for node in self.nodes for entry in node.inputs)):
            read[entry.node].add(entry.name)
        nodes = (
            NativeNode(node.op, frozenset(entry.name for entry in node.inputs), frozenset(writes))
            for node, writes in zip(self.nodes, read, strict=True)
        )
        return NativeGraph(nodes, outputs=[head.name for head in self.heads])

    def _attribute(self, name: str, default: int) -> int:
        result = self.attributes.get(name)
        value = result[1] if isinstance(result, list) and len(result) == 2 else None
        return value if isinstance(value, int) else default


class Files(NamedTuple):
    """A symbol, and its parameters if there are any."""

    symbol: Path
    params: Path | None


def find(path: str | Path, params: str | Path | None = None) -> Files:
    """Returns the files of a model.

    ``path``: the symbol's file, its folder, or the beginning of the files' names. ``params``: the
    file of the parameters. The default is ``X-0000.params`` next to ``X-symbol.json``, with any
    epoch number, or ``X.params``. Raises `ModelFormatError` if there are several.
    """
    symbol = _symbol(Path(path))
    if params is not None:
        if not os.path.isfile(params):
            raise ModelFormatError("no such file; pass the model's .params file as params", params)
        return Files(symbol, Path(params))
    stem = symbol.name.removesuffix(SYMBOL_ENDING).removesuffix(".json")
    epochs = re.compile(re.escape(stem) + r"(-\d+)?\.params")
    beside = sorted(symbol.parent.glob("*.params"))
    named = [file for file in beside if epochs.fullmatch(file.name)]
    others = [file for file in beside if file.name.startswith(f"{stem}-")]
    result = only_file(named or others, "params")
    if result:
        inside(symbol.parent, result.name, "the parameters", symbol)
    return Files(symbol, result)


def _symbol(path: Path) -> Path:
    if os.path.isfile(path):
        return path
    held = sorted(path.glob(f"*{SYMBOL_ENDING}")) if os.path.isdir(path) else []
    result = only_file([*held, Path(f"{path}{SYMBOL_ENDING}")], "path")
    if result is None:
        raise ModelFormatError(
            f"no MXNet model; looked for *{SYMBOL_ENDING} in it, and for {path}{SYMBOL_ENDING}",
            path,
        )
    if result in held:
        inside(path, result.name, "the symbol", path)
    return result


def read_symbol(file: str | Path) -> Symbol:
    """Returns the symbol in a file. Raises `ModelFormatError` with the location of an error."""
    return parse_symbol(file_bytes(file), file)


def parse_symbol(data: bytes | str, file: str | Path = "") -> Symbol:
    """Returns the symbol in a JSON text; ``file`` is its name in errors."""
    what = "not an MXNet symbol"
    with name_malformed(what, file):
        return _graph(parse_json(data, file, what), "the symbol", 0)


def _graph(entry: Any, where: str, depth: int) -> Symbol:
    if depth > _DEEPEST:
        raise Malformed(f"{where}: expected at most {_DEEPEST} levels of subgraphs")
    whole = check_kind(entry, dict, where)
    listed = check_kind(whole.get("nodes"), list, f"{where}: nodes")
    loading().reads_operators(len(listed))
    nodes = tuple(_node(each, at, f"{where}, node {at}", depth) for at, each in enumerate(listed))
    heads = _entries(whole.get("heads"), len(nodes), f"{where}: heads")
    return Symbol(nodes, heads, check_kind(whole.get("attrs") or {}, dict, f"{where}: attrs"))


def _node(entry: Any, at: int, where: str, depth: int) -> SymbolNode:
    whole = check_kind(entry, dict, where)
    op, name = (check_kind(whole.get(key), str, f"{where}: {key}") for key in ("op", "name"))
    where = f"{where} ({op} {name!r})"
    attributes: dict[str, str] = {}
    # 1.0 and later write attrs, 0.11 writes attr, 0.8 writes param, and attr for users' attributes.
    for key in ("param", "attr", "attrs"):
        for attribute, value in check_kind(whole.get(key) or {}, dict, f"{where}: {key}").items():
            attributes[attribute] = check_kind(value, str, f"{where}: attribute {attribute}")
    subgraphs = check_kind(whole.get("subgraphs", []), list, f"{where}: subgraphs")
    return SymbolNode(
        op,
        name,
        attributes,
        _entries(whole.get("inputs", []), at, f"{where}: inputs"),
        tuple(_graph(each, f"{where}, subgraph", depth + 1) for each in subgraphs),
    )


def _entries(listed: Any, nodes: int, where: str) -> tuple[Entry, ...]:
    """Returns references to outputs of nodes before ``nodes``; later nodes are refused, so that
    cycles are impossible.
    """
    entries = []
    for each in check_kind(listed, list, where):
        numbers = check_kind(each, list, where)
        if not 1 <= len(numbers) <= 3 or any(type(n) is not int or n < 0 for n in numbers):
            raise Malformed(f"{where}: expected [node, output, version], got {each}")
        if numbers[0] >= nodes:
            raise Malformed(f"{where}: expected a node before {nodes}, got {numbers[0]}")
        entries.append(Entry(*numbers))
    return tuple(entries)


# MXNet's files of arrays: .params of every version, and the npz of MXNet 2.

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE, ROW_SPARSE, CSR = 0, 1, 2
_AUXILIARIES = {DENSE: (), ROW_SPARSE: ("indices",), CSR: ("indptr", "indices")}
DTYPES = {**parse.DTYPES, 8: "int16", 9: "uint16", 10: "uint32", 11: "uint64"}
# Limits: a wrong length in a file must not cost time or memory before it is detected.
_MOST_AXES = 32
_MOST_NAME = 4096


def read_params(file: str | Path) -> dict[str, Array]:
    """Returns the arrays of a file by their keys, read-only and dense, with bfloat16 read as
    float32.

    An array that MXNet saved as None is left out; an array without a key gets its position as its
    key. Raises `ModelFormatError` with the position if the file is not valid.
    """
    with _Stream.open(file) as stream:
        if stream.raw.read(4) == b"PK\x03\x04":
            arrays = _read_npz(stream.raw, file)
        else:
            stream.raw.seek(0)
            arrays = stream.arrays()
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


class _Stream(ByteStream):
    """A stream of MXNet's arrays. Layout: NDArray::Save, Load and LegacyLoad in
    src/ndarray/ndarray.cc.
    """

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays by key. The file is u64 magic, u64 0, u64 n, n arrays, u64 m, m keys
        (u64 length, bytes).
        """
        if (magic := self.integer("<Q", "the file")) != LIST_MAGIC:
            raise self.error(f"expected the magic number 0x112, got {magic:#x}", 0)
        self.integer("<Q", "the file")
        # Each array takes bytes of the file, so a count that is too large ends in an error.
        arrays = [self._array(f"array {n}") for n in range(self.integer("<Q", "the file"))]
        start = self.at
        count = self.integer("<Q", "the keys")
        if count not in (0, len(arrays)):
            raise self.error(f"expected {len(arrays)} keys, one per array, got {count}", start)
        keys = [self._key(n) for n in range(count)] or list(map(str, range(len(arrays))))
        if len(set(keys)) != len(keys):
            raise self.error("a key appears twice: expected different keys", start)
        if self.at != self.size:
            raise self.error(
                f"expected the end of the file after the last key, got {self.size - self.at} bytes"
            )
        return {key: a for key, a in zip(keys, arrays, strict=True) if a is not None}

    def _key(self, n: int) -> str:
        start, what = self.at, f"key {n}"
        if (length := self.integer("<Q", what)) > _MOST_NAME:
            raise self.error(f"{what}: expected at most {_MOST_NAME} bytes, got {length}", start)
        self.budget.take(ARRAY + 4 * length, what)
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: expected UTF-8", start) from error

    def _array(self, what: str) -> Array | None:
        start = self.at
        magic = self.integer("<I", what)
        if magic in (V2, V3):
            return self._read_typed_array(what, numpy=magic == V3)
        # V1 writes a shape of int64. The oldest form has no magic number and begins with the rank.
        rank = self.integer("<I", what) if magic == V1 else magic
        if rank > _MOST_AXES:
            raise self.error(
                f"{what}: expected a magic number or at most {_MOST_AXES} axes, got {magic:#x}",
                start,
            )
        shape = self._sizes(rank, "q" if magic == V1 else "I", what, start)
        if not shape:
            return None
        self.take(8, what)  # the device
        return self.numbers(shape, self._dtype(what), what)

    def _read_typed_array(self, what: str, *, numpy: bool) -> Array | None:
        start = self.at
        storage = self.integer("<i", what)
        if storage not in _AUXILIARIES:
            raise self.error(f"{what}: expected a storage type of 0 to 2, got {storage}", start)
        if storage != DENSE:
            self._shape(what)  # the shape of the stored elements, which may be wrong
        shape = self._shape(what)
        if shape is None or (not shape and not numpy):
            return None
        self.take(8, what)  # the device
        dtype = self._dtype(what)
        kinds = [(self._dtype(what), self._shape(what)) for _ in _AUXILIARIES[storage]]
        counts = [sizes[0] if sizes and len(sizes) == 1 else -1 for _, sizes in kinds]
        if min(counts, default=0) < 0:
            raise self.error(f"{what}: expected lists as the positions of a sparse array", start)
        stored = {ROW_SPARSE: (*counts[:1], *shape[1:]), CSR: tuple(counts[1:])}
        data = self.numbers(stored.get(storage, shape), dtype, what)
        auxiliaries = [self.numbers(sizes or (), kind, what) for kind, sizes in kinds]
        if storage == DENSE:
            return data
        # `_dense` may need temporary int64 arrays with the row and the column of each stored
        # element.
        places = 24 * sum(auxiliary.size for auxiliary in auxiliaries)
        self.budget.take(math.prod(shape) * data.dtype.itemsize, f"{what}, a dense {shape},")
        try:
            with self.budget.lent(places, f"{what}, its places,"):
                return _dense(storage, shape, data, *auxiliaries)
        except (ValueError, IndexError, TypeError) as error:
            raise self.error(f"{what}: its sparse parts do not fit: {error}", start) from error

    def _shape(self, what: str) -> tuple[int, ...] | None:
        """Returns a shape, stored as i32 rank and i64 sizes; None for a negative rank."""
        start = self.at
        rank = self.integer("<i", what)
        return None if rank < 0 else self._sizes(rank, "q", what, start)

    def _sizes(self, rank: int, form: str, what: str, start: int) -> tuple[int, ...]:
        if rank > _MOST_AXES:
            raise self.error(f"{what}: expected at most {_MOST_AXES} axes, got {rank}", start)
        return self.check_shape(self.integers(f"<{rank}{form}", what), rank, what, start)

    def _dtype(self, what: str) -> str:
        start = self.at
        code = self.integer("<i", what)
        if code not in DTYPES:
            raise self.error(
                f"{what}: expected a data type of 0 to {max(DTYPES)}, got {code}", start
            )
        return DTYPES[code]


def _dense(storage: int, shape: tuple[int, ...], data: Array, *auxiliaries: Array) -> Array:
    """Returns the dense form of a sparse array. ``auxiliaries``: for a row-sparse array the indices
    of the rows that ``data`` holds, for csr the offset of each row in ``data`` and the column of
    each element.
    """
    out = np.zeros(shape, data.dtype)
    if any(a.ndim != 1 or a.dtype.kind not in "iu" or (a < 0).any() for a in auxiliaries):
        raise ValueError("expected lists of integers of 0 or more as positions")
    if storage == ROW_SPARSE:
        if data.shape != (len(auxiliaries[0]), *shape[1:]):
            raise ValueError(
                f"expected {len(auxiliaries[0])} rows of {shape[1:]}, got an array {data.shape}"
            )
        out[auxiliaries[0]] = data
        return out
    indptr, indices = auxiliaries
    if len(indptr) != shape[0] + 1 or data.shape != indices.shape:
        raise ValueError(
            f"expected {shape[0] + 1} offsets and as many columns as elements, got {len(indptr)}"
            f" offsets, {len(indices)} columns and elements {data.shape}"
        )
    Ragged(data, indptr)  # checks that offsets ascend up to the number of elements
    out[np.repeat(np.arange(shape[0]), np.diff(indptr)), indices] = data
    return out


def _read_npz(raw: BufferedReader, file: str | Path) -> dict[str, Array]:
    """Returns the dense arrays. The file is not compressed, so no array is larger than the file."""
    with unzip(raw, "cannot be read as an npz", file) as archive:
        packed = [info.filename for info in archive.infolist() if info.compress_type]
        if packed:
            raise ModelFormatError(
                f"{packed[0]} is compressed: expected no compression, as MXNet saves it; use"
                " numpy.savez",
                file,
            )
        arrays = {}
        for info in archive.infolist():
            if not info.filename.endswith(".npy") or "/" in info.filename:
                raise ModelFormatError(
                    f"{info.filename}: expected dense arrays NAME.npy only; convert sparse ones"
                    " with tostype('default')",
                    file,
                )
            array = read_member(archive, info)
            if array.dtype.names == ("bfloat16",):
                array = numbers_of(array["bfloat16"], "bfloat16", loading(), info.filename)
            arrays[info.filename[:-4]] = array
        return arrays


# Finds the array of each variable: MXNet's parameter files have several styles of keys.
#
# - export and Module: ``arg:NAME`` and ``aux:NAME``; nd.save: NAME.
# - Legacy cells' checkpoints (mx.rnn.save_rnn_checkpoint): an array for each gate.
# - gluon's save_parameters: the path of blocks, ``rnn._unfused.0.l_cell.i2h_weight``.

Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Declared:
    """A variable of the symbol; a size is None if the symbol does not state it."""

    name: str
    shape: Sizes | None = None
    fused: mxnet.Stack | None = None  # for the parameter vector of an RNN operator


class Matched(NamedTuple):
    """The arrays by variable, and notes for the user about how they were found."""

    arrays: dict[str, Array]
    notes: tuple[str, ...]


def match(variables: Sequence[Declared], arrays: Mapping[str, Array], file: Path) -> Matched:
    """Returns the array of each variable that has one. Other variables are inputs.

    Raises `ModelFormatError` if a shape differs from the declared one, or if an array may belong to
    several variables.
    """
    plain: dict[str, Array] = {}
    for key, array in arrays.items():
        name = key.removeprefix("arg:").removeprefix("aux:")
        if name in plain:
            raise ModelFormatError(
                f"parameter {name!r} appears twice: expected it once, with or without arg: or aux:",
                file,
            )
        plain[name] = array
    result = {each.name: a for each in variables if (a := _plain(each, plain)) is not None}
    notes: tuple[str, ...] = ()
    if not result and any(_block_of(key) for key in plain):
        result, notes = _by_structure(variables, plain, file)
    for each in variables:
        if each.name in result and not _fits(each.shape, result[each.name].shape):
            raise ModelFormatError(
                f"parameter {each.name!r}: expected {each.shape}, which the symbol declares, got"
                f" {result[each.name].shape}; pass the file of this symbol as params",
                file,
            )
    return Matched(result, notes)


def _plain(variable: Declared, arrays: Mapping[str, Array]) -> Array | None:
    if variable.name in arrays:
        return arrays[variable.name]
    if variable.fused and variable.name.endswith("parameters"):
        prefix = variable.name.removesuffix("parameters")
        parts = [_gates(f"{prefix}{name}", arrays) for name in mxnet.part_names(variable.fused)]
        flat = [part.reshape(-1) for part in parts if part is not None]
        return np.concatenate(flat) if len(flat) == len(parts) else None
    return _gates(variable.name, arrays)


def _gates(name: str, arrays: Mapping[str, Array]) -> Array | None:
    """Returns an array such as ``lstm_l0_i2h_weight``, or joins it from ``lstm_l0_i2h_i_weight``
    and so on.
    """
    if name in arrays:
        return arrays[name]
    parts = re.fullmatch(r"(.*[ih]2h)_(weight|bias)", name)
    for letters in mxnet.LEGACY_GATES.values() if parts else ():
        keys = [parts.expand(rf"\1_{letter}_\2") for letter in letters] if parts else []
        if arrays.keys() >= {*keys}:
            return np.concatenate([arrays[key] for key in keys])
    return None


def _fits(declared: Sizes | None, shape: tuple[int, ...]) -> bool:
    return declared is None or (
        len(declared) == len(shape)
        and all(size in (None, got) for size, got in zip(declared, shape, strict=True))
    )


def _block_of(key: str) -> tuple[str, str] | None:
    """Returns the block and the parameter in a key of gluon's save_parameters: ("rnn",
    "l0_i2h_weight"); None for other keys.
    """
    cell = re.fullmatch(r"(?:(.+)\.)?_unfused\.(\d+)\.(?:([lr])_cell\.)?(\w+)", key)
    if cell:
        return cell[1] or "", f"{cell[3] or 'l'}{cell[2]}_{cell[4]}"
    path = re.fullmatch(r"(.+)\.(\w+)", key)
    return (path[1], path[2]) if path else None


def _by_structure(
    variables: Sequence[Declared], arrays: Mapping[str, Array], file: Path
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Returns the arrays of the symbol's variables, and notes. Blocks of the file and of the symbol
    are matched by their parameters' names and shapes.

    Blocks with equal names and shapes are matched in order, because file and symbol both number
    blocks in the order of creation.
    """
    saved: dict[str, dict[str, Array]] = {}
    for key, array in arrays.items():
        block, name = _block_of(key) or ("", key)
        saved.setdefault(block, {})[name] = array
    names = sorted({n for block in saved.values() for n in block}, key=len, reverse=True)
    blocks: dict[str, dict[str, Declared]] = {}
    for each in variables:
        ending = next((n for n in names if each.name.endswith(f"_{n}")), None)
        if ending:
            blocks.setdefault(each.name.removesuffix(ending), {})[ending] = each
    result: dict[str, Array] = {}
    alike: list[str] = []
    for path, parameters in saved.items():
        fitting = _fitting(blocks, parameters)
        if not fitting:  # tied weights: the symbol has shared weights in only one block
            others = [a for p, block in saved.items() if p != path for a in block.values()]
            own = {n: a for n, a in parameters.items() if not any(same_array(a, b) for b in others)}
            if not own:
                continue
            fitting = _fitting(blocks, own)
            parameters = own if fitting else parameters
        if not fitting:
            wanted = ", ".join(f"{name} {array.shape}" for name, array in parameters.items())
            raise ModelFormatError(
                f"no block of the symbol has the parameters of {path!r}: {wanted}; pass the file of"
                " this symbol as params",
                file,
            )
        if len(fitting) > 1:
            alike.append(path)
            _check_counted(fitting, path, file)
        declared = blocks.pop(fitting[0])
        result |= {declared[name].name: array for name, array in parameters.items()}
    if not alike:
        return result, ()
    listed = ", ".join(alike)
    note = f"parameters of {listed}: other blocks look alike, so they were taken in order"
    return result, (note,)


def _fitting(
    blocks: Mapping[str, Mapping[str, Declared]], parameters: Mapping[str, Array]
) -> list[str]:
    return [
        prefix
        for prefix, declared in blocks.items()
        if set(declared) == set(parameters)
        and all(_fits(declared[n].shape, a.shape) for n, a in parameters.items())
    ]


def _check_counted(prefixes: Sequence[str], path: str, file: Path) -> None:
    """Raises `ModelFormatError` if blocks run in a different order than their numbers (dense1
    before dense0).
    """

    def split_counts(prefix: str) -> tuple[str, list[int]]:
        return re.sub(r"\d+", "#", prefix), [int(n) for n in re.findall(r"\d+", prefix)]

    for (stem, first), (other, second) in pairwise(map(split_counts, prefixes)):
        if stem == other and first > second:
            raise ModelFormatError(
                f"{path!r} may belong to any of {', '.join(prefixes)}; export the block, or save"
                " the parameters under the symbol's names",
                file,
            )
