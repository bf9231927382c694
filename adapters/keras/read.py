"""Reads Keras's files: configurations and weights, from archives and HDF5."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.files import open_budgeted, parse_json
from onernn.adapters.keras import keras1
from onernn.ir.arrays import Array
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.ir.files import member_bytes, open_member, read_member, unzip
from onernn.ir.records import dataclass
from onernn.ir.spec import Activation
from onernn.reorders import keras as layout
from onernn.reorders.layers import PivotLayer

# The weights of layers, in the order of each of the two file formats.
#
# A ``.keras`` file has a tree of groups: one for each layer, which contains a group for each inner
# layer. An ``.h5`` file has one list for each layer of the outermost model, which also contains the
# weights of its inner layers.


class Tree:
    """A group of a ``.keras`` file. Readers find its members by name, not by order.

    ``reader`` returns a copy of the group from which no array has been taken. ``inside`` returns
    the group of an inner layer, by the name of the attribute that holds it. ``finish`` of the outer
    group also checks the arrays of inner groups.
    """

    def __init__(
        self, arrays: Mapping[str, Array], path: str = "", left: set[str] | None = None
    ) -> None:
        self._arrays, self._path = arrays, path
        own = {name for name in arrays if name.startswith(path) and "seed_generator/" not in name}
        self._left = own if left is None else left

    def reader(self) -> Tree:
        return Tree(self._arrays, self._path)

    def layers(self, listed: Sequence[Layer]) -> list[Weights]:
        """Returns the weights of each layer of a model.

        Keras names each group by its layer's class and a number.
        """
        groups = group_names(each.kind for each in listed)
        return [Tree(self._arrays, f"{self._path}layers/{group}/") for group in groups]

    def take(self, names: Sequence[str]) -> list[Array]:
        """Returns the arrays of the layer's own variables, as many as there are names.

        "kernel|depthwise_kernel" is one variable that may have either name. Raises `ShapeError` if
        a variable is missing.
        """
        own = [f"{self._path}vars/{at}" for at in range(len(names))]
        for name, path in zip(names, own, strict=True):
            if path not in self._arrays:
                raise ShapeError(f"{name}: expected {path!r} among the weights, it is missing")
        self._left.difference_update(own)
        return [self._arrays[path] for path in own]

    def inside(self, attribute: str) -> Tree:
        return Tree(self._arrays, f"{self._path}{attribute}/", self._left)

    def finish(self) -> None:
        """Raises `ShapeError` for arrays that were not taken."""
        _nothing(sorted(self._left))


class Flat:
    """The weights of one layer in an ``.h5`` file: (path, array) in the order of the layer.

    The weights of its inner layers are in the same list.
    """

    def __init__(self, entries: Sequence[tuple[str, Array]]) -> None:
        self.entries, self._at = tuple(entries), 0

    def reader(self) -> Flat:
        return Flat(self.entries)

    def inside(self, attribute: str) -> Flat:
        return self

    def layers(self, listed: Sequence[Layer]) -> list[Weights]:
        """Returns the weights of each layer. The weights are found by the names in their paths and
        not by their order, because weights of frozen layers come last. A path may contain only the
        name of a layer inside an inner model.
        """
        names = {each.name: {each.name, *dict(keras1.kinds_of(each.config))} for each in listed}
        parts: dict[str, list[tuple[str, Array]]] = {name: [] for name in names}
        for path, array in self.entries:
            owners = [name for name in names if not names[name].isdisjoint(path.split("/")[:-1])]
            if len(owners) != 1:
                reason = f"expected one of the layers {[*names]} in its path, got {owners}"
                raise UnsupportedError(f"weight {path!r}: {reason}")
            parts[owners[0]].append((path, array))
        return [Flat(parts[name]) for name in names]

    def take(self, names: Sequence[str]) -> list[Array]:
        result = self.entries[self._at : self._at + len(names)]
        if len(result) != len(names):
            have = [path for path, _ in self.entries]
            raise ShapeError(f"{', '.join(names)}: expected among the weights, got {have}")
        for name, (path, _) in zip(names, result, strict=True):
            # Keras 2 writes "kernel:0"; a variable with a different name belongs to a different
            # layer.
            if path.rpartition("/")[2].partition(":")[0] not in name.split("|"):
                raise ShapeError(f"{name}: expected among the weights, got {path!r}")
        self._at += len(names)
        return [array for _, array in result]

    def finish(self) -> None:
        _nothing([path for path, _ in self.entries[self._at :]])


class Lists(Flat):
    """The weights of the outermost model of an ``.h5`` file, by the names of its layers."""

    def __init__(self, lists: Mapping[str, Flat]) -> None:
        super().__init__(())
        self._lists = lists

    @property
    def names(self) -> list[str]:
        """The names of the layers that have weights."""
        return [name for name, each in self._lists.items() if each.entries]

    def layers(self, listed: Sequence[Layer]) -> list[Weights]:
        return [self._lists.get(each.name, Flat(())) for each in listed]


Weights = Tree | Flat


def _nothing(left: Sequence[str]) -> None:
    if left:
        raise ShapeError(f"weights {', '.join(left)}: expected only weights that the layer has")


def group_names(kinds: Iterable[str]) -> list[str]:
    """Returns Keras's names for groups of objects: the class names, numbered."""
    seen: Counter[str] = Counter()
    names = []
    for name in map(_snake_case, kinds):
        names.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _snake_case(kind: str) -> str:
    kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()


