"""Sessions of ONNX Runtime in which onernn runs the recurrent layers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.live import Explained, warn_of_left
from onernn.adapters.common.lowering import FOLDED, Names
from onernn.adapters.common.native import NativeGraph, Part, weave
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import (
    SMALL,
    bodies,
    graphs,
    names_in,
    native_graph,
    native_node,
    overridable,
    parse_model,
    without_values,
)
from onernn.backend.compiled.backend import DOMAIN, OperatorLayers, stored_layer
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.fuse_passes.views import is_view
from onernn.ir.errors import (
    ModelFormatError,
    OnernnError,
    Refusal,
    UnsupportedError,
    guard,
)
from onernn.ir.files import replacing
from onernn.ir.graph import UNSUPPORTED
from onernn.ir.rnn import Recurrent

# Recurrent nodes of a ModelProto become nodes that onernn runs, including those in bodies.

RECURRENT = ("RNN", "GRU", "LSTM")
_PARAMETERS = (1, 2, 3, 7)
"""The inputs W, R, B and P."""
_MAKERS = {*FOLDED, "Constant", ""}
"""Operators, and initializers, that parameters may come from."""
_RESIZED = ("Expand", "Slice")
"""Operators that repeat or leave out elements of their first input; views do neither."""


def is_recurrent(node: Any) -> bool:
    return node.op_type in RECURRENT and node.domain in ("", "ai.onnx")


def describe(node: Any) -> str:
    """Returns how messages call a node."""
    return f"node {node.name or next(filter(None, node.output), '')!r} ({node.op_type})"


def fill(onnx: Any, tensor: Any, folder: Path) -> Any:
    """Puts the elements into a tensor if they are in a file of the folder; returns it."""
    if onnx.external_data_helper.uses_external_data(tensor):
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # of many kinds, and without the tensor's name
            raise UnsupportedError(f"{tensor.name!r}: cannot be read: {error}") from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return tensor


def declare_outputs(onnx: Any, model: Any) -> None:
    """Declares the types of the outputs of recurrent nodes.

    ONNX Runtime infers all other types itself, except after an operator of this package.
    """
    typed = without_values(model)
    with suppress(onnx.shape_inference.InferenceError):  # ONNX Runtime will report it
        typed = onnx.shape_inference.infer_shapes(typed)
    for graph, inferred in zip(graphs(model.graph), graphs(typed.graph), strict=True):
        names = {name for node in graph.node if is_recurrent(node) for name in node.output}
        known = {value.name for value in (*graph.value_info, *graph.output)}
        graph.value_info.extend(v for v in inferred.value_info if v.name in names - known)
        for output, value in zip(graph.output, inferred.output, strict=True):
            if output.name in names:
                output.CopyFrom(value)


class _Scope(NamedTuple):
    """What the nodes of a graph may read: initializers and nodes, outer ones first."""

    messages: list[Any]
    native: NativeGraph


class Replacement:
    """Puts onernn's operators into a model. ``lines``: those; ``refusals``: why others stay.

    ``folder``: of the model's other files. ``add`` returns the attribute of a new layer's node, the
    layer or its number, and a line for users.
    """

    def __init__(
        self, onnx: Any, model: Any, folder: Path, add: Callable[..., tuple[Any, str]]
    ) -> None:
        self._onnx, self._model, self._folder, self._add = onnx, model, folder, add
        self._free = overridable(model)
        self._fresh = Names(dict.fromkeys(names_in(model), 0)).fresh
        self.lines: list[str] = []
        self.refusals = [
            Refusal("it stands in a function", describe(node))
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
        """Replaces the nodes of a graph and its bodies; returns whether there are any."""
        native, messages = native_graph(graph), [*graph.initializer, *graph.node]
        scope = _Scope(
            [*outer.messages, *messages], NativeGraph((*outer.native.nodes, *native.nodes))
        )
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
        """Returns the nodes that take a recurrent one's place, and adds its line.

        Raises an `OnernnError` if there are none.
        """
        rnn, batch_major, half = self._layer(node, scope)
        attribute, line = self._add(rnn.spec, rnn.weights, batch_major=batch_major)
        x, lengths, h, c = (node.input[at] if at < len(node.input) else "" for at in (0, 4, 5, 6))
        h, c = ("" if state and self._is_zero(state, scope) else state for state in (h, c))
        helper, proto = self._onnx.helper, self._onnx.TensorProto
        wide = {n: self._fresh(f"{n}/f32") if half else n for n in (x, h, c, *node.output) if n}
        before, after = list[Any](), list[Any]()
        for name, other in wide.items() if half else ():  # computed in float32, rounded once
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
        """Returns the layer of a node, and whether it has layout=1 and values of float16.

        The reader lowers the node in a model of its own.

        Raises an `OnernnError` if there is none.
        """
        helper = self._onnx.helper
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if attributes.get("clip") == 0:
            raise UnsupportedError("clip=0, which ONNX does not define")
        parameters = [node.input[at] for at in _PARAMETERS if at < len(node.input)]
        sources = [scope.messages[at] for at in scope.native.sources(parameters, _MAKERS)]
        before = [each for each in sources if hasattr(each, "op_type")]
        read = {name for each in (*before, node) for name in each.input}
        if shared := sorted(self._free.intersection(parameters, read)):
            raise UnsupportedError(f"{shared[0]!r} is an input, too: callers may give other values")
        constants = []
        for each in sources:
            if not hasattr(each, "op_type"):
                constants.append(self._onnx.TensorProto())
                constants[-1].CopyFrom(each)
                fill(self._onnx, constants[-1], self._folder)
        made = {each.name for each in constants}.union(*(each.output for each in before), [""])
        graph = helper.make_graph(
            [*before, node],
            "alone",
            [*map(helper.make_empty_tensor_value_info, sorted(read - made))],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
            constants,
        )
        alone = helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )
        nodes = lower(parse_model(alone.SerializeToString(), Path(describe(node)))).nodes
        if reasons := [each.attributes["reason"] for each in nodes if each.op == UNSUPPORTED]:
            raise UnsupportedError(reasons[-1])
        layers = [Recurrent.of(each) for each in nodes if each.op == "Rnn"]
        if len(layers) != 1:
            raise UnsupportedError("its directions have functions of their own")
        half = any(each.op == "Cast" and each.attributes["to"] == "float16" for each in nodes)
        return layers[0], bool(attributes.get("layout", 0)), half

    def _is_zero(self, name: str, scope: _Scope) -> bool:
        """Returns whether a value is zeros of a computed size: exporters write no state in this
        way.
        """
        grown, to_array = False, self._onnx.numpy_helper.to_array
        for each, native in zip(
            reversed(scope.messages), reversed(scope.native.nodes), strict=True
        ):
            if name not in native.writes:
                continue
            if not native.type:
                here = not self._onnx.external_data_helper.uses_external_data(each)
                return grown and here and name not in self._free and not to_array(each).any()
            if native.type == "ConstantOfShape" or native.type == "Constant" and grown:
                return not any(a.HasField("t") and to_array(a.t).any() for a in each.attribute)
            if native.type not in _RESIZED and not is_view(native.type):
                return False
            grown |= native.type == "Expand"
            name = each.input[0]
        return False


# A model for ONNX Runtime, in which our nodes replace recurrent ones.

_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for the data of a model that it gets as bytes."""
_ON_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers beside which our operators run; Azure's has operators of its own only."""


