"""Sessions of ONNX Runtime in which onernn runs the recurrent layers."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, cached_property, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.live import Explained, warn_of_left
from onernn.adapters.common.lowering import FOLDED
from onernn.adapters.common.plugins import DISABLED, plugins_enabled
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from onernn.backend.compiled.backend import DOMAIN, OperatorLayers, stored_layer
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.fuse_passes.views import is_view
from onernn.ir.errors import (
    ModelFormatError,
    OnernnError,
    Refusal,
    UnsupportedError,
    guarded,
)
from onernn.ir.files import replacing
from onernn.ir.graph import UNSUPPORTED
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Weights, layers_of

# Recurrent nodes of a ModelProto become nodes that onernn runs, those in bodies, too.

RECURRENT = ("RNN", "GRU", "LSTM")
_PARAMETERS = (1, 2, 3, 7)
"""Where W, R, B and P stand."""
_MAKERS = {*FOLDED, "Constant"}
"""Nodes that parameters may come from."""
_RESIZED = ("Expand", "Slice")
"""Operators that repeat or leave out elements of their first input; views do neither."""
_MOST_MOVES = 16
"""The most views between zeros and an initial state."""
_SMALL = 1024
"""Elements of a constant whose numbers types may depend on."""


def is_recurrent(node: Any) -> bool:
    return node.op_type in RECURRENT and node.domain in ("", "ai.onnx")


def named(node: Any) -> str:
    """The name of a node in messages."""
    return f"node {node.name or next(filter(None, node.output), '')!r} ({node.op_type})"


def parameters(node: Any) -> list[str]:
    """The names of a recurrent node's W, R, B and P, as far as they are there."""
    return [name for at, name in enumerate(node.input) if at in _PARAMETERS and name]


def bodies(node: Any) -> list[Any]:
    """The graphs in the attributes of a node."""
    single = [each.g for each in node.attribute if each.HasField("g")]
    return [*single, *(graph for each in node.attribute for graph in each.graphs)]


