"""Sessions of ONNX Runtime whose recurrent layers onernn runs."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.files import find_stored_dtype
from onernn.adapters.common.live import Explained, warn_of_left
from onernn.adapters.common.lowering import FOLDED, Names
from onernn.adapters.common.native import NativeGraph, Part, weave
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import (
    CLASH,
    MESSAGES,
    PARAMETERS,
    RECURRENT,
    SMALL,
    ExternalData,
    array_of,
    bodies,
    clashes,
    dtype_of,
    graphs,
    names_in,
    native_graph,
    native_node,
    overridable,
    parse_model,
    without_values,
)
from onernn.adapters.onnx.whole import Whole, open_whole, read_source
from onernn.backend.compiled.backend import DOMAIN, OperatorLayers, store_layer
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.fuse_passes.views import is_view
from onernn.ir.arrays import Array
from onernn.ir.budget import loading, return_freed_memory
from onernn.ir.errors import (
    ModelFormatError,
    OnernnError,
    Refusal,
    UnsupportedError,
    guard,
)
from onernn.ir.files import check_file, inside, replacing
from onernn.ir.graph import UNSUPPORTED
from onernn.ir.rnn import Recurrent

# Recurrent nodes of a ModelProto, including nodes in bodies, become nodes that onernn runs.

_IN_FUNCTION = (
    "it is in a function of the model; inline functions first, with"
    " onnx.inliner.inline_local_functions"
)
_MAKERS = {*FOLDED, "Constant", ""}
"""The types of operators that may compute weights; "" stands for initializers."""
_RESIZED = ("Expand", "Slice")
"""The types of operators that may repeat or drop elements of their first input."""


def is_recurrent(node: Any) -> bool:
    return node.op_type in RECURRENT and node.domain in ("", "ai.onnx")


def describe(node: Any) -> str:
    """Returns the name and type of a node for messages."""
    return f"node {node.name or next(filter(None, node.output), '')!r} ({node.op_type})"


def fill(onnx: Any, tensor: Any, external: ExternalData) -> Any:
    """Returns the tensor, after reading its elements into it if another file of the model holds
    them.
    """
    if onnx.external_data_helper.uses_external_data(tensor):
        size = find_stored_dtype(dtype_of(tensor.data_type)).itemsize * prod(tensor.dims)
        what = f"initializer {tensor.name!r}"
        tensor.raw_data = external.bytes_of(what, tensor.external_data, size).tobytes()
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return tensor


def declare_outputs(onnx: Any, model: Any) -> None:
    """Adds the types of recurrent nodes' outputs to the model.

    ONNX Runtime cannot infer the types of outputs of onernn's operators. It infers all other types.
    """
    typed = without_values(model)
    named = {dim.dim_param for dim in _sizes(typed)}
    with suppress(onnx.shape_inference.InferenceError):  # ONNX Runtime reports the error
        typed = onnx.shape_inference.infer_shapes(typed)
    for dim in _sizes(typed):
        if dim.dim_param not in named:  # onnx made up the name
            dim.ClearField("dim_param")
    for graph, inferred in zip(graphs(model.graph), graphs(typed.graph), strict=True):
        names = {name for node in graph.node if is_recurrent(node) for name in node.output}
        known = {value.name for value in (*graph.value_info, *graph.output)}
        graph.value_info.extend(v for v in inferred.value_info if v.name in names - known)
        for output, value in zip(graph.output, inferred.output, strict=True):
            if output.name in names:
                output.CopyFrom(value)


def _sizes(model: Any) -> Iterator[Any]:
    """Yields the sizes that a ModelProto declares, as messages."""
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield from value.type.tensor_type.shape.dim


class _Scope(NamedTuple):
    """The initializers and nodes whose outputs a graph's nodes may read, beginning with the
    outermost graph.

    ``messages``: their protobuf messages. ``native``: the same nodes as a `NativeGraph`.
    """

    messages: list[Any]
    native: NativeGraph


class Replacement:
    """The replacement of a model's recurrent nodes by onernn's operators.

    ``lines``: a line of text for each replaced node. ``refusals``: the reasons why the other
    recurrent nodes stay. ``external``: the model's other files. ``add``: a function that stores a
    new layer and returns the attribute of its node (the layer or its number) and a line of text for
    users.
    """

    def __init__(
        self, onnx: Any, model: Any, external: ExternalData, add: Callable[..., tuple[Any, str]]
    ) -> None:
        self._onnx, self._model, self._external, self._add = onnx, model, external, add
        self._free = overridable(model)
        names = Counter(each.name for graph in graphs(model.graph) for each in graph.input)
        self._declared = {each.name: each for each in model.graph.input if names[each.name] == 1}
        self._fresh = Names(dict.fromkeys(names_in(model), 0)).fresh
        self.lines: list[str] = []
        self.refusals = [
            Refusal(_IN_FUNCTION, describe(node))
            for function in model.functions
            for graph in graphs(function)
            for node in graph.node
            if is_recurrent(node)
        ]
        nodes = [node for graph in graphs(model.graph) for node in graph.node]
        if any(map(is_recurrent, nodes)):
            declare_outputs(onnx, model)
            self._rewrite(model.graph, _Scope([], NativeGraph(())))
        if self.lines:
            model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))

    def _rewrite(self, graph: Any, outer: _Scope) -> bool:
        """Replaces the recurrent nodes of a graph and its bodies; returns whether any node was
        replaced.
        """
        native, messages = native_graph(graph), [*graph.initializer, *graph.node]
        # The graph's own values hide outer values of the same names.
        seen = [
            (message, node)
            for message, node in zip(outer.messages, outer.native.nodes, strict=True)
            if not native.local & (node.writes | node.all_reads)
        ]
        seen += zip(messages, native.nodes, strict=True)
        scope = _Scope([message for message, _ in seen], NativeGraph(node for _, node in seen))
        parts, constants = list[Part](), len(graph.initializer)
        for at, node in enumerate(graph.node, constants):
            if is_recurrent(node):
                try:
                    new = self._nodes(node, scope)
                except OnernnError as error:
                    reason = str(error).replace("\n", " ")
                    self.refusals.append(Refusal(reason, describe(node)))
                    continue
                parts.append(Part([at], new, [name for each in new for name in each.input]))
            elif twice := clashes(native.nodes[at].bodies):
                self.refusals.append(Refusal(f"{twice} are {CLASH}", describe(node)))
            elif any([self._rewrite(body, scope) for body in bodies(node)]):
                parts.append(Part([at], [node], NativeGraph([native_node(node)]).outer_reads))
        if not parts:
            return False
        woven = weave(native, messages, parts)
        left = {id(each) for each in woven}
        for at in reversed(range(constants)):
            if id(messages[at]) not in left:
                del graph.initializer[at]
        nodes = [each for each in woven if hasattr(each, "op_type")]
        del graph.node[:]
        graph.node.extend(nodes)
        return True

    def _nodes(self, node: Any, scope: _Scope) -> list[Any]:
        """Returns the nodes that replace a recurrent node, and adds a line to ``lines``.

        Raises an `OnernnError` if the node cannot be replaced.
        """
        rnn, batch_major, half = self._layer(node, scope)
        attribute, line = self._add(rnn.spec, rnn.weights, batch_major=batch_major)
        x, lengths, h, c = (node.input[at] if at < len(node.input) else "" for at in (0, 4, 5, 6))
        h, c = ("" if state and self._is_zero(state, scope) else state for state in (h, c))
        helper, proto = self._onnx.helper, self._onnx.TensorProto
        wide = {n: self._fresh(f"{n}/f32") if half else n for n in (x, h, c, *node.output) if n}
        before, after = list[Any](), list[Any]()
        for name, other in wide.items() if half else ():  # float16 layers run in float32
            if name in node.output:
                after.append(helper.make_node("Cast", [other], [name], to=proto.FLOAT16))
            else:
                before.append(helper.make_node("Cast", [name], [other], to=proto.FLOAT))
        new = helper.make_node(
            "Layer64" if rnn.layers[0].iter.dtype == np.float64 else "Layer",
            [wide.get(x, ""), lengths, wide.get(h, ""), wide.get(c, "")],
            [wide.get(name, "") for name in (*node.output, "", "")[:3]],
            node.name,
            domain=DOMAIN,
            layer=attribute if isinstance(attribute, int) else attribute.tobytes(),
        )
        self.lines.append(f"{describe(node)}: {line}")
        return [*before, new, *after]

    def _layer(self, node: Any, scope: _Scope) -> tuple[Recurrent, bool, bool]:
        """Returns the layer of a node, whether the node has layout=1, and whether its values are
        float16.

        The ONNX reader lowers a model of this node and the nodes that compute its weights.

        Raises an `OnernnError` if the node is not one layer that onernn can run.
        """
        helper = self._onnx.helper
        attributes = {each.name: each for each in node.attribute}
        if "clip" in attributes and not attributes["clip"].f:
            raise UnsupportedError("attribute clip=0: expected more than 0, or no attribute")
        parameters = [node.input[at] for at in PARAMETERS if at < len(node.input)]
        sources = [scope.messages[at] for at in scope.native.sources(parameters, _MAKERS)]
        before = [each for each in sources if hasattr(each, "op_type")]
        read = {name for each in (*before, node) for name in each.input}
        if shared := sorted(self._free.intersection(parameters, read)):
            raise UnsupportedError(
                f"{shared[0]!r} is also an input of the model, so callers may change it; save the"
                " model without this input"
            )
        arrays = {each.name: self._array(each) for each in sources if not hasattr(each, "op_type")}
        made = {""}.union(*(each.output for each in before))
        untyped = helper.make_empty_tensor_value_info
        graph = helper.make_graph(
            [*before, node],
            "alone",
            [self._declared.get(name) or untyped(name) for name in sorted(read - made)],
            [untyped(name) for name in node.output if name],
        )
        alone = helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )
        model = parse_model(alone.SerializeToString(), Path(describe(node)))
        nodes = lower(model, arrays).nodes
        if reasons := [each.attributes["reason"] for each in nodes if each.op == UNSUPPORTED]:
            raise UnsupportedError(reasons[-1])
        layers = [Recurrent.of(each) for each in nodes if each.op == "Rnn"]
        if len(layers) != 1:
            raise UnsupportedError("its directions have different activations: expected the same")
        half = any(each.op == "Cast" and each.attributes["to"] == "float16" for each in nodes)
        return layers[0], "layout" in attributes and bool(attributes["layout"].i), half

    def _array(self, tensor: Any) -> Array:
        self._external.budget.allow(tensor.ByteSize())
        if tensor.float_data or tensor.double_data:  # onernn's schema declares both as bytes
            tensor = MESSAGES.message("TensorProto").FromString(tensor.SerializeToString())
        return array_of(tensor, f"initializer {tensor.name!r}", self._external)

    def _is_zero(self, name: str, scope: _Scope) -> bool:
        """Returns whether a value consists of zeros in a computed shape, which exporters write for
        a missing initial state.
        """
        grown = False
        for each, native in zip(
            reversed(scope.messages), reversed(scope.native.nodes), strict=True
        ):
            if name not in native.writes:
                continue
            if not native.type:
                return grown and name not in self._free and self._has_zeros(each)
            if native.type == "ConstantOfShape" or native.type == "Constant" and grown:
                return all(a.HasField("t") and self._has_zeros(a.t) for a in each.attribute)
            if native.type not in _RESIZED and not is_view(native.type):
                return False
            grown |= native.type == "Expand"
            name = each.input[0]
        return False

    def _has_zeros(self, tensor: Any) -> bool:
        """Returns whether the model file contains the tensor, and all elements are zero."""
        external = self._onnx.external_data_helper.uses_external_data(tensor)
        return not (external or self._onnx.numpy_helper.to_array(tensor).any())


# The model that ONNX Runtime loads: onernn's nodes replace its recurrent nodes.

_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option that names the folder of external data if the model is passed as bytes."""
_BYTES, _ELSEWHERE = 2, 1
"""ONNX's numbers of the dtype UINT8 and of the data location EXTERNAL."""
_ON_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")
"""The execution providers that can be used together with onernn's operators. Azure's provider runs
only its own operators.
"""