class Rewritten(NamedTuple):
    """A model for ONNX Runtime, and SessionOptions: a copy if something is replaced."""

    source: Any
    options: Any
    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def rewritten(
    source: Any, options: Any, providers: Any, layers: OperatorLayers, dtype: str, backend: str
) -> Rewritten:
    """Returns the model in which ``layers`` run the recurrent nodes, and what was replaced.

    Raises `UnsupportedError` for a dtype or backend that is not known here.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(unknown(dtype))
    if backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend {backend!r}: expected 'auto' or 'kernels', which run inside ONNX Runtime"
        )
    onnx = require("onnx", "onnx")

    def keep_unchanged(error: Exception) -> Rewritten:
        return Rewritten(source, options, (), (Refusal(str(error), "model"),))

    try:
        _check_free(options, providers)
        model, folder = _read(onnx, source)
        names, files = _replaceable(onnx, model)
        for each in tensors(model):
            if prod(each.dims) <= SMALL:  # sizes may depend on it
                fill(onnx, each, folder)
    except Exception as error:  # ONNX Runtime reads it all the same, or says why not
        return keep_unchanged(error)
    result = Replacement(onnx, model, folder, partial(layers.add, dtype=dtype))
    lines, refusals = tuple(result.lines), tuple(result.refusals)
    if not lines:
        return Rewritten(source, options, (), refusals)
    try:
        own = _copy(onnx, options, names, files)
    except UnsupportedError as error:
        return keep_unchanged(error)
    outside = any(map(onnx.external_data_helper.uses_external_data, tensors(model)))
    if outside and not isinstance(source, bytes):
        own.add_session_config_entry(_FOLDER, str(folder))
    return Rewritten(model.SerializeToString(), own, lines, refusals)


def tensors(model: Any) -> Iterator[Any]:
    """Yields all initializers, including those of bodies."""
    return (each for graph in graphs(model.graph) for each in graph.initializer)


def _check_free(options: Any, providers: Any) -> None:
    """Raises `UnsupportedError` if the model must stay as it is."""
    if not plugins_enabled():
        raise UnsupportedError(DISABLED)
    if options and options.optimized_model_filepath:
        raise UnsupportedError(
            "optimized_model_filepath asks for a file, and only onernn can run our nodes in it"
        )
    if options and getattr(options, "has_providers", bool)():
        raise UnsupportedError("its SessionOptions choose the providers")
    available = require("onnxruntime", "onnx").get_available_providers()
    names = [each if isinstance(each, str) else each[0] for each in providers or available]
    names = [name for name in names if name in available]  # ONNX Runtime warns of the others
    if others := [name for name in names if name not in _ON_CPU]:
        raise UnsupportedError(f"it is to run on {others[0]}")


def _read(onnx: Any, source: Any) -> tuple[Any, Path]:
    """Returns the model, and the folder of data that are not in it. Raises what onnx raises."""
    if isinstance(source, bytes):
        return onnx.load_from_string(source), Path()
    file = Path(source).absolute()
    return onnx.load(file, format="protobuf", load_external_data=False), file.parent


def _replaceable(onnx: Any, model: Any) -> tuple[list[str], list[str]]:
    """Returns what SessionOptions may replace: initializers, and files of data, by name."""
    beside, initializers = onnx.external_data_helper, list(tensors(model))
    outside = filter(beside.uses_external_data, initializers)
    files = (beside.ExternalDataInfo(each).location for each in outside)
    return [*dict.fromkeys(each.name for each in initializers)], [*dict.fromkeys(files)]


def _copy(onnx: Any, options: Any, names: Sequence[str], files: Sequence[str]) -> Any:
    """Returns a copy of SessionOptions, which the caller keeps unchanged.

    A session gives a copy of its options, without files in memory; and nobody can ask options for
    the initializers and files that they bring, or tell whether they name a folder of files. So a
    session of a small model reads random bytes under each of these names.

    Raises `UnsupportedError` if it reads others, which the options then bring.
    """
    runtime = require("onnxruntime", "onnx")
    if options is None:
        return runtime.SessionOptions()
    helper, noise, kind = onnx.helper, os.urandom(16), onnx.TensorProto.UINT8
    probes = [helper.make_tensor(name, kind, [16], noise, raw=True) for name in (DOMAIN, *names)]
    with TemporaryDirectory() as root:
        folder = Path(root).resolve()
        for at, name in enumerate(files):
            file = (folder / name).resolve()
            if not file.is_relative_to(folder):
                raise UnsupportedError(f"its data are in {name!r}, which is not beside the model")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(noise)
            tensor = onnx.TensorProto(name=f"{DOMAIN}/{at}", data_type=kind, dims=[16])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
            probes.append(tensor)
        outputs = [helper.make_empty_tensor_value_info(each.name) for each in probes]
        graph = helper.make_graph([], "names", [], outputs, probes)
        opset = [helper.make_opsetid("", 13)]
        file = folder / f"{noise.hex()}.onnx"
        file.write_bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        )
        try:
            session = runtime.InferenceSession(file, options, providers=list(_ON_CPU[:1]))
            if options.enable_profiling:
                Path(session.end_profiling()).unlink()
            arrays = session.run(None, {})
        except Exception as error:
            raise UnsupportedError(f"its SessionOptions fit no other model: {error}") from error
    for name, array in zip((DOMAIN, *names, *files), arrays, strict=True):
        if array.tobytes() != noise:
            raise UnsupportedError(f"its SessionOptions decide what {name!r} is")
    return session.get_session_options()


# onernn inside ONNX Runtime: recurrent nodes become our nodes in the same model.
#
# ONNX Runtime runs the whole model in one session, our nodes by the kernels' library, which
# also holds custom operators. See design/0039.

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

    ``model``: a path, a ModelProto or its bytes. ``dtype`` is that of `Session`. ``backend``:
    "auto" and "kernels" both replace every node that the kernels run; the others stay where they
    are. ``threads``: of ONNX Runtime and of ours; ``session_options``,
    ONNX Runtime's, tell it, too. They are copied; where they bring initializers or data of the
    model, ONNX Runtime runs it as it is.

    The session has ``replaced``, a line for each node that onernn runs, ``refusals``, why others
    are ONNX Runtime's, and ``explain()``, both.

    Raises `MissingDependencyError` without onnx and onnxruntime, `LibraryError` without kernels,
    `UnsupportedError` for a dtype or backend that is not known here, and what ONNX Runtime raises
    for the model.
    """
    runtime = require("onnxruntime", "onnx")
    options = _options(runtime, session_options, threads)
    if not isinstance(model, str | bytes | os.PathLike):
        model = model.SerializeToString()
    providers = ["CPUExecutionProvider"]
    return inference_session()(model, options, providers, dtype=dtype, backend=backend)


