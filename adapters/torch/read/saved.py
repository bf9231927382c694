"""What torch.save and torch.jit.save wrote, safetensors too: arrays by name."""

from __future__ import annotations

import io
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.torch.read.archive import (
    Archive,
    ArchiveStorages,
    HeldStorages,
    Storages,
)
from onernn.adapters.torch.read.dtypes import DTYPES, SAFETENSORS
from onernn.adapters.torch.read.pickles import Record, Tensor, unpickle
from onernn.core.arrays import Array, widened
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError, UnsupportedError

ZIP = b"PK\x03\x04"
_OLD = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How files begin that torch.save wrote before 1.6: a pickle of its magic number."""
_PROTOCOL = 1001
_MOST = 10**6
"""Values of a pickle that are looked through for tensors."""
_STATES = ("state_dict", "model_state_dict", "model")
"""Under which names checkpoints hold a model's tensors among other things."""


def read_arrays(path: str | Path) -> dict[str, Array]:
    """The tensors of a file by their names; bfloat16 as float32 of the same values.

    ``path``: what torch.save wrote, a state dict or a checkpoint that holds one; a TorchScript
    archive, whose code is not run; or a .safetensors. Raises `ModelFormatError` for a file that is
    none, `UnsupportedError` for a pickle that names more than tensors and containers.
    """
    file = Path(path)
    try:
        with file.open("rb") as raw:
            loading().reads(os.fstat(raw.fileno()))
            head = raw.read(len(_OLD))
            raw.seek(0)
            if head.startswith(ZIP):
                with Archive.opened(file, raw) as archive:
                    return saved_arrays(archive)
            data = raw.read()
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror}", file) from error
    if head == _OLD:
        return _old(data, file)
    if file.suffix == ".safetensors":
        return _safetensors(data, file)
    raise ModelFormatError(
        "expected an archive or a pickle that torch.save wrote, or a .safetensors", file, 0
    )


def saved_arrays(archive: Archive) -> dict[str, Array]:
    """The tensors of an archive that torch.save or torch.jit.save wrote."""
    archive.check_order()
    scripted = "constants.pkl" in archive.names
    if "data.pkl" not in archive.names:
        raise ModelFormatError("an archive without data.pkl; PyTorch writes one", archive.file)
    tree = unpickle(archive.read("data.pkl"), archive.file, "data.pkl", scripted=scripted).value
    return _arrays(tree, ArchiveStorages(archive))


def _arrays(tree: Any, storages: Storages) -> dict[str, Array]:
    if isinstance(tree, Mapping):
        inner = [tree[name] for name in _STATES if isinstance(tree.get(name), Mapping)]
        tree = inner[0] if inner else tree
    arrays: dict[str, Array] = {}
    for name, tensor in _tensors(tree):
        if name in arrays:
            raise ModelFormatError(f"{name!r} stands there twice", storages.file)
        arrays[name] = storages.array(tensor, name)
    return arrays


def _tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Those of a value by the way to them, "layer.weight"; a container met again is passed over."""
    waiting: list[tuple[str, Any]] = [("", tree)]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor):
            yield name, value
            continue
        inside: Any = value.state if isinstance(value, Record) else value
        if not isinstance(inside, dict | list | tuple) or id(inside) in seen:
            continue
        seen.add(id(inside))
        items = [*inside.items()] if isinstance(inside, dict) else [*enumerate(inside)]
        if isinstance(value, Record):  # _flat_weights are the weights once more
            items = [(key, each) for key, each in items if not f"{key}".startswith("_")]
        if len(waiting) + len(items) > _MOST:
            raise UnsupportedError("a pickle of more values than a model has")
        loading().take(len(name) * len(items), "the names of tensors")
        waiting += [(f"{name}.{key}" if name else f"{key}", each) for key, each in reversed(items)]


def _old(data: bytes, file: Path) -> dict[str, Array]:
    """Pickles one behind the other: a magic number, the protocol, the machine, the value and the
    keys of its storages; then each storage, behind the count of its numbers.
    """
    at, found = len(_OLD), []
    for what in ("the protocol", "the machine", "the value", "the keys of storages"):
        value, at = unpickle(data, file, what, at)
        found.append(value)
    protocol, machine, tree, keys = found
    if protocol != _PROTOCOL or not (isinstance(machine, dict) and machine.get("little_endian")):
        raise UnsupportedError(f"{file}: torch.save's protocol {_PROTOCOL} of a little-endian one")
    types = {each.storage.key: each.storage.dtype for _, each in _tensors(tree)}
    held: dict[str, bytes] = {}
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or types.get(key) not in DTYPES or key in held:
            raise ModelFormatError("a storage that no tensor has", file, at)
        if len(data) - at < 8:
            raise ModelFormatError("the file ends before its storages", file, at)
        count, at = struct.unpack_from("<q", data, at)[0], at + 8
        size = count * DTYPES[types[key]].itemsize
        if not 0 <= size <= len(data) - at:
            raise ModelFormatError(f"a storage of {count} numbers beyond the file", file, at)
        held[key], at = data[at : at + size], at + size
    if missing := types.keys() - held.keys():
        raise ModelFormatError(f"{len(missing)} storages are missing", file, at)
    return _arrays(tree, HeldStorages(file, held))


class _Entry(NamedTuple):
    """A tensor of a .safetensors: its numbers lie between two places behind the header."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