class Rewritten(NamedTuple):
    """The model and the SessionOptions for ONNX Runtime; both are changed copies if a node is
    replaced.
    """

    source: Any
    options: Any
    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def _check_names(dtype: str, backend: str) -> None:
    if dtype not in DTYPES:
        raise UnsupportedError(unknown(dtype))
    if backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend {backend!r}: expected 'auto' or 'kernels', which run inside ONNX Runtime"
        )


def rewritten(
    source: Any,
    options: Any,
    providers: Any,
    layers: OperatorLayers,
    dtype: str,
    read: Callable[[], bytes],
) -> Rewritten:
    """Returns the model whose recurrent nodes ``layers`` run, with a line of text for each replaced
    node.

    ``read``: a function that returns the bytes of ``source``.
    """
    onnx = require("onnx", "onnx")

    def keep_unchanged(error: Exception) -> Rewritten:
        return Rewritten(source, options, (), (Refusal(str(error), "model"),))

    try:
        _check_free(options, providers)
        file = Path("model" if isinstance(source, bytes) else source).absolute()
        model = onnx.load_from_string(read())
        external = ExternalData(file, loading())
        uses_file = onnx.external_data_helper.uses_external_data
        outside = list(filter(uses_file, tensors(model)))
        files = [onnx.external_data_helper.ExternalDataInfo(each).location for each in outside]
        names = [each.name for each in tensors(model)]
        for each in tensors(model):
            if prod(each.dims) <= SMALL:  # the values may be sizes
                fill(onnx, each, external)
        result = Replacement(onnx, model, external, partial(layers.add, dtype=dtype))
    except Exception as error:  # ONNX Runtime opens it or raises its own error
        return keep_unchanged(error)
    return_freed_memory()  # serializing the model needs memory
    lines, refusals = tuple(result.lines), tuple(result.refusals)
    if not lines:
        return Rewritten(source, options, (), refusals)
    try:
        own = _copy(options, [*dict.fromkeys(names)], [*dict.fromkeys(files)])
        if not isinstance(source, bytes) and (left := list(filter(uses_file, tensors(model)))):
            own.add_session_config_entry(_FOLDER, str(_follow_links(file, left)))
    except OnernnError as error:
        return keep_unchanged(error)
    return Rewritten(model.SerializeToString(), own, lines, refusals)


