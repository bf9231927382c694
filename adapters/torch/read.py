"""Reads exported programs: the graph in a .pt2 file, and its tensors.

torch/_export/serde/schema.py of PyTorch 2.13 defines the fields. A .pt2 has had three layouts since
2.5:

- up to 2.7: serialized_exported_program.json, and pickles of tensors, serialized_NAME.pt;
- 2.8: models/NAME.json, and data/weights/NAME.pt, a pickle of tensors;
- 2.9: models/NAME.json, and data/weights/NAME_weights_config.json with a file for each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from onernn.adapters.common.files import (
    Malformed,
    check_kind,
    name_malformed,
    open_budgeted,
    pairs,
    parse_json,
)
from onernn.adapters.torch.weight_files import (
    DTYPES,
    SCALAR_TYPES,
    Archive,
    Storage,
    Storages,
    Tensor,
    read_nested,
)
from onernn.ir.arrays import Array
from onernn.ir.budget import loading
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass

MAJOR = 8
"""The major version of the schema since PyTorch 2.5; minor versions only add fields."""


class Ref(NamedTuple):
    """A reference that names a tensor of the graph."""

    name: str


class Open(NamedTuple):
    """The name of a number in the graph, for example a size, which is computed at run time."""

    name: str


class Unread(NamedTuple):
    """An argument of a kind that onernn does not read, for example a graph."""

    kind: str


Sizes = tuple[int | str, ...]
COMPLEX = pairs("complex64=float32 complex128=float64")
"""The complex dtypes, and the dtype of the real and imaginary parts of each."""


class Meta(NamedTuple):
    """The declared dtype and sizes of a tensor; a dynamic size is the text of an expression."""

    dtype: str
    sizes: Sizes

    @property
    def is_complex(self) -> bool:
        return self.dtype in COMPLEX

    @property
    def parts(self) -> Meta:
        """The type of a complex tensor stored as floats: a last axis of size 2 has both parts."""
        return Meta(COMPLEX[self.dtype], (*self.sizes, 2))


@dataclass(frozen=True)
class Node:
    """A node that calls an operator. ``outputs`` are names, "" for an absent output."""

    target: str
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The operator's name, without the prefix torch.ops.aten and the overload "default"."""
        return self.target.removeprefix("torch.ops.aten.").removesuffix(".default")

    @property
    def result(self) -> str:
        """The name of the first output that is present, or ""."""
        return next(filter(None, self.outputs), "")


class Input(NamedTuple):
    """An input of the graph: a user's input, or a tensor that the file stores as ``target``.

    ``lifted``: whether the tensor was written in the code, for example torch.tensor(x.shape[1]).
    """

    name: str
    target: str | None
    value: Any = None
    lifted: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """An exported program.

    ``metas``: the declared types of tensors by name. ``ranges``: the bounds of dynamic sizes by
    name.
    """

    file: Path
    version: str
    inputs: tuple[Input, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[Node, ...]
    metas: Mapping[str, Meta]
    ranges: Mapping[str, tuple[int | None, int | None]]
    arrays: Mapping[str, Array]


def read_program(path: str | Path) -> Program:
    """Returns the program in a .pt2.

    Raises `ModelFormatError` if the file has no program, and `UnsupportedError` for a version of
    the schema that onernn does not read.
    """
    file = Path(path)
    with name_malformed("not an exported program", file), open_budgeted(file) as (raw, _):
        with Archive.open(file, raw) as archive:
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
                f"{file}: expected the one program that torch.export.save writes, got"
                f" {len(models)} ({', '.join(sorted(models)[:5]) or 'none'})"
            )
        whole = _json(archive, f"models/{models[0]}.json")
        archive.check_order()
        arrays = {}
        for kind in ("weights", "constants"):
            arrays |= _arrays(archive, f"data/{kind}/", models[0], kind)
    return _parse(whole, arrays, file)


def _json(archive: Archive, name: str) -> Any:
    return parse_json(archive.read(name), archive.file, name)


def _old_arrays(archive: Archive) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for kind in ("state_dict", "constants"):
        name = f"serialized_{kind}.pt"
        if name not in archive.names:
            raise UnsupportedError(
                f"{archive.file}: expected {name}, it was saved before PyTorch 2.5; export the"
                " model again"
            )
        arrays |= read_nested(archive.read(name), str(archive.file), name)
    return arrays


