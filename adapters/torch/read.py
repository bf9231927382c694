"""Exported programs: the graph in a .pt2, and the tensors that stand beside it.

Fields: torch/_export/serde/schema.py of PyTorch 2.13; a .pt2 has had three layouts since 2.5:

- one JSON text and pickles of tensors, named serialized_...: torch.export.save up to 2.7;
- models/NAME.json, and data/weights/NAME.pt, a pickle of tensors: 2.8;
- models/NAME.json, and data/weights/NAME_weights_config.json beside a file for each tensor: 2.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.common.files import (
    Malformed,
    check_kind,
    name_malformed,
    open_budgeted,
    parsed_json,
)
from onernn.adapters.torch.weight_files import (
    DTYPES,
    SCALAR_TYPES,
    Archive,
    Storage,
    Storages,
    Tensor,
    nested_arrays,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass

MAJOR = 8
"""The version of the schema that PyTorch has written since 2.5; its minor ones only add to it."""


class Ref(NamedTuple):
    """A value of the graph, by its name."""

    name: str


class Open(NamedTuple):
    """A number that only a run knows, a size for example, by its name."""

    name: str


class Unread(NamedTuple):
    """What a node was given that is not read here, a graph for example."""

    kind: str


Sizes = tuple[int | str, ...]


class Meta(NamedTuple):
    """What the program says of a tensor; a size that is left open is an expression."""

    dtype: str
    sizes: Sizes


@dataclass(frozen=True)
class Node:
    """A call of an operator. Outputs are names, "" where nothing comes."""

    target: str
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]


class Input(NamedTuple):
    """An input of the graph: the user's, or a tensor that the file holds under ``target``.

    ``lifted``: a tensor that stood in the code, torch.tensor(x.shape[1]).
    """

    name: str
    target: str | None
    value: Any = None
    lifted: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """``metas``: types of values by name; ``ranges``: least and most of an open size, by name."""

    file: Path
    version: str
    inputs: tuple[Input, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[Node, ...]
    metas: Mapping[str, Meta]
    ranges: Mapping[str, tuple[int | None, int | None]]
    arrays: Mapping[str, Array]


def read_program(path: str | Path) -> Program:
    """Returns the program in a .pt2. Raises `ModelFormatError` for a file that is none,
    `UnsupportedError` for a version of the schema that is not read.
    """
    file = Path(path)
    with name_malformed("not an exported program", file), open_budgeted(file) as (raw, _):
        with Archive.opened(file, raw) as archive:
            return _program(archive, file)


def _program(archive: Archive, file: Path) -> Program:
    names = archive.names
    if "serialized_exported_program.json" in names:
        whole = _json(archive, "serialized_exported_program.json")
        arrays = _old_arrays(archive)
    else:
        models = [n[7:-5] for n in names if n.startswith("models/") and n.endswith(".json")]
        if len(models) != 1:
            raise UnsupportedError(
                f"{file}: {len(models)} programs ({', '.join(sorted(models)[:5]) or 'none'});"
                " expected the one that torch.export.save writes"
            )
        whole = _json(archive, f"models/{models[0]}.json")
        archive.check_order()
        arrays = {}
        for kind in ("weights", "constants"):
            arrays |= _arrays(archive, f"data/{kind}/", models[0], kind)
    return _parse(whole, arrays, file)


def _json(archive: Archive, name: str) -> Any:
    return parsed_json(archive.read(name), archive.file, name)


def _old_arrays(archive: Archive) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for kind in ("state_dict", "constants"):
        name = f"serialized_{kind}.pt"
        if name not in archive.names:
            raise UnsupportedError(f"{archive.file}: no {name}: it was saved before PyTorch 2.5")
        arrays |= nested_arrays(archive.read(name), str(archive.file), name)
    return arrays


def _arrays(archive: Archive, folder: str, model: str, kind: str) -> dict[str, Array]:
    pickled, config = f"{folder}{model}.pt", f"{folder}{model}_{kind}_config.json"
    if pickled in archive.names:
        return nested_arrays(archive.read(pickled), str(archive.file), pickled)
    if config not in archive.names:
        return {}
    storages, arrays = Storages.of(archive, folder), {}
    for name, each in _get(_json(archive, config), "config", dict).items():
        meta = each.get("tensor_meta") if isinstance(each, dict) else None
        if meta is None or _get(each, "use_pickle", bool):
            continue  # no tensor: whoever reads it is refused
        dtype = _dtype(meta)
        path = _get(each, "path_name", str)
        size = DTYPES[dtype].itemsize if dtype in DTYPES else 1
        held = archive.size(f"{folder}{path}") // size
        sizes, strides = (_numbers(meta, part) for part in ("sizes", "strides"))
        offset = _size(_get(meta, "storage_offset", dict, {"as_int": 0}))
        if not isinstance(offset, int) or min((offset, *strides, *sizes)) < 0:
            raise Malformed(f"{name}: impossible shape, strides or offset")
        tensor = Tensor(Storage(path, dtype, held), offset, sizes, strides)
        arrays[name] = storages.array(tensor, name)
    return arrays


def _numbers(meta: Any, part: str) -> tuple[int, ...]:
    result = tuple(_size(each) for each in _get(meta, part, list))
    if not all(isinstance(size, int) for size in result):
        raise Malformed(f"{part} of a tensor in the file that are left open")
    return result  # type: ignore[return-value]


def _parse(whole: Any, arrays: Mapping[str, Array], file: Path) -> Program:
    schema = _get(whole, "schema_version", dict)
    major, minor = _get(schema, "major", int), _get(schema, "minor", int)
    version = _get(whole, "torch_version", str, "2.4 or older")
    if major != MAJOR:
        raise UnsupportedError(
            f"{file}: version {major}.{minor} of the schema, written by PyTorch {version};"
            f" {MAJOR} is read, which PyTorch 2.5 and later write: export it there"
        )
    module = _get(whole, "graph_module", dict)
    graph, signature = _get(module, "graph", dict), _get(module, "signature", dict)
    metas = {
        name: Meta(_dtype(meta), tuple(map(_size, _get(meta, "sizes", list))))
        for name, meta in _get(graph, "tensor_values", dict).items()
    }
    ranges = {
        name: (_bind(each, "min_val"), _bind(each, "max_val"))
        for name, each in _get(whole, "range_constraints", dict).items()
    }
    return Program(
        file,
        version,
        tuple(map(_input, _get(signature, "input_specs", list))),
        tuple(map(_output, _get(signature, "output_specs", list))),
        tuple(map(_node, _get(graph, "nodes", list))),
        metas,
        ranges,
        arrays,
    )


def _input(spec: Any) -> Input:
    kind, spec = _only(spec, "an input")
    if kind == "user_input":
        value = _argument(_get(spec, "arg", dict))
        return Input(value.name if isinstance(value, Ref | Open) else "", None, value)
    if kind == "constant_input":
        return Input(_get(spec, "name", str), None, _only(_get(spec, "value", dict), "input")[1])
    keys = {"parameter": "parameter_name", "buffer": "buffer_name"}
    keys["tensor_constant"] = "tensor_constant_name"
    if kind not in keys:
        raise UnsupportedError(f"an input that is a {kind}: only tensors and numbers are read")
    name = _get(_get(spec, "arg", dict), "name", str)
    return Input(name, _get(spec, keys[kind], str), Ref(name), kind == "tensor_constant")


def _output(spec: Any) -> Any:
    kind, spec = _only(spec, "an output")
    if kind.endswith("mutation"):
        changed = next((v for k, v in spec.items() if k.endswith("name")), "")
        raise UnsupportedError(
            f"each run changes {str(changed)[:200]!r} ({kind}): a model here holds nothing between"
            " runs; export it with its states as inputs and outputs, and in eval mode"
        )
    if kind != "user_output":
        raise UnsupportedError(f"an output that is a {kind}: this is a program for training")
    return _argument(_get(spec, "arg", dict))


def _node(entry: Any) -> Node:
    inputs = {
        _get(each, "name", str): _argument(_get(each, "arg", dict))
        for each in _get(entry, "inputs", list)
    }
    outputs: list[str] = []
    for each in _get(entry, "outputs", list):
        value = _argument(each)
        for one in value if isinstance(value, list) else [value]:
            outputs.append(one.name if isinstance(one, Ref | Open) else "")
    return Node(_get(entry, "target", str), inputs, tuple(outputs))


def _argument(entry: Any) -> Any:
    """Returns a union of one field: numbers and texts as they are, values of the graph as `Ref`."""
    kind, value = _only(entry, "an argument")
    kind = kind.removeprefix("as_")
    if kind.startswith(("optional_", "sym_")):  # unions again
        each = check_kind(value, list, kind) if kind.endswith("s") else [value]
        result = [_argument(one) for one in each]
        return result if kind.endswith("s") else result[0]
    if kind in ("tensors", "ints", "bools", "strings", "floats"):
        return [_argument({f"as_{kind[:-1]}": one}) for one in check_kind(value, list, kind)]
    match kind:
        case "none":
            return None
        case "tensor":
            return Ref(_get(value, "name", str))
        case "name":
            return Open(check_kind(value, str, kind))
        case "int" | "bool" | "string":
            return check_kind(value, {"i": int, "b": bool, "s": str}[kind[0]], kind)
        case "float":
            return float(check_kind(value, float | int | str, kind))
        case "scalar_type":
            return SCALAR_TYPES.get(check_kind(value, int, kind), f"ScalarType {value}")
    return Unread(kind)


def _dtype(meta: Any) -> str:
    number = _get(meta, "dtype", int)
    return SCALAR_TYPES.get(number, f"ScalarType {number}")


def _size(entry: Any) -> int | str:
    kind, value = _only(entry, "a size")
    if kind == "as_int":
        return int(check_kind(value, int, kind))
    return _get(value, "expr_str", str)


def _bind(entry: Any, name: str) -> int | None:
    value = _get(entry, name, int | None, None)
    return value if value is None else int(value)


def _only(entry: Any, what: str) -> tuple[str, Any]:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise Malformed(f"{what}: expected an object of one field")
    return next(iter(entry.items()))


_NONE: Any = object()


def _get(entry: Any, name: str, kind: Any, default: Any = _NONE) -> Any:
    """Returns a field, checked."""
    if not isinstance(entry, dict):
        raise Malformed(f"{name}: expected in an object")
    if name not in entry and default is not _NONE:
        return default
    return check_kind(entry.get(name), kind, name)