# The configuration of a model: its layers, and the calls that connect them.
#
# Configurations of Keras 2 and Keras 3 are read into the same classes. Documentation: the functions
# get_config and from_config of keras.Model, keras.Sequential and of each layer.

MODELS = ("Functional", "Model", "Sequential")
_OWN = ("keras", "tf_keras")
"""The modules of Keras's own classes; layers that users registered are in other modules."""
_MISFITS = (LookupError, TypeError, ValueError, AttributeError)


_TYPED = (
    "Cast ConvertToTensor ZerosLike OnesLike FullLike OneHot Prod Cumsum Cumprod Arange".split()
)
"""Functions of ``keras.ops`` that have an option ``dtype``, like layers."""


class Ref(NamedTuple):
    """A tensor, which is result number ``at`` of call number ``call`` of a layer.

    ``dtype`` and ``shape`` are None if the file does not state them.
    """

    layer: str
    call: int
    at: int
    dtype: str = "float32"
    shape: tuple[int | None, ...] | None = None


class Call(NamedTuple):
    """The arguments of one call. Tensors are `Ref`s, other arguments are JSON values."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer, or a model that is used as a layer.

    ``module``: the module of its class, "" if the file does not state it.
    """

    kind: str
    module: str
    name: str
    config: Mapping[str, Any]
    weights: Weights | None
    calls: tuple[Call, ...] = ()
    position: int = 0

    @property
    def is_operation(self) -> bool:
        """Whether the layer is a function of ``keras.ops``, which Keras 3 lists among layers.

        An ``.h5`` file does not state the module of a class, but only layers have the options
        ``trainable`` and ``dtype``.
        """
        if self.module:
            return ".ops." in f".{self.module}."
        own = {"trainable"} if self.kind in _TYPED else {"trainable", "dtype"}
        return self.kind not in (*MODELS, "InputLayer", "Merge") and not own & {*self.config}

    @property
    def function(self) -> str:
        """The name of TensorFlow's function that Keras 2 lists as a layer, "" for other layers."""
        named = self.kind in ("TFOpLambda", "SlicingOpLambda")
        return str(self.config.get("function")) if named else ""

    @property
    def foreign(self) -> bool:
        """Whether the class is not Keras's own."""
        return bool(self.module) and self.module.partition(".")[0] not in _OWN


@dataclass(frozen=True, eq=False)
class Network:
    """A Keras model: its layers by name, and its input and output tensors."""

    name: str
    layers: Mapping[str, Layer]
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]