def _follow_links(model: Path, outside: Sequence[Any]) -> Path:
    """Returns the folder that contains the external data of tensors; ONNX Runtime follows no link
    out of this folder.

    The model file and its data files may be links. If all real data files are in the folder of the
    real model file, this function returns that folder, and changes the tensors' entries to name the
    real files.
    """
    store, named = model.resolve().parent, list[tuple[Any, str]]()
    for tensor in outside:
        for entry in tensor.external_data:
            if entry.key == "location":
                file = inside(model.parent, entry.value, f"initializer {tensor.name!r}", model)
                if not file.is_relative_to(store):
                    return model.parent
                named.append((entry, str(file.relative_to(store))))
    for entry, name in named:
        entry.value = name
    return store


def tensors(model: Any) -> Iterator[Any]:
    """Yields all initializers, including initializers in bodies."""
    return (each for graph in graphs(model.graph) for each in graph.initializer)


def _check_free(options: Any, providers: Any) -> None:
    if not plugins_enabled():
        raise UnsupportedError(DISABLED)
    if options and options.optimized_model_filepath:
        raise UnsupportedError(
            "optimized_model_filepath is set: the file would hold onernn's nodes, which other"
            " programs cannot run; leave it unset"
        )
    if options and getattr(options, "has_providers", bool)():
        raise UnsupportedError(
            "its SessionOptions choose the providers; pass providers= to the session instead"
        )
    available = require("onnxruntime", "onnx").get_available_providers()
    names = [each if isinstance(each, str) else each[0] for each in providers or available]
    names = [name for name in names if name in available]  # unavailable ones cause warnings
    if others := [name for name in names if name not in _ON_CPU]:
        raise UnsupportedError(
            f"provider {others[0]}: expected only the CPU's; pass providers={list(_ON_CPU[:1])}"
        )