def _options(runtime: Any, options: Any, threads: int | None) -> Any:
    """Returns the options of the session, whose threads also run onernn's layers."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    if options is None:
        if threads is not None:
            options = runtime.SessionOptions()
            options.intra_op_num_threads = threads
    elif threads not in (None, options.intra_op_num_threads):
        raise UnsupportedError(
            f"threads={threads}, but session_options.intra_op_num_threads is "
            f"{options.intra_op_num_threads}: ours run on as many as ONNX Runtime; give one of them"
        )
    return options


def plug(model: str | Path, path: str | Path, *, dtype: str = "f32") -> Explained:
    """Writes a model for ONNX Runtime whose recurrent nodes are operators of ``libonernn``.

    Programs in any language run it after one call, ``RegisterCustomOpsLibrary``. The layers stand
    in the file, and so do all data that lie beside ``model``. ``dtype`` is that of `Session`.
    Returns ``replaced``, a line for each node, and ``refusals``, why others stay.

    Raises `UnsupportedError` where no node can be replaced, for a dtype that is not known, and for
    a model of more than 2 GB; `ModelFormatError` for a file that is none; `MissingDependencyError`
    without onnx; `LibraryError` without kernels.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(unknown(dtype))
    onnx, kernels = require("onnx", "onnx"), load_kernels()
    content = Path(model).read_bytes()
    try:
        proto = onnx.load_from_string(content)
        onnx.load_external_data_for_model(proto, str(Path(model).parent))
    except Exception as error:  # of many kinds
        raise ModelFormatError(f"onnx cannot read it: {error}", model) from error
    with guard(lambda: model):
        stored = partial(stored_layer, kernels, dtype=dtype)
        result = Replacement(onnx, proto, Path(), lambda *at, **by: stored(*at, **by)[:2])
    if not result.lines:
        raise UnsupportedError(f"{model}: no recurrent node that onernn runs", result.refusals)
    try:
        content = proto.SerializeToString()
    except Exception as error:  # of protobuf's versions
        raise UnsupportedError(f"{path}: with its weights inside, 2 GB at most: {error}") from error
    with replacing(path) as stream:
        stream.write(content)
    return Explained(tuple(result.lines), tuple(result.refusals))