def outermost(config: Any, weights: Weights, major: int, file: Path) -> Network:
    """Returns the model of a file. Raises `ModelFormatError` or `UnsupportedError` that names the
    file.
    """
    try:
        return network(inner_layer(config, weights), major)
    except OnernnError as error:
        raise type(error)(f"{file}: {error}") from error
    except _MISFITS as error:
        raise ModelFormatError(f"not a valid model configuration: {error!r:.200}", file) from error


def inner_layer(config: Any, weights: Weights | None, position: int = 0) -> Layer:
    """Returns the layer that a configuration describes."""
    inside = config["config"]
    kind = config["class_name"]
    if isinstance(inside, list):  # a Sequential of Keras before 2.2.3
        inside = {"name": "sequential", "layers": inside}
    name = config.get("name") or inside.get("name") or kind.lower()
    registered, module = config.get("registered_name"), config.get("module")
    if not (isinstance(kind, str) and isinstance(name, str) and isinstance(inside, dict)):
        raise ModelFormatError(f"layer {name!r:.100}: expected class_name, name and config")
    if "module" in config and module is None:  # a user's class
        module = str(registered)
    return Layer(kind, str(module or ""), name, inside, weights, position=position)


def network(model: Layer, major: int) -> Network:
    """Returns the network of a model, for the version of Keras that wrote it. Raises
    `UnsupportedError` for classes of users.
    """
    if model.kind not in MODELS or model.foreign:
        raise UnsupportedError(
            f"{model.name}: {model.kind} is a user's class, whose code is not in the file; build"
            " the model from layers, keras.Model(inputs, outputs), and save that"
        )
    try:
        listed = model.config["layers"]
        if model.kind == "Sequential":
            return _chain(model, listed)
        return _functional(model, listed, major)
    except OnernnError:
        raise
    except _MISFITS as error:
        raise ModelFormatError(
            f"{model.name}: not a valid model configuration: {error!r:.200}"
        ) from error


def _layers(model: Layer, listed: Any, calls: list[tuple[Call, ...]]) -> dict[str, Layer]:
    loading().reads_operators(len(listed))
    bare = [inner_layer(each, None) for each in listed]
    held_by = [each for each in bare if not each.is_operation]
    if len({each.name for each in bare}) != len(bare):
        raise ModelFormatError(f"{model.name}: expected a different name for each layer")
    held = iter(model.weights.layers(held_by) if model.weights else [None] * len(held_by))
    return {
        each.name: replace(
            each, weights=None if each.is_operation else next(held), calls=call, position=at
        )
        for at, (each, call) in enumerate(zip(bare, calls, strict=True))
    }


def _chain(model: Layer, listed: Any) -> Network:
    """Returns the network of a Sequential: each layer takes the output of the layer before it."""
    layers = [*_layers(model, listed, [()] * len(listed)).values()]
    first = layers[0]
    if first.kind != "InputLayer":
        shape = first.config.get("batch_input_shape") or first.config.get("batch_shape")
        shape = shape or model.config.get("build_input_shape")
        integers = first.kind == "Embedding"
        dtype = "int32" if integers else first.config.get("dtype", "float32")
        config = {"name": f"{first.name}_input", "batch_shape": shape, "dtype": dtype}
        begin = {"class_name": "InputLayer", "config": config}
        layers = [inner_layer(begin, None), *layers]
    chained = {layers[0].name: layers[0]}
    shapes = {
        inner_layer(each, None).name: (each.get("build_config") or {}).get("input_shape")
        for each in listed
    }
    for at, layer in enumerate(layers[1:], 1):
        shape = _shape(shapes.get(layer.name))
        call = Call((Ref(layers[at - 1].name, 0, 0, shape=shape),), {})
        chained[layer.name] = replace(layer, calls=(call,), position=at)
    ends = (Ref(layers[0].name, 0, 0),), (Ref(layers[-1].name, 0, 0),)
    return Network(model.name, chained, *ends)


