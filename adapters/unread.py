"""Recognizes files of kinds that onernn does not read, and names commands that convert such
files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import ONE_FILE, Schema, open_budgeted, read_all, read_varint
from onernn.adapters.registry import ADAPTERS, adapter_of, usual_suffix
from onernn.ir.errors import ModelFormatError, UnsupportedError, did_you_mean
from onernn.ir.files import COMPILED, as_argument, check_file, is_compiled


def refuse_unread(path: StrPath) -> None:
    """Raises `UnsupportedError` for a file or folder of a known kind that onernn does not read, or
    for a URL. Raises `ModelFormatError` for a pipe or a device, and for a path that does not exist
    if a model with a similar name does.
    """
    if re.match(r"[a-z][a-z0-9]+:/", os.fspath(path)) and not os.path.lexists(path):
        raise UnsupportedError(f"{path}: expected a local path, got an address; download the file")
    if hint := _similar_model(Path(path)):
        raise ModelFormatError(f"no such file or folder{hint}", path)
    if os.path.isdir(path):
        advice = _advice_on_folder(Path(path))
    else:
        if os.path.exists(path):
            check_file(path)
        advice = _advice(path) if os.path.isfile(path) else ""
    if advice:
        raise UnsupportedError(f"{path}: {advice}")


def _similar_model(path: Path) -> str:
    """Returns a hint such as "; did you mean 'model.onnx'?" for a path at which there is nothing,
    else "".
    """
    if any(os.path.lexists(f"{path}{ending}") for ending in ("", *_AFTER_PREFIX)):
        return ""
    try:
        return did_you_mean(path.name, (e.name for e in path.parent.iterdir() if _may_be_model(e)))
    except OSError:
        return ""


def _may_be_model(path: Path) -> bool:
    if os.path.isdir(path):
        return any(not os.path.isdir(each) and _may_be_model(each) for each in path.iterdir())
    return path.suffix.lower() in _SUFFIXES or path.name == "__model__"


_AFTER_PREFIX = (".pdmodel", ".json", "-symbol.json")
_SUFFIXES = {
    *ONE_FILE,
    ".json",
    ".pdmodel",
    *(suffix for each in ADAPTERS for suffix in each.weights),
}
"""The suffixes of models, and of files of weights, which ``onernn weights`` also takes."""


def _advice(path: StrPath) -> str:
    if is_compiled(path):
        return (
            "a compiled model has no graph: onernn run and onernn.Session run it; for all else take"
            " the model that it was compiled from"
        )
    suffix = usual_suffix(path)
    known = {suffix: advice for each in ADAPTERS for suffix, advice in each.no_models.items()}
    if suffix in known:
        advice = known[suffix]
        return advice if isinstance(advice, str) else advice(path)
    kind = next((kind for kind, holds in _KINDS.items() if holds(_head(path))), "")
    match kind or suffix:
        case "SavedModel" if Path(path).name == "saved_model.pb":
            return _saved_model(Path(path).parent)
        case "SavedModel":
            return "a SavedModel's file under another name: call it saved_model.pb in its folder"
        case "GraphDef":
            return _graph_def(Path(path))
        case "TFLite" | ".tflite":
            return _tensorflow("a TensorFlow Lite model", f"--tflite {_quote(path)}")
        case "CoreML":
            return _core_ml(path, Path(path))
        case "DyNet":
            return _to_arrays("a DyNet file of parameters", _DYNET, path)
        case "ORT" | "TensorRT" | ".ort" | ".engine" | ".plan" | ".trt" | ".mlmodel":
            return "made for one runtime only; load the ONNX file that it was made from"
        case ".pb":
            return "no GraphDef or SavedModel of TensorFlow; load the ONNX file if it is one"
        case ".npz" | ".npy":
            return (
                "arrays, no model; onernn.read_weights reads those of an .npz, for a graph of your"
                " own, and onernn.convert_weights takes a layer's arrays by name"
            )
        case ".pkl" | ".pickle" | ".joblib":
            return "reading a pickle could run anything; write the model as ONNX where it was made"
    is_named = suffix in _SUFFIXES or Path(path).name == "__model__"
    if kind or is_named or adapter_of(path) is not ADAPTERS[-1]:  # the last one reads any name
        return ""
    kinds = "; ".join(each.files for each in ADAPTERS)
    return f"not a model; onernn reads {kinds}; a {COMPILED} that onernn compile wrote"


def _advice_on_folder(folder: Path) -> str:
    if (folder / "saved_model.pb").is_file():
        return _saved_model(folder)
    manifest = folder / "Manifest.json"
    if manifest.is_file():
        import json  # rarely needed

        try:
            package = json.loads(manifest.read_bytes())
            root = package["itemInfoEntries"][package["rootModelIdentifier"]]["path"]
            return _core_ml(folder, folder / "Data" / root)
        except (ValueError, KeyError, TypeError):  # not the manifest of a CoreML model
            return ""
    return ""


# The kind of a file, by its first bytes.

_HEAD = 2**20


def _head(path: StrPath) -> bytes:
    with Path(path).open("rb") as raw:
        return raw.read(_HEAD)


def _fields(data: int | bytes, count: int) -> list[tuple[int, int | bytes]]:
    """Returns the number and the value of each of a protobuf message's first ``count`` fields."""
    out = list[tuple[int, int | bytes]]()
    if isinstance(data, int):
        return out
    view, at = memoryview(data), 0
    while at < len(data) and len(out) < count:
        key, at = read_varint(view, at, len(data))
        if key & 7 not in (0, 2) or key < 8:
            break
        value, at = read_varint(view, at, len(data))
        if key & 7:
            out.append((key >> 3, data[at : at + value]))
            at += value
        else:
            out.append((key >> 3, value))
    return out