def _arrays(archive: Archive, folder: str, model: str, kind: str) -> dict[str, Array]:
    pickled, config = f"{folder}{model}.pt", f"{folder}{model}_{kind}_config.json"
    if pickled in archive.names:
        return read_nested(archive.read(pickled), str(archive.file), pickled)
    if config not in archive.names:
        return {}
    storages, arrays = Storages.of(archive, folder), {}
    for name, each in _get(_json(archive, config), "config", dict).items():
        meta = each.get("tensor_meta") if isinstance(each, dict) else None
        if meta is None or _get(each, "use_pickle", bool):
            continue  # not a tensor: nodes that read it raise errors
        dtype = _dtype(meta)
        path = _get(each, "path_name", str)
        size = DTYPES[dtype].itemsize if dtype in DTYPES else 1
        held = archive.size(f"{folder}{path}") // size
        sizes, strides = (_numbers(meta, part) for part in ("sizes", "strides"))
        offset = _size(_get(meta, "storage_offset", dict, {"as_int": 0}))
        if not isinstance(offset, int) or min((offset, *strides, *sizes)) < 0:
            got = f"got {sizes}, {strides}, {offset!r:.60}"
            raise Malformed(f"{name}: expected sizes, strides and offset of 0 or more, {got}")
        tensor = Tensor(Storage(path, dtype, held), offset, sizes, strides)
        arrays[name] = storages.array(tensor, name)
    return arrays


def _numbers(meta: Any, part: str) -> tuple[int, ...]:
    result = tuple(_size(each) for each in _get(meta, part, list))
    if not all(isinstance(size, int) for size in result):
        raise Malformed(f"{part} of a tensor in the file: expected integers, got {result!r:.100}")
    return result  # type: ignore[return-value]


def _parse(whole: Any, arrays: Mapping[str, Array], file: Path) -> Program:
    schema = _get(whole, "schema_version", dict)
    major, minor = _get(schema, "major", int), _get(schema, "minor", int)
    version = _get(whole, "torch_version", str, "2.4 or older")
    if major != MAJOR:
        raise UnsupportedError(
            f"{file}: version {major}.{minor} of the schema, written by PyTorch {version}: expected"
            f" {MAJOR}; export it with PyTorch 2.5 or later"
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
    nodes = _get(graph, "nodes", list)
    loading().reads_operators(len(nodes))
    return Program(
        file,
        version,
        tuple(map(_input, _get(signature, "input_specs", list))),
        tuple(_output(spec, file) for spec in _get(signature, "output_specs", list)),
        tuple(map(_node, nodes)),
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
    if kind not in ("parameter", "buffer", "tensor_constant"):
        raise UnsupportedError(f"input of kind {kind}: expected a tensor or a number")
    name = _get(_get(spec, "arg", dict), "name", str)
    return Input(name, _get(spec, f"{kind}_name", str), Ref(name), kind == "tensor_constant")


def refuse_change(file: Path, name: str, how: str, *, is_input: bool) -> NoReturn:
    """Raises `UnsupportedError` for a program that changes an input or one of its own tensors."""
    advice = (
        f"write {name} = {name}.clone() at the beginning of forward"
        if is_input
        else "call model.eval() before the export; if it changes in that mode as well, export the"
        " model with its states as inputs and outputs: page PyTorch of the manual,"
        " 'Models that keep states'"
    )
    raise UnsupportedError(
        f"{file}: each run changes {name!r} ({how}), expected a model that keeps nothing between"
        f" runs; {advice}"
    )


def _output(spec: Any, file: Path) -> Any:
    kind, spec = _only(spec, "an output")
    if kind.endswith("mutation"):
        changed = next((v for k, v in spec.items() if k.endswith("name")), "")
        refuse_change(file, str(changed)[:200], kind, is_input=kind.startswith("user_input"))
    if kind != "user_output":
        raise UnsupportedError(
            f"output of kind {kind}: expected a program for inference; export model.eval()"
        )
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
    """Returns the value of an argument: a number, a text, a list, a `Ref` or an `Open`."""
    kind, value = _only(entry, "an argument")
    kind = kind.removeprefix("as_")
    if kind.startswith(("optional_", "sym_")):  # these fields contain another union
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
        raise Malformed(f"{what}: expected an object of one field, got {entry!r:.100}")
    return next(iter(entry.items()))


_NONE: Any = object()


def _get(entry: Any, name: str, kind: Any, default: Any = _NONE) -> Any:
    if not isinstance(entry, dict):
        raise Malformed(f"{name}: expected in an object, got {type(entry).__name__}")
    if name not in entry and default is not _NONE:
        return default
    return check_kind(entry.get(name), kind, name)