def _functional(model: Layer, listed: Any, major: int) -> Network:
    made = [_is_made_with_call(each, major) for each in listed]
    calls = [
        (*[Call((), {})] * (major < 3 and counts), *map(_call, each.get("inbound_nodes", ())))
        for each, counts in zip(listed, made, strict=True)
    ]
    layers = _layers(model, listed, calls)
    # In the model's inputs and outputs, Keras 3 counts the call that made an inner model. In the
    # arguments of layers, Keras 3 does not count this call.
    earlier = {name for name, counts in zip(layers, made, strict=True) if major > 2 and counts}
    ends = [
        tuple(
            ref._replace(call=ref.call - (ref.layer in earlier)) for ref in _refs(model.config[k])
        )
        for k in ("input_layers", "output_layers")
    ]
    if missing := {ref.layer for ref in ends[0]} - layers.keys():
        reason = f"expected the input layer {min(missing)!r}, got {', '.join(layers):.200}"
        raise ModelFormatError(f"{model.name}: {reason}")
    return Network(model.name, layers, *ends)


def _is_made_with_call(config: Any, major: int) -> bool:
    """Returns whether a layer is a model that was made by a call that the file does not list."""
    kind = config["class_name"]
    if kind == "Sequential" and major < 3:
        inside = config["config"]
        layers = inside if isinstance(inside, list) else inside["layers"]  # see inner_layer
        return not layers or layers[0]["class_name"] == "InputLayer"
    return kind in ("Functional", "Model")


def _refs(argument: Any) -> list[Ref]:
    """Returns the tensors in a structure. Like Keras, sorts a dictionary's tensors by key."""
    if (ref := _ref(argument)) is not None:
        return [ref]
    if isinstance(argument, dict):
        argument = [argument[key] for key in sorted(argument)]
    if not isinstance(argument, list):
        raise ValueError(f"expected tensors, got {argument!r:.100}")
    return [ref for each in argument for ref in _refs(each)]


def has_unsorted_keys(structure: Any, inside: bool = False) -> bool:
    """Returns whether a dictionary inside a dictionary has keys that are not sorted."""
    if isinstance(structure, dict):
        listed = [*structure]
        if inside and listed != sorted(listed):
            return True
        structure, inside = [*structure.values()], True
    return isinstance(structure, list) and any(has_unsorted_keys(e, inside) for e in structure)


def _ref(argument: Any) -> Ref | None:
    known: Any = {}
    if isinstance(argument, dict) and argument.get("class_name") == "__keras_tensor__":
        known = argument["config"]
        argument = known["keras_history"]
    if isinstance(argument, list) and len(argument) in (3, 4) and isinstance(argument[0], str):
        name, call, index = argument[:3]
        if type(call) is int and type(index) is int and min(call, index) >= 0:
            return Ref(name, call, index, str(known.get("dtype")), _shape(known.get("shape")))
    return None


def _shape(sizes: Any) -> tuple[int | None, ...] | None:
    if isinstance(sizes, list) and all(each is None or type(each) is int for each in sizes):
        return tuple(sizes)
    return None


def _call(call: Any) -> Call:
    if isinstance(call, dict) and "args" in call:  # Keras 3
        return Call(tuple(map(_argument, call["args"])), _arguments(call["kwargs"]))
    if isinstance(call, dict):  # Keras 2: tensors by name, each with the options of the call
        options = {name: each for ref in call.values() for name, each in ref[3].items()}
        return Call((_arguments(call),), _arguments(options))
    if call and isinstance(call[0], str):  # a single tensor, not in a list
        call = [call]
    tensors, kwargs = list[Any](), dict[str, Any]()
    for each in call:
        ref, constant = _ref(each), each[0] == "_CONSTANT_VALUE"
        tensors.append(each[2] if constant else each if ref is None else ref)
        kwargs |= each[3] if (constant or ref is not None) and len(each) == 4 else {}
    return Call((tensors if len(tensors) > 1 else tensors[0],), _arguments(kwargs))