def _is_graph_def(head: bytes) -> bool:
    """Returns whether a protobuf message begins like a GraphDef: with a node that has a name and an
    operator.
    """
    match [(number, _fields(value, 2)) for number, value in _fields(head, 1)]:
        case [(1, [(1, bytes()), (2, bytes() as op)])]:
            return re.fullmatch(rb"_?[A-Z]\w*", op) is not None
    return False


def _is_saved_model(head: bytes) -> bool:
    """Returns whether a protobuf message begins like a SavedModel: with schema version 1 and a
    MetaInfoDef.
    """
    match [(number, value, _fields(value, 1)) for number, value in _fields(head, 2)]:
        case [(1, 1, _), (2, _, [(1, bytes())])]:
            return True
    return False


def _is_program(head: bytes) -> bool:
    """Returns whether a protobuf message begins like a ProgramDesc of Paddle: with a block that has
    an index.
    """
    match [(number, _fields(value, 1)) for number, value in _fields(head, 1)]:
        case [(1, [(1, int())])]:
            return True
    return False


def _core_ml_kind(head: bytes) -> int:
    """Returns the number of the field in which a CoreML specification holds its model, 0 for data
    of another kind.
    """
    version, *others = _fields(head, 5) or [(0, 0)]
    kinds = [number for number, _ in others if 200 <= number < 4000]
    return kinds[0] if kinds and version[0] == 1 and isinstance(version[1], int) else 0


_KINDS: dict[str, Callable[[bytes], object]] = {
    "TFLite": lambda head: head[4:8] == b"TFL3",
    "ORT": lambda head: head[4:8] == b"ORTM",
    "TensorRT": lambda head: head[:4] in (b"ftrt", b"ptrt"),
    "DyNet": partial(re.match, rb"#(Lookup)?Parameter# \S+ \{[\d,X]+\} \d+ (ZERO|FULL)_GRAD\n"),
    "CoreML": _core_ml_kind,
    "GraphDef": _is_graph_def,
    "SavedModel": _is_saved_model,
    "Paddle": _is_program,
}


# The commands. Each command was run exactly as printed.


def _quote(path: StrPath) -> str:
    from shlex import quote  # slow, and rarely needed

    text = as_argument(path)
    if text.isprintable():
        return quote(text)
    escaped = text.encode("unicode_escape").decode().replace("'", r"\'")
    return f"$'{escaped}'"  # bash's syntax, because messages must be printable


def _tensorflow(what: str, source: str) -> str:
    return (
        f"{what}, which is not read; this writes model.onnx:"
        f" pip install tensorflow-cpu tf2onnx && python -m tf2onnx.convert {source}"
        " --output model.onnx"
    )