def _safetensors(data: bytes, file: Path) -> dict[str, Array]:
    """A length of 8 bytes, a header in JSON, and the numbers of each tensor."""
    if len(data) < 8:
        raise ModelFormatError("a .safetensors begins with a length of 8 bytes", file, 0)
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise ModelFormatError(f"a header of {length} bytes, {len(data) - 8} are left", file, 0)
    header = parsed_json(data[8 : 8 + length], file, "the header")
    body = memoryview(data)[8 + length :]
    return {
        name: _safe_array(_entry(told, name, len(body), file), body, name, file)
        for name, told in _dict(header, "the header", file).items()
        if name != "__metadata__"
    }


def _entry(told: Any, name: str, size: int, file: Path) -> _Entry:
    told = _dict(told, name, file)
    dtype, shape, places = told.get("dtype"), told.get("shape"), told.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise UnsupportedError(f"{file}: {name}: numbers of type {str(dtype)[:20]!r}")
    whole = [shape, places]
    if not all(isinstance(w, list) and all(type(n) is int and n >= 0 for n in w) for w in whole):
        raise ModelFormatError(f"{name}: expected lists of sizes and places", file)
    kind = DTYPES[SAFETENSORS[dtype]]
    if len(shape) > 32 or len(places) != 2 or not places[0] <= places[1] <= size:
        raise ModelFormatError(f"{name}: its numbers lie outside of the file", file)
    elements = math.prod(size or 1 for size in shape)  # beside a zero sizes cost no bytes
    used = 0 if 0 in shape else elements * kind.itemsize
    if elements > 2**56 or used != places[1] - places[0]:
        raise ModelFormatError(
            f"{name}: {tuple(shape)} of {dtype} in {places[1] - places[0]} bytes", file
        )
    return _Entry(SAFETENSORS[dtype], tuple(shape), *places)


def _safe_array(entry: _Entry, body: memoryview, name: str, file: Path) -> Array:
    # A copy: places in the file are aligned to nothing.
    loading().take(2 * (entry.end - entry.first), name)
    flat: Array = np.frombuffer(bytes(body[entry.first : entry.end]), DTYPES[entry.dtype])
    if entry.dtype == "bfloat16":
        flat = widened(flat)
    elif entry.dtype == "bool":
        flat = flat != 0
    return flat.reshape(entry.shape)


def _dict(found: Any, what: str, file: Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ModelFormatError(f"{what}: expected an object", file)
    return found


def parsed_json(data: bytes, file: str | Path, what: str) -> Any:
    """A text in JSON. Raises `ModelFormatError` for what is none."""
    loading().parses_json(data)
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()  # "\\ud800" is JSON, but no text
    except RecursionError:
        reason = "nested too deep"
    except ValueError as error:
        reason = str(error)
    else:
        return found
    raise ModelFormatError(f"{what}: no JSON: {reason}", file)


def nested_arrays(data: bytes, file: str, what: str) -> dict[str, Array]:
    """The tensors of an archive inside of another one; none where it is empty."""
    if not data:
        return {}
    with Archive.opened(f"{file}, {what}", io.BytesIO(data)) as archive:
        return saved_arrays(archive)