def _arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _argument(value) for name, value in kwargs.items()}


def _argument(argument: Any) -> Any:
    if (ref := _ref(argument)) is not None:
        return ref
    if isinstance(argument, list):
        return [_argument(each) for each in argument]
    if not isinstance(argument, dict):
        return argument
    kind, bounds = argument.get("class_name"), ("start", "stop", "step")
    if kind == "__slice__" or {*argument} == {*bounds}:  # Keras 3, Keras 2
        cut = argument.get("config", argument)
        return slice(*(_argument(cut[name]) for name in bounds))
    if kind == "__ellipsis__":
        return Ellipsis
    if kind == "__tuple__":
        return _argument(argument["items"])
    return argument if kind else _arguments(argument)


# Reads arrays and texts of an HDF5 file with h5py, in a separate process.
#
# For some damaged files the HDF5 library loops forever or crashes. In a separate process that costs
# seconds and results in an error message. Links to other files, and datasets that are stored in
# other files or composed of other datasets, are refused, because a model could use them to read any
# file of its user.

_DEEPEST = 64
_MOST = 10**5  # the largest number of objects in a file
_SECONDS = 5  # of CPU time; each 20 MB of the file add a second
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TEXTS = ("model_config", "keras_version", "backend", "layer_names", "weight_names")


class Held(NamedTuple):
    """The contents of an HDF5 file.

    ``arrays``: the arrays by their paths. ``texts``: the texts of attributes by "path@name".
    """

    arrays: dict[str, Array]
    texts: dict[str, list[str]]

    @property
    def version(self) -> str:
        """The version of the Keras that wrote the file, "" if the file does not state it."""
        return self._text("keras_version")

    @property
    def backend(self) -> str:
        """The backend of the Keras that wrote the file, "" if the file does not state it."""
        return self._text("backend")

    def _text(self, name: str) -> str:
        own = self.texts.get(f"@{name}") or self.texts.get(f"model_weights@{name}")
        return "".join(own or ())

    def list_values(self, path: str, name: str) -> list[str]:
        """Returns an attribute that is a list. A long list is split into name0, name1, ...."""
        result = [*self.texts.get(f"{path}@{name}", ())]
        number = 0
        while f"{path}@{name}{number}" in self.texts:
            result += self.texts[f"{path}@{name}{number}"]
            number += 1
        return result


def read(path: str | Path, file: Path) -> Held:
    """Returns the contents of an HDF5 file. Raises `ModelFormatError` that names ``file``, the
    model.
    """
    with open(path, "rb") as stream:
        if stream.read(len(_SIGNATURE)) != _SIGNATURE:
            raise ModelFormatError("not an HDF5 file: expected a model that Keras saved", file)
    if find_spec("h5py") is None:
        require("h5py", "keras")
    budget = loading()
    seconds = _SECONDS + os.path.getsize(path) // 20_000_000
    with tempfile.TemporaryDirectory() as folder:
        numbers = [str(budget.most - budget.used), str(seconds)]
        call = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
        command = [sys.executable, "-P", "-c", call, str(Path(path).resolve()), folder, *numbers]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, errors="replace"
        )
        answer = Path(folder, "answer.json")
        if not answer.exists():
            raise ModelFormatError(f"the HDF5 library cannot read it: {_describe_end(done)}", file)
        budget.take(answer.stat().st_size, "the names of arrays")
        text = answer.read_bytes()
        budget.parses_json(text)
        result: dict[str, Any] = json.loads(text)
        if "error" in result:
            raise ModelFormatError(result["error"], file)
        with open(Path(folder, "arrays.npz"), "rb") as raw, unzip(raw, _NONE, file) as archive:
            members = {each.filename: each for each in archive.infolist()}
            arrays = {
                name: read_member(archive, members[f"{at}.npy"])
                for at, name in enumerate(result["names"])
            }
    return Held(arrays, result["texts"])