def _saved_model(folder: Path) -> str:
    return _tensorflow("a TensorFlow SavedModel", f"--saved-model {_quote(folder)}")


_GRAPH = Schema(
    "TensorFlow",
    """
GraphDef: repeated NodeDef node = 1
NodeDef:  required string name = 1; required string op = 2; repeated string input = 3
""",
)
_NO_OUTPUTS = ("Assert", "Const", "NoOp", "Placeholder", "PlaceholderWithDefault")


def _graph_def(path: Path) -> str:
    """Returns a text with the command for a frozen graph. The model's inputs are the placeholders,
    and the outputs are the values that no operator reads.
    """
    with open_budgeted(path) as (raw, budget):
        nodes = _GRAPH.parse("GraphDef", read_all(raw, budget), path, budget=budget).node
    what = "a TensorFlow GraphDef"
    for node in nodes:
        if node.op in ("Variable", "VariableV2", "VarHandleOp", "ReadVariableOp"):
            return (
                f"{what} without its variables, such as {node.name!r}; save the model with"
                " tf.saved_model.save where it was made, and onernn inspect prints the next command"
            )
    read = {name.partition(":")[0].lstrip("^") for node in nodes for name in node.input}
    inputs = [f"{node.name}:0" for node in nodes if node.op.startswith("Placeholder")]
    ends = (node for node in nodes if node.name not in read and node.op not in _NO_OUTPUTS)
    outputs = [f"{node.name}:0" for node in ends]
    named = [f"--{k} {_quote(','.join(v))}" for k, v in (("inputs", inputs), ("outputs", outputs))]
    return _tensorflow(what, " ".join([f"--graphdef {_quote(path)}", *named]))


def _to_arrays(what: str, program: str, path: StrPath, install: str = "") -> str:
    """Returns a message with a command that writes the arrays of a file; ``program`` is Python code
    whose argument is the file.
    """
    from shlex import quote

    return (
        f"{what}, which is not read; this writes its weights as model.npz, which"
        f" onernn.read_weights reads: {install}python -c {quote(program)} {_quote(path)}"
    )


_DYNET = (
    "import re, sys, numpy as n; lines = open(sys.argv[1]).read().splitlines();"
    ' n.savez("model.npz", **{head.split()[1]: n.array(values.split(), "f4").reshape('
    '[*map(int, re.findall("[0-9]+", head.split()[2]))], order="F")'
    ' for head, values in zip(lines, lines[1:]) if head[0] == "#"})'
)
"""The program for DyNet, whose files store tensors in column-major order."""
_ML_PROGRAM = 502
_CORE_ML_PROGRAM = (
    "import sys, coremltools as c, numpy as n;"
    " m = c.models.MLModel(sys.argv[1], skip_model_load=True);"
    " w = c.optimize.coreml.get_weights_metadata(m, weight_threshold=0);"
    ' n.savez("model.npz", **{name: each.val for name, each in w.items()})'
)
_CORE_ML_LAYERS = (
    "import sys, coremltools as c, numpy as n; w = lambda m, at: [a for f, v in m.ListFields()"
    " if f.message_type and not f.message_type.GetOptions().map_entry"
    ' for e in (v if hasattr(v, "__len__") else [v]) for a in ('
    '[(at + f.name, n.array(e.floatValue, "f4") if e.floatValue'
    ' else n.frombuffer(e.float16Value, "f2"))] if f.message_type.name == "WeightParams"'
    ' else w(e, at + (getattr(e, "name", "") or f.name) + "/"))];'
    ' n.savez("model.npz", **dict(w(c.utils.load_spec(sys.argv[1]), "")))'
)
"""The program for CoreML's neural networks: it visits all messages, and saves each weight as a flat
array under a name that contains the layer's name.
"""


def _core_ml(path: StrPath, specification: Path) -> str:
    try:
        kind = _core_ml_kind(_head(specification))
    except OSError as error:
        raise ModelFormatError(
            f"its specification cannot be read: {error.strerror}", path
        ) from error
    program = _CORE_ML_PROGRAM if kind == _ML_PROGRAM else _CORE_ML_LAYERS
    return _to_arrays("a CoreML model", program, path, "pip install coremltools && ")
