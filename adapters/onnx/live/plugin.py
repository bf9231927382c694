"""onernn inside ONNX Runtime: recurrent nodes become nodes of ours in the same model.

ONNX Runtime runs the whole model in one session, ours by the kernels' library, which is one of
custom operators, too. See design/0039.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from onernn.adapters.onnx.live.replacing import (
    Constants,
    Layer,
    Replacement,
    everywhere,
    infer_sizes,
    is_recurrent,
    layer_of,
    named,
    overridable,
    parameters,
)
from onernn.adapters.requirements import require
from onernn.backend.choosing import Choice, Kind
from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.operator_layers import OperatorLayers
from onernn.backend.onednn.precision import PRECISIONS
from onernn.core.errors import OnernnError, Refusal, UnsupportedError

_RULED = ("auto", "f32")
"""The backend and dtype of which measurements decide; another dtype is a wish."""
_REGISTERED = "onernn.operators"
"""The entry of a SessionOptions that has our library; ONNX Runtime refuses to have it twice."""


def optimize(
    model: Any,
    *,
    dtype: str = "f32",
    threads: int | None = None,
    backend: str = "auto",
    session_options: Any = None,
) -> Any:
    """An `onnxruntime.InferenceSession` of a model whose recurrent nodes are ours.

    ``model``: a path, a ModelProto or its bytes. ``dtype`` is that of `Session`. ``backend``:
    "auto" replaces the nodes that are measured as faster, "kernels" all that our kernels run; the
    others stay where they are. ``threads``: of ONNX Runtime and of ours; ``session_options``,
    ONNX Runtime's, tell it, too, and get our operators.

    The session has ``replaced``, a line for each node that ours runs, ``refusals``, why others are
    ONNX Runtime's, and ``explain()``, both.

    Raises `MissingDependencyError` without onnx and onnxruntime, `LibraryError` without kernels,
    `UnsupportedError` for a dtype or backend that is not known here, and what ONNX Runtime raises
    for the model.
    """
    onnx, runtime = require("onnx", "onnx"), require("onnxruntime", "onnx")
    if dtype not in PRECISIONS:
        raise UnsupportedError(f"dtype {dtype!r}: expected one of {', '.join(PRECISIONS)}")
    if backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend {backend!r}: expected 'auto' or 'kernels', which run inside ONNX Runtime"
        )
    options, threads = _options(runtime, session_options, threads)
    kernels = load_kernels()
    source = os.fspath(model) if isinstance(model, Path) else model
    if isinstance(source, str):
        own = onnx.load(source)
    elif isinstance(source, bytes):
        own = onnx.load_from_string(source)
    else:
        own = onnx.ModelProto()
        own.CopyFrom(source)
    rule = partial(_check_gain, kernels.isa, threads)
    with closing(OperatorLayers(kernels)) as layers:
        add = partial(layers.add, dtype=dtype)
        lines, refusals = _replace(onnx, own, add, rule if (backend, dtype) == _RULED else None)
        if lines:
            source = own
            _register(options, kernels.path)
        if not isinstance(source, str | bytes):
            source = source.SerializeToString()
        session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    session.replaced, session.refusals = lines, refusals
    session.explain = partial(_explained, lines, refusals)
    return session


def _replace(
    onnx: Any, model: Any, add: Callable[..., tuple[int, str]], rule: Callable[..., None] | None
) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    """Changes the model; gives a line for each node that is ours now, and why there are no more.

    ``add`` makes layers; ``rule`` raises `UnsupportedError` for one that is not worth it.
    """
    refusals = [
        Refusal("it stands in a function", named(node))
        for function in model.functions
        for node in everywhere(function.node)
        if is_recurrent(node)
    ]
    if not any(map(is_recurrent, everywhere(model.graph.node))):
        return (), tuple(refusals)
    sizes, free, lines = infer_sizes(onnx, model), overridable(model), []
    replacement = Replacement(onnx, model)
    for place in replacement.places:
        node = place.node
        if not is_recurrent(node):
            continue
        try:
            made_of = Constants(place.scope, parameters(node), free)
            layer = layer_of(onnx, model, node, made_of)
            if rule and not layer.only_ours:
                rule(layer, node, sizes.get(node.input[0], ()))
            number, told = add(layer.spec, layer.weights, batch_major=layer.batch_major)
        except OnernnError as error:
            refusals.append(Refusal(str(error).replace("\n", " "), named(node)))
            continue
        replacement.add(place, layer, number, free)
        lines.append(f"{named(node)}: {told}")
    if lines:
        replacement.finish()
    return tuple(lines), tuple(refusals)


def _check_gain(
    isa: str, threads: int, layer: Layer, node: Any, sizes: Sequence[int | None]
) -> None:
    """Raises `UnsupportedError` where ours was not measured as faster than ONNX Runtime's.

    ``sizes``: of X, as far as they are known.
    """
    steps, sentences, _ = sizes if len(sizes) == 3 else (None, None, None)
    kinds: Sequence[Kind] = ("step", "dense")
    if len(node.input) > 4 and node.input[4]:
        kinds = ("ragged",)
    elif steps:
        kinds = ("step",) if steps == 1 else ("dense",)
    spec = layer.spec
    if not Choice("inside", isa, "f32", threads, spec).prefers_all(kinds, sentences):
        raise UnsupportedError(
            f"ours was not measured as faster: {spec.cell.name} of {spec.hidden_size} units,"
            f" {' or '.join(kinds)} batches of {sentences or 'any number of'} sequences,"
            f" {threads} threads, {isa}; backend='kernels' replaces it all the same"
        )


def _explained(replaced: Sequence[str], refusals: Sequence[Refusal]) -> str:
    """A line for each recurrent node: who runs it, and why."""
    lines = [*replaced, *(f"{each.where}: ONNX Runtime ({each.reason})" for each in refusals)]
    return "\n".join(lines) or "no recurrent nodes"


def _options(runtime: Any, given: Any, threads: int | None) -> tuple[Any, int]:
    """The options of the session, and the threads of our layers: as many as ONNX Runtime's."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    if given is None:
        given = runtime.SessionOptions()
        given.intra_op_num_threads = threads or 0
    elif threads not in (None, given.intra_op_num_threads):
        raise UnsupportedError(
            f"threads={threads}, but session_options.intra_op_num_threads is"
            f" {given.intra_op_num_threads}: ours run on as many as ONNX Runtime; give one of them"
        )
    return given, given.intra_op_num_threads or len(os.sched_getaffinity(0))


def _register(options: Any, library: Path) -> None:
    """Our operators in the options, once. Raises what ONNX Runtime says where it is too old."""
    try:
        options.get_session_config_entry(_REGISTERED)
    except RuntimeError:  # there is none
        options.register_custom_ops_library(str(library))
        options.add_session_config_entry(_REGISTERED, str(library))