def _describe_end(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == -signal.SIGXCPU:
        return "it does not end, perhaps because groups contain each other"
    if done.returncode < 0:
        return f"it crashed ({signal.Signals(-done.returncode).name})"
    return (done.stderr.strip().splitlines() or ["it wrote no message"])[-1][:200]


def main(path: str, folder: str, most: str, seconds: str) -> None:
    """Writes the arrays of a file, or the error, to a folder.

    This function runs in its own process with a memory limit, because the HDF5 library allocates
    every size that a file states.
    """
    import resource

    import h5py

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with h5py.File(path, "r") as root:
            held = _everything(root, int(most))
        answer: dict[str, Any] = {"names": [*held.arrays], "texts": held.texts}
        arrays: Any = {str(at): array for at, array in enumerate(held.arrays.values())}
        np.savez(Path(folder, "arrays.npz"), **arrays)
    except ModelFormatError as error:
        answer = {"error": str(error)}
    except Exception as error:  # h5py may raise anything for a damaged file
        said = f"{str(error)[:200]}; check that the file is complete"
        answer = {"error": f"not a readable HDF5 file: {said}"}
    Path(folder, "answer.json").write_text(json.dumps(answer), "utf-8")


def _everything(root: Any, most: int) -> Held:
    import h5py

    held, seen = Held({}, {}), 0
    waiting = [(root, "", 0)]
    while waiting:
        group, here, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ModelFormatError(f"{here}: expected at most {_DEEPEST} groups inside each other")
        for name in group.attrs:
            if name.rstrip("0123456789") in _TEXTS:
                held.texts[f"{here.rstrip('/')}@{name}"] = _list_texts(group.attrs[name])
        for name in group:
            where, seen = f"{here}{name}", seen + 1
            if seen > _MOST:
                raise ModelFormatError(f"expected at most {_MOST} groups and arrays, got more")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ModelFormatError(f"{where}: expected a group or an array, got a link")
            one = group[name]
            if isinstance(one, h5py.Group):
                waiting.append((one, f"{where}/", depth + 1))
            elif isinstance(one, h5py.Dataset):
                array = _array(one, where, most)
                most -= array.nbytes
                held.arrays[where] = array
    return held


def _array(dataset: Any, where: str, most: int) -> Array:
    if dataset.external or dataset.is_virtual:
        raise ModelFormatError(f"{where}: expected an array in this file, got one in other files")
    shape, dtype = dataset.shape, dataset.dtype
    if shape is None or dtype.kind not in "biuf":
        raise ModelFormatError(f"{where}: expected an array of numbers, got {dtype} {shape}")
    # h5py reads a whole chunk, even if only a few of its elements belong to the array.
    for what, sizes in ((where, shape), (f"a chunk of {where}", dataset.chunks or ())):
        size = math.prod(max(size, 1) for size in sizes) * dtype.itemsize
        if size > most:
            raise ModelFormatError(f"{what}: expected at most {most:,} bytes, got {size:,}")
    return np.asarray(dataset[()], dtype.newbyteorder("="))


def _list_texts(value: Any) -> list[str]:
    listed = np.ravel(np.asarray(value, object)).tolist()
    return [e.decode("utf-8", "replace") if isinstance(e, bytes) else str(e) for e in listed]


# A Keras model from its file: ``.keras``, a zip archive, or ``.h5``.


@dataclass(frozen=True, eq=False)
class Model:
    """A saved model.

    ``version``: (major, minor) of the Keras that wrote it. ``backend``: Keras's backend, "" if the
    file does not state it.
    """

    file: Path
    network: Network
    version: tuple[int, int]
    backend: str = ""


_NONE = "not a Keras model"


def read_model(path: str | Path, params: str | Path | None = None) -> Model:
    """Returns the model in a file; ``params``: the weights of an architecture in JSON.

    Raises `ModelFormatError` if the file is not a model, and `UnsupportedError` if ``params`` is
    given for a file that has its own weights.
    """
    file = Path(path)
    if file.suffix.lower() == ".json":
        return _architecture(file, params)
    if params is not None:
        raise UnsupportedError(
            "params: the weights of this Keras model are in its file; leave params out"
        )
    with open_budgeted(file) as (raw, _):
        zipped = raw.read(2) == b"PK"
    return _archive(file) if zipped else _legacy(file)


def _archive(file: Path) -> Model:
    with open_budgeted(file) as (raw, budget), unzip(raw, _NONE, file) as archive:
        said, config = (
            parse_json(member_bytes(archive, archive.getinfo(name)), file, _NONE)
            for name in ("metadata.json", "config.json")
        )
        weights = archive.getinfo("model.weights.h5")
        budget.ask(weights.file_size, weights.filename)  # the size on disk
        with tempfile.NamedTemporaryFile(suffix=".h5") as stream:
            with open_member(archive, weights) as packed:
                shutil.copyfileobj(packed, stream)
            stream.flush()
            held = read(stream.name, file)
    version = said.get("keras_version") if isinstance(said, dict) else None
    return _model(file, config, _version(version, file), Tree(held.arrays))


def _legacy(file: Path) -> Model:
    held = read(file, file)
    config = held.texts.get("@model_config")
    if not config:
        raise ModelFormatError(
            "weights without a model; pass the file that model.save() wrote, not"
            " model.save_weights(), or load the model's .json with this file as its params;"
            " onernn.read_weights returns the arrays for a graph of your own",
            file,
        )
    written = parse_json(config[0], file, _NONE)
    version = _version(held.version, file)
    weights = _lists(held, written, version[0], file)
    return _model(file, written, version, weights, held.backend)


def _architecture(file: Path, params: str | Path | None) -> Model:
    """Returns the model of ``model.to_json()`` with weights of ``save_weights`` or ``save``."""
    with open_budgeted(file) as (raw, _):
        config = parse_json(raw.read(), file, _NONE)
    if not isinstance(config, dict) or "class_name" not in config:
        raise ModelFormatError(f"{_NONE}: expected an object with a class_name", file)
    weights = weights_of(file, params)
    with open_budgeted(weights):  # the budget counts its size
        held = read(weights, weights)
    told = config.get("keras_version") or ("3.0" if "module" in config else held.version)
    version = _version(told, file)
    if held.list_values(_root(held), "layer_names"):
        # Like Keras, read weights without a version as weights that Keras 1 wrote.
        written = int((re.match(r"\d+", held.version) or ["1"])[0])
        lists = _lists(held, config, written, weights)
        _check_names(lists, config, weights)
        return _model(file, config, version, lists, held.backend or str(config.get("backend", "")))
    if not any("vars/" in name for name in held.arrays):
        reason = "not weights that Keras saved: expected layer_names, or arrays named vars/0"
        raise ModelFormatError(reason, weights)
    return _model(file, config, version, Tree(held.arrays))


def weights_of(file: Path, params: str | Path | None) -> Path:
    """Returns the file with the weights of a ``.json``: ``params``, or the one in its folder.

    Raises `ModelFormatError` if there is none, or more than one.
    """
    if params:
        return Path(params)
    beside = [file.with_suffix(suffix) for suffix in (".h5", ".weights.h5", ".hdf5")]
    found = [each for each in beside if each.is_file()]
    if len(found) != 1:
        names = ", ".join(each.name for each in found or beside)
        raise ModelFormatError(
            f"a model without weights: expected one of {names} in its folder, got "
            f"{len(found) or 'none'}; pass the file of the weights as params (--params weights.h5)",
            file,
        )
    return found[0]


def _root(held: Held) -> str:
    """Returns the group that lists the layers, "" for the outermost group of a file of weights
    only.
    """
    return "model_weights" if held.list_values("model_weights", "layer_names") else ""


def _lists(held: Held, config: Any, major: int, file: Path) -> Lists:
    """Returns the weights of an ``.h5`` file by layers, with Keras 2's names."""
    kinds = dict(keras1.kinds_of(config)) if major < 2 else {}
    lists = dict[str, Flat]()
    for name in held.list_values(_root(held), "layer_names"):
        root = f"{_root(held)}/{name}".lstrip("/")
        paths = held.list_values(root, "weight_names")
        entries = [(path, _name(held, f"{root}/{path}", file)) for path in paths]
        lists[name] = Flat(keras1.upgrade_weights(entries, kinds) if major < 2 else entries)
    return Lists(lists)


def _check_names(lists: Lists, config: Any, file: Path) -> None:
    kinds = dict(keras1.kinds_of(config))
    if unknown := [name for name in lists.names if name not in kinds]:
        raise ModelFormatError(
            f"weights of layers {', '.join(unknown)}: expected layers of the model,"
            f" {', '.join(kinds)}",
            file,
        )


def _name(held: Held, path: str, file: Path) -> Array:
    if path not in held.arrays:
        raise ModelFormatError(f"expected the listed weight {path!r}, it is missing", file)
    return held.arrays[path]


def _version(version: Any, file: Path) -> tuple[int, int]:
    match = re.match(r"([123])\.(\d{1,4})\b", str(version))
    if match is None:
        told = f"written by Keras {version}" if version else "it does not say which Keras wrote it"
        raise ModelFormatError(f"{told}: expected Keras 1, 2 or 3", file)
    return int(match[1]), int(match[2])


def _model(
    file: Path, config: Any, version: tuple[int, int], weights: Weights, backend: str = ""
) -> Model:
    config = keras1.upgrade(config) if version[0] < 2 else config
    return Model(file, outermost(config, weights, version[0], file), version, backend)


# Files of weights without a model, written by save_weights.


class SavedWeights(dict[str, Array]):
    """Arrays by their paths in a file.

    ``version``: the version of the Keras that wrote the file, "" if unknown.
    """

    version = ""


def read_weights(path: str | Path) -> SavedWeights | None:
    """Returns the arrays by their paths in the file; None for a file with a model in it."""
    file = Path(path)
    with open_budgeted(file):  # the budget counts its size
        held = read(file, file)
    if "@model_config" in held.texts:
        return None
    result = SavedWeights(held.arrays)
    result.version = held.version
    return result


_LAYER = re.compile(r"(.*?)/?(?:(kernel|recurrent_kernel|bias)(?::0)?|cell/vars/([012]))")


def layers_among(arrays: Mapping[str, Array]) -> dict[str, Callable[[], PivotLayer]]:
    """Returns functions that read the recurrent layers, by the names of their groups in a file.
    Such a group has a kernel and a recurrent_kernel, or a cell's variables. Weights do not name
    activation functions, so the layers get the defaults of the Keras that wrote the file.
    """
    written = re.match(r"(\d+)\.(\d+)", arrays.version if isinstance(arrays, SavedWeights) else "")
    old = written is not None and (int(written[1]), int(written[2])) < (2, 3)
    names = ("kernel", "recurrent_kernel", "bias")
    groups: dict[str, dict[str, Array]] = {}
    for path, array in arrays.items():
        if match := _LAYER.fullmatch(path):
            groups.setdefault(match[1], {})[match[2] or names[int(match[3])]] = array
    return {
        group: partial(_read_layer, named, old)
        for group, named in groups.items()
        if "recurrent_kernel" in named
    }


def _read_layer(named: Mapping[str, Array], old: bool) -> PivotLayer:
    layer = layout.read(named)
    gates = layer.spec.gates
    if not old or layout.is_cudnn(named) or gates == 1:  # CuDNN's gates always use sigmoid
        return layer
    hard, tanh = Activation("hardsigmoid", 0.2, 0.5), Activation("tanh")
    functions = (hard, tanh, tanh)[: 2 + (gates == 4)]
    return PivotLayer.of(replace(layer.spec, activations=functions), layer.weights)
