"""Files of models that are not read here, and what their owner can do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import reading
from onernn.adapters.registry import ADAPTERS, SEMANTICS, adapter_of
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.files import check_file, is_compiled, npz_arrays
from onernn.ir.graph import Graph

if TYPE_CHECKING:
    from onernn.adapters.common.fault import FaultyModel


def refuse_unread(path: str | Path) -> None:
    """Raises `UnsupportedError` for a file or folder of a known kind that is not read, and
    `ModelFormatError` for a pipe or a device."""
    if os.path.exists(path) and not os.path.isdir(path):
        check_file(path)
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        advice = _tensorflow("saved-model", path)
    else:
        advice = _advice(path) if os.path.isfile(path) else ""
    if advice:
        raise UnsupportedError(f"{path}: {advice}")


def _advice(path: str | Path) -> str:
    if is_compiled(path):
        return (
            "a compiled model has no graph: onernn run and onernn.Session run it; for all else take"
            " the model that it was compiled from"
        )
    suffix = Path(path).suffix.lower()
    known = {suffix: text for each in ADAPTERS for suffix, text in each.no_models.items()}
    if suffix in known:
        return known[suffix]
    match suffix:
        case ".tflite":
            return _tensorflow("tflite", path)
        case ".pb":
            return _tensorflow("graphdef", path)
        case ".npz" | ".npy":
            return (
                "arrays, no model; onernn.read_weights reads those of an .npz, for a graph of your"
                " own, and onernn.convert_weights takes a layer's arrays by name"
            )
        case ".pkl" | ".pickle" | ".joblib":
            return "reading a pickle could run anything; write the model as ONNX where it was made"
        case ".ort" | ".engine" | ".plan" | ".trt" | ".mlmodel":
            return "made for one runtime only; load the ONNX file that it was made from"
    return ""


def _tensorflow(kind: str, path: str | Path) -> str:
    import shlex

    return (
        "TensorFlow's files are not read; where TensorFlow is, write the model as ONNX:"
        f" python -m tf2onnx.convert --{kind} {shlex.quote(str(path))} --output model.onnx"
    )


# Models from files: read by the framework's adapter, and examined for the framework's faults.


def load(path: StrPath, params: StrPath | None = None, semantics: str = "documented") -> Graph:
    """Returns the model in a file or folder, lowered to canonical operators; nothing is run.

    ``path``: a Paddle folder, ``.pdmodel`` or ``__model__``; an MXNet ``-symbol.json``, its folder
    or the prefix of its name; an ``.onnx`` file; a ``.pt2`` that torch.export.save wrote.
    ``params``: the parameters' file or folder, where it is not beside the model under its usual
    name. ``semantics`` chooses between what an operator documents and what its framework computed,
    where these differ: "documented", "mxnet-cpu" or "onnxruntime"; a framework without such a
    meaning keeps to what is documented.

    Raises `ModelFormatError` for a file that is no model, `UnsupportedError` for a kind that is
    not read, and says what to do. An unknown operator raises only when the model is to be run.
    """
    if semantics not in SEMANTICS:
        hint = did_you_mean(semantics, SEMANTICS)
        raise ValueError(f"semantics: expected one of {SEMANTICS}, got {semantics!r}{hint}")
    with reading(path):
        refuse_unread(path)
        adapter = adapter_of(path)
        known = semantics if semantics in adapter.semantics else "documented"
        meaning = (known,) if adapter.semantics else ()
        return adapter.load(path, *adapter.parts(params), *meaning)


def read_weights(path: StrPath) -> dict[str, Array]:
    """Returns the arrays of a file without a model, by their names in it; for a graph of one's own.

    ``path``: a PyTorch state dict or checkpoint (.pt, .pth, .ckpt, TorchScript), a .safetensors, an
    .npz, or an .h5 that Keras's save_weights wrote. bfloat16 comes as float32. Nothing in the file
    is run. Raises `ModelFormatError` for a file that is none, `UnsupportedError` for a model.
    """
    arrays = arrays_in(path)
    if arrays is None:
        raise UnsupportedError(
            f"{path}: no file of weights alone (.pt, .pth, .ckpt, .torchscript, .safetensors, .npz,"
            " .h5); onernn.load reads models, whose arrays are graph.constants"
        )
    return arrays


def arrays_in(path: StrPath) -> dict[str, Array] | None:
    """As `read_weights`; None for a file of another kind."""
    suffix = Path(path).suffix.lower()
    readers = {s: read for each in ADAPTERS for s, read in each.weights.items()}
    readers[".npz"] = npz_arrays
    if suffix not in readers:
        return None
    with reading(path):
        return readers[suffix](path)


def find_faults(path: StrPath, params: StrPath | None = None) -> FaultyModel[Any]:
    """Returns a saved model with the known faults of its framework; ``path`` and ``params`` as in
    `load`.

    Raises `ModelFormatError` for a file that is no model, `UnsupportedError` for a kind of which no
    faults are known.
    """
    refuse_unread(path)
    adapter = adapter_of(path)
    if adapter.find_faults is None:
        known = " and ".join(f"{each.name}'s" for each in ADAPTERS if each.find_faults)
        raise UnsupportedError(f"{path}: only {known} faults are known, not {adapter.name}'s")
    return adapter.find_faults(path, *adapter.parts(params))


def plugin_for(graph: Graph) -> str:
    """Returns how a model runs with operators that onernn lacks: in its framework, the layers in
    onernn.

    "" where no layer would be replaced: unrolled cells and loops are not operators of their own.
    """
    find = adapter_of(graph.name).plugin
    if find is None:
        return ""
    plugin = find(graph.name)
    native = {op.type for node in graph.nodes if node.op == "Rnn" for op in node.origin}
    if native.isdisjoint(plugin.replaces):
        return ""
    return f"onernn.adapters.{plugin.call}: {plugin.host} runs the rest"
