"""Reads models from files with the framework's adapter, and finds the framework's known faults in
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import reading
from onernn.adapters.registry import ADAPTERS, SEMANTICS, adapter_of, usual_suffix
from onernn.adapters.unread import refuse_unread
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.files import check_file, npz_arrays
from onernn.ir.graph import Graph, with_open_names

if TYPE_CHECKING:
    from onernn.adapters.common.caller_rules import Replacing
    from onernn.adapters.common.fault import FaultyModel


def load(
    path: StrPath,
    params: StrPath | None = None,
    semantics: str = "documented",
    *,
    inputs: Mapping[str, Any] | None = None,
    rules: Mapping[str, Callable[..., Any] | Replacing] | None = None,
) -> Graph:
    """Returns the model in a file or folder as a graph of canonical operators; no code in the file
    is run.

    ``path``: a Paddle folder, ``.pdmodel``, ``__model__``, or ``.json`` of Paddle 3; an MXNet
    ``-symbol.json``, its folder or the prefix of its name; an ``.onnx``; a ``.pt2`` that
    torch.export.save wrote; a ``.keras`` or ``.h5``, or a Keras model's ``.json`` with its weights
    as ``params``; an ``.xml`` of OpenVINO, of which only the inputs and outputs are read.
    ``params``: the parameters' file or folder, if it is not next to the model under its usual name.
    ``semantics``: "documented", "mxnet-cpu" or "onnxruntime". It selects what operators compute if
    their framework does not compute what it documents. A framework without the chosen semantics
    uses "documented". ``inputs``: an array, a dtype or a shape for each input whose type the model
    does not declare; None in a shape is a size that may vary. The shapes of weights may depend on
    the sizes of an input. ``rules``: a dict from the name of an operator that onernn does not know
    to a function that computes the operator from canonical operators. The function's positional
    parameters are the operator's inputs, its keywords are the attributes. A `Replacing` replaces
    onernn's own rule.

    Raises `ModelFormatError` if the file is not a model, `UnsupportedError` for a kind that onernn
    does not read, with advice, and `ShapeError` for ``inputs`` that contradict the model's
    declarations. An unknown operator raises an error only when the model is run.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> onernn.convert(model, "relu.onnx")
    >>> graph = onernn.load("relu.onnx")
    >>> [node.op for node in graph.nodes], str(graph.inputs[0])
    (['Relu', 'Identity'], 'x: float32(?, 2)')
    """
    if semantics not in SEMANTICS:
        hint = did_you_mean(semantics, SEMANTICS)
        raise ValueError(f"semantics: expected one of {SEMANTICS}, got {semantics!r}{hint}")
    with reading(path):
        refuse_unread(path)
        adapter = adapter_of(path)
        known = semantics if semantics in adapter.semantics else "documented"
        meaning = (known,) if adapter.semantics else ()
        more = {"inputs": inputs} if inputs and adapter.asks_sizes else {}
        graph = adapter.load(path, *adapter.parts(params), *meaning, rules=rules, **more)
        return _declared(graph, inputs) if inputs else graph


def _declared(graph: Graph, inputs: Mapping[str, Any]) -> Graph:
    """Returns the model whose inputs have the caller's types; a name in a shape becomes a dynamic
    size of this name.
    """
    from onernn.fuse_passes.over_time import bind  # rarely needed

    graph = bind(graph, {}, inputs)
    return replace(graph, inputs=tuple(map(with_open_names, graph.inputs)))


def read_weights(path: StrPath) -> dict[str, Array]:
    """Returns the arrays of a file without a model, by their names in it; for a graph that you
    build yourself.

    ``path``: a PyTorch state dict or checkpoint that torch.save wrote, a TorchScript archive, a
    .safetensors, the .index.json of such weights in several files, an .npz, or an .h5 that Keras's
    save_weights wrote. PyTorch's files may have any name. If a checkpoint has arrays under
    "state_dict", "model_state_dict" or "model", only these are returned, with the names in the
    model. bfloat16 arrays are returned as float32. No code in the file is run. Raises
    `ModelFormatError` if the file has none of these formats, `UnsupportedError` for a model.

    >>> np.savez("weights.npz", embedding=np.zeros((10, 4), "f4"))
    >>> {name: array.shape for name, array in onernn.read_weights("weights.npz").items()}
    {'embedding': (10, 4)}
    """
    arrays = arrays_in(path)
    if arrays is None:
        check_file(path)
        refuse_unread(path)
        raise UnsupportedError(
            f"{path}: no file of weights alone (of torch.save, .safetensors, its .index.json, .npz,"
            " .h5); onernn.load reads models, whose arrays are graph.constants"
        )
    return arrays


def arrays_in(path: StrPath) -> dict[str, Array] | None:
    """Returns the arrays that `read_weights` returns, or None for a file of a different kind."""
    readers = {s: read for each in ADAPTERS for s, read in each.weights.items()}
    readers[".npz"] = npz_arrays
    with reading(path):
        suffix = usual_suffix(path)
        return readers[suffix](path) if suffix in readers else None


def find_faults(
    path: StrPath,
    params: StrPath | None = None,
    rules: Mapping[str, Callable[..., Any] | Replacing] | None = None,
) -> FaultyModel[Any]:
    """Returns a saved model and the known faults of its framework that affect it; `load` documents
    the arguments.

    Raises `ModelFormatError` if the file is not a model, `UnsupportedError` for a kind without
    known faults.
    """
    refuse_unread(path)
    adapter = adapter_of(path)
    if adapter.find_faults is None:
        known = " and ".join(f"{each.name}'s" for each in ADAPTERS if each.find_faults)
        raise UnsupportedError(f"{path}: only {known} faults are known, not {adapter.name}'s")
    return adapter.find_faults(path, *adapter.parts(params), rules=rules)


def plugin_for(graph: Graph) -> str:
    """Returns a text with the call that runs onernn's recurrent layers inside the model's
    framework, which runs all other operators.

    Returns "" if the call would replace no operator: unrolled cells and loops are not single
    operators.
    """
    find = adapter_of(graph.name).plugin
    if find is None:
        return ""
    plugin = find(graph.name)
    native = {op.type for node in graph.nodes if node.op == "Rnn" for op in node.origin}
    if native.isdisjoint(plugin.replaces):
        return ""
    return f"onernn.adapters.{plugin.call}: {plugin.host} runs the rest"