def _copy(options: Any, names: Sequence[str], files: Sequence[str]) -> Any:
    """Returns a copy of SessionOptions, so that the caller's options stay unchanged.

    A session returns a copy of its options, but without the files that callers keep in memory. ONNX
    Runtime cannot list the initializers, files and folders that options contain. So this function
    runs a small model with an initializer of random bytes for each of ``names`` and ``files``.

    Raises `UnsupportedError` if the model outputs different bytes, because these come from the
    options.
    """
    runtime = require("onnxruntime", "onnx")
    if options is None:
        return runtime.SessionOptions()
    noise, proto = os.urandom(16), MESSAGES.message("ModelProto")(ir_version=8)
    proto.opset_import.add(version=13)
    graph = proto.graph
    graph.name = "names"
    for name in (DOMAIN, *names):
        graph.initializer.add(name=name, data_type=_BYTES, dims=[16], raw_data=noise)
    with TemporaryDirectory() as root:
        folder = Path(root).resolve()
        for at, name in enumerate(files):
            file = (folder / name).resolve()
            if not file.is_relative_to(folder):
                raise UnsupportedError(f"its data are in {name!r}, expected in the model's folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(noise)
            tensor = graph.initializer.add(name=f"{DOMAIN}/{at}", data_type=_BYTES, dims=[16])
            tensor.data_location = _ELSEWHERE
            tensor.external_data.add(key="location", value=name)
        for each in graph.initializer:
            graph.output.add(name=each.name)
        file = folder / f"{noise.hex()}.onnx"
        file.write_bytes(proto.SerializeToString())
        try:
            session = runtime.InferenceSession(file, options, providers=list(_ON_CPU[:1]))
            if options.enable_profiling:
                Path(session.end_profiling()).unlink()
            arrays = session.run(None, {})
        except Exception as error:
            reason = f"its SessionOptions cannot be copied, they fit only this model: {error}"
            raise UnsupportedError(reason) from error
    for name, array in zip((DOMAIN, *names, *files), arrays, strict=True):
        if array.tobytes() != noise:
            raise UnsupportedError(
                f"its SessionOptions hold data for {name!r}; keep the data in the model's files"
            )
    return session.get_session_options()


# onernn inside ONNX Runtime: onernn's nodes replace the recurrent nodes of a model.
#
# ONNX Runtime runs the whole model in one session. The kernels' library contains the custom
# operators that run onernn's nodes. See design/0039.

HOST = "ONNX Runtime"
_log = logging.getLogger("onernn")


def optimize(
    model: Any,
    *,
    dtype: str = "f32",
    threads: int | None = None,
    backend: str = "auto",
    session_options: Any = None,
) -> Any:
    """Returns an `onnxruntime.InferenceSession` of a model whose recurrent nodes onernn runs.

    ``model``: a path, a ModelProto or its bytes. ``dtype``: the same as for `Session`. ``backend``:
    "auto" or "kernels"; both replace each recurrent node that onernn's kernels can run.
    ``threads``: the number of threads for ONNX Runtime and onernn; ``session_options`` may also set
    it. ``session_options``: ONNX Runtime's SessionOptions, which are copied. If they contain
    initializers or data of the model, ONNX Runtime runs the original model.

    The session's ``replaced`` contains a line of text for each node that onernn runs. ``refusals``
    contains the reasons why onernn does not run the other recurrent nodes. ``explain()`` returns
    both.

    Raises `MissingDependencyError` without onnx and onnxruntime, `LibraryError` without kernels,
    `UnsupportedError` for an unknown dtype or backend, and the errors that ONNX Runtime raises for
    the model.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> gru = onernn.Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": weights})
    >>> x, y = onernn.Value("x", "float32", (None, None, 2)), onernn.Value("y")
    >>> model = onernn.Graph("gru", (x,), (y,), (gru,), {})
    >>> onernn.convert(model, "gru.onnx")
    >>> from onernn.adapters.onnx import optimize
    >>> len(optimize("gru.onnx").replaced)
    1
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    options = session_options
    if options is None and threads is not None:
        options = require("onnxruntime", "onnx").SessionOptions()
        options.intra_op_num_threads = threads
    elif threads not in (None, options and options.intra_op_num_threads):
        raise UnsupportedError(
            f"threads={threads}: expected session_options.intra_op_num_threads, which is"
            f" {options.intra_op_num_threads}, because onernn uses as many threads as ONNX Runtime;"
            " pass only one of them"
        )
    if not isinstance(model, str | bytes | os.PathLike):
        model = model.SerializeToString()
    providers = ["CPUExecutionProvider"]
    made = inference_session()
    return made(model, options, providers, dtype=dtype, backend=backend, whole=False)


def plug(model: str | Path, path: str | Path, *, dtype: str = "f32") -> Explained:
    """Writes a model for ONNX Runtime whose recurrent nodes are operators of ``libonernn``.

    Programs in any language can run the written model after they call ONNX Runtime's
    ``RegisterCustomOpsLibrary``. The written file also contains the data of other files of
    ``model``. ``dtype``: the same as for `Session`. The result's ``replaced`` has a line of text
    for each replaced node; ``refusals`` has the reasons why other recurrent nodes stay.

    Raises `UnsupportedError` if no node can be replaced, for an unknown dtype, and for a model of
    more than 2 GB; `ModelFormatError` if the file is not a model; `MissingDependencyError` without
    onnx; `LibraryError` without kernels.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> gru = onernn.Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": weights})
    >>> x, y = onernn.Value("x", "float32", (None, None, 2)), onernn.Value("y")
    >>> model = onernn.Graph("gru", (x,), (y,), (gru,), {})
    >>> onernn.convert(model, "gru.onnx")
    >>> from onernn.adapters.onnx import plug
    >>> len(plug("gru.onnx", "plugged.onnx").replaced)
    1
    """
    _check_names(dtype, "kernels")
    onnx, kernels = require("onnx", "onnx"), load_kernels()
    check_file(model)
    content = Path(model).read_bytes()
    external = ExternalData(Path(model), loading(len(content)))
    try:
        proto = onnx.load_from_string(content)
        for each in tensors(proto):
            fill(onnx, each, external)
        onnx.load_external_data_for_model(proto, str(Path(model).parent))  # tensors in attributes
    except OnernnError:
        raise
    except Exception as error:  # onnx raises errors of many kinds
        reason = f"expected a model that onnx can read, got its error: {error}"
        raise ModelFormatError(reason, model) from error
    with guard(lambda: model):
        stored = partial(store_layer, kernels, dtype=dtype)
        result = Replacement(onnx, proto, external, lambda *at, **by: stored(*at, **by)[:2])
    if not result.lines:
        raise UnsupportedError(
            f"{model}: expected an RNN, GRU or LSTM node that onernn can run, got none",
            result.refusals,
        )
    try:
        content = proto.SerializeToString()
    except Exception as error:  # the error's class depends on protobuf's version
        reason = f"{path}: expected at most 2 GB with all weights in the file: {error}"
        raise UnsupportedError(reason) from error
    with replacing(path) as stream:
        stream.write(content)
    return Explained(tuple(result.lines), tuple(result.refusals))


class _Described(NamedTuple):
    """The type and shape that ONNX Runtime infers for an output; ``text`` is the output's
    description.
    """

    type: str
    shape: list[Any]
    text: str


class _Output:
    """A model's output that has the interface of ONNX Runtime's NodeArg. ONNX Runtime infers its
    type and shape when they are first read.
    """

    def __init__(self, name: str, find: Callable[[], list[_Described]], at: int) -> None:
        self.name, self._find, self._at = name, find, at

    @property
    def type(self) -> str:
        return self._find()[self._at].type

    @property
    def shape(self) -> list[Any]:
        return [*self._find()[self._at].shape]

    def __str__(self) -> str:
        return self._find()[self._at].text


_LATER = (
    *("_sess", "_outputs_meta", "_overridable_initializers", "_input_meminfos"),
    *("_output_meminfos", "_input_epdevices", "_model_path", "_model_bytes"),
)
"""The attributes that ONNX Runtime's session has only after it loads the complete model."""


@cache
def inference_session() -> Any:
    """Returns the class `InferenceSession`; imports ONNX Runtime."""
    runtime = require("onnxruntime", "onnx")

    def value_of(array: Array) -> Any:
        """Returns an OrtValue with a copy of the array; an OrtValue made from an array would not
        own its memory.
        """
        value = runtime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu")
        value.update_inplace(array)
        return value

    class InferenceSession(runtime.InferenceSession):  # type: ignore[misc, name-defined]
        """An `onnxruntime.InferenceSession` in which onernn runs the whole model, or only its
        recurrent nodes.

        It takes the arguments that onnxruntime.InferenceSession documents, and has the same
        methods, outputs and errors. ``dtype``, ``backend``, ``replaced`` and ``refusals``: see
        `onernn.adapters.onnx.optimize`.

        ``whole``: True: onernn runs the whole model as one plan, a list of functions that one run
        calls. False: ONNX Runtime runs the model, and onernn runs its recurrent nodes. None: a rule
        chooses one of the two. True raises `UnsupportedError` if onernn cannot make the plan. The
        attribute ``whole`` contains the choice, and ``explain()`` returns the reason. ONNX Runtime
        loads the model for the first call that the plan cannot run. Such a call has run options,
        uses IO binding or ``run_async``, or has inputs that are not arrays of the declared dtypes
        and sizes.

        ``sess_options`` are copied. ONNX Runtime runs the original model for providers other than
        the CPU's. It also does so if ``sess_options`` ask for a file of the optimized model, choose
        the providers, or contain initializers or data of the model. A model that needs custom
        operators of ``sess_options`` also stays unchanged, because a copy of the options has no
        custom operators.

        >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
        >>> relu = onernn.Node("Relu", ("x",), ("y",))
        >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
        >>> onernn.convert(model, "relu.onnx")
        >>> from onernn.adapters.onnx import InferenceSession
        >>> session = InferenceSession("relu.onnx")
        >>> session.run(None, {"x": np.array([[-1, 2]], "f4")})[0].tolist()
        [[0.0, 2.0]]
        """

        replaced: tuple[str, ...]
        refusals: tuple[Refusal, ...]
        _plan: Whole | None = None
        _content = b""
        _described: list[_Described] | None = None

        def __init__(
            self,
            path_or_bytes: str | bytes | os.PathLike[str],
            sess_options: Any = None,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
            *,
            dtype: str = "f32",
            backend: str = "auto",
            whole: bool | None = None,
            **more: Any,
        ) -> None:
            _check_names(dtype, backend)
            self._arguments = path_or_bytes, sess_options, dtype, backend, more
            self._asked, self._lock = whole, Lock()
            self._begin(providers, provider_options)

        def set_providers(
            self,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
        ) -> None:
            """Sets the providers like ONNX Runtime's method. If onernn runs the model or nodes of
            it, the model is read again.
            """
            if self.replaced or self.whole:
                self._begin(providers, provider_options)
            else:
                super().set_providers(providers, provider_options)

        def _begin(self, *providers: Any) -> None:
            self._plan, self._providers_given, choice = None, providers, ""
            if self._asked is not False and plugins_enabled():
                try:
                    self._begin_whole(*providers)
                    choice = "onernn runs it as one plan"
                except OnernnError as error:
                    if self._asked:
                        raise UnsupportedError(f"whole=True: {error}") from error
                    choice = f"ONNX Runtime runs it: {' '.join(str(error).split())}"
                except Exception as error:  # ONNX Runtime opens it or raises its own error
                    choice = f"ONNX Runtime runs it: {error}"
            self.whole = self._plan is not None
            if self._plan:
                choice += f": {self._plan.why}"
            else:
                self._begin_inside(*providers)
                return_freed_memory()  # the memory of the model that was read
            self._content = b""
            self._choice = f"model: {choice}" if choice else ""
            for line in filter(None, (self._choice, *self.replaced)):
                _log.info("%s", line)
            warn_of_left(HOST, self.refusals)

        def _load(self, source: Any, options: Any, *providers: Any) -> None:
            """Loads a model in ONNX Runtime without its fallback, a second try after an error, so
            that the first error is raised.
            """
            *_, more = self._arguments
            super().__init__(source, options, *providers, **{**more, "enable_fallback": 0})
            if more.get("enable_fallback", 1):
                self.enable_fallback()

        def _begin_whole(self, *providers: Any) -> None:
            """Makes the plan of the whole model.

            ONNX Runtime loads a copy of the model without operators. This copy provides the
            session's inputs, metadata, options and providers.

            Raises an `OnernnError` if ONNX Runtime should run the model.
            """
            source, options, dtype, *_ = self._arguments
            _check_free(options, providers[0])
            if options and options.enable_profiling:
                raise UnsupportedError(
                    "enable_profiling is set, and profiling measures only ONNX Runtime's nodes"
                )
            model = read_source(source)
            self._content = model.content
            copy = partial(_copy, options, model.names, model.files)
            plan = open_whole(model, copy, dtype, rule=not self._asked)
            self._load(model.stub, plan.options, *providers)
            if [value.shape for value in self.get_inputs()] != model.shapes:
                raise UnsupportedError(
                    "its SessionOptions fix sizes of inputs, expected the sizes in the model"
                )
            for name in _LATER:
                self.__dict__.pop(name, None)
            self.replaced, self.refusals, self._plan = plan.lines, (), plan

        def __getattr__(self, name: str) -> Any:
            if self._plan is None or name not in _LATER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            with self._lock:
                if name not in self.__dict__:
                    source, _, dtype, backend, more = self._arguments
                    self._plan.check()
                    full = InferenceSession(
                        *(source, self._plan.options, *self._providers_given),
                        **{**more, "dtype": dtype, "backend": backend, "whole": False},
                    )
                    self.__dict__.update({n: vars(full)[n] for n in _LATER if n in vars(full)})
            return object.__getattribute__(self, name)

        def get_outputs(self) -> Any:
            """Returns the metadata of the outputs. For a plan, ONNX Runtime infers the outputs'
            types and shapes when they are first read.
            """
            if self._plan is None:
                return super().get_outputs()
            find = partial(self._describe_outputs, self._plan)
            return [_Output(name, find, at) for at, name in enumerate(self._plan.outputs)]

        def _describe_outputs(self, plan: Whole) -> list[_Described]:
            with self._lock:
                if self._described is None:
                    plan.check()
                    given = self._arguments[0], plan.options, *self._providers_given
                    outputs = runtime.InferenceSession(*given).get_outputs()
                    self._described = [_Described(v.type, v.shape, str(v)) for v in outputs]
                return self._described

        def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
            """Returns the outputs in the order of ``output_names``, None for all outputs."""
            if self._plan and run_options is None:
                result = self._plan.run(output_names, input_feed)
                if result is not None:
                    return result
            return super().run(output_names, input_feed, run_options)

        def run_with_ort_values(
            self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
        ) -> Any:
            """Returns the outputs as OrtValues; ``input_dict_ort_values`` are the inputs as
            OrtValues by name.
            """
            values = input_dict_ort_values
            if (
                self._plan
                and run_options is None
                and all(
                    each.is_tensor() and each.device_name() == "cpu" for each in values.values()
                )
            ):
                feed = {name: value.numpy() for name, value in values.items()}
                result = self._plan.run(output_names, feed)
                if result is not None:
                    return list(map(value_of, result))
            return super().run_with_ort_values(output_names, values, run_options)

        def _read(self) -> bytes:
            """Returns the bytes of the model, and releases the bytes that `_begin_whole` read."""
            source, content, self._content = self._arguments[0], self._content, b""
            return content or (source if isinstance(source, bytes) else Path(source).read_bytes())

        def _begin_inside(self, *providers: Any) -> None:
            source, options, dtype, _, more = self._arguments
            with closing(OperatorLayers(load_kernels())) as layers:
                model = rewritten(source, options, providers[0], layers, dtype, self._read)
                if model.replaced:
                    try:
                        model.options.register_custom_ops_library(str(load_kernels().path))
                        self._load(model.source, model.options, *providers)
                    except Exception as error:
                        why = f"ONNX Runtime refuses the model with onernn's layers: {error}"
                        model = model._replace(replaced=(), refusals=(Refusal(why, "model"),))
            if not model.replaced:
                super().__init__(source, options, *providers, **more)
            self.replaced, self.refusals = model.replaced, model.refusals

        def explain(self) -> str:
            """Returns a text that says what runs the model and why, with a line for each recurrent
            node.
            """
            lines = filter(None, (self._choice, Explained(self.replaced, self.refusals).text(HOST)))
            return "\n".join(lines) or "no recurrent nodes"

    InferenceSession.__module__ = "onernn.adapters.onnx"
    InferenceSession.__qualname__ = "InferenceSession"
    return InferenceSession