@cache
def inference_session() -> Any:
    """Returns the class; ONNX Runtime is imported when it is asked for."""
    runtime = require("onnxruntime", "onnx")

    class InferenceSession(runtime.InferenceSession):  # type: ignore[misc, name-defined]
        """An `onnxruntime.InferenceSession` of a model whose recurrent nodes onernn runs.

        It takes what ONNX Runtime's takes, as documented by onnxruntime.InferenceSession; methods,
        outputs and errors are ONNX Runtime's. ``dtype`` and ``backend`` are those of
        `onernn.adapters.onnx.optimize`, and so are ``replaced``, ``refusals`` and ``explain()``.
        ``sess_options`` are copied. Nothing is replaced for providers other than the CPU's, nor
        where ``sess_options`` ask for a file of the optimized model, choose the providers, or bring
        initializers or data of the model. A model that needs custom operators of ``sess_options``
        also stays as it is: a copy has none.
        """

        def __init__(
            self,
            path_or_bytes: str | bytes | os.PathLike[str],
            sess_options: Any = None,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
            *,
            dtype: str = "f32",
            backend: str = "auto",
            **more: Any,
        ) -> None:
            self._arguments = path_or_bytes, sess_options, dtype, backend, more
            self._begin(providers, provider_options)

        def set_providers(
            self,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
        ) -> None:
            """See onnxruntime.InferenceSession; a model with nodes of ours is read again."""
            if self.replaced:
                self._begin(providers, provider_options)
            else:
                super().set_providers(providers, provider_options)

        def _begin(self, *providers: Any) -> None:
            """Loads the model with our layers, or as it was where ONNX Runtime refuses that."""
            source, options, dtype, backend, more = self._arguments
            with closing(OperatorLayers(load_kernels())) as layers:
                model = rewritten(source, options, providers[0], layers, dtype, backend)
                if model.replaced:
                    try:
                        model.options.register_custom_ops_library(str(load_kernels().path))
                        first = {**more, "enable_fallback": 0}
                        super().__init__(model.source, model.options, *providers, **first)
                        if more.get("enable_fallback", 1):
                            self.enable_fallback()
                    except Exception as error:
                        why = f"ONNX Runtime refuses the model with our layers: {error}"
                        model = model._replace(replaced=(), refusals=(Refusal(why, "model"),))
            if not model.replaced:
                super().__init__(source, options, *providers, **more)
            self.replaced, self.refusals = model.replaced, model.refusals
            for line in self.replaced:
                _log.info("%s", line)
            warn_of_left(HOST, self.refusals)

        def explain(self) -> str:
            """Returns a line for each recurrent node: who runs it, and why."""
            return Explained(self.replaced, self.refusals).text(HOST) or "no recurrent nodes"

    InferenceSession.__module__ = "onernn.adapters.onnx"
    InferenceSession.__qualname__ = "InferenceSession"
    return InferenceSession