def everywhere(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from everywhere(body.node)


def overridable(model: Any) -> set[str]:
    """The initializers in whose place callers may give other values.

    Before version 4 of the format all initializers were inputs, and constants nevertheless.
    """
    names = {each.name for each in model.graph.initializer} if model.ir_version >= 4 else set()
    return {value.name for value in model.graph.input if value.name in names}


def tensors(model: Any) -> Iterator[Any]:
    """All initializers, those of bodies, too."""
    yield from model.graph.initializer
    for node in everywhere(model.graph.node):
        for body in bodies(node):
            yield from body.initializer


def filled(onnx: Any, tensor: Any, folder: Path) -> Any:
    """The tensor with its numbers in it, also where they lie in a file of the folder."""
    beside = onnx.external_data_helper
    if not beside.uses_external_data(tensor):
        return tensor
    result = onnx.TensorProto()
    result.CopyFrom(tensor)
    try:
        beside.load_external_data_for_tensor(result, str(folder))
    except Exception as error:  # of many kinds, and without the tensor's name
        raise UnsupportedError(f"{tensor.name!r}: its numbers cannot be read: {error}") from error
    result.data_location = onnx.TensorProto.DEFAULT
    del result.external_data[:]
    return result


def fill_small(onnx: Any, model: Any, folder: Path) -> None:
    """Puts small constants into the model: sizes may depend on them."""
    for each in tensors(model):
        if prod(each.dims) <= _SMALL:
            each.CopyFrom(filled(onnx, each, folder))


def declare_outputs(onnx: Any, model: Any) -> None:
    """Declares the types of the outputs of recurrent nodes.

    ONNX Runtime infers all other types itself, but not those behind an operator of this package.
    """
    bare, free = onnx.ModelProto(), overridable(model)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.ir_version = model.ir_version
    bare.graph.name = "bare"
    for field in ("node", "input", "output", "value_info"):
        getattr(bare.graph, field).extend(getattr(model.graph, field))
    declared = {value.name for value in model.graph.input}
    for each in model.graph.initializer:
        if each.name in free:  # whatever a caller puts in its place
            continue
        if prod(each.dims) <= _SMALL:  # it may be the shape of something
            bare.graph.initializer.append(each)
        elif each.name not in declared:
            value = onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
            bare.graph.input.append(value)
    with suppress(onnx.shape_inference.InferenceError):  # ONNX Runtime will report it
        bare = onnx.shape_inference.infer_shapes(bare)
    names = {n for node in everywhere(model.graph.node) if is_recurrent(node) for n in node.output}
    graphs = [(model.graph, bare.graph)]
    for graph, inferred in graphs:  # grows by the graphs in nodes
        missing = names - {value.name for value in (*graph.value_info, *graph.output)}
        graph.value_info.extend(value for value in inferred.value_info if value.name in missing)
        for output, typed in zip(graph.output, inferred.output, strict=True):
            if output.name in names:
                output.CopyFrom(typed)
        for node, typed in zip(graph.node, inferred.node, strict=True):
            graphs += zip(bodies(node), bodies(typed), strict=True)


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph, and those around it."""

    graph: Any
    outer: Scope | None = None
    depth: int = 0

    @cached_property
    def makers(self) -> dict[str, int]:
        """The place of the node that makes a value."""
        return {name: at for at, node in enumerate(self.graph.node) for name in node.output if name}

    @cached_property
    def constants(self) -> dict[str, int]:
        """The place of an initializer."""
        return {each.name: at for at, each in enumerate(self.graph.initializer)}

    @cached_property
    def inputs(self) -> set[str]:
        return {value.name for value in self.graph.input}

    def places(self) -> Iterator[Place]:
        """The nodes of the graph and of all that is inside of it."""
        for at, node in enumerate(self.graph.node):
            yield Place(self, at)
            for body in bodies(node):
                yield from Scope(body, self, self.depth + 1).places()

    def owner(self, name: str) -> Scope | None:
        """The scope whose initializer or node makes a value; None for inputs."""
        scope: Scope | None = self
        while scope and name not in scope.constants and name not in scope.makers:
            scope = None if name in scope.inputs else scope.outer
        return scope


class Place(NamedTuple):
    """Where a node stands, or an initializer."""

    scope: Scope
    at: int

    @property
    def node(self) -> Any:
        return self.scope.graph.node[self.at]

    @property
    def initializer(self) -> Any:
        return self.scope.graph.initializer[self.at]


def _first_last(place: Place) -> tuple[int, int]:
    return place.scope.depth, place.at


class Constants:
    """The initializers and nodes that some values come from, without any input."""

    def __init__(self, scope: Scope, names: Iterable[str], free: Collection[str]) -> None:
        self.initializers: dict[str, Place] = {}
        nodes: dict[Place, None] = {}
        pending = [(scope, name) for name in names]
        seen = set(pending)
        while pending:
            here, name = pending.pop()
            owner = here.owner(name)
            if owner is None:
                continue  # the reader refuses it
            if owner.depth == 0 and name in free:
                raise UnsupportedError(f"{name!r} is an input, too: callers may give other numbers")
            if name in owner.constants:
                self.initializers[name] = Place(owner, owner.constants[name])
                continue
            place = Place(owner, owner.makers[name])
            if place.node.op_type in _MAKERS and place.node.domain in ("", "ai.onnx"):
                nodes[place] = None
                more = {(owner, each) for each in place.node.input if each} - seen
                seen |= more
                pending += more
        self.nodes = sorted(nodes, key=_first_last)


class Layer(NamedTuple):
    """What a recurrent node computes; ``half``: between values of float16."""

    spec: RnnSpec
    weights: Weights
    batch_major: bool
    half: bool

    @property
    def is_double(self) -> bool:
        return bool(layers_of(self.spec, self.weights)[0].iter.dtype == np.float64)


def layer_of(onnx: Any, model: Any, folder: Path, node: Any, sources: Constants) -> Layer:
    """The layer of a node, lowered by the reader's rules in a model of its own.

    Raises an `OnernnError` where there is none.
    """
    helper, proto = onnx.helper, onnx.TensorProto
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("clip") == 0:
        raise UnsupportedError("clip=0, which ONNX does not define")
    before = [place.node for place in sources.nodes]
    constants = [filled(onnx, each.initializer, folder) for each in sources.initializers.values()]
    kinds = {each.name: each.data_type for each in constants}
    kinds |= dict.fromkeys(node.input[4:5], proto.INT32)
    real = next((kinds[name] for name in parameters(node) if name in kinds), proto.FLOAT)
    inner = {*sources.initializers, "", *(name for each in before for name in each.output)}
    inputs = {name: None for each in (*before, node) for name in each.input if name not in inner}
    graph = helper.make_graph(
        [*before, node],
        "alone",
        [helper.make_tensor_value_info(name, kinds.get(name, real), None) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        constants,
    )
    small = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    nodes = lower(parse_model(small.SerializeToString(), Path(named(node)))).nodes
    if reasons := [each.attributes["reason"] for each in nodes if each.op == UNSUPPORTED]:
        raise UnsupportedError(reasons[-1])
    layers = [Recurrent.of(each) for each in nodes if each.op == "Rnn"]
    if len(layers) != 1:
        raise UnsupportedError("its directions have functions of their own")
    half = any(each.op == "Cast" and each.attributes["to"] == "float16" for each in nodes)
    (rnn,), batch_major = layers, bool(attributes.get("layout", 0))
    return Layer(rnn.spec, rnn.weights, batch_major, half)


def is_zero(onnx: Any, scope: Scope, name: str, free: Collection[str]) -> bool:
    """Whether a value is zeros in a shape that is computed: an exporter's word for no state."""
    grown, to_array = False, onnx.numpy_helper.to_array
    for _ in range(_MOST_MOVES):
        owner = scope.owner(name)
        if owner is None or owner.depth == 0 and name in free:
            return False
        if name in owner.constants:
            tensor = Place(owner, owner.constants[name]).initializer
            is_here = not onnx.external_data_helper.uses_external_data(tensor)
            return grown and is_here and not to_array(tensor).any()
        node = Place(owner, owner.makers[name]).node
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == "ConstantOfShape" or (node.op_type == "Constant" and grown):
            return not any(each.HasField("t") and to_array(each.t).any() for each in node.attribute)
        if node.op_type not in _RESIZED and not is_view(node.op_type):
            return False
        grown |= node.op_type == "Expand"
        scope, name = owner, node.input[0]
    return False


class Replacement:
    """Replaces recurrent nodes, all at once, and drops what only they have read.

    ``places``: all nodes of the model.
    """

    def __init__(self, onnx: Any, model: Any) -> None:
        self.places = list(Scope(model.graph).places())
        self._onnx, self._model = onnx, model
        self._new: dict[Place, list[Any]] = {}
        self._unread: set[str] = set()
        self._uses = Counter(each.name for each in (*model.graph.output, *model.graph.input))
        for place in self.places:
            self._uses.update(place.node.input)
            for body in bodies(place.node):
                self._uses.update(each.name for each in body.output)

    def add(self, place: Place, layer: Layer, attribute: Any, free: Collection[str]) -> None:
        """Replaces a node by one with this ``layer`` attribute: the layer's number, or the layer.

        ``free``: see `overridable`.
        """
        helper, proto, node = self._onnx.helper, self._onnx.TensorProto, place.node
        x, lengths, h, c = (node.input[at] if at < len(node.input) else "" for at in (0, 4, 5, 6))
        zeros = [s for s in (h, c) if s and is_zero(self._onnx, place.scope, s, free)]
        h, c = ("" if state in zeros else state for state in (h, c))
        inputs, outputs = [x, h, c], [*node.output, "", ""][:3]
        before: list[Any] = []
        after: list[Any] = []
        if layer.half:  # in float32, rounded once
            wide_inputs, wide_outputs = [*map(self._fresh, inputs)], [*map(self._fresh, outputs)]
            before = self._casts(inputs, wide_inputs, proto.FLOAT)
            after = self._casts(wide_outputs, outputs, proto.FLOAT16)
            inputs, outputs = wide_inputs, wide_outputs
        x, h, c = inputs
        new = helper.make_node(
            "Layer64" if layer.is_double else "Layer",
            [x, lengths, h, c],
            outputs,
            node.name,
            domain=DOMAIN,
            layer=attribute if isinstance(attribute, int) else attribute.tobytes(),
        )
        self._new[place] = [*before, new, *after]
        self._forget([*parameters(node), *zeros])

    def finish(self) -> None:
        """Changes the model."""
        last_first = sorted(self.places, key=_first_last, reverse=True)
        for place in last_first:
            node = place.node
            if self._are_unread(node.output) and not bodies(node):
                self._new[place] = []
                self._forget(node.input)
        for place in last_first:
            if place in self._new:
                nodes = place.scope.graph.node
                del nodes[place.at]
                for node in reversed(self._new[place]):
                    nodes.insert(place.at, node)
        for scope in dict.fromkeys(place.scope for place in self.places):
            for name, at in reversed(scope.constants.items()):
                if self._are_unread([name]):
                    del scope.graph.initializer[at]
        self._model.opset_import.append(self._onnx.helper.make_opsetid(DOMAIN, 1))

    def _forget(self, names: Iterable[str]) -> None:
        """One node less reads them."""
        self._uses.subtract(names)
        self._unread.update(names)

    def _are_unread(self, names: Iterable[str]) -> bool:
        """Whether none of them is read any more, and one was read before."""
        values = [*filter(None, names)]
        return not self._unread.isdisjoint(values) and not any(self._uses[name] for name in values)

    def _casts(self, inputs: list[str], outputs: list[str], to: int) -> list[Any]:
        pairs = zip(inputs, outputs, strict=True)
        return [self._onnx.helper.make_node("Cast", [a], [b], to=to) for a, b in pairs if a]

    def _fresh(self, name: str) -> str:
        """An unused name; "" for none."""
        result = name and f"{name}/f32"
        while result and result in self._uses:
            result += "'"
        self._uses[result] += 1
        return result


# A model for ONNX Runtime, in which our nodes replace recurrent ones.

_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for the data of a model that it gets as bytes."""
_ON_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers beside which our operators run; Azure's has operators of its own only."""


class Rewritten(NamedTuple):
    """A model for ONNX Runtime, and SessionOptions: a copy where something is replaced."""

    source: Any
    options: Any
    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def rewritten(
    source: Any, options: Any, providers: Any, layers: OperatorLayers, dtype: str, backend: str
) -> Rewritten:
    """The model in which ``layers`` run the recurrent nodes, and what was replaced.

    Raises `UnsupportedError` for a dtype or backend that is not known here.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(unknown(dtype))
    if backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend {backend!r}: expected 'auto' or 'kernels', which run inside ONNX Runtime"
        )
    onnx = require("onnx", "onnx")

    def unchanged(error: Exception) -> Rewritten:
        return Rewritten(source, options, (), (Refusal(str(error), "model"),))

    try:
        _check_free(options, providers)
        model, folder = _read(onnx, source)
        names, files = _replaceable(onnx, model)
        fill_small(onnx, model, folder)
    except Exception as error:  # ONNX Runtime reads it all the same, or says why not
        return unchanged(error)
    lines, refusals = _replace(onnx, model, folder, partial(layers.add, dtype=dtype))
    if not lines:
        return Rewritten(source, options, (), refusals)
    try:
        own = _copied(onnx, options, names, files)
    except UnsupportedError as error:
        return unchanged(error)
    outside = any(map(onnx.external_data_helper.uses_external_data, tensors(model)))
    if outside and not isinstance(source, bytes):
        own.add_session_config_entry(_FOLDER, str(folder))
    return Rewritten(model.SerializeToString(), own, lines, refusals)


def _check_free(options: Any, providers: Any) -> None:
    """Raises `UnsupportedError` where the model must stay as it is."""
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
    """The model, and the folder of data that are not in it. Raises what onnx raises."""
    if isinstance(source, bytes):
        return onnx.load_from_string(source), Path()
    file = Path(source).absolute()
    return onnx.load(file, format="protobuf", load_external_data=False), file.parent


def _replace(
    onnx: Any,
    model: Any,
    folder: Path,
    add: Callable[..., tuple[Any, str]],
) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    """Changes the model; gives a line for each replaced node, and why others are not replaced.

    ``folder``: of data beside the model. ``add`` makes layers.
    """
    refusals = [
        Refusal("it stands in a function", named(node))
        for function in model.functions
        for node in everywhere(function.node)
        if is_recurrent(node)
    ]
    if not any(map(is_recurrent, everywhere(model.graph.node))):
        return (), tuple(refusals)
    declare_outputs(onnx, model)
    free, lines = overridable(model), []
    replacement = Replacement(onnx, model)
    for place in replacement.places:
        node = place.node
        if not is_recurrent(node):
            continue
        try:
            sources = Constants(place.scope, parameters(node), free)
            layer = layer_of(onnx, model, folder, node, sources)
            attribute, line = add(layer.spec, layer.weights, batch_major=layer.batch_major)
        except OnernnError as error:
            refusals.append(Refusal(str(error).replace("\n", " "), named(node)))
            continue
        replacement.add(place, layer, attribute, free)
        lines.append(f"{named(node)}: {line}")
    if lines:
        replacement.finish()
    return tuple(lines), tuple(refusals)


def _replaceable(onnx: Any, model: Any) -> tuple[list[str], list[str]]:
    """What SessionOptions may replace: initializers, and files of data, by name."""
    beside, initializers = onnx.external_data_helper, list(tensors(model))
    outside = filter(beside.uses_external_data, initializers)
    files = (beside.ExternalDataInfo(each).location for each in outside)
    return [*dict.fromkeys(each.name for each in initializers)], [*dict.fromkeys(files)]


def _copied(onnx: Any, options: Any, names: Sequence[str], files: Sequence[str]) -> Any:
    """A copy of SessionOptions, which the caller keeps unchanged.

    A session gives a copy of its options, without files in memory; and nobody can ask options for
    the initializers and files that they bring, or tell whether they name a folder of files. So a
    session of a small model reads random bytes under each of these names.

    Raises `UnsupportedError` where it reads others, which is the work of the options.
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
# holds custom operators, too. See design/0039.

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
    """An `onnxruntime.InferenceSession` of a model whose recurrent nodes onernn runs.

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
    """The options of the session, whose threads are those of our layers, too."""
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
    with guarded(lambda: model):
        stored = partial(stored_layer, kernels, dtype=dtype)
        lines, refusals = _replace(onnx, proto, Path(), lambda *at, **by: stored(*at, **by)[:2])
    if not lines:
        raise UnsupportedError(f"{model}: no recurrent node that onernn runs", refusals)
    try:
        content = proto.SerializeToString()
    except Exception as error:  # of protobuf's versions
        raise UnsupportedError(f"{path}: with its weights inside, 2 GB at most: {error}") from error
    with replacing(path) as stream:
        stream.write(content)
    return Explained(lines, refusals)


@cache
def inference_session() -> Any:
    """The class; ONNX Runtime is imported when it is asked for."""
    runtime = require("onnxruntime", "onnx")

    class InferenceSession(runtime.InferenceSession):  # type: ignore[misc, name-defined]
        """An `onnxruntime.InferenceSession` of a model whose recurrent nodes onernn runs.

        It takes what ONNX Runtime's takes, as documented by onnxruntime.InferenceSession; methods,
        outputs and errors are ONNX Runtime's. ``dtype`` and ``backend`` are those of
        `onernn.adapters.onnx.optimize`, and so are ``replaced``, ``refusals`` and ``explain()``.
        ``sess_options`` are copied. Nothing is replaced for providers other than the CPU's, nor
        where ``sess_options`` ask for a file of the optimized model, choose the providers, or bring
        initializers or data of the model. A model that needs custom operators of ``sess_options``
        stays as it is, too: a copy has none.
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
            """A line for each recurrent node: who runs it, and why."""
            return Explained(self.replaced, self.refusals).text(HOST) or "no recurrent nodes"

    InferenceSession.__module__ = "onernn.adapters.onnx"
    InferenceSession.__qualname__ = "InferenceSession"
    return InferenceSession
